"""The solver of pairwise assignment problems: one strategy for each node at the least total cost, within memory at all times.

It knows nothing of programs and layouts. `assignment_problem.py` defines the problem and `solve.py` solves it.
"""
