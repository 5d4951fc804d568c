"""How parameters start: each distribution, its numbers, and how it follows from a standard draw.

What is drawn for an element depends on the seed, the parameter's name and the element's global index alone, so
that every layout, either backend and any number of processors start alike, to the last bit. The stream is that of
`jax.random` (Threefry 2x32, partitionable) under `fold_in(key(seed), crc32(name))`, drawn as f32 whatever the dtype: see
`common/random_numbers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

Draw = Literal["normal", "uniform"]
"""Standard normal, or uniform on [0, 1)."""


@attrs.frozen
class Distribution:
    """One way to start.

    args: its numbers -> their defaults, None where one must be given. draw: what is drawn for each element, if
    anything. start, scale: the value is start + scale * draw, as expressions in the numbers, the same in both backends.
    """

    name: str
    args: Mapping[str, float | None]
    draw: Draw | None
    start: str
    scale: str


DISTRIBUTIONS = {
    distribution.name: distribution
    for distribution in (
        Distribution("zeros", {}, None, "0.0", ""),
        Distribution("ones", {}, None, "1.0", ""),
        Distribution("constant", {"value": None}, None, "{value}", ""),
        Distribution("normal", {"mean": 0.0, "stddev": 1.0}, "normal", "{mean}", "{stddev}"),
        Distribution("uniform", {"low": 0.0, "high": 1.0}, "uniform", "{low}", "({high} - {low})"),
    )
}
