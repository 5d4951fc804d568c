"""Functions that together use every primitive that the import knows, with their arguments' shapes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import sparse
from jax.extend.core import Primitive

X, Y = (8, 6), (8, 6)

Case = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and a shape, or a shape and a dtype, for each argument."""


def conv(x: Any, w: Any, strides: Any = (1, 1), padding: Any = "SAME", **options: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
    )


def pool(x: Any, function: Any, start: float, size: int, stride: int, padding: str) -> Any:
    return lax.reduce_window(x, start, function, (1, size, size, 1), (1, stride, stride, 1), padding)


def loop(x: Any, w: Any) -> Any:
    def body(carry: Any, u: Any) -> Any:
        carry = jnp.tanh(carry @ w) + u
        return carry, carry.sum(-1)

    return lax.scan(body, x[0], x)


def loop_backwards(x: Any) -> Any:
    return lax.scan(lambda c, u: (c * 0.5 + u, c), jnp.zeros(x.shape[1:]), x, reverse=True)


def ragged(x: Any, w: Any, sizes: Any) -> Any:
    """Experts by `ragged_dot`, with both gradients. Some rows have no expert."""

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(lax.ragged_dot(x.reshape(8, 4), w, sizes) ** 2)

    return lax.ragged_dot(x.reshape(8, 4), w, sizes), jax.grad(loss, (0, 1))(x, w)


def ragged_batches(x: Any, w: Any, v: Any, sizes: Any) -> Any:
    """Experts by `ragged_dot` in batches, with sizes of each batch and of all, and rows that are batches."""
    own = jax.vmap(ragged)(x, w, sizes)
    numbers = lax.RaggedDotDimensionNumbers((([2], [1]), ([], [])), [1], [0])
    same = [lax.ragged_dot_general(x, v, each, numbers) for each in (sizes, sizes[0])]
    batches = lax.RaggedDotDimensionNumbers((([2], [1]), ([0], [0])), [1], [3])
    whole = lax.ragged_dot_general(x, w.transpose(0, 2, 3, 1), sizes[1], batches)
    sums = lax.RaggedDotDimensionNumbers((([0, 1], [0, 1]), ([], [])), [1], [])
    rows = lax.RaggedDotDimensionNumbers((([2], [2]), ([0, 1], [0, 1])), [1], [])
    total = lax.ragged_dot_general(x, whole, sizes, sums)
    return own, same, whole, total, lax.ragged_dot_general(x, x, sizes[0], rows)


def general_windows(x: Any) -> Any:
    """Reductions by functions of the user, over windows and over whole axes, of one array and of two."""
    number = jnp.arange(48, dtype="int32").reshape(8, 6)

    def larger(a: Any, b: Any) -> Any:
        return tuple(jnp.where(a[0] >= b[0], p, q) for p, q in zip(a, b, strict=True))

    windows = (2, 1), (2, 1), "VALID"
    return (
        lax.reduce_window(x, 0.0, lambda a, b: a + 2 * b, (1, 1), (1, 1), "VALID"),
        lax.reduce_window(x, 1.0, lax.mul, (3, 2), (1, 2), "SAME"),
        lax.reduce_window(x, -jnp.inf, jnp.logaddexp, *windows),
        lax.reduce_window(number, jnp.iinfo("int32").min, lax.max, *windows),
        lax.reduce_window((x, number), (-jnp.inf, 0), larger, *windows),
        lax.reduce(x, -jnp.inf, jnp.logaddexp, (1,)),
        lax.reduce((x, number), (-jnp.inf, 0), larger, (0,)),
        lax.reduce(x[:, 0], x[0, 0], jnp.logaddexp, (0,)),
    )


