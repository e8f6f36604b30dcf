"""Evidence: what a run shows, in one archive that anyone can check, signed or not."""
