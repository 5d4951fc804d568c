"""Texts of attention that call a kernel: the splash attention of JAX on TPUs, and cuDNN on GPUs.

Both compute attention with one dimension of rows, one of keys, and one each of depth and values. A row must see a key, because
the kernels differ from the op there, and the number of a mask must leave nothing to what it hides.

- splash: masks that compare indices, segment ids and a soft cap, but neither biases nor other masks. So the ids must be of one
  sequence, and the band must have a key for each row. Rows may be split: the kernel's tables are made for all rows, and each
  device takes its part.
- cuDNN: 16-bit numbers, causal masks and windows that end at the row, and one bias that the program stores anyway. Segment ids
  and other masks would be stored as a bias, and `jax.nn.dot_product_attention` has no soft cap for cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial

from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.opdef import Code, Text
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.attention import (
    CAP,
    COLUMNS,
    DEPTH,
    FILL,
    MEMORY,
    PART,
    ROLES,
    ROWS,
    AttentionCall,
    call_of,
    limits_of,
    rows_have_keys,
    value_dims,
)
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh
from mtfc.compiler.records import frozen

BLOCKS = {1024: 256, 512: 1024, 256: 2048, 128: 2048}
"""Size of a kernel's blocks of rows and of keys -> the most bytes of a query, key or value.