def largest_of_windows(x: Any) -> Any:
    """The derivatives of windows' smallest and largest elements."""

    def pooled(z: Any) -> Any:
        low = lax.reduce_window(z, jnp.inf, lax.min, (2, 1), (2, 1), "VALID")
        return (low**2).sum() + (lax.reduce_window(z, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID") ** 3).sum()

    return jax.grad(pooled)(x), jax.jvp(pooled, (x,), (x + 1,))


def sparse_products(x: Any, places: Any) -> Any:
    """Products of sparse matrices, and their gradients."""
    matrix = sparse.BCOO((x[0], places), shape=(8, 6))
    several = sparse.bcoo_dot_general(
        sparse.BCOO((x[:3], jnp.stack([places] * 3)), shape=(3, 8, 6)),
        jnp.stack([x.T] * 3),
        dimension_numbers=(((2,), (1,)), ((0,), (0,))),
    )
    loss = jax.grad(lambda d: ((sparse.BCOO((d, places), shape=(8, 6)) @ x.T) ** 2).sum())
    return matrix @ x.T, several, loss(x[0])


def counted_rows(x: Any, y: Any, labels: Any) -> Any:
    """Elements of each row by `x[jnp.arange(n), labels]` and the like, and their gradients."""
    rows, also = jnp.arange(4), np.arange(4)

    def loss(x: Any, y: Any) -> Any:
        each = jax.nn.log_softmax(x)[rows, labels] + x[also, labels]
        columns = y[rows[:, None], labels[:, None] * jnp.arange(2), jnp.arange(2)]
        return (each**2).sum() + (columns**2).sum() + (x[rows] * x[:, jnp.arange(3)]).sum()

    changed = (
        y.at[rows, labels].set(x[:, :2]),
        x.at[rows, labels].max(0.5),
        x.at[rows].multiply(2.0) + x.at[rows].set(x * 2) + x.at[rows].add(x),
        x[rows - 1, labels],
        x[jnp.arange(2), labels[:2]],
        x[jnp.arange(3)[:, None], jnp.arange(3)],
        x[rows, rows % 3],
        y[rows, labels, rows % 2],
        x.at[rows.astype("int8"), labels].add(x[:, 0], mode="clip"),
        y.at[rows, :, labels].multiply(1.5),
        lax.scan(lambda c, _: (c.at[rows, labels].add(1.0), c[rows, labels]), x, None, 2),
    )
    return changed, jax.grad(loss, (0, 1))(x, y)


def long_branches(x: Any) -> Any:
    """Conditionals with dots in branches, and their gradients. Branches that are not taken divide by zero."""

    def outputs(x: Any) -> Any:
        zero = x.sum() * 0
        both = lax.cond(zero > 0, lambda: (x / zero) @ x.T, lambda: jnp.sin(x) @ x.T)
        one = lax.cond(zero > 0, lambda: jnp.log(zero - x) / zero, lambda: x @ x.T @ x)
        branches = [lambda: x @ x.T @ x, lambda: jnp.tanh(x), lambda: jnp.cumsum(x @ x.T, 0)[:, :6]]
        several = [lax.switch(zero.astype(int) + i, branches) for i in (-5, 9)]
        mapped = jax.vmap(lambda r: lax.cond(r.sum() > 0, lambda: jnp.outer(r, r) @ r, lambda: r))(x)
        scanned = lax.scan(lambda c, u: (lax.cond(u[0] > 0, lambda: (u @ x.T) @ x, lambda: c), c), x[0], x)
        return both, one, several, mapped, scanned

    grad = jax.grad(lambda x: sum(jnp.sum(y**2) for y in jax.tree.leaves(outputs(x))))
    return outputs(0.3 * x), grad(0.3 * x)


def until_small(x: Any) -> Any:
    """Iterate until nothing moves, 20 times at most."""

    def body(carry: Any) -> Any:
        i, y, _ = carry
        z = 0.5 * jnp.tanh(y)
        return i + 1, z, jnp.max(jnp.abs(z - y))

    return lax.while_loop(lambda c: (c[0] < 20) & (c[2] > 1e-2), body, (0, x, jnp.inf))


def ends_of_examples(x: Any) -> Any:
    """Iterate until each example ends, in loops inside of loops, and as often as data says, more often than costs count."""

    def grown(r: Any) -> Any:
        return lax.while_loop(lambda c: jnp.abs(c).max() < 50, lambda c: c * 2 + 0.1, r)

    def outer(c: Any) -> Any:
        return lax.while_loop(lambda d: d.max() < c[1], lambda d: d + jnp.abs(x[:, 0]), c[0]), c[1] * 2

    nested = lax.while_loop(lambda c: c[0].sum() < 100, outer, (jnp.abs(x[:, 0]) + 0.1, 1.0))
    times = (150 + 0 * x[0, 0]).astype(int)
    counted = lax.fori_loop(0, times, lambda i, c: 0.9 * c + i, x)
    return jax.vmap(grown)(x), jax.vmap(until_small)(x), nested, counted, lax.map(grown, x)


TABLE = jnp.linspace(0.1, 1, 6)


@jax.custom_vjp
def by_table(x: Any) -> Any:
    return x * TABLE


by_table.defvjp(lambda x: (by_table(x), None), lambda _, ct: (ct * TABLE,))


def closing_over(x: Any) -> Any:
    """Have loops, a branch and custom derivatives that close over one array, whose uses JAX leaves inside."""

    def outputs(x: Any) -> Any:
        scanned = lax.scan(lambda c, u: (by_table(c) + u, (TABLE * c).sum()), x[0], x)
        branch = lax.cond(x[0, 0] < 9, lambda: x.T @ x * TABLE, lambda: by_table(x)[:6])
        return scanned, branch, x * TABLE

    ended = lax.while_loop(lambda c: jnp.sum(by_table(c)) < 50, lambda c: by_table(jnp.abs(c)) + 1, x[1])
    return outputs(x), ended, jax.grad(lambda x: sum(y.sum() for y in jax.tree.leaves(outputs(x))))(x)


def matrices(x: Any) -> Any:
    """Solve, factorize and transform batches of matrices."""
    square = x.reshape(2, 3, 3) + 4 * jnp.eye(3)
    positive = square @ square.swapaxes(1, 2)

    gradient = jax.grad(lambda a: jnp.sum(jnp.linalg.cholesky(a) ** 3))(positive)
    return (
        jnp.linalg.solve(square, positive),
        jnp.linalg.eigh(positive)[0],
        gradient,
        jnp.fft.fft2(square).real,
    )


def spectrum(x: Any, w: Any) -> Any:
    """Have dots and moves of complex numbers, as layers in the frequency domain have."""
    low = jnp.einsum("bki,kio->bko", jnp.fft.rfft(x, axis=1), w + 2j * w)
    whole = jnp.pad(jnp.zeros((2, 5, 1), low.dtype).at[:, :3].set(low), ((0, 0), (0, 2), (0, 0)))
    return jnp.fft.irfft(whole, 9, axis=1), whole.sum(0).real


def foreign(name: str, function: Callable[..., Any]) -> Any:
    """Make a primitive as other libraries do: evaluated by a function of JAX."""
    primitive = Primitive(name)
    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda x: x)
    return primitive


SWISH, SAME = foreign("swish", lambda x: x * jax.nn.sigmoid(x)), foreign("same", lambda x: x)


def over_axes(row: Any) -> Any:
    """Compute with all rows, as batch normalization under `jax.vmap` does."""
    return row - lax.pmean(row, "rows") + lax.pmax(row, "rows"), lax.psum((row > 0).astype(jnp.int8), "rows")


def keys_of_examples(key: Any, x: Any) -> Any:
    """Give each example a key, as dropout under `jax.vmap` has it, and move keys about."""
    keys = jax.random.split(key, 4)
    first, second = jax.random.split(keys[2].reshape(1)[0])
    moved = jnp.where(jnp.arange(4) > 1, keys[::-1], jnp.stack([first, second, *keys[:2]]))
    return jax.vmap(lambda k, r: jax.random.bernoulli(k, 0.5, r.shape) * r)(moved, x), moved.T[1]


def raises(_: Any) -> Any:
    raise AssertionError("a branch that is not taken runs")


def raising_branch(x: Any) -> Any:
    """Have a check as Equinox and Checkify make it: the branch that is not taken raises an error."""
    struct = jax.ShapeDtypeStruct((), jnp.float32)
    return lax.cond(jnp.any(x > 99), lambda: jax.pure_callback(raises, struct, x[0, 0]), lambda: x[0, 0]) + x


def bytes_of(x: Any) -> Any:
    """Move bytes, compute with them, which wraps around, and cast them."""
    moved = jnp.concatenate([x.T.reshape(3, 8), x.reshape(3, 8)], 1)
    return moved, x * 200 + 100, jnp.where(x > 1, x, x - 3), x.astype(jnp.float32) / 255, x[1:, ::2], x.sum(0)


def quantized(w: Any, x: Any) -> Any:
    """Dots of bytes in 32 bits, and of dequantized weights."""
    rounded = jnp.clip(jnp.round(x * 50), -128, 127).astype(jnp.int8)
    whole = lax.dot_general(rounded, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return whole, rounded, x @ (w.astype(jnp.float32) * 0.1)


def counted(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x)


ELEMENTWISE: Mapping[str, Case] = {
    name: (function, (X,))
    for name, function in {
        "neg": lambda x: -x,
        "exp": jnp.exp,
        "log": lambda x: jnp.log(jnp.abs(x) + 1),
        "tanh": jnp.tanh,
        "logistic": jax.nn.sigmoid,
        "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
        "rsqrt": lambda x: lax.rsqrt(jnp.abs(x) + 1),
        "abs": jnp.abs,
        "sign": jnp.sign,
        "erf": lax.erf,
        "sin": jnp.sin,
        "cos": jnp.cos,
        "floor": jnp.floor,
        "integer_pow": lambda x: (x**3, x**2, x**5, x**-1 if False else (x + 3) ** -2, lax.integer_pow(x, 0)),
        "clamp": lambda x: jnp.clip(x, -0.5, 0.5),
        "cast": lambda x: (x.astype(jnp.int32), (x > 0).astype(jnp.float32), x.astype(jnp.bfloat16)),
        "log1p": lambda x: jnp.log1p(jnp.abs(x)),
        "expm1": jnp.expm1,
        "round": jnp.round,
        "erf_inv": lambda x: lax.erf_inv(jnp.tanh(x)),
        "is_finite": jnp.isfinite,
        "bits": lambda x: lax.bitcast_convert_type(x, jnp.uint32) >> 3 ^ jnp.uint32(5),
        "reduce_precision": lambda x: lax.reduce_precision(x, 8, 7),
        "gelu": jax.nn.gelu,
        "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
        "softmax": jax.nn.softmax,
        "one_hot": lambda x: jax.nn.one_hot(jnp.abs(x).astype(int), 4),
        "barrier": lambda x: lax.optimization_barrier((x, x + 1)),
        "stop_gradient": lambda x: lax.stop_gradient(x) * x,
    }.items()
}

BINARY: Mapping[str, Case] = {
    name: (function, (X, Y))
    for name, function in {
        "arithmetic": lambda x, y: (x + y, x - y, x * y, x / (jnp.abs(y) + 1)),
        "pow": lambda x, y: jnp.abs(x) ** y,
        "atan2": jnp.arctan2,
        "rem": lambda x, y: jnp.fmod(x, jnp.abs(y) + 1),
        "comparisons": lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y),
        "logic": lambda x, y: ((x > 0) & (y > 0), (x > 0) | (y > 0), ~(x > 0), (x > 0) ^ (y > 0)),
        "extrema": lambda x, y: (jnp.maximum(x, y), jnp.minimum(x, y)),
        "where": lambda x, y: jnp.where(x > y, x, 2.0),
        "select_three": lambda x, y: lax.select_n((jnp.abs(x) * 2).astype(int) % 3, x, y, x + y),
        "outer": lambda x, y: x[:, :, None] * y[:, None, :],
        "outer_of_one": lambda x, y: x[:, None, :] >= x[None, :, :],
        "integers": lambda x, y: (
            (x * 9).astype(int) // ((jnp.abs(y) * 4).astype(int) + 1),
            (x * 9).astype(int) % 4,
        ),
        "added_transposed": lambda x, y: x.T @ y + (x.T @ y).T,
        "gram": lambda x, y: x @ x.T,
        "gram_of_gram": lambda x, y: (x @ x.T) @ (y @ y.T),
        "chained": lambda x, y: jnp.einsum("ij,kj,i->k", x, y, x[:, 0]),
        "batched_dot": lambda x, y: jnp.einsum("bi,bj->bij", x, y),
        "integer_dot": lambda x, y: (x * 4).astype(int) @ (y * 4).astype(int).T,
        "concatenate": lambda x, y: (jnp.concatenate([x, y], 0), jnp.concatenate([x, y[:, :2]], 1)),
        "stack": lambda x, y: (jnp.stack([x, y, x], 1), jnp.stack([x[0], y[0]], -1)),
        "update": lambda x, y: lax.dynamic_update_slice(x, y[:3, :2], (2, 1)),
        "update_beyond": lambda x, y: lax.dynamic_update_slice(x, y[:3, :], (7, 0)),
        "masked_update": lambda x, y: x.at[2].set(y[1]),
    }.items()
}

SHAPES: Mapping[str, Case] = {
    name: (function, (X,))
    for name, function in {
        "reductions": lambda x: (x.sum(0), x.sum(), x.max(1), x.min(0), jnp.prod(x, 1), x.mean(1, keepdims=True)),
        "truths": lambda x: (jnp.any(x > 1, 0), jnp.all(x > -1, 1)),
        "arguments": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)),
        "variance": lambda x: (jnp.var(x, 0), jnp.linalg.norm(x, axis=1)),
        "running": lambda x: (jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True), lax.cummax(x, 1), jnp.cumprod(x, 0)),
        "sort": lambda x: (jnp.sort(x, 1), jnp.argsort(x, 0), lax.sort((x, -x), dimension=1, num_keys=1)),
        "median": lambda x: jnp.median(x, 1),
        "top_k": lambda x: lax.top_k(x, 3),
        "top_one": lambda x: lax.top_k(x, 1),
        "transpose": lambda x: (x.T, x.T + x.T),
        "reshape": lambda x: (x.reshape(4, 2, 6), x.reshape(-1), x.reshape(8, 2, 3).transpose(0, 2, 1)),
        "reshape_transposed": lambda x: (lax.reshape(x, (6, 4, 2), (1, 0)), lax.reshape(x, (16, 3), (1, 0))),
        "reshape_twice": lambda x: x.reshape(6, 8).reshape(3, 16),
        "reshape_apart": lambda x: (x.reshape(8, 2, 3).sum(2), x.reshape(8, 3, 2).sum(2)),
        "ones": lambda x: (x[:, None, :], x.reshape(1, 8, 6)[0], jnp.expand_dims(x, -1).squeeze(-1)),
        "broadcast": lambda x: (jnp.broadcast_to(x, (3, 8, 6)), jnp.broadcast_to(x[:1], (5, 6))),
        "slices": lambda x: (x[2:5], x[::2, 1:5], x[-1], x[:, 3], x[:, :3], x[:, 3:]),
        "splits": lambda x: (*jnp.split(x, 3, 1), *jnp.split(x, [2], 0)),
        "flip": lambda x: (jnp.flip(x, 0), jnp.flip(x)),
        "unstack": lambda x: (*jnp.unstack(x, axis=1), sum(jnp.unstack(x))),
        "empty": lambda x: (
            jnp.concatenate([x[:0], x, x[:, :0].T[:, :6].reshape(0, 6)]),
            jnp.pad(x[3:3], ((2, 1), (0, 0)), constant_values=4.0),
            x[:0].sum(0) + x[:, :0] @ x[:0],
            lax.scan(lambda c, u: (c + u, c.sum()), x[0], x[:0])[0],
            lax.split(x, (8, 0), 0)[0] * 2,
        ),
        "associative_scan": lambda x: lax.associative_scan(jnp.multiply, x[:7], axis=1),
        "roll": lambda x: jnp.roll(x, 3, 1),
        "pad": lambda x: (
            jnp.pad(x, ((1, 1), (0, 2)), constant_values=2.0),
            lax.pad(x, 0.0, ((-1, 2, 0), (0, 0, 1))),
            lax.pad(x, 0.0, ((8, 16, 0), (0, 0, 0))),
            lax.pad(x, 0.0, ((-7, 2, 0), (-2, 1, 0))),
            lax.pad(jnp.broadcast_to(x[:1], (5, 6)), 0.0, ((-2, 1, 0), (1, 0, 0))),
            lax.pad(x, x[0, 0], ((1, 0, 0), (6, 0, 0))),
            lax.pad((x * 9).astype(int), jnp.max(x).astype(int), ((-1, 2, 0), (0, 0, 1))),
        ),
        "general_windows": general_windows,
        "largest_of_windows": largest_of_windows,
        "approx_top_k": lambda x: (lax.approx_max_k(x, 2), lax.approx_min_k(x, 3, reduction_dimension=0)),
        "top_k_of_bytes": lambda x: lax.top_k((x * 9).astype("int8"), 3),
        "reshape_across": lambda x: (
            x.T.reshape(8, 6) + x,
            x.reshape(6, 8) @ x,
            jnp.where(x > 0, x, x.T.reshape(x.shape)),
            (x.reshape(6, 8) * x.T).reshape(8, 6) - x,
            x.T.reshape(48) + x.reshape(48),
            x.reshape(4, 2, 6).transpose(1, 0, 2).reshape(8, 6) * x,
        ),
        "tile": lambda x: jnp.tile(x, (2, 3)),
        "iota": lambda x: (x + jnp.arange(6) + lax.broadcasted_iota(jnp.float32, (8, 6), 0), jnp.arange(6, dtype="uint8")),
        "constants": lambda x: (jnp.ones((3, 2)), jnp.zeros(()), jnp.full((8, 6), 2.0) + x, jnp.float32(3)),
        "sum_of_repeated": lambda x: (jnp.ones((4, 5)).sum(), jnp.ones((4, 5)) @ jnp.ones((5, 2)), jnp.ones(3).prod()),
        "arguments_as_results": lambda x: (x, x, x.T),
        "triangle": lambda x: jnp.tril(x) + jnp.triu(x @ x.T)[:, :6],
        "dynamic_slice": lambda x: (
            lax.dynamic_slice(x, (2, 1), (3, 4)),
            lax.dynamic_index_in_dim(x, (x[0, 0] > 0).astype(int) + 2, 0),
        ),
        "cond": lambda x: lax.cond(x.sum() > 0, lambda: x * 2, lambda: x - 1),
        "cond_long": lambda x: lax.cond(x.sum() > 0, lambda: x @ x.T, lambda: x[:, :1] + x[:, 0]),
        "long_branches": long_branches,
        "random_branch": lambda x: lax.cond(
            x[0, 0] < 9,
            lambda key: jax.random.normal(key, (8, 6)) @ x.T,
            lambda key: jax.random.uniform(key, (8, 8)),
            jax.random.key(3),
        ),
        "switch": lambda x: (
            [
                lax.switch(
                    i, [lambda: (x, 1.0), lambda: (x.T.reshape(8, 6), x.sum()), lambda: (2 * x, x[0, 0])]
                )
                for i in (x[0, 0].astype(int), x[1, 1].astype(int) * 9, 1)
            ],
            lax.scan(lambda c, u: (lax.cond(u[0] > 0, lambda: c + u, lambda: c), c), x[0], x),
            jax.grad(lambda z: lax.cond(z.sum() > 0, lambda: jnp.sin(z), lambda: z).sum())(x),
        ),
        "counted_while": lambda x: lax.while_loop(lambda c: c[0] <= 6, lambda c: (c[0] + 2, c[1] * 0.5 + c[0]), (-1, x)),
        "bounded_while": until_small,
        "while_that_never_runs": lambda x: lax.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
        "while_in_a_scan": lambda x: lax.scan(lambda c, u: (until_small(u)[1] + c, c), jnp.zeros(x.shape[1:]), x),
        "while": lambda x: lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * 2 + 1, jnp.abs(x)),
        "closing_over": closing_over,
        "raising_branch": raising_branch,
        "over_axes": jax.vmap(over_axes, axis_name="rows"),
        "foreign": lambda x: SAME.bind(SWISH.bind(SAME.bind(x) @ x.T)),
        "linear_call": lambda x: jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, t: r * t, x + 1, x),
        "device_put": lambda x: jax.device_put((x, 2 * x)),
        "while_inside": ends_of_examples,
        "while_with_a_long_counter": lambda x: lax.while_loop(
            lambda c: (c[0] < 2**24) & (c[1].max() < 30), lambda c: (c[0] + 1, c[1] * 1.5 + 0.1), (0, x)
        ),
        "loop": lambda x: loop(x, x[:6] * 0.1),
        "loop_backwards": loop_backwards,
        "counted": counted,
        "map": lambda x: lax.map(lambda r: r @ r, x),
        "checkpoint": lambda x: jax.grad(lambda z: jnp.sum(jax.checkpoint(lambda u: jnp.sin(jnp.sin(u)))(z)))(x),
        "custom": lambda x: jax.grad(lambda z: jax.nn.relu(z).sum() + jnp.max(z))(x),
        "vmapped": jax.vmap(lambda r: jnp.dot(r, r)),
        "jitted": jax.jit(lambda x: jax.jit(lambda z: z + 1)(x) * 2),
        "hessian": lambda x: jax.hessian(lambda r: jnp.sum(jnp.tanh(r) ** 3))(x[0]),
        "svd_free": lambda x: jnp.linalg.matrix_power(x[:6], 3),
        "equal_calls": lambda x: (
            jnp.linalg.cholesky(x[:4] @ x[:4].T + 9 * jnp.eye(4)).reshape(2, 2, 4),
            jnp.linalg.cholesky(x[4:] @ x[4:].T + 9 * jnp.eye(4)),
        ),
        "cholesky": lambda x: jnp.linalg.cholesky(x[:6] @ x[:6].T + 9 * jnp.eye(6)),
    }.items()
}  # fmt: skip

