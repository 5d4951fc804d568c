# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions for attention by cuDNN that are copied into generated JAX modules: see `equation_texts.py`.

`jax.nn.dot_product_attention` has queries [batch, row, queries, depth], keys and values [batch, memory, heads, depth], a bias
[1, queries or 1, row, memory], and returns neither the logarithm of the sum of the exponentials in 32 bits nor its gradient from
that number. So the functions here ask `jax.vjp` for both: what it keeps for the gradient is a pytree, whose only array of 32 bits
is that logarithm. The gradient takes the one of all keys and the result of all keys, wherever they were computed, and XLA removes
the attention whose results nobody reads.
"""

from typing import TYPE_CHECKING

from mtfc.backends.jax.attention import (
    kernel_groups,
    kernel_joined,
    kernel_mapped,
    kernel_split,
    kernel_varying,
)

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp


def cudnn_attention(form, *arrays, row, heads, numbers, varying, dtype, band=None):
    """Return what `attention` returns. row: the letter of the queries. heads: letters of keys along which a bias differs.

    numbers: the dtype of 16 bits that cuDNN computes with. varying: the mesh axes along which the results vary.
    """
    operands, groups, sizes = cudnn_parts(form, row, heads, arrays)

    def call(*operands):
        found, pull_back = cudnn_vjp(operands, numbers, band)
        (lse,) = (x for x in jax.tree.leaves(pull_back) if x.dtype == jnp.float32)
        return found, lse

    found, lse = kernel_mapped(call, *operands)
    logits, result = form.split("->")[1:]
    kept = "".join(letter for letter in result if letter in logits)
    found = kernel_joined(found, ("batch", "row", "queries", "value"), result, groups, sizes)
    lse = kernel_joined(lse, ("batch", "queries", "row"), kept, groups, sizes)
    return kernel_varying((found.astype(dtype), lse, jnp.ones_like(lse)), varying)


def cudnn_attention_dq(form, *arrays, **options):
    """Return what `attention_dq` returns: see `cudnn_attention`."""
    return cudnn_gradients(form, arrays, (0,), **options)[0]


def cudnn_attention_dkv(form, *arrays, **options):
    """Return what `attention_dkv` returns: see `cudnn_attention`."""
    return cudnn_gradients(form, arrays, (1, 2), **options)


def cudnn_attention_dbias(form, *arrays, operand, **options):
    """Return what `attention_dbias` returns: see `cudnn_attention`."""
    return cudnn_gradients(form, arrays, (operand,), **options)[0]


def cudnn_gradients(form, arrays, wanted, row, heads, numbers, varying, dtype, band=None):
    """Return the gradients for the operands with these numbers."""
    parts, groups, sizes = cudnn_parts(form, row, heads, arrays)

    def call(*parts):
        *operands, largest, total, cotangent, delta = parts
        found, pull_back = cudnn_vjp(operands, numbers, band)
        cotangent = cotangent.astype(numbers)
        lse, result = largest + jnp.log(total), cudnn_result(cotangent, delta)
        pull_back = jax.tree.map(
            lambda x: lse if x.dtype == jnp.float32 else result if x is found else x, pull_back
        )
        return pull_back(cotangent)

    found = kernel_mapped(call, *parts)
    terms = form.split("->")[0].split(",")
    kinds = cudnn_kinds(terms, groups)
    joined = (kernel_joined(found[i], kinds[i], terms[i], groups, sizes).astype(dtype) for i in wanted)
    return kernel_varying(joined, varying)


def cudnn_vjp(operands, numbers, band):
    """Return the attention of queries, keys, values and any bias, and the function that pulls back its cotangent."""
    operands = [x.astype(numbers) for x in operands]
    window = None if band is None or band[3] is None else (band[3], 0)

    def call(*operands):
        return jax.nn.dot_product_attention(
            *operands, scale=1.0, is_causal=band is not None, local_window_size=window, implementation="cudnn"
        )

    return jax.vjp(call, *operands)


def cudnn_result(cotangent, delta):
    """Return the multiple of the cotangent whose product with it is delta. [batch, row, queries, value], and 1 value.

    This is the part of attention's result along its cotangent. cuDNN takes the result for that product alone.
    """
    wide = cotangent.astype(delta.dtype)
    largest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
    largest = jnp.where(largest == 0, 1, largest)
    part = wide / largest
    square = jnp.sum(part * part, axis=-1, keepdims=True)
    return (part * (delta / largest / jnp.where(square == 0, 1, square))).astype(cotangent.dtype)


def cudnn_kinds(terms, groups):
    """Return the dimensions of the operands."""
    wide = [any(letter in term for letter in groups["queries"]) for term in terms[3:]]
    biases = [("one", "queries" if is_wide else "one", "row", "memory") for is_wide in wide]
    keys, values = (("batch", "memory", "heads", end) for end in ("depth", "value"))
    return [("batch", "row", "queries", "depth"), keys, values, *biases]


def cudnn_parts(form, row, heads, arrays):
    """Return the operands in cuDNN's form, the letters of each of their dimensions, and the sizes of all letters."""
    terms, groups, sizes = kernel_groups(form, row, arrays, heads)
    numbers = ("batch", "queries", "row")
    last = [numbers, numbers, ("batch", "row", "queries", "value"), ("batch", "row", "queries", "one")]
    kinds = [*cudnn_kinds(form.split("->")[0].split(","), groups), *last]
    parts = [
        kernel_split(x, t, kind, groups, sizes) for x, t, kind in zip(arrays, terms, kinds, strict=False)
    ]
    return parts, groups, sizes
