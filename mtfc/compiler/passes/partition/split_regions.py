"""split-regions: run equations between two sums over a mesh axis on parts, where that costs less.

A layout that splits heads and hidden units over an axis leaves the axis idle between them: after the all-reduce of a layer's
result, every processor along the axis normalizes, drops out and adds the same numbers. This pass splits one more dimension there,
such as the batch or the length (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
section 4.2.2). The all-reduce becomes a reduce-scatter, and an all-gather stands before the next equation that needs the whole
value. Both send the bytes of the all-reduce. The equations between them compute a part, and store a part for the backward pass.

An axis is in question if a sum over it is pending whose terms differ in a dimension of parameters. For each dimension that may be
split, a minimum cut labels every equation, carry and output of a loop:

- 0, pending: a sum over the axis stays pending in the result, as `place-reductions` will decide again.
- 1, parts: the axis splits the dimension.
- 2, whole: the axis does not split the result.

A value with a smaller label than one of its uses needs costs an all-gather or a reduce-scatter for each step between. Equations
with another label than 1 cost time for the part of their work that others do too. A stack that a loop stores costs the time to
write and read it. All costs are in bytes that a processor sends in the same time: of `balance` FLOPs, or of `traffic` bytes of
memory traffic. The pass takes the first dimension that saves nearly most, if it saves `least` bytes or more.

With `form=time` a value that is gathered in the forward pass is stored whole, if the backward pass needs it whole. With
`form=memory` a part is stored and gathered again. With `form=layout` the layout's `forms` say which, or that nothing is split.

Input:   %y: f32[batch, io] = einsum %h, %w layout {hidden: cols}; %z: f32[batch, io] = add %x, %y layout {}
Output:  %y: f32[batch, io] = einsum %h, %w layout {hidden: cols}; %z: f32[batch, io] = add %x, %y layout {batch: cols}
After this pass no single dimension, split over one more axis in any set of equations, would cost less; types are still global.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, Arc, Node, minimum_cut
from mtfc.compiler.analysis.pending_values import may_be_pending
from mtfc.compiler.analysis.reshard_plans import needed_type
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.builder import with_layouts
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value, walk
from mtfc.compiler.ir.loops import dim_of, map_regions, outputs_of, pairs, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.sharding_rules import OperandGroup, leaves_sums, own_axes, passing_groups
from mtfc.compiler.ir.types import REGIONS, Axes, Dim, Mesh, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.partition.propagate_layouts import fixed
from mtfc.compiler.passes.pass_base import Pass, one_of
from mtfc.compiler.records import frozen

FORMS = ("layout", *REGIONS)

PENDING, PARTS, WHOLE = 0, 1, 2

NEARLY = 0.9
"""The share of the largest saving for which an earlier dimension is taken: its parts lie together in memory."""

EQUATIONS = 64
"""Equations that must save the time in which a collective starts, so that equations on few numbers are left alone."""

STORED = 4
"""Bytes sent that a stored byte costs with `form=memory`: more than it takes to gather the byte again."""

Place = Equation | Argument | Output
"""A node with a label: an equation, an argument of a loop's region (for a carry also its output), or an output of it."""


