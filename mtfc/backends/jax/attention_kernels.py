"""Texts of attention that call a kernel on TPUs.

The splash attention kernels of JAX compute attention with one dimension of rows, one of keys, and one each of depth and values.
They take masks that compare indices, segment ids and a soft cap, but neither biases nor other masks. A row must see a key: the
kernels differ from the op there. So the ids must be of one sequence, and the band must have a key for each row. Rows may be
split: the kernel's tables are made for all rows, and each device takes its part.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.opdef import Code, Text
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.attention import (
    COLUMNS,
    DEPTH,
    MEMORY,
    ROLES,
    ROWS,
    call_of,
    rows_have_keys,
    value_dims,
)
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh

BLOCKS = {1024: 256, 512: 1024, 256: 2048, 128: 2048}
"""Size of a kernel's blocks of rows and of keys -> the most bytes of a query, key or value.

More do not fit into the 16 MB of VMEM that a kernel has: libtpu 0.0.42 compiles these for v4, v5e, v5p and v6e.
"""


def with_kernels(
    function: Function, mesh: Mesh, differentiated: Set[Value] = frozenset()
) -> dict[Value, Text]:
    """Return the texts of equations that call a kernel on TPUs, by the first result, also in loops.

    differentiated: values through which users may differentiate.
    """
    found: dict[Value, Text] = {}
    for eqn in walk(function.body):
        if has_trait(eqn, "attention", "attention_gradient") and row_of(eqn, mesh) is not None:
            name = "on_tpu" if differentiated.isdisjoint(eqn.results) else "differentiable_on_tpu"
            found[eqn.results[0]] = partial(kernel_text, mesh=mesh, name=name)
    return found


def kernel_text(code: Code, mesh: Mesh, name: str) -> str:
    """Return `on_tpu(lambda *x: splash_attention(...), lambda *x: attention(...), q, k, v)`."""
    eqn, call = code.eqn, call_of(code)
    row = row_of(eqn, mesh)
    assert row is not None
    axes = {axis for value in (*eqn.operands, *eqn.results) for axis in value.type.varying(mesh)}
    varying = tuple(axis for axis in mesh.names if axis in axes)
    own = [
        f'row="{call.letters[row]}"',
        f"block={_block(eqn, row, mesh)}",
        f"varying={varying}".replace("'", '"'),
    ]
    shards = row.size // _local_sizes(eqn, mesh)[row]
    own += [f"shards={shards}", *call.keywords("first")] if "first" in call.options else []
    options = ", ".join([*own, *call.keywords("band", "cap", "dtype")])
    kernel = f"lambda *x: splash_{eqn.op}({call.form}, *x, {options})"
    plain = f"lambda *x: {eqn.op}({call.form}, *x, {', '.join(call.keywords(*call.options))})"
    return f"{name}({kernel}, {plain}, {', '.join(call.args)})"


def row_of(eqn: Equation, mesh: Mesh) -> Dim | None:
    """Return the dimension of the kernel's rows, or None if there is no kernel for the equation."""
    q, k, _, *others = (value.type for value in eqn.operands)
    memory, depth, value = MEMORY.of(eqn.attrs), DEPTH.of(eqn.attrs), value_dims(eqn)
    own = [dim for dim in q.dims if dim not in (*k.dims, *depth)]
    if not own or {*map(len, (memory, depth, value))} != {1} or not {*k.dims} <= {*q.dims, *memory}:
        return None
    row = next(iter(ROWS.of(eqn.attrs)), max(own, key=lambda dim: dim.size))
    batch = {dim for dim in k.dims if dim not in (*memory, *depth)}
    ids = [{*type.dims} <= batch | {each} for type, each in zip(others, (row, *memory), strict=False)]
    fits = ROLES.of(eqn.attrs) in ("", "same_ids") and (not ROLES.of(eqn.attrs) or all(ids))
    fits = fits and q.dtype in ("f32", "bf16") and row in own and _block(eqn, row, mesh) is not None
    has_band = rows_have_keys(eqn) and ROWS.of(eqn.attrs) == (row,) and COLUMNS.of(eqn.attrs) == memory
    is_known = has_band and not (eqn.layout or {}).get(memory[0].name)
    return row if fits and (is_known or not ROWS.of(eqn.attrs)) else None


def _local_sizes(eqn: Equation, mesh: Mesh) -> dict[Dim, int]:
    """Return the size of each dimension of the operands on one device."""
    sizes: dict[Dim, int] = {}
    for value in eqn.operands:
        sizes |= zip(value.type.dims, value.type.local_shape(mesh), strict=True)
    return sizes


def _block(eqn: Equation, row: Dim, mesh: Mesh) -> int | None:
    """Return the largest size of a block that divides rows and keys on one device and that fits, or None."""
    sizes = _local_sizes(eqn, mesh)
    (memory,), (depth,), (value,) = MEMORY.of(eqn.attrs), DEPTH.of(eqn.attrs), value_dims(eqn)
    row_bytes = max(depth.size, value.size) * ITEM_BYTES[eqn.operands[0].type.dtype]
    fitting = (size for size, most in BLOCKS.items() if row_bytes <= most)
    return next((size for size in fitting if sizes[row] % size == 0 == sizes[memory] % size), None)
