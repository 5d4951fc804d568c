"""Test that programs are unrolled and grouped into operators, and that parts get the regions that they need."""

import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.placements.operators.operator_graph import Operator, operators_of
from mtfc.placements.operators.operator_parts import OperatorParts, Unsplittable
from mtfc.placements.operators.unroll_loops import unroll
from tests.placements.placement_programs import PROGRAMS, arguments, prepared, sliced


@pytest.mark.parametrize("name", PROGRAMS)
def test_unrolled_programs_give_the_same(name: str) -> None:
    program = prepared(name)
    function, arrays = program.function("forward"), arguments(name)
    unrolled = unroll(function)
    assert not any(eqn.regions for eqn in unrolled.function.body)
    wanted = interpret(function, program, arrays)
    found = interpret(unrolled.function, program, sliced(unrolled, arrays))
    for output, array in wanted.items():
        np.testing.assert_allclose(found[output], array, rtol=1e-5, atol=1e-6)


def test_steps_of_layers_follow_each_other_without_being_stacked() -> None:
    """The outputs of a recurrent layer are stacked only for the dense layer that reads them."""
    unrolled = unroll(prepared("recurrent").function("forward")).function
    assert sum(eqn.op == "concat" for eqn in unrolled.body) == 1
    names = {argument.value.name for argument in unrolled.arguments if argument.role == "parameter"}
    assert {"layers.lstm.w[0]", "layers.lstm.w[1]"} <= names and "layers.lstm.w" not in names


def test_an_lstm_step_is_one_operator_and_batch_normalization_belongs_to_its_convolution() -> None:
    recurrent = operators_of(prepared("recurrent"))
    steps = [o for o in recurrent.operators if sum(e.op == "einsum" for e in o.steps[0].equations) == 2]
    assert len(steps) == 2 * 3
    convolution = operators_of(prepared("convolutions")).operators[0]
    assert len(convolution.steps) == 3
    assert [dim.name for dim in convolution.dims] == ["batch", "h1", "c1"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_equation_belongs_to_an_operator_after_what_it_uses(name: str) -> None:
    graph = operators_of(prepared(name))
    there = {eqn for step in graph.steps for eqn in step.equations}
    assert there == set(graph.function.body)
    for step in graph.steps:
        assert all(graph.makers[value].number < step.number for value in step.inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_own_every_element_of_an_output_once(name: str) -> None:
    """Values that lack the split dimension are whole in all parts."""
    graph = operators_of(prepared(name))
    for operator in graph.operators:
        for dim in operator.dims:
            for step, need in splits(operator, dim.name).needs.items():
                for value in step.outputs:
                    region = need.owned(value)
                    assert (dim.name in region) == (dim in value.type.dims and dim.name in need.spans)
                    if dim.name in region:
                        lengths = region[dim.name].high - region[dim.name].low
                        assert lengths.sum() == dim.size


def splits(operator: Operator, dim: str) -> OperatorParts:
    """Split an operator in two along a dimension if this is legal; else return the whole."""
    halves, whole = OperatorParts(operator, ((dim, 2),)), OperatorParts(operator, ())
    try:
        return halves if halves.needs else whole
    except Unsplittable:
        return whole


def test_windows_need_their_neighbours_elements() -> None:
    graph = operators_of(prepared("convolutions"))
    convolution = graph.operators[0]
    (x,) = (value for value in convolution.steps[0].arguments if value.name == "x")
    region = OperatorParts(convolution, (("h1", 2),)).needs[convolution.steps[0]].values[x]
    assert region["h1"].low.tolist() == [0, 3]
    assert region["h1"].high.tolist() == [5, 8]
