# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions for attention that are copied into generated JAX modules: see `backends/common/attention.py`.

Kernels take the place of the plain functions where they can: on TPUs the splash attention kernels that ship with JAX, on GPUs
those of cuDNN (`attention_cudnn.py`). `equation_texts.py` says which kernel takes which attention. The splash kernels have
queries [batch, group, row, depth], keys and values [batch, memory, depth]: `group` is the queries that share keys. Kernels do not
say along which mesh axes their results vary, so they run in a `shard_map` without axes that does not ask, and the results are
marked.
"""

import math
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_masks
    from jax.sharding import PartitionSpec as P


def attention_dot(subscripts, x, y):
    """Return the product of two arrays, in 32 bits for 16-bit numbers. A factor of 32 bits is rounded beside one of 16."""
    dtype = min((x.dtype, y.dtype), key=lambda dtype: dtype.itemsize)
    accumulated = jnp.promote_types(dtype, jnp.float32)
    return jnp.einsum(subscripts, x.astype(dtype), y.astype(dtype), preferred_element_type=accumulated)


def attention_mean(softmax, subscripts, logits, v, axes, part, drops):
    """Return the mean of the values by the softmax of the logits over axes, and the numbers of the softmax.

    softmax: computes what `attention_softmax` returns. drops: True if it leaves out weights that count in the sum.

    On TPUs the matrix unit sums the exponentials, too, by a column of ones beside 16-bit values: sums by the vector unit take
    longer than the product.
    """
    operands, result = subscripts.split("->")
    letters, term = operands.split(",")
    own = [letter for letter in term if letter not in letters]
    rest = letters[: -len(axes)]
    if (
        drops
        or v.dtype.itemsize != 2
        or mesh_platform() != "tpu"
        or sorted(result) != sorted([*own[:1], *rest])
    ):
        weights, *numbers = softmax()
        return attention_dot(subscripts, weights, v), *numbers
    largest = jnp.max(logits, axis=axes, keepdims=True)
    largest = jnp.maximum(largest, jnp.finfo(largest.dtype).min) if part else largest
    axis, depth = term.index(own[0]), v.shape[term.index(own[0])]
    columns = jnp.concatenate([v, jnp.ones_like(lax.slice_in_dim(v, 0, 1, axis=axis))], axis)
    found = attention_dot(subscripts, jnp.exp(logits - largest), columns)
    axis = result.index(own[0])
    mean = lax.slice_in_dim(found, 0, depth, axis=axis)
    total = lax.slice_in_dim(found, depth, depth + 1, axis=axis)
    mean = mean / (jnp.where(total == 0, 1, total) if part else total)
    return mean, largest, attention_aligned(total.squeeze(axis), result.replace(own[0], ""), letters)


def attention_aligned(x, term, letters):
    """Transpose an array with axes `term` to those of `letters`, with axes of size 1 for letters that it lacks."""
    x = x.transpose([term.index(letter) for letter in letters if letter in term])
    return jnp.expand_dims(x, [i for i, letter in enumerate(letters) if letter not in term])


def attention_origin():
    """Return 0."""
    return jnp.zeros((), jnp.int32)


def attention_blocks(function, arrays, terms, results, logits, most=2**19, least=64):
    """Return the results of a function, computed in blocks along the longest dimension that all results and the logits have.

    most: the largest number of logits in memory, unless a block then had less than `least` of the dimension's elements.
    """
    sizes: dict[str, int] = {}
    for x, term in zip(arrays, terms, strict=True):
        sizes |= zip(term, x.shape, strict=True)
    letters = [letter for letter in logits if all(letter in term for term in results)]
    letter = max(letters, key=lambda letter: sizes[letter], default="")
    size, total = sizes.get(letter, 1), math.prod(sizes[each] for each in logits)
    blocks = next(n for n in range(1, size + 1) if size % n == 0 and (total <= n * most or size <= n * least))
    if blocks == 1:
        return function(*arrays)

    def joined(x, axis):
        x = jnp.moveaxis(x, 0, axis)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    @jax.checkpoint
    def block(number):
        def part(x, term):
            axis = term.find(letter)
            rows = size // blocks
            return x if axis < 0 else lax.dynamic_slice_in_dim(x, number * rows, rows, axis)

        return function(*map(part, arrays, terms))

    found = lax.map(block, jnp.arange(blocks, dtype=jnp.int32))
    return tuple(joined(x, term.index(letter)) for x, term in zip(found, results, strict=True))


def mesh_platform():
    """Return the platform of the devices of the mesh, such as "tpu" or "gpu". The mesh of JAX 0.10.0 does not know it."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return getattr(device, "platform", jax.default_backend())


