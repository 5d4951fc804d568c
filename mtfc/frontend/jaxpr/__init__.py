"""JAX programs as input: a jaxpr becomes a program over named dimensions.

`flat.py` traces a function and flattens its jaxpr. `factors.py` unites the axes of its arrays to dimensions, and
`primitive_rules.py` says for each primitive which axes are the same. `renames.py` puts renames where they take the fewest
bytes. `importing.py` makes the equations of the IR, by the rules in `rules/`.
"""
