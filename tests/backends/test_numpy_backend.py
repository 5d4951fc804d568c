"""The generated NumPy module against the reference interpreter: every op and collective, on every processor."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtfc.backends.interpreter import Shards, assemble, interpret, processors
from mtfc.backends.numpy.backend import generate, load
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value, walk
from mtfc.compiler.ir.ops import OPS, attention, calls, collectives
from mtfc.compiler.ir.sharding_rules import placed_types
from mtfc.compiler.ir.types import Layout, Mesh, Rules, TensorType
from mtfc.compiler.passes.pipelines import lower
from tests.backends import models
from tests.backends.cases import CASES, einsum, unary
from tests.backends.small import DIMS, MESHES, Case, Move, data, moves, placements
from tests.sampling import EVERY_CASE


def close(found: Any, expected: Any, tolerance: float) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(
            found.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance
        )


def run(program: Program, arrays: dict[str, Any], checked: bool = False) -> dict[str, Any]:
    module = load(generate(program, checked))
    outputs = module.forward({}, module.shard(arrays, module.INPUTS))
    return module.unshard(outputs, module.OUTPUTS["forward"])  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=14 if EVERY_CASE else 6)
@given(placement=placements())
def test_every_op_means_the_same_on_every_placement(name: str, placement: tuple[Mesh, Layout]) -> None:
    """The interpreter, before and after lowering, the module and the checked module have equal values and dtypes."""
    mesh, layout = placement
    equations = walk(known(name)[0].function("forward").body)
    values = {value for eqn in equations for value in (*eqn.operands, *eqn.results)}
    names = {dim.name for value in values for dim in value.type.dims}
    rules = tuple((dim, axes) for dim, axes in layout.rules.axes if dim in names)
    check_placement(name, mesh, Layout("drawn", Rules(rules)))


@cache
def known(name: str) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """Return the program of a case, its arguments and its results."""
    program = CASES[name].program()
    arrays = data(program)
    return program, arrays, interpret(program.function("forward"), program, arrays)


@cache
def check_placement(name: str, mesh: Mesh, layout: Layout) -> None:
    """Check a layout of the dimensions of a case once: most draws differ only in others."""
    program, arrays, expected = known(name)
    local = lower(program, mesh, layout)
    for found in (
        interpret(local.function("forward"), local, arrays),
        run(local, arrays),
        run(local, arrays, checked=True),
    ):
        assert found.keys() == expected.keys()
        for key in expected:
            close(found[key], expected[key], CASES[name].tolerance)


def test_there_is_a_case_for_every_op() -> None:
    covered = {eqn.op for case in CASES.values() for eqn in case.program().function("forward").body}
    elsewhere = {
        op.name for family in (attention, calls, collectives) for op in family.OPS
    }  # attention: tests/test_attention.py; calls: tests/jax_functions
    assert covered == OPS.keys() - elsewhere


# Collectives


def stacked(shards: Shards) -> Any:
    """Stack all processors' arrays, with one axis for each mesh axis: of length 1 if the value does not vary along it."""
    mesh, varying = shards.mesh, shards.type.varying(shards.mesh)
    whole = np.stack(shards.arrays).reshape(*mesh.sizes.values(), *shards.arrays[0].shape)
    return whole[tuple(slice(None) if axis in varying else slice(1) for axis in mesh.names)]


def moved(move: Move) -> Program:
    """Return a program of one collective, whose argument is placed as the move says."""
    x = Value("x", move.type)
    eqn = Equation(move.op, (x,), (x,), move.attributes)
    (type,) = placed_types(OPS[move.op], eqn, move.mesh)
    result = Value("y", type)
    function = Function(
        "forward", (Argument(x, "input"),), (attrs.evolve(eqn, results=(result,)),), (Output("y", result),)
    )
    return Program("move", {}, (), (function,), mesh=move.mesh)


