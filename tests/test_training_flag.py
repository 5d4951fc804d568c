"""`training`: true in a training step and where gradients are computed, false in every other run of a model."""

from collections.abc import Callable
from itertools import product
from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.verifier import VerifyError, verify
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.partition.assign_layouts import AssignLayouts
from mtfc.compiler.passes.pipelines import lower
from tests.harness import (
    SINGLE,
    agree,
    call,
    communication,
    diagnose,
    exact_data,
    jax_module,
    load,
    lowered,
    numpy_module,
    reference,
)
from tests.sampling import some

DRAWS = {"uniform", "normal", "bernoulli"}

HEAD = """
import nn
dim batch = 8; dim io = 4; dim layers = 3
mesh grid = [rows: 2, cols: 2]
layout data on grid = { batch: rows }
layout both on grid = { batch: rows, io: cols }
"""

BODIES = {
    "plain": "h = DROP(h)",
    "repeat": "repeat layers { h = tanh(DROP(h)) }",
    "checkpoint": "repeat layers checkpoint { param u: [io] = ones(); h = tanh(DROP(h * u)) }",
    "scan": "s = zeros([batch]); scan t = h along io { s = s + DROP(t); yield h = s }; h = transpose(h -> [batch, io])",
    "nested": "repeat layers { s = zeros([batch]); scan t = h along io { s = s + DROP(t) }; h = h + s }",
}


def model(body: str, drop: str = "nn.dropout", settings: str = "") -> str:
    return f"""{HEAD}
model m(x: [batch, io]) {{
  param w: [io] = ones()
  h = x * w
  {body.replace("DROP", drop)}
  loss = mean(square(h))
  return h, loss
}}
train m {{ minimize loss; optimizer = sgd(learning_rate = 0.5); {settings} }}
"""


def without_dropout(body: str, settings: str = "") -> str:
    return model(body, "", settings)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("backend", [numpy_module, jax_module], ids=["numpy", "jax"])
def test_forward_is_that_of_the_model_without_dropout(name: str, backend: Any) -> None:
    for layout in ("data", "both"):
        program = lowered(model(BODIES[name]), layout=layout)
        forward = program.function("forward")
        arrays = exact_data(forward, seed=1)
        expected = reference(without_dropout(BODIES[name]), "forward", arrays)
        SINGLE.check(call(backend(program), forward, arrays), expected, f"{name} {layout}")


@pytest.mark.parametrize(
    ("name", "settings"), [*product(BODIES, [""]), *product(some(BODIES, 3), ["accumulate = 2"])]
)
def test_a_step_drops_and_every_layout_drops_alike(name: str, settings: str) -> None:
    source = model(BODIES[name], settings=settings)
    step = lowered(source).function("step")
    arrays = exact_data(step, seed=1)
    dropped = reference(source, "step", arrays)
    kept = reference(without_dropout(BODIES[name], settings), "step", arrays)
    assert abs(dropped["loss"] - kept["loss"]) > 1e-3
    agree(source, jax=(name, settings) in ((("checkpoint", ""), ("scan", ""), ("plain", "accumulate = 2"))))


@pytest.mark.parametrize("name", BODIES)
def test_forward_is_the_same_equations_as_without_dropout(name: str) -> None:
    """Evaluation has no operation of the training mode, such as a random draw."""
    with_flag, without = lowered(model(BODIES[name])), lowered(without_dropout(BODIES[name]))
    assert ops(with_flag) == ops(without)
    assert DRAWS & set(ops(with_flag, "step"))


def ops(program: Program, function: str = "forward") -> list[str]:
    return [eqn.op for eqn in walk(program.function(function).body)]


def test_gradients_are_those_of_training_without_a_train_block() -> None:
    source = HEAD + "model m(x: [batch, io]) { y = where(training, 2 * x, 3 * x); return y }"
    arrays = {"x": np.ones((8, 4), np.float32)}
    assert np.all(reference(source, "gradients", arrays)["d_x"] == 2)
    assert np.all(reference(source, "forward", arrays)["y"] == 3)


def test_the_dead_side_sends_nothing() -> None:
    source = """
    dim a = 8; dim b = 4
    mesh grid = [rows: 2, cols: 2]
    layout main on grid = { a: rows, b: cols }
    model m(x: [a, b]) {
      t = training
      repeat b { x = x + where(t, mean(x, over = a), 0.5) }
      z = where(not t, x, x * sum(x))
      return z
    }
    """
    assert communication(source.replace("repeat b", "repeat a").replace("over = a", "over = b")) == []
    assert communication(source.replace("repeat b", "repeat a"), of="gradients")


