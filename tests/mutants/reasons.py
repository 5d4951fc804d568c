"""Reasons why a fault in a generated module changes no result.

A reason is found by experiment: either the site's value says why, or other faults at the same elements show what no result
depends on. A mutant without a reason counts as missed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mtfc.backends.exact.residues import ExactArray
from tests.mutants.sites import Bench, Fault, Site, Visit

CAUGHT, MISSED = "caught", "missed"
TRIES = 3
"""The number of random values that stand for all others."""

Survives = Callable[[Fault], bool]
"""Returns True if a fault at the same site changes no result."""


def reason(bench: Bench, site: Site, fault: Fault, visits: Sequence[Visit], survives: Survives) -> str:
    """Return why a fault changes no result, or `MISSED`."""
    if not visits:
        return "the function never reaches the site"
    if not any(visit.is_changed for visit in visits):
        return _reason_at_site(
            bench.module, site, [array for visit in visits for array in _parts(visit.right)]
        )
    for words, change in EXPERIMENTS:
        if all(survives(partial(change, fault, np.random.default_rng(i))) for i in range(TRIES)):
            return words
    if all(_is_reordered(visit) for visit in visits):
        return "no result depends on the order of the parts"
    return MISSED


def _reason_at_site(module: Any, site: Site, arrays: Sequence[Any]) -> str:
    """Return why the fault gives the same value as the site."""
    mesh = module.MESH
    if site.axes and prod(mesh[axis] for axis in site.axes) == 1:
        return "the group has one processor"
    if all((array == array.ravel()[:1]).all() for array in arrays):
        return "all elements of the value are equal"
    if all(_is_replicated(array, len(mesh)) for array in arrays):
        return "every processor holds the same value"
    return "the fault gives the same value at the site"


def _is_replicated(array: Any, axes: int) -> bool:
    return bool((array == array[(slice(0, 1),) * axes]).all())


# Experiments: other faults at the same site


def all_drawn(
    fault: Fault, random: Any, module: Any, kind: str, right: Any, *args: Any, **options: Any
) -> Any:
    """Take random values for all elements."""
    return _mapped(lambda x: _with(x, _drawn(x, random)), right)


def differing_drawn(
    fault: Fault, random: Any, module: Any, kind: str, right: Any, *args: Any, **options: Any
) -> Any:
    """Take random values for the elements that the fault changes."""

    def one(x: Any, wrong: Any) -> Any:
        left, other = np.broadcast_arrays(_plain(x), _plain(wrong))
        return _with(x, np.where(left != other, _drawn(x, random, left.shape), left))

    return _mapped(one, right, fault(module, kind, right, *args, **options))


EXPERIMENTS = (
    ("no result depends on the value", all_drawn),
    ("no result depends on the elements that differ", differing_drawn),
)


def _drawn(x: Any, random: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return random residues, integers from 0 to 3, or truth values."""
    size = _plain(x).shape if shape is None else shape
    if isinstance(x, ExactArray) and x.is_float:
        return random.integers(1, x.field.p, size, np.uint64)
    return random.integers(0, 2 if x.dtype == np.bool_ else 4, size).astype(x.dtype)


def _mapped(change: Any, *values: Any) -> Any:
    return tuple(map(change, *values)) if isinstance(values[0], tuple) else change(*values)


def _plain(x: Any) -> Any:
    if isinstance(x, ExactArray):
        return x.residues().values if x.is_float else x.values
    return np.asarray(x)


def _with(x: Any, values: Any) -> Any:
    """Return other elements of an array."""
    return ExactArray(x.field, values, x.dtype, x.is_float) if isinstance(x, ExactArray) else values


def _parts(value: Any) -> list[Any]:
    return [_plain(x) for x in value] if isinstance(value, tuple) else [_plain(value)]


def _is_reordered(visit: Visit) -> bool:
    """Return True if the wrong value has the right elements, in another order."""
    pairs = zip(_parts(visit.right), _parts(visit.wrong), strict=True)
    return all(np.array_equal(*(np.sort(x, axis=None) for x in np.broadcast_arrays(*pair))) for pair in pairs)