def random_shards(type: TensorType, mesh: Mesh, seed: int) -> Shards:
    """Draw the arrays of all processors, different where they may differ."""
    random = np.random.default_rng(seed)
    different: dict[tuple[int, ...], Any] = {}
    arrays = []
    for place in processors(mesh):
        key = tuple(place[axis] for axis in type.varying(mesh))
        drawn = random.integers(-8, 8, type.local_shape(mesh)).astype(np.float32)
        arrays.append(different.setdefault(key, drawn))
    return Shards(mesh, type, tuple(arrays))


@settings(max_examples=150)
@given(move=moves(), seed=st.integers(0, 9))
def test_every_collective_does_what_its_types_say(move: Move, seed: int) -> None:
    """Results agree on every processor. Pending results have the same sum."""
    program = moved(move)
    source = random_shards(move.type, move.mesh, seed)
    module = load(generate(program))
    found = module.forward({}, {"x": stacked(source)})["y"]
    type = program.function("forward").outputs[0].value.type
    whole = np.broadcast_to(found, (*move.mesh.sizes.values(), *type.local_shape(move.mesh)))
    result = Shards(move.mesh, type, tuple(whole.reshape(-1, *type.local_shape(move.mesh))))
    np.testing.assert_array_equal(assemble(result), assemble(source))
    assert found.shape == stacked(result).shape


@settings(max_examples=50)
@given(move=moves())
def test_collectives_count_what_one_processor_puts_in(move: Move) -> None:
    module = load(generate(moved(move)))
    module.forward({}, {"x": stacked(random_shards(move.type, move.mesh, 0))})
    elements = move.type.local_size(move.mesh)
    counted = {"count": 1, "elements_per_device": elements, "bytes_per_device": 4 * elements}
    nothing = dict.fromkeys(counted, 0)
    assert {kind: counted if kind == move.op else nothing for kind in collectives.KINDS} == module.SENT


def test_variadic_all_reduce_of_several_dtypes_is_one_message() -> None:
    mesh = MESHES[1]
    values = [
        Value(f"x{i}", TensorType(dtype, (), (), ("rows",))) for i, dtype in enumerate(("f32", "f64", "i32"))
    ]
    results = [Value(f"y{i}", TensorType(value.type.dtype, ())) for i, value in enumerate(values)]
    eqn = Equation("all_reduce", tuple(values), tuple(results), {"axes": ("rows",)})
    outputs = tuple(Output(value.name, value) for value in results)
    function = Function("forward", tuple(Argument(value, "input") for value in values), (eqn,), outputs)
    module = load(generate(Program("several", {}, (), (function,), mesh=mesh)))
    arrays = {
        "x0": np.full((2, 1), 1.5, "f4"),
        "x1": np.full((2, 1), 0.1),
        "x2": np.full((2, 1), 2**30, "i4"),
    }
    found = module.unshard(module.forward({}, arrays), module.OUTPUTS["forward"])
    assert {name: (x.dtype.name, x.item()) for name, x in found.items()} == {
        "y0": ("float32", 3.0), "y1": ("float64", 0.2), "y2": ("int32", -(2**31))
    }  # fmt: skip
    assert module.SENT["all_reduce"] == {"count": 1, "elements_per_device": 3, "bytes_per_device": 4 + 8 + 4}


def test_extrema_of_truth_values_can_be_pending() -> None:
    x = np.asarray([[False] * 6, [False] * 5 + [True], [True] * 6])
    for op, expected in (("any", [False, True, True]), ("all", [False, False, True])):
        case = Case(["bool c a"], lambda b, v, op=op: b(op, v, over=(DIMS["a"],)))
        local = lower(case.program(), MESHES[0], models.layout(a="rows"))
        assert "all_reduce" in {eqn.op for eqn in local.function("forward").body}
        assert run(local, {"x0": x})["y0"].tolist() == expected


