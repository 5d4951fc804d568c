"""Test that tables and costs of forms are those of the parts' own regions and functions."""

from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.compiler.ir.core import Program, Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.operators.operator_graph import OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts, Region
from mtfc.placements.operators.strategy import Degrees
from mtfc.placements.placement_search import PlacementSpace, placement_space
from mtfc.placements.strategy_tasks import StepForms, middle, part_cost
from mtfc.placements.task_graph_builder import BOUNDS, FIRST, KEPT, PARTS, PIECES, ROWS, SIZE
from tests.placements import placement_programs
from tests.sampling import some

EXAMPLES = Path(__file__).parents[2] / "examples"
NETWORKS: dict[str, dict[str, int]] = {"alexnet": {}, "resnet101": {}, "nmt": {"source": 2, "target": 2}}
DEVICES = 12


def prepared(name: str) -> Program:
    if name in placement_programs.PROGRAMS:
        return placement_programs.prepared(name)
    path = EXAMPLES / f"{name}.mtf"
    chosen = choose(path.read_text("utf-8"), str(path), Choice(None, None, None, NETWORKS[name]))
    return run(chosen.program, simplification())


@cache
def space_of(
    name: str, target: str = "p100_cluster", overhead: float = 0.0, overlap: float = 1.0
) -> PlacementSpace:
    hardware = find_hardware(target, {})
    device = attrs.evolve(hardware.device, overhead=overhead, overlap=overlap)
    return placement_space(prepared(name), attrs.evolve(hardware, device=device), DEVICES)


def drawn(space: PlacementSpace, count: int) -> list[tuple[OperatorStep, Degrees]]:
    """Draw random steps at random legal degrees."""
    alike = {id(own): (each, own) for each, own in zip(space.graph.operators, space.choices, strict=True)}
    every = [(s, d) for each, own in alike.values() for s in each.steps for d in own.degrees]
    return Random(0).sample(every, min(count, len(every)))


CASES = [*placement_programs.PROGRAMS, *NETWORKS]


@pytest.mark.parametrize(
    ("name", "costs"),
    [*product(CASES, [{}]), *product(some(CASES, 4), [{"overhead": 1e-6, "overlap": 0.4}])],
)
def test_parts_take_and_keep_what_their_own_functions_do(name: str, costs: dict[str, float]) -> None:
    space = space_of(name, **costs)  # type: ignore[arg-type]
    forms = space.evaluator.tasks.forms
    for step, degrees in drawn(space, 60):
        form, parts = forms.number(step, degrees), _parts(space, step, degrees)
        local = forms.flow.local(step, parts, middle(degrees))
        forward, backward, kept = part_cost(local, forms.devices[0])
        assert forms.tables.seconds[form].tolist() == [forward, backward]
        assert forms.tables.forms[form, [PARTS, KEPT]].tolist() == [parts.count, kept]


@pytest.mark.parametrize("name", CASES)
def test_tables_have_the_regions_of_all_parts(name: str) -> None:
    space = space_of(name)
    forms = space.evaluator.tasks.forms
    for step, degrees in drawn(space, 40):
        form, parts = forms.number(step, degrees), _parts(space, step, degrees)
        need, table = parts.needs[step], forms.tables.forms[form, FIRST]
        for value in step.outputs:
            found = _table(forms, table, value, parts.count)
            assert np.array_equal(found, _boxes(value, need.owned(value), parts))
            bytes_of_all = forms.tables.tables[table, SIZE] * len(parts.groups(value))
            assert bytes_of_all == value.type.size * ITEM_BYTES[value.type.dtype]
            table += 1
        for value in (*step.inputs, *step.arguments):
            found = _table(forms, table, value, parts.count)
            assert np.array_equal(found, _boxes(value, need.values.get(value, {}), parts))
            table += 1


def _parts(space: PlacementSpace, step: OperatorStep, degrees: Degrees) -> OperatorParts:
    return OperatorParts(space.graph.operator_of[step], degrees)


def _table(forms: StepForms, table: int, value: Value, parts: int) -> Any:
    """[part, dim, end]"""
    known = forms.tables
    pieces, rows, bounds = known.tables[table, [PIECES, ROWS, BOUNDS]]
    piece = known.numbers[rows : rows + parts]
    shape = (pieces, len(value.type.dims), 2)
    assert sorted(set(piece.tolist())) == list(range(pieces))
    return known.numbers[bounds : bounds + np.prod(shape)].reshape(shape)[piece]


def _boxes(value: Value, region: Region, parts: OperatorParts) -> Any:
    boxes = [parts.box(region, part) for part in range(parts.count)]
    ends = [[each.get(dim.name, (0, dim.size)) for dim in value.type.dims] for each in boxes]
    return np.array(ends, np.int64).reshape(parts.count, -1, 2)
