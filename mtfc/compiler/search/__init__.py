"""Searches for the best layout of a model, in three spaces, and the solver that they use."""
