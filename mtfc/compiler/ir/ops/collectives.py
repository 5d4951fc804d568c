"""`reshard` and the collectives that it becomes; `shift_shards`, which a shift between processors becomes.

None but the last changes the global tensor: only where its parts are. `reshard` says what is wanted (its result's type); each
collective is one way to get there (paper, section 6). `axes` are the mesh axes communicated over, most major first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.opdef import (
    BY_NAME,
    Attrs,
    Code,
    OpDef,
    Shard,
    Storage,
    Text,
    Trait,
    linear_in_all,
    no_flops,
    no_gradient,
)
from mtfc.compiler.ir.ops.positions import shifted_array
from mtfc.compiler.ir.sharding_rules import PlacementError
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
"""The kinds of collectives that communicate, by the names they have in reports."""

KIND_OF: Mapping[str, str] = {**{kind: kind for kind in KINDS}, "shift_shards": "permute"}
"""Op that communicates -> its kind."""


def kind_of(eqn: Equation) -> str:
    """Return the kind of a collective that sends data."""
    return KIND_OF[eqn.op]


def axes_of(eqn: Equation) -> Axes:
    return eqn.attrs["axes"]  # type: ignore[return-value]


def _require(holds: bool, eqn: Equation, why: str) -> None:
    if not holds:
        raise PlacementError(f"{eqn.op} of {eqn.operands[0].type} over {', '.join(axes_of(eqn))}: {why}")


def _resplit(type: TensorType, splits: dict[str, Axes], pending: Axes | None = None) -> TensorType:
    kept = type.pending if pending is None else pending
    new = tuple(splits.get(dim.name, axes) for dim, axes in zip(type.dims, type.splits, strict=True))
    return TensorType(type.dtype, type.dims, new, kept, type.reduction if kept else "sum")


def _without_suffix(type: TensorType, dim: str, eqn: Equation) -> Axes:
    """The axes of `dim` less the communicated ones, which must be its most minor."""
    before, axes = type.axes_of(dim), axes_of(eqn)
    _require(before[len(before) - len(axes) :] == axes, eqn, f"they are not the most minor axes of {dim}")
    return before[: len(before) - len(axes)]


def _with_suffix(type: TensorType, dim: str, eqn: Equation, mesh: Mesh) -> Axes:
    after = (*type.axes_of(dim), *axes_of(eqn))
    _require(type.dim(dim).size % mesh.size(after) == 0, eqn, f"{dim} does not divide evenly")
    return after


def _dim(eqn: Equation, key: str = "dim") -> str:
    dim = eqn.attrs[key]
    assert isinstance(dim, Dim)
    return dim.name


def _place_reshard(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Any placement of the same tensor."""
    source, target = eqn.operands[0].type, eqn.result.type
    if source.unsplit() != target.unsplit():
        raise PlacementError(f"cannot reshard {source} to {target}")
    return (target,)


