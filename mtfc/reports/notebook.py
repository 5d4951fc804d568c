"""A compiled model as a line of text, and as a table for notebooks; records as commands print them."""

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.volumes import CostTotals, PlacedCost, layout_cost, total
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text, layout_summary
from mtfc.compiler.ir.types import Mesh
from mtfc.reports.source_lines import flops_text


class ShownRecord(dict[str, Any]):
    """A record that a notebook shows as the command prints it. Copies are plain dicts."""

    def __init__(self, record: Mapping[str, Any], report: Callable[[], str]) -> None:
        super().__init__(record)
        self._report = report

    def _repr_html_(self) -> str:
        return preformatted(self._report())

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def line(program: Program) -> str:
    """Return `<Compiled net: mesh grid = [rows: 2, cols: 4], layout hybrid {batch: rows}, 3 parameters of 33,024 numbers, 2 KB
    per device>`
    """
    memory = bytes_text(whole(layout_cost(program).memory.parts()["total"]))
    parts = [
        _mesh(program.placed_on),
        f"layout {_layout(program)}",
        _parameters(program),
        f"{memory} per device",
    ]
    return f"<Compiled {program.name}: {', '.join(parts)}>"


def summary_line(program: Program, summary: str) -> str:
    """Return the line of a model that no single program stands for. summary: its layout or placement, in a line."""
    return f"<Compiled {program.name}: {summary}, {_parameters(program)}>"


def html(program: Program) -> str:
    """Return a table of the mesh, the layout, the parameters, and the computation, communication and memory of one device."""
    cost = layout_cost(program)
    rows = [
        ("mesh", _mesh(cost.mesh).removeprefix("mesh ")),
        ("layout", _layout(program)),
        ("parameters", _parameters(program)),
        *_functions(cost),
        ("memory per device", _memory(cost)),
    ]
    body = "".join(f"<tr>{_cell('th', name)}{_cell('td', text)}</tr>" for name, text in rows)
    return f"<table><caption>{escape(program.name)}</caption><tbody>{body}</tbody></table>"


def preformatted(text: str) -> str:
    """Return text whose columns stay below each other, such as carets below a line."""
    return f"<pre>{escape(text)}</pre>"


def _cell(tag: str, text: str) -> str:
    return f'<{tag} style="text-align: left">{escape(text)}</{tag}>'


def _mesh(mesh: Mesh) -> str:
    return f"mesh {mesh.name} = [{mesh.axes_text}]"


def _layout(program: Program) -> str:
    layout = program.layout
    return f"{layout.name} {layout_summary(layout)}" if layout else "none"


def _parameters(program: Program) -> str:
    """Return the numbers of parameters and of their elements in words."""
    numbers = sum(each.type.size for each in program.parameters)
    count = len(program.parameters)
    return f"{count} parameter{'s' * (count != 1)} of {numbers:,} numbers"


def _functions(cost: PlacedCost) -> Iterable[tuple[str, str]]:
    """Yield the work of the forward pass, and of the training step if there is one."""
    yield "forward, per device", _work(total(cost.forward))
    if cost.trains:
        yield "training step, per device", _work(total(cost.step))


def _work(totals: CostTotals) -> str:
    return f"{flops_text(whole(totals.flops))}, {bytes_text(whole(totals.sent.bytes))} sent"


def _memory(cost: PlacedCost) -> str:
    """Return the memory of a device in words: the whole, and its parts."""
    parts = {name: bytes_text(whole(amount)) for name, amount in cost.memory.parts().items()}
    sizes = ", ".join(f"{name} {size}" for name, size in parts.items() if name != "total")
    return f"{parts['total']}: {sizes}"
