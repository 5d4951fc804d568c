"""`average = d` in a `train` block: a step keeps an exponential moving average of each parameter that it trains."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mtfc
from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
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

SOURCE = """
dim batch = 8; dim io = 4; dim hidden = 8; dim layers = 2
mesh grid = [rows: 2, cols: 2]
layout both = { batch: rows, hidden: cols }
layout fsdp = { batch: (rows, cols), params: { *: (rows, cols) } }
layout zero = { batch: rows, optimizer: { hidden: cols } }

model m(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param fixed: [hidden] = ones()
  state s: [hidden] = 1
  h = einsum(x, w -> [batch, hidden]) * fixed + s
  update s = 0.5 * s + mean(h -> [hidden])
  repeat layers {
    param u: [hidden] = ones()
    h = tanh(h * u)
  }
  loss = mean(square(h))
  return loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.5); frozen "fixed"; SETTINGS }
"""
LAYOUTS = ("both", "fsdp", "zero")
TRAINED = ("w", "layers.u")


def source(settings: str = "average = 0.75") -> str:
    return SOURCE.replace("SETTINGS", settings)


def batches(number: int, *shape: int) -> list[Arrays]:
    random = np.random.default_rng(3)
    return [{"x": random.standard_normal(shape or (8, 4)).astype(np.float32)} for _ in range(number)]


def trained(module: Any, steps: list[Arrays]) -> list[tuple[Arrays, Arrays, Arrays]]:
    """Return parameters, states, and parameters with averages, after each step, as whole arrays."""
    params, state, found = module.init(0), module.init_state(), []
    inputs = getattr(module, "BATCHES", module.INPUTS)
    for number, batch in enumerate(steps):
        _, params, state = module.train_step(params, state, module.shard(batch, inputs), number)
        averaged = module.averaged(params, state)
        after = [(params, module.PARAMETERS), (state, module.STATE), (averaged, module.PARAMETERS)]
        found.append(tuple(whole(module, *each) for each in after))
    return found


@pytest.mark.parametrize("backend", [numpy_module, jax_module], ids=["numpy", "jax"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_averages_are_those_of_optax(layout: str, backend: Any) -> None:
    module = backend(lowered(source(), layout=layout))
    theirs = optax.ema(0.75, debias=True)
    first = {name: jnp.zeros(type) for name, type in (("w", (4, 8)), ("layers.u", (2, 8)))}
    memory = theirs.init(first)
    for params, state, averaged in trained(module, batches(6)):
        expected, memory = theirs.update({name: jnp.asarray(params[name]) for name in TRAINED}, memory)
        for name in TRAINED:
            np.testing.assert_allclose(state[f"{name}.average"], expected[name], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(averaged[name], state[f"{name}.average"])
        for name in ("fixed", "s"):
            np.testing.assert_array_equal(averaged[name], params[name])
            assert f"{name}.average" not in state


def test_long_averages_lose_no_digits_at_the_start() -> None:
    """After one step an average is the parameter, and after two their mean, also with a share near 1."""
    found = trained(numpy_module(lowered(source("average = 0.99999"), layout="both")), batches(2))
    (first, first_state, _), (second, second_state, _) = found
    np.testing.assert_array_equal(first_state["w.average"], first["w"])
    mean = (first["w"].astype(np.float64) + second["w"]) / 2
    np.testing.assert_allclose(second_state["w.average"], mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("settings", ["average = 0.75", "average = 0.75; accumulate = 2; clip = 0.1"])
def test_every_layout_has_the_same_averages(settings: str) -> None:
    agree(source(settings), jax=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_before_the_first_step_averages_are_the_parameters(layout: str) -> None:
    module = numpy_module(lowered(source(), layout=layout))
    params = module.init(0)
    averaged = module.averaged(params, module.init_state())
    SINGLE.check(*(whole(module, each, module.PARAMETERS) for each in (averaged, params)), layout)


def test_averages_are_stored_as_optimizer_state() -> None:
    module = numpy_module(lowered(source(), layout="zero"))
    assert module.STATE["w.average"] == (None, "cols")
    assert module.PARAMETERS["w"] == (None, None)


def test_averages_send_nothing_in_a_step() -> None:
    for layout in LAYOUTS:
        assert communication(source(), "step", layout) == communication(source(""), "step", layout)


def test_averages_of_narrow_parameters_are_wide() -> None:
    """An average in bf16 would lose steps of 1/512 of its value."""
    text = source("average = 0.999; precision = { params: bf16, compute: bf16 }")
    module = numpy_module(lowered(text, layout="both"))
    params, state, averaged = trained(module, batches(2))[-1]
    assert (params["w"].dtype, state["w.average"].dtype, averaged["w"].dtype) == (
        module.bfloat16,
        np.float32,
        module.bfloat16,
    )


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_step_with_infinite_gradients_keeps_the_averages() -> None:
    text = source("average = 0.75; precision = { compute: f16, loss_scale: dynamic }")
    module = numpy_module(lowered(text, layout="both"))
    (good, large) = (*batches(1), {"x": np.full((8, 4), 6e4, np.float32)})
    (_, before, _), (_, after, _) = trained(module, [good, large])
    for name in ("averaged_steps", "w.average"):
        np.testing.assert_array_equal(after[name], before[name])


def test_the_function_of_the_ir_gives_averages() -> None:
    (program,) = load(source()).programs
    whole_program = differentiated(program, "step")
    function = whole_program.function("averaged")
    arrays = exact_data(function, 0)
    found = interpret(function, whole_program, arrays)
    assert {name: name in TRAINED for name in found} == {
        name: bool(np.any(found[name] != arrays[name])) for name in found
    }


def test_text_of_the_ir_keeps_the_share() -> None:
    (program,) = load(source("average = 0.75; clip = 1.0; accumulate = 2")).programs
    assert program.training is not None and program.training.average == 0.75
    assert same_program(read_program(print_program(program, locations=True)), program)


def test_python(tmp_path: Any) -> None:
    path = tmp_path / "m.mtf"
    path.write_text(source())
    program = mtfc.compile(path, layout="both", set={"average": 0.5})
    state = program.init(0)
    for batch in batches(3):
        state, _ = program.train_step(state, batch)
    averaged = program.averaged(state)
    np.testing.assert_array_equal(averaged["w"], state.optimizer["w.average"])
    path.write_text(source(""))
    plain = mtfc.compile(path, layout="both")
    with pytest.raises(ValueError, match="`average"):
        plain.averaged(plain.init(0))
