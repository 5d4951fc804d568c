"""Computation, communication and memory of one device under each layout, for `mtfc cost`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mtfc.compiler.activity import each_of
from mtfc.driver.errors import UsageError
from mtfc.driver.explained_layout import recomputation
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.placement_case import PlacementCase
from mtfc.driver.loading.selection import Selection, select
from mtfc.driver.loading.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.cost.volumes import PlacedCost
    from mtfc.compiler.ir.core import Program
    from mtfc.driver.jax_functions.sent_bytes import BytesComparison
    from mtfc.meshes.multi_mesh_cost import MultiMeshCost
    from mtfc.reports.recompute_report import Recomputation


def cost_record(file: str, choice: Choice, sources: Sources, symbolic: bool = False) -> dict[str, Any]:
    """Return the JSON record, with formulas if `symbolic`; see `docs/command.md`. Raises `CompileError` and `UsageError`."""
    from mtfc.reports.cost_json import costs_json
    from mtfc.reports.formula_report import formulas
    from mtfc.reports.meshes_report import multi_mesh_cost_json
    from mtfc.reports.recompute_report import recompute_json

    selection, programs, limits = _programs(file, choice, sources, symbolic)
    symbols = [formulas(program) for program in programs] if symbolic else []
    costs = _costs(selection, programs)
    record: dict[str, Any] = {"model": selection.program.name, "layouts": []}
    record |= costs_json(costs, symbols) if costs else {}
    for entry, limit in zip(record["layouts"], limits, strict=True):
        entry |= {"recomputation": recompute_json(limit)} if limit is not None else {}
    record["layouts"] += map(multi_mesh_cost_json, _multi_mesh(selection))
    return record


def cost_text(file: str, choice: Choice, sources: Sources, symbolic: bool = False) -> str:
    """Return the costs by line and side by side, or as formulas if `symbolic`. Raises `CompileError` and `UsageError`."""
    from mtfc.reports.cost_report import comparison, layout_report
    from mtfc.reports.formula_report import formula_report, formulas
    from mtfc.reports.meshes_report import multi_mesh_cost_text
    from mtfc.reports.recompute_report import recompute_report

    selection, programs, limits = _programs(file, choice, sources, symbolic)
    if symbolic:
        return formula_report([formulas(program) for program in programs])
    costs, multi_mesh = _costs(selection, programs), _multi_mesh(selection)
    every = [*costs, *(cost for each in multi_mesh for cost in each.meshes)]
    files = [charge.span.file for cost in every for charge in cost.step if charge.span]
    texts = sources.with_library([*files, *(name for each in limits if each for name in each.files)])
    parts = []
    for cost, limit in zip(costs, limits, strict=True):
        parts += [layout_report(cost, texts)] + ([recompute_report(limit, texts)] if limit else [])
    parts += [multi_mesh_cost_text(each, texts) for each in multi_mesh]
    return "\n".join([*parts, *([comparison(costs)] if costs else [])])


def case_cost(case: PlacementCase | MultiMeshCase, program: Program) -> dict[str, Any]:
    """Return the entry of a layout of several meshes in the record. Raises `UsageError` for a placement."""
    from mtfc.meshes.multi_mesh_cost import multi_mesh_cost
    from mtfc.reports.meshes_report import multi_mesh_cost_json

    if isinstance(case, PlacementCase):
        raise UsageError(f"`{case.name}` is a placement: `simulate` returns what each of its devices does")
    return multi_mesh_cost_json(multi_mesh_cost(case.program(program)))


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


def _programs(
    file: str, choice: Choice, sources: Sources, symbolic: bool
) -> tuple[Selection, list[Program], list[Recomputation | None]]:
    """Return the program of one processor under each layout of one mesh, and what a memory limit changes in it."""
    selection = select(file, choice, sources, every_layout=True, or_multi_mesh=not symbolic)
    programs = [case.lower(selection.program) for case in each_of(selection.cases, "layout")]
    pairs = zip(selection.cases, programs, strict=True)
    return selection, programs, [recomputation(selection.program, case, program) for case, program in pairs]


def _costs(selection: Selection, programs: Sequence[Program]) -> list[PlacedCost]:
    """Return the costs of the layouts of one mesh."""
    from mtfc.compiler.cost.volumes import layout_cost

    pairs = zip(selection.cases, programs, strict=True)
    return [layout_cost(program, device=case.device) for case, program in pairs]


def _multi_mesh(selection: Selection) -> list[MultiMeshCost]:
    """Return the costs of the layouts of several meshes."""
    from mtfc.meshes.multi_mesh_cost import multi_mesh_cost

    return [multi_mesh_cost(case.program(selection.program)) for case in selection.multi_mesh]
