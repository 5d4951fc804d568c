"""The collectives: one record each, with its type rule, its edges of the reshard planner's graph, its costs and its text.

`reshard` says which placement is wanted, by the type of its result. Each other collective is one way to get there (paper,
section 6), and leaves the global tensor as it is, but for those in `BETWEEN_PROCESSORS`. The attribute `axes` has the mesh axes
that are communicated over, most major first.

The functions of a collective stand together: its type rule, its edges and its texts, then its record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations

from mtfc.compiler.ir.attributes import AXIS_SET, DIM, DIM_LIST, Attribute
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.opdef import (
    OVER_AXES,
    Attrs,
    Code,
    CollectiveDef,
    Edge,
    OpDef,
    OpError,
    ReshardGoal,
    Sending,
    Trait,
)
from mtfc.compiler.ir.ops.positions import (
    AMONG,
    BACK,
    BY,
    DIM_MOVED,
    WRAP,
    flipped_array,
    interleaved_array,
    shifted_array,
)
from mtfc.compiler.ir.ops.structure import need
from mtfc.compiler.ir.sharding_rules import PlacementError
from mtfc.compiler.ir.types import FLOATS, Axes, Dim, Mesh, TensorType

OVER_ANY_ORDER = Attribute("axes", AXIS_SET)
"""The axes of a collective that does the same in any order of them."""
OF_ONE = Attribute("dim", DIM, optional=True)
OF_SEVERAL = Attribute("dims", DIM_LIST, optional=True)
"""The dimension of the only operand, or those of several operands."""


def axes_of(eqn: Equation) -> Axes:
    return OVER_AXES.of(eqn.attrs)


def _require(holds: bool, eqn: Equation, why: str) -> None:
    if not holds:
        raise PlacementError(f"{eqn.op} of {eqn.operands[0].type} over {', '.join(axes_of(eqn))}: {why}")


def resplit(type: TensorType, splits: Mapping[str, Axes], pending: Axes | None = None) -> TensorType:
    """Return the type with other splits of the dimensions named, and other pending axes if they are given."""
    kept = type.pending if pending is None else pending
    new = tuple(splits.get(dim.name, axes) for dim, axes in zip(type.dims, type.splits, strict=True))
    return TensorType(type.dtype, type.dims, new, kept, type.reduction if kept else "sum")


def _without_suffix(type: TensorType, dim: str, eqn: Equation) -> Axes:
    """Return the axes of `dim` less the communicated ones, which must be its most minor."""
    before, axes = type.axes_of(dim), axes_of(eqn)
    _require(before[len(before) - len(axes) :] == axes, eqn, f"they are not the most minor axes of {dim}")
    return before[: len(before) - len(axes)]


def _with_suffix(type: TensorType, dim: str, eqn: Equation, mesh: Mesh) -> Axes:
    """Return the axes of `dim` with the communicated ones as its most minor."""
    after = (*type.axes_of(dim), *axes_of(eqn))
    _require(type.dim(dim).size % mesh.size(after) == 0, eqn, f"{dim} does not divide evenly")
    return after


def _dim(eqn: Equation, key: str = "dim") -> str:
    """Return the name of the dimension in an attribute."""
    dim = eqn.attrs[key]
    assert isinstance(dim, Dim)
    return dim.name


def _axes_text(axes: Axes) -> str:
    """Return one axis as a string, several as a tuple."""
    return f'"{axes[0]}"' if len(axes) == 1 else "(" + ", ".join(f'"{axis}"' for axis in axes) + ")"


def _call(function: str, *keys: str) -> Callable[[Code], str]:
    """Return the text of `function(x, axes, axis number of each named dimension)`."""

    def text(code: Code) -> str:
        numbers = [f"{key}={code.axis(0, _dim(code.eqn, key))}" for key in keys]
        return f"{function}({', '.join([code.args[0], _axes_text(axes_of(code.eqn)), *numbers])})"

    return text


def _position(code: Code, key: str = "dim") -> int:
    """Return the array axis of a dimension of the operand, for calls that don't count from the end."""
    return code.eqn.operands[0].type.names.index(_dim(code.eqn, key))


def _without(pending: Axes, axes: Axes) -> Axes:
    return tuple(axis for axis in pending if axis not in axes)


# Collectives of several operands, each along a dimension of its own


def operand_dims(eqn: Equation) -> tuple[Dim, ...]:
    """Return the dimension that an all-gather joins, or a reduce-scatter splits, of each operand."""
    return _operand_dims_of(eqn.attrs)


def _operand_dims_of(attributes: Attrs) -> tuple[Dim, ...]:
    return OF_SEVERAL.of(attributes) if OF_SEVERAL.name in attributes else (OF_ONE.of(attributes),)


