"""The rules of a layout that cause its collectives, and attention that no kernel computes, for `mtfc explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.driver.explained_layout import explained_layout
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Result, Sources

if TYPE_CHECKING:
    from mtfc.compiler.analysis.provenance import SentArray
    from mtfc.compiler.ir.core import Program
    from mtfc.meshes.multi_mesh_cost import MultiMeshCost


def explain(file: str, choice: Choice, sources: Sources) -> Result:
    """Explain the chosen layout. Raises `CompileError` and `UsageError`."""
    selection = select(file, choice, sources, or_multi_mesh=True)
    if isinstance(selection.case, MultiMeshCase):
        return _multi_mesh(selection.case, selection.program)
    (case,) = selection.cases
    return explained_layout(selection.program, case, case.lower(selection.program))


@attrs.frozen
class ExplainedMeshes:
    """The cost of a step on several meshes, and all arrays that a device of each mesh sends."""

    cost: MultiMeshCost
    sent: Sequence[Sequence[SentArray]]

    def record(self) -> dict[str, Any]:
        """Return the JSON record: the collectives of each mesh, and what travels."""
        from mtfc.reports.meshes_report import travels_json
        from mtfc.reports.provenance_report import provenance_json

        meshes = [
            {"name": each.mesh.name, "mesh": each.mesh.sizes, "collectives": provenance_json(sent)}
            for each, sent in zip(self.cost.meshes, self.sent, strict=True)
        ]
        named = {"model": self.cost.model, "layout": self.cost.layout}
        return {**named, "meshes": meshes, "travels": travels_json(self.cost)}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the collectives of each mesh with their causes, and what travels; `texts` holds each file's text by name."""
        from mtfc.reports.cost_report import heading
        from mtfc.reports.meshes_report import travels_text
        from mtfc.reports.provenance_report import provenance_report

        parts = list[str]()
        for each, sent in zip(self.cost.meshes, self.sent, strict=True):
            title, *rest = heading(each)
            parts += [f"on mesh {each.mesh.name}: {title}", *rest, ""]
            parts.append(provenance_report(sent, each.file, texts))
        return "\n".join([*parts, travels_text(self.cost)])


def _multi_mesh(case: MultiMeshCase, program: Program) -> ExplainedMeshes:
    from mtfc.compiler.analysis.provenance import sent_arrays
    from mtfc.meshes.multi_mesh_cost import multi_mesh_cost

    multi_mesh = case.program(program)
    cost = multi_mesh_cost(multi_mesh)
    function = multi_mesh.function("step" if cost.trains else "forward")
    found: list[list[SentArray]] = [[] for _ in multi_mesh.parts]
    for each in function.segments:
        part = multi_mesh.parts[each.part]
        found[each.part] += sent_arrays(each.function, part.mesh, part.layout)
    return ExplainedMeshes(cost, found)
