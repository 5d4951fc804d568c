"""The difference in cost of two layouts, by line of the file, for `mtfc diff`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.types import Layout
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.cases import MultiMeshCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import check_room, target_of
from mtfc.meshes.multi_mesh_cost import multi_mesh_cost
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.multi_mesh_step import multi_mesh_step
from mtfc.reports.difference import ComparedLayout, StepDifference, difference_of


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
                priced.append(_on_meshes(case.program(selection.program), hardware))
                continue
            case = case if hardware is None else case.on(hardware)
            program = attrs.evolve(case, layout=_distinct(case.layout, priced)).lower(selection.program)
            priced.append(ComparedLayout.of(program, hardware, device=case.device))
    if len(priced) < 2:
        raise UsageError(f"{file} has no two layouts to compare: say --layout A --layout B")
    one, other = priced
    return difference_of(one, other, one.hardware.caveat if one.hardware else ())


def _on_meshes(program: MultiMeshProgram, hardware: Hardware | None) -> ComparedLayout:

    if hardware is None:
        return ComparedLayout.of_meshes(multi_mesh_cost(program))
    return ComparedLayout.of_step(multi_mesh_step(program, hardware), hardware)


def _distinct(layout: Layout, before: list[ComparedLayout]) -> Layout:
    """Rename a layout if another one has its name: all rules of the command line are called `given`."""
    same_name = any(each.cost.layout.name == layout.name for each in before)
    if not same_name or any(each.cost.layout == layout for each in before):
        return layout
    return attrs.evolve(layout, name=f"{layout.name}_2")
