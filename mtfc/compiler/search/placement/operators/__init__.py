"""Operators: what FlexFlow partitions, and the parts that each can be computed in."""