More do not fit into the 16 MB of VMEM that a kernel has: libtpu 0.0.42 compiles these for v4, v5e, v5p and v6e.
"""

HIDING = -1e4
"""The largest number of a mask that hides: a hidden key has no weight beside logits of usual size."""

WEAK = "the number of its mask leaves weight to hidden keys"

WIDEST = 128
"""The most elements of a head that cuDNN takes on all GPUs from compute capability 8.0 on. They are a multiple of 8."""


class NoKernel(Exception):
    """There is no kernel for an equation: `args[0]` says why."""


@frozen
class KernelForm:
    """The dimensions of attention that kernels know, and the sizes of all dimensions of the operands on one device."""

    row: Dim
    memory: Dim
    depth: Dim
    value: Dim
    batch: frozenset[Dim]
    sizes: Mapping[Dim, int]


def refusals(function: Function, mesh: Mesh) -> Iterator[tuple[Equation, str, str]]:
    """Yield attention, and gradients, also in loops, that a `TPU` or a `GPU` computes without a kernel, the device, and why."""
    for eqn in filter(_is_attention, walk(function.body)):
        for device, (form, _) in KERNELS.items():
            try:
                form(eqn, mesh)
            except NoKernel as why:
                yield eqn, device.upper(), str(why)


def with_kernels(
    function: Function, mesh: Mesh, differentiated: Set[Value] = frozenset()
) -> dict[Value, Text]:
    """Return the texts of equations that call a kernel, by the first result, also in loops.

    differentiated: values through which users may differentiate.
    """
    found: dict[Value, Text] = {}
    for eqn in filter(_is_attention, walk(function.body)):
        if any(_has_kernel(eqn, mesh, device) for device in KERNELS):
            name = "on_device" if differentiated.isdisjoint(eqn.results) else "differentiable_on_device"
            found[eqn.results[0]] = partial(kernel_text, mesh=mesh, name=name)
    return found


def _is_attention(eqn: Equation) -> bool:
    return has_trait(eqn, "attention", "attention_gradient")


def _has_kernel(eqn: Equation, mesh: Mesh, device: str) -> bool:
    try:
        KERNELS[device][0](eqn, mesh)
    except NoKernel:
        return False
    return True


def kernel_text(code: Code, mesh: Mesh, name: str) -> str:
    """Return `on_device(lambda *x: attention(...), q, k, v, tpu=lambda *x: splash_attention(...))`."""
    eqn, call = code.eqn, call_of(code)
    plain = f"lambda *x: {eqn.op}({call.form}, *x, {', '.join(call.keywords(*call.options))})"
    kernels = [
        f"{device}=lambda *x: {text(eqn, form(eqn, mesh), call, mesh)}"
        for device, (form, text) in KERNELS.items()
        if _has_kernel(eqn, mesh, device)
    ]
    return f"{name}({', '.join([plain, *call.args, *kernels])})"


def _form(eqn: Equation, mesh: Mesh) -> KernelForm:
    """Return the form of an equation that a kernel may compute. Raises `NoKernel`."""
    q, k = (value.type for value in eqn.operands[:2])
    memory, depth, value = MEMORY.of(eqn.attrs), DEPTH.of(eqn.attrs), value_dims(eqn)
    own = [dim for dim in q.dims if dim not in (*k.dims, *depth)]
    if "keep" in ROLES.of(eqn.attrs).split():
        raise NoKernel("dropout leaves out weights, by numbers that no kernel draws")
    if not own:
        raise NoKernel("there is one query for the keys")
    if {*map(len, (memory, depth, value))} != {1}:
        raise NoKernel("its keys or the elements of a head have several dimensions")
    if not {*k.dims} <= {*q.dims, *memory}:
        raise NoKernel("its keys have a dimension that its queries lack")
    row = next(iter(ROWS.of(eqn.attrs)), max(own, key=lambda dim: dim.size))
    sizes: dict[Dim, int] = {}
    for operand in eqn.operands:
        sizes |= zip(operand.type.dims, operand.type.local_shape(mesh), strict=True)
    if ROWS.of(eqn.attrs):
        _check_band(eqn, row, own)
    batch = frozenset(dim for dim in k.dims if dim not in (*memory, *depth))
    return KernelForm(row, memory[0], depth[0], value[0], batch, sizes)


def _check_band(eqn: Equation, row: Dim, own: list[Dim]) -> None:
    memory = MEMORY.of(eqn.attrs)
    if row not in own or ROWS.of(eqn.attrs) != (row,) or COLUMNS.of(eqn.attrs) != memory:
        raise NoKernel("its mask compares positions of other dimensions, or of parts of sequences")
    if not rows_have_keys(eqn):
        raise NoKernel("a query may see no key")
    if FILL.of(eqn.attrs) > HIDING:
        raise NoKernel(WEAK)
    if (eqn.layout or {}).get(memory[0].name):
        raise NoKernel("the layout splits the keys of its mask")


def _varying(eqn: Equation, mesh: Mesh) -> str:
    axes = {axis for value in (*eqn.operands, *eqn.results) for axis in value.type.varying(mesh)}
    return f"varying={tuple(axis for axis in mesh.names if axis in axes)}".replace("'", '"')


# TPUs


def splash_form(eqn: Equation, mesh: Mesh) -> KernelForm:
    """Return the form of an equation that the splash kernels compute. Raises `NoKernel`."""
    form, roles = _form(eqn, mesh), ROLES.of(eqn.attrs)
    q, _, _, *others = (value.type for value in eqn.operands)
    ids = zip(others, (form.row, form.memory), strict=False)
    if roles not in ("", "same_ids") or (
        roles and not all({*x.dims} <= form.batch | {dim} for x, dim in ids)
    ):
        raise NoKernel("it has a bias, or a mask other than of positions and one sequence's segments")
    if roles and FILL.of(eqn.attrs) > HIDING:
        raise NoKernel(WEAK)
    if q.dtype not in ("f32", "bf16"):
        raise NoKernel(f"its numbers are {q.dtype}")
    if _block(form, q.dtype) is None:
        raise NoKernel("queries or keys on a device are no multiple of 128, or a head is too wide")
    return form


def _block(form: KernelForm, dtype: str) -> int | None:
    """Return the largest size of a block that divides rows and keys on one device and that fits, or None."""
    row_bytes = max(form.depth.size, form.value.size) * ITEM_BYTES[dtype]
    fitting = (size for size, most in BLOCKS.items() if row_bytes <= most)
    rows, keys = form.sizes[form.row], form.sizes[form.memory]
    return next((size for size in fitting if rows % size == 0 == keys % size), None)


def splash_text(eqn: Equation, form: KernelForm, call: AttentionCall, mesh: Mesh) -> str:
    """Return `splash_attention(...)`."""
    block = _block(form, eqn.operands[0].type.dtype)
    own = [f'row="{call.letters[form.row]}"', f"block={block}", _varying(eqn, mesh)]
    shards = form.row.size // form.sizes[form.row]
    own += [f"shards={shards}", *call.keywords("first")] if "first" in call.options else []
    options = ", ".join([*own, *call.keywords("band", "cap", "dtype")])
    return f"splash_{eqn.op}({call.form}, *x, {options})"


# GPUs


def cudnn_form(eqn: Equation, mesh: Mesh) -> KernelForm:
    """Return the form of an equation that cuDNN computes. Raises `NoKernel`."""
    form, dtype = _form(eqn, mesh), eqn.operands[0].type.dtype
    low, high = limits_of(eqn)
    if dtype not in ("bf16", "f16"):
        raise NoKernel(f"its numbers are {dtype}")
    if CAP.name in eqn.attrs:
        raise NoKernel("it has a soft cap")
    depth, value = form.sizes[form.depth], form.sizes[form.value]
    if depth != value or depth % 8 or depth > WIDEST:
        raise NoKernel(
            f"a head on a device has no multiple of 8 elements up to {WIDEST}, the same for keys and values"
        )
    if form.sizes[form.row] % 2 or form.sizes[form.memory] % 2:
        raise NoKernel("a device has an odd number of queries or keys")
    if ROWS.of(eqn.attrs) and (low != 0 or (high or 0) < 0 or form.row.size != form.memory.size):
        raise NoKernel("its mask is neither causal nor a window that ends at the query's position")
    if ROWS.of(eqn.attrs) and form.sizes[form.row] != form.row.size:
        raise NoKernel("the layout splits the queries of its mask")
    _check_bias(eqn, form)
    return form


def _check_bias(eqn: Equation, form: KernelForm) -> None:
    """Raise `NoKernel` unless an equation has no masks but a band, and no bias but one that is stored for all logits."""
    roles = ROLES.of(eqn.attrs).split()
    if roles and roles != ["bias"]:
        raise NoKernel("it has several biases, or a mask other than of positions")
    if not roles:
        return
    q, bias = eqn.operands[0].type, eqn.operands[3].type
    own = {*bias.dims} - {form.row, form.memory}
    group = {*q.dims} - {form.row, form.depth, *form.batch}
    is_whole = {form.row, form.memory} <= {*bias.dims} and (not own or group <= own)
    if not is_whole or bias.dtype != q.dtype:
        raise NoKernel(f"its bias has not the queries' {q.dtype} for each pair of a query and a key")
    if PART.name in eqn.attrs:
        raise NoKernel("the layout splits the keys of its bias")


def cudnn_text(eqn: Equation, form: KernelForm, call: AttentionCall, mesh: Mesh) -> str:
    """Return `cudnn_attention(...)`. Heads are those dimensions of the keys along which a bias differs."""
    biases = eqn.operands[3:4] if ROLES.of(eqn.attrs) else ()
    heads = "".join(call.letters[dim] for bias in biases for dim in bias.type.dims if dim in form.batch)
    numbers = {"bf16": "jnp.bfloat16", "f16": "jnp.float16"}[eqn.operands[0].type.dtype]
    own = [f'row="{call.letters[form.row]}"', f'heads="{heads}"', f"numbers={numbers}", _varying(eqn, mesh)]
    options = ", ".join([*own, *call.keywords("band", "operand", "dtype")])
    return f"cudnn_{eqn.op}({call.form}, *x, {options})"


KERNELS: Mapping[
    str,
    tuple[Callable[[Equation, Mesh], KernelForm], Callable[[Equation, KernelForm, AttentionCall, Mesh], str]],
] = {"tpu": (splash_form, splash_text), "gpu": (cudnn_form, cudnn_text)}
"""Platform -> the form that its kernel takes, and the text of its call."""
