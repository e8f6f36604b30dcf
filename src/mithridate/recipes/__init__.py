"""What to train, and how, where that is left open; presets and project files."""
