"""Attacks on the real pipeline: what poisoned training data does to predictions, beside what certificates claim.

A certificate says what cannot happen up to a radius. An audit looks whether it is so, and what happens beyond: it
poisons the training data, trains again by the same door, and compares every prediction with every claim. An attack that
fails shows nothing but its own failure; one that succeeds within a radius refutes a claim.
"""
