"""Faults of collectives, slices and gathers, as functions on the arrays of all processors.

A fault takes the module, the kind of the site, the right value and the arguments of the site. It returns a wrong value of a
shape that the program can go on with. The faults are those that a compiler could make: a collective that is missing, done twice,
done along another axis or in another group, another reduction, or an offset that is wrong by one.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

from tests.mutants.sites import Fault, Site

REDUCTIONS = {"psum": "pmax", "pmax": "pmin", "pmin": "pmax"}


def faults(module: Any, site: Site) -> Iterator[tuple[str, Fault]]:
    """Yield the faults that can be planted at a site, with their names."""
    yield from TABLE[site.kind].items()
    if site.kind in (*REDUCTIONS, "reduce_scatter"):
        for axis, size in module.MESH.items():
            if size > 1 and site.axes != (axis,):
                yield f"along {axis}", _along(axis)


def dropped(module: Any, kind: str, right: Any, x: Any, axes: Any = None, *args: Any, **options: Any) -> Any:
    """Send nothing: every processor goes on with its own data, repeated or cut to the shape of the right value."""
    if kind in REDUCTIONS:
        return x
    if isinstance(x, tuple):
        return tuple(_tiled(module, each, axes, dim) for each, dim in zip(x, options["dim"], strict=True))
    if kind == "all_gather":
        return _tiled(module, x, axes, options["dim"])
    if kind == "reduce_scatter":
        return _own_part(module, x, axes, options["dim"])
    if kind == "all_to_all":
        tiled = _tiled(module, x, axes, options["source"])
        return _own_part(module, tiled, axes, options["target"])
    return x


def doubled(module: Any, kind: str, right: Any, x: Any, axes: Any, *args: Any, **options: Any) -> Any:
    """Do a sum twice: it counts each term once for each processor of the group."""
    times = prod(module.MESH[axis] for axis in _names(axes))
    return _each(right, lambda total: total * total.dtype.type(times))


def other_reduction(module: Any, kind: str, right: Any, x: Any, axes: Any) -> Any:
    """Take the maximum of terms in place of their sum, or the other extremum."""
    return getattr(module, REDUCTIONS[kind])(x, axes)


def other_group(module: Any, kind: str, right: Any, x: Any, *args: Any, **options: Any) -> Any:
    """Get what the neighbour along every mesh axis gets."""
    return _each(right, lambda y: _rolled(module, y, module.MESH))


def other_part(module: Any, kind: str, right: Any, x: Any, axes: Any, *args: Any, **options: Any) -> Any:
    """Get the part of the next processor along the collective's axes."""
    return _each(right, lambda y: _rolled(module, y, _names(axes)))


def other_order(module: Any, kind: str, right: Any, x: Any, axes: Any, *args: Any, **options: Any) -> Any:
    """Join parts beginning with the second."""
    moved = _each(x, lambda y: _rolled(module, y, _names(axes)))
    return getattr(module, kind)(moved, axes, *args, **options)


def scattered(module: Any, kind: str, right: Any, x: Any, axes: Any) -> Any:
    """Complete each processor's part alone, as a reduce-scatter without its all-gather. The rest stays a term."""

    def one(total: Any, terms: Any) -> Any:
        sizes = [module.MESH[axis] for axis in _names(axes)]
        count, lead = prod(sizes), len(module.MESH)
        for dim in range(total.ndim - lead):
            if total.shape[lead + dim] % count == 0:
                place = module.np.arange(total.shape[lead + dim]) // (total.shape[lead + dim] // count)
                place = place.reshape((-1,) + (1,) * (total.ndim - lead - dim - 1))
                mine = module.axis_index(axes, total.ndim - lead) == place
                return module.np.where(mine, total, terms)
        return terms

    return tuple(map(one, right, x)) if isinstance(x, tuple) else one(right, x)


def shifted(module: Any, kind: str, right: Any, x: Any, axes: Any, by: int, wrap: bool) -> Any:
    """Move shards by a place too far."""
    return module.shift_shards(x, axes, by + 1, wrap)


def other_way(module: Any, kind: str, right: Any, x: Any, axes: Any, among: int, back: bool) -> Any:
    """Collect shards in place of dealing them out."""
    return module.interleave_shards(x, axes, among, not back)


