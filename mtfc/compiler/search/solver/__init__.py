"""The solver of pairwise assignment problems (`assignment_problem.py`, `solve.py`). It knows nothing of programs and layouts."""
