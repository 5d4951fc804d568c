"""The training step against definitions that share no code with it: `mtfc verify --step`, and the definitions against optax."""

import os
import re
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np
import optax
import pytest

import mtfc
from benchmarks.peer_optax import adafactor
from mtfc.backends.step_definitions import OPTIMIZERS, SCHEDULES
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import VerifyOptions
from mtfc.driver.verification.reference import Reference
from mtfc.driver.verification.results import StepCase
from mtfc.driver.verification.step_check import DeclaredStep, checked_step, declaration
from mtfc.driver.verification.verify import verify
from tests.generators.train_blocks import HYPERS, LAYOUTS, RANGES, train_entries, train_source
from tests.harness import FILE, STEP, call, jax_module, lowered, numpy_module
from tests.sampling import EVERY_CASE

DRAWS = int(os.environ.get("EVERY_TRAIN_BLOCK", "12" if EVERY_CASE else "6"))
"""The number of random `train` blocks."""

OPTAX: dict[str, Any] = {
    "sgd": lambda a: optax.sgd(a),
    "sgdw": lambda a, weight_decay: optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(a)),
    "momentum": lambda a, momentum: optax.sgd(a, momentum=momentum),
    "nesterov": lambda a, momentum: optax.sgd(a, momentum=momentum, nesterov=True),
    "adam": lambda a, beta1, beta2, epsilon: optax.adam(a, beta1, beta2, epsilon),
    "adamw": lambda a, beta1, beta2, epsilon, weight_decay: optax.adamw(
        a, beta1, beta2, epsilon, weight_decay=weight_decay
    ),
    "adafactor": lambda a, decay, clip, epsilon1: adafactor(a, decay, clip, epsilon1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape", [(), (3,), (3, 4)])
def test_definitions_are_those_of_optax(name: str, shape: tuple[int, ...]) -> None:
    """Twenty draws of hyperparameters, five steps each; some gradients are 0, and none is of the size of another."""
    random = Random(name)
    for draw in range(20):
        hypers = {each: random.uniform(*RANGES[each]) for each in HYPERS[name] if each != "epsilon2"}
        drawn = np.random.default_rng(draw)
        p = drawn.standard_normal(shape)
        with jax.enable_x64(True):
            rule = OPTAX[name](0.1, **hypers)
            theirs, state, states = jax.numpy.asarray(p), rule.init(jax.numpy.asarray(p)), dict[str, Any]()
            for step in range(5):
                g = drawn.standard_normal(shape) * 10.0 ** drawn.integers(-3, 2) * (drawn.random(shape) > 0.1)
                updates, state = rule.update(jax.numpy.asarray(g), state, theirs)
                theirs = optax.apply_updates(theirs, updates)
                p, states = OPTIMIZERS[name](p, g, states, step + 1, 0.1, **hypers)
                np.testing.assert_allclose(p, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{name} {hypers}")


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_those_of_optax(name: str) -> None:
    a, w, n, f = 0.3, 7, 60, 0.9
    ours, theirs = {
        "constant": (lambda t: SCHEDULES[name](a), optax.constant_schedule(a)),
        "linear_warmup": (lambda t: SCHEDULES[name](t, a, w), optax.linear_schedule(0.0, a, w)),
        "warmup_rsqrt": (lambda t: SCHEDULES[name](t, a, w), lambda t: a * min((t + 1) / w, (w / (t + 1)) ** 0.5)),
        "cosine": (lambda t: SCHEDULES[name](t, a, w, n, 0.01), optax.warmup_cosine_decay_schedule(0.0, a, w, n, 0.01)),
        "step_decay": (lambda t: SCHEDULES[name](t, a, f, w), optax.exponential_decay(a, w, f, staircase=True)),
        "exponential_decay": (lambda t: SCHEDULES[name](t, a, f, w), optax.exponential_decay(a, w, f)),
    }[name]  # fmt: skip
    with jax.enable_x64(True):
        for step in range(80):
            np.testing.assert_allclose(ours(np.float64(step)), theirs(step), rtol=1e-6, atol=1e-9)


def test_every_optimizer_and_schedule_of_the_library_has_a_definition() -> None:
    """The definition has the hyperparameters and the defaults of the documented declaration."""
    text = Path(mtfc.__file__).with_name("std")
    for file, keyword, known in (("optimizers", "optimizer", OPTIMIZERS), ("schedules", "fn", SCHEDULES)):
        source = (text / f"{file}.mtf").read_text("utf-8")
        for name, arguments in re.findall(rf"^{keyword} (\w+)\(([^)]*)\)", source, re.MULTILINE):
            if name in ("adam_direction", "adafactor_step", "rms"):
                continue
            given = [re.sub(r"\s", "", each) for each in arguments.split(",")]
            parameters = [*signature(known[name]).parameters.values()][4 * (keyword == "optimizer") :]
            assert [each.partition("=")[0] for each in given] == [each.name for each in parameters]
            defaults = [float(each.partition("=")[2]) for each in given if "=" in each]
            assert defaults == [each.default for each in parameters if each.default is not each.empty]


def checked(entries: str) -> StepCase:
    text = train_source(entries)
    selection = choose(text, FILE, Choice())
    options = VerifyOptions(FILE)
    reference = Reference.of(everything_in(selection.program, "f64"), {}, options)
    return checked_step(reference, FILE, text, Choice(), selection.module.scope)


@pytest.mark.parametrize("number", range(DRAWS))
def test_random_train_blocks(number: int) -> None:
    """The undistributed step is as its block declares; what is not checked is the file's own optimizer, or `clip` alone."""
    entries = train_entries(Random(number))
    found = checked(entries)
    assert not found.wrong, f"{entries}\n{[(n, found.compared[n]) for n in found.wrong]}"
    assert all("`adagrad`" in each or "`clip`" in each for each in found.unchecked)
    is_own = "adagrad" in entries and 'frozen "scale"' not in entries
    assert is_own == any("`adagrad`" in each for each in found.unchecked)


def declared(entries: str) -> DeclaredStep:
    """Return the step that a block declares, with parameters in f64 as they are drawn in f32."""
    text, selection = train_source(entries), choose(train_source(entries), FILE, Choice())
    reference = Reference.of(everything_in(selection.program, "f64"), {}, VerifyOptions(FILE))
    return DeclaredStep(reference, declaration(text, FILE, Choice(), "net"), selection.module.scope)


@pytest.mark.parametrize("number", range(DRAWS))
def test_compiled_steps_of_random_train_blocks(number: int) -> None:
    """A step of the generated module, under one of five layouts, has the parameters and states of the declaration."""
    entries = train_entries(Random(100 + number))
    step = declared(entries)
    program = lowered(train_source(entries), layout=LAYOUTS[number % len(LAYOUTS)])
    module = jax_module(program) if number % 6 == 5 else numpy_module(program, checked=False)
    count = step.micro_batches
    batches = [step.reference.batches[i] for i in range(count)]
    batch = batches[0] if count == 1 else {n: np.stack([each[n] for each in batches]) for n in batches[0]}
    known = step.start()
    found = call(module, program.function("step"), {**known, **batch})
    wanted, outputs = step.stepped(known, STEP, batches)
    coarse = 0.3 if "bf16" in entries else 2e-4
    for name, x in {**wanted, **outputs}.items():
        largest = max(float(np.max(np.abs(x))), 1e-3)
        np.testing.assert_allclose(
            np.asarray(found[name], np.float64), x, atol=coarse * largest, err_msg=f"{entries}: {name}"
        )


def test_states_of_the_model_may_have_the_names_of_the_step() -> None:
    """A model that has a value `loss_scale` moves the state of that name to `loss_scale_2`."""
    text = train_source("  optimizer = adam(0.1)\n  precision = { loss_scale: dynamic }\n  average = 0.9")
    text = text.replace(
        "  param scale", "  loss_scale = 2.0 * h\n  averaged_steps = loss_scale / 2.0\n  param scale"
    )
    text = text.replace("mean(h, over", "mean(averaged_steps, over")
    selection = choose(text, FILE, Choice())
    reference = Reference.of(everything_in(selection.program, "f64"), {}, VerifyOptions(FILE))
    found = checked_step(reference, FILE, text, Choice(), selection.module.scope)
    assert not found.wrong
    assert "loss_scale_2" in found.compared


def test_from_python(tmp_path: Path) -> None:
    path = tmp_path / "net.mtf"
    path.write_text(train_source("  optimizer = lion(0.1)").replace("optimizer adagrad", "optimizer lion"))
    record = mtfc.verify(path, step=True)
    assert record["ok"] and record["exact"] == [] and record["cases"] == []
    assert record["steps"][0]["not_checked"] == ["the formula of optimizer `lion`"]
    assert verify(VerifyOptions(str(path), step=True), Sources()).ok