def kernel_platform():
    """Return "tpu" or "gpu" under a mesh of devices that have kernels for attention, else another text.

    TPUs before v4 multiply no bf16 in kernels, and cuDNN wants a compute capability of 8.0. GPUs of other makers have none.
    """
    platform, device = mesh_platform(), jax.sharding.get_abstract_mesh().abstract_device
    if getattr(device, "device_kind", "") in ("TPU v2", "TPU v3"):
        return "old"
    here = getattr(jax.devices()[0], "compute_capability", "8.0") if platform == "gpu" else "8.0"
    return platform if here[0].isdigit() and float(here) >= 8 else "old"


def on_device(plain, *arrays, **kernels):
    """Return the results of the kernel for the devices of the mesh, and of `plain` where there is none."""
    return kernels.get(kernel_platform(), plain)(*arrays)


def differentiable_on_device(plain, *arrays, **kernels):
    """Return what `on_device` returns, with the derivative of `plain`: kernels have none for all results."""
    call = jax.custom_vjp(lambda *x: on_device(plain, *x, **kernels))
    call.defvjp(lambda *x: jax.vjp(plain, *x), lambda pull_back, given: pull_back(given))
    return call(*arrays)


def splash_attention(form, *arrays, row, block, varying, dtype, **options):
    """Return what `attention` returns. row: the letter of the queries. block: the size of the kernel's blocks.

    varying: the mesh axes along which the results vary.
    """
    parts, groups, sizes = splash_parts(form, row, arrays)
    made = splash_kernel(parts, block, save_residuals=True, **options)
    found, (lse,) = splash_mapped(lambda made, q, k, v, ids: made(q, k, v, ids), made, parts)
    result = form.split("->")[-1]
    kept = "".join(letter for letter in result if letter not in groups["value"])
    found = kernel_joined(found, ("batch", "group", "row", "value"), result, groups, sizes)
    lse = kernel_joined(lse, ("batch", "group", "row"), kept, groups, sizes)
    return kernel_varying((found.astype(dtype), lse, jnp.ones_like(lse)), varying)


def splash_attention_dq(form, *arrays, row, block, varying, dtype, **options):
    """Return what `attention_dq` returns: see `splash_attention`."""
    parts, groups, sizes = splash_parts(form, row, arrays)
    made = splash_kernel(parts, block, **options)
    call = partial(splash._splash_attention_bwd_dq, bq=block, bkv=block)
    found = splash_mapped(splash_gradient(call, "dq_mask_info"), made, parts)
    found = kernel_joined(found, ("batch", "group", "row", "depth"), form.split(",")[0], groups, sizes)
    return kernel_varying((found.astype(dtype),), varying)[0]


def splash_attention_dkv(form, *arrays, row, block, varying, dtype, **options):
    """Return what `attention_dkv` returns: see `splash_attention`."""
    parts, groups, sizes = splash_parts(form, row, arrays)
    made = splash_kernel(parts, block, **options)
    call = partial(
        splash._splash_attention_bwd_dkv,
        bq=block,
        bkv=block,
        bkv_compute=block,
        use_fused_bwd_kernel=False,
    )
    _, dk, dv = splash_mapped(splash_gradient(call, "dkv_mask_info"), made, parts)
    _, keys, values, *_ = form.split("->")[0].split(",")
    dk = kernel_joined(dk, ("batch", "memory", "depth"), keys, groups, sizes)
    dv = kernel_joined(dv, ("batch", "memory", "value"), values, groups, sizes)
    return kernel_varying((dk.astype(dtype), dv.astype(dtype)), varying)


def splash_gradient(call, table):
    """Return a function of a kernel, queries, keys, values, ids, and the last operands of `attention_dq`.

    table: the attribute of the kernel with its table of blocks.
    """
    names = ("mask_value", "attn_logits_soft_cap", "mask_function", "interpret", "is_mqa")
    layouts = {f"{name}_layout": splash.QKVLayout.HEAD_DIM_MINOR for name in "qkv"}

    def gradient(made, q, k, v, ids, largest, total, given, delta):
        options = layouts | {name: made.kwargs[name] for name in names} | {"mask_info": getattr(made, table)}
        return call(q, k, v, ids, None, largest + jnp.log(total), given, delta, **options)

    return gradient


