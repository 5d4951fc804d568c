# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions of JAX modules for several meshes: the devices of each mesh, and arrays that move between meshes.

Their text is copied into the modules, as that of `prelude.py` is. A place is the name of a mesh and a `PartitionSpec`.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from mtfc.backends.common.checks import check, check_whole, entries
from mtfc.placements.running.jax.prelude import assembled, cut

if TYPE_CHECKING:
    import jax
    from jax.experimental import mesh_utils
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

MESHES: dict[str, dict[str, int]] = {}
"""Mesh -> axis -> size. A generated module has its own table."""

LAYOUTS: dict[str, dict[str, tuple[str, object]]] = {}
"""Kind of arguments -> the table of their places. A generated module has its own table."""

BOUND: dict[str, object] = {}
"""Mesh -> its devices; empty before the first use."""


def bind(devices):
    """Choose the devices of all meshes: the first mesh takes the first ones."""
    first = 0
    for name, axes in MESHES.items():
        own = devices[first : first + math.prod(axes.values())]
        placed = mesh_utils.create_device_mesh(tuple(axes.values()), own, allow_split_physical_axes=True)
        BOUND[name] = Mesh(placed, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
        first += len(own)


def mesh_of(name):
    """Return a mesh of JAX, by default on JAX's first devices."""
    if not BOUND:
        bind(jax.devices())
    return BOUND[name]


def sharding(place):
    """Return a place as a sharding of JAX."""
    return NamedSharding(mesh_of(place[0]), place[1])


def shard(arrays, places):
    """Place global arrays on the devices of their meshes. Raises `ValueError`."""
    check_whole(arrays, places)
    return {name: jax.device_put(array, sharding(places[name])) for name, array in arrays.items()}


def unshard(arrays, places):
    """Return the arrays that `places` names as whole NumPy arrays."""
    return {name: np.asarray(arrays[name]) for name in places}


def on(mesh):
    """Call a function that makes the program of a segment, and return a function that runs it on a mesh."""

    def decorate(make):
        run = make()

        def call(*arguments):
            with jax.set_mesh(mesh_of(mesh)):
                return settled(run(*arguments), mesh_of(mesh))

        return call

    return decorate


def settled(results, mesh):
    """Return results; on devices of the CPU, which all share threads, wait for them: else collectives of two meshes may block."""
    if mesh.size > 1 and mesh.devices.flat[0].platform == "cpu":
        jax.block_until_ready(results)
    return results


def send(x, *place):
    """Return an array at a place. Each device gets the part that it needs, in pieces from the devices that have them."""
    target = sharding(place)
    if not isinstance(x, jax.Array) or x.sharding.device_set == target.device_set:
        is_there = isinstance(x, jax.Array) and x.sharding.is_equivalent_to(target, x.ndim)
        return x if is_there else settled(jax.device_put(x, target), target.mesh)
    held: dict[object, list[object]] = {}
    for each in x.addressable_shards:
        held.setdefault(ends_of(each.index, x.shape), []).append(each.data)
    pieces = []
    for number, (device, index) in enumerate(target.addressable_devices_indices_map(x.shape).items()):
        pieces.append(piece_on(held, ends_of(index, x.shape), device, number))
    return jax.make_array_from_single_device_arrays(x.shape, target, pieces)


def piece_on(held, wanted, device, number):
    """Return a region of an array on a device. Of several devices that have a piece, `number` chooses one."""
    if wanted in held:
        return jax.device_put(held[wanted][number % len(held[wanted])], device)
    places, pieces = [], []
    for ends, copies in held.items():
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(ends, wanted, strict=True)]
        if all(first < last for first, last in common):
            own = tuple((a - c, b - c) for (a, b), (c, _) in zip(common, ends, strict=True))
            places.append(tuple((a - c, b - c) for (a, b), (c, _) in zip(common, wanted, strict=True)))
            pieces.append(jax.device_put(cut(copies[number % len(copies)], own), device))
    shape = tuple(last - first for first, last in wanted)
    return assembled(shape, tuple(places), False, *pieces)


def ends_of(index, shape):
    """Return the first and the last position of a region along each dimension."""
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


def taken(kind, arrays):
    """Return the arrays of an argument in their places. Raises `ValueError`."""
    check(kind, {name: (x.dtype.name, x.shape) for name, x in entries(kind, arrays)})
    return {name: send(x, *LAYOUTS[kind][name]) for name, x in arrays.items()}


def on_each_mesh(step):
    """Return the number of a step on each mesh."""
    return {name: send(np.int32(step) if isinstance(step, int) else step, name, P()) for name in MESHES}


def made(make, places, mesh, *arguments):
    """Return the arrays of a mesh, which a function makes, on each device only its own part."""
    there = {name: sharding(place) for name, place in places.items() if place[0] == mesh}
    return jax.jit(make, out_shardings=there)(*arguments)
