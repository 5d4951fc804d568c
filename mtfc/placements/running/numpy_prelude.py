# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions of placed modules on NumPy, which computes at once and has one device: see `jax/prelude.py`.

Their text is copied into the modules.
"""

import numpy as np


def send(x, device):
    """Return an array on another device."""
    return np.asarray(x).copy()


def at(position, device):
    """Return a position as an array on a device."""
    return np.asarray(np.int32(position))


def filled(shape, value, dtype, device):
    """Return an array of equal numbers on a device."""
    return np.full(shape, value, dtype)


def cut(x, ends):
    """Return the part of an array between a first and a last position along each dimension."""
    return x[tuple(slice(*each) for each in ends)]


def assembled(shape, places, adds, *pieces):
    """Return the array that has each piece at its place, or the sum of pieces there; elements without a piece are 0."""
    whole = np.zeros(shape, pieces[0].dtype)
    for ends, piece in zip(places, pieces, strict=True):
        there = tuple(slice(*each) for each in ends)
        whole[there] = whole[there] + piece if adds else piece
    return whole


def total(first, *others):
    """Return the sum of arrays, added in this order."""
    return sum(others, start=first)
