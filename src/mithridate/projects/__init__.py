"""Files in TOML: projects, which say what to train on which data, and comparisons of several methods."""
