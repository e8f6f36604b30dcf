"""From votes to radii: bounds, a rule, the search for the largest radius; and planning before training."""
