"""Inputs that hurt: one argument of a model at a time with NaN, infinities, zeros, ties, or very large and small numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar
from zlib import crc32

import attrs
import numpy as np

from mtfc.backends.exact.check import computed_elements
from mtfc.compiler.ir.core import Function, Value, walk
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import FLOATS
from mtfc.driver.data.array_files import Array, Arrays
from mtfc.driver.data.inputs import index_bound
from mtfc.driver.verification.agreement import limits_of

KINDS: Mapping[str, Callable[[Any], Any]] = {
    "mixed": lambda x: x,
    "positive": lambda x: 0.05 + abs(x),
    "small": lambda x: 1e-2 * x,
    "fractions": lambda x: 0.1 + 0.8 / (1 + abs(x)),
    "above": lambda x: 1.5 + abs(x),
}
"""Kinds of drawn floats, in the order in which they are tried: a function may be NaN on some of them."""

Drawn = TypeVar("Drawn")


def fewest(tried: Iterable[Drawn], lacking: Callable[[Drawn], float]) -> Drawn:
    """Return the first draw that lacks nothing, or else the one that lacks least."""
    found = []
    for each in tried:
        found.append(each)
        if not lacking(each):
            break
    return min(found, key=lacking)


MOST = 40
"""The most draws of a model."""

LEAST = 3
"""The fewest draws of a model, however large it is."""

WORK = 1_000_000
"""Elements that all draws together may compute."""

LARGE = 2.0**32
"""A large number: sums of f16 overflow far below it, and products of few such numbers do not overflow in f32."""

PER_EQUATION = 500
"""Elements that take about as long as the evaluation of an equation begins with."""


@attrs.frozen
class SpecialKind:
    """A kind of special numbers. change: writes them into a flat array, given a generator and the limits of the dtype.

    is_huge: finite numbers are only compared with NaN and infinities, since sums lose the digits of all small terms.
    """

    name: str
    change: Callable[[Any, Any, Any], None]
    is_finite: bool = True
    is_huge: bool = False


def _some(*numbers: Callable[[Any], float]) -> Callable[[Any, Any, Any], None]:
    """Write each number at one place."""

    def change(flat: Any, generator: Any, limits: Any) -> None:
        """Put the numbers at random places of an array."""
        places = generator.permutation(flat.size)[: len(numbers)]
        for place, number in zip(places, numbers, strict=False):
            flat[place] = number(limits)

    return change


def _opposite(flat: Any, generator: Any, limits: Any) -> None:
    """Write large numbers, positive in the first half and negative in the second: their sum is 0, and that of a part is not."""
    flat[:] = min(float(limits.max) / 16, LARGE)
    flat[flat.size // 2 :] *= -1


def _ties(flat: Any, generator: Any, limits: Any) -> None:
    flat[:] = generator.integers(-1, 2, flat.size)


def _zeros(flat: Any, generator: Any, limits: Any) -> None:
    flat[:] = 0


FLOAT_KINDS = (
    SpecialKind("a NaN", _some(lambda limits: float("nan")), is_finite=False),
    SpecialKind("an infinity", _some(lambda limits: float("inf")), is_finite=False),
    SpecialKind("zeros at some places", _some(lambda limits: 0.0, lambda limits: -0.0)),
    SpecialKind("large numbers of both signs", _opposite, is_huge=True),
    SpecialKind("a minus infinity", _some(lambda limits: -float("inf")), is_finite=False),
    SpecialKind("ties", _ties),
    SpecialKind(
        "a very large and a very small number",
        _some(lambda limits: 2.0 ** (limits.maxexp // 2), lambda limits: float(limits.smallest_subnormal)),
        is_huge=True,
    ),
    SpecialKind("zeros", _zeros),
)

INDEX_KIND = "indices out of range"


@attrs.frozen
class SpecialDraw:
    """Arguments with special numbers in one of them; `what` says which. is_huge: see `SpecialKind`."""

    what: str
    arguments: Mapping[str, Array]
    is_finite: bool = True
    is_huge: bool = False


def special_draws(function: Function, arguments: Arrays, seed: int) -> Iterator[SpecialDraw]:
    """Yield draws: each kind of special numbers in each argument, as far as the size of the model allows."""
    return islice(_all_draws(function, arguments, seed), _number(function))


def has_convolution(function: Function) -> bool:
    """True if a dot reads sliding windows. JAX has fewer or more products with padding, which matter beside NaN."""
    windows = set[Value]()
    for eqn in walk(function.body):
        reads = not windows.isdisjoint(eqn.operands)
        if has_trait(eqn, "dot") and reads:
            return True
        if has_trait(eqn, "window", "fold") or (reads and not eqn.regions and OPS[eqn.op].flops is no_flops):
            windows.update(eqn.results)
    return False


def _number(function: Function) -> int:
    """Return the number of draws: fewer for a function that computes many elements."""
    return max(LEAST, min(MOST, WORK // max(computed_elements(function.body, PER_EQUATION), 1)))


def _all_draws(function: Function, arguments: Arrays, seed: int) -> Iterator[SpecialDraw]:
    """Yield one kind after the other in all arguments; where draws run out, each kind has met other arguments."""
    types = {argument.value.name: argument.value.type for argument in function.arguments}
    floats = [name for name, type in types.items() if type.dtype in FLOATS]
    body = tuple(walk(function.body))
    indices = [name for name in types if name not in floats and index_bound(name, body) is not None]
    for name in indices:
        changed = _out_of_range(arguments[name], index_bound(name, body) or 0, seed)
        yield SpecialDraw(f"{name} has {INDEX_KIND}", {**arguments, name: changed})
    for turn in range(len(floats)):
        for number, kind in enumerate(FLOAT_KINDS):
            name = floats[(turn + number) % len(floats)]
            changed = _changed(arguments[name], kind, [seed, turn, crc32(kind.name.encode())])
            what, given = f"{name} has {kind.name}", {**arguments, name: changed}
            yield SpecialDraw(what, given, kind.is_finite, kind.is_huge)


def _changed(array: Array, kind: SpecialKind, entropy: Sequence[int]) -> Array:
    """Return an array in which some numbers are special ones of a kind."""
    array = np.asarray(array)
    flat = array.astype(np.float64).reshape(-1)
    kind.change(flat, np.random.default_rng(entropy), limits_of(array.dtype))
    return flat.reshape(array.shape).astype(array.dtype)


def _out_of_range(array: Array, bound: int, seed: int) -> Array:
    """Write indices below 0, at the bound and beyond it, as far as the dtype has them."""
    array = np.array(array)
    limits = np.iinfo(array.dtype)
    numbers = [n for n in (bound, -1, bound + 7, limits.max, limits.min, -bound) if limits.min <= n]
    places = np.random.default_rng([seed, bound]).permutation(array.size)[: len(numbers)]
    flat = array.reshape(-1)
    flat[places] = numbers[: len(places)]
    return flat.reshape(array.shape)
