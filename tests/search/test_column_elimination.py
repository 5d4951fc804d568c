"""Bounds by elimination of columns: below all prices, exact where tables are small, and of use to the search."""

from time import monotonic

import numpy as np
import pytest

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.tables.collective_tables import CollectiveTables
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.global_layouts import column_elimination
from mtfc.compiler.search.global_layouts.column_elimination import ColumnElimination, ColumnEliminations
from mtfc.compiler.search.global_layouts.layout_bound import LayoutBound
from mtfc.compiler.search.global_layouts.layout_space import LayoutSpace, layout_of, space_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.searching.meshes import meshes
from mtfc.frontend.hardware_targets import find_hardware
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import AMPLE, HasSource, load
from tests.properties.campaign import holds_for
from tests.search.layout_bounds import (
    NODES,
    SLOW_CORES,
    SLOW_LINKS,
    SLOW_TPU,
    TORUS,
    example,
    layouts,
    search,
)

SPATIAL = programs(Options(spatial=True, statements=5, layouts=1))

EXAMPLES = 8

LINE = Mesh("grid", (("rows", 2), ("cols", 2)))

NORMALIZED = """
dim batch = 64
dim io = 8
dim hidden = 8
model m(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.1)
  param v: [hidden, io] = normal(stddev = 0.1)
  y = einsum(x, w -> [batch, hidden])
  c = y - mean(y, over = [batch])
  n = c * rsqrt(mean(square(c), over = [batch]) + 0.001)
  z = einsum(relu(n), v -> [batch, io])
  d = z - mean(z, over = [batch])
  loss = mean(square(d * rsqrt(mean(square(d), over = [batch]) + 0.001)))
  return loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


def eliminated(
    program: Program, space: LayoutSpace, mesh: Mesh, hardware: Hardware
) -> tuple[LayoutBound, ColumnElimination, int]:
    """Return a bound, its elimination, and the number of columns of a single choice."""
    pricer, closed = LayoutPricer.of(program, hardware), space.decided(mesh)
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), hardware.device), mesh, hardware)
    found = ColumnEliminations().on(bound, closed)
    assert found is not None
    return bound, found, len(closed)


def check_elimination(program: Program, mesh: Mesh, hardware: Hardware, storage: bool, most: int) -> None:
    """Compare the bounds of all depths with prices, and with each other: deciding a column makes no bound smaller."""
    space, pricer = space_of(program.function("forward"), storage=storage), LayoutPricer.of(program, hardware)
    _, found, closed = eliminated(program, space, mesh, hardware)
    assert len(found.order) + closed == len(space.columns)
    rows = layouts(space, mesh, most)
    prices = np.array([pricer(mesh, layout_of(space, row.tolist(), mesh)).seconds for row in rows])
    before = np.zeros(len(rows))
    for depth in range(len(found.order) + 1):
        bounds = found.seconds(rows, depth)
        assert (before <= bounds * (1 + 1e-9) + 1e-15).all(), depth
        assert (bounds <= prices * (1 + 1e-9)).all(), depth
        before = bounds


@pytest.fixture(autouse=True)
def _every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_elimination, "MANY_COLUMNS", 0)


@holds_for(programs(), EXAMPLES)
def test_no_layout_costs_less_than_its_elimination(program: HasSource) -> None:
    column_elimination.MANY_COLUMNS = 0  # a property runs without fixtures
    module = load(program.source)
    for hardware in (SLOW_LINKS, NODES, TORUS, SLOW_CORES, SLOW_TPU):
        for storage in (False, True):
            check_elimination(module.programs[0], module.layouts[0].mesh, hardware, storage, 3)


test_no_layout_of_windows_costs_less = holds_for(SPATIAL, EXAMPLES // 2)(
    test_no_layout_costs_less_than_its_elimination.check
)


@pytest.mark.parametrize("bits", [0, 2, 4])
def test_small_tables_give_bounds_too(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room for sums of tables each table has a minimum of its own, and large terms leave columns open."""
    monkeypatch.setattr(column_elimination, "BITS", bits)
    monkeypatch.setattr(column_elimination, "TERM_BITS", bits)
    for storage in (False, True):
        check_elimination(load(NORMALIZED).programs[0], LINE, NODES, storage, 6)


@pytest.mark.parametrize("storage", [False, True])
def test_the_least_bound_is_that_of_a_layout(storage: bool) -> None:
    """With room for all sums, the bound of undecided columns is that of the best layout."""
    program = load(NORMALIZED).programs[0]
    space = space_of(program.function("forward"), storage=storage)
    _, found, closed = eliminated(program, space, LINE, NODES)
    rows = layouts(space, LINE)
    least = found.seconds(rows, len(found.order)).min()
    start = space.start(space.decided(LINE), LINE)
    np.testing.assert_allclose(found.seconds(start, 0), least, 1e-9)
    assert least > 0 and closed < len(space.columns)


def test_statistics_of_batches_wait_for_each_other() -> None:
    """Each mean is summed over the batch before the next one, in the forward and in the backward pass."""
    program = load(NORMALIZED).programs[0]
    space, mesh = space_of(program.function("forward")), Mesh("grid", (("rows", 4),))
    bound, found, _ = eliminated(program, space, mesh, SLOW_LINKS)
    pricer = LayoutPricer.of(program, SLOW_LINKS)
    row = np.array([[int(column.dim.name == "batch") for column in space.columns]], np.uint8)
    price = pricer(mesh, layout_of(space, row[0].tolist(), mesh))
    assert found.seconds(row, len(found.order))[0] > 0.8 * price.seconds
    assert bound.seconds(bound.exactly(row))[0] > 0.8 * price.seconds


@pytest.mark.parametrize("hardware", [SLOW_LINKS, NODES, TORUS, find_hardware("h100", {})])
def test_parts_of_a_latency_are_no_more_than_the_whole(hardware: Hardware) -> None:
    for mesh in meshes(16, 3):
        tables = CollectiveTables(mesh, hardware)
        whole = tables.gathering(0)[:, 0, 0]
        for mask in range(1, len(whole)):
            parts = [x for i, x in enumerate(tables.starting) if mask >> i & 1]
            assert sum(parts) <= whole[mask] * (1 + 1e-9), (mesh.axes, mask)
        assert max(tables.starting) > 0


@pytest.mark.parametrize(
    ("name", "hardware"), [("lenet", SLOW_LINKS), ("two_layer", NODES), ("rnntc", TORUS)]
)
def test_the_optimum_is_the_same(name: str, hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    program = example(name)
    pricer = LayoutPricer.of(program, hardware)
    step, forward = pricer.undistributed(), program.function("forward")

    def best() -> float:
        found = search(step, forward, [*meshes(4, 2)], hardware, pricer, monotonic() + AMPLE)
        assert found.is_optimal
        return found.objective

    by_elimination = best()
    monkeypatch.setattr(column_elimination, "MANY_COLUMNS", 1 << 10)
    assert best() == pytest.approx(by_elimination)
