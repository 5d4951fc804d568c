# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions of NumPy modules for several meshes: arrays that move between simulated meshes.

Their text is copied into the modules, as that of `prelude.py` is. A place is the name of a mesh and the layout of an array there.
"""

import numpy as np

from mtfc.backends.common.checks import argument, check, check_whole, entries
from mtfc.backends.numpy.prelude import MESH, is_placed, join, split, whole_shape

MESHES: dict[str, dict[str, int]] = {}
"""Mesh -> axis -> size. A generated module has its own table."""

LAYOUTS: dict[str, dict[str, tuple[str, tuple[object, ...]]]] = {}
"""Kind of arguments -> the table of their places. A generated module has its own table."""


def shard(arrays, places):
    """Split global arrays over the processors of their meshes. Raises `ValueError`."""
    check_whole(arrays, places)
    return {name: split_at(np.asarray(x), *places[name]) for name, x in arrays.items()}


def unshard(arrays, places):
    """Return the global arrays that the processors' parts make up."""
    return {name: join_at(x, *places[name]) for name, x in arrays.items()}


def choose(mesh):
    """Let the other functions act on arrays of a mesh."""
    MESH.clear()
    MESH.update(MESHES[mesh])


def on(mesh):
    """Return a function that makes another one run on a mesh."""

    def decorate(run):
        def call(*arguments):
            choose(mesh)
            return run(*arguments)

        return call

    return decorate


def split_at(x, mesh, layout):
    """Split a global array over a mesh."""
    choose(mesh)
    return split(x, layout)


def join_at(x, mesh, layout):
    """Return a global array from its parts on a mesh."""
    choose(mesh)
    return join(x, layout)


def send(x, source, target):
    """Return an array of one place at another place."""
    return split_at(join_at(x, *source), *target)


def on_each_mesh(step):
    """Return the number of a step on each mesh."""
    return dict.fromkeys(MESHES, step)


def taken(kind, arrays):
    """Return the arrays of an argument. Raises `ValueError` for arrays that are not placed."""
    found, table = {}, {"params": "PARAMETERS"}.get(kind, kind.upper())
    for name, x in entries(kind, arrays):
        mesh, layout = LAYOUTS[kind].get(name, (next(iter(MESHES)), ()))
        choose(mesh)
        if not is_placed(x, layout):
            label = f'{argument(kind)}["{name}"]'
            raise ValueError(
                f"{label} is not placed on mesh {mesh}: place whole arrays with shard(arrays, {table})"
            )
        found[name] = x.dtype.name, whole_shape(x, layout)
    check(kind, found)
    return arrays
