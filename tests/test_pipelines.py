"""Pipelines compute what the undistributed program computes, idle ticks leave no trace, and parameters stay on their stage."""

import re

import attrs
import numpy as np
import pytest

from benchmarks.accuracy import allocated
from mtfc.backends.hlo import collectives
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.backends.jax.backend import generate
from mtfc.backends.jax.jax_program import JaxProgram
from mtfc.compiler.cost.effects.memory import memory_of, memory_on
from mtfc.compiler.cost.effects.roofline import computation_of
from mtfc.compiler.cost.hardware import Device, Rate
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.volumes import SentVolume, layout_cost, total
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.core import Equation, Function, walk
from mtfc.compiler.ir.loops import TICKS, dim_of, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes.recompute import Recompute
from mtfc.driver.compiled_step import XLA_FOR_CPUS
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.verification.exact_cases import exact_cases
from mtfc.frontend.elaborate import Module
from mtfc.frontend.layouts.layout_text import layout_text
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
from tests.sampling import some

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

INTERLEAVED = (
    FEATURES.replace("batch: 2 }", "batch: 4, layers: 2 }", 1)
    .replace("batch: 2 }", "layers: 2, batch: 2 }")
    .replace("batch: 4 }", "batch: 8, layers: 2 }")
    .replace("batch: data\n  params", "params")
)
"""The same with two chunks of layers on each stage; the rounds of micro-batches are one, two and four."""

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


def all_are_exact(module: Module) -> bool:
    """Return True if the program gives the same under all layouts of the module."""
    (program,) = module.programs
    cases = [LayoutOnMesh(each.mesh, each.layout) for each in module.layouts]
    with np.errstate(all="ignore"):
        found = list(exact_cases(program, cases, seed=0))
    assert len(found) == 1 + len(cases)
    return all(each.ok and not each.skipped for each in found)


def test_every_feature_of_loops_is_exact() -> None:
    assert all_are_exact(load(FEATURES))


@pytest.mark.parametrize("chunks", some(["", ", layers: 2"], 1))
def test_pipelines_in_micro_batches_of_a_step_are_exact(chunks: str) -> None:
    source = FEATURES.replace("  watch share\n", "").replace("batch: 2 }", f"batch: 4{chunks} }}", 1)
    module = load(source.replace("minimize loss", "minimize loss; accumulate = 2; clip = 1.0"))
    assert all_are_exact(attrs.evolve(module, layouts=module.layouts[:1]))


def from_the_last_layer(function: Function) -> Function:
    """Return a function whose loops along `layers` run in reverse."""

    def changed(eqn: Equation) -> Equation:
        is_pipeline = bool(eqn.regions) and dim_of(eqn).name == "layers"
        return attrs.evolve(eqn, attrs={**eqn.attrs, "reverse": True}) if is_pipeline else eqn

    return attrs.evolve(function, body=tuple(map(changed, function.body)))


def test_every_feature_of_loops_is_exact_with_chunks() -> None:
    module = load(INTERLEAVED)
    assert all_are_exact(attrs.evolve(module, layouts=tuple(some(module.layouts, 2))))


def test_an_interleaved_pipeline_from_the_last_layer_is_exact() -> None:
    module = load(INTERLEAVED)
    (program,) = module.programs
    changed = program.map_functions(from_the_last_layer)
    assert all_are_exact(attrs.evolve(module, programs=(changed,), layouts=module.layouts[:1]))


def with_chunks(source: str) -> str:
    return source.replace("{ batch: 4 }", "{ batch: 4, layers: 2 }")


