"""Plans: shardings, files, costs, and the search."""

import re
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import mtfc
from mtfc.backends.hlo import collectives, wire_bytes
from mtfc.compiler.ir.types import Forms
from mtfc.driver.jax_functions.comparison import drawn_arguments
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import Plan
from mtfc.frontend.layouts.layout_text import rules_text
from tests.jax_functions.models import MODELS, array

NAMES = {
    "ids": "batch length",
    "**/up": "embed hidden",
    "**/qkv": "embed (three heads head_dim)",
    "params/embedding": "vocab embed",
}


@pytest.fixture(scope="module")
def program() -> ImportedProgram:
    function, args = MODELS["fused_decoder"]()
    return mtfc.from_jax(function, *args, names=NAMES)


@pytest.fixture(scope="module")
def plan(program: ImportedProgram) -> Plan:
    return program.plan({"batch": "data", "hidden": "model", "heads": "model"}, {"data": 4, "model": 2})


def test_shardings_have_the_form_of_the_arguments(plan: Plan) -> None:
    params, state, ids, _ = plan.in_shardings
    assert ids.spec == P("data", None)
    assert params["layers"][0]["up"].spec == P(None, "model")
    assert params["layers"][1]["out"].spec == P("model", None)
    assert state[0].mu["layers"][0]["down"].spec == P("model", None)
    assert plan.shardings.params == params
    assert jax.tree.structure(plan.out_shardings[0]) == jax.tree.structure(params)
    assert plan.abstract_state[0]["layers"][0]["up"].shape == (32, 128)


def test_a_split_that_no_spec_says_is_reported(plan: Plan) -> None:
    """Heads are the middle factor of fused queries, keys and values."""
    assert plan.in_shardings[0]["layers"][0]["qkv"].spec == P(None, None)
    found = [each for each in plan.unsaid if each.leaf.name == "layers_0_qkv"]
    assert [(each.dim.name, each.ratio) for each in found] == [("heads", 2)]
    assert "layers_0_qkv: axis 1 is three 3 x heads 4 x head_dim 8" in plan.explain()
    assert "stores 12 KiB in place of 6 KiB: reshape the array to [32, 3, 32]" in plan.explain()


