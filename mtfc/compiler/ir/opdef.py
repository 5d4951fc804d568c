"""`OpDef`: everything the compiler knows about one op, in one frozen record without defaults.

No pass, backend or analysis asks for the name of an op; each reads one column, or asks for a trait. A forgotten column fails at import. The
columns speak of *global* types; how a split or pending operand behaves follows from `layout_rule` and `linear`, which reduce
an op to facts about its dimensions, so that one algorithm lays out all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

from mtfc.compiler.ir.core import Attr, Equation, Value
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType

if TYPE_CHECKING:
    from mtfc.compiler.ir.builder import Builder
    from mtfc.compiler.passes.spatial.position_blocks import Blocks

Attrs = Mapping[str, Attr]


class OpError(Exception):
    """An op's type rule refuses its operands: what is wrong, and what to do about it."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.message, self.help = message, help


class DimsError(OpError):
    """The operands of a component-wise op cannot be broadcast against each other."""


class DTypeError(OpError):
    """The operands' dtypes differ, or the op does not take them."""


@attrs.frozen
class Bridge:
    """Two dimensions, of an operand and of the result, that an op needs whole unless both are split alike: then its `distribute`
    rule has the shards do it together.

    share: at least which part of the elements the op looks at. is_local: whether no shard ever needs another's.
    """

    source: str
    target: str
    share: float
    is_local: bool


@attrs.frozen
class LayoutRule:
    """How an op's dimensions behave when they are split; the rest follows from their names.

    The iteration space of an equation has the dimensions of its result and those reduced away.

    index: dimension of an operand -> dimension of the iteration space that runs along it, where the names differ; None where
        every processor needs all of it (an op that mixes positions).
    whole: dimensions of the result that cannot be computed in parts.
    single: dimensions of the result that can be split only into single elements, one for each processor.
    reduced: dimensions summed (or maximised ...) away: splitting one leaves a reduction pending over its axes.
    bridge: of those that are needed whole, the two that are not where they are split alike.
    """

    index: Mapping[str, str | None] = attrs.field(factory=dict)
    whole: frozenset[str] = frozenset()
    single: frozenset[str] = frozenset()
    reduced: tuple[Dim, ...] = ()
    reduction: str = "sum"
    bridge: Bridge | None = None

    def operand_axes(self, dim: str, layout: Mapping[str, Axes]) -> Axes:
        """The axes that must split dimension `dim` of an operand for the equation to run under `layout`."""
        iteration = self.index.get(dim, dim)
        return () if iteration is None else layout.get(iteration, ())

    def allows(self, dim: Dim, axes: Axes, mesh: Mesh) -> bool:
        """Whether dimension `dim` of the result can be split over `axes`, as far as the op is concerned."""
        if not axes or (dim.name in self.single and dim.size == mesh.size(axes)):
            return True
        return dim.name not in self.whole | self.single


BY_NAME = LayoutRule()
"""The rule of ops whose dimensions all keep their names: component-wise ones, for example."""


class Sizes(Protocol):
    """How large things are on one processor: integers, or formulas in the file's own names."""

    def dim(self, dim: Dim, axes: Axes) -> Any:
        """Size of a shard of `dim` split over `axes`."""

    def elements(self, type: TensorType) -> Any:
        """Elements of one processor's array."""


@attrs.frozen
class Shard:
    """What an op sees when it is evaluated on one processor.

    shape: the shape of this processor's part of the (first) result. offset: dimension of a result or operand -> first index
    here. random: the functions that draw random numbers.
    """

    np: Any
    random: Any
    eqn: Equation
    shape: tuple[int, ...]
    offset: Callable[[str], int]


@attrs.frozen
class Code:
    """What an op's text is made from, in either backend.

    args: the operands as expressions, each a name or a literal. aligned: the same, transposed and with axes inserted so that
    they broadcast in the result's dimension order. sizes: this processor's shape of the result. shape: the same as text,
    with what the backend puts in front of it, e.g. `(1, 1, 8, 256)`. axis: (operand number, dimension) -> the array axis,
    counted from the end (negative). offset: (dimension of a result or operand, rank) -> expression for its first index
    here, which broadcasts against arrays with so many dimensions; empty where that is 0. dtype: the result's element type,
    e.g. `np.float32`.
    """

    eqn: Equation
    args: tuple[str, ...]
    aligned: tuple[str, ...]
    sizes: tuple[int, ...]
    shape: str
    axis: Callable[[int, str], int]
    offset: Callable[[str, int], str]
    dtype: str


