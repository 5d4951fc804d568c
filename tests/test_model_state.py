"""State in models: a training step replaces it, every other run reads it and leaves it."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import mtfc
from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Output, Program
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.verifier import VerifyError, verify
from tests.backends.test_value_and_grad import module_of
from tests.harness import (
    SINGLE,
    Arrays,
    agree,
    communication,
    differentiated,
    exact_data,
    jax_module,
    load,
    lowered,
    numpy_module,
    whole,
)
from tests.program_equality import same_program
from tests.sampling import some

HEAD = """
import nn
dim batch = 8; dim io = 4; dim hidden = 8; dim layers = 3; dim blocks = 2
mesh grid = [rows: 2, cols: 2]
layout both = { batch: rows, hidden: cols }
layout data = { batch: (rows, cols) }
layout fsdp = { batch: (rows, cols), params: { *: (rows, cols) } }
layout stored = { batch: rows, params: { hidden: cols }, optimizer: { io: rows } }
layout zero = { batch: rows, optimizer: { *: cols } }

fn centred[d](x: [..., d]) -> [..., d] {
  state average: [d] = 0.5
  now = mean(x -> [d])
  update average = 0.75 * average + 0.25 * now
  return x - where(training, now, average)
}
"""

BODIES = {
    "function": "h = centred(centred(h)) + centred(h)",
    "counter": "state seen: i32[] = 3; update seen = seen + batch; h = h * cast(seen, f32)",
    "scalar": "state s: [] = 1; h = h * s; update s = 0.5 * s + mean(h)",
    "other order": """
      state a: [io, hidden] = 1
      b = einsum(a, h -> [hidden, io])
      update a = 0.25 * b
      h = h + 0.25 * sum(a -> [hidden])""",
    "repeat": "repeat layers { param u: [hidden] = ones(); h = tanh(centred(h * u)) }",
    "checkpoint": """
      repeat layers checkpoint {
        state s: [hidden] = 1
        h = tanh(h * s)
        update s = s - 0.25 * mean(h -> [hidden])
      }""",
    "nested": "repeat blocks { repeat layers { h = tanh(centred(h)) }; h = centred(h) }",
    "read only": "state _table: [hidden] = 2; h = h * _table",
}


def model(body: str, settings: str = "", optimizer: str = "momentum(learning_rate = 0.5)") -> str:
    return f"""{HEAD}
model m(x: [batch, io]) {{
  param w: [io, hidden] = normal(stddev = 0.5)
  h = einsum(x, w -> [batch, hidden])
  {body}
  loss = mean(square(h))
  return h, loss
}}
train m {{ minimize loss; optimizer = {optimizer}; {settings} }}
"""


@pytest.mark.parametrize(
    ("name", "settings"), [*product(BODIES, [""]), *product(some(BODIES, 3), ["accumulate = 2"])]
)
def test_every_layout_updates_the_same_state(name: str, settings: str) -> None:
    agree(
        model(BODIES[name], settings),
        jax=(name, settings) in (("function", ""), ("checkpoint", "accumulate = 2")),
    )


@pytest.mark.parametrize("name", BODIES)
def test_text_of_the_ir_keeps_states(name: str) -> None:
    (program,) = load(model(BODIES[name])).programs
    assert same_program(read_program(print_program(program, locations=True)), program)
    assert program.states


def test_names_and_types_are_those_of_parameters() -> None:
    (program,) = load(model(BODIES["nested"])).programs
    states = {each.name: str(each.type) for each in program.parameters if each.is_state}
    assert states == {
        "blocks.layers.centred.average": "f32[blocks, layers, hidden]",
        "blocks.centred.average": "f32[blocks, hidden]",
    }


def test_the_name_of_a_state_means_its_value_before_the_step() -> None:
    """Both reads, before and after the update, give the old value."""
    body = "state s: [] = 3; early = 1 * s; update s = s + 1; late = 1 * s; h = h * early * late"
    (program,) = load(model(body)).programs
    step = differentiated(program, "step").function("step")
    arrays = {**exact_data(step, 0), "s": np.float32(3)}
    found = interpret(step, program, arrays)
    assert found["s"] == 4
    h = arrays["x"] @ arrays["w"] * 9
    np.testing.assert_allclose(found["loss"], np.mean(h**2), rtol=1e-5)


def steps_of(program: Program, backend: Any, batches: list[Arrays]) -> tuple[Arrays, Any, Any]:
    """Return the parameters after the steps as whole arrays, the module and the parameters."""
    module = backend(program)
    params, state = module.init(0), module.init_state() if hasattr(module, "init_state") else {}
    inputs = getattr(module, "BATCHES", module.INPUTS)
    for number, batch in enumerate(batches):
        _, params, state = module.train_step(params, state, module.shard(batch, inputs), number)
    return whole(module, params, module.PARAMETERS), module, params


def evaluated(module: Any, params: Any, batch: Arrays) -> Arrays:
    outputs = module.forward(params, module.shard(batch, module.INPUTS))
    return whole(module, outputs, module.OUTPUTS["forward"])


def drawn(number: int, *shape: int) -> list[Arrays]:
    random = np.random.default_rng(3)
    return [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(number)]


NORMALIZED = (
    HEAD
    + """