def unchanged(module: Any, kind: str, right: Any, x: Any, *args: Any, **options: Any) -> Any:
    """Leave out `unreduce`: every processor adds the value to the sum."""
    return module.np.broadcast_to(x, module.np.broadcast_shapes(x.shape, right.shape))


def next_index(module: Any, kind: str, right: Any, table: Any, ids: Any, *args: Any, **options: Any) -> Any:
    """Read the element after the one that an index names."""
    return module.gather(table, ids + ids.dtype.type(1), *args, **options)


def next_slice(module: Any, kind: str, right: Any, x: Any, index: Any) -> Any:
    """Read a slice that begins one element later, or earlier at the end."""
    return module.np.roll(x, -1, _first_cut(x, index))[index]


def wrong_offset(module: Any, kind: str, right: Any, axes: Any, rank: int) -> Any:
    """Take the next processor's place for one's own."""
    return _rolled(module, right, _names(axes))


TABLE: dict[str, dict[str, Fault]] = {
    **{
        kind: {
            "dropped": dropped,
            "other reduction": other_reduction,
            "other group": other_group,
            "scattered": scattered,
            **({"doubled": doubled} if kind == "psum" else {}),
        }
        for kind in REDUCTIONS
    },
    "all_gather": {"dropped": dropped, "other order": other_order, "other group": other_group},
    "reduce_scatter": {"dropped": dropped, "doubled": doubled, "other part": other_part},
    "all_to_all": {"dropped": dropped, "other part": other_part, "other order": other_order},
    "permute": {"dropped": dropped, "other group": other_group},
    "shift_shards": {"dropped": dropped, "shifted": shifted, "other group": other_group},
    "flip_shards": {"dropped": dropped, "other group": other_group},
    "interleave_shards": {"dropped": dropped, "other way": other_way, "other group": other_group},
    "local_slice": {"other part": other_part},
    "unreduce": {"dropped": unchanged},
    "axis_index": {"other part": wrong_offset},
    "gather": {"next index": next_index},
    "slice": {"next slice": next_slice},
}
"""Kind of site -> its faults."""


def _along(axis: str) -> Fault:
    def fault(module: Any, kind: str, right: Any, x: Any, axes: Any, *args: Any, **options: Any) -> Any:
        if kind == "reduce_scatter":
            return _own_part(module, module.psum(x, axis), axes, options["dim"])
        return getattr(module, kind)(x, axis)

    return fault


def _names(axes: Any) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _each(x: Any, change: Any) -> Any:
    return tuple(map(change, x)) if isinstance(x, tuple) else change(x)


def _rolled(module: Any, x: Any, axes: Any) -> Any:
    """Hand every processor's array to the next processor along the axes."""
    found = [i for i in module.numbers(tuple(axes)) if x.shape[i] > 1]
    return module.np.roll(x, (1,) * len(found), found) if found else x


def _tiled(module: Any, x: Any, axes: Any, dim: int) -> Any:
    """Repeat each processor's part as often as there are parts."""
    times = prod(module.MESH[axis] for axis in _names(axes))
    return module.np.concatenate([x] * times, axis=dim)


def _own_part(module: Any, x: Any, axes: Any, dim: int) -> Any:
    """Cut each processor's array to its part of `dim`; no other processor's data takes part."""
    np, names = module.np, _names(axes)
    found, sizes = module.numbers(names), [module.MESH[axis] for axis in names]
    shape = [module.MESH[name] if i in found else x.shape[i] for i, name in enumerate(module.MESH)]
    whole = np.broadcast_to(x, (*shape, *x.shape[len(shape) :]))
    moved = np.moveaxis(whole, found, range(len(found)))
    flat = moved.reshape(-1, *moved.shape[len(found) :])
    parts = np.stack([np.split(each, len(flat), axis=dim)[i] for i, each in enumerate(flat)])
    return np.moveaxis(parts.reshape(*sizes, *parts.shape[1:]), range(len(found)), found)


def _first_cut(x: Any, index: tuple[Any, ...]) -> int:
    """Return the axis of the first slice that leaves something out."""
    place = next(i for i, each in enumerate(index) if isinstance(each, slice) and each != slice(None))
    return place if Ellipsis not in index[:place] else place - len(index)
