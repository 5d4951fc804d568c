"""Single ops, as the JAX backend writes them, and single collectives for `calibrate` to measure.

Each kernel of an op is a function from an array of numbers between 0 and 1 to an array of the same size, so that kernels can be
chained. So is each kernel of a collective, from a device's array. Making the result as large as the operand costs little beside
the op itself.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

ROW = 64
"""Elements of a row: of a table, or of the rows that are reduced."""

WIDE, NARROW = 1024, 8
"""Columns of a wide table, and of a narrow matrix."""

BLOCK = (4, 512)
"""The sizes of two dimensions that are summed over, such as the gates and the units of a recurrent layer."""


def _elementwise(name: str) -> Callable[[Any], Any]:
    """Return a kernel of a function of `jax.numpy`, scaled down so that repetitions stay finite."""

    def kernel(x: Any) -> Any:
        return 0.3 * getattr(jax.numpy, name)(x)

    return kernel


def _rows(x: Any) -> tuple[Any, Any]:
    """Return the array as a table, and a row number for each of its rows."""
    table = x.reshape(-1, ROW)
    return table, (table[:, 0] * (len(table) - 1)).astype("int32")


def _gather(x: Any) -> Any:
    """Read rows of a table: a kernel of the gather."""
    table, ids = _rows(x)
    return table[ids].reshape(-1)


def _scatter_add(x: Any) -> Any:
    table, ids = _rows(x)
    return 0.001 * jnp.zeros_like(table).at[ids].add(table).reshape(-1) + 0.1


def _reduced(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a kernel that reduces each row and broadcasts the result."""

    def kernel(x: Any) -> Any:
        table = x.reshape(-1, ROW)
        return (0.01 * jnp.broadcast_to(function(table)[:, None], table.shape) + 0.1).reshape(-1)

    return kernel


def _top_k(table: Any) -> Any:
    return jax.lax.top_k(table, 4)[0][:, 3]


def _cumsum(x: Any) -> Any:
    return 0.01 * jnp.cumsum(x.reshape(-1, ROW), axis=1).reshape(-1)


def _random(name: str) -> Callable[[Any], Any]:
    """Return a kernel that draws numbers with the function `jax.random.NAME`, from a key that depends on its input."""

    def kernel(x: Any) -> Any:
        key = jax.random.key((x[0] * 1000).astype("int32"))
        return getattr(jax.random, name)(key, x.shape, x.dtype)

    return kernel


def _pooled(image: Any) -> Any:
    """Return the maxima of 2 x 2 neighbours."""
    return jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _image(x: Any) -> Any:
    return x.reshape(-1, 8, 8, 16)


def _pool(x: Any) -> Any:
    return jnp.tile(_pooled(_image(x)).reshape(-1), 4)


def _unpool(x: Any) -> Any:
    return 0.9 * jax.grad(lambda image: _pooled(image).sum())(_image(x)).reshape(-1) * x


def _convolution(x: Any) -> Any:
    """Convolve images so that each 2 x 2 pixels of 4 channels become one pixel of 16 channels.

    The windows have as many elements as the images.
    """
    images, filters = x.reshape(-1, 8, 8, 4), jnp.full((2, 2, 4, 16), 1 / 16, x.dtype)
    layouts = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, filters, (2, 2), "VALID", dimension_numbers=layouts).reshape(
        -1
    )


def _einsum(x: Any) -> Any:
    """Multiply a table by a narrow matrix, and compute the two dots of its gradients."""
    table, out = _narrow(x)
    return (out @ (out.T @ table) / out.size).reshape(-1)


def _transposed(x: Any) -> Any:
    """Do the same as `_einsum`, with a dot whose first factor, the table, is transposed."""
    table, out = _narrow(x)
    return (table.T @ out @ out.T / out.size).reshape(-1)


