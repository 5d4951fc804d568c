"""Test placements as text, and the diagnostics of wrong ones."""

from random import Random

import pytest

from mtfc.compiler.diagnostics import CompileError, Diagnostics
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.frontend.syntax.format import format_source
from mtfc.placements.declarations import placement_text, strategy_of
from mtfc.placements.operators.cotangent_flow import cotangent_flow
from mtfc.placements.operators.operator_graph import operators_of
from mtfc.placements.operators.strategy import (
    Configuration,
    Strategy,
    configurations,
    random_strategy,
)
from tests.harness import load
from tests.placements.placement_programs import PROGRAMS, prepared


def read(name: str, text: str) -> Strategy:
    """Return the strategy of a placement at the end of a program."""
    (placement,) = load(PROGRAMS[name] + text).placements
    return strategy_of(placement, operators_of(prepared(name)), Diagnostics())


@pytest.mark.parametrize("name", PROGRAMS)
def test_strategies_are_read_back_as_they_were_written(name: str) -> None:
    graph = operators_of(prepared(name))
    choices, random = configurations(cotangent_flow(graph), find_hardware("k80_cluster", {}), 8), Random(1)
    for _ in range(5):
        chosen = random_strategy(choices, random)
        text = placement_text("found", 8, graph, chosen)
        assert read(name, text) == chosen
        assert format_source(text) == text


def test_parts_are_numbered_in_the_order_of_the_text() -> None:
    own, other = (
        read("dense", f"placement p on 4 = {{ h: {{ {degrees} }} on [{devices}] }}")[0]
        for degrees, devices in (("batch: 2, hidden: 2", "0, 1, 2, 3"), ("hidden: 2, batch: 2", "0, 2, 1, 3"))
    )
    assert own == other == Configuration((("batch", 2), ("hidden", 2)), (0, 1, 2, 3))


def test_operators_that_are_not_named_are_whole_on_device_0() -> None:
    chosen = read("dense", "placement p on 4 = { logits: { batch: 2 } on [3, 3] }")
    assert [each.devices for each in chosen] == [(0,), (3, 3), (0,)]


@pytest.mark.parametrize(
    ("name", "entry", "code", "message"),
    [
        ("dense", "logit: {} on [0]", "E317", "the model has no operator `logit`"),
        ("dense", "loss: { classes: 2 } on [0, 1]", "E319", "operator `loss` cannot be split in `classes`"),
        ("attention", "weights: { memory: 2 } on [0, 1]", "E319", "operator `weights` cannot be split in `memory`"),
        ("convolutions", "y_3: { h2: 2 } on [0, 1]", "E319", "operator `y_3`: shift needs `h2` whole"),
    ],
)  # fmt: skip
def test_illegal_configurations_of_operators_are_refused(
    name: str, entry: str, code: str, message: str
) -> None:
    with pytest.raises(CompileError) as raised:
        read(name, f"placement p on 2 = {{ {entry} }}")
    (found,) = raised.value.diagnostics
    assert (found.code, found.message) == (code, message)
