"""Which of a layout's rules hold where. An axis of size 1 splits nothing and is left out."""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.compiler.analysis.equation_names import Placeable
from mtfc.compiler.ir.core import Argument, Equation
from mtfc.compiler.ir.loops import ROLES
from mtfc.compiler.ir.types import Layout, Mesh, Rules


def without_unit_axes(rules: Rules, mesh: Mesh) -> Rules:
    return Rules(tuple((dim, tuple(a for a in axes if mesh.sizes[a] > 1)) for dim, axes in rules.axes))


class Ruling:
    """The rules of one layout. `names` are those of a function's equations and arguments (`equation_names.py`), once they have
    some.
    """

    def __init__(self, mesh: Mesh, layout: Layout, names: Mapping[Placeable, str] = {}) -> None:
        self.compute = without_unit_axes(layout.compute, mesh)
        self.parameters = self.compute.override(without_unit_axes(layout.params, mesh))
        self.state = self.parameters.override(without_unit_axes(layout.optimizer, mesh))
        self.values = {path: without_unit_axes(rules, mesh) for path, rules in layout.values}
        self.names = names

    def own(self, thing: Placeable) -> Rules | None:
        """The rules that name an equation, an argument, or what a loop yields: for all of its dimensions."""
        return self.values.get(self.names.get(thing, ""))

    def stored(self, argument: Argument) -> Rules:
        """The rules under which an argument is stored; what a loop carries or takes whole is placed as it is computed."""
        own = self.own(argument)
        if own is not None:
            return own
        if argument.role in ROLES:
            return self.compute
        rules = {"parameter": self.parameters, "state": self.state}.get(argument.role, self.compute)
        return self.values.get(argument.value.name, rules)

    def reduced(self, eqn: Equation) -> Rules:
        """The rules for dimensions that an equation reduces away."""
        own = self.own(eqn)
        return own if own is not None else self.state if eqn.stage == "update" else self.compute

    def defined(self, eqn: Equation) -> Rules:
        """The rules for the dimensions of an equation's results."""
        own = self.own(eqn)
        return own if own is not None else self.values.get(eqn.path or "", self.reduced(eqn))
