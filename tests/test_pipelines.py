"""Pipelines compute what the undistributed program computes, idle ticks leave no trace, and parameters stay on their stage."""

from __future__ import annotations

import numpy as np
import pytest

from mtfc.backends.jax.jax_program import JaxProgram
from mtfc.compiler.cost.volumes import layout_cost
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.ops import has_trait
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.verification.exact_cases import exact_cases
from tests.harness import (
    call,
    communication,
    differentiated,
    exact_data,
    load,
    lowered,
    numpy_module,
    reference,
    simulate,
)

MESH = "mesh grid = [stages: 2, data: 2, cols: 2]"

FEATURES = f"""
import nn
dim layers = 4
dim batch = 8
dim time = 3
dim d = 4
dim hidden = 8
{MESH}
layout plain on grid = {{ layers: stages, batch: data, hidden: cols, pipeline layers: {{ batch: 2 }}, allow W601 }}
layout outside on grid = {{
  layers: stages
  batch: (data, stages)
  pipeline layers checkpoint: {{ batch: 2 }}
  allow W601
}}
layout stored on grid = {{
  layers: stages
  batch: data
  params: {{ *: cols }}
  optimizer: {{ *: (cols, data) }}
  pipeline layers: {{ batch: 4 }}
  allow W601
}}
model net(x: [batch, time, d], y: [batch, d], keep: bool[batch, time]) {{
  h = x
  memory = y * y
  total = 0.0
  count = 1.0
  param shared: [d] = normal(stddev = 0.3)
  flag = keep
  repeat layers {{
    param w: [d, hidden] = normal(stddev = 0.4)
    param v: [hidden, d] = normal(stddev = 0.4)
    z = nn.dropout(where(keep, h, 0.5 * h) + memory * shared, rate = 0.3)
    u = relu(einsum(z, w -> [batch, time, hidden]))
    total = 0.9 * total + mean(u * u) + 0.5
    share = mean(u -> [hidden])
    watch share
    state = zeros([batch, d])
    scan h_t = h along time {{
      state = tanh(state + h_t)
      yield states = state
      yield means = mean(h_t)
    }}
    h = h + einsum(u, v -> [batch, time, d]) + state + states + count * 0.1
    count = count * 1.5
    flag = flag and sum(h -> [batch, time]) > 0.0
    yield hs = h
    yield sums = sum(w)
    yield places = range(batch) + range(batch)
    yield flags = flag
    yield lengths = means
  }}
  loss = mean(square(h - y)) + 0.1 * total + 0.1 * mean(hs) + 0.1 * sum(sums) + count + sum(lengths)
  return loss, hs, flag, flags, places, lengths
}}
train net {{
  minimize loss
  optimizer = adam(learning_rate = 0.1)
}}
"""
"""Everything that may happen in a loop: carries, sums, masks, dropout, loops inside, yields of all kinds."""

LOGARITHMS = f"""
dim layers = 4
dim batch = 8
dim d = 4
{MESH}
layout plain on grid = {{ layers: stages, batch: data, pipeline layers: {{ batch: 4 }}, allow W601 }}
model net(x: [batch, d]) {{
  h = 2.0 + abs(x)
  param shared: [d] = ones()
  repeat layers {{
    param w: [d] = ones()
    h = 2.0 + abs(w) * (1.0 / h + abs(log(h))) + 1.0 / (h * h) + shared * shared
  }}
  loss = mean(h)
  return loss
}}
train net {{
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}}
"""
"""Idle stages begin with zeros, of which they compute infinities and NaN."""


def test_every_feature_of_loops_is_exact() -> None:
    module = load(FEATURES)
    cases = [LayoutOnMesh(each.mesh, each.layout) for each in module.layouts]
    with np.errstate(all="ignore"):
        found = list(exact_cases(module.programs[0], cases, seed=0))
    assert len(found) == 4
    assert all(each.ok and not each.skipped for each in found)


@pytest.mark.parametrize("function", ["forward", "gradients", "step"])
def test_idle_stages_leave_no_trace(function: str) -> None:
    (original,) = load(LOGARITHMS).programs
    whole = differentiated(original, "gradients" if function == "gradients" else "step")
    arrays = exact_data(whole.function(function), seed=1)
    with np.errstate(all="ignore"):
        expected, found = reference(LOGARITHMS, function, arrays), simulate(LOGARITHMS, function, arrays)
    for name, x in expected.items():
        assert np.isfinite(x).all()
        np.testing.assert_allclose(found[name], x, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_jax_program_trains_as_the_numpy_program() -> None:
    from mtfc.backends.jax import backend

    program = lowered(LOGARITHMS)
    on_devices = JaxProgram.of(backend.generate(program))
    arrays = exact_data(program.function("step"), seed=2)
    params = {name: x for name, x in arrays.items() if name != "x"}
    with np.errstate(all="ignore"):
        expected = call(numpy_module(program), program.function("step"), arrays)
    state = on_devices.state_of({name: params[name] for name in on_devices.init(0).params})
    state, outputs = on_devices.train_step(state, {"x": arrays["x"]})
    np.testing.assert_allclose(outputs["loss"], expected["loss"], rtol=1e-5)
    for name, x in state.params.items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-4, atol=1e-6)