INDICES: Mapping[str, Case] = {
    "counted_rows": (counted_rows, ((4, 3), (4, 3, 2), ((4,), "int32"))),
    "sparse": (sparse_products, ((8, 6), ((6, 2), "int32"))),
    "lookup": (lambda t, i: t[i], ((10, 4), ((8, 3), "int32"))),
    "lookup_default": (lambda t, i: jnp.take(t, i * 9, axis=0), ((10, 4), ((8, 3), "int32"))),
    "lookup_clipped": (lambda t, i: jnp.take(t, i * 9, axis=0, mode="clip"), ((10, 4), ((8, 3), "int32"))),
    "lookup_columns": (lambda t, i: t[:, i], ((4, 10), ((8,), "int32"))),
    "along_axis": (lambda t, i: jnp.take_along_axis(t, i, 1), ((8, 6), ((8, 3), "int32"))),
    "two_indices": (lambda t, i: t[i[:, 0], i[:, 1]], ((8, 6), ((8, 3), "int32"))),
    "gather_planes": (lambda t, i: t[i, :, i[::-1]] * 2, ((4, 6, 4), ((8,), "int32"))),
    "gather_slices": (lambda t, i: jax.vmap(lambda j: lax.dynamic_slice(t, (j, 0), (3, 6)))(i), ((8, 6), ((4,), "int32"))),
    "gather_own": (jax.vmap(lambda t, i: t[i[0], i[1]]), ((4, 8, 6), ((4, 3, 2), "int32"))),
    "gather_self": (lambda i: i[i, i[:, :1]] + i, (((8, 8), "int32"),)),
    "bytes": (bytes_of, (((4, 6), "uint8"),)),
    "quantized": (quantized, (((8, 6), "int8"), (4, 8))),
    "matrices": (matrices, ((2, 9),)),
    "spectrum": (spectrum, ((2, 5, 2), (3, 2, 1))),
    "set_in_constants": (lambda x: jnp.full((4, 3), -1.0).at[:, 0].set(0.0).reshape(4, 3, 1) + x, ((3, 1),)),
    "betainc": (lambda x: jax.scipy.special.betainc(jnp.abs(x[:1]) + 1, 2.0, jax.nn.sigmoid(x)), ((2, 3),)),
    "complex": (lambda x: (jnp.abs(jnp.fft.fft(x, axis=1)), (x + 2j * x).real), ((4, 8),)),
    "scan_of_bytes": (lambda w, x: lax.scan(lambda c, u: (jnp.tanh(c @ u.astype(c.dtype)), u), x, w),
     (((3, 4, 4), "int8"), (2, 4))),
    "ragged_dot": (ragged, ((2, 4, 4), (4, 4, 6), ((4,), "int32"))),
    "ragged_dot_batches": (ragged_batches, ((2, 8, 4), (2, 4, 4, 6), (4, 4, 6), ((2, 4), "int32"))),
    "ragged_dot_of_one": (ragged, ((2, 4, 4), (1, 4, 2), ((1,), "int32"))),
    "ragged_dot_of_pairs": (lambda x, w, sizes: ragged(x, w.reshape(4, 4, 6), sizes.reshape(4)),
     ((2, 4, 4), (2, 2, 4, 6), ((2, 2), "int32"))),
    "set_rows": (lambda t, i, u: t.at[jnp.argsort(i)[:4]].set(u), ((8, 6), ((8,), "int32"), (4, 6))),
    "set_own": (jax.vmap(lambda t, i, u: t.at[jnp.argsort(i)[:2]].set(u)), ((4, 8, 6), ((4, 8), "int32"), (4, 2, 6))),
    "set_elements": (lambda t, i: t.at[i, 2].max(0.5), ((8, 6), ((8,), "int32"))),
    "set_windows": (lambda t, i: t.at[:, :, i[0]].multiply(2.0).at[i[1]].min(0.0), ((4, 6, 8), ((2,), "int32"))),
    "added": (lambda t, i: t.at[i].add(1.5), ((10, 4), ((8,), "int32"))),
    "own_rows": (lambda t, i: t[i] @ t[i].T, ((8, 4), ((8,), "int32"))),
    "lookup_gradient": (lambda t, i: jax.grad(lambda z: (z[i] ** 2).sum())(t), ((10, 4), ((8, 3), "int32"))),
    "along_gradient": (lambda t, i: jax.grad(lambda z: (jnp.take_along_axis(z, i, 1) ** 2).sum())(t),
     ((8, 6), ((8, 3), "int32"))),
    "segments": (lambda t, i: jax.ops.segment_sum(t, i, 4), ((8, 6), ((8,), "int32"))),
    "counts": (lambda i: jnp.bincount(i, length=5), (((8,), "int32"),)),
}  # fmt: skip

