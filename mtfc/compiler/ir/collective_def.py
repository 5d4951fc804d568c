"""`CollectiveDef`: everything the compiler knows about one collective, in one frozen record.

The reshard planner, the cost model, the reports, `hardware` declarations, the reader of HLO and both backends read columns of the
record. The records themselves are in `ops/collectives.py`; each is also an op, `opdef`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import attrs

from mtfc.compiler.ir.attributes import AXES, DIM, Attribute, Stated
from mtfc.compiler.ir.core import Attr, Equation
from mtfc.compiler.ir.opdef import (
    BY_NAME,
    Arity,
    Attrs,
    Infer,
    OpDef,
    OpError,
    Shard,
    Text,
    Trait,
    linear_in_all,
    no_flops,
    no_gradient,
)
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType
from mtfc.compiler.records import frozen


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
