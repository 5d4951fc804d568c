"""Mutants: programs with one planted fault each, which the checks of `mtfc verify` must find.

`make mutants` plants faults in collectives, slices and gathers of generated NumPy modules, and in gradient rules.
"""