WINDOWS: Mapping[str, Case] = {
    "conv": (conv, ((4, 8, 8, 3), (3, 3, 3, 8))),
    "conv_strided": (lambda x, w: conv(x, w, (2, 2)), ((4, 8, 8, 3), (3, 3, 3, 8))),
    "conv_valid": (lambda x, w: conv(x, w, (2, 1), "VALID"), ((4, 9, 8, 3), (3, 2, 3, 8))),
    "conv_dilated": (lambda x, w: conv(x, w, rhs_dilation=(2, 2)), ((4, 8, 8, 3), (3, 3, 3, 8))),
    "conv_transposed": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), ((4, 4, 4, 3), (3, 3, 3, 8))),
    "conv_grouped": (lambda x, w: conv(x, w, feature_group_count=2), ((4, 6, 6, 4), (3, 3, 2, 8))),
    "conv_depthwise": (lambda x, w: conv(x, w, feature_group_count=4), ((4, 6, 6, 4), (3, 3, 1, 4))),
    "conv_batches": (lambda x, w: conv(x, w, batch_group_count=2), ((4, 6, 6, 4), (3, 3, 4, 8))),
    "conv_gradients": (lambda x, w: jax.grad(lambda a, b: (conv(a, b, (2, 2)) ** 2).sum(), (0, 1))(x, w),
     ((4, 8, 8, 3), (3, 3, 3, 8))),
    "depthwise_gradients": (lambda x, w: jax.grad(lambda a, b: (conv(a, b, feature_group_count=4) ** 2).sum(), (0, 1))(x, w),
     ((4, 6, 6, 4), (3, 3, 1, 4))),
    "conv_1d": (lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NCH", "OIH", "NCH")),
     ((4, 3, 8), (6, 3, 3))),
    "residual": (lambda x, w: conv(jax.nn.relu(conv(x, w) + x), w) + x, ((4, 6, 6, 4), (3, 3, 4, 4))),
    "max_pool": (lambda x: pool(x, lax.max, -jnp.inf, 3, 2, "SAME"), ((4, 8, 8, 4),)),
    "sum_pool": (lambda x: pool(x, lax.add, 0.0, 2, 2, "VALID"), ((4, 8, 8, 4),)),
    "max_pool_gradient": (lambda x: jax.grad(lambda z: (pool(z, lax.max, -jnp.inf, 3, 2, "SAME") ** 2).sum())(x),
     ((4, 8, 8, 4),)),
    "max_pool_with_a_rest": (lambda x: jax.grad(lambda z: (pool(z, lax.max, -jnp.inf, 3, 2, "VALID") ** 2).sum())(x),
     ((4, 8, 8, 4),)),
    "sum_pool_gradient": (lambda x: jax.grad(lambda z: (pool(z, lax.add, 0.0, 3, 1, "SAME") ** 2).sum())(x), ((4, 8, 8, 4),)),
    "resize": (lambda x: jax.image.resize(x, (4, 12, 12, 4), "bilinear"), ((4, 6, 6, 4),)),
}  # fmt: skip

