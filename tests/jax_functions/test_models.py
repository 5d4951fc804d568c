"""Models of several libraries: imported programs and plans compute what the models compute."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import mtfc
from mtfc.backends.common.devices import devices
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.jax_functions.comparison import ON_ITS_MESH, drawn_arguments
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import Plan
from tests.jax_functions.arguments import data, interpreted, program_arguments, rounding_spread, run
from tests.jax_functions.models import MODELS, array
from tests.sampling import some

MESH = Mesh("mesh", (("x", 4), ("y", 2)))


@cache
def program_of(name: str) -> ImportedProgram:
    function, args = MODELS[name]()
    return mtfc.from_jax(function, *args)


def split(program: ImportedProgram) -> Layout:
    """Return a layout of the first dimensions that the mesh divides: the batch over `x`, another one over `y`."""
    first = next(n for n in ("batch", *program.dims) if program.dims.get(n, 1) % 4 == 0)
    second = next(n for n, size in program.dims.items() if n != first and size % 2 == 0)
    return Layout("split", Rules(((first, ("x",)), (second, ("y",)))))


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    """The interpreter and the processors of a split program compute the model's outputs, to rounding of the largest."""
    program = program_of(name)
    args, _ = drawn_arguments(program.plan({}, {"one": 1}), 0)
    function = jax.jit(program.function)
    expected = [data(x).astype(np.float64) for x in jax.tree.leaves(function(*args))]
    spread = rounding_spread(function, args, expected)
    arguments = program_arguments(program, args)
    largest = max(np.abs(x).max() for x in expected)
    lowered = lower(program.program, MESH, split(program))
    for found in (interpreted(program, arguments), run(program, lowered, arguments, "numpy")):
        for left, right, moves in zip(found, expected, spread, strict=True):
            apart = np.abs(left.astype(np.float64) - right)
            assert (apart <= 10 * moves + 1e-4 * np.abs(right) + 1e-5 * largest).all()


@pytest.mark.parametrize("name", MODELS)
def test_opaque_primitives(name: str) -> None:
    """Primitives that every processor evaluates as a whole are few, and named with their lines."""
    coverage = program_of(name).coverage()
    expected: dict[str, set[str]] = {
        "ragged_experts": {"sort"},  # of one axis
    }
    assert coverage.opaque.keys() == expected.get(name, set())
    assert all(".py:" in line for line in coverage.lines)


@pytest.mark.parametrize("name", some(["fused_decoder", "linen_transformer", "cached_decoding"], 2))
def test_plans_agree_with_the_plain_function(name: str) -> None:
    """XLA's partitioner puts an update past the end of a split array wrongly, so the cache is written inside."""
    program = program_of(name)
    rules: dict[str, Any] = dict(split(program).rules.axes)
    plan = program.plan(rules, {"x": 4, "y": 2})
    args = drawn_arguments(plan, 0)[0] if name == "cached_decoding" else ()
    result = program.verify(plan, *args)
    assert result.ok, str(result)
    assert {each.road for each in result.outputs} == {"plan.apply", "plan.step"}


def test_verify_notices_a_wrong_gradient_of_the_partitioner() -> None:
    """XLA computes the gradient of a depthwise filter wrongly if one of two axes splits the batch; our own step is right.

    Without mtfc in between, JAX on the devices tells whether this version of XLA still has the fault.
    """

    def loss(filters: Any, x: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x, filters, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=32
        )
        return (y**2).sum()

    program = mtfc.from_jax(jax.grad(loss), array(3, 3, 1, 32), array(8, 4, 4, 32))
    plan = program.plan({"batch": "x"}, {"x": 4, "y": 2})
    ok = {each.road: each.ok for each in program.verify(plan).outputs}
    (filters, x), _ = drawn_arguments(plan, 0)
    mesh = jax.make_mesh((4, 2), ("x", "y"), (AxisType.Auto,) * 2, devices=devices(8))
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))
    gradient = jax.jit(jax.grad(loss))
    partitioned = gradient(jax.device_put(filters, NamedSharding(mesh, PartitionSpec())), placed)
    is_right = np.allclose(partitioned, gradient(filters, x), rtol=1e-3)
    assert ok == {"plan.step": True, "plan.apply": is_right}


def test_numbers_that_rounding_moves_prove_nothing() -> None:
    """The sine of a huge number is another one after any rounding, under every layout."""

    def both(x: Any) -> Any:
        return jnp.tanh(x), jnp.sin(1e12 * x)

    def wild(x: Any) -> Any:
        return jnp.sin(1e12 * x)

    def endless(x: Any) -> Any:
        return jnp.log(-jnp.exp(x)), 1 / (x - x)

    for function, is_ok, message in (
        (both, True, "50% of the numbers prove nothing: another rounding"),
        (endless, False, "100% of the numbers prove nothing: they are NaN or infinite"),
        (lambda x: (x, jnp.log(x - x)), False, "50% of the numbers prove nothing: they are NaN or infinite"),
        (wild, False, "plan.step CANNOT BE COMPARED with the plain function"),
    ):
        program = mtfc.from_jax(function, array(8, 4), names={"x": "batch embed"})
        found = program.verify(program.plan({"batch": "data"}, {"data": 2}))
        assert (found.ok, message in str(found)) == (is_ok, True), str(found)