def _reordered(x: Any) -> Any:
    """Scale the array after a dot with a narrow array. The dot takes the last two dimensions of a table as its first two."""
    return 0.5 * x + 0.5 * _first("bgh,pgh->bp", x)


def _ordered(x: Any) -> Any:
    """Do the same as `_reordered`, with a table whose dimensions are in the order of the dot."""
    return 0.5 * x + 0.5 * _first("bgh,ghp->bp", x.reshape(*BLOCK, -1))


def _first(product: str, table: Any) -> Any:
    """Return an element of a dot with a narrow array."""
    return jnp.einsum(product, jnp.full((NARROW, *BLOCK), 1 / prod(BLOCK), table.dtype), table)[0, 0]


def _narrow(x: Any) -> Any:
    """Return the rows of a table, and their dots with a narrow matrix."""
    table = x.reshape(-1, WIDE)
    return table, table @ jnp.full((WIDE, NARROW), 1 / WIDE, x.dtype)


KERNELS: dict[str, Callable[[Any], Any]] = {
    "exp": _elementwise("exp"),
    "log": lambda x: 0.1 - 0.1 * _elementwise("log")(x + 0.1),
    "tanh": _elementwise("tanh"),
    "sum": _reduced(lambda table: table.sum(axis=1)),
    "max": _reduced(lambda table: table.max(axis=1)),
    "cumsum": _cumsum,
    "top_k": _reduced(_top_k),
    "gather": _gather,
    "scatter_add": _scatter_add,
    "bernoulli": _random("uniform"),
    "uniform": _random("uniform"),
    "normal": _random("normal"),
    "pool": _pool,
    "unpool": _unpool,
    "convolution": _convolution,
    "einsum": _einsum,
    "transposed": _transposed,
    "reordered": _reordered,
}
"""Name of an op in `hardware` declarations -> its kernel."""

TIMES = {"einsum": 3}
"""Kernel -> how often it does its op, if not once."""

BESIDES = {"transposed": _einsum, "reordered": _ordered}
"""Kernel -> the kernel whose time is taken off."""

SHAPES = {"reordered": (-1, *BLOCK)}
"""Kernel -> the shape of its array, if it is not one row."""

OF_CPUS = ("pool", "unpool", "convolution", "einsum", "transposed", "reordered")
"""The kernels that only a CPU needs: a GPU computes them like any dot, or reads shared elements of windows once."""


def _all_reduce(array: Any, axis: str, members: int) -> Any:
    total = jax.lax.psum(array, axis)  # type: ignore[no-untyped-call]
    return jax.lax.pcast(total, axis, to="varying")


def _all_gather(array: Any, axis: str, members: int) -> Any:
    """Return one of the gathered parts: device i returns the part of device n - 1 - i."""
    whole = jax.lax.all_gather(array, axis, tiled=True)
    place = (members - 1 - jax.lax.axis_index(axis)) * len(array)
    return jax.lax.dynamic_slice(whole, (place,), array.shape)


def _reduce_scatter(array: Any, axis: str, members: int) -> Any:
    """Return the array with the sums written over its first elements."""
    sums = jax.lax.psum_scatter(array, axis, tiled=True)  # type: ignore[no-untyped-call]
    return jax.lax.dynamic_update_slice(array, sums, (0,))


def _all_to_all(array: Any, axis: str, members: int) -> Any:
    return jax.lax.all_to_all(array.reshape(members, -1), axis, 0, 0).reshape(-1)  # type: ignore[no-untyped-call]


def _permute(array: Any, axis: str, members: int) -> Any:
    around = [(i, (i + 1) % members) for i in range(members)]
    return jax.lax.ppermute(array, axis, around)  # type: ignore[no-untyped-call]


COLLECTIVES: dict[str, Callable[[Any, str, int], Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
}
"""Kind of collective -> kernel: (a device's array, the mesh axis, its number of devices) -> array.

A collective without a kernel gets the bandwidth that its link has for all-reduces.
"""