RANDOM: Mapping[str, Case] = {
    "uniform": (lambda k: jax.random.uniform(k, (8, 6)), ("key",)),
    "normal": (lambda k: jax.random.normal(jax.random.fold_in(k, 3), (8, 6)), ("key",)),
    "split": (lambda k: jax.random.split(k, 2), ("key",)),
    "dropout": (lambda k, x: jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x, 0), ("key", X)),
    "bits_16": (lambda k: jax.random.bits(k, (8, 6), "uint32"), ("key",)),
    "bits_of_widths": (
        lambda k: [jax.random.bits(k, (8, 6), dtype) for dtype in ("uint8", "uint16", "uint32")],
        ("key",),
    ),
    "gamma": (
        lambda k, x: (
            jax.vmap(lambda k, a: jax.random.loggamma(k, a))(jax.random.split(k, 4), abs(x)),
            jax.grad(lambda a: jax.random.gamma(k, a).sum())(abs(x[0]) + 0.1),
        ),
        ("key", (4, 2)),
    ),
    "other_generators": (
        lambda k: [
            jax.random.normal(jax.random.wrap_key_data(jax.random.bits(k, (4,)), impl=name), (4, 6))
            for name in ("rbg", "unsafe_rbg")
        ],
        ("key",),
    ),
    "keys_of_examples": (keys_of_examples, ("key", (4, 3))),
    "permutation": (lambda k: jax.random.permutation(k, 8), ("key",)),
    "categorical": (lambda k, x: jax.random.categorical(k, x), ("key", X)),
    "inside_a_loop": (
        lambda k, x: lax.scan(
            lambda c, u: (c + jax.random.normal(jax.random.fold_in(k, u)), c), 0.0, jnp.arange(4)
        ),
        ("key", X),
    ),
}

CASES: Mapping[str, Case] = {**ELEMENTWISE, **BINARY, **SHAPES, **INDICES, **WINDOWS, **RANDOM}