def test_the_shape_that_a_report_tells_needs_no_more_memory() -> None:
    def heads(w: Any, x: Any) -> Any:
        return (x @ w.reshape(8, 24)).reshape(4, 3, 4, 2).sum(1)

    names = {"x": "batch embed", "w": "embed (three heads head_dim)"}
    program = mtfc.from_jax(heads, array(8, 24), array(4, 8), names=names)
    rules, mesh = {"heads": "x", "embed": "y"}, {"x": 4, "y": 2}
    (found,) = program.plan(rules, mesh).unsaid
    assert (found.bytes, found.ratio, found.reshaped) == (8 * 24 * 4 // 2, 4, (8, 3, 8))
    names["w"] = "embed three (heads head_dim)"
    other = mtfc.from_jax(heads, array(*found.reshaped), array(4, 8), names=names).plan(rules, mesh)
    assert not other.unsaid
    assert other.in_shardings[0].spec == P("y", None, "x")


def test_a_leading_factor_can_be_split() -> None:
    program = mtfc.from_jax(lambda w, x: (x @ w).reshape(8, 4, 2).sum(1), array(6, 8), array(8, 6))
    (heads,) = (name for name, size in program.dims.items() if size == 4)
    assert program.plan({heads: "x"}, {"x": 4}).in_shardings[0].spec == P(None, "x")


def test_storage_splits_what_a_sharding_says(program: ImportedProgram) -> None:
    """Fused projections are split along the embedding: the whole matrices would be gathered after each step."""
    plan = program.plan({"batch": "data", "params": {"*": "data"}}, {"data": 8})
    assert plan.unsaid == ()
    assert plan.in_shardings[0]["layers"][0]["qkv"].spec == P("data", None)
    args, kwargs = plan.abstract_arguments
    with jax.sharding.set_mesh(plan.mesh):
        jitted = jax.jit(plan.step, out_shardings=plan.out_shardings)
        text = jitted.lower(*args, **kwargs).compile().as_text()
    predicted = plan.cost()["step"]["wire_bytes_per_device"]
    assert wire_bytes(text) == pytest.approx(predicted)


def test_costs_are_by_the_users_line(plan: Plan) -> None:
    source = Path(MODELS["fused_decoder"].__code__.co_filename).read_text("utf-8").splitlines()
    line = next(i for i, text in enumerate(source, 1) if 'gelu(h @ p["up"])' in text)
    assert f"  line {line}  return x + jax.nn.gelu" in plan.explain()
    cost = plan.cost()
    assert cost["devices"] == 8
    sent = cost["step"]["collectives"]["all_reduce"]
    assert sent["bytes_per_device"] > 0
    assert plan.memory == cost["memory_per_device"]["total"]


def test_bytes_are_those_of_the_compiled_step(plan: Plan) -> None:
    """The collectives in XLA's program of `plan.step` send what `cost` says."""
    with jax.sharding.set_mesh(plan.mesh):
        text = jax.jit(plan.packed_step).lower(plan.abstract_packed).compile().as_text()
    found, predicted = collectives(text), plan.cost()["step"]["collectives"]
    for kind in found.keys() | predicted.keys():
        sent = found.get(kind, {"bytes_per_device": 0})["bytes_per_device"]
        assert sent == predicted[kind]["bytes_per_device"], kind


def test_packed_training_is_training(plan: Plan) -> None:
    """Three packed steps compute the state of three plain steps."""
    args, _ = drawn_arguments(plan, 0)
    packed, plain = plan.pack(*args), args
    function, step = jax.jit(plan.function), jax.jit(plan.packed_step, donate_argnums=0)
    for _ in range(3):
        packed, outputs = step(packed)
        params, state, value = function(*plain)
        plain = (params, state, *plain[2:])
    found = plan.unpack(outputs)
    np.testing.assert_allclose(found[2], value, rtol=1e-5)
    up = found[0]["layers"][0]["up"]
    np.testing.assert_allclose(up, params["layers"][0]["up"], atol=1e-3)


@pytest.mark.parametrize("stored", [("params", "optimizer"), ("optimizer",)])
def test_rules_of_storage_apply(program: ImportedProgram, stored: tuple[str, ...]) -> None:
    """FSDP and ZeRO scatter gradients and gather parameters; the new state is stored like the old one."""
    plan = program.plan({"batch": "data", **{section: {"*": "data"} for section in stored}}, {"data": 8})
    assert plan.in_shardings[:2] == plan.out_shardings[:2]
    assert plan.in_shardings[1][0].mu["layers"][0]["up"].spec == P(None, "data")
    assert (plan.in_shardings[0]["layers"][0]["up"].spec == P(None, "data")) == ("params" in stored)
    sent = plan.cost()["step"]["collectives"]
    assert sent["reduce_scatter"]["bytes_per_device"] > 20 * sent["all_reduce"]["bytes_per_device"]
    assert plan.memory < 0.6 * program.plan({"batch": "data"}, {"data": 8}).memory


def test_arguments_of_a_step_have_their_roles(program: ImportedProgram) -> None:
    roles = {leaf.name: leaf.role for leaf in program.imported.inputs}
    assert roles["layers_0_up"] == "parameter"
    assert roles["ids"] == "input"
    assert {role for name, role in roles.items() if "_mu_" in name or "_nu_" in name} == {"state"}
    stages = [eqn.stage for eqn in program.imported.main.body]
    assert {*stages} == {"forward", "backward", "update"}


def test_plans_are_saved_and_loaded(plan: Plan, program: ImportedProgram, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(str(file))
    loaded = program.load(str(file))
    assert loaded.case.layout.rules == plan.case.layout.rules
    assert loaded.case.mesh.sizes == plan.case.mesh.sizes
    zero = program.plan({"batch": "data", "optimizer": {"hidden": "data"}}, {"data": 4})
    zero.save(str(file))
    assert program.load(str(file)).case.layout.optimizer == zero.case.layout.optimizer
    assert zero.case.layout.optimizer.axes
    formed = program.plan({"batch": "data", "forms": {"dots": "joined", "flops_per_byte": 9}}, {"data": 4})
    formed.save(str(file))
    assert program.load(str(file)).case.layout.forms == formed.case.layout.forms == Forms("never", 9)
    other = mtfc.from_jax(lambda x: x, array(4))
    with pytest.raises(ValueError, match="a program with other arguments"):
        other.load(str(file))
    file.write_text("{}")
    with pytest.raises(ValueError, match="is no plan"):
        program.load(str(file))


def test_plans_are_used_for_other_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a plan, and all forms of its step, take every batch that divides evenly, and say so once for each size."""

    def step(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * gradient, loss

    def batch(rows: int) -> Any:
        return jnp.sin(jnp.arange(rows * 6.0).reshape(rows, 6))

    w, file = jnp.cos(jnp.arange(18.0).reshape(6, 3)), str(tmp_path / "plan.json")
    plan = mtfc.from_jax(step, w, batch(8)).plan({"batch": "data"}, {"data": 4, "idle": 2})
    assert "idle idle" in repr(plan)
    plan.save(file)
    planned = plan.jit(step)
    for rows in (8, 4, 12, 12):
        for run in (plan.step, jax.jit(plan.step), planned, plan.apply(step)):
            for found, wanted in zip(run(w, batch(rows)), step(w, batch(rows)), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        loaded = mtfc.from_jax(step, w, batch(rows)).load(file)
        np.testing.assert_allclose(loaded.step(w, batch(rows))[1], step(w, batch(rows))[1], rtol=1e-5)
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "compiled anew" in line] == [
        f"mtfc: the plan is used for batch {rows} and not 8: every dimension that it splits divides evenly; its memory and "
        f"time are not checked; the step is compiled anew"
        for rows in (4, 12)
    ]
    assert sum("plan.json is used for batch 12 and not 8" in line for line in said) == 2
    for run in (plan.step, planned):
        with pytest.raises(ValueError, match="splits `batch` over data in 4 parts, and its size is 10 here"):
            run(w, batch(10))
    with pytest.raises(ValueError, match="make it a multiple of 4"):
        mtfc.from_jax(step, w, batch(10)).load(file)
    with pytest.raises(ValueError, match="and the plan is for"):
        plan.step(w, jnp.ones((8, 7)))  # the function itself does not take these arrays
    (tmp_path / "old.json").write_text(re.sub(r'"format": \d+', '"format": 1', Path(file).read_text()))
    with pytest.raises(ValueError, match="another version of mtfc: make it again"):
        mtfc.from_jax(step, w, batch(8)).load(str(tmp_path / "old.json"))
    for entry in ('"sizes": 3', '"sizes": {"batch": "x"}'):
        text = re.sub(r'"sizes": \{[^}]*\}', entry, Path(file).read_text())
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(ValueError, match="is no plan"):
            mtfc.from_jax(step, w, batch(8)).load(str(tmp_path / "wrong.json"))


def test_steps_of_loops_keep_to_a_memory_limit(tmp_path: Path) -> None:
    """The stages of a scan's backward pass are told apart, and its stacks are those of the forward pass."""

    def loss(params: Any, x: Any) -> Any:
        def body(h: Any, w: Any) -> Any:
            return jnp.tanh(jnp.exp(h @ w)), None

        return jnp.sum(jax.lax.scan(body, x, params)[0] ** 2)

    def step(params: Any, x: Any) -> Any:
        return params - 0.1 * jax.grad(loss)(params, x)

    random = np.random.default_rng(0)
    args = tuple(jnp.asarray(random.normal(size=s) * 0.1, "f") for s in ((4, 8, 8), (512, 8)))
    program = mtfc.from_jax(step, *args, names={"x": "batch embed"})
    plan = program.plan({"batch": "data"}, {"data": 2}, memory="93kB")
    plain = program.plan({"batch": "data"}, {"data": 2})
    assert plan.memory <= 93_000 < plain.memory
    assert plan.cost()["step"]["flops_per_device"] > plain.cost()["step"]["flops_per_device"]
    np.testing.assert_allclose(plan.step(*args), plain.step(*args), rtol=1e-5, atol=1e-5)
    assert program.verify(plan, *args).ok
    plan.save(str(tmp_path / "plan.json"))
    assert program.load(str(tmp_path / "plan.json")).memory == plan.memory
    by_word = program.plan({"batch": "data"}, {"data": 2}, memory="full")
    by_word.save(str(tmp_path / "word.json"))
    assert program.load(str(tmp_path / "word.json")).memory == by_word.memory < plain.memory
    on_machine = program.plan({"batch": "data"}, {"data": 2}, memory="120kB@tpu_v5p")
    on_machine.save(str(tmp_path / "machine.json"))
    assert program.load(str(tmp_path / "machine.json")).case.limit == on_machine.case.limit
    searched = program.search(2, "tpu_v2", budget=2.0)
    assert searched.memory == searched.simulate("tpu_v2")["memory_per_device"]["total"] != plain.memory


def test_illegal_layouts_are_refused(program: ImportedProgram) -> None:
    with pytest.raises(mtfc.CompileError, match="did you mean `hidden`"):
        program.plan({"hiden": "x"}, {"x": 2})
    with pytest.raises(mtfc.CompileError, match="E30"):
        program.plan({"three": "x"}, {"x": 2})


def test_wrong_arguments_are_refused(plan: Plan) -> None:
    with pytest.raises(ValueError, match="missing a required argument: 'ids'"):
        plan.step(1, 2)
    with pytest.raises(ValueError, match="shape"):
        plan.apply()(*jax.tree.map(lambda x: jnp.zeros((*x.shape, 1), x.dtype), plan.abstract_state))
    with pytest.raises(ValueError, match=r"has shape \(\)"):
        plan.step(*jax.tree.map(lambda x: 1.0, plan.abstract_state))
    with pytest.raises(ValueError, match="array of int32, and the plan is for float32"):
        plan.apply()(*jax.tree.map(lambda x: jnp.zeros(x.shape, "int32"), plan.abstract_state))
    with pytest.raises(ValueError, match="was imported"):
        plan.apply(lambda x: x)


def test_verify_takes_plans_of_its_program(program: ImportedProgram, plan: Plan) -> None:
    other = mtfc.from_jax(lambda x: 2 * x, array(4))
    for wrong in (other.plan({"batch": "x"}, {"x": 2}), plan.mesh_text):
        with pytest.raises(ValueError, match="a plan of this program"):
            program.verify(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="missing a required argument: 'state'"):
        program.verify(plan, 1)


def test_constraints_of_the_user_are_kept_or_dropped() -> None:
    """They name axes of the plan's mesh, whatever mesh the user had."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)

    def loss(w: Any, x: Any) -> Any:
        own = jax.lax.with_sharding_constraint
        h = own(jnp.tanh(x @ w), NamedSharding(mesh, P("data", "model")))
        return jax.lax.scan(lambda c, u: (c, own(u, NamedSharding(mesh, P("model")))), 0.0, h)[1]

    program = mtfc.from_jax(loss, array(4, 8), array(8, 4))
    assert not program.coverage().opaque
    plan = program.plan({"batch": "data"}, {"data": 4, "model": 2})
    specs: dict[bool, list[Any]] = {}
    for keep in (True, False):
        text = str(jax.make_jaxpr(plan.apply(loss, keep_constraints=keep))(array(4, 8), array(8, 4)))
        specs[keep] = [line for line in text.splitlines() if "sharding=NamedSharding" in line]
    own = [line for line in specs[True] if "'data', 'model'" in line or "P('model',)" in line]
    assert len(own) == 2
    assert sorted(specs[True]) == sorted([*specs[False], *own])
    assert program.verify(plan).ok
    other = program.plan({"batch": "rows"}, {"rows": 4})
    with pytest.raises(ValueError, match=r"test_plan.py:\d+.* does not fit the plan's mesh, rows: 4"):
        jax.make_jaxpr(other.apply(loss))(array(4, 8), array(8, 4))
    jax.make_jaxpr(other.apply(loss, keep_constraints=False))(array(4, 8), array(8, 4))


def test_applied_losses_keep_their_custom_derivatives() -> None:
    """At 0 the derivative of `jax.nn.relu` is 0, and that of its jaxpr is not."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jax.checkpoint(jax.nn.relu)(x @ w))

    program = mtfc.from_jax(loss, array(4, 8), array(8, 4))
    plan = program.plan({"batch": "x"}, {"x": 4})
    w, x = np.zeros((4, 8), np.float32), np.ones((8, 4), np.float32)
    with jax.sharding.set_mesh(plan.mesh):
        found = jax.jit(jax.grad(plan.apply(loss)))(w, x)
    np.testing.assert_array_equal(found, jax.grad(loss)(w, x))


def test_plans_work_under_explicit_axes() -> None:
    """Results then have the plan's shardings in their types, and `jax.grad` works on the applied function."""

    def loss(w: Any, x: Any, key: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w)) + jax.random.uniform(key), x @ w

    key = jax.eval_shape(lambda: jax.random.key(0))
    program = mtfc.from_jax(loss, array(8, 16), array(8, 8), key, names={"w": "embed hidden"})
    plan = program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2}).with_explicit_axes()
    args, _ = drawn_arguments(plan, 0)
    with jax.sharding.set_mesh(plan.mesh):
        placed = jax.device_put(args, plan.in_shardings)
        for road in (plan.apply(loss), plan.step):
            value, product = jax.jit(road, out_shardings=plan.out_shardings)(*placed)
            assert str(jax.typeof(product)) == "float32[8@data,16@model]"
            np.testing.assert_allclose(value, loss(*args)[0], 1e-6)
        gradient = jax.jit(jax.grad(lambda *xs: plan.apply(loss)(*xs)[0]))(*placed)
        assert str(jax.typeof(gradient)) == "float32[8,16@model]"
        with pytest.raises(ValueError, match=r"packed_step.*type Auto"):
            plan.packed_step(plan.pack(*args))
    assert program.verify(plan).ok
    other = program.plan({"batch": "data"}, {"data": 4})
    with jax.sharding.set_mesh(plan.mesh), pytest.raises(ValueError, match="data: 4, model: 2, and the plan"):
        other.step(*args)