def _place_all_reduce(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Of one or several operands, each pending over the axes."""
    results = []
    for value in eqn.operands:
        _require(set(axes_of(eqn)) <= set(value.type.pending), eqn, "nothing is pending over them")
        _require(
            value.type.reduction == eqn.operands[0].type.reduction, eqn, "operands want different reductions"
        )
        left = tuple(axis for axis in value.type.pending if axis not in axes_of(eqn))
        results.append(_resplit(value.type, {}, left))
    return tuple(results)


def gathered_dims(eqn: Equation) -> tuple[Dim, ...]:
    """Return the dimension of each operand that an all-gather joins: `dim` of one operand, `dims` of several."""
    return eqn.attrs.get("dims") or (eqn.attrs["dim"],)  # type: ignore[return-value]


def _place_all_gather(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Place an all-gather of operands that are each split over the axes along a dimension of its own."""
    dims, types = gathered_dims(eqn), [value.type for value in eqn.operands]
    _require(len(dims) == len(types), eqn, "each operand has one dimension")
    alike = {(type.dtype, type.varying(mesh)) for type in types}
    _require(len(alike) == 1, eqn, "operands differ in dtype or in the axes that they vary along")
    pairs = zip(types, dims, strict=True)
    return tuple(_resplit(t, {dim.name: _without_suffix(t, dim.name, eqn)}) for t, dim in pairs)


def _place_reduce_scatter(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    type = eqn.operands[0].type
    _require(set(axes_of(eqn)) <= set(type.pending), eqn, "nothing is pending over them")
    _require(type.reduction == "sum", eqn, "only sums can be scattered")
    left = tuple(axis for axis in type.pending if axis not in axes_of(eqn))
    return (_resplit(type, {_dim(eqn): _with_suffix(type, _dim(eqn), eqn, mesh)}, left),)


def _place_all_to_all(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    type, source, target = eqn.operands[0].type, _dim(eqn, "source"), _dim(eqn, "target")
    splits = {source: _without_suffix(type, source, eqn), target: _with_suffix(type, target, eqn, mesh)}
    return (_resplit(type, splits),)


def _place_permute(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """`axes` in a new order on the same dimension."""
    type = eqn.operands[0].type
    _require(sorted(type.axes_of(_dim(eqn))) == sorted(axes_of(eqn)), eqn, f"{_dim(eqn)} is split otherwise")
    return (_resplit(type, {_dim(eqn): axes_of(eqn)}),)


def _place_local_slice(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    type = eqn.operands[0].type
    _require(not set(axes_of(eqn)) & {*type.split_axes, *type.pending}, eqn, "the operand varies along them")
    return (_resplit(type, {_dim(eqn): _with_suffix(type, _dim(eqn), eqn, mesh)}),)


def _place_unreduce(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    type = eqn.operands[0].type
    _require(not set(axes_of(eqn)) & {*type.split_axes, *type.pending}, eqn, "the operand varies along them")
    _require(type.reduction == "sum", eqn, "what is pending is not a sum")
    return (_resplit(type, {}, mesh.ordered((*type.pending, *axes_of(eqn)))),)


def _infer_same(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    return tuple(types)


def _evaluate(shard: Shard, *arrays: Any) -> Any:
    """Of whole tensors; where their parts are is given by the types alone."""
    return arrays if len(arrays) > 1 else arrays[0]


def _place_shift_shards(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    type, dim = eqn.operands[0].type, _dim(eqn)
    _require(type.axes_of(dim) == axes_of(eqn), eqn, f"{dim} is split otherwise")
    _require(type.dim(dim).size == mesh.size(axes_of(eqn)), eqn, f"shards of {dim} have several elements")
    return (type,)


def _shift_shards_text(code: Code) -> str:
    """`shift_shards(x, axes, places, wrap)`: one function for every axis of the array, as the shards move as they are."""
    by, wrap = code.eqn.attrs["by"], code.eqn.attrs["wrap"]
    return f"shift_shards({code.args[0]}, {_axes_text(axes_of(code.eqn))}, {by}, wrap={wrap})"


def _axes_text(axes: Axes) -> str:
    """One axis as a string, several as a tuple."""
    return f'"{axes[0]}"' if len(axes) == 1 else "(" + ", ".join(f'"{axis}"' for axis in axes) + ")"


def _call(function: str, *keys: str) -> Callable[[Code], str]:
    """`function(x, axes, axis number of each named dimension)`, a helper that the NumPy backend writes into the module."""

    def text(code: Code) -> str:
        numbers = [f"{key}={code.axis(0, _dim(code.eqn, key))}" for key in keys]
        return f"{function}({', '.join([code.args[0], _axes_text(axes_of(code.eqn)), *numbers])})"

    return text


def _all_gather_text(code: Code) -> str:
    """`all_gather(x, axes, dim=-1)`, or `all_gather((x, y), axes, dim=(-1, -2))` of several arrays."""
    dims = [code.axis(i, dim.name) for i, dim in enumerate(gathered_dims(code.eqn))]
    if len(dims) == 1:
        return f"all_gather({code.args[0]}, {_axes_text(axes_of(code.eqn))}, dim={dims[0]})"
    return f"all_gather(({', '.join(code.args)}), {_axes_text(axes_of(code.eqn))}, dim={tuple(dims)})"


def _permute_text(code: Code) -> str:
    """`permute(x, old order of the axes, new order)`."""
    before = code.eqn.operands[0].type.axes_of(_dim(code.eqn))
    return f"permute({code.args[0]}, {_axes_text(before)}, {_axes_text(axes_of(code.eqn))})"


def _all_reduce_text(code: Code) -> str:
    function = {"sum": "psum", "max": "pmax", "min": "pmin"}[code.eqn.operands[0].type.reduction]
    operands = code.args[0] if len(code.args) == 1 else f"({', '.join(code.args)})"
    return f"{function}({operands}, {_axes_text(axes_of(code.eqn))})"


def _position(code: Code, key: str = "dim") -> int:
    """The array axis of a dimension of the operand, for calls that don't count from the end."""
    return code.eqn.operands[0].type.names.index(_dim(code.eqn, key))


def _jax_all_gather(code: Code) -> str:
    """What is gathered is the same everywhere, and JAX must know that it is: hence `to`."""
    if len(code.args) > 1:
        return _all_gather_text(code)
    axes = _axes_text(axes_of(code.eqn))
    return f'lax.all_gather({code.args[0]}, {axes}, axis={_position(code)}, tiled=True, to="invarying")'


def _jax_reduce_scatter(code: Code) -> str:
    axes = _axes_text(axes_of(code.eqn))
    return f"lax.psum_scatter({code.args[0]}, {axes}, scatter_dimension={_position(code)}, tiled=True)"


def _jax_all_to_all(code: Code) -> str:
    split, joined = _position(code, "target"), _position(code, "source")
    axes = _axes_text(axes_of(code.eqn))
    return f"lax.all_to_all({code.args[0]}, {axes}, split_axis={split}, concat_axis={joined}, tiled=True)"


def _jax_local_slice(code: Code) -> str:
    axis, index = _position(code), f"lax.axis_index({_axes_text(axes_of(code.eqn))})"
    size = code.sizes[axis]
    return f"lax.dynamic_slice_in_dim({code.args[0]}, {index} * {size}, {size}, axis={axis})"


def _unreduce_text(code: Code) -> str:
    return f"unreduce({code.args[0]}, {_axes_text(axes_of(code.eqn))})"


def _jax_unreduce(code: Code) -> str:
    return f"jnp.where(lax.axis_index({_axes_text(axes_of(code.eqn))}) == 0, {code.args[0]}, 0)"


def collective(
    name: str,
    place: Callable[[OpDef, Equation, Mesh], tuple[TensorType, ...]],
    numpy: Text,
    jax: Text,
    doc: str,
    storage: Storage = "kernel",
    traits: Iterable[Trait] = (),
) -> OpDef:
    """The backends define the functions that the texts call without a module."""
    return OpDef(
        name=name,
        infer=_infer_same,
        place=place,
        layout_rule=lambda eqn: BY_NAME,
        distribute=None,
        linear=linear_in_all,
        gradient=no_gradient,
        flops=no_flops,
        storage=storage,
        traits=frozenset({"placement", *traits, *(("sends",) if name in KIND_OF else ())}),
        evaluate=_evaluate,
        numpy=numpy,
        jax=jax,
        jax_differentiated=None,
        doc=doc,
    )


OPS = (
    collective(
        "reshard",
        _place_reshard,
        "{0}",
        "{0}",
        "The same tensor placed otherwise; lowered to collectives.",
        traits=("reshard",),
    ),
    collective(
        "all_reduce",
        _place_all_reduce,
        _all_reduce_text,
        lambda code: f"lax.{_all_reduce_text(code)}",
        "Completes a pending reduction everywhere.",
        traits=("all_reduce",),
    ),
    collective(
        "all_gather",
        _place_all_gather,
        _all_gather_text,
        _jax_all_gather,
        "Joins the shards of a dimension.",
        traits=("all_gather",),
    ),
    collective(
        "reduce_scatter",
        _place_reduce_scatter,
        _call("reduce_scatter", "dim"),
        _jax_reduce_scatter,
        "Completes a pending sum, each processor keeping its shard of a dimension.",
    ),
    collective(
        "all_to_all",
        _place_all_to_all,
        _call("all_to_all", "source", "target"),
        _jax_all_to_all,
        "Moves a split from one dimension to another.",
    ),
    collective(
        "permute", _place_permute, _permute_text, _permute_text, "Reorders the axes that split a dimension."
    ),
    attrs.evolve(
        collective(
            "shift_shards",
            _place_shift_shards,
            _shift_shards_text,
            _shift_shards_text,
            "Hands each shard of a dimension on to another processor, of which every one has a single element.",
        ),
        evaluate=shifted_array,
    ),
    collective(
        "local_slice",
        _place_local_slice,
        _call("local_slice", "dim"),
        _jax_local_slice,
        "Keeps this processor's shard; sends nothing.",
        "view",
    ),
    collective(
        "unreduce",
        _place_unreduce,
        _unreduce_text,
        _jax_unreduce,
        "Makes a sum pending of which one processor has all and the others nothing; sends nothing.",
        "view",
    ),
)
