"""Files: read within limits, written as a whole or not at all."""
