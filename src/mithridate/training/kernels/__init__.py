"""Triton and C for those who want them; nobody else needs to read this room."""
