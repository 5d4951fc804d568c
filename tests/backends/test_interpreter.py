"""The reference interpreter, against JAX before placement, and against itself at every stage of a compilation."""

from typing import Any

import attrs
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtfc.backends.interpreter import Disagreement, Shards, assemble, distribute, interpret, processors
from mtfc.compiler.ir.core import Equation, Program, Value
from mtfc.compiler.ir.types import Rules, TensorType
from mtfc.compiler.passes import pipelines
from tests import oracle
from tests.backends import models
from tests.backends.cases import CASES
from tests.backends.small import DIMS, MESHES, Case, Move, data, moves

KNOWN_TO_ORACLE = oracle.ELEMENTWISE.keys() | oracle.REDUCTIONS.keys() | oracle.STRUCTURE.keys()


def told_by_oracle(case: Case) -> bool:
    """Return True if JAX can compute the program. Its `pad` has no stride."""
    body = case.program().function("forward").body
    return all(eqn.op in KNOWN_TO_ORACLE and eqn.attrs.get("stride", 1) == 1 for eqn in body)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if told_by_oracle(case)])
def test_every_op_means_what_jax_says(name: str) -> None:
    case = CASES[name]
    program = case.program()
    function, arrays = program.function("forward"), data(program)
    found = interpret(function, program, arrays)
    with jax.enable_x64(True):
        expected = oracle.evaluate(function, list(arrays.values()))
    for key, value in expected.items():
        assert found[key].dtype == value.dtype
        np.testing.assert_allclose(
            np.float64(found[key]), np.float64(value), rtol=case.tolerance, atol=case.tolerance
        )


@settings(max_examples=50)
@given(move=moves(), seed=st.integers(0, 9))
def test_distributed_arrays_assemble_to_the_original(move: Move, seed: int) -> None:
    shape = tuple(dim.size for dim in move.type.dims)
    whole = np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)
    shards = distribute(whole, move.type, move.mesh)
    assert {part.shape for part in shards.arrays} == {move.type.local_shape(move.mesh)}
    np.testing.assert_array_equal(assemble(shards), whole)


def test_parts_lie_where_the_first_named_axis_is_most_major() -> None:
    mesh = MESHES[1]
    by_cols_then_rows = TensorType("i32", (DIMS["b"],), (("cols", "rows"),))
    shards = distribute(np.arange(12, dtype=np.int32), by_cols_then_rows, mesh)
    starts = {
        (p["rows"], p["cols"]): part[0] for p, part in zip(processors(mesh), shards.arrays, strict=True)
    }
    assert starts == {(0, 0): 0, (1, 0): 2, (0, 1): 4, (1, 1): 6, (0, 2): 8, (1, 2): 10}


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 6), ("max", 3), ("min", 1)])
def test_pending_reductions_are_completed(reduction: str, expected: int) -> None:
    pending = TensorType("i32", (), (), ("rows",), reduction)
    shards = Shards(MESHES[0], pending, tuple(np.asarray(n, np.int32) for n in (1, 2, 3)))
    assert assemble(shards) == expected


RULES: list[dict[str, str]] = [
    {},
    {"a": "rows", "h": "cols"},
    {"b": "rows", "h": "cols"},
    {"a": "cols rows"},
    {"h": "rows", "b": "cols"},
]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("of", ["step", "gradients"])
def test_no_pass_changes_what_a_program_means(rules: dict[str, str], of: str) -> None:
    """All stages from the gradients on agree. Optimizer state is split if that is legal."""
    optimizer = Rules() if "b" in rules or "rows" in rules.get("h", "") else models.layout(b="rows").rules
    layout = attrs.evolve(models.layout(**rules), optimizer=optimizer)
    program = attrs.evolve(
        models.two_layer("momentum(0.25, momentum = 0.5)"),
        mesh=models.GRID,
        layout=layout,
    )
    arrays = arguments_of(pipelines.run(program, pipelines.differentiation(of)), of)
    stages: dict[str, dict[str, Any]] = {}

    def observe(each: Any, stage: Program, seconds: float) -> None:
        if stage.has_function(of):
            stages[str(each)] = interpret(stage.function(of), stage, arrays)

    pipelines.run(program, pipelines.default_pipeline(of), [observe])
    assert len(stages) > 10
    reference = stages["differentiate" if of == "step" else f"differentiate{{of={of}}}"]
    for name, found in stages.items():
        assert found.keys() == reference.keys()
        for key in found:
            np.testing.assert_allclose(
                found[key], reference[key], rtol=1e-4, atol=1e-5, err_msg=f"{name}: {key}"
            )


def arguments_of(program: Program, function: str) -> dict[str, Any]:
    random = np.random.default_rng(1)
    types = {a.value.name: a.value.type for a in program.function(function).arguments}
    return {
        name: random.normal(size=[dim.size for dim in type.dims]).astype("f4") for name, type in types.items()
    }


# The interpreter checks the promises of the types.


def lowered() -> Program:
    """Return y[a, c] of operands split over the dimension that is summed away."""
    return pipelines.lower(CASES["einsum"].program(), MESHES[1], models.layout(b="rows", a="cols"))


def with_body(program: Program, change: Any) -> Program:
    function = program.function("forward")
    return attrs.evolve(program, functions=(attrs.evolve(function, body=tuple(change(function.body))),))


def test_processors_that_should_agree_must() -> None:
    """The interpreter refuses a sum that no collective completes."""

    def forget(body: tuple[Equation, ...]) -> list[Equation]:
        (reduce,) = [eqn for eqn in body if eqn.op == "all_reduce"]
        kept = [eqn for eqn in body if eqn is not reduce]
        return [attrs.evolve(e, results=reduce.results) if e.results == reduce.operands else e for e in kept]

    program = lowered()
    interpret(program.function("forward"), program, data(program))
    wrong = with_body(program, forget)
    with pytest.raises(Disagreement, match="disagree"):
        interpret(wrong.function("forward"), wrong, data(wrong))


@pytest.mark.parametrize(
    "type",
    [
        TensorType("f64", (DIMS["a"], DIMS["c"]), (("cols",), ()), ("rows",)),
        TensorType("f32", (DIMS["a"], DIMS["c"]), ((), ()), ("rows",)),
    ],
)
def test_arrays_must_be_what_their_types_say(type: TensorType) -> None:
    def change(body: tuple[Equation, ...]) -> list[Equation]:
        return [attrs.evolve(e, results=(Value("wrong", type),)) if e.op == "einsum" else e for e in body]

    wrong = with_body(lowered(), change)
    with pytest.raises(Disagreement, match="einsum gives"):
        interpret(wrong.function("forward"), wrong, data(wrong))


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(Disagreement, match="cannot be"):
        distribute(np.zeros((2, 2), "f4"), TensorType("f32", (DIMS["a"],)), MESHES[0])