model m(x: [batch, hidden]) {
  y = nn.tracked_batch_norm(x, decay = 0.75)
  loss = mean(y * y * y)
  return y, loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.125); SETTINGS }
"""
)


@attrs.define
class ByHand:
    """Batch normalization as the paper has it, with gradient descent on the mean cube."""

    scale: Any = attrs.field(factory=lambda: np.ones(8))
    bias: Any = attrs.field(factory=lambda: np.zeros(8))
    mean: Any = attrs.field(factory=lambda: np.zeros(8))
    variance: Any = attrs.field(factory=lambda: np.ones(8))

    def normalized(self, x: Any, mean: Any, variance: Any) -> Any:
        return (x - mean) / np.sqrt(variance + 1e-5)

    def track(self, x: Any) -> tuple[Any, Any]:
        """Update the running statistics, and return the gradients of scale and bias."""
        unit = self.normalized(x, x.mean(0), x.var(0))
        slope = 3 * np.square(unit * self.scale + self.bias) / x.size
        self.mean = 0.75 * self.mean + 0.25 * x.mean(0)
        self.variance = 0.75 * self.variance + 0.25 * x.var(0)
        return (slope * unit).sum(0), slope.sum(0)

    def step(self, *batches: Any) -> None:
        gradients = [self.track(x.astype(np.float64)) for x in batches]
        self.scale = self.scale - 0.125 * np.mean([each[0] for each in gradients], 0)
        self.bias = self.bias - 0.125 * np.mean([each[1] for each in gradients], 0)

    def forward(self, x: Any) -> Any:
        return self.normalized(x, self.mean, self.variance) * self.scale + self.bias

    @property
    def arrays(self) -> Mapping[str, Any]:
        return {f"tracked_batch_norm.{name}": x.astype(np.float32) for name, x in attrs.asdict(self).items()}


@pytest.mark.parametrize("backend", [numpy_module, jax_module], ids=["numpy", "jax"])
@pytest.mark.parametrize("layout", ["both", "fsdp", "zero"])
def test_batch_normalization_is_that_of_a_loop_by_hand(layout: str, backend: Any) -> None:
    program = lowered(NORMALIZED.replace("SETTINGS", ""), layout=layout)
    batches = drawn(5, 8, 8)
    params, module, placed = steps_of(program, backend, batches)
    by_hand = ByHand()
    for batch in batches:
        by_hand.step(batch["x"])
    SINGLE.check(params, dict(by_hand.arrays), layout)
    (new,) = drawn(1, 8, 8)
    y = evaluated(module, placed, new)["y"]
    np.testing.assert_allclose(y, by_hand.forward(new["x"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["both", "fsdp", "zero"])
def test_micro_batches_update_one_after_the_other(layout: str) -> None:
    program = lowered(NORMALIZED.replace("SETTINGS", "accumulate = 3"), layout=layout)
    batches = drawn(2, 3, 8, 8)
    by_hand = ByHand()
    for batch in batches:
        by_hand.step(*batch["x"])
    SINGLE.check(steps_of(program, numpy_module, batches)[0], dict(by_hand.arrays), layout)


def test_batch_normalization_is_that_of_flax() -> None:
    theirs = nnx.BatchNorm(8, momentum=0.75, epsilon=1e-5, rngs=nnx.Rngs(0))
    program = lowered(NORMALIZED.replace("SETTINGS", 'frozen "*.bias"').replace("0.125", "0.0"))
    batches = drawn(4, 8, 8)
    params, module, placed = steps_of(program, jax_module, batches)
    for batch in batches:
        theirs(jnp.asarray(batch["x"]), use_running_average=False)
    mean, variance = theirs.mean[...], theirs.var[...]
    np.testing.assert_allclose(params["tracked_batch_norm.mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(params["tracked_batch_norm.variance"], variance, rtol=1e-5)
    (new,) = drawn(1, 8, 8)
    expected = theirs(jnp.asarray(new["x"]), use_running_average=True)
    np.testing.assert_allclose(evaluated(module, placed, new)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["both", "fsdp"])
def test_evaluation_depends_on_no_other_example_and_sends_nothing_for_statistics(layout: str) -> None:
    source = NORMALIZED.replace("SETTINGS", "")
    program = lowered(source, layout=layout)
    _, module, params = steps_of(program, numpy_module, drawn(2, 8, 8))
    (new,) = drawn(1, 8, 8)
    changed = {"x": np.concatenate([new["x"][:1], -3 * new["x"][1:]])}
    y, other = (evaluated(module, params, each)["y"] for each in (new, changed))
    np.testing.assert_array_equal(y[0], other[0])
    kinds = [kind for kind, _, size in communication(source, "forward", layout) if size > 1]
    assert kinds == ([] if layout == "both" else ["all_gather"] * len(kinds))


def test_statistics_are_reduced_over_the_whole_batch_without_further_bytes() -> None:
    """A step sends what the step of `nn.batch_norm` sends."""
    source = NORMALIZED.replace("SETTINGS", "")
    stateless = source.replace("tracked_batch_norm(x, decay = 0.75)", "batch_norm(x)")
    for layout in ("both", "data"):
        assert communication(source, "step", layout) == communication(stateless, "step", layout)


def test_the_update_is_computed_in_the_stored_dtype() -> None:
    """A running mean in bf16 would lose steps of 1/512 of its value."""
    body = "state s: [hidden] = 1; update s = s + 0.001 + 0 * sum(h -> [hidden]); h = h + s"
    source = model(body, "precision = { params: f32, compute: bf16 }")
    params, _, _ = steps_of(lowered(source, layout="both"), numpy_module, drawn(3, 8, 4))
    np.testing.assert_allclose(params["s"], np.full(8, 1.003, np.float32), rtol=1e-6)
    (program,) = load(source).programs
    step = differentiated(program, "step").function("step")
    assert (
        next(out.value.type.dtype for out in step.outputs if out.name == "h" or out.updates == "s") == "f32"
    )


def test_values_read_from_state_have_the_dtype_of_the_computation() -> None:
    source = model(
        "state s: [hidden] = 1; repeat layers { h = tanh(h * s) }; update s = s + mean(h -> [hidden])",
        "precision = { params: f32, compute: bf16 }",
    )
    forward = lowered(source, layout="both").function("forward")
    assert {out.name: out.value.type.dtype for out in forward.outputs} == {"h": "bf16", "loss": "f32"}
    agree(source, jax=False)


# Gradients


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_value_and_grad_gives_zeros_and_the_new_state(backend: str, accumulate: bool) -> None:
    settings = "clip = 0.01; accumulate = 2" if accumulate else "clip = 0.01"
    module = module_of(model(BODIES["nested"] + "\n" + BODIES["counter"], settings), "fsdp", backend)
    params, options = module.init(0), {"accumulate": True} if accumulate else {}
    shape = (2, 8, 4) if accumulate else (8, 4)
    inputs = module.shard(drawn(1, *shape)[0], getattr(module, "BATCHES", module.INPUTS))
    (loss, new), gradients = module.value_and_grad(params, inputs, clip=True, with_state=True, **options)
    same = module.value_and_grad(params, inputs, clip=True, **options)
    assert float(np.ravel(loss)[0]) == float(np.ravel(same[0])[0])
    assert set(module.MODEL_STATE) == {"seen", "blocks.centred.average", "blocks.layers.centred.average"}
    found, zeros = (whole(module, each, module.PARAMETERS) for each in (new, gradients))
    assert all(not zeros[name].any() for name in module.MODEL_STATE)
    assert zeros["w"].any()
    _, stepped, _ = module.train_step(module.init(0), module.init_state(), inputs, 0)
    after = whole(module, stepped, module.PARAMETERS)
    states = module.MODEL_STATE
    SINGLE.check({name: found[name] for name in states}, {name: after[name] for name in states}, "new state")


def test_no_gradient_passes_through_state() -> None:
    """An earlier micro-batch's state depends on `w`: the gradient is that of states held fixed."""
    body = "state s: [] = 1; h = h * s; update s = s + mean(square(h))"
    program = lowered(model(body, "accumulate = 2", "sgd(learning_rate = 1)"), layout="both")
    (batch,) = drawn(1, 2, 8, 4)
    before = numpy_module(program).init(0)
    w = whole(numpy_module(program), before, numpy_module(program).PARAMETERS)["w"].astype(np.float64)
    after = steps_of(program, numpy_module, [batch])[0]
    s, gradient = 1.0, 0.0
    for x in batch["x"].astype(np.float64):
        h = x @ w * s
        gradient = gradient + x.T @ (2 * h / h.size * s) / 2
        s += np.mean(h**2)
    np.testing.assert_allclose(after["w"], w - gradient, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after["s"], s, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_with_infinite_gradients_keeps_the_state(accumulate: int) -> None:
    body = "state s: [] = 1; update s = s + mean(square(h))"
    settings = f"precision = {{ params: f32, compute: f16, loss_scale: dynamic }}; accumulate = {accumulate}"
    program = lowered(model(body, settings), layout="both")
    shape = (8, 4) if accumulate == 1 else (accumulate, 8, 4)
    small, large = drawn(1, *shape)[0], {"x": np.full(shape, 6e4, np.float32)}
    assert steps_of(program, numpy_module, [small])[0]["s"] > 1
    assert steps_of(program, numpy_module, [large])[0]["s"] == 1


# The compiler


def test_forward_updates_states_alone_and_only_before_layouts() -> None:
    (program,) = load(model(BODIES["function"])).programs
    forward = program.function("forward")
    wrong = Output("w", forward.arguments[1].value, "w")
    changed = attrs.evolve(program, functions=(attrs.evolve(forward, outputs=(*forward.outputs, wrong)),))
    with pytest.raises(VerifyError, match="`forward` updates states"):
        verify(changed, "global")
    assert all(
        output.updates is None for output in lowered(model(BODIES["function"])).function("forward").outputs
    )


def test_equations_that_the_model_shares_with_an_update_run_where_the_model_runs() -> None:
    """Equal equations become one, which no rule of the optimizer's state may split."""
    body = "state s: [hidden] = 0; update s = 0.5 * mean(h -> [hidden]); h = h - 0.5 * mean(h -> [hidden])"
    source = model(body).replace(
        "layout zero", "layout rows = { batch: rows, optimizer: { hidden: cols } }\nlayout zero"
    )
    step = lowered(source, layout="rows").function("step")
    shared = next(eqn for eqn in step.body if eqn.path == "s")
    assert (shared.stage, shared.layout) == ("forward", {})
    agree(source, jax=False)


def test_unused_calls_leave_no_state_behind() -> None:
    (program,) = mtfc_programs(model("_unused = centred(h)"))
    assert not program.states


def mtfc_programs(source: str) -> tuple[Program, ...]:
    """Return the programs as the command has them: unused statements are left out."""
    from mtfc.compiler.diagnostics import Diagnostics
    from mtfc.frontend.elaborate import elaborate
    from mtfc.frontend.syntax.parser import parse

    return elaborate(parse(source, "test.mtf", Diagnostics()), Diagnostics()).programs


def test_variables_may_be_called_state_and_update() -> None:
    agree(model("update = 2 * h; state = update + 1; h = state"), jax=False)


# The driver


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.mtf").write_text(NORMALIZED.replace("SETTINGS", ""))
    return tmp_path


def test_verify_compares_the_state_after_training(file: Path) -> None:
    found = mtfc.verify(file / "m.mtf", backend="numpy")
    case = found["cases"][0]
    assert found["ok"]
    assert {"tracked_batch_norm.mean", "tracked_batch_norm.variance"} <= case["training"].keys()
    assert "y in evaluation" in case["outputs"]


def test_memory_counts_state_as_stored(file: Path) -> None:
    memory = {
        each["layout"]: each["memory_per_device"]["parameters"]
        for each in mtfc.cost(file / "m.mtf")["layouts"]
    }
    assert memory["data"] == 4 * 8 * 4
    assert memory["both"] == memory["data"] // 2
    assert memory["fsdp"] == memory["data"] // 4


SMALL = {"batch": 4, "height": 32, "width": 32, "stem": 4, "classes": 8, "blocks4": 2} | {
    f"blocks{stage}": 1 for stage in (2, 3, 5)
}


def test_resnet_evaluates_each_image_alone(file: Path) -> None:
    """ResNet-101, made small: after two steps, the logits of an image do not depend on the other images."""
    text = (Path(__file__).parents[1] / "examples/resnet101.mtf").read_text("utf-8")
    (file / "resnet.mtf").write_text(
        text.replace("nn.batch_norm(y)", "nn.tracked_batch_norm(y) as batch_norm")
    )
    compiled = mtfc.compile("resnet.mtf", layout="batch:nodes", mesh="nodes:2", dims=SMALL)
    module = compiled.load("numpy")
    random = np.random.default_rng(0)
    images = random.standard_normal((3, 4, 32, 32, 3)).astype(np.float32)
    batches = [{"images": each, "labels": np.arange(4, dtype=np.int32)} for each in images]
    params, state = module.init(0), module.init_state()
    for number, batch in enumerate(batches[:2]):
        _, params, state = module.train_step(params, state, module.shard(batch, module.INPUTS), number)
    other = {**batches[2], "images": np.concatenate([images[2, :1], images[0, 1:]])}
    first, second = (evaluated(module, params, each)["logits"] for each in (batches[2], other))
    np.testing.assert_allclose(first[0], second[0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(first[1:], second[1:], rtol=1e-2)
