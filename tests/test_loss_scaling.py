"""Loss scaling: steps with f16 gradients against a loop written by hand in JAX, under every layout and on both backends."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.compiler.passes.autodiff.update_equations import LARGEST, PATIENCE, SMALLEST
from mtfc.frontend.semantics.training.train_blocks import FIRST_SCALE
from tests.harness import Arrays, diagnose, jax_module, load, lowered, numpy_module, stages

SOURCE = """
dim batch = 8; dim io = 4; dim hidden = 6; dim layers = 2
mesh grid = [rows: 2, cols: 2]
layout data on grid = {{ batch: rows }}
layout hybrid on grid = {{ batch: rows, hidden: cols }}
layout zero on grid = {{ batch: (rows, cols), optimizer: {{ *: (rows, cols) }} }}
layout fsdp on grid = {{ batch: (rows, cols), params: {{ *: (rows, cols) }} }}
model m(x: [batch, io]) {{
  param scale: [io] = ones()
  h = x * scale
  repeat layers {{
    param w: [io, hidden] = normal(stddev = 0.5)
    param v: [hidden, io] = normal(stddev = 0.5)
    h = h + einsum(relu(einsum(h, w -> [batch, hidden])), v -> [batch, io])
  }}
  loss = mean(square(cast(h, f32) - 1.0))
  return loss
}}
train m {{
  minimize loss
  optimizer = momentum(learning_rate = 0.25)
  precision = {{ compute: f16, loss_scale: {scale} }}
  {more}
}}
"""
LAYOUTS = ("data", "hybrid", "zero", "fsdp")
BACKENDS = ("numpy", "jax")

GOOD, OVERFLOW = 1.0, 3000.0
"""Factors of the inputs. With the second one, a gradient of 2**15 times the loss exceeds f16."""


def source(scale: object, more: str = "") -> str:
    return SOURCE.format(scale=scale, more=more)


def module_of(text: str, layout: str, backend: str) -> tuple[Program, Any]:
    program = lowered(text, "step", layout)
    return program, jax_module(program) if backend == "jax" else numpy_module(program, checked=False)


def parameters() -> Arrays:
    random = np.random.default_rng(0)
    shapes = {"scale": (4,), "layers.w": (2, 4, 6), "layers.v": (2, 6, 4)}
    return {name: (random.standard_normal(shape) / 2).astype(np.float32) for name, shape in shapes.items()}


def batches(*factors: float) -> list[Any]:
    random = np.random.default_rng(1)
    return [(factor * random.standard_normal((8, 4))).astype(np.float32) for factor in factors]


# The same training, by hand


def loss_of(params: Arrays, x: Any, dtype: Any = jnp.float16) -> Any:
    half = {name: value.astype(dtype) for name, value in params.items()}
    h = x.astype(dtype) * half["scale"]
    for w, v in zip(half["layers.w"], half["layers.v"], strict=True):
        h = h + jax.nn.relu(h @ w) @ v
    return jnp.mean(jnp.square(h.astype(jnp.float32) - 1))


@jax.jit
def scaled_gradients(params: Arrays, x: Any, scale: Any) -> tuple[Any, Arrays]:
    """Return the loss, and its gradients by the backward pass of the scaled loss."""
    loss, gradients = jax.value_and_grad(lambda p: scale * loss_of(p, x))(params)
    return loss / scale, {name: g / scale for name, g in gradients.items()}


def by_hand(inputs: list[Any], scale: float, good_steps: int = 0, clip: float | None = None) -> list[Arrays]:
    """Return parameters, velocities, scale and good steps after each step of training with a dynamic scale."""
    params = parameters()
    velocities = {name: np.zeros_like(value) for name, value in params.items()}
    after = []
    for x in inputs:
        _, gradients = scaled_gradients(params, x, jnp.float32(scale))
        found = {name: np.asarray(g) for name, g in gradients.items()}
        if all(np.isfinite(g).all() for g in found.values()):
            norm = float(np.sqrt(sum(np.sum(np.square(g)) for g in found.values())))
            factor = np.float32(1.0 if clip is None else min(1.0, clip / norm))
            velocities = {name: np.float32(0.9) * velocities[name] + factor * found[name] for name in found}
            params = {name: params[name] - np.float32(0.25) * velocities[name] for name in params}
            good_steps += 1
            if good_steps == PATIENCE:
                scale, good_steps = min(2 * scale, LARGEST), 0
        else:
            scale, good_steps = max(scale / 2, SMALLEST), 0
        state = {f"{name}.velocity": value for name, value in velocities.items()}
        after.append({**params, **state, "loss_scale": np.float32(scale), "good_steps": np.int32(good_steps)})
    return after


def trained(module: Any, inputs: list[Any], state: Arrays) -> list[Arrays]:
    """Return parameters and states after each step of the module, from the initial states that are given."""
    params = module.shard(parameters(), module.PARAMETERS)
    start = {**module.unshard(module.init_state(), module.STATE), **state}
    states, after = module.shard(start, module.STATE), []
    for number, x in enumerate(inputs):
        placed = module.shard({"x": x}, getattr(module, "BATCHES", module.INPUTS))
        with np.errstate(all="ignore"):
            _, params, states = module.train_step(params, states, placed, number)
        found = {**module.unshard(params, module.PARAMETERS), **module.unshard(states, module.STATE)}
        after.append({name: np.array(value) for name, value in found.items()})
    return after


def assert_equal(actual: list[Arrays], expected: list[Arrays], what: str) -> None:
    for step, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            exact = name in ("loss_scale", "good_steps")
            kept = {"rtol": 0, "atol": 0} if exact else {"rtol": 0.02, "atol": 0.004}
            np.testing.assert_allclose(found[name], value, **kept, err_msg=f"{what}, step {step}: {name}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dynamic_scale(layout: str, backend: str) -> None:
    """Good steps train; a step that overflows keeps everything and halves the scale; the next one may overflow again."""
    _, module = module_of(source("dynamic"), layout, backend)
    inputs = batches(GOOD, OVERFLOW, OVERFLOW, GOOD)
    expected = by_hand(inputs, FIRST_SCALE)
    assert [float(each["loss_scale"]) for each in expected] == [2.0**15, 2.0**14, 2.0**13, 2.0**13]
    actual = trained(module, inputs, {})
    assert_equal(actual, expected, f"{layout} on {backend}")
    for name in parameters():
        np.testing.assert_array_equal(actual[0][name], actual[2][name])
        np.testing.assert_array_equal(actual[0][f"{name}.velocity"], actual[2][f"{name}.velocity"])
        assert not np.array_equal(actual[2][name], actual[3][name])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dynamic_scale_doubles(layout: str, backend: str) -> None:
    """After enough good steps the scale doubles and the count starts again; both have limits."""
    _, module = module_of(source("dynamic", "clip = 0.5"), layout, backend)
    state = {"loss_scale": np.float32(1024), "good_steps": np.int32(PATIENCE - 2)}
    inputs = batches(GOOD, GOOD, GOOD)
    expected = by_hand(inputs, 1024, PATIENCE - 2, clip=0.5)
    assert [float(each["loss_scale"]) for each in expected] == [1024, 2048, 2048]
    assert [int(each["good_steps"]) for each in expected] == [PATIENCE - 1, 0, 1]
    assert_equal(trained(module, inputs, state), expected, f"{layout} on {backend}")


def test_dynamic_scale_has_limits() -> None:
    _, module = module_of(source("dynamic"), "data", "numpy")
    low = {"loss_scale": np.float32(SMALLEST), "good_steps": np.int32(7)}
    (after,) = trained(module, [np.full((8, 4), np.inf, np.float32)], low)
    assert (after["loss_scale"], after["good_steps"]) == (SMALLEST, 0)
    text = source("dynamic").replace("compute: f16", "compute: f32")
    _, module = module_of(text, "data", "numpy")
    high = {"loss_scale": np.float32(LARGEST), "good_steps": np.int32(PATIENCE - 1)}
    (after,) = trained(module, batches(GOOD), high)
    assert (after["loss_scale"], after["good_steps"]) == (LARGEST, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_micro_batches_share_one_decision(layout: str) -> None:
    """One micro-batch that overflows discards the step of all."""
    for backend in BACKENDS:
        _, module = module_of(source("dynamic", "accumulate = 2"), layout, backend)
        good, bad = batches(GOOD, OVERFLOW)
        before, after = trained(module, [np.stack([good, good]), np.stack([good, bad])], {})
        assert (before["loss_scale"], after["loss_scale"]) == (2.0**15, 2.0**14)
        for name in parameters():
            np.testing.assert_array_equal(before[name], after[name])
        (expected,) = by_hand([good], FIRST_SCALE)
        assert_equal([before], [{**expected}], f"{layout} on {backend}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_fixed_scale_keeps_small_gradients(backend: str) -> None:
    """Gradients below the smallest f16 are 0 without a scale, and right with one."""
    x = batches(GOOD)[0]
    tiny = source(1, "clip = 1.0").replace("- 1.0)", "- 1.0) * 1e-7")
    _, without = module_of(tiny, "hybrid", backend)
    _, scaled = module_of(tiny.replace("loss_scale: 1 ", "loss_scale: 2 ** 14 "), "hybrid", backend)
    gradients = jax.grad(lambda params: 1e-7 * loss_of(params, x, jnp.float32))
    expected = gradients({name: jnp.asarray(value) for name, value in parameters().items()})
    (lost,), (kept,) = trained(without, [x], {}), trained(scaled, [x], {})
    for name, value in expected.items():
        assert np.abs(lost[f"{name}.velocity"]).max() < 0.9 * np.abs(value).max()
        np.testing.assert_allclose(
            kept[f"{name}.velocity"], value, rtol=0.05, atol=0.05 * np.abs(value).max()
        )


@pytest.mark.parametrize("scale", ["dynamic", "4096"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_value_and_grad_gives_unscaled_gradients(layout: str, scale: str) -> None:
    found = load(source(scale))
    chosen = next(each for each in found.layouts if each.name == layout)
    _, placed = stages(found.programs[0], chosen, "module")[-1]
    (x,) = batches(GOOD)
    loss, gradients = scaled_gradients(parameters(), x, jnp.float32(4096))
    for module in (jax_module(placed), numpy_module(placed)):
        params = module.shard(parameters(), module.PARAMETERS)
        value, given = module.value_and_grad(params, module.shard({"x": x}, module.INPUTS))
        np.testing.assert_allclose(np.asarray(value).flat[0], loss, rtol=0.01)
        for name, gradient in module.unshard(given, module.PARAMETERS).items():
            np.testing.assert_allclose(gradient, gradients[name], rtol=0.02, atol=0.004, err_msg=name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decision_sends_one_number(layout: str) -> None:
    """Clipping needs the norm of the gradients anyway: a dynamic scale then sends nothing more than a fixed one."""

    def sent(scale: str, more: str) -> list[tuple[str, int]]:
        program = lowered(source(scale, more), "step", layout)
        mesh = program.placed_on
        bodies = walk(program.function("step").body)
        return sorted(
            (KIND_OF[eqn.op], sum(v.type.local_bytes(mesh) for v in eqn.operands))
            for eqn in bodies
            if eqn.op in KIND_OF
        )

    assert sent("dynamic", "clip = 1.0") == sent("1024", "clip = 1.0")
    fixed, dynamic = sent("1024", ""), sent("dynamic", "")
    assert 0 <= sum(size for _, size in dynamic) - sum(size for _, size in fixed) <= 8


def test_scale_is_reported() -> None:
    _, module = module_of(source("dynamic", "report loss_scale, grad_norm"), "data", "numpy")
    params = module.shard(parameters(), module.PARAMETERS)
    placed = module.shard({"x": batches(GOOD)[0]}, module.INPUTS)
    outputs, _, state = module.train_step(params, module.init_state(), placed, 0)
    whole = module.unshard(outputs, module.OUTPUTS["train_step"])
    assert whole["loss_scale"] == FIRST_SCALE and np.isfinite(whole["grad_norm"])
    assert state.keys() == module.STATE.keys()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("loss_scale: 0", "expected a number above 0 or `dynamic`, found 0"),
        ("loss_scale: dynamc", "expected a number above 0 or `dynamic`, found `dynamc`"),
        ("params: f16, loss_scale: 8", "the unscaled gradients would underflow in f16 again"),
        ("reduce: bf16", "gradients are computed in f16 and stored in f32, and cannot be summed in bf16"),
        ("reduce: 4", "expected a dtype such as `bf16`"),
        ("scale: 4", "`precision` has no entry `scale`"),
    ],
)
def test_wrong_entries(entry: str, message: str) -> None:
    text = source("1024").replace("loss_scale: 1024", entry)
    assert [each.message for each in diagnose(text)] == [message]


def test_scale_to_report_is_missing() -> None:
    (problem,) = diagnose(source("1024", "report loss_scale").replace(", loss_scale: 1024", ""))
    assert problem.code == "E401" and "loss_scale" in problem.message


WITH_STATE = """
dim batch = 8; dim io = 4
mesh line = [data: 2]
layout data on line = { batch: data }
model m(x: [batch, io]) {
  state seen: [io] = 0
  param w: [io] = ones()
  update seen = 0.5 * seen + mean(x -> [io])
  loss = mean(square(cast(einsum(x, w -> [batch]), f32)))
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
  precision = { compute: f16, loss_scale: dynamic }
  average = 0.5
}
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_skipped_step_keeps_states_and_averages(backend: str) -> None:
    """State of the model and averages of parameters change in good steps alone."""
    _, module = module_of(WITH_STATE, "data", backend)
    params = module.shard({"w": np.ones(4), "seen": np.zeros(4)}, module.PARAMETERS)
    state, kept = module.init_state(), []
    for factor in (0.1, OVERFLOW, 0.2):
        inputs = module.shard({"x": np.full((8, 4), factor, np.float32)}, module.INPUTS)
        with np.errstate(all="ignore"):
            _, params, state = module.train_step(params, state, inputs, 0)
        whole = {**module.unshard(params, module.PARAMETERS), **module.unshard(state, module.STATE)}
        kept.append({name: np.array(value) for name, value in whole.items()})
    scale = kept[1].pop("loss_scale")
    assert scale == kept[0].pop("loss_scale") / 2
    assert len(kept[1]) >= 4
    for name, value in kept[1].items():
        if name != "good_steps":
            np.testing.assert_array_equal(value, kept[0][name], err_msg=name)
            assert not np.array_equal(value, kept[2][name]), name
