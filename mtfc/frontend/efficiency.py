"""What a layout wastes: work that several processors do alike, and operands that must be gathered first.

The readme of Mesh-TensorFlow ("How do I pick a layout?") has the rule: every expensive einsum should use all mesh axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mtfc.compiler.diagnostics import Diagnostic, Label
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.ops.contraction import iteration_dims, reduced_dims
from mtfc.compiler.ir.types import Axes, Dim
from mtfc.frontend.facts import Facts
from mtfc.frontend.rules import DeclaredLayout, Rule


def check_efficiency(facts: Facts, declared: DeclaredLayout) -> Iterator[Diagnostic]:
    """W601 and W602 for one model under one layout."""
    check = _Check(declared, facts.neighbours)
    for eqn in facts.heavy:
        yield from check.duplicated(eqn)
    for eqn in facts.einsums:
        yield from check.gathered(eqn)


class _Check:
    def __init__(self, declared: DeclaredLayout, neighbours: Mapping[str, set[str]]) -> None:
        self.declared, self.neighbours = declared, neighbours
        self.mesh = declared.mesh

    def _rules(self, eqn: Equation) -> dict[str, Rule]:
        """The rules that apply to the dimensions of an equation; a value's own are for the dims that it has."""
        own = self.declared.values.get(eqn.path or "", self.declared.compute)
        kept = {name: own[name] for name in eqn.result.type.names if name in own}
        reduced = {
            d.name: self.declared.compute[d.name]
            for d in reduced_dims(eqn)
            if d.name in self.declared.compute
        }
        return {**kept, **reduced}

    # W601

    def duplicated(self, eqn: Equation) -> Iterator[Diagnostic]:
        """A warning where the equation leaves axes unused, so that all processors along them do the same."""
        used = {axis for rule in self._rules(eqn).values() for axis in rule.axes}
        unused = [axis for axis, size in self.mesh.axes if size > 1 and axis not in used]
        if not unused or eqn.span is None:
            return
        axes = f"mesh {'axes' if len(unused) > 1 else 'axis'} {_list(unused)}"
        times = self.mesh.size(unused)
        message = (
            f"layout `{self.declared.name}` leaves {axes} unused here: this work is done {times} times over"
        )
        label = Label(self.declared.span, "under this layout")
        help = "; ".join(self._advice(eqn, axis) for axis in unused)
        yield Diagnostic("W601", message, eqn.span, (label,), help)

    def _advice(self, eqn: Equation, axis: str) -> str:
        rules = [self._extended(dim, axis) for dim in iteration_dims(eqn) if self._may_split(dim, axis)]
        if rules:
            return f"split a dimension over `{axis}`: {' or '.join(rules)}"
        return f"none of its dimensions can be split over `{axis}` as well"

    def _axes(self, name: str) -> Axes:
        rule = self.declared.compute.get(name)
        return rule.axes if rule else ()

    def _may_split(self, dim: Dim, axis: str) -> bool:
        """Whether the size divides, and no tensor has the dimension beside one that is split over the axis."""
        divides = dim.size % self.mesh.size((*self._axes(dim.name), axis)) == 0
        return divides and all(axis not in self._axes(name) for name in self.neighbours[dim.name])

    def _extended(self, dim: Dim, axis: str) -> str:
        before = self._axes(dim.name)
        return f"`{dim.name}: ({', '.join((*before, axis))})`" if before else f"`{dim.name}: {axis}`"

    # W602

    def gathered(self, eqn: Equation) -> Iterator[Diagnostic]:
        """A warning for each axis that two dimensions of the iteration space are split over and no single tensor is."""
        users: dict[str, list[Rule]] = {}
        for rule in self._rules(eqn).values():
            for axis in rule.axes:
                users.setdefault(axis, []).append(rule)
        for axis, rules in users.items():
            if self.mesh.sizes[axis] > 1 and len(rules) > 1 and not _share_tensor(eqn, rules) and eqn.span:
                yield self._gather(eqn, axis, rules)

    def _gather(self, eqn: Equation, axis: str, rules: Sequence[Rule]) -> Diagnostic:
        names = _list([rule.dim for rule in rules])
        message = (
            f"{names} are both split over mesh axis `{axis}` and meet here: an operand is gathered first"
        )
        owners = [(v.name, rule.dim) for rule in rules for v in eqn.operands if rule.dim in v.type.names]
        listed = " or ".join(f"`{name}` along `{dim}`" for name, dim in owners)
        labels = tuple(Label(rule.span, f"`{rule.dim}` is split over `{axis}` here") for rule in rules)
        help = f"the cheaper of {listed} is gathered; give the dimensions different axes to avoid that"
        assert eqn.span is not None
        return Diagnostic("W602", message, eqn.span, labels, help)


def _share_tensor(eqn: Equation, rules: Sequence[Rule]) -> bool:
    """Whether one operand, or the result, has two of the dimensions: that is an error, and not reported here."""
    dims = {rule.dim for rule in rules}
    return any(len(dims & set(value.type.names)) > 1 for value in (*eqn.operands, *eqn.results))


def _list(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
