"""The rules of a layout that cause its collectives, its attention, and a memory limit's effect, for `mtfc explain` and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.analysis.attention_forms import refusals
from mtfc.compiler.analysis.equation_names import names_by_place
from mtfc.compiler.analysis.provenance import SentArray, sent_arrays
from mtfc.compiler.cost.volumes import PlacedCost, layout_cost
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.passes.fuse_attention import Reason, reasons
from mtfc.driver.loading.cases import MultiMeshCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.layout_targets import prepared
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.meshes.multi_mesh_cost import MultiMeshCost, multi_mesh_cost
from mtfc.reports.cost_report import heading
from mtfc.reports.meshes_report import travels_json, travels_text
from mtfc.reports.provenance_report import (
    NoKernel,
    kernels_json,
    kernels_report,
    provenance_json,
    provenance_report,
    separate_json,
    separate_report,
)
from mtfc.reports.recompute_report import Recomputation, recompute_json, recompute_report


def explain(file: str, choice: Choice, sources: Sources) -> ExplainedLayout | ExplainedMeshes:
    """Explain the chosen layout. Raises `CompileError` and `UsageError`."""
    selection = select(file, choice, sources, or_multi_mesh=True)
    if isinstance(selection.case, MultiMeshCase):
        return _multi_mesh(selection.case, selection.program)
    (case,) = selection.cases
    return explained_layout(selection.program, case, case.lower(selection.program))


@attrs.frozen
class ExplainedLayout:
    """The cost of a step, or of a forward pass, all arrays that a device sends, attention of separate ops, attention without
    kernels, and what a memory limit changes.
    """

    cost: PlacedCost
    sent: Sequence[SentArray]
    separate: Sequence[Reason]
    refused: Sequence[NoKernel]
    limit: Recomputation | None

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        cost, limit = self.cost, self.limit
        return {
            "model": cost.model,
            "layout": cost.layout.name,
            "mesh": cost.mesh.sizes,
            "collectives": provenance_json(self.sent),
            "separate_attention": separate_json(self.separate),
            "attention_without_kernel": kernels_json(self.refused),
            **({} if limit is None else {"recomputation": recompute_json(limit)}),
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the collectives with their causes, by line and by rule. texts: each file's text by name."""
        file, limit = self.cost.file, self.limit
        report = provenance_report(self.sent, file, texts)
        report += separate_report(self.separate, file) + kernels_report(self.refused, file)
        return "\n".join(
            [*heading(self.cost), "", report, *([recompute_report(limit, texts)] if limit else [])]
        )


def explained_layout(program: Program, case: LayoutOnMesh, lowered: Program) -> ExplainedLayout:
    """Explain a layout of a program. lowered: the program under the layout."""
    cost = layout_cost(lowered, device=case.device)
    function, sent = sent_under(program, case, lowered)
    refused, limit = [*refusals(function, case.mesh)], recomputation(program, case, lowered)
    return ExplainedLayout(cost, sent, reasons(program), refused, limit)


def sent_under(program: Program, case: LayoutOnMesh, lowered: Program) -> tuple[Function, list[SentArray]]:
    """Return the function of a step or of a forward pass under a layout, and the arrays that a device sends in it."""
    names = names_by_place(prepared(program, case.mesh, case.layout))
    function = lowered.function("step" if lowered.has_function("step") else "forward")
    return function, [*sent_arrays(function, case.mesh, case.layout, names)]


def recomputation(program: Program, case: LayoutOnMesh, lowered: Program) -> Recomputation | None:
    """Return the lowered program's step beside the step without the memory limit; None without a limit."""
    if case.limit is None:
        return None
    kept = attrs.evolve(case.layout, forms=attrs.evolve(case.layout.forms, recompute=""))
    without = attrs.evolve(case, layout=kept, limit=None).lower(program)
    before, after = (layout_cost(each, device=case.device) for each in (without, lowered))
    machine = case.limit.hardware.name if case.limit.hardware else None
    return Recomputation(case.limit.memory, machine, before, after)


@attrs.frozen
class ExplainedMeshes:
    """The cost of a step on several meshes, and all arrays that a device of each mesh sends."""

    cost: MultiMeshCost
    sent: Sequence[Sequence[SentArray]]

    def record(self) -> dict[str, Any]:
        """Return the JSON record: the collectives of each mesh, and what travels."""
        meshes = [
            {"name": each.mesh.name, "mesh": each.mesh.sizes, "collectives": provenance_json(sent)}
            for each, sent in zip(self.cost.meshes, self.sent, strict=True)
        ]
        named = {"model": self.cost.model, "layout": self.cost.layout}
        return {**named, "meshes": meshes, "travels": travels_json(self.cost)}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the collectives of each mesh with their causes, and what travels; `texts` holds each file's text by name."""
        parts = list[str]()
        for each, sent in zip(self.cost.meshes, self.sent, strict=True):
            title, *rest = heading(each)
            parts += [f"on mesh {each.mesh.name}: {title}", *rest, ""]
            parts.append(provenance_report(sent, each.file, texts))
        return "\n".join([*parts, travels_text(self.cost)])


def _multi_mesh(case: MultiMeshCase, program: Program) -> ExplainedMeshes:

    multi_mesh = case.program(program)
    cost = multi_mesh_cost(multi_mesh)
    function = multi_mesh.function("step" if cost.trains else "forward")
    found: list[list[SentArray]] = [[] for _ in multi_mesh.parts]
    for each in function.segments:
        part = multi_mesh.parts[each.part]
        found[each.part] += sent_arrays(each.function, part.mesh, part.layout)
    return ExplainedMeshes(cost, found)
