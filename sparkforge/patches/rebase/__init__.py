"""Carrying a series to another tree: what became of every patch, with the evidence, and the new series."""