LOGIC: dict[str, tuple[Callable[[bool, Any], Any], bool, bool]] = {
    "training": (lambda t, ok: t, True, True),
    "not training": (lambda t, ok: not t, True, True),
    "training and ok": (lambda t, ok: ok & t, True, False),
    "ok and not training": (lambda t, ok: ok & (not t), False, True),
    "ok or training": (lambda t, ok: ok | t, False, True),
    "not (training or ok)": (lambda t, ok: ~(ok | t), False, True),
    "training != (1 < 2)": (lambda t, ok: not t, True, True),
    "where(training, ok, not ok)": (lambda t, ok: ok if t else ~ok, False, False),
    "broadcast(training -> [io]) and ok": (lambda t, ok: ok & t, True, False),
    "rename(broadcast(training -> [batch]), batch -> other) == (range(other) < 99)": (
        lambda t, ok: np.full(8, t),
        False,
        False,
    ),
}
"""Text -> (its meaning, True if its value is known outside training, True if its value is known in training)."""


@pytest.mark.parametrize("text", LOGIC)
def test_logic_on_the_flag(text: str) -> None:
    """The value is right whether it is known or not; no choice by a known value is left."""
    meaning, *known = LOGIC[text]
    source = f"""{HEAD} dim other = batch
    model m(x: [batch, io], ok: bool[io]) {{
      flags = {text}
      y = where(flags, 1.0, 2.0)
      return y, flags
    }}
    """
    program = lowered(source, "gradients")
    for of, training in (("forward", False), ("gradients", True)):
        arrays = exact_data(program.function(of), seed=2)
        flags = np.asarray(meaning(training, arrays["ok"]))
        found = interpret(program.function(of), program, arrays)
        np.testing.assert_array_equal(found["flags"], flags)
        np.testing.assert_array_equal(found["y"], np.where(flags, 1.0, 2.0))
        assert ("where" in ops(program, of)) != known[training]


OWN_NAMES = (
    "model m(training: bool[], x: [io]) { y = where(training, x, -x); return y }",
    "model m(x: [io]) { training = 3 * x; y = training + 1; return y, training }",
    "dim training = 4\nmodel m(x: [training]) { y = x * training; return y }",
    "fn f(x: [io], training = false) -> [io] { return where(training, x, -x) }\n"
    "model m(x: [io]) { y = f(x, training = true) + f(x); return y }",
    "model m(x: [io]) { y = x; repeat layers { training = 2 * y; y = training }; return y }",
    "model training(x: [io]) { y = x; return y }",
)


@pytest.mark.parametrize("text", OWN_NAMES)
def test_a_name_of_the_file_comes_first(text: str) -> None:
    source = HEAD + text
    assert not [each for each in diagnose(source) if each.code.startswith("E")]
    (program,) = load(source).programs
    assert "training" not in {eqn.op for eqn in walk(program.function("forward").body)}


def test_a_name_of_the_file_is_not_the_flag_before_it_is_bound() -> None:
    source = HEAD + "model m(x: [io]) { y = where(training, x, -x); training = 2 * x; return y, training }"
    assert [each.code for each in diagnose(source)] == ["E105"]


def test_the_text_of_the_program_shows_the_flag() -> None:
    (program,) = load(model(BODIES["repeat"])).programs
    assert "training" in ops(program)
    verify(program, "global")


def test_the_verifier_knows_where_the_flag_may_stand() -> None:
    (program,) = load(model(BODIES["repeat"])).programs
    differentiated = Differentiate().run(program)
    verify(differentiated, "global")
    forward = differentiated.function("forward")
    renamed = attrs.evolve(forward, name="gradients")
    with pytest.raises(VerifyError, match="only in `forward`"):
        verify(attrs.evolve(program, functions=(forward, renamed)), "global")
    module = load(model(BODIES["plain"]))
    layout = module.layouts[0]
    placed = attrs.evolve(module.programs[0], mesh=layout.mesh, layout=layout.layout)
    with pytest.raises(VerifyError, match="not bound"):
        verify(AssignLayouts().run(placed), "assigned")
    verify(lower(module.programs[0], layout.mesh, layout.layout), "lowered")
