"""The solver of the search: one strategy for each node, at the least total cost, within memory at all times.

It knows nothing of programs and layouts, and nothing here reads or writes files. `problem.py` says what is solved,
`solve.py` how; the contest's format is in `contest_format.py`.
"""
