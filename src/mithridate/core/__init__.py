"""Values that everything else is about: mechanisms, threats, votes, bounds, certificates."""