def test_conditionals_are_split() -> None:
    """Wherever they stand: `plan.apply` leaves them to JAX, and `plan.step` computes all short branches."""

    @jax.custom_jvp
    def custom(x: Any) -> Any:
        return jax.lax.cond(x.sum() > 0, lambda: jnp.sin(x), lambda: 2 * x)

    custom.defjvp(lambda xs, tangents: (custom(*xs), 3 * tangents[0]))

    def outputs(w: Any, x: Any) -> Any:
        h = custom(x @ w)
        h = jax.checkpoint(lambda h: jax.lax.cond(h[0, 0] > 0, lambda: h + 1, lambda: jnp.tanh(h)))(h)
        last, _ = jax.lax.scan(lambda c, u: (jax.lax.cond(u[0] > 0, lambda: c + u, lambda: c), 0), h[0], h)
        h = jax.checkpoint(lambda h: jax.lax.cond(h[0, 0] > 0, lambda: h, lambda: jnp.tanh(h) @ w.T @ w))(h)
        _, half = jax.lax.cond(h[0, 0] > 0, lambda: (h[:0], h), lambda: (h[:0], h @ w.T @ w))
        return h, last, half

    program = mtfc.from_jax(outputs, array(8, 16), array(8, 8), names={"w": "embed hidden"})
    assert not program.coverage().opaque
    assert program.verify(program.plan({"batch": "x", "hidden": "y"}, {"x": 2, "y": 2})).ok


