"""No bound of an effect exceeds its exact cost: random programs under random layouts, on all machines of the library."""

from collections.abc import Iterator, Mapping

import numpy as np
from hypothesis import strategies as st

from mtfc.compiler.cost.effects.memory import memory_of
from mtfc.compiler.cost.effects.roofline import computation_of
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.step_time import lanes_of, seconds_of
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.global_layouts.layout_bound import LayoutBound
from mtfc.compiler.search.global_layouts.layout_space import LayoutSpace, Rows, layout_of, space_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.frontend.hardware_targets import find_hardware, library_machines
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, load
from tests.properties.campaign import holds_for
from tests.search.layout_bounds import NODES, SLOW_CORES, SLOW_LINKS, SLOW_TPU, effects_of

PROGRAMS = 24
"""Programs of each kind; `make fuzz` tries more."""

ROUNDING = 1 + 1e-9

MACHINES: Mapping[str, Hardware] = {
    **{name: find_hardware(name, {}) for name in library_machines()},
    **{machine.name: machine for machine in (NODES, SLOW_CORES, SLOW_LINKS, SLOW_TPU)},
}

REORDERING = {"data movement", "stored parameters"}

EFFECTS_OF = {
    "all_reduce": {"pending sums"},
    "all_gather": {"pending sums", *REORDERING},
    "reduce_scatter": {"pending sums"},
    "all_to_all": REORDERING,
    "permute": {"halos", *REORDERING},
}
"""Kind of collective -> the effects that its seconds belong to."""

COMMUNICATION = ("pending sums", "data movement", "stored parameters", "halos")

Case = tuple[HasSource, str, int]


def cases(**options: object) -> st.SearchStrategy[Case]:
    """Draw a program, a machine, and a number from which layouts follow."""
    drawn = programs(Options(statements=4, layouts=1, **options))  # type: ignore[arg-type]
    return st.tuples(drawn, st.sampled_from(sorted(MACHINES)), st.integers(0, 2**16))


@holds_for(cases(), PROGRAMS)
def test_no_effect_costs_less_than_its_bound(case: Case) -> None:
    program, machine, seed = case
    check_effects(program.source, MACHINES[machine], seed)


test_no_effect_of_windows_costs_less_than_its_bound = holds_for(cases(spatial=True), PROGRAMS)(
    test_no_effect_costs_less_than_its_bound.check
)

test_no_effect_of_micro_batches_costs_less_than_its_bound = holds_for(cases(accumulated=True), PROGRAMS)(
    test_no_effect_costs_less_than_its_bound.check
)


def check_effects(source: str, hardware: Hardware, seed: int) -> None:
    """Compare one random layout that may store parameters otherwise, whole and with some columns decided."""
    module, random = load(source), np.random.default_rng(seed)
    program, mesh = module.programs[0], module.layouts[0].mesh
    space = space_of(program.function("forward"), storage=True)
    row = random_row(space, mesh, random)
    pricer, layout = LayoutPricer.of(program, hardware), layout_of(space, row[0].tolist(), mesh)
    step = StepFacts.of(pricer.undistributed(), hardware.device)
    bound, beside = (LayoutBound(space, step, mesh, hardware, overlaps) for overlaps in (False, True))
    placed, price = pricer.lowered(mesh, layout), pricer(mesh, layout)
    columns = frozenset(range(len(space.columns)))
    effects = {name: float(least[0]) for name, least in effects_of(bound, bound.known(row, columns)).items()}
    for name, least in effects.items():
        assert least <= exact(name, placed, mesh, hardware) * ROUNDING, (name, layout)
    _, communication = seconds_of(placed, Topology.of(mesh, hardware), hardware.device)
    assert sum(effects[name] for name in COMMUNICATION) <= communication * ROUNDING, layout
    for decided in (columns, *some_columns(space, random)):
        known = bound.known(row * np.isin(sorted(columns), sorted(decided)).astype(np.uint8), decided)
        assert bound.seconds(known)[0] <= price.serial * ROUNDING, (layout, decided)
        assert beside.seconds(known)[0] <= price.seconds * ROUNDING, (layout, decided)
        assert bound.flops(known)[0] <= price.compute * ROUNDING, (layout, decided)
        assert bound.memory(known)[0] <= price.memory, (layout, decided)


def exact(effect: str, function: Function, mesh: Mesh, hardware: Hardware) -> float:
    """Return the cost of an effect for one processor of a placed function."""
    if effect == "kernels":
        return computation_of(function, mesh, hardware.device)
    if effect == "memory":
        return whole(memory_of(function, mesh, Numbers(mesh)).total)
    return communication(effect, function, Topology.of(mesh, hardware))


def communication(effect: str, function: Function, topology: Topology) -> float:
    """Return the seconds of the collectives that belong to an effect."""
    total = 0.0
    for eqn in function.body:
        if eqn.regions:
            total += dim_of(eqn).size * communication(effect, region_of(eqn), topology)
        elif effect in EFFECTS_OF.get(KIND_OF.get(eqn.op, ""), ()):
            total += max(lanes_of(eqn, topology).values(), default=0.0)
    return total


def random_row(space: LayoutSpace, mesh: Mesh, random: np.random.Generator) -> Rows:
    """Choose the axes of one column after the other."""
    row = np.zeros((1, len(space.columns)), np.uint8)
    for column in range(len(space.columns)):
        rows, _ = space.extended(row, column, frozenset(range(column)), mesh)
        row = rows[[random.integers(len(rows))]]
    return row


def some_columns(space: LayoutSpace, random: np.random.Generator) -> Iterator[frozenset[int]]:
    """Yield the columns of the computation, and a random half of all."""
    columns = range(len(space.columns))
    yield frozenset(columns) - space.storing
    yield frozenset(column for column in columns if random.integers(2))
