"""Computation, communication and memory of one device under each layout, the difference of two layouts, and the causes.

The causes of a layout's collectives are its rules; there are also the reasons for separate attention, and the effect of a memory
limit, for `mtfc explain` and plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.activity import each_of
from mtfc.compiler.analysis.attention_forms import refusals
from mtfc.compiler.analysis.equation_names import names_by_place
from mtfc.compiler.analysis.provenance import SentArray, sent_arrays
from mtfc.compiler.cost.volumes import PlacedCost, layout_cost
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.types import Layout
from mtfc.compiler.passes.fuse_attention import Reason, reasons
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.cases import MultiMeshCase, PlacementCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.layout_targets import prepared
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import check_room, target_of
from mtfc.meshes.multi_mesh_cost import MultiMeshCost, multi_mesh_cost
from mtfc.reports.cost_report import (
    LayoutFormulas,
    comparison,
    formula_report,
    formulas,
    formulas_json,
    heading,
    layout_json,
    layout_report,
)
from mtfc.reports.difference import ComparedLayout, StepDifference, difference_of
from mtfc.reports.meshes_report import multi_mesh_cost_json, multi_mesh_cost_text, travels_json, travels_text
from mtfc.reports.provenance_report import (
    NoKernel,
    Recomputation,
    kernels_json,
    kernels_report,
    provenance_json,
    provenance_report,
    separate_json,
    separate_report,
)


@attrs.frozen(eq=False)
class ModelCosts:
    """The costs of a model under each chosen layout.

    costs: of the layouts of one mesh. limits: the changes that a memory limit makes under each of these. formulas: those of each
    of these, if they are to be shown. multi_mesh: the costs of the layouts of several meshes.
    """

    model: str
    costs: Sequence[PlacedCost]
    limits: Sequence[Recomputation | None]
    formulas: Sequence[LayoutFormulas]
    multi_mesh: Sequence[MultiMeshCost]

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        layouts = [layout_json(each) for each in self.costs]
        for entry, each in zip(layouts, self.formulas, strict=False):
            entry["formulas"] = formulas_json(each)
        for entry, limit in zip(layouts, self.limits, strict=True):
            entry |= {"recomputation": limit.record()} if limit is not None else {}
        return {"model": self.model, "layouts": [*layouts, *map(multi_mesh_cost_json, self.multi_mesh)]}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the costs by line and side by side, or the formulas; `texts` holds each file's text by name."""
        if self.formulas:
            return formula_report(self.formulas)
        parts = list[str]()
        for cost, limit in zip(self.costs, self.limits, strict=True):
            parts += [layout_report(cost, texts)] + ([limit.report(texts)] if limit else [])
        parts += [multi_mesh_cost_text(each, texts) for each in self.multi_mesh]
        return "\n".join([*parts, *([comparison(self.costs)] if self.costs else [])])


def model_costs(file: str, choice: Choice, sources: Sources, symbolic: bool = False) -> ModelCosts:
    """Return the costs of a model under the chosen layouts. symbolic: with formulas. Raises `CompileError` and `UsageError`."""
    selection = select(file, choice, sources, every_layout=True, or_multi_mesh=not symbolic)
    program = selection.program
    lowered = [(case, case.lower(program)) for case in each_of(selection.cases, "layout")]
    return ModelCosts(
        program.name,
        [layout_cost(each, device=case.device) for case, each in lowered],
        [recomputation(program, case, each) for case, each in lowered],
        [formulas(each) for _, each in lowered] if symbolic else [],
        [multi_mesh_cost(each.program(program)) for each in selection.multi_mesh],
    )


def case_cost(case: PlacementCase | MultiMeshCase, program: Program) -> dict[str, Any]:
    """Return the entry of a layout of several meshes in the record. Raises `UsageError` for a placement."""
    if isinstance(case, PlacementCase):
        raise UsageError(f"`{case.name}` is a placement: `simulate` returns what each of its devices does")
    return multi_mesh_cost_json(multi_mesh_cost(case.program(program)))


# The difference of two layouts


def diff(
    file: str, choice: Choice, layouts: Sequence[str], target: str | None, sources: Sources
) -> StepDifference:
    """Compare the costs of a model under two layouts. Raises `CompileError` and `UsageError`.

    layouts: the two layouts, or none for the first two of the file. target: a machine on which the lines take seconds.
    """
    if len(layouts) not in (0, 2):
        raise UsageError("diff compares two layouts: --layout A --layout B")
    priced: list[ComparedLayout] = []
    chosen: Sequence[str | None] = layouts or [None]
    for layout in chosen:
        asked = attrs.evolve(choice, layout=layout)
        selection = select(file, asked, sources, every_layout=not layouts, or_multi_mesh=True)
        cases: tuple[LayoutOnMesh | MultiMeshCase, ...] = (*selection.cases, *selection.multi_mesh)
        for case in cases[: 2 - len(priced)]:
            hardware = target_of(target, selection.hardware, sources) if target else None
            if hardware is not None and target is not None:
                check_room(hardware, case.mesh, target)
            if isinstance(case, MultiMeshCase):
                priced.append(ComparedLayout.of_meshes(case.program(selection.program), hardware))
                continue
            case = case if hardware is None else case.on(hardware)
            program = attrs.evolve(case, layout=_distinct(case.layout, priced)).lower(selection.program)
            priced.append(ComparedLayout.of(program, hardware, device=case.device))
    if len(priced) < 2:
        raise UsageError(f"{file} has no two layouts to compare: say --layout A --layout B")
    one, other = priced
    return difference_of(one, other, one.hardware.caveat if one.hardware else ())


def _distinct(layout: Layout, before: list[ComparedLayout]) -> Layout:
    """Rename a layout if another one has its name: all rules of the command line are called `given`."""
    same_name = any(each.cost.layout.name == layout.name for each in before)
    if not same_name or any(each.cost.layout == layout for each in before):
        return layout
    return attrs.evolve(layout, name=f"{layout.name}_2")


# The causes of collectives


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
            **({} if limit is None else {"recomputation": limit.record()}),
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the collectives with their causes, by line and by rule. texts: each file's text by name."""
        file, limit = self.cost.file, self.limit
        report = provenance_report(self.sent, file, texts)
        report += separate_report(self.separate, file) + kernels_report(self.refused, file)
        return "\n".join([*heading(self.cost), "", report, *([limit.report(texts)] if limit else [])])


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