def _barriers(plan: Plan, road: Any) -> int:
    args, _ = plan.abstract_arguments
    with jax.sharding.set_mesh(plan.mesh):
        return jax.jit(road).lower(*args).as_text().count("optimization_barrier")


@pytest.mark.parametrize("prevents", [True, False])
def test_what_unrolled_checkpoints_compute_again_is_kept_apart(prevents: bool) -> None:
    """The first of two sines of each layer is computed again, unless `prevent_cse` is false."""

    def loss(ws: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w)), prevent_cse=prevents)
        for w in ws:
            x = layer(w, x)
        return jnp.sum(x)

    program = mtfc.from_jax(jax.grad(loss), [array(8, 8)] * 3, array(16, 8))
    plan = program.plan({"batch": "x", "params": {"*": "x"}}, {"x": 4})
    (function,) = plan.program.functions
    stages = [eqn.stage for eqn in function.body if eqn.op == "sin"]
    assert (stages.count("forward"), stages.count("backward")) == ((4, 3) if prevents else (5, 0))
    waits = [len(eqn.operands) for eqn in function.body if eqn.op == "after"]
    assert bool(waits) == prevents
    assert not prevents or waits.count(2) > len(waits) / 2
    assert (_barriers(plan, plan.apply()) > 0) == (_barriers(plan, plan.step) > 0) == prevents
    assert program.verify(plan).ok


