"""The rules of a layout that cause its collectives, and attention that no kernel computes, for `mtfc explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mtfc.driver.explained_layout import ExplainedLayout, explained_layout
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.selection import Selection, select
from mtfc.driver.loading.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.analysis.provenance import SentArray
    from mtfc.compiler.ir.core import Program
    from mtfc.meshes.multi_mesh_cost import MultiMeshCost


def explain_record(file: str, choice: Choice, sources: Sources) -> dict[str, Any]:
    """Return the JSON record; see `docs/command.md`. Raises `CompileError` and `UsageError`."""
    from mtfc.reports.provenance_report import kernels_json, provenance_json, separate_json
    from mtfc.reports.recompute_report import recompute_json

    selection = select(file, choice, sources, or_multi_mesh=True)
    if isinstance(selection.case, MultiMeshCase):
        return _multi_mesh_record(selection.case, selection.program)
    each = _of_selection(selection)
    cost, limit = each.cost, each.limit
    selected = {"model": cost.model, "layout": cost.layout.name, "mesh": cost.mesh.sizes}
    record = {
        **selected,
        "collectives": provenance_json(each.sent),
        "separate_attention": separate_json(each.separate),
        "attention_without_kernel": kernels_json(each.refused),
    }
    return record | ({"recomputation": recompute_json(limit)} if limit is not None else {})


def explain_text(file: str, choice: Choice, sources: Sources) -> str:
    """Return the collectives with their causes, by line and by rule, and attention that no kernel computes.

    Raises `CompileError` and `UsageError`.
    """
    selection = select(file, choice, sources, or_multi_mesh=True)
    if isinstance(selection.case, MultiMeshCase):
        return _multi_mesh_text(selection.case, selection.program, sources)
    each = _of_selection(selection)
    return each.text(sources.with_library(each.files))


def _multi_mesh_record(case: MultiMeshCase, program: Program) -> dict[str, Any]:
    """Return the record of a layout of several meshes: the collectives of each mesh, and what travels."""
    from mtfc.reports.meshes_report import travels_json
    from mtfc.reports.provenance_report import provenance_json

    cost, found = _multi_mesh(case, program)
    meshes = [
        {"name": each.mesh.name, "mesh": each.mesh.sizes, "collectives": provenance_json(sent)}
        for each, sent in zip(cost.meshes, found, strict=True)
    ]
    return {"model": cost.model, "layout": cost.layout, "meshes": meshes, "travels": travels_json(cost)}


def _multi_mesh_text(case: MultiMeshCase, program: Program, sources: Sources) -> str:
    """Return the collectives of each mesh with their causes, and what travels between the meshes."""
    from mtfc.reports.cost_report import heading
    from mtfc.reports.meshes_report import travels_text
    from mtfc.reports.provenance_report import provenance_report

    cost, found = _multi_mesh(case, program)
    texts = sources.with_library([each.span.file for sent in found for each in sent if each.span])
    parts = list[str]()
    for each, sent in zip(cost.meshes, found, strict=True):
        title, *rest = heading(each)
        parts += [f"on mesh {each.mesh.name}: {title}", *rest, "", provenance_report(sent, each.file, texts)]
    return "\n".join([*parts, travels_text(cost)])


def _multi_mesh(case: MultiMeshCase, program: Program) -> tuple[MultiMeshCost, list[list[SentArray]]]:
    """Return the cost of a step on several meshes, and all arrays that a device of each mesh sends."""
    from mtfc.compiler.analysis.provenance import sent_arrays
    from mtfc.meshes.multi_mesh_cost import multi_mesh_cost

    multi_mesh = case.program(program)
    cost = multi_mesh_cost(multi_mesh)
    function = multi_mesh.function("step" if cost.trains else "forward")
    found: list[list[SentArray]] = [[] for _ in multi_mesh.parts]
    for each in function.segments:
        part = multi_mesh.parts[each.part]
        found[each.part] += sent_arrays(each.function, part.mesh, part.layout)
    return cost, found


def _of_selection(selection: Selection) -> ExplainedLayout:
    (case,) = selection.cases
    return explained_layout(selection.program, case, case.lower(selection.program))