def splash_kernel(
    parts, block, band=None, cap=None, first=None, shards=1, save_residuals=False, interpret=False
):
    """Return the kernel for queries, keys and values. shards: the number of parts of the rows, of which this device has one."""
    q, k, *_ = parts
    shape = q.shape[2] * shards, k.shape[1]
    *_, low, high = band or (None, None)
    window = high, None if low is None else -low
    mask = splash_masks.LocalMask(shape, window, 0) if band else splash_masks.FullMask(shape)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    made = splash.make_splash_mqa(
        splash_masks.MultiHeadMask([mask] * q.shape[1]),
        block_sizes=splash.BlockSizes(**{f"block_{name}": block for name in names}),
        attn_logits_soft_cap=cap,
        save_residuals=save_residuals,
        head_shards=1,
        q_seq_shards=shards,
        interpret=interpret,
    )
    if shards == 1:
        return made
    number = first[band[0]] // q.shape[2]
    tables = (
        splash_part(each, number, shards)
        for each in (made.fwd_mask_info, made.dq_mask_info, made.dkv_mask_info)
    )
    return splash.SplashAttentionKernel(*tables, **made.kwargs)


def splash_part(table, number, shards):
    """Return this device's part of a table of blocks, [heads, rows, columns], and of the indices of the rows."""

    def part(x, axis):
        size = x.shape[axis] // shards
        return lax.dynamic_slice_in_dim(x, number * size, size, axis)

    axes = {"data_next": 1, "mask_next": 1, "block_mask": 1, "q_sequence": 0}
    known = {name: axis for name, axis in axes.items() if getattr(table, name) is not None}
    return table._replace(**{name: part(getattr(table, name), axis) for name, axis in known.items()})


def splash_mapped(function, made, parts):
    """Call a function of a kernel for each element of a batch."""
    return kernel_mapped(lambda made, *parts: jax.vmap(partial(function, made))(*parts), made, *parts)


def kernel_mapped(function, *arrays):
    """Call a function in a `shard_map` without axes, which does not ask along which axes the results vary.

    There JAX forgets the axes along which an array varies when a dimension comes and goes. So all kernels are alike.
    """

    def mapped(*arrays):
        return function(*jax.tree.map(lambda x: lax.squeeze(lax.expand_dims(x, (0,)), (0,)), arrays))

    return jax.shard_map(mapped, in_specs=P(), out_specs=P(), axis_names=set(), check_vma=False)(*arrays)


def kernel_varying(arrays, axes):
    """Mark arrays as varying along mesh axes."""
    return tuple(lax.pcast(x, axes, to="varying") for x in arrays) if axes else tuple(arrays)


def splash_parts(form, row, arrays):
    """Return the operands in the kernels' form, the letters of each of their dimensions, and the sizes of all letters."""
    terms, groups, sizes = kernel_groups(form, row, arrays)
    count = len(form.split("->")[0].split(","))
    kinds = [("batch", "group", "row", "depth"), *(("batch", "memory", end) for end in ("depth", "value"))]
    kinds += [("batch", "row"), ("batch", "memory")] * (count > 3)
    lasts = ("batch", "group", "row")
    kinds += [lasts, lasts, (*lasts, "value"), lasts]
    found = [
        kernel_split(x, t, kind, groups, sizes) for x, t, kind in zip(arrays, terms, kinds, strict=False)
    ]
    ids = splash.SegmentIds(*found[3:5]) if count > 3 else None
    return (*found[:3], ids, *found[count:]), groups, sizes


def kernel_groups(form, row, arrays, heads=""):
    """Return the letters of each operand, the letters of each dimension of kernels, and the sizes of all letters.

    heads: letters of keys that are no batch. The queries of a head are those of its group.
    """
    given, logits, result = form.split("->")
    given = given.split(",")
    kept = "".join(letter for letter in result if letter in logits)
    terms = [*given, kept, kept, result, kept][: len(arrays)]
    sizes: dict[str, int] = {}
    for x, term in zip(arrays, terms, strict=True):
        sizes.update(zip(term, x.shape, strict=True))
    queries, keys = ("".join(x for x in term if x in logits) for term in given[:2])
    memory = logits[-1]
    group = "".join(letter for letter in queries if letter not in keys and letter != row)
    groups = {
        "batch": "".join(letter for letter in keys if letter not in (memory, *heads)),
        "heads": heads,
        "group": group,
        "queries": heads + group,
        "row": row,
        "memory": memory,
        "depth": "".join(letter for letter in given[0] if letter not in logits),
        "value": "".join(letter for letter in given[2] if letter not in logits),
        "one": "",
    }
    return terms, groups, sizes


def kernel_split(x, term, kind, groups, sizes):
    """Return an array with one axis for each of some groups of letters."""
    letters = "".join(groups[name] for name in kind)
    whole = jnp.broadcast_to(attention_aligned(x, term, letters), [sizes[letter] for letter in letters])
    return whole.reshape([math.prod(sizes[letter] for letter in groups[name]) for name in kind])


def kernel_joined(x, kind, term, groups, sizes):
    """Return an array with the axes of `term` from one with an axis for each of some groups: the reverse of `kernel_split`."""
    letters = "".join(groups[name] for name in kind)
    return attention_aligned(x.reshape([sizes[letter] for letter in letters]), letters, term)