def _infer_with_dims(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the types of the operands: a collective with a dimension for each of them keeps all types."""
    if len({OF_ONE.name, OF_SEVERAL.name} & attributes.keys()) != 1:
        raise OpError("it has either the attribute dim or the attribute dims")
    dims = _operand_dims_of(attributes)
    if len(dims) != len(types):
        raise OpError(f"{len(types)} operands, and {len(dims)} dimensions")
    for type, dim in zip(types, dims, strict=True):
        need(type, dim)
    return tuple(types)


def _operand_dims(eqn: Equation, mesh: Mesh) -> list[tuple[TensorType, Dim]]:
    """Return the type of each operand with its dimension; operands that can be sent as one array are alike."""
    dims, types = operand_dims(eqn), [value.type for value in eqn.operands]
    _require(len(dims) == len(types), eqn, "each operand has one dimension")
    alike = {(type.dtype, type.varying(mesh)) for type in types}
    _require(len(alike) == 1, eqn, "operands differ in dtype or in the axes that they vary along")
    return list(zip(types, dims, strict=True))


def _dims_text(function: str) -> Callable[[Code], str]:
    """Return the text of `function(x, axes, dim=-1)`, or of `function((x, y), axes, dim=(-1, -2))` for several arrays."""

    def text(code: Code) -> str:
        dims, axes = [code.axis(i, d.name) for i, d in enumerate(operand_dims(code.eqn))], axes_of(code.eqn)
        if len(dims) == 1:
            return f"{function}({code.args[0]}, {_axes_text(axes)}, dim={dims[0]})"
        return f"{function}(({', '.join(code.args)}), {_axes_text(axes)}, dim={tuple(dims)})"

    return text


# reshard


def _place_reshard(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Allow any placement of the same tensor."""
    source, target = eqn.operands[0].type, eqn.result.type
    if source.unsplit() != target.unsplit():
        raise PlacementError(f"cannot reshard {source} to {target}")
    return (target,)


RESHARD = CollectiveDef(
    name="reshard",
    doc="Places the same tensor otherwise; lowered to collectives.",
    place=_place_reshard,
    sending=None,
    edges=None,
    traits=frozenset({"reshard"}),
    attributes=(),
    numpy="{0}",
    jax="{0}",
)


# all_reduce


def _place_all_reduce(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Take one or several operands, each pending over the axes."""
    results = []
    for value in eqn.operands:
        _require(set(axes_of(eqn)) <= set(value.type.pending), eqn, "nothing is pending over them")
        _require(
            value.type.reduction == eqn.operands[0].type.reduction, eqn, "operands want different reductions"
        )
        results.append(resplit(value.type, {}, _without(value.type.pending, axes_of(eqn))))
    return tuple(results)


def _all_reduce_edges(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[Edge]:
    """Yield the all-reduces from a type: each completes the pending sum over some of its axes."""
    completable = goal.completable(type)
    for size in range(1, len(completable) + 1):
        for axes in combinations(completable, size):
            yield (("axes", axes),), resplit(type, {}, _without(type.pending, axes))


def _all_reduce_text(code: Code) -> str:
    function = {"sum": "psum", "max": "pmax", "min": "pmin"}[code.eqn.operands[0].type.reduction]
    operands = code.args[0] if len(code.args) == 1 else f"({', '.join(code.args)})"
    return f"{function}({operands}, {_axes_text(axes_of(code.eqn))})"


def _jax_all_reduce(code: Code) -> str:
    """Call the prelude for extrema of floating-point numbers: `lax.pmax` loses NaN on some platforms."""
    is_sum = code.eqn.operands[0].type.reduction == "sum"
    plain = is_sum or FLOATS.isdisjoint(value.type.dtype for value in code.eqn.operands)
    return f"lax.{_all_reduce_text(code)}" if plain else _all_reduce_text(code)


ALL_REDUCE = CollectiveDef(
    name="all_reduce",
    doc="Completes a pending reduction everywhere.",
    place=_place_all_reduce,
    sending=Sending(
        kind="all_reduce",
        ring_bytes=lambda n: 2 * (n - 1) / n,
        operand="whole",
        pattern="ring",
        rounds=2,
        hlo="all-reduce",
    ),
    edges=_all_reduce_edges,
    priority=2,
    traits=frozenset({"all_reduce"}),
    arity=(1, None),
    attributes=(OVER_ANY_ORDER,),
    numpy=_all_reduce_text,
    jax=_jax_all_reduce,
)


# all_gather


def _place_all_gather(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Take operands that are each split over the axes along a dimension of its own."""
    pairs = _operand_dims(eqn, mesh)
    return tuple(resplit(t, {dim.name: _without_suffix(t, dim.name, eqn)}) for t, dim in pairs)


def _all_gather_edges(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[Edge]:
    """Yield the all-gathers from a type: each gathers a dimension over its innermost axes."""
    for dim, axes in zip(type.dims, type.splits, strict=True):
        for start in range(len(axes)):
            yield (("dim", dim), ("axes", axes[start:])), resplit(type, {dim.name: axes[:start]})


def _jax_all_gather(code: Code) -> str:
    """Return the call with `to="invarying"`, which tells JAX that all devices get the same array."""
    if len(code.args) > 1:
        return _dims_text("all_gather")(code)
    axes = _axes_text(axes_of(code.eqn))
    return f'lax.all_gather({code.args[0]}, {axes}, axis={_position(code)}, tiled=True, to="invarying")'


ALL_GATHER = CollectiveDef(
    name="all_gather",
    doc="Joins the shards of a dimension.",
    place=_place_all_gather,
    sending=Sending(
        kind="all_gather",
        ring_bytes=lambda n: n - 1,
        operand="part",
        pattern="ring",
        hlo="all-gather",
    ),
    edges=_all_gather_edges,
    priority=6,
    joins="dim",
    traits=frozenset({"all_gather"}),
    arity=(1, None),
    attributes=(OF_ONE, OF_SEVERAL, OVER_AXES),
    infer=_infer_with_dims,
    numpy=_dims_text("all_gather"),
    jax=_jax_all_gather,
)


# reduce_scatter


def _place_reduce_scatter(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Take operands that are each pending over the axes."""
    results = []
    for type, dim in _operand_dims(eqn, mesh):
        _require(set(axes_of(eqn)) <= set(type.pending), eqn, "nothing is pending over them")
        _require(type.reduction == "sum", eqn, "only sums can be scattered")
        left = _without(type.pending, axes_of(eqn))
        results.append(resplit(type, {dim.name: _with_suffix(type, dim.name, eqn, mesh)}, left))
    return tuple(results)


def _reduce_scatter_edges(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[Edge]:
    """Yield the reduce-scatters from a type: each completes a pending sum over a run of axes that then split a dimension."""
    if type.reduction != "sum":
        return
    completable = set(goal.completable(type))
    for i, run in goal.additions(type, mesh):
        if set(run) <= completable:
            splits = {type.dims[i].name: (*type.splits[i], *run)}
            yield (("dim", type.dims[i]), ("axes", run)), resplit(type, splits, _without(type.pending, run))


def _jax_reduce_scatter(code: Code) -> str:
    if len(code.args) > 1:
        return _dims_text("reduce_scatter")(code)
    axes = _axes_text(axes_of(code.eqn))
    return f"lax.psum_scatter({code.args[0]}, {axes}, scatter_dimension={_position(code)}, tiled=True)"


REDUCE_SCATTER = CollectiveDef(
    name="reduce_scatter",
    doc="Completes a pending sum; each processor keeps its shard of a dimension.",
    place=_place_reduce_scatter,
    sending=Sending(
        kind="reduce_scatter",
        ring_bytes=lambda n: (n - 1) / n,
        operand="whole",
        pattern="ring",
        hlo="reduce-scatter",
    ),
    edges=_reduce_scatter_edges,
    priority=3,
    splits="dim",
    traits=frozenset({"reduce_scatter"}),
    arity=(1, None),
    attributes=(OF_ONE, OF_SEVERAL, OVER_AXES),
    infer=_infer_with_dims,
    numpy=_dims_text("reduce_scatter"),
    jax=_jax_reduce_scatter,
)


# all_to_all


def _place_all_to_all(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Return the type in which the axes have moved from the end of one dimension's axes to the end of another's."""
    type, source, target = eqn.operands[0].type, _dim(eqn, "source"), _dim(eqn, "target")
    splits = {source: _without_suffix(type, source, eqn), target: _with_suffix(type, target, eqn, mesh)}
    return (resplit(type, splits),)


def _all_to_all_edges(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[Edge]:
    """Yield the all-to-alls from a type: each moves the last axes of one dimension to the end of another's."""
    for j, run in goal.additions(type, mesh):
        for i, axes in enumerate(type.splits):
            if i != j and axes[len(axes) - len(run) :] == run:
                source, target = type.dims[i], type.dims[j]
                splits = {source.name: axes[: len(axes) - len(run)], target.name: (*type.splits[j], *run)}
                yield (("source", source), ("target", target), ("axes", run)), resplit(type, splits)


def _jax_all_to_all(code: Code) -> str:
    split, joined = _position(code, "target"), _position(code, "source")
    axes = _axes_text(axes_of(code.eqn))
    return f"lax.all_to_all({code.args[0]}, {axes}, split_axis={split}, concat_axis={joined}, tiled=True)"


ALL_TO_ALL = CollectiveDef(
    name="all_to_all",
    doc="Moves a split from one dimension to another.",
    place=_place_all_to_all,
    sending=Sending(
        kind="all_to_all",
        ring_bytes=lambda n: (n - 1) / n,
        operand="part",
        pattern="exchange",
        hlo="all-to-all",
    ),
    edges=_all_to_all_edges,
    priority=4,
    joins="source",
    splits="target",
    numpy=_call("all_to_all", "source", "target"),
    jax=_jax_all_to_all,
)


# permute, shift_shards, flip_shards and interleave_shards


def _place_permute(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Put the axes of a dimension into a new order, which `axes` is."""
    type = eqn.operands[0].type
    _require(sorted(type.axes_of(_dim(eqn))) == sorted(axes_of(eqn)), eqn, f"{_dim(eqn)} is split otherwise")
    return (resplit(type, {_dim(eqn): axes_of(eqn)}),)


def _permute_edges(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[Edge]:
    """Yield the permutations from a type: each brings the axes of a dimension into another order."""
    for dim, axes in zip(type.dims, type.splits, strict=True):
        for order in permutations(axes):
            if order != axes:
                yield (("dim", dim), ("axes", order)), resplit(type, {dim.name: order})


def _permute_text(code: Code) -> str:
    """Return `permute(x, old order of the axes, new order)`."""
    before = code.eqn.operands[0].type.axes_of(_dim(code.eqn))
    return f"permute({code.args[0]}, {_axes_text(before)}, {_axes_text(axes_of(code.eqn))})"


PERMUTE = CollectiveDef(
    name="permute",
    doc="Reorders the axes that split a dimension.",
    place=_place_permute,
    sending=Sending(
        kind="permute",
        ring_bytes=lambda n: 1,
        operand="whole",
        pattern="permutation",
        hlo="collective-permute",
    ),
    edges=_permute_edges,
    priority=5,
    joins="dim",
    numpy=_permute_text,
    jax=_permute_text,
)


def _place_single(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Return the operand's type, in which each shard of the dimension must have a single element."""
    type, dim = eqn.operands[0].type, _dim(eqn)
    _require(type.axes_of(dim) == axes_of(eqn), eqn, f"{dim} is split otherwise")
    _require(type.dim(dim).size == mesh.size(axes_of(eqn)), eqn, f"shards of {dim} have several elements")
    return (type,)


def _place_interleave_shards(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    among = AMONG.of(eqn.attrs).name
    _require(not eqn.operands[0].type.axes_of(among), eqn, f"{among} is split")
    return _place_single(opdef, eqn, mesh)


def _interleave_messages(eqn: Equation) -> tuple[int, int]:
    """Return two numbers of turns: those in which a processor sends a part, and all turns. There is one turn for each part.

    parts: the parts of a shard, dealt out among all processors. places: the number of processors. In the other turns a
    processor keeps a part: one turn in `places` if parts % places is 0 or 1, and none otherwise.
    """
    parts, places = AMONG.of(eqn.attrs).size, DIM_MOVED.of(eqn.attrs).size
    return parts - (-(-parts // places) if parts % places < 2 else 0), parts


def _shards_text(code: Code) -> str:
    """Return `op(x, axes, ...)` with the attributes of the op. Shards move whole, so their own array axis is not named."""
    given = {key: value for key, value in code.eqn.attrs.items() if key not in ("dim", "axes")}
    numbers = (code.axis(0, value.name) if isinstance(value, Dim) else value for value in given.values())
    more = "".join(f", {key}={number}" for key, number in zip(given, numbers, strict=True))
    return f"{code.eqn.op}({code.args[0]}, {_axes_text(axes_of(code.eqn))}{more})"


_moving = partial(
    CollectiveDef,
    place=_place_single,
    sending=PERMUTE.sending,
    edges=None,
    joins="dim",
    numpy=_shards_text,
    jax=_shards_text,
)
"""Makes a collective that moves the elements of a dimension, a single one on each processor."""

BETWEEN_PROCESSORS: Mapping[Trait, CollectiveDef] = {
    "shift": _moving(
        name="shift_shards",
        attributes=(DIM_MOVED, OVER_AXES, BY, WRAP),
        doc="Hands each shard of a dimension, a single element, on to another processor.",
        evaluate=shifted_array,
    ),
    "flip": _moving(
        name="flip_shards",
        attributes=(DIM_MOVED, OVER_AXES),
        doc="Exchanges the shards of a dimension, each a single element, in reverse order.",
        evaluate=flipped_array,
    ),
    "interleave": _moving(
        name="interleave_shards",
        attributes=(DIM_MOVED, OVER_AXES, AMONG, BACK),
        doc="Deals elements out in turn to processors, or back: each sends one of its elements at a time.",
        place=_place_interleave_shards,
        messages=_interleave_messages,
        evaluate=interleaved_array,
    ),
}
"""Trait of an op that moves the elements of a dimension -> the collective that does so between processors."""


# local_slice


def _place_local_slice(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Return the type with a dimension split over axes along which the operand is the same."""
    type = eqn.operands[0].type
    _require(not set(axes_of(eqn)) & {*type.split_axes, *type.pending}, eqn, "the operand varies along them")
    return (resplit(type, {_dim(eqn): _with_suffix(type, _dim(eqn), eqn, mesh)}),)


def _local_slice_edges(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[Edge]:
    """Yield the slices from a type: each splits a dimension over axes that are not in use, which sends nothing."""
    used = {*type.split_axes, *type.pending}
    for i, run in goal.additions(type, mesh):
        if not set(run) & used:
            splits = {type.dims[i].name: (*type.splits[i], *run)}
            yield (("dim", type.dims[i]), ("axes", run)), resplit(type, splits)


def _jax_local_slice(code: Code) -> str:
    axis, index = _position(code), f"lax.axis_index({_axes_text(axes_of(code.eqn))})"
    size = code.sizes[axis]
    return f"lax.dynamic_slice_in_dim({code.args[0]}, {index} * {size}, {size}, axis={axis})"


LOCAL_SLICE = CollectiveDef(
    name="local_slice",
    doc="Keeps this processor's shard; sends nothing.",
    place=_place_local_slice,
    sending=None,
    edges=_local_slice_edges,
    priority=1,
    splits="dim",
    numpy=_call("local_slice", "dim"),
    jax=_jax_local_slice,
)


# unreduce


def _place_unreduce(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Return the type with a sum pending over axes along which the operand is the same: one device keeps it, others have 0."""
    type = eqn.operands[0].type
    _require(not set(axes_of(eqn)) & {*type.split_axes, *type.pending}, eqn, "the operand varies along them")
    _require(type.reduction == "sum", eqn, "what is pending is not a sum")
    return (resplit(type, {}, mesh.ordered((*type.pending, *axes_of(eqn)))),)


def _unreduce_edges(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[Edge]:
    """Yield the step that makes a sum pending over the axes that the goal has and the type lacks."""
    missing = _without(goal.pending, type.pending)
    if missing and not set(missing) & set(type.split_axes) and type.reduction == goal.reduction == "sum":
        yield (("axes", missing),), resplit(type, {}, mesh.ordered((*type.pending, *missing)))


UNREDUCE = CollectiveDef(
    name="unreduce",
    doc="Makes a sum pending: one processor keeps the value, the others get zeros; sends nothing.",
    place=_place_unreduce,
    sending=None,
    edges=_unreduce_edges,
    attributes=(OVER_ANY_ORDER,),
    numpy=_call("unreduce"),
    jax=lambda code: f"jnp.where(lax.axis_index({_axes_text(axes_of(code.eqn))}) == 0, {code.args[0]}, 0)",
)


COLLECTIVES = (
    RESHARD,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    PERMUTE,
    *BETWEEN_PROCESSORS.values(),
    LOCAL_SLICE,
    UNREDUCE,
)
"""All records, in the order of reports."""

OPS = tuple(each.opdef for each in COLLECTIVES)

_BY_NAME: Mapping[str, CollectiveDef] = {each.name: each for each in COLLECTIVES}

SENDINGS: Mapping[str, Sending] = {
    each.name: each.sending for each in COLLECTIVES if each.sending and each.sending.kind == each.name
}
"""Kind of collective -> its cost, in the order of reports."""

KINDS = tuple(SENDINGS)
"""The kinds of collectives that send data, by their names in reports."""

KIND_OF: Mapping[str, str] = {each.name: each.sending.kind for each in COLLECTIVES if each.sending}
"""Op that sends data -> its kind."""


def collective_of(eqn: Equation) -> CollectiveDef:
    """Return the record of an equation's op. Raises `KeyError` if the op is no collective."""
    return _BY_NAME[eqn.op]


def kind_of(eqn: Equation) -> str:
    """Return the kind of a collective that sends data."""
    return KIND_OF[eqn.op]
