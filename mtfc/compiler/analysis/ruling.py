"""Which of a layout's rules hold where. An axis of size 1 splits nothing and is left out."""

from __future__ import annotations

from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.loops import ROLES
from mtfc.compiler.ir.types import Layout, Mesh, Rules


def without_unit_axes(rules: Rules, mesh: Mesh) -> Rules:
    return Rules(tuple((dim, tuple(a for a in axes if mesh.sizes[a] > 1)) for dim, axes in rules.axes))


class Ruling:
    """The rules of one layout."""

    def __init__(self, mesh: Mesh, layout: Layout) -> None:
        self.compute = without_unit_axes(layout.compute, mesh)
        self.parameters = self.compute.override(without_unit_axes(layout.params, mesh))
        self.state = self.parameters.override(without_unit_axes(layout.optimizer, mesh))
        self.values = {path: without_unit_axes(rules, mesh) for path, rules in layout.values}

    def stored(self, role: str, name: str) -> Rules:
        """The rules under which an argument is stored; what a loop carries or takes whole is placed as it is computed."""
        if role in ROLES:
            return self.compute
        rules = {"parameter": self.parameters, "state": self.state}.get(role, self.compute)
        return self.values.get(name, rules)

    def reduced(self, eqn: Equation) -> Rules:
        """The rules for dimensions that an equation reduces away."""
        return self.state if eqn.stage == "update" else self.compute

    def defined(self, eqn: Equation) -> Rules:
        """The rules for the dimensions of an equation's results."""
        return self.values.get(eqn.path or "", self.reduced(eqn))