def test_a_small_output_is_compared_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong gradient is noticed beside a loss that is 10^12 times as large, and in a program that computes in bfloat16."""

    def both(w: Any, x: Any) -> Any:
        y = jnp.tanh(x.astype("bfloat16") @ w.astype("bfloat16")).astype("float32")
        return y.sum() * 1e12, x.T @ y

    program = mtfc.from_jax(both, array(6, 4), array(8, 6))
    plan = program.plan({"batch": "data"}, {"data": 4})
    assert program.verify(plan).ok
    apply = Plan.apply

    def doubled(plan: Plan, *args: Any) -> Any:
        function = apply(plan, *args)
        return lambda *xs: (function(*xs)[0], 2 * function(*xs)[1])

    monkeypatch.setattr(Plan, "apply", doubled)
    wrong = [(each.road, each.output) for each in program.verify(plan).outputs if not each.ok]
    assert wrong == [("plan.apply", "result_1")]


def test_a_function_for_explicit_sharding() -> None:
    """Its shardings give way to the plan's, and `verify` computes it on its own mesh, too."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), (AxisType.Explicit,) * 2, devices=devices(4))

    def loss(params: Any, ids: Any) -> Any:
        table = jax.sharding.reshard(params["table"], PartitionSpec(None, None))
        x = table.at[ids].get(out_sharding=PartitionSpec("data", None, None))

        def layer(x: Any, w: Any) -> Any:
            x = jnp.dot(x, w, out_sharding=PartitionSpec("data", None, "model"))
            return jax.sharding.reshard(jax.nn.relu(x), PartitionSpec("data", None, None)), x.max()

        return jax.lax.scan(jax.checkpoint(layer), x, params["layers"])[0].sum()

    params = {"table": jnp.ones((8, 4)), "layers": jnp.ones((2, 4, 4))}
    with jax.sharding.set_mesh(mesh):
        placed = jax.device_put((params, jnp.zeros((4, 2), int)), PartitionSpec())
        program = mtfc.from_jax(jax.value_and_grad(loss), *placed)
    plan = program.plan({"batch": "data"}, {"data": 4})
    for args in ((), placed):
        found = program.verify(plan, *args)
        assert found.ok, str(found)
        assert {each.road for each in found.outputs} == {"plan.apply", "plan.step", ON_ITS_MESH}


def test_verify_notices_a_wrong_gradient_on_the_users_mesh() -> None:
    """The partitioner's fault with depthwise filters, in a function with a constraint: the plan's own step is right."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), (AxisType.Auto,) * 2, devices=devices(8))
    numbers = ("NHWC", "HWIO", "NHWC")

    def loss(filters: Any, x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, PartitionSpec("x"))
        y = jax.lax.conv_general_dilated(
            x, filters, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=32
        )
        return (y**2).sum()

    gradient = jax.grad(loss)
    with jax.sharding.set_mesh(mesh):
        program = mtfc.from_jax(gradient, array(3, 3, 1, 32), array(8, 4, 4, 32))
    plan = program.plan({"batch": "x"}, {"x": 4})
    (filters, x), _ = drawn_arguments(plan, 0)
    found = {each.road: each.ok for each in program.verify(plan).outputs}
    with jax.sharding.set_mesh(mesh):
        there = np.asarray(jax.jit(gradient)(np.asarray(filters), np.asarray(x)))
    is_right = np.allclose(plan.step(filters, x), there, rtol=1e-3)
    assert found == {"plan.apply": found["plan.apply"], "plan.step": True, ON_ITS_MESH: is_right}


@pytest.mark.skipif(jax.__version__ != "0.10.2", reason="a fault of this version")
def test_verify_notices_a_wrong_gradient_of_a_reduced_embedding() -> None:
    """This version multiplies the gradient by the size of an axis over which nothing is split: openxla/xla#42481."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), (AxisType.Explicit,) * 2, devices=devices(8))

    def loss(table: Any, ids: Any) -> Any:
        table = jax.sharding.reshard(table, PartitionSpec(None, None, reduced={"y"}))
        return (table.at[ids].get(out_sharding=PartitionSpec("x", None, None)) ** 2).sum()

    gradient = jax.grad(loss)
    table, ids = np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8), np.arange(32).reshape(8, 4) % 8
    with jax.sharding.set_mesh(mesh):
        placed = jax.device_put(table, PartitionSpec()), jax.device_put(ids, PartitionSpec("x"))
        program = mtfc.from_jax(gradient, *placed)
    plan = program.plan({"batch": "x"}, {"x": 2})
    assert np.allclose(plan.step(table, ids), 2 * table * np.bincount(ids.ravel(), minlength=16)[:, None])
    found = {each.road: each.ok for each in program.verify(plan, *placed).outputs}
    assert found == {"plan.apply": True, "plan.step": True, ON_ITS_MESH: False}


def test_verify_compiles_no_program_for_an_array() -> None:
    """The function, `plan.apply` and `plan.step` are compiled once each, and one program changes all arguments."""
    compiled: list[str] = []

    def listen(event: str, seconds: float, **kwargs: object) -> None:
        compiled.extend([event] if event.endswith("/backend_compile_duration") else [])

    function, args = MODELS["perceptron"]()
    program = mtfc.from_jax(function, *args)
    plan = program.plan({"batch": "data"}, {"data": 4})
    jax.monitoring.register_event_duration_secs_listener(listen)
    assert program.verify(plan).ok
    assert 3 <= len(compiled) <= 5, compiled
