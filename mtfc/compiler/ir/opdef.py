"""`OpDef`: everything the compiler knows about one op, in one frozen record.

No pass, backend or analysis asks for the name of an op: each reads a column, or asks for a trait. A forgotten column fails at
import, if the op can be wrong without it. The defaults of the others are right for every op, but perhaps slow. The columns speak
of *global* types. How an op treats split and pending operands follows from `layout_rule` and `linear`: they reduce an op to facts
about its dimensions, so one algorithm lays out all ops.

Gradient and `distribute` rules rewrite an op in terms of other ops. This file states what they need for that as two protocols,
`OpBuilder` and `BlockRewriter`, because the classes behind them use the ops in turn.

`CollectiveDef` is the record of one collective. The reshard planner, the cost model, the reports, `hardware` declarations, the
reader of HLO and both backends read its columns. The records themselves are in `ops/collectives.py`; each is also an op, `opdef`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs

from mtfc.compiler.ir.attributes import AXES, DIM, Attribute, Stated, kinds_error
from mtfc.compiler.ir.core import Attr, Equation, Value
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType
from mtfc.compiler.records import frozen

Attrs = Mapping[str, Attr]


class OpError(Exception):
    """An op's type rule refuses its operands: `message` says why, `help` what to do about it."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.message, self.help = message, help


class DimsError(OpError):
    """The operands of an elementwise op cannot be broadcast against each other."""


class DTypeError(OpError):
    """The operands' dtypes differ, or the op does not take them."""


@frozen
class Bridge:
    """A dimension of the operand and one of the result that shards can process together, where both are split alike.

    The op's `distribute` rule does that. Where the two are split otherwise, the op needs both whole.

    share: a lower bound of the part of the operand's elements that the op reads. is_local: no shard ever needs elements of
    another shard.
    """

    source: str
    target: str
    share: float
    is_local: bool


@frozen
class LayoutRule:
    """The roles of an op's dimensions when a layout splits them. Dimensions that no field names need nothing special.

    The iteration space of an equation has the dimensions of its result and those reduced away.

    index: dimension of an operand -> dimension of the iteration space that runs along it, where the names differ. None means
        that every processor needs the whole dimension, because the op mixes its positions.
    whole: dimensions of the result that cannot be computed in parts.
    single: dimensions of the result that can be split only into shards of one element, one for each processor.
    reduced: dimensions reduced away, by `reduction`. Splitting one leaves a reduction pending over its axes.
    bridge: the two dimensions that shards can process together, if any.
    """

    index: Mapping[str, str | None] = attrs.field(factory=dict)
    whole: frozenset[str] = frozenset()
    single: frozenset[str] = frozenset()
    reduced: tuple[Dim, ...] = ()
    reduction: str = "sum"
    bridge: Bridge | None = None

    def operand_axes(self, dim: str, layout: Mapping[str, Axes]) -> Axes:
        """Return the axes that must split dimension `dim` of an operand for the equation to run under `layout`."""
        iteration = self.index.get(dim, dim)
        return () if iteration is None else layout.get(iteration, ())

    def divides(self, operands: Iterable[Value], layout: Mapping[str, Axes], mesh: Mesh) -> bool:
        """Return True if the operands' dimensions divide evenly as the equation needs them under `layout`."""
        dims = dict.fromkeys(dim for value in operands for dim in value.type.dims)
        return not any(dim.size % mesh.size(self.operand_axes(dim.name, layout)) for dim in dims)

    def allows(self, dim: Dim, axes: Axes, mesh: Mesh) -> bool:
        """Return True if the op can compute its result with dimension `dim` split over `axes`."""
        if not axes or (dim.name in self.single and dim.size == mesh.size(axes)):
            return True
        return dim.name not in self.whole | self.single


BY_NAME = LayoutRule()
"""The rule of ops whose dimensions all keep their names, such as elementwise ops."""


class Sizes(Protocol):
    """Sizes on one processor: integers, or formulas in the names that the file declares."""

    def dim(self, dim: Dim, axes: Axes) -> Any:
        """Return the size of a shard of `dim` split over `axes`."""

    def elements(self, type: TensorType) -> Any:
        """Return the number of elements of one processor's array."""


@frozen
class Shard:
    """The processor on which an op is evaluated.

    shape: the shape of this processor's part of the first result. offset: dimension of a result or operand -> index of the first
    element here. random: the functions that draw random numbers.
    """

    np: Any
    random: Any
    eqn: Equation
    shape: tuple[int, ...]
    offset: Callable[[str], int]


