# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions of NumPy modules for several meshes: arrays that move between simulated meshes.

Their text is copied into the modules, as that of `prelude.py` is. A place is the name of a mesh and the layout of an array there.
"""

from types import SimpleNamespace

import numpy as np

from mtfc.backends.common.checks import argument, check, check_whole, entries

MESHES: dict[str, SimpleNamespace] = {}
"""Mesh -> the functions that split and join arrays there. A generated module has its own table."""

LAYOUTS: dict[str, dict[str, tuple[str, tuple[object, ...]]]] = {}
"""Kind of arguments -> the table of their places. A generated module has its own table."""


def shard(arrays, places):
    """Split global arrays over the processors of their meshes. Raises `ValueError`."""
    check_whole(arrays, places)
    return {name: split_at(np.asarray(x), *places[name]) for name, x in arrays.items()}


def unshard(arrays, places):
    """Return the global arrays that the processors' parts make up."""
    return {name: join_at(x, *places[name]) for name, x in arrays.items()}


def split_at(x, mesh, layout):
    """Split a global array over a mesh."""
    return MESHES[mesh].split(x, layout)


def join_at(x, mesh, layout):
    """Return a global array from its parts on a mesh."""
    return MESHES[mesh].join(x, layout)


def send(x, source, target):
    """Return an array of one place at another place."""
    return split_at(join_at(x, *source), *target)


def taken(kind, arrays):
    """Return the arrays of an argument. Raises `ValueError` for arrays that are not placed."""
    found, table = {}, {"params": "PARAMETERS"}.get(kind, kind.upper())
    for name, x in entries(kind, arrays):
        mesh, layout = LAYOUTS[kind].get(name, (next(iter(MESHES)), ()))
        if not MESHES[mesh].is_placed(x, layout):
            label = f'{argument(kind)}["{name}"]'
            raise ValueError(
                f"{label} is not placed on mesh {mesh}: place whole arrays with shard(arrays, {table})"
            )
        found[name] = x.dtype.name, MESHES[mesh].whole_shape(x, layout)
    check(kind, found)
    return arrays
