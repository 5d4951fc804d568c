# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions of placed modules: arrays in pieces on devices, and data that moves between devices.

Their text is copied into the modules, as that of `prelude.py` is. Every function only hands work to a device: none waits.
"""

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from mtfc.backends.common.checks import TYPES, check_whole

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

BOUND: list[object] = []
"""The devices of the placement; empty for those that JAX has."""


def bind(devices):
    """Choose the devices of the placement."""
    BOUND[:] = devices
    at.cache_clear()
    filled.cache_clear()


def place(number):
    """Return a device by its number in the placement."""
    return (BOUND or jax.devices())[number]


def send(x, device):
    """Return an array on another device."""
    return jax.device_put(x, place(device))


@cache
def at(position, device):
    """Return a position as an array on a device."""
    return jax.device_put(np.int32(position), place(device))


@cache
def filled(shape, value, dtype, device):
    """Return an array of equal numbers on a device."""
    return jax.device_put(np.full(shape, value, dtype), place(device))


@partial(jax.jit, static_argnums=1)
def cut(x, ends):
    """Return the part of an array between a first and a last position along each dimension."""
    return x[tuple(slice(*each) for each in ends)]


@partial(jax.jit, static_argnums=(0, 1, 2))
def assembled(shape, places, adds, *pieces):
    """Return the array that has each piece at its place, or the sum of pieces there; elements without a piece are 0."""
    whole = jnp.zeros(shape, pieces[0].dtype)
    for ends, piece in zip(places, pieces, strict=True):
        there = whole.at[tuple(slice(*each) for each in ends)]
        whole = there.add(piece) if adds else there.set(piece)
    return whole


@jax.jit
def total(first, *others):
    """Return the sum of arrays, added in this order."""
    for x in others:
        first = first + x
    return first


def widened(x):
    """Return numbers as floats of 32 bits at least."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def rounded(x, like):
    """Return numbers in the dtype of others."""
    return x.astype(like.dtype)


@jax.jit
def masked(x, weight):
    """Return a gradient; zeros for a micro-batch of weight 0."""
    return jnp.where(weight != 0, x, 0)


@partial(jax.jit, static_argnums=(0, 1))
def scaled(share, dtype, *factors):
    """Return a share times a loss scale, a weight, or both."""
    for each in factors:
        share = share * each
    return jnp.asarray(share, dtype)


def numbered(step):
    """Return the number of a step on the first device."""
    return jax.device_put(np.int32(step) if isinstance(step, int) else step, place(0))


@partial(jax.jit, static_argnums=1)
def counted(step, number, micro):
    """Return the number of a micro-batch over all steps."""
    return step * number + micro


def shard(arrays, pieces):
    """Put the pieces of global arrays on their devices. Raises `ValueError`."""
    check_whole(arrays, pieces)
    return {name: pieces_of(name, x, pieces[name]) for name, x in arrays.items()}


def pieces_of(name, x, pieces):
    """Return an array in pieces."""
    dtype = next(types[name][0] for types in TYPES.values() if name in types)
    whole = np.asarray(x).astype(dtype, copy=False)
    return tuple(send(whole[region(index)], device) for device, index in pieces)


def region(index):
    """Return the index of a piece in its array: a range of each dimension, or a position."""
    return tuple(each if isinstance(each, int) else slice(*each) for each in index)


def unshard(arrays, pieces):
    """Return the arrays that `pieces` names as whole NumPy arrays."""
    return {name: whole_of(arrays[name], pieces[name]) for name in pieces}


def whole_of(held, pieces):
    """Return an array from its pieces; an output is one array."""
    if not isinstance(held, tuple):
        return np.asarray(held)
    axes = zip(*(index for _, index in pieces), strict=True)
    shape = [max(each + 1 if isinstance(each, int) else each[1] for each in axis) for axis in axes]
    found = np.zeros(shape, held[0].dtype)
    for piece, (_, index) in zip(held, pieces, strict=True):
        found[region(index)] = np.asarray(piece)
    return found
