"""Why each collective is there: the rules of the layout that lead to it, and the lines between which they do.

A sum is pending because an equation sums over a dimension that a rule splits: it is found by going back from the collective along
whatever passes it on. Data is gathered or exchanged because a rule splits a dimension where the value is made or stored, and what
uses it has that dimension whole, or split otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Argument, Equation, Function, Stage, Value
from mtfc.compiler.ir.loops import dim_of, maker, pairs, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import KIND_OF, axes_of
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh

REDUCES = {"sum": "sums over", "max": "takes the maximum over", "min": "takes the minimum over"}


@attrs.frozen(order=True)
class Rule:
    """A rule of the layout: `batch: rows`, or one of a section, or of a value's own.

    is_written: else the compiler has split the dimension as what uses it is, or as what it is made of.
    """

    section: str
    dim: str
    axes: Axes
    is_written: bool = True

    def __str__(self) -> str:
        if not self.is_written:
            return f"{self.dim} follows others"
        axes = self.axes[0] if len(self.axes) == 1 else f"({', '.join(self.axes)})"
        rule = f"{self.dim}: {axes}"
        return f"{self.section}: {{ {rule} }}" if self.section else rule


@attrs.frozen
class Cause:
    """A rule, where it takes effect, and what it does there: `sums over`, for example, and the dimension."""

    rule: Rule
    span: Span | None
    what: str


@attrs.frozen
class Sending:
    """One array that a collective sends: its bytes on one processor in a step, how often, for which line, and why.

    used: where it is used, if that is in an equation.
    """

    kind: str
    axes: Axes
    bytes: int
    times: int
    span: Span | None
    stage: Stage
    causes: tuple[Cause, ...]
    used: Span | None


def sendings(function: Function, mesh: Mesh, layout: Layout) -> list[Sending]:
    """What a placed function with explicit collectives sends, in order; combined collectives array by array."""
    tracer = _Tracer(mesh, layout)
    tracer.enter(function)
    return list(_sendings(function, mesh, tracer, 1))


def _sendings(function: Function, mesh: Mesh, tracer: _Tracer, times: int) -> Iterator[Sending]:
    for eqn in function.body:
        if eqn.regions:
            yield from _sendings(region_of(eqn), mesh, tracer, times * dim_of(eqn).size)
        elif eqn.op in KIND_OF:
            for value, result in zip(eqn.operands, eqn.results, strict=True):
                made_by = tracer.makers.get(value)
                owner = maker(made_by, value) if len(eqn.operands) > 1 and made_by else eqn
                yield Sending(
                    KIND_OF[eqn.op],
                    axes_of(eqn),
                    value.type.local_bytes(mesh) * times,
                    times,
                    owner.span,
                    owner.stage,
                    tuple(dict.fromkeys(tracer.causes(eqn, value, result))),
                    tracer.used(result),
                )


@attrs.frozen
class _Tracer:
    """Where values of a program come from and go to, through loops.

    before: what a region's argument, or a loop's result, is. uses: (equation, operand number) of each value.
    """

    mesh: Mesh
    layout: Layout
    makers: dict[Value, Equation] = attrs.field(factory=dict)
    arguments: dict[Value, Argument] = attrs.field(factory=dict)
    before: dict[Value, list[Value]] = attrs.field(factory=dict)
    after: dict[Value, list[Value]] = attrs.field(factory=dict)
    uses: dict[Value, list[tuple[Equation, int]]] = attrs.field(factory=dict)

    def enter(self, function: Function) -> None:
        self.arguments.update({argument.value: argument for argument in function.arguments})
        for eqn in function.body:
            if eqn.regions:
                self._loop(eqn)
                continue
            self.makers.update(dict.fromkeys(eqn.results, eqn))
            for i, value in enumerate(eqn.operands):
                self.uses.setdefault(value, []).append((eqn, i))

    def _loop(self, eqn: Equation) -> None:
        region = region_of(eqn)
        self.enter(region)
        inside = {argument.value.name: argument.value for _, argument in pairs(eqn)}
        for operand, argument in pairs(eqn):
            self._passes(operand, argument.value)
        for result, output in zip(eqn.results, region.outputs, strict=True):
            self._passes(output.value, result)
            if output.updates:
                self._passes(output.value, inside[output.updates])

    def _passes(self, value: Value, to: Value) -> None:
        self.before.setdefault(to, []).append(value)
        self.after.setdefault(value, []).append(to)

    def causes(self, eqn: Equation, value: Value, result: Value) -> Iterator[Cause]:
        """Of one operand of a collective and what it becomes."""
        completed = [axis for axis in value.type.pending if axis not in result.type.pending]
        for axis in completed:
            yield from self._sums(value, axis)
        source, target = eqn.attrs.get("source", eqn.attrs.get("dim")), eqn.attrs.get("target")
        if eqn.op == "reduce_scatter":
            source, target = None, source
        if isinstance(source, Dim) and not completed:
            yield from self._splits(value, source, axes_of(eqn))
        if isinstance(target, Dim):
            yield from self._wants(result, target, axes_of(eqn))

    def _sums(self, value: Value, axis: str) -> Iterator[Cause]:
        """The equations that leave a sum pending over the axis in a value."""
        for each in self._back(value, lambda v: axis in v.type.pending):
            eqn = self.makers.get(each)
            if eqn is None or eqn.layout is None:
                continue
            rule = OPS[eqn.op].layout_rule(eqn)
            for dim in rule.reduced:
                if axis in eqn.layout.get(dim.name, ()):
                    by = self._rule(eqn, dim.name, eqn.layout[dim.name])
                    yield Cause(by, eqn.span, f"{REDUCES[rule.reduction]} {dim.name}")

    def _splits(self, value: Value, dim: Dim, axes: Axes) -> Iterator[Cause]:
        """The rule that splits a dimension of a value, and what has it whole."""
        origins = [*self._copied(value)]
        stored = next((self.arguments[v] for v in origins if self._role(v) in ("parameter", "state")), None)
        made = next((self.makers[v] for v in origins if v in self.makers), None)
        if stored is not None:
            sections = {"parameter": ("params", ""), "state": ("optimizer", "params", "")}[stored.role]
            yield Cause(self._find(dim.name, axes, sections), stored.span, f"stores {dim.name} in parts")
        else:
            rule = self._rule(made, dim.name, axes) if made else self._find(dim.name, axes, ("",))
            yield Cause(rule, made.span if made else None, f"has {dim.name} in parts")

    def _wants(self, result: Value, dim: Dim, axes: Axes) -> Iterator[Cause]:
        """What uses a value in parts that it was not made in."""
        eqn = self._user(result)
        if eqn is not None and eqn.layout is not None:
            rule = self._rule(eqn, dim.name, axes)
        else:
            rule = self._find(dim.name, axes, ("params", ""))
        yield Cause(rule, eqn.span if eqn else None, f"wants {dim.name} in parts")

    def used(self, value: Value) -> Span | None:
        eqn = self._user(value)
        return eqn.span if eqn else None

    def _user(self, value: Value) -> Equation | None:
        """The first equation that uses a value, collectives aside."""
        users = (eqn for v in self._forward(value) for eqn, _ in self.uses.get(v, ()))
        return next((eqn for eqn in users if eqn.op not in KIND_OF), None)

    def _role(self, value: Value) -> str:
        return self.arguments[value].role if value in self.arguments else ""

    def _rule(self, eqn: Equation, dim: str, axes: Axes) -> Rule:
        own = self.layout.value_rules.get(eqn.path or "")
        if own is not None and set(own.get(dim)) & set(axes):
            return Rule(f"value {eqn.path}", dim, own.get(dim))
        return self._find(dim, axes, ("optimizer", "params", "") if eqn.stage == "update" else ("",))

    def _find(self, dim: str, axes: Axes, sections: Iterable[str]) -> Rule:
        """The rule, looked for in these sections first; that of a dimension that the compiler has cut is its whole's."""
        rules = {"": self.layout.rules, "params": self.layout.params, "optimizer": self.layout.optimizer}
        name = dim if dim in self.layout.rules.by_dim else dim.partition(".blocks")[0]
        for section in (*sections, *rules):
            if set(rules[section].get(name)) & set(axes):
                return Rule(section, name, rules[section].get(name))
        return Rule("", name, axes, is_written=False)

    def _back(self, value: Value, goes_on: Callable[[Value], bool]) -> Iterator[Value]:
        """A value and what it is made of, as far as a test holds."""

        def origins(v: Value) -> tuple[Value, ...]:
            operands = self.makers[v].operands if v in self.makers else ()
            return tuple(each for each in (*operands, *self.before.get(v, ())) if goes_on(each))

        return _walk(value, origins)

    def _copied(self, value: Value) -> Iterator[Value]:
        """A value and what it is a copy of: a cast, or a slice in a loop."""

        def origins(v: Value) -> tuple[Value, ...]:
            operands = self.makers[v].operands if v in self.makers else ()
            return (*(operands if len(operands) == 1 else ()), *self.before.get(v, ()))

        return _walk(value, origins)

    def _forward(self, value: Value) -> Iterator[Value]:
        """A value, and what collectives and loops pass it on as."""

        def onward(v: Value) -> tuple[Value, ...]:
            moved = [eqn.results[i] for eqn, i in self.uses.get(v, ()) if eqn.op in KIND_OF]
            return (*moved, *self.after.get(v, ()))

        return _walk(value, onward)


def _walk(start: Value, following: Callable[[Value], Iterable[Value]]) -> Iterator[Value]:
    """Each value once, the nearest first."""
    seen, queue = {start}, [start]
    for value in queue:
        yield value
        new = [each for each in dict.fromkeys(following(value)) if each not in seen]
        seen.update(new)
        queue += new