# Whole programs


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"a": "rows"},
        {"h": "cols"},
        {"a": "rows", "h": "cols"},
        {"a": "rows cols"},
        {"h": "cols rows"},
        {"b": "rows"},
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd(0.25)", "momentum(0.25, momentum = 0.5)", "adafactor(0.25)"])
def test_training_is_the_same_under_every_layout(rules: dict[str, str], optimizer: str) -> None:
    """Parameters, state and losses of four steps equal those of the reference, and so do the collectives."""
    program = models.two_layer(optimizer)
    whole, local = (lower(program, None, None), lower(program, models.GRID, models.layout(**rules)))
    module, inputs = load(generate(local)), models.data(program)
    params = module.init(seed=3)
    state = module.init_state() if module.STATE else {}
    arrays = {**inputs, **module.unshard(params, module.PARAMETERS), **module.unshard(state, module.STATE)}
    sharded = module.shard(inputs, module.INPUTS)
    for number in range(4):
        outputs, params, state = module.train_step(params, state, sharded, number)
        expected = interpret(whole.function("step"), whole, {**arrays, "step": np.int32(number)})
        found = {
            **module.unshard(outputs, module.OUTPUTS["train_step"]),
            **module.unshard(params, module.PARAMETERS),
            **module.unshard(state, module.STATE),
        }
        assert found.keys() == expected.keys()
        for name in expected:
            close(found[name], expected[name], 1e-5)
        arrays |= expected
    predicted = total(charges(local.function("step"), Numbers(models.GRID))).collectives
    for kind, counted in module.SENT.items():
        elements = predicted[kind].elements if kind in predicted else 0
        assert counted["elements_per_device"] == 4 * elements


def test_initial_values_do_not_depend_on_the_layout() -> None:
    program = models.two_layer("sgd(0.1)")
    drawn = []
    for rules in ({}, {"a": "rows", "h": "cols"}, {"b": "cols rows"}):
        module = load(generate(lower(program, models.GRID, models.layout(**rules))))
        drawn.append(module.unshard(module.init(seed=7), module.PARAMETERS))
    for other in drawn[1:]:
        for name, values in drawn[0].items():
            np.testing.assert_array_equal(values, other[name])
    assert abs(drawn[0]["v"].std() - 0.1) < 0.01


# Checked modules


def without_reduction(program: Program) -> Program:
    """Return `forward` without its all-reduce: partial sums under a type that says they are complete."""
    function = program.function("forward")
    (reduce,) = [eqn for eqn in function.body if eqn.op == "all_reduce"]
    body = [
        attrs.evolve(eqn, results=reduce.results) if eqn.results == reduce.operands else eqn
        for eqn in function.body
        if eqn is not reduce
    ]
    return attrs.evolve(program, functions=(attrs.evolve(function, body=tuple(body)),))


def test_a_checked_module_finds_replicas_that_differ() -> None:
    program = einsum("a b", "b c", "a c").program()
    local, arrays = lower(program, MESHES[1], models.layout(b="rows", a="cols")), data(program)
    run(local, arrays, checked=True)
    with pytest.raises(AssertionError, match="differs between processors along rows"):
        run(without_reduction(local), arrays, checked=True)


def test_a_checked_module_tells_equal_numbers_of_different_bits_apart() -> None:
    module = load(generate(lower(unary("relu").program(), MESHES[0], models.layout()), checked=True))
    zeros = np.zeros((3, 6, 12), np.float32)
    zeros[1] *= -1
    with pytest.raises(AssertionError, match="x0 differs between processors along rows"):
        module.forward({}, {"x0": zeros})


# The module as text


def test_the_module_runs_without_mtfc(tmp_path: Path) -> None:
    program = models.two_layer("sgd(0.1)")
    source = generate(lower(program, models.GRID, models.layout(a="rows", h="cols")))
    script = tmp_path / "program.py"
    script.write_text(
        f"{source}\n\nx = np.ones((8, 16))\nparams = init()\n"
        "outputs, params, state = train_step(params, {}, shard({'x': x}, INPUTS), 0)\n"
        "print(unshard(params, PARAMETERS)['net.w'].dtype)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("float32\n", "")
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported == {"math", "re", "zlib", "numpy"}


def test_doubles_stay_only_where_the_program_computes_in_them() -> None:
    wide = {"x0": np.linspace(0, 1, 72).reshape(6, 12)}
    for dtype, expected in (("f32", "float32"), ("f64", "float64")):
        found = run(lower(unary("exp", dtype).program(), MESHES[0], models.layout(a="rows")), wide)
        assert found["y0"].dtype == expected
