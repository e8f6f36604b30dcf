"""Several defences on the same data, side by side."""
