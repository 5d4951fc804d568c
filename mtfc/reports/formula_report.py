"""Costs as formulas, for `mtfc cost --symbolic`.

The first part is Table 1 of the Mesh-TensorFlow paper, with the constant factors that the paper drops. For each layout it has the
leading terms of computation, communication, their ratio, and memory per processor. The second part has the complete formulas.
The paper's two layers are in the middle of a network, so the paper counts the gradient of their input. A training step needs
that gradient only if a layer comes before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import attrs

from mtfc.compiler.cost.sizes import FormulaSizes
from mtfc.compiler.cost.symbolic import Formula, formula, ratio
from mtfc.compiler.cost.volumes import PlacedCost, layout_cost, total
from mtfc.compiler.ir.core import Program
from mtfc.reports.cost_report import heading
from mtfc.reports.table import wrapped


@attrs.frozen
class LayoutFormulas:
    """The cost of a layout as formulas, and the values of the symbols in the file."""

    cost: PlacedCost
    values: dict[str, int]

    @property
    def flops(self) -> Formula:
        return formula(total(self.cost.step).flops)

    @property
    def elements(self) -> Formula:
        """The elements of all collectives' operands: the paper's "values all-reduced per processor"."""
        return formula(total(self.cost.step).sent.elements)

    @property
    def bytes(self) -> dict[str, Formula]:
        """The parts of the memory and their sum."""
        return {name: formula(amount) for name, amount in self.cost.memory.parts().items()}

    @property
    def leading_ratio(self) -> str:
        """The leading terms of the elements sent per FLOP."""
        return ratio(self.elements.leading(), self.flops.leading())


def formulas(program: Program) -> LayoutFormulas:
    """Return the cost of a placed program in the names of its dimensions and mesh axes."""
    assert program.mesh is not None, "only a placed program has a cost"
    scale = FormulaSizes(program.dims.values(), program.mesh)
    return LayoutFormulas(layout_cost(program, scale), scale.values)


def formula_report(layouts: Sequence[LayoutFormulas]) -> str:
    """Return Table 1 for the given layouts, then all terms."""
    return "\n".join([*_leading(layouts), *(line for layout in layouts for line in _whole(layout))]) + "\n"


def _leading(layouts: Sequence[LayoutFormulas]) -> Iterator[str]:
    """Yield a section for each column of the paper's table: the formulas are too long for columns."""
    yield "Leading terms, per device. Left out are terms whose dimensions are only a part of another term's."
    sections: dict[str, Callable[[LayoutFormulas], str]] = {
        "computation, in FLOPs": lambda layout: str(layout.flops.leading()),
        "communication, in elements sent by collectives": lambda layout: str(layout.elements.leading()),
        "communication / computation, in elements per FLOP": lambda layout: layout.leading_ratio,
        "memory, in bytes": lambda layout: str(layout.bytes["total"].leading()),
    }
    width = max(len(layout.cost.layout.name) for layout in layouts)
    for title, text in sections.items():
        yield f"\n{title}"
        for layout in layouts:
            first, *more = _pieces(text(layout))
            yield from wrapped([f"{layout.cost.layout.name:<{width}}  {first}", *more], width + 6)


def _pieces(formula: str) -> list[str]:
    """Return the terms of the text, each with its sign."""
    return re.split(" (?=[+-] )", formula)


def _whole(layout: LayoutFormulas) -> Iterator[str]:
    yield ""
    yield from heading(layout.cost)
    memory = layout.bytes
    rows = {"computation": layout.flops, "communication": layout.elements, "memory": memory.pop("total")}
    for name, amount in {**rows, **{f"  {name}": part for name, part in memory.items()}}.items():
        value = int(amount.evaluate(layout.values))
        first, *more = _pieces(str(amount))
        yield from wrapped([f"{name:<20}{value:>16,} = {first}", *more], 41)