@frozen
class Code:
    """The pieces that a backend gives to an op, to make its text from them.

    args: the operands as expressions, each a name or a literal.
    aligned: the same, transposed and with axes inserted so that they broadcast in the result's dimension order.
    sizes: this processor's shape of the result.
    shape: the same as text, with any axes that the backend puts in front, e.g. `(1, 1, 8, 256)`.
    axis: (operand number, dimension) -> the array axis, counted from the end (negative).
    offset: (dimension of a result or operand, rank) -> expression for the index of its first element here. The expression
        broadcasts against arrays of that rank, and is empty where the index is 0.
    dtype: the result's element type, e.g. `np.float32`.
    """

    eqn: Equation
    args: tuple[str, ...]
    aligned: tuple[str, ...]
    sizes: tuple[int, ...]
    shape: str
    axis: Callable[[int, str], int]
    offset: Callable[[str, int], str]
    dtype: str


class OpBuilder(Protocol):
    """Appends equations to a body: see `ir/builder.py`, which documents the methods."""

    def __call__(self, op: str, *operands: Value, name: str = "", **attributes: Attr) -> Value: ...

    def several(
        self, op: str, *operands: Value, names: Sequence[str], **attributes: Attr
    ) -> tuple[Value, ...]: ...

    def constant(self, value: float | int | bool, dtype: str) -> Value: ...

    def like(self, value: float | int | bool, other: Value) -> Value: ...

    def cast(self, x: Value, dtype: str) -> Value: ...

    def sum_to(self, x: Value, dims: Sequence[Dim]) -> Value: ...

    def einsum(self, *operands: Value, dims: Sequence[Dim]) -> Value: ...

    def ordered(self, x: Value, dims: Sequence[Dim]) -> Value: ...

    def broadcast(self, x: Value, type: TensorType) -> Value: ...


@frozen
class Split:
    """A dimension that the layout splits over `axes`, and the two dimensions [blocks, inner] that it is cut into.

    `blocks` has one element for each shard, `inner` the elements of one shard.
    """

    dim: Dim
    axes: Axes
    blocks: Dim
    inner: Dim


class BlockRewriter(Protocol):
    """Cuts split dimensions into [blocks, inner] and puts them together: see `passes/spatial/position_blocks.py`."""

    @property
    def build(self) -> OpBuilder: ...

    @property
    def axes(self) -> Callable[[Equation, Dim], Axes]: ...

    @property
    def defined(self) -> Callable[[Value], Equation | None]: ...

    def split(self, eqn: Equation, dim: Dim) -> Split | None: ...

    def part(self, dim: Dim, size: int) -> Dim: ...

    def new_dim(self, name: str, size: int, axes: Axes) -> Dim: ...

    def cut(self, x: Value, split: Split) -> Value: ...

    def first(self, split: Split) -> Value: ...

    def merged(self, x: Value, blocks: Dim, inner: Dim, into: Dim) -> Value: ...

    def transposed(
        self, linear: Callable[[BlockRewriter, Value], Value], type: TensorType, y: Value
    ) -> Value: ...


Arity = tuple[int] | tuple[int, None]
Infer = Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]
Gradient = Callable[[OpBuilder, Equation, Sequence[Value]], tuple[Value | None, ...]]
Distribute = Callable[[BlockRewriter, Equation], tuple[Value, ...] | None]
Linear = Callable[[Equation], tuple[tuple[int, ...], ...]]
Text = str | Callable[[Code], str]
Storage = Literal["view", "made", "fused", "reduced", "lookup", "kernel"]
"""The memory that a compiler such as XLA uses for an op's results, and the operands that it reads.

view: no memory; readers read elements of the operand instead. made: no memory; the elements come from nothing.
fused: memory only if other ops than fused and reduced ones use the result. The rest have memory.
reduced: fused operands are computed where they are read. lookup: reads of the first operand only as many elements as the result
has. kernel: reads all operands.
"""