def test_stages_send_one_micro_batch_a_tick_and_keep_their_layers() -> None:
    program = lowered(LOGARITHMS)
    sent = communication(LOGARITHMS, "forward")
    assert [each for each in sent if each[0] == "permute"] == [("permute", ("stages",), 4)]
    weights = next(a.value for a in program.function("step").arguments if a.value.name == "layers.w")
    assert weights.type.axes_of("layers") == ("stages",)
    assert not any(has_trait(eqn, "all_gather") for eqn in walk(program.function("step").body))


LINEAR = """
dim layers = 4
dim batch = 8
dim d = 16
mesh grid = [stages: 2, data: 2]
layout piped on grid = { layers: stages, batch: data, pipeline layers: { batch: 4 }, allow W601 }
layout kept on grid = { layers: stages, batch: data, pipeline layers checkpoint: { batch: 4 }, allow W601 }
layout plain on grid = { layers: stages, batch: data, allow W601 }
model net(x: [batch, d]) {
  h = x
  repeat layers {
    param w: [d] = normal(stddev = 0.1)
    h = h * w
  }
  loss = mean(square(h))
  return loss
}
train net {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


@pytest.mark.parametrize(("layout", "kept"), [("piped", 2 * 64 + 1), ("kept", 64)])
def test_cost_shows_idle_ticks_and_bytes_in_flight(layout: str, kept: int) -> None:
    """For each tick, a stage keeps the inputs of its 2 layers, [1, d] of f32, and if it is idle; or the input of the stage."""
    (found,) = layout_cost(lowered(LINEAR, layout=layout)).pipelines
    assert (found.loop, found.stages, found.micro_batches, found.ticks) == ("layers", 2, 4, 5)
    assert found.kept == 5 * kept


def test_a_layout_without_pipelines_shows_none() -> None:
    assert layout_cost(lowered(LINEAR, layout="plain")).pipelines == ()


def test_a_parameter_without_gradient_has_no_state() -> None:
    """The loss does not depend on w, though the loop yields a value that does."""
    source = LOGARITHMS.replace("  loss = mean(h)", "  loss = mean(h) + sum(stop_gradient(ys))")
    source = source.replace("    h = 2.0", "    param u: [d] = ones()\n    yield ys = sum(u)\n    h = 2.0")
    source = source.replace("sgd(learning_rate = 0.1)", "adam(learning_rate = 0.1)")
    whole = differentiated(load(source).programs[0], "step").function("step")
    names = {argument.value.name for argument in lowered(source).function("step").arguments}
    assert "layers.u" in names
    assert names == {argument.value.name for argument in whole.arguments}


GENERATION = """
import decoding
import nn
dim batch = 4
dim length = 3
dim memory = length
dim vocab = 8
dim d = 4
dim heads = 2
dim d_k = 2
dim layers = 4
mesh grid = [stages: 2, data: 2]
layout piped on grid = { layers: stages, batch: data, pipeline layers: { batch: 2 } }
model generate(prompt: i32[batch, length], given: i32[batch]) {
  keys = zeros([layers, batch, heads, memory, d_k])
  values = zeros([layers, batch, heads, memory, d_k])
  token = zeros([batch], dtype = i32)
  scan t = range(length) along length {
    x = nn.embedding[vocab = vocab, d_model = d](token)
    repeat layers with k = keys, v = values {
      a, new_k, new_v = decoding.multi_head_at(nn.layer_norm(x), k, v, t) as multi_head
      x = x + a
      yield keys = new_k
      yield values = new_v
    }
    logits = nn.dense_no_bias[d_out = vocab](nn.layer_norm(x))
    token = where(t < given, gather(prompt, t, length), cast(argmax(logits, over = vocab), i32))
    yield written = token
  }
  return written
}
"""


def test_a_pipeline_generates_text() -> None:
    """Each token goes through the stages; keys and values stay on the stage of their layer."""
    module = load(GENERATION)
    found = list(
        exact_cases(module.programs[0], [LayoutOnMesh(e.mesh, e.layout) for e in module.layouts], seed=0)
    )
    assert len(found) == 2
    assert all(each.ok and not each.skipped for each in found)
