"""The distributions of initial parameters: the numbers of each, and its formula in terms of a standard draw.

The number drawn for an element depends only on the seed, the parameter's name and the element's global index. So parameters start
with the same bits under every layout, on both backends, and on any number of processors. The numbers are those of `jax.random`
(Threefry 2x32, partitionable) under `fold_in(key(seed), crc32(name))`. They are drawn in f32 for every dtype: see
`backends/common/random_numbers.py`.
"""

from collections.abc import Mapping
from typing import Literal

from mtfc.compiler.records import frozen

Draw = Literal["normal", "uniform"]
"""The standard draws: normal with mean 0 and deviation 1, or uniform on [0, 1)."""


@frozen
class Distribution:
    """One distribution.

    args: its numbers -> their defaults; None for a number that must be given. draw: the standard draw for each element, if any.
    start, scale: expressions in the numbers, for both backends; an element is start + scale * draw.
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
