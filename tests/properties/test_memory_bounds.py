"""A search's lower bound of the memory of layouts never exceeds the memory of a layout."""

import numpy as np
from hypothesis import strategies as st

from mtfc.compiler.analysis.liveness import PLAIN, KernelArrays
from mtfc.compiler.cost.device_models import inside_kernels
from mtfc.compiler.cost.effects.memory import memory_of
from mtfc.compiler.cost.sizes import Numbers, whole
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
    """Compare under all layouts, or a fixed number of them, with all of a layout's rules decided and with only some.

    Arrays count without the tiles of the TPU, which would hide a bound that is a little too large.
    """
    module, hardware = load(source), find_hardware("tpu_v2", {})
    program, mesh = module.programs[0], module.layouts[0].mesh
    inside = KernelArrays(inside=inside_kernels(mesh, hardware.device))
    pricer, space = LayoutPricer.of(program, hardware), space_of(program.function("forward"), storage=True)
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), hardware.device), mesh, hardware)
    rows, columns = layouts(space, mesh, most), range(len(space.columns))
    chosen = [layout_of(space, row.tolist(), mesh) for row in rows]
    lowered = [pricer.lowered(mesh, layout) for layout in chosen]
    held, on_tpu = (
        [whole(memory_of(each, mesh, Numbers(mesh), kernels).total) for each in lowered]
        for kernels in (PLAIN, inside)
    )
    for number in (len(columns), len(columns) - len(space.storing), len(columns) // 2, 0):
        decided = frozenset(columns[:number])
        known = rows * np.isin(columns, sorted(decided)).astype(np.uint8)
        masks = bound.known(known, decided)
        for layout, bytes, least in zip(chosen, held, bound.memory(masks), strict=True):
            assert least <= bytes, (layout, decided)
        for layout, bytes, least in zip(chosen, on_tpu, bound.memory_on_device(masks), strict=True):
            assert least <= bytes, (layout, decided, "on a TPU")
