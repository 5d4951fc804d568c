"""What a collective puts on the wire, by the ring algorithms.

A processor whose operand has s bytes, in a group of n processors, sends s * `RING[kind](n)` bytes. The formulas take any number
that knows + - * /: a float, an exact fraction, or a formula in the mesh axes' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

RING: Mapping[str, Callable[[Any], Any]] = {
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "permute": lambda n: 1,
    "local_slice": lambda n: 0,
    "unreduce": lambda n: 0,
}