@pytest.mark.parametrize("source", [LOGARITHMS, with_chunks(LOGARITHMS)], ids=["plain", "interleaved"])
@pytest.mark.parametrize("function", ["forward", "gradients", "step"])
def test_idle_stages_leave_no_trace(function: str, source: str) -> None:
    (original,) = load(source).programs
    whole = differentiated(original, "gradients" if function == "gradients" else "step")
    arrays = exact_data(whole.function(function), seed=1)
    with np.errstate(all="ignore"):
        expected, found = reference(source, function, arrays), simulate(source, function, arrays)
    for name, x in expected.items():
        assert np.isfinite(x).all()
        np.testing.assert_allclose(found[name], x, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("source", [LOGARITHMS, with_chunks(LOGARITHMS)], ids=["plain", "interleaved"])
def test_the_jax_program_trains_as_the_numpy_program(source: str) -> None:
    from mtfc.backends.jax import backend

    program = lowered(source)
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
    assert [each for each in sent if each[0] == "permute"] == [("permute", ("stages",), 2)]
    weights = next(a.value for a in program.function("step").arguments if a.value.name == "layers.w")
    assert weights.type.axes_of("layers") == ("stages",)
    gathers = [eqn for eqn in walk(program.function("step").body) if has_trait(eqn, "all_gather")]
    assert {eqn.attrs["axes"] for eqn in gathers} == {("cols",)}, (
        "each device sends a part, and its neighbours gather the parts"
    )


def test_interleaved_layers_keep_their_shape_and_are_sent_once() -> None:
    """Stages store consecutive layers of a parameter and its state, and exchange them once each way: 2 chunks of 1 layer, [d]."""
    program = lowered(with_chunks(LOGARITHMS).replace("sgd(", "adam("))
    stored = {argument.value.name: argument.value.type for argument in program.function("step").arguments}
    for name in ("layers.w", "layers.w.m", "layers.w.v"):
        assert stored[name].names == ("layers", "d")
        assert stored[name].splits == (("stages",), ())
    assert not any(stored["shared"].splits)
    sent = [each for each in communication(with_chunks(LOGARITHMS), "step") if each[1] == ("stages",)]
    assert [each for each in sent if each[0] == "permute" and each[2] > 2] == [
        ("permute", ("stages",), 2 * 4)
    ] * 2
    assert {each[0] for each in sent} == {"permute", "reduce_scatter", "all_reduce"}


def test_a_layout_chooses_where_interleaved_layers_are_stored() -> None:
    source = with_chunks(LINEAR).replace("dim d = 16", "dim d = 16; dim e = 2").replace("w: [d]", "w: [d, e]")
    source = source.replace("h = h * w", "h = h * sum(w -> [d])").replace(
        "pipeline", "params: { layers: (), e: stages }, pipeline"
    )
    program = lowered(source, layout="piped")
    (weights,) = (a.value for a in program.function("step").arguments if a.role == "parameter")
    assert weights.type.splits == ((), (), ("stages",))


def test_xla_sends_what_is_predicted_for_interleaved_layers() -> None:
    program = lowered(with_chunks(LINEAR), layout="piped")
    compiled = jax_runtime.lowered(program, "step").compile()
    predicted = total(layout_cost(program).step).collectives
    for kind, found in collectives(compiled.as_text()).items():
        expected = predicted.get(kind, SentVolume())
        assert (found["count"], found["bytes_per_device"]) == (expected.count, expected.bytes), kind


def test_layouts_with_chunks_are_read_as_they_are_written() -> None:
    program = lowered(with_chunks(LINEAR), layout="kept")
    assert program.layout is not None and program.mesh is not None
    assert program.layout.pipelines[0].chunks == 2
    assert read_program(print_program(program)).layout == program.layout
    text = layout_text(program.layout, program.mesh)
    assert "pipeline layers checkpoint: { batch: 4, layers: 2 }" in text


def test_stages_with_chunks_are_idle_for_a_shorter_time() -> None:
    (found,) = layout_cost(lowered(with_chunks(LINEAR), layout="piped")).pipelines
    assert (found.chunks, found.ticks, found.idle) == (2, 9, 1)


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


@pytest.mark.parametrize("layout", ["piped", "kept"])
def test_cost_shows_idle_ticks_and_bytes_in_flight(layout: str) -> None:
    """A stage keeps the inputs of its 2 layers, [1, d] of f32, for at most 3 micro-batches."""
    (found,) = layout_cost(lowered(LINEAR, layout=layout)).pipelines
    assert (found.loop, found.stages, found.micro_batches, found.ticks) == ("layers", 2, 4, 5)
    assert found.kept == 3 * 2 * 64


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
    assert all_are_exact(load(GENERATION))


SUMS = """
dim layers = 4
dim batch = 8
dim d = 4
mesh grid = [stages: 2]
layout piped on grid = { layers: stages, pipeline layers: { batch: 8 }, allow W601 }
model net(x: [batch, d], weight: [batch, d]) {
  h = x
  param shared: [d] = zeros()
  repeat layers {
    param own: [d] = zeros()
    h = h + own + shared
    yield squares = sum(weight * weight -> [d])
  }
  loss = mean(h * weight)
  return loss, squares
}
train net {
  minimize loss
  optimizer = sgd(learning_rate = 1.0)
  precision = { params: f32, compute: bf16 }
}
"""
"""The gradient of `own` is the mean of `weight` over the batch, by `d`; no term of it needs rounding."""


@pytest.mark.parametrize(
    "change",
    [
        ("", ""),
        ("8 }", "8, layers: 2 }"),
        ("layers:", "layers checkpoint:"),
        ("bf16 }", "bf16, reduce: f32 }"),
        ("bf16", "f16"),
        ("minimize", "accumulate = 2\n  minimize"),
        ("params: f32", "params: bf16"),
    ],
    ids=["plain", "interleaved", "checkpoint", "reduce", "f16", "accumulate", "stored in 16 bits"],
)
def test_micro_batches_are_added_in_32_bits(change: tuple[str, str]) -> None:
    """In 16 bits a sum of 512 terms stops to grow. One rounding of the whole sum is allowed where it is stored in 16 bits."""
    batch = 512
    head, tail = SUMS.split("pipeline ")
    source = f"{head}pipeline {tail.replace(*change, 1)}"
    program = lowered(source.replace("batch = 8", f"batch = {batch}").replace("batch: 8", f"batch: {batch}"))
    step, forward = program.function("step"), program.function("forward")
    batches = (2, batch) if "accumulate" in source else (batch,)
    weight = np.random.default_rng(0).integers(1, 9, (*batches, 4)) / 4
    stored = {a.value.name: a.value.type for a in step.arguments if a.role == "parameter"}
    arrays = {
        name: np.zeros([d.size for d in t.dims], numpy_dtype(np, t.dtype)) for name, t in stored.items()
    }
    arrays |= {"x": np.zeros_like(weight, np.float32), "weight": weight.astype(np.float32)}
    found = call(numpy_module(program), step, arrays)
    rounding = 0 if stored["shared"].dtype == "f32" else 2.0**-8
    gradient = np.tile(weight.reshape(-1, 4).mean(axis=0) / 4, (4, 1))
    np.testing.assert_allclose(-found["layers.own"].astype(float), gradient, rtol=rounding)
    np.testing.assert_allclose(-found["shared"].astype(float), gradient.sum(axis=0), rtol=rounding)
    if len(batches) == 1:
        squares = call(numpy_module(program), forward, arrays)["squares"].astype(float)
        np.testing.assert_allclose(squares, np.tile((weight**2).sum(axis=0), (4, 1)), rtol=2.0**-8)


@pytest.mark.parametrize("chunks", ["", ", layers: 2"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_of_layers_are_added_in_place(accumulate: int, chunks: str) -> None:
    """In a tick nothing makes a stack of the layers of a stage, besides changes of the layers that the tick is about."""
    source = MATRICES.replace("batch: 8 }", f"batch: 8{chunks} }}")
    program = lowered(source.replace("minimize loss", f"minimize loss; accumulate = {accumulate}"))
    loops = [
        each for each in walk(program.function("step").body) if each.regions and region_of(each).name == TICKS
    ]
    body = [each for loop in loops for each in walk(loop.regions[0].body) if not each.regions]
    stack = 8 * 16 * 16 // 2
    large = [e for e in body if any(v.type.local_size(program.placed_on) >= stack for v in e.results)]
    assert {each.op for each in large} == {"add_at", "set_at"}


MATRICES = """
dim layers = 8
dim batch = 64
dim d = 16
dim e = 16
mesh grid = [stages: 2]
layout piped on grid = { layers: stages, pipeline layers: { batch: 8 }, allow W601 }
model net(x: [batch, d]) {
  h = x
  repeat layers {
    param w: [d, e] = normal(stddev = 0.1)
    h = h + rename(relu(einsum(h, w -> [batch, e])), e -> d)
  }
  loss = mean(square(h))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


def of_sizes(source: str, **sizes: int) -> str:
    """Return a source with other sizes of dimensions and of the mesh axis."""
    for name, size in sizes.items():
        source = re.sub(rf"(dim {name} =|{name}:) \d+", rf"\1 {size}", source)
    return source


@pytest.mark.parametrize("number", [4, 32])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_bubble_takes_as_long_as_its_formula_says(chunks: int, number: int) -> None:
    """Stages are idle for (stages - 1) / (micro-batches * chunks) of the time without a bubble, and at most 5 % of this more."""
    device = Device(flops={"f32": Rate.constant(1e12)}, memory=1e12, bandwidth=Rate.constant(1e16))
    sizes = {"batch": 131072, "d": 2048, "e": 2048}
    piped = of_sizes(MATRICES, **sizes, layers=16, stages=4).replace(
        "{ batch: 131072 }", f"{{ batch: {number} }}"
    )
    if chunks > 1:
        piped = piped.replace(f"{{ batch: {number} }}", f"{{ batch: {number}, layers: {chunks} }}")
    alone = of_sizes(MATRICES, **sizes, layers=4, stages=1).replace(
        "pipeline layers: { batch: 131072 }, ", ""
    )
    taken, ideal = (
        computation_of(each.function("step"), each.placed_on, device) for each in map(lowered, (piped, alone))
    )
    assert taken / ideal - 1 == pytest.approx(3 / (number * chunks), rel=0.05)


@pytest.mark.parametrize(
    "change",
    [
        ("", ""),
        ("layers:", "layers checkpoint:"),
        ("8 }", "8, layers: 2 }"),
        ("minimize", "accumulate = 4; minimize"),
    ],
    ids=["plain", "checkpoint", "interleaved", "micro-batches"],
)
def test_memory_is_what_xla_allocates(change: tuple[str, str]) -> None:
    head, tail = (
        of_sizes(MATRICES, d=64, e=64, stages=4, layers=32)
        .replace("batch = 64", "batch = 1024")
        .split("pipeline ")
    )
    program = lowered(f"{head}pipeline {tail.replace(*change, 1)}")
    predicted = whole(memory_on(program.function("step"), program.placed_on, XLA_FOR_CPUS).total)
    allocated_bytes = allocated(jax_runtime.lowered(program, "step").compile())
    assert predicted == pytest.approx(allocated_bytes, rel=0.1)


def test_stages_keep_as_much_as_a_memory_limit_allows() -> None:
    module = load(of_sizes(MATRICES, d=64, e=64, stages=4, layers=32))
    (program,), (declared,) = module.programs, module.layouts
    case = LayoutOnMesh(declared.mesh, declared.layout)

    def needed(limit: Recompute | None) -> int:
        found = attrs.evolve(case, limit=limit).lower(program)
        return whole(memory_of(found.function("step"), found.placed_on, Numbers(found.placed_on)).total)

    most, least = needed(None), needed(Recompute("full"))
    assert least < most
    assert needed(Recompute(most)) == most
    assert least <= needed(Recompute(most - 1)) < most
    assert needed(Recompute(least)) == least
    with pytest.raises(CompileError, match="E321"):
        needed(Recompute(least // 2))


def test_sums_of_stored_gradients_are_not_gathered() -> None:
    """Each of the 4 micro-batches gathers a parameter, and scatters its gradient."""
    source = MATRICES.replace("[stages: 2]", "[stages: 2, data: 2]").replace(
        "minimize", "accumulate = 4; minimize"
    )
    program = lowered(source.replace("pipeline layers", "batch: data, params: { *: data }, pipeline layers"))
    loops = [each for each in program.function("step").body if each.regions]
    body = [each for loop in loops for each in region_of(loop).body if has_trait(each, "sends")]
    sent = [each.op for each in body if each.attrs["axes"] == ("data",)]
    assert sorted(sent) == ["all_gather", "reduce_scatter"], (
        "the loop over the 4 micro-batches of the step has them, and no tick"
    )
    carried = r"(sum_loss\w*, \w+)"
    assert re.search(rf"{carried} = carry\n.*\n +\1, \w+ = bound\(\w+, \1, \w+\)", generate(program)), (
        "XLA may not move sums out of the loop: libtpu 0.0.42 fails where it tries to"
    )
