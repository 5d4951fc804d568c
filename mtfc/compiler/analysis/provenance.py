"""Provenance of collectives: the rules of the layout that lead to each collective, and the source lines involved.

A sum is pending because an equation sums over a dimension that a rule splits. The search for this equation goes back from the
collective, through every equation that passes the pending sum on. Data is gathered or exchanged because a rule splits a dimension
where the value is made or stored, and the use has this dimension whole or split differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.analysis.equation_names import YIELDED, Place, numbered
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Argument, Equation, Function, Stage, Value
from mtfc.compiler.ir.loops import ROLES, executed, operand_owner, outputs_of, pairs, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.collectives import axes_of, collective_of, kind_of, operand_dims
from mtfc.compiler.ir.types import EVERY, Axes, Dim, Layout, Mesh, Rules

REDUCES = {"sum": "sums over", "max": "takes the maximum over", "min": "takes the minimum over"}

STORED = {"parameter": ("params", ""), "state": ("optimizer", "params", "")}
"""The sections of a layout that say how an argument of a role is stored."""


@attrs.frozen(order=True)
class AppliedRule:
    """A rule of the layout for all values, for a section, or for a single value.

    is_written: False if no rule names the dimension, and the compiler has split it as an operand or a use is split.
    """

    section: str
    dim: str
    axes: Axes
    is_written: bool = True

    def __str__(self) -> str:
        """Return the rule as a layout has it, such as `params: { io: rows }`; without a rule, which dimension follows others."""
        if not self.is_written:
            return f"{self.dim} follows others"
        axes = self.axes[0] if len(self.axes) == 1 else f"({', '.join(self.axes)})"
        rule = f"{self.dim}: {axes}"
        return f"{self.section}: {{ {rule} }}" if self.section else rule


@attrs.frozen
class CollectiveCause:
    """A rule, the line where it takes effect, and its effect there in words, such as `sums over batch`.

    what: the effect in words.
    """

    rule: AppliedRule
    span: Span | None
    what: str


@attrs.frozen
class SentArray:
    """One array that a collective sends.

    bytes: bytes of the array on one processor, summed over all sends in a step.
    times: how often the array is sent in a step.
    span, stage: the equation that the collective is charged to.
    used: the line of the first use in an equation, if there is one.
    """

    kind: str
    axes: Axes
    bytes: int
    times: int
    span: Span | None
    stage: Stage
    causes: tuple[CollectiveCause, ...]
    used: Span | None


def sent_arrays(
    function: Function, mesh: Mesh, layout: Layout, names: Mapping[Place, str] = {}
) -> list[SentArray]:
    """Return the arrays that a lowered function sends, in order; a combined collective sends several.

    names: the names of equations in `value` rules (`names_by_place` of the function after `assign-layouts`).
    """
    tracer = _Tracer(mesh, layout, names)
    tracer.enter(function, ())
    sending = ((eqn, times) for eqn, times in executed(function.body) if has_trait(eqn, "sends"))
    return [each for eqn, times in sending for each in _sent(eqn, tracer, times)]


def _sent(eqn: Equation, tracer: _Tracer, times: int) -> Iterator[SentArray]:
    """Yield for each operand of a collective the array that is sent, and why. times: how often the collective runs."""
    for value, result in zip(eqn.operands, eqn.results, strict=True):
        owner = operand_owner(eqn, value, tracer.makers)
        yield SentArray(
            kind_of(eqn),
            axes_of(eqn),
            value.type.local_bytes(tracer.mesh) * times,
            times,
            owner.span,
            owner.stage,
            tuple(dict.fromkeys(tracer.causes(eqn, value, result))),
            tracer.used(result),
        )


@attrs.frozen
class _Tracer:
    """Follows values to their origins and uses, through loops.

    own: the `value` rule of an equation, an argument or a yielded output, by value.
    makers: the equation of each value.
    before, after: the values on the other side of a loop's edge, such as an operand and the region's argument.
    stays: output value -> the argument that it updates.
    uses: (equation, operand number) pairs of each value.
    """

    mesh: Mesh
    layout: Layout
    names: Mapping[Place, str]
    own: dict[Value, tuple[str, Rules]] = attrs.field(factory=dict)
    makers: dict[Value, Equation] = attrs.field(factory=dict)
    arguments: dict[Value, Argument] = attrs.field(factory=dict)
    before: dict[Value, list[Value]] = attrs.field(factory=dict)
    after: dict[Value, list[Value]] = attrs.field(factory=dict)
    stays: dict[Value, Value] = attrs.field(factory=dict)
    uses: dict[Value, list[tuple[Equation, int]]] = attrs.field(factory=dict)

    def enter(self, function: Function, loops: tuple[int, ...]) -> None:
        """Note the makers, names and uses of the values of a function or of a loop's body.

        loops: the numbers of the loops around it.
        """
        numbers = numbered(function)
        self.arguments.update({argument.value: argument for argument in function.arguments})
        for argument in function.arguments:
            name = argument.value.name
            self._named(argument.value, (loops, name), None if argument.role in ROLES else name)
        for eqn in function.body:
            if eqn.regions:
                self._loop(eqn, (*loops, numbers[eqn]))
                continue
            self.makers.update(dict.fromkeys(eqn.results, eqn))
            for value in eqn.results:
                self._named(value, (loops, value.name), eqn.path)
            for i, value in enumerate(eqn.operands):
                self.uses.setdefault(value, []).append((eqn, i))
        kept = {argument.value.name: argument.value for argument in function.arguments}
        self.stays.update((each.value, kept[each.updates]) for each in function.outputs if each.updates)

    def _named(self, value: Value, place: Place, path: str | None) -> None:
        """Note the `value` rule for a layout target: by its own name, or else by the user's path."""
        found = (name for name in (self.names.get(place), path) if name in self.layout.value_rules)
        if (name := next(found, None)) is not None:
            self.own[value] = name, self.layout.value_rules[name]

    def _loop(self, eqn: Equation, loops: tuple[int, ...]) -> None:
        """Note what a loop passes into its body, from one iteration to the next, and out of it."""
        region = region_of(eqn)
        self.enter(region, loops)
        inside = {argument.value.name: argument.value for _, argument in pairs(eqn)}
        for operand, argument in pairs(eqn):
            self._passes(operand, argument.value)
        for result, output in outputs_of(eqn):
            self._passes(output.value, result)
            self._named(result, ((*loops, YIELDED), output.name), None)
            if output.updates:
                self._passes(output.value, inside[output.updates])

    def _passes(self, value: Value, to: Value) -> None:
        self.before.setdefault(to, []).append(value)
        self.after.setdefault(value, []).append(to)

    def causes(self, eqn: Equation, value: Value, result: Value) -> Iterator[CollectiveCause]:
        """Yield the causes of a collective for one operand and its result."""
        completed = [axis for axis in value.type.pending if axis not in result.type.pending]
        for axis in completed:
            yield from self._sums(value, axis)
        collective = collective_of(eqn)
        source = eqn.attrs.get(collective.joins) if collective.joins else None
        target = eqn.attrs.get(collective.splits) if collective.splits else None
        if has_trait(eqn, "all_gather"):
            source = operand_dims(eqn)[eqn.operands.index(value)]
        if has_trait(eqn, "reduce_scatter"):
            target = operand_dims(eqn)[eqn.operands.index(value)]
        if isinstance(source, Dim):
            yield from self._splits(value, source, axes_of(eqn))
        if isinstance(target, Dim):
            yield from self._wants(result, target, axes_of(eqn))

    def _sums(self, value: Value, axis: str) -> Iterator[CollectiveCause]:
        """Yield a cause for each equation that leaves the value's sum over the axis pending."""
        for each in self._back(value, lambda v: axis in v.type.pending):
            eqn = self.makers.get(each)
            if eqn is None or eqn.layout is None:
                continue
            rule = OPS[eqn.op].layout_rule(eqn)
            for dim in rule.reduced:
                if axis in eqn.layout.get(dim.name, ()):
                    by = self._rule(eqn, dim.name, eqn.layout[dim.name])
                    yield CollectiveCause(by, eqn.span, f"{REDUCES[rule.reduction]} {dim.name}")

    def _splits(self, value: Value, dim: Dim, axes: Axes) -> Iterator[CollectiveCause]:
        """Yield the rule that splits a dimension of a value where it is made or stored."""
        origins = [*self._copied(value)]
        placed = next((v for v in origins if self._own_rule(v, dim.name, axes)), None)
        stored = placed or next((v for v in origins if self._is_stored_split(v, dim, axes)), None)
        own = self._own_rule(placed, dim.name, axes) if placed else None
        if stored is not None and self._role(stored) in STORED:
            argument = self.arguments[stored]
            rule = own or self._find(dim.name, axes, STORED[argument.role])
            yield CollectiveCause(rule, argument.span, f"stores {dim.name} in parts")
            return
        nearest = [placed, *origins] if placed else origins
        makers = (self.makers[v] for v in nearest if v in self.makers)
        made = next((eqn for eqn in makers if not has_trait(eqn, "placement")), None)
        rule = own or (self._rule(made, dim.name, axes) if made else self._find(dim.name, axes, ("",)))
        yield CollectiveCause(rule, made.span if made else None, f"has {dim.name} in parts")

    def _is_stored_split(self, value: Value, dim: Dim, axes: Axes) -> bool:
        """Return whether the value is stored over the axes, and not split only on the way between two placements."""
        if self._role(value) not in STORED or dim.name not in value.type.names:
            return False
        return set(axes) <= set(value.type.axes_of(dim.name))

    def _wants(self, result: Value, dim: Dim, axes: Axes) -> Iterator[CollectiveCause]:
        """Yield the rule that splits a dimension where the value is used."""
        eqn = self._user(result)
        onward = [*self._forward(result)]
        placed = [*onward[1:], *(self.stays[v] for v in onward if v in self.stays)]
        rule = next(filter(None, (self._own_rule(v, dim.name, axes) for v in placed)), None)
        if rule is None and eqn is not None and eqn.layout is not None:
            index = {} if eqn.regions else OPS[eqn.op].layout_rule(eqn).index
            rule = self._rule(eqn, index.get(dim.name) or dim.name, axes)
        rule = rule or self._find(dim.name, axes, ("params", ""))
        yield CollectiveCause(rule, eqn.span if eqn else None, f"wants {dim.name} in parts")

    def used(self, value: Value) -> Span | None:
        eqn = self._user(value)
        return eqn.span if eqn else None

    def _user(self, value: Value) -> Equation | None:
        """Return the first equation, other than a collective, that uses a value."""
        users = (eqn for v in self._forward(value) for eqn, _ in self.uses.get(v, ()))
        return next((eqn for eqn in users if not has_trait(eqn, "placement")), None)

    def _role(self, value: Value) -> str:
        return self.arguments[value].role if value in self.arguments else ""

    def _own_rule(self, value: Value, dim: str, axes: Axes) -> AppliedRule | None:
        """Return the `value` rule of a value, if it splits the dimension over one of the axes."""
        name, rules = self.own.get(value, ("", Rules()))
        found = set(rules.get(dim)) & set(axes)
        return AppliedRule(f"value {name}", dim, rules.get(dim)) if found else None

    def _rule(self, eqn: Equation, dim: str, axes: Axes) -> AppliedRule:
        own = self._own_rule(eqn.results[0], dim, axes)
        return own or self._find(dim, axes, ("optimizer", "params", "") if eqn.stage == "update" else ("",))

    def _find(self, dim: str, axes: Axes, sections: Iterable[str]) -> AppliedRule:
        """Return the rule for a dimension, from the given sections first.

        A dimension of blocks (`x.blocks`), which `partition-spatial` adds, has the rule of the whole dimension `x`.
        """
        rules = {"": self.layout.rules, "params": self.layout.params, "optimizer": self.layout.optimizer}
        name = dim if dim in self.layout.rules.by_dim else dim.partition(".blocks")[0]
        for section in (*sections, *rules):
            for key in (name, EVERY):
                if set(rules[section].get(key)) & set(axes):
                    return AppliedRule(section, key, rules[section].get(key))
        return AppliedRule("", name, axes, is_written=False)

    def _back(self, value: Value, goes_on: Callable[[Value], bool]) -> Iterator[Value]:
        """Yield a value and its origins, as long as `goes_on` holds."""
        return _walk(value, lambda v: filter(goes_on, (*self._operands(v), *self.before.get(v, ()))))

    def _copied(self, value: Value) -> Iterator[Value]:
        """Yield a value and the values that it is a copy of, through casts and slices of loops."""

        def origins(v: Value) -> tuple[Value, ...]:
            operands = self._operands(v)
            return (*(operands if len(operands) == 1 else ()), *self.before.get(v, ()))

        return _walk(value, origins)

    def _operands(self, value: Value) -> tuple[Value, ...]:
        """Return the operands of a value's equation; of a combined collective, only the operand for this value."""
        eqn = self.makers.get(value)
        if eqn is None or not has_trait(eqn, "placement"):
            return eqn.operands if eqn else ()
        return (eqn.operands[eqn.results.index(value)],)

    def _forward(self, value: Value) -> Iterator[Value]:
        """Yield a value, and the values that collectives and loops make of it."""

        def onward(v: Value) -> tuple[Value, ...]:
            moved = [eqn.results[i] for eqn, i in self.uses.get(v, ()) if has_trait(eqn, "placement")]
            return (*moved, *self.after.get(v, ()))

        return _walk(value, onward)


def _walk(start: Value, following: Callable[[Value], Iterable[Value]]) -> Iterator[Value]:
    """Yield each reachable value once, the nearest first. following: returns the values after a value."""
    seen, queue = {start}, [start]
    for value in queue:
        yield value
        new = [each for each in dict.fromkeys(following(value)) if each not in seen]
        seen.update(new)
        queue += new
