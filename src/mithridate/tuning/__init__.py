"""The choice of a method and its constants on examples that no attacker touched."""
