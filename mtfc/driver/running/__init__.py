"""Execution of a program, and training."""
