"""Costs of many cases at once, as NumPy arrays, which searches look up."""
