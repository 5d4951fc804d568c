"""Mutants: programs with one planted fault each, which the checks must find.

`make mutants` plants faults in generated NumPy modules and in gradients, for the exact check of `mtfc verify`.
`make mutate-source` changes the compiler itself, for the tests.
"""