@frozen
class SplitRegions(Pass):
    """The pass. Costs are bytes sent in the same time.

    form: what is stored of a gathered value, see above. balance: FLOPs for a byte sent. traffic: bytes of memory traffic for a
    byte sent. start: the cost of starting a collective. least: the least saving for which a dimension is split.
    """

    name: ClassVar[str] = "split-regions"
    takes: ClassVar[tuple[Level, ...]] = ("assigned",)
    form: str = attrs.field(default="layout", validator=one_of(FORMS))
    balance: int = 4096
    traffic: int = 5
    start: int = 1 << 15
    least: int = 1 << 20

    def run(self, program: Program) -> Program:
        """Return the program with split regions, if the pass or the layout's forms ask for them."""
        form = program.layout.forms.regions if self.form == "layout" and program.layout else self.form
        if form not in ("time", "memory"):
            return program
        chosen, named = attrs.evolve(self, form=form), program.named_values
        return program.map_functions(lambda function: chosen._split(function, program.placed_on, named))

    def _split(self, function: Function, mesh: Mesh, named: set[str]) -> Function:
        """Split, for each axis, the first dimension of a function that saves nearly as many bytes as the best one."""
        for axis, _ in (each for each in mesh.axes if each[1] > 1):
            dims = candidates(function, axis)
            facts = AxisFacts(function, axis, mesh, named, self)
            cuts = [RegionCut.of(function, dim, facts) for dim in dims]
            most_saved = max((cut.saved for cut in cuts), default=0.0)
            chosen = next((cut for cut in cuts if cut.split and cut.saved >= NEARLY * most_saved), None)
            if chosen is not None and chosen.saved >= self.least:
                function = chosen.applied(function)
        return function


def candidates(function: Function, axis: str) -> tuple[Dim, ...]:
    """Return the dimensions that the axis may split between two sums over it, in the order of their first use.

    These are dimensions of the results of sums over a split dimension of a parameter. Dimensions that only parameters have are
    left out: so a gradient of a parameter, which has no others, is no candidate.
    """
    of_parameters, of_inputs = (
        {dim for a in function.arguments if a.role == role for dim in a.value.type.dims}
        for role in ("parameter", "input")
    )
    found: dict[Dim, None] = {}
    for eqn in walk(function.body):
        if not eqn.regions and of_parameters.intersection(_summed_over(eqn, axis)):
            found.update(dict.fromkeys(dim for value in eqn.results for dim in value.type.dims))
    return tuple(dim for dim in found if dim in of_inputs or dim not in of_parameters)


def _summed_over(eqn: Equation, axis: str) -> Iterator[Dim]:
    """Yield the dimensions that the axis splits and over which the equation leaves a sum pending."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if leaves_sums(rule):
        yield from (dim for dim in rule.reduced if axis in (eqn.layout or {}).get(dim.name, ()))


@frozen
class RegionCut:
    """The labels of all places for one axis and dimension. split: the places on parts. saved: bytes, beside no such places."""

    axis: str
    dim: str
    split: Set[Place]
    saved: float

    @classmethod
    def of(cls, function: Function, dim: Dim, facts: AxisFacts) -> RegionCut:
        """Return the cheapest cut of a function along a dimension, and the seconds that it saves over splitting nothing."""
        network = RegionNetwork(dim, facts)
        network.function(function)
        before, _ = network.cheapest(may_split=False)
        after, split = network.cheapest(may_split=True)
        return cls(facts.axis, dim.name, split, before - after)

    def applied(self, function: Function) -> Function:
        """Return the function, or a loop's region, with the layouts of the places on parts."""
        carries = {a.value.name for a in function.arguments if a.role == "carried" and a in self.split}

        def layout(place: Place) -> Mapping[str, Axes] | None:
            is_split = place in self.split or (isinstance(place, Output) and place.updates in carries)
            return more_split(place, self.dim, self.axis) if is_split else place.layout

        def placed(eqn: Equation) -> Equation:
            return map_regions(attrs.evolve(eqn, layout=layout(eqn)), self.applied)

        return with_layouts(function, layout, placed)


def more_split(place: Place, dim: str, axis: str) -> dict[str, Axes]:
    """Return the layout of a place, with a dimension split over one more axis."""
    layout = dict(place.layout or {})
    return {**layout, dim: (*layout.get(dim, ()), axis)}


