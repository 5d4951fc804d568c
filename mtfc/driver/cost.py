"""Computation, communication and memory of one device under each layout, for `mtfc cost`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.ir.core import Program
    from mtfc.driver.jax_functions.sent_bytes import BytesComparison


def cost_record(file: str, choice: Choice, sources: Sources, symbolic: bool = False) -> dict[str, Any]:
    """Return the JSON record, with formulas if `symbolic`; see `docs/command.md`. Raises `CompileError` and `UsageError`."""
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.reports.cost_json import costs_json
    from mtfc.reports.formula_report import formulas

    programs = _programs(file, choice, sources)
    symbols = [formulas(program) for program in programs] if symbolic else []
    return costs_json([layout_cost(program) for program in programs], symbols)


def cost_text(file: str, choice: Choice, sources: Sources, symbolic: bool = False) -> str:
    """Return the costs by line and side by side, or as formulas if `symbolic`. Raises `CompileError` and `UsageError`."""
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.reports.cost_report import comparison, layout_report
    from mtfc.reports.formula_report import formula_report, formulas

    programs = _programs(file, choice, sources)
    if symbolic:
        return formula_report([formulas(program) for program in programs])
    costs = [layout_cost(program) for program in programs]
    texts = sources.with_library(charge.span.file for cost in costs for charge in cost.step if charge.span)
    return "\n".join([*(layout_report(cost, texts) for cost in costs), comparison(costs)])


def compiled_bytes(file: str, choice: Choice, sources: Sources) -> BytesComparison:
    """Compile a function of JAX under one layout, and return what it sends beside the prediction.

    Raises `CompileError`, `UsageError` and `Unavailable`.
    """
    from mtfc.driver.jax_functions.verification import plan_on_devices

    if choice.source is None:
        raise UsageError(
            f"--compiled is for functions of JAX: `mtfc compile {file} --emit hlo` prints XLA's program of a .mtf file"
        )
    return plan_on_devices(file, choice, sources).compare_bytes()


def _programs(file: str, choice: Choice, sources: Sources) -> list[Program]:
    """Return the program of one processor under each layout."""
    selection = select(file, choice, sources, every_layout=True)
    return [case.lower(selection.program) for case in selection.cases]
