"""Calls of `jax.shard_map` as batches: the program of one device, mapped by `jax.vmap` over the axes of the call's own mesh.

The parts of an array are the examples of a batch, and collectives are reductions and moves along the batch. So the call means the
same on any mesh, and layouts may split its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Spec = Sequence[tuple[str, ...]]
"""For each axis of an array, the mesh axes that split it, the outermost first."""

Body = Callable[..., Sequence[Any]]


def as_batches(eqn: Any, operands: Sequence[Any], body: Body) -> list[Any]:
    """Return the results of a `shard_map`. body: evaluates the program of one device. Raises errors of JAX."""
    mesh = eqn.params["mesh"]
    manual = eqn.params["newly_manual_axes"]
    axes = tuple(axis for axis in mesh.axis_names if axis in manual)
    sizes = {axis: mesh.shape[axis] for axis in axes}
    specs = [_spec(spec, v.aval.ndim) for spec, v in zip(eqn.params["in_specs"], eqn.invars, strict=True)]
    given = [_parts(x, spec, sizes) for x, spec in zip(operands, specs, strict=True)]
    results = _mapped(body, specs, sizes)(*given)
    ends = [_spec(spec, v.aval.ndim) for spec, v in zip(eqn.params["out_specs"], eqn.outvars, strict=True)]
    return [_whole(x, spec, sizes) for x, spec in zip(results, ends, strict=True)]


def without_variation(eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
    """Return the results of an equation that says along which mesh axes arrays vary, or of a permutation that `jax.vmap` refuses.

    None for another equation.
    """
    import jax

    name, params = eqn.primitive.name, eqn.params
    if name in ("pvary", "pcast"):
        return [*operands]
    if name == "psum_invariant":
        reduced: Any = jax.lax.psum
        return [reduced(x, params["axes"]) for x in operands]
    if name == "ppermute":
        return [_permuted(x, params["axis_name"], params["perm"]) for x in operands]
    if name == "all_gather_invariant":
        gathered: Any = jax.lax.all_gather
        options = {"axis": params["all_gather_dimension"], "tiled": params["tiled"]}
        return [gathered(x, params["axis_name"], **options) for x in operands]
    return None


def _permuted(x: Any, axes: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Send parts from device to device: a device that gets none has zeros."""
    import jax

    size: int = jax.lax.axis_size(axes)
    sources = [size] * size
    for source, target in pairs:
        sources[target] = source
    place = jax.numpy.asarray(sources)[jax.lax.axis_index(axes)]
    return jax.lax.all_gather(x, axes).at[place].get(mode="fill", fill_value=0)


def has_shard_map(closed: Any) -> bool:
    """Return True if a jaxpr has a `shard_map`, or one that it calls."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    for eqn in getattr(closed, "jaxpr", closed).eqns:
        values = [y for x in eqn.params.values() for y in (x if isinstance(x, tuple) else (x,))]
        inside = any(has_shard_map(x) for x in values if isinstance(x, ClosedJaxpr | Jaxpr))
        if inside or eqn.primitive.name == "shard_map":
            return True
    return False


def _mapped(body: Body, specs: Sequence[Spec], sizes: dict[str, int]) -> Body:
    """Return the body under a `jax.vmap` for each mesh axis. Operands and results have these axes in front."""
    import jax

    found: Any = body
    for axis, size in reversed(sizes.items()):
        places = tuple(0 if any(axis in each for each in spec) else None for spec in specs)
        found = jax.vmap(found, places, 0, axis_name=axis, axis_size=size)
    mapped: Body = found
    return mapped


def _spec(spec: Any, rank: int) -> Spec:
    """Return the mesh axes of each axis of an array."""
    if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        raise ValueError(f"pending sums in {spec}")
    entries = [() if each is None else (each,) if isinstance(each, str) else tuple(each) for each in spec]
    return [*entries, *[()] * (rank - len(entries))]


def _parts(x: Any, spec: Spec, sizes: dict[str, int]) -> Any:
    """Return an array with an axis in front for each mesh axis that splits it."""
    order = [axis for each in spec for axis in each]
    shape = [
        n
        for size, each in zip(x.shape, spec, strict=True)
        for n in (*(sizes[a] for a in each), size // prod(sizes[a] for a in each))
    ]
    places: dict[str, int] = {}
    ends: list[int] = []
    for each in spec:
        for axis in each:
            places[axis] = len(places) + len(ends)
        ends.append(len(places) + len(ends))
    front = [places[axis] for axis in sizes if axis in order]
    return x.reshape(shape).transpose(*front, *ends)


def _whole(x: Any, spec: Spec, sizes: dict[str, int]) -> Any:
    """Return a result without the axes in front: undo `_parts`. A mesh axis that does not split it holds copies."""
    split = [axis for axis in sizes if any(axis in each for each in spec)]
    x = x[tuple(slice(None) if axis in split else 0 for axis in sizes)]
    order, shape = [], []
    for j, each in enumerate(spec):
        order += [*map(split.index, each), len(split) + j]
        shape.append(prod(sizes[axis] for axis in each) * x.shape[len(split) + j])
    return x.transpose(order).reshape(shape)