Infer = Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]
Gradient = Callable[["Builder", Equation, Sequence[Value]], tuple[Value | None, ...]]
Distribute = Callable[["Blocks", Equation], tuple[Value, ...] | None]
Text = str | Callable[[Code], str]
Storage = Literal["view", "made", "fused", "reduced", "lookup", "kernel"]
"""What a compiler such as XLA keeps in memory of an op's results, and reads of its operands.

view: nothing, as elements of the operand are read in their place. made: nothing, as they come from nothing. fused: what others
than fused and reduced ops use. The rest is stored. reduced: fused operands are computed where they are read. lookup: of the first
operand no more is read than the result has. kernel: all operands are read.
"""


Trait = Literal[
    "dot", "window", "fold", "add", "multiply", "sum", "is_argmax", "cast", "stop_gradient",
    "constant", "filled", "random", "training", "step_number",
    "rename", "reshape", "broadcast", "slice", "shift", "indexes", "scatter",
    "placement", "sends", "reshard", "all_reduce", "all_gather",
]  # fmt: skip
"""A fact about an op that code outside of `ir/ops` asks for (`has_trait`). An op may have several traits or none.

Computation:
    dot: multiplies its operands, and sums over the dimensions that the result lacks.
    window: gives the sliding windows of a dimension. fold: adds up the elements of windows, the transpose of `window`.
    add, multiply: the sum or product of two operands, element by element. sum: adds up the elements along dimensions.
    is_argmax: marks the largest elements, so its result is as large as its operand.
    cast: converts to another dtype. stop_gradient: gives its operand, as a constant for differentiation.
Creation:
    constant: a scalar that is written in the program. filled: all elements equal the attribute `value`.
    random: draws random numbers. training: the flag that passes bind. step_number: the number of the training step.
Dimensions and positions:
    rename: gives dimensions other names. reshape: splits and merges dimensions. broadcast: repeats along new dimensions.
    slice: takes part of a dimension. shift: moves elements along a dimension, between processors where each has one element.
    indexes: an operand has indices into the dimension of the attribute `dim`. scatter: writes where indices point.
Placement:
    placement: changes where the parts of a tensor are, not its elements (shift_shards, which is a lowered `shift`, counts too).
    sends: sends data between processors. reshard: says which placement is wanted, not how to get there.
    all_reduce: completes pending reductions on all processors. all_gather: joins the shards of a dimension.
"""


@attrs.frozen(kw_only=True)
class OpDef:
    """One op.

    infer: type rule on global types; raises `OpError`.
    place: type rule on split types: (this record, equation, mesh) -> the results' types.
    layout_rule: its dimensions' roles.
    distribute: the same results by equations that work on each shard of a dimension that the op mixes the positions of, and on
        what the shards have to tell each other; None where the op mixes none, or cannot do better than to gather the dimension.
    linear: groups of operands; a pending sum in all operands of one group passes through to the result.
    gradient: cotangents of the operands from those of the results, in terms of other ops; None where there is none.
    flops: floating-point operations of one execution on one processor.
    storage: what of it is in memory: see `Storage`.
    traits: the facts about it that code outside of `ir/ops` asks for: see `Trait`.
    evaluate: the meaning, on NumPy arrays in storage order: (shard, arrays) -> the result's array.
    numpy, jax: a template over aligned operands (`np.exp({0})`), or a function from `Code` to text.
    jax_differentiated: the JAX text where `jax.grad` goes through the op, if JAX's own derivative differs from `gradient`.
    doc: one sentence for the language reference.
    """

    name: str
    infer: Infer
    place: Callable[[OpDef, Equation, Mesh], tuple[TensorType, ...]]
    layout_rule: Callable[[Equation], LayoutRule]
    distribute: Distribute | None
    linear: Callable[[Equation], tuple[tuple[int, ...], ...]]
    gradient: Gradient
    flops: Callable[[Equation, Sizes], Any]
    storage: Storage
    traits: frozenset[Trait]
    evaluate: Callable[..., Any]
    numpy: Text
    jax: Text
    jax_differentiated: Text | None
    doc: str


NO_TRAITS: frozenset[Trait] = frozenset()


def no_gradient(builder: Builder, eqn: Equation, cotangents: Sequence[Value]) -> tuple[None, ...]:
    """Gradient rule of ops that are constant almost everywhere."""
    return (None,) * len(eqn.operands)


def not_linear(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    return ()


def linear_in_first(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    return ((0,),)


def linear_in_each(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Multilinear: a product, for example."""
    return tuple((i,) for i in range(len(eqn.operands)))


def linear_in_all(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Linear in all operands jointly: a sum, for example."""
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
