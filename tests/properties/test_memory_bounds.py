"""A search's lower bound of the memory of layouts never exceeds the memory of a layout."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from mtfc.compiler.search.global_layouts.layout_bound import LayoutBound
from mtfc.compiler.search.global_layouts.layout_space import layout_of, space_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.frontend.hardware_targets import find_hardware
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, load
from tests.properties.campaign import FEW_EXAMPLES, holds_for
from tests.search.layout_bounds import layouts

LAYOUTS = 12
"""The number of layouts that are compiled for each program."""

PROGRAMS: st.SearchStrategy[HasSource] = st.one_of(
    programs(), programs(Options(spatial=True, statements=5, layouts=1))
)


@holds_for(PROGRAMS, FEW_EXAMPLES)
def test_no_layout_holds_less_than_its_bound(program: HasSource) -> None:
    check_memory(program.source, LAYOUTS)


def check_memory(source: str, most: int | None = None) -> None:
    """Compare under all layouts, or a fixed number of them, with all of a layout's rules decided and with only some. The machine
    does not pad arrays.
    """
    module, hardware = load(source), find_hardware("k80_cluster", {})
    program, mesh = module.programs[0], module.layouts[0].mesh
    pricer, space = LayoutPricer.of(program, hardware), space_of(program.function("forward"), storage=True)
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), hardware.device), mesh, hardware)
    rows, columns = layouts(space, mesh, most), range(len(space.columns))
    chosen = [layout_of(space, row.tolist(), mesh) for row in rows]
    held = [pricer(mesh, layout).memory for layout in chosen]
    for number in (len(columns), len(columns) - len(space.storing), len(columns) // 2, 0):
        decided = frozenset(columns[:number])
        known = rows * np.isin(columns, sorted(decided)).astype(np.uint8)
        for layout, bytes, least in zip(chosen, held, bound.memory(bound.known(known, decided)), strict=True):
            assert least <= bytes, (layout, decided)
