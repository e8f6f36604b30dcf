"""What to train, and how, where that is left open: chosen by public facts, or by the name of a preset."""