class AxisFacts:
    """The facts of one axis, which the networks of all dimensions share."""

    def __init__(
        self, function: Function, axis: str, mesh: Mesh, named: set[str], options: SplitRegions
    ) -> None:
        """Collect the facts.

        named: the names that a user can see. options: the pass. size: the devices along the axis. others: the share of them
        that are not this one. kept: the places with layouts of their own. pending: the values in which a sum over the axis
        may be pending. dims: the dimensions of each equation, those of its region included. An equation has no arcs in the
        networks of other dimensions.
        """
        self.axis, self.mesh, self.options = axis, mesh, options
        self.size = mesh.sizes[axis]
        self.others = 1 - 1 / self.size
        self.kept = fixed(function, named)
        self.pending = may_be_pending(function, axis)
        self.dims: dict[Equation, frozenset[Dim]] = {}
        self._costs: dict[Equation, float] = {}
        self._note(function.body)

    def _note(self, body: Iterable[Equation]) -> None:
        """Note the dimensions of each equation."""
        for eqn in body:
            dims = {dim for value in (*eqn.operands, *eqn.results) for dim in value.type.dims}
            for region in eqn.regions:
                self._note(region.body)
                dims |= {dim for a in region.arguments for dim in a.value.type.dims}
                dims |= {dim for each in region.body for dim in self.dims[each]}
            self.dims[eqn] = frozenset(dims)

    def bytes(self, type: TensorType) -> int:
        """Return the bytes of a value that the axis does not split."""
        return type.local_bytes(self.mesh) * (self.size if self.axis in type.split_axes else 1)

    def cost(self, eqn: Equation) -> float:
        """Return the cost of the part of an equation's work that others do too, if it is not on parts."""
        if eqn not in self._costs:
            self._costs[eqn] = self._cost(eqn)
        return self._costs[eqn]

    def _cost(self, eqn: Equation) -> float:
        """Return the time that would be saved if an equation ran on parts, as bytes sent in that time."""
        operands = (Value(v.name, needed_type(eqn, i)) for i, v in enumerate(eqn.operands))
        results = tuple(Value(v.name, v.type.split_by(eqn.layout or {})) for v in eqn.results)
        placed = attrs.evolve(eqn, operands=tuple(operands), results=results)
        flops = float(OPS[eqn.op].flops(placed, Numbers(self.mesh)))
        written = sum(self.bytes(value.type) for value in results) if flops else 0
        return self.others * max(flops / self.options.balance, written / self.options.traffic)


