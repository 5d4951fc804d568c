"""Operators: the units that FlexFlow partitions, and the parts into which each may be split."""
