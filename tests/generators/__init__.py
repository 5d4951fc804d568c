"""Hypothesis strategies, one file per family of features; `programs.py` composes them."""