def test_barriers_of_the_user_keep_arrays_of_any_dtype_apart() -> None:
    def sums(x: Any, key: Any) -> Any:
        y, (same, n) = jnp.exp(x), jax.lax.optimization_barrier((x, 3))
        (again,) = jax.random.uniform(jax.lax.optimization_barrier((key,))[0], (1,))
        return jnp.sum(y + jnp.exp(same)) * n + again, jax.lax.optimization_barrier(x > 0)

    key = jax.eval_shape(lambda: jax.random.key(0))
    program = mtfc.from_jax(sums, array(8, 4), key, names={"x": "rows columns"})
    plan = program.plan({"rows": "x"}, {"x": 4})
    assert [eqn.op for eqn in plan.program.functions[0].body].count("exp") == 2
    assert program.verify(plan).ok


def test_weights_of_scanned_layers_are_gathered_layer_by_layer() -> None:
    """A loop runs along the dimension of its stacks, so these stay as they are stored."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w["w"] + w["b"]), None), x, w)[0])

    def step(w: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(jnp.subtract, w, gradients), value

    weights = {"w": array(3, 8, 8), "b": array(3, 8)}
    program = mtfc.from_jax(step, weights, array(16, 8), names={"**/w": "layers embed embed_out"})
    assert {dim.size for dim in program.program.dims.values()} == {3, 8, 16}
    plan = program.plan({"batch": "x", "params": {"*": "x"}}, {"x": 8})
    outside = [eqn.op for eqn in plan._main.body]
    inside = [eqn.op for loop in plan._main.body for region in loop.regions for eqn in region.body]
    assert (outside.count("all_gather"), inside.count("all_gather")) == (0, 2)
    assert program.verify(plan).ok


def test_search_finds_a_plan_and_its_bound(tmp_path: Path) -> None:
    function, args = MODELS["perceptron"]()
    program = mtfc.from_jax(function, *args)
    plan = program.search(8, "h100", budget=3)
    assert plan.found is not None
    assert 0.5 * plan.found.objective < plan.found.lower_bound <= plan.found.objective
    assert plan.case.mesh.devices == 8
    assert plan.predicted_step == plan.simulate("h100")["step_seconds"]
    with pytest.raises(ValueError, match="budget=-1"):
        program.search(8, "h100", budget=-1)
    plan.save(str(tmp_path / "plan.json"))
    with pytest.raises(ValueError, match="no machine"):
        _ = program.load(str(tmp_path / "plan.json")).predicted_step
    with pytest.raises(FileNotFoundError):
        plan.save(str(tmp_path / "none" / "plan.json"))


def test_a_searched_plan_is_explained_beside_the_next_best() -> None:
    function, args = MODELS["perceptron"]()
    plan = mtfc.from_jax(function, *args).search(mesh={"x": 4}, target="h100", budget=20)
    assert plan.found is not None
    assert plan.found.runner_up is not None
    mesh, layout = plan.found.runner_up
    assert (mesh, attrs.evolve(layout, name="plan")) != (plan.case.mesh, plan.case.layout)
    text = plan.explain()
    assert "from layout plan to layout next" in text
    next_best = mtfc.from_jax(function, *args).plan(f"{{ {rules_text(layout)} }}", mesh.sizes)
    seconds = next_best.simulate("h100")
    assert plan.predicted_step <= seconds["step_seconds"]


@pytest.mark.parametrize(("storage", "recompute"), [(False, True), (True, False), (True, True)])
def test_a_search_in_vain_names_what_it_has_not_tried(tmp_path: Path, storage: bool, recompute: bool) -> None:
    path = tmp_path / "small.mtf"
    device = "flops: { f32: 1e9 }, memory: 64, bandwidth: 1e9"
    path.write_text(
        f"hardware small = {{ device: {{ {device} }}, link wires: {{ kind: switch, bandwidth: 1e9 }} }}"
    )
    function, args = MODELS["perceptron"]()
    with pytest.raises(mtfc.NothingFits) as caught:
        mtfc.from_jax(function, *args).search(8, str(path), budget=5, storage=storage, recompute=recompute)
    assert ("storage" in str(caught.value), "recompute" in str(caught.value)) == (not storage, not recompute)


def test_numbers_of_64_bits_stay_a_setting_of_the_user() -> None:
    args = np.ones((4, 3)), np.ones((8, 4))
    with jax.enable_x64(True):
        program = mtfc.from_jax(lambda w, x: x @ w, *args)
        plan = program.plan({"batch": "x"}, {"x": 4})
        assert plan.step(*args).dtype == "float64"
    assert not jax.config.jax_enable_x64
    with pytest.raises(ValueError, match="float64: the function was imported under `jax_enable_x64`"):
        plan.step(*map(jnp.asarray, args))


@jax.tree_util.register_pytree_node_class
class Scale:
    """A node that takes only arrays, as the loss scale of `jmp` does."""

    def __init__(self, value: Any, counter: Any) -> None:
        assert value.dtype == "float32"
        self.value, self.counter = value, counter

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return (self.value, self.counter), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, Any]) -> "Scale":
        return cls(*children)


def test_a_node_that_takes_only_arrays_has_one_sharding() -> None:
    def step(w: Any, scale: Scale, x: Any) -> tuple[Any, Scale]:
        return w - scale.value * (x.T @ x), Scale(scale.value * 2, scale.counter + 1)

    args = jnp.ones((4, 4)), Scale(jnp.ones(()), jnp.ones(())), jnp.ones((8, 4))
    plan = mtfc.from_jax(step, *args).plan({"batch": "data"}, {"data": 2})
    assert plan.in_shardings[1] == plan.out_shardings[1]
    planned = jax.jit(plan.apply(step), in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    with jax.sharding.set_mesh(plan.mesh):
        w, scale = planned(*args)
    assert (float(w[0, 0]), float(scale.value), float(scale.counter)) == (1 - 8, 2, 2)


def test_a_node_that_takes_only_arrays_cannot_have_two_shardings() -> None:
    scale = Scale(jnp.ones((8, 4)), jnp.ones((4,)))
    program = mtfc.from_jax(lambda scale, x: x * scale.value * scale.counter, scale, jnp.ones((8, 4)))
    (name,) = (name for name, size in program.dims.items() if size == 8)
    with pytest.raises(ValueError, match="`Scale` takes no shardings in the place of its arrays"):
        _ = program.plan({name: "data"}, {"data": 2}).in_shardings
