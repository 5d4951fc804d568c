"""Attention that a kernel computes: the splash attention of JAX on TPUs, and cuDNN on GPUs (`backends/jax/equation_texts.py`).

Both compute attention with one dimension of rows, one of keys, and one each of depth and values. A row must see a key, because
the kernels differ from the op there, and the number of a mask must leave nothing to what it hides.

- splash: masks that compare indices, segment ids and a soft cap, but neither biases nor other masks. So the ids must be of one
  sequence, and the band must have a key for each row. Rows may be split: the kernel's tables are made for all rows, and each
  device takes its part.
- cuDNN: 16-bit numbers, causal masks and windows that end at the row, and one bias that the program stores anyway. Segment ids
  and other masks would be stored as a bias, and `jax.nn.dot_product_attention` has no soft cap for cuDNN.

Both skip blocks that a band hides: `computed_share`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import prod

from mtfc.compiler.analysis.dimension_names import SINGLE
from mtfc.compiler.ir.core import Equation, Function, walk
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
    """The dimensions of attention that kernels know, and the sizes of all dimensions of the operands on one device.

    row, memory, depth, value: the dimensions of queries, of keys, of the dot of both, and of the values. batch: those that
    all operands have.
    """

    row: Dim
    memory: Dim
    depth: Dim
    value: Dim
    batch: frozenset[Dim]
    sizes: Mapping[Dim, int]


def is_attention(eqn: Equation) -> bool:
    """Return True for attention and for its gradients."""
    return has_trait(eqn, "attention", "attention_gradient")


def refusals(function: Function, mesh: Mesh) -> Iterator[tuple[Equation, str, str]]:
    """Yield attention, and gradients, also in loops, that a `TPU` or a `GPU` computes without a kernel, the device, and why."""
    for eqn in filter(is_attention, walk(function.body)):
        for device, form in FORMS.items():
            try:
                form(eqn, mesh)
            except NoKernel as why:
                yield eqn, device.upper(), str(why)


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
        if sizes[memory[0]] != memory[0].size:
            raise NoKernel("the layout splits the keys of its mask")
    batch = frozenset(dim for dim in k.dims if dim not in (*memory, *depth))
    return KernelForm(row, memory[0], depth[0], value[0], batch, sizes)


def _check_band(eqn: Equation, row: Dim, own: list[Dim]) -> None:
    """Refuse (`NoKernel`) a mask that is no band between the positions of `row` and of the keys.

    own: the dims of the rows.
    """
    memory = MEMORY.of(eqn.attrs)
    if row not in own or ROWS.of(eqn.attrs) != (row,) or COLUMNS.of(eqn.attrs) != memory:
        raise NoKernel("its mask compares positions of other dimensions, or of parts of sequences")
    if not rows_have_keys(eqn):
        raise NoKernel("a query may see no key")
    if FILL.of(eqn.attrs) > HIDING:
        raise NoKernel(WEAK)


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
    if block_of(form, q.dtype) is None:
        raise NoKernel("queries or keys on a device are no multiple of 128, or a head is too wide")
    return form


def block_of(form: KernelForm, dtype: str) -> int | None:
    """Return the largest size of a block that divides rows and keys on one device and that fits, or None."""
    row_bytes = max(form.depth.size, form.value.size) * ITEM_BYTES[dtype]
    fitting = (size for size, most in BLOCKS.items() if row_bytes <= most)
    rows, keys = form.sizes[form.row], form.sizes[form.memory]
    return next((size for size in fitting if rows % size == 0 == keys % size), None)


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


FORMS: Mapping[str, Callable[[Equation, Mesh], KernelForm]] = {"tpu": splash_form, "gpu": cudnn_form}
"""Platform -> the form that its kernel takes."""


def form_on(platform: str, eqn: Equation, mesh: Mesh) -> KernelForm | None:
    """Return the form of an equation that a platform's kernel computes; None if there is no such kernel."""
    try:
        return FORMS[platform](eqn, mesh)
    except NoKernel:
        return None


# What kernels compute


TILE = 128
"""The rows and keys of a block that cuDNN skips if all of it is hidden."""

GRADIENT_DOTS = 5 / 7
"""The share of the dots of `attention_dq` and `attention_dkv` that cuDNN computes: it computes the logits and the cotangents of
the weights once for both.
"""


def computed_share(eqn: Equation, mesh: Mesh, platform: str, block: int | None = None) -> float | None:
    """Return the share of the FLOPs of attention that a platform's kernel computes on its busiest device; None without a kernel.

    block: the rows and keys of a block, if it is not the kernel's own.
    """
    form = form_on(platform, eqn, mesh)
    if form is None:
        return None
    if block is None:
        block = TILE if platform == "gpu" else block_of(form, eqn.operands[0].type.dtype) or TILE
    low, high = limits_of(eqn) if ROWS.of(eqn.attrs) else (None, None)
    rows, keys = form.sizes[form.row], form.sizes[form.memory]
    starts = range(0, form.row.size, rows)
    visible = max(_visible_share(start, rows, keys, low, high, block) for start in starts)
    return shared_dots(eqn, platform) * visible


def least_share(eqn: Equation, platform: str) -> float:
    """Return a lower bound of the share of attention's FLOPs that remains under every layout.

    A layout may split wide values into parts that a kernel takes, and rows into smaller blocks.
    """
    found = computed_share(eqn, SINGLE, platform, TILE)
    if found is not None:
        return found
    depth, value = (prod(dim.size for dim in dims) for dims in (DEPTH.of(eqn.attrs), value_dims(eqn)))
    return 0.0 if value > depth else 1.0


def shared_dots(eqn: Equation, platform: str | None) -> float:
    """Return the share of the dots of an equation that a platform's kernel computes."""
    return GRADIENT_DOTS if platform == "gpu" and has_trait(eqn, "attention_gradient") else 1.0


@lru_cache(1024)
def _visible_share(start: int, rows: int, keys: int, low: int | None, high: int | None, block: int) -> float:
    """Return the share of the blocks of rows and keys in which a row minus its key is from `low` to `high`.

    start: the position of the first row.
    """
    found, columns = 0, -(-keys // block)
    for first in range(start, start + rows, block):
        last = columns - 1 if low is None else (first + block - 1 - low) // block
        least = 0 if high is None else (first - high) // block
        found += max(0, min(last, columns - 1) - max(least, 0) + 1)
    return found / (-(-rows // block) * columns)