class RegionNetwork:
    """The arcs of one function. Node (place, k) is on the source's side if the label of the place is below k.

    Node (value, k) is there if no use needs a label of k or more.
    """

    def __init__(self, dim: Dim, facts: AxisFacts) -> None:
        """Start without arcs.

        dim: the dimension that would be split. free: places that may be on parts. makers: the place that makes each value
        with the dimension, or its label if that is known. elsewhere: values that the axis splits along another dimension.
        beside: an equation through which a sum may stay pending, and the operands with the dimension that must be whole then.
        """
        self.dim, self.facts = dim, facts
        self.axis, self.mesh, self.options = facts.axis, facts.mesh, facts.options
        self.arcs: list[Arc] = []
        self.free: dict[Place, None] = {}
        self.makers: dict[Value, Place | int] = {}
        self.elsewhere: set[Value] = set()
        self.beside: dict[Equation, list[Value]] = {}

    def cheapest(self, may_split: bool) -> tuple[float, set[Place]]:
        """Return the cost of a minimum cut, and the free places on parts.

        A factor beside a pending one must be whole, but a cut can only ask for a part if the equation may be on parts. Where a
        cut leaves such a factor on parts, the next cut completes the sum before the equation.
        """
        more: list[Arc] = []
        if not may_split:
            more += (((each, WHOLE), (each, PARTS), INFINITE) for each in self.free)
            more += (((value, WHOLE), SINK, INFINITE) for values in self.beside.values() for value in values)
        while True:
            cost, side = minimum_cut([*self.arcs, *more])
            wrong = [
                eqn
                for eqn, values in self.beside.items()
                if (eqn, PARTS) in side and not all(self._is_whole(value, side) for value in values)
            ]
            if not (may_split and wrong):
                break
            more += (((eqn, PARTS), SINK, INFINITE) for eqn in wrong)
        return cost, {each for each in self.free if (each, WHOLE) in side and (each, PARTS) not in side}

    def _is_whole(self, value: Value, side: Set[Node]) -> bool:
        maker = self.makers[value]
        return maker == WHOLE if isinstance(maker, int) else (maker, WHOLE) not in side

    def function(self, function: Function) -> None:
        """Add the whole function."""
        for argument in function.arguments:
            self._given(argument.value, argument.value.type.split_by(argument.layout or {}))
        self._body(function.body, 1)
        for output in function.outputs:
            self._needed(output.value, output.value.type.split_by(output.layout or {}))

    def _body(self, body: Iterable[Equation], times: int) -> None:
        """Add the equations of a body that know the dimension. times: how often the body runs in a step."""
        for eqn in (each for each in body if self.dim in self.facts.dims[each]):
            if eqn.regions:
                self._loop(eqn, times)
            elif any(self.axis in axes for axes in (eqn.layout or {}).values()):
                self._split_equation(eqn, times)
            else:
                self._equation(eqn, times)

    # Labels, and what values cost

    def _label(self, place: Place, labels: Collection[int]) -> None:
        """Add a place that may have some of the labels."""
        below_parts, below_whole = (place, PARTS), (place, WHOLE)
        self.arcs.append((below_parts, below_whole, INFINITE))
        if PENDING not in labels:
            self.arcs.append((below_parts, SINK, INFINITE))
        if PARTS not in labels:
            self.arcs.append((below_whole, below_parts, INFINITE))
        else:
            self.free[place] = None

    def _state(self, type: TensorType) -> int:
        """Return the label of a type without sums pending over the axis. A split of any dimension counts as parts."""
        return PARTS if self.axis in type.split_axes else WHOLE

    def _is_elsewhere(self, type: TensorType) -> bool:
        """Return True if the axis splits another dimension of a type with the dimension."""
        others = (axes for dim, axes in zip(type.dims, type.splits, strict=True) if dim != self.dim)
        return self.dim in type.dims and any(self.axis in axes for axes in others)

    def _has_dim(self, value: Value) -> bool:
        return self.dim in value.type.dims

    def _made(self, value: Value, type: TensorType, by: Place | int, times: int = 1) -> None:
        """Add a value; a use that needs a larger label costs a collective for each step between.

        by: the place that makes the value, or its label. times: how often the value is made in a step.
        """
        if not self._has_dim(value):
            return
        self.makers[value] = by
        sent = times * (self.facts.others * self.facts.bytes(type) + self.options.start)
        for k in (PARTS, WHOLE):
            if not isinstance(by, int):
                self.arcs.append(((by, k), (value, k), sent))
            elif by < k:
                self.arcs.append((SOURCE, (value, k), sent))

    def _given(self, value: Value, type: TensorType, times: int = 1) -> None:
        """Add a value of a known type without sums pending over the axis."""
        self._made(value, type, self._state(type), times)
        if self._is_elsewhere(type):
            self.elsewhere.add(value)

    def _use(self, value: Value, needs: Mapping[int, int], by: Place | None = None) -> None:
        """Add a use. needs: for each label that the using place may have, the label of the value that it needs.

        by: the using place; None if it has no label.
        """
        for k in (PARTS, WHOLE):
            asking = [label for label, needed in needs.items() if needed >= k]
            if asking and (by is None or len(asking) == len(needs)):
                self.arcs.append(((value, k), SINK, INFINITE))
            elif asking:
                self.arcs.append(((value, k), (by, min(asking)), INFINITE))

    def _needed(self, value: Value, type: TensorType, times: int = 1) -> None:
        """Add a use that needs a known type."""
        if self._has_dim(value):
            self._use(value, {WHOLE: self._state(type)})
            maker = self.makers[value]
            if self._is_elsewhere(type) and not isinstance(maker, int):
                self._exchanged(maker, type, times)

    def _exchanged(self, place: Place, type: TensorType, times: int) -> None:
        """Add the cost of an all-to-all, if a place is on parts."""
        sent = self.facts.others * self.facts.bytes(type) / self.facts.size + self.options.start
        self.arcs.append(((place, WHOLE), SINK, times * sent))

    # Equations

    def _split_equation(self, eqn: Equation, times: int) -> None:
        """Add an equation whose layout uses the axis: its operands and results have known types.

        times: how often the equation runs in a step.
        """
        rule = OPS[eqn.op].layout_rule(eqn)
        for i, value in enumerate(eqn.operands):
            self._needed(value, needed_type(eqn, i), times)
        for value in eqn.results:
            type = value.type.split_by(eqn.layout or {})
            if self.axis in own_axes(rule, eqn) and leaves_sums(rule):
                self._made(value, type, PENDING, times)
            else:
                self._given(value, type, times)

    def _equation(self, eqn: Equation, times: int) -> None:
        """Add an equation whose layout may or may not use the axis: arcs for its operands and results, and for its work."""
        group = self._group(eqn)
        split = attrs.evolve(eqn, layout=more_split(eqn, self.dim.name, self.axis))
        labels = {WHOLE, *((PARTS,) if self._can_split(eqn, split) else ()), *((PENDING,) if group else ())}
        self._label(eqn, labels)
        for i, value in enumerate(eqn.operands):
            if self._has_dim(value):
                on_parts = self._state(needed_type(split, i)) if PARTS in labels else WHOLE
                needs = {PENDING: PENDING if i in group else on_parts, PARTS: on_parts, WHOLE: WHOLE}
                self._use(value, {label: needs[label] for label in labels}, eqn)
                if PARTS in labels and (value in self.elsewhere or self._is_elsewhere(needed_type(split, i))):
                    self._exchanged(eqn, needed_type(eqn, i), times)
        others = [v for i, v in enumerate(eqn.operands) if i not in group and self._has_dim(v)]
        if group and others:
            self.beside[eqn] = others
        for i in group:
            maker = self.makers[eqn.operands[i]]
            if not isinstance(maker, int):
                self.arcs.append(((eqn, PARTS), (maker, PARTS), INFINITE))
        for value in eqn.results:
            self._made(value, value.type.split_by(eqn.layout or {}), eqn, times)
        if labels != {WHOLE}:
            self._work(eqn, times)

    def _can_split(self, eqn: Equation, split: Equation) -> bool:
        """Return True if an equation can run on parts. split: the equation with the layout for that."""
        rule, layout = OPS[split.op].layout_rule(split), split.layout or {}
        is_reduced = self.dim in rule.reduced
        made = [self._has_dim(value) for value in eqn.results]
        if eqn in self.facts.kept or eqn.stage == "update" or not (is_reduced or all(made)):
            return False
        if not rule.allows(self.dim, layout[self.dim.name], self.mesh) or (
            is_reduced and not leaves_sums(rule)
        ):
            return False
        is_even = self.dim.size % self.mesh.size(layout[self.dim.name]) == 0
        return is_even and rule.divides(split.operands, layout, self.mesh)

    def _group(self, eqn: Equation) -> OperandGroup:
        """Return operands with the dimension through which a sum may stay pending, or ()."""
        for group in passing_groups(OPS[eqn.op], eqn, self.axis, self.facts.pending.__contains__):
            makers = [self.makers.get(eqn.operands[i], WHOLE) for i in group]
            if all(each == PENDING or not isinstance(each, int) for each in makers):
                return group
        return ()

    def _work(self, eqn: Equation, times: int) -> None:
        """Add the cost of work that others do too, and that of completing a sum over parts."""
        cost = times * self.facts.cost(eqn)
        self.arcs.append((SOURCE, (eqn, WHOLE), cost))
        self.arcs.append(((eqn, WHOLE), (eqn, PARTS), times * self.options.start / EQUATIONS))
        self.arcs.append(((eqn, PARTS), SINK, cost))
        for value in eqn.results:
            if self.dim not in value.type.dims:
                made = value.type.split_by(eqn.layout or {})
                sent = 2 * (self.facts.others * self.facts.bytes(made) + self.options.start)
                self.arcs.append(((eqn, WHOLE), SINK, times * sent))

    # Loops

    def _loop(self, eqn: Equation, times: int) -> None:
        """Add a loop: its operands, its body, and its results.

        Ends of the body that may be on parts are places of their own.
        """
        region, inside, looped = region_of(eqn), times * dim_of(eqn).size, dim_of(eqn) == self.dim
        labels: dict[str, Place | int] = {}
        is_small = self.options.form == "memory"
        for operand, argument in pairs(eqn):
            if argument.role == "sliced" and looped:
                self._use(operand, {WHOLE: WHOLE})
                continue
            by = labels[argument.value.name] = self._end(argument, argument.value)
            type = argument.value.type.split_by(argument.layout or {})
            is_sliced = argument.role == "sliced"
            self._passed(operand, type, by, inside if is_sliced else times)
            if argument.role == "carried":
                self._stored(type, by, times / self.options.traffic)
            if is_sliced and self._has_dim(operand):
                self._sliced(operand, by, type, inside)
            self._made(argument.value, type, by, inside)
        self._body(region.body, inside)
        for result, output in outputs_of(eqn):
            by = labels[output.updates] if output.updates else self._end(output, output.value)
            type = output.value.type.split_by(output.layout or {})
            self._passed(output.value, type, by, inside)
            if not output.updates:
                self._stored(type, by, inside * (STORED if is_small else 2 / self.options.traffic))
            self._made(result, result.type.split_by(output.layout or {}), WHOLE if looped else by, times)

    def _end(self, end: Argument | Output, value: Value) -> Place | int:
        """Add an argument or output of a region as a place, if it may be on parts; or else return its label."""
        layout = more_split(end, self.dim.name, self.axis)
        is_split = any(self.axis in axes for axes in (end.layout or {}).values())
        divides = self.dim.size % self.mesh.size(layout[self.dim.name]) == 0
        if not self._has_dim(value) or is_split or not divides or end in self.facts.kept:
            return self._state(value.type.split_by(end.layout or {}))
        self._label(end, (PARTS, WHOLE))
        return end

    def _passed(self, value: Value, type: TensorType, to: Place | int, times: int) -> None:
        """Add the use of a value by the end of a region. to: the end of the region, or its label."""
        if isinstance(to, int):
            self._needed(value, type, times)
        elif self._has_dim(value):
            self._use(value, {PARTS: PARTS, WHOLE: WHOLE}, to)
            if value in self.elsewhere:
                self._exchanged(to, type, times)

    def _sliced(self, stack: Value, by: Place | int, type: TensorType, times: int) -> None:
        """Keep the slices as the stack is, which would otherwise be gathered at once, or split as a whole.

        by: the place of the slices, or its label. times: how often a slice is read in a step.
        """
        maker = self.makers[stack]
        if isinstance(by, int) or maker == PENDING:
            return
        if not isinstance(maker, int):
            self.arcs.append(((maker, WHOLE), (by, WHOLE), float(times * self.facts.bytes(type))))
            self.arcs.append(((by, WHOLE), (maker, WHOLE), INFINITE))
        elif maker == WHOLE:
            self.arcs.append(((by, WHOLE), SINK, INFINITE))

    def _stored(self, type: TensorType, by: Place | int, each: float) -> None:
        """Add the cost of the bytes that a processor stores of a carry, or of a stack, that is whole."""
        if not isinstance(by, int):
            self.arcs.append((SOURCE, (by, WHOLE), each * self.facts.others * self.facts.bytes(type)))
