"""Names that arguments carry for their axes: logical names of Flax's parameters, and mesh axes of shardings.

Flax keeps the names in a box around an array. A box is a node of the pytree, and no mesh is needed to read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Annotation:
    """A name for each axis of an array, or None. is_of_flax: True for Flax's names, of which equal ones mean one dimension."""

    names: tuple[str | None, ...]
    is_of_flax: bool


NNX_KEYS = ("out_sharding", "sharding_names", "sharding")
"""The keys of NNX's metadata that have the names, the newest first."""


def axis_annotations(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Annotation | None, ...]:
    """Return the names of each leaf."""
    import jax

    found: list[Annotation | None] = []
    for x in jax.tree.leaves((tuple(args), dict(kwargs)), is_leaf=lambda x: _of_box(x) is not None):
        own, leaves = _of_box(x), jax.tree.leaves(x)
        names = getattr(getattr(x, "sharding", None), "spec", ()) if own is None else own
        found += [_fitted(names, len(getattr(leaf, "shape", ())), own is not None) for leaf in leaves]
    return tuple(found)


def _of_box(x: Any) -> Sequence[Any] | None:
    """Return the names in a box of Flax: `nn.Partitioned` and its kinds have `names`, a variable of NNX has metadata."""
    if hasattr(x, "unbox"):
        return getattr(x, "names", None)
    if not hasattr(x, "get_metadata"):
        return None
    metadata = x.get_metadata()
    return next((metadata[key] for key in NNX_KEYS if metadata.get(key)), None)


def _fitted(names: Any, rank: int, is_of_flax: bool) -> Annotation | None:
    """Return a name for each axis. An axis that is split over several mesh axes has none."""
    names = getattr(names, "spec", names)  # NNX has names, or a sharding
    if isinstance(names, str) or not hasattr(names, "__len__") or not 0 < len(names) <= rank:
        return None
    every = [*names, *[None] * (rank - len(names))]
    return Annotation(tuple(each if isinstance(each, str) else None for each in every), is_of_flax)