Trait = Literal[
    "dot", "groups", "attention", "attention_gradient", "window", "fold",
    "add", "subtract", "multiply", "divide", "negate", "square", "sum", "is_argmax",
    "cast", "stop_gradient", "exponential", "hyperbolic", "choice", "conjunction",
    "order", "above", "strict", "equality",
    "extremum", "largest", "maximum", "mask",
    "constant", "filled", "indices", "random", "training", "step_number",
    "rename", "reshape", "transpose", "broadcast", "slice", "pad", "concat", "chosen", "shift", "flip", "interleave",
    "indexes", "scatter", "in_place",
    "after", "placement", "sends", "reshard", "all_reduce", "all_gather", "reduce_scatter",
]  # fmt: skip
"""A fact about an op that code outside of `ir/ops` asks for (`has_trait`). An op may have several traits or none.

Computation:
    dot: multiplies its operands, and sums over the dimensions that the result lacks. groups: a dot of groups of rows.
    attention: takes a softmax between two dots. Loops keep its results for their gradients, ops with `attention_gradient`.
    window: gives the sliding windows of a dimension. fold: adds up the elements of windows, the transpose of `window`.
    add, subtract, multiply, divide: the sum, difference, product or quotient of two operands, element by element.
    negate: minus x. square: x times x.
    sum: adds up the elements along dimensions.
    exponential, hyperbolic: exp and tanh, element by element. choice: of its second and third operand by the first.
    conjunction: true where both operands are. order: compares two numbers by order; above: true if the first is larger; strict:
    false for equal ones. equality: true for equal ones.
    extremum: the largest or the smallest element along dimensions. largest: the largest.
    mask: its second operand where the first holds, else 0.
    is_argmax: marks the largest elements, so its result is as large as its operand.
    cast: converts to another dtype. stop_gradient: gives its operand, as a constant for differentiation.
Creation:
    constant: a scalar that is written in the program. filled: all elements equal the attribute `value`.
    indices: 0, 1, 2, ... along a dimension. random: draws random numbers. training: the flag that passes bind.
    step_number: the number of the training step.
Dimensions and positions:
    rename: gives dimensions other names. reshape: splits and merges dimensions. transpose: stores dimensions in another order.
    broadcast: repeats along new dimensions.
    slice: takes part of a dimension. pad: the transpose of a slice, with a constant. concat: joins tensors along a dimension.
    chosen: takes the largest elements along a dimension.
    shift: moves elements along a dimension, between processors where each has one element.
    flip: reverses a dimension, between processors where each has one element.
    interleave: deals elements out in turn, between processors where each has one element of a dimension.
    after: gives its first operand, not before the second is known.
    indexes: an operand has indices into the dimension of the attribute `dim`. scatter: writes where indices point.
    in_place: overwrites its first operand there.
Placement:
    placement: changes where the parts of a tensor are, not its elements (a lowered `shift`, `flip` or `interleave` counts too).
    sends: sends data between processors. reshard: says which placement is wanted, not how to get there.
    all_reduce: completes pending reductions on all processors. all_gather: joins the shards of a dimension.
    reduce_scatter: completes pending sums, and splits a dimension.
"""


@frozen
class SameAs:
    """The result equals an operand, up to its dimensions."""

    operand: int


Logic = Callable[[Sequence[bool | None]], "bool | SameAs | None"]
"""(for each operand: True or False if all of its elements are, else None) -> the same of the result, or the operand it equals."""


