"""The rules of a layout that cause its collectives, and attention that stays separate ops, for `mtfc explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mtfc.driver.cost import recomputation
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.analysis.provenance import SentArray
    from mtfc.compiler.cost.volumes import PlacedCost
    from mtfc.compiler.passes.fuse_attention import Reason
    from mtfc.reports.recompute_report import Recomputation


def explain_record(file: str, choice: Choice, sources: Sources) -> dict[str, Any]:
    """Return the JSON record; see `docs/command.md`. Raises `CompileError` and `UsageError`."""
    from mtfc.reports.provenance_report import provenance_json, separate_json
    from mtfc.reports.recompute_report import recompute_json

    cost, found, separate, limit = _explained(file, choice, sources)
    selected = {"model": cost.model, "layout": cost.layout.name, "mesh": cost.mesh.sizes}
    record = {
        **selected,
        "collectives": provenance_json(found),
        "separate_attention": separate_json(separate),
    }
    return record | ({"recomputation": recompute_json(limit)} if limit is not None else {})


def explain_text(file: str, choice: Choice, sources: Sources) -> str:
    """Return the collectives with their causes, by line and by rule, and attention that stays separate ops.

    Raises `CompileError` and `UsageError`.
    """
    from mtfc.reports.cost_report import heading
    from mtfc.reports.provenance_report import provenance_report, separate_report
    from mtfc.reports.recompute_report import recompute_report

    cost, found, separate, limit = _explained(file, choice, sources)
    files = [*(each.span.file for each in found if each.span), *(limit.files if limit else ())]
    texts = sources.with_library(files)
    report = provenance_report(found, cost.file, texts) + separate_report(separate, cost.file)
    return "\n".join([*heading(cost), "", report, *([recompute_report(limit, texts)] if limit else [])])


def _explained(
    file: str, choice: Choice, sources: Sources
) -> tuple[PlacedCost, list[SentArray], list[Reason], Recomputation | None]:
    """Return the cost of a step, or of a forward pass, all arrays that a device sends, attention of separate ops, and what a
    memory limit changes.
    """
    from mtfc.compiler.analysis.equation_names import names_by_place
    from mtfc.compiler.analysis.provenance import sent_arrays
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.compiler.passes.fuse_attention import reasons
    from mtfc.driver.loading.layout_targets import prepared

    selection = select(file, choice, sources)
    (case,) = selection.cases
    cost = layout_cost(program := case.lower(selection.program))
    names = names_by_place(prepared(selection.program, case.mesh, case.layout))
    function = program.function("step" if cost.trains else "forward")
    separate = reasons(selection.program)
    limit = recomputation(selection.program, case, program)
    return cost, list(sent_arrays(function, case.mesh, case.layout, names)), separate, limit