def not_linear(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    return ()


@frozen(kw_only=True)
class OpDef:
    """One op.

    arity: the number of operands, or the smallest number followed by None.
    attributes: the attributes, with the kind of each. `infer` relies on arity and kinds, and refuses all other mistakes.
    infer: type rule on global types; raises `OpError`.
    place: type rule on split types: (this record, equation, mesh) -> the results' types; None if they follow from its layout.
    layout_rule: the roles of its dimensions.
    distribute: computes the same results shard by shard, where the layout splits a dimension whose positions the op mixes. None
        if the op mixes no positions, or nothing beats gathering the dimension.
    linear: groups of operands; a pending sum in all operands of one group passes through to the result.
    gradient: cotangents of the operands from those of the results, in terms of other ops; None for an operand without one.
    flops: floating-point operations of one execution on one processor.
    storage: its use of memory: see `Storage`.
    traits: the facts about it that code outside of `ir/ops` asks for: see `Trait`.
    evaluate: its meaning, on NumPy arrays in storage order: (shard, arrays) -> the result's array.
    numpy, jax: a template over aligned operands (`np.exp({0})`), or a function from `Code` to text. By default JAX has the text
        of NumPy, with functions of `jnp`.
    jax_differentiated: the JAX text where `jax.grad` goes through the op, if JAX's own derivative differs from `gradient`.
    logic: what follows for the result from operands whose elements are all true, or all false; None if nothing does.
    number: its value for Python numbers, for calls that the front end evaluates; None if it only takes tensors.
    doc: one sentence for the language reference.
    """

    name: str
    arity: Arity
    attributes: Stated = ()
    infer: Infer
    place: Callable[[OpDef, Equation, Mesh], tuple[TensorType, ...]] | None = None
    layout_rule: Callable[[Equation], LayoutRule]
    distribute: Distribute | None = None
    linear: Linear = not_linear
    gradient: Gradient
    flops: Callable[[Equation, Sizes], Any]
    storage: Storage
    traits: frozenset[Trait] = frozenset()
    evaluate: Callable[..., Any]
    numpy: Text
    jax: Text = attrs.field()
    jax_differentiated: Text | None = None
    logic: Logic | None = None
    number: Callable[..., float] | None = None
    doc: str

    @jax.default
    def _text_of_numpy(self) -> Text:
        text = self.numpy
        return in_jax(text) if isinstance(text, str) else lambda code: in_jax(text(code))


_NUMPY = re.compile(r'("[^"]*")|\bnp\.')


def in_jax(text: str) -> str:
    """Return Python text with functions of `jax.numpy` in the place of NumPy's. Strings in quotes stay as they are."""
    return _NUMPY.sub(lambda match: match[1] or "jnp.", text)


def form_error(opdef: OpDef, operands: int, attributes: Mapping[str, object]) -> str | None:
    """Return why an equation with this number of operands and these attributes is malformed, or None."""
    least = opdef.arity[0]
    if operands < least or (len(opdef.arity) == 1 and operands > least):
        wanted = f"{least} or more" if len(opdef.arity) == 2 else str(least)
        return f"{opdef.name}: the number of operands is {operands}, and must be {wanted}"
    wrong = kinds_error(attributes, opdef.attributes)
    return wrong and f"{opdef.name}: {wrong}"


def no_gradient(builder: OpBuilder, eqn: Equation, cotangents: Sequence[Value]) -> tuple[None, ...]:
    """Gradient rule of ops that are constant almost everywhere."""
    return (None,) * len(eqn.operands)


def linear_in_first(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    return ((0,),)


def linear_in_each(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Multilinear, as a multiplication is."""
    return tuple((i,) for i in range(len(eqn.operands)))


def linear_in_all(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Linear in all operands jointly, as an addition is."""
    return (tuple(range(len(eqn.operands))),)


def rule_by_name(eqn: Equation) -> LayoutRule:
    return BY_NAME


def no_flops(eqn: Equation, sizes: Sizes) -> int:
    """FLOPs of ops that only move or make data."""
    return 0


def flops_per_result(eqn: Equation, sizes: Sizes) -> Any:
    return sizes.elements(eqn.result.type)


def flops_per_operand(eqn: Equation, sizes: Sizes) -> Any:
    return sizes.elements(eqn.operands[0].type)


# Collectives


@frozen
class ReshardGoal:
    """The changes that a chain of collectives may make to a type.

    runs: for each dimension, the runs of mesh axes that may be added to its split.
    pending: the mesh axes over which a `reduction` must be pending in the end.
    """

    runs: Sequence[Sequence[Axes]]
    pending: Axes
    reduction: str

    def completable(self, type: TensorType) -> Axes:
        """Return the pending axes of `type` that the goal does not keep pending."""
        kept = self.pending if type.reduction == self.reduction else ()
        return tuple(axis for axis in type.pending if axis not in kept)

    def additions(self, type: TensorType, mesh: Mesh) -> Iterator[tuple[int, Axes]]:
        """Yield the runs that may still be added, each with the position of its dimension."""
        for i, runs in enumerate(self.runs):
            for run in runs:
                axes = (*type.splits[i], *run)
                if not set(run) & set(type.splits[i]) and type.dims[i].size % mesh.size(axes) == 0:
                    yield i, run


Edge = tuple[tuple[tuple[str, Attr], ...], TensorType]
"""The attributes of a collective, and the type after it."""

Edges = Callable[[TensorType, ReshardGoal, Mesh], Iterator[Edge]]

Pattern = Literal["ring", "exchange", "permutation"]
"""The pattern in which data travels on a link; `cost/topology.py` has the time of each pattern.

ring: parts of the array go around a ring of all members. exchange: each member sends another part to each other member.
permutation: each member sends its whole operand to one other member.
"""


def ring_share(whole: float, members: int, inner: int) -> float:
    """Return the bytes that a device sends in one round of a ring, if each part visits all other members."""
    return whole * (members - 1) / (members * inner)


@frozen(kw_only=True)
class Sending:
    """The cost of a collective that sends data.

    kind: the name in reports and `hardware` declarations: the collective's own, or that of another one with equal costs.
    ring_bytes: number of processors in a group -> bytes that one sends for each byte of its operand, by a ring algorithm. The
        number can be an integer, an exact fraction or a formula.
    operand: `part` if the operands of a group together are the whole array, `whole` if each operand is as large as the array.
    pattern: the way of data on a link.
    rounds: the number of times that data goes around a ring.
    round_bytes: (bytes of the whole array, members of the ring, devices of each member) -> bytes that a device sends in a round.
    hlo: the HLO opcode that XLA compiles it to.
    """

    kind: str
    ring_bytes: Callable[[Any], Any]
    operand: Literal["part", "whole"]
    pattern: Pattern
    rounds: int = 1
    round_bytes: Callable[[float, int, int], float] = ring_share
    hlo: str

    def whole_bytes(self, local_bytes: float, members: int) -> float:
        """Return the bytes of the whole array, from those of one processor's operand."""
        return local_bytes * members if self.operand == "part" else local_bytes


OVER_AXES = Attribute("axes", AXES)


def same_types(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Infer the types of an op that changes placements only. The dimensions that attributes name must be the operands'."""
    named = [value for value in attributes.values() if isinstance(value, Dim)]
    for dim in named:
        if any(dim not in type.dims for type in types):
            raise OpError(f"an operand lacks dimension `{dim.name}`")
    if len(set(named)) != len(named):
        raise OpError(f"two attributes name dimension `{named[0].name}`")
    return tuple(types)


def same_arrays(shard: Shard, *arrays: Any) -> Any:
    """Evaluate an op that changes placements only: whole tensors stay as they are."""
    return arrays if len(arrays) > 1 else arrays[0]


@frozen(kw_only=True)
class CollectiveDef:
    """One collective.

    name, doc: the op's name, and one sentence for the language reference.
    arity, attributes: as in `OpDef`; by default one operand, and the axes with the dimensions of `joins` and `splits`.
    place: type rule on split types, as in `OpDef`.
    sending: its cost; None if it sends nothing.
    messages: the number of collectives that an equation is, and of equal parts of the operand: each collective sends one part.
    edges: (type before, goal, mesh) -> the single steps from that type that may lead to the goal; None if the reshard planner
        does not use it.
    priority: the planner's choice among chains that cost the same: those whose steps have lower numbers.
    joins, splits: the attribute that names the dimension that loses or gets the communicated axes; None if there is none.
    traits: further traits of the op, beside `placement` and `sends`.
    infer: type rule on global types; by default the results have the operands' types.
    evaluate: the result on whole tensors.
    numpy, jax: the op's text in each backend; functions that it calls by bare names are in the backend's `prelude.py`.
    """

    name: str
    doc: str
    place: Callable[[OpDef, Equation, Mesh], tuple[TensorType, ...]]
    sending: Sending | None
    messages: Callable[[Equation], tuple[int, int]] = lambda eqn: (1, 1)
    edges: Edges | None
    priority: int = 0
    joins: str | None = None
    splits: str | None = None
    traits: frozenset[Trait] = frozenset()
    infer: Infer = same_types
    evaluate: Callable[..., Any] = same_arrays
    numpy: Text
    jax: Text
    arity: Arity = (1,)
    attributes: Stated = attrs.field()

    @attributes.default
    def _axes_and_dims(self) -> Stated:
        return (*(Attribute(name, DIM) for name in (self.joins, self.splits) if name), OVER_AXES)

    @property
    def opdef(self) -> OpDef:
        """The collective as an op."""
        sends: frozenset[Trait] = frozenset({"sends"} if self.sending else ())
        moves_data = self.sending is not None or "reshard" in self.traits
        return OpDef(
            name=self.name,
            arity=self.arity,
            attributes=self.attributes,
            infer=self.infer,
            place=self.place,
            layout_rule=lambda eqn: BY_NAME,
            linear=linear_in_all,
            gradient=no_gradient,
            flops=no_flops,
            storage="kernel" if moves_data else "view",
            traits=frozenset({"placement", *self.traits, *sends}),
            evaluate=self.evaluate,
            numpy=self.numpy,
            jax=self.jax,
            doc=self.doc,
        )


@frozen
class ReshardStep:
    """One collective of a chain, and the types before and after it."""

    collective: CollectiveDef
    attrs: tuple[tuple[str, Attr], ...]
    before: TensorType
    after: TensorType

    @property
    def op(self) -> str:
        return self.collective.name

    @property
    def axes(self) -> Axes:
        return OVER_AXES.of(dict(self.attrs))

    @property
    def split_dim(self) -> Attr | None:
        """The dimension that the step splits over its axes; None if it splits none."""
        return dict(self.attrs)[self.collective.splits] if self.collective.splits else None

    def bytes_sent(self, mesh: Mesh) -> float:
        """Return the bytes that one processor sends, by a ring algorithm."""
        sending = self.collective.sending
        factor = float(sending.ring_bytes(mesh.size(self.axes))) if sending else 0.0
        return self.before.local_bytes(mesh) * factor
