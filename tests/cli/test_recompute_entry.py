"""The entry `recompute` in the `forms` of a layout: each command takes it without an option, and a search writes it."""

import json
from pathlib import Path

import pytest

from mtfc import ir
from mtfc.compiler.ir.types import FORMS, RECOMPUTED
from mtfc.compiler.passes.recompute import KEPT
from tests.cli.conftest import Mtfc
from tests.cli.test_simulate import BOX
from tests.search.test_global_layouts_exhaustive import STACK

LOOP = """
dim batch = 64; dim io = 8; dim hidden = 32; dim layers = 4
mesh line = [all: 4]
layout plain on line = { batch: all }
layout written on line = { batch: all, forms: { recompute: WORD } }
fn block(x: [batch, io]) -> [batch, io] {
  param w: [io, hidden] = normal(stddev = 0.1)
  param v: [hidden, io] = normal(stddev = 0.1)
  return einsum(tanh(exp(einsum(x, w -> [batch, hidden]))), v -> [batch, io])
}
model deep(x: f32[batch, io]) {
  repeat layers { x = block(x) }
  loss = mean(square(x))
  return loss
}
train deep { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


def test_the_words_of_the_language_are_those_of_the_pass() -> None:
    assert set(RECOMPUTED) == set(KEPT) == set(FORMS["recompute"])


@pytest.mark.parametrize("word", [*RECOMPUTED, "29000", "box"])
def test_an_entry_does_what_the_option_does(mtfc: Mtfc, word: str) -> None:
    """The programs are equal: from a file, from IR text of the file, and by `--memory`."""
    machine = BOX.replace("memory: 100", "memory: 29e3")
    Path("own.mtf").write_text(machine + LOOP.replace("WORD", word))
    Path("own.ir").write_text(mtfc("compile", "own.mtf", "--layout", "written", "--emit", "ir").out)
    assert f"forms: {{recompute: {word}}}" in Path("own.ir").read_text()
    by_option = _step(mtfc("compile", "own.mtf", "--layout", "plain", "--memory", word, "--emit", "spmd").out)
    by_entry = _step(mtfc("compile", "own.mtf", "--layout", "written", "--emit", "spmd").out)
    assert by_entry == by_option
    if word != "box":  # a machine of the file, which IR text lacks
        assert _step(mtfc("compile", "own.ir", "--emit", "spmd").out) == by_option
    plain = _step(mtfc("compile", "own.mtf", "--layout", "plain", "--emit", "spmd").out)
    assert (by_entry == plain) == (word == "minimal" and by_option == plain)


def _step(text: str) -> list[str]:
    """Return the equations of the training step, without places."""
    lines = text.partition("function step")[2].splitlines()
    assert len(lines) > 20
    return [line.partition("  //")[0] for line in lines]


def test_the_option_counts_before_the_entry(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(LOOP.replace("WORD", "full"))
    limited = mtfc("cost", "own.mtf", "--layout", "written", "--memory", "1GiB").out
    assert "Memory limit 1 GiB: the step takes 45.51 KiB and fits: nothing is computed again" in limited
    by_entry = mtfc("cost", "own.mtf", "--layout", "written").out
    assert "Memory by `full`: 27.51 KiB in place of 45.51 KiB" in by_entry


def test_a_limit_that_is_too_small_is_shown_in_the_file(mtfc: Mtfc) -> None:
    """No option is named that was not given."""
    Path("own.mtf").write_text(LOOP.replace("WORD", "6000"))
    wrong = mtfc("cost", "own.mtf", "--layout", "written")
    assert wrong.status == 1 and "error[E321]" in wrong.err and "--> own.mtf" in wrong.err


def test_every_lowering_follows_the_words() -> None:
    """The library has no driver that would look for the entry."""
    from tests.harness import load

    (program,) = load(LOOP.replace("WORD", "full")).programs
    plain, full = (
        ir.print_program(ir.lower(program, {"all": 4}, {"batch": "all", **forms}))
        for forms in ({}, {"forms": {"recompute": "full"}})
    )
    assert _step(plain) != _step(full)


@pytest.mark.parametrize("wrong", [{"recompute": 0}, {"recompute": True}, {"recompute": "../box.mtf"}])
def test_wrong_entries_of_records_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ir.layout({"forms": wrong})


def test_a_search_writes_the_entry_that_each_command_takes(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(BOX.replace("memory: 100", "memory: 80e3") + STACK)
    searched = mtfc("search", "own.mtf", "-o", "found.mtf", "--budget", "0.5")
    assert "note: this layout fits with `recompute: box`" in searched.out
    assert "forms: { recompute: box }" in Path("found.mtf").read_text()
    found = mtfc("search", "own.mtf", "--format", "json", "--budget", "0.5").json
    assert found["recomputed"] is True and found["forms"] == {"recompute": "box"}
    (cost,) = mtfc("cost", "found.mtf", "--layout", "found", "--format", "json").json["layouts"]
    assert cost["memory_per_device"]["total"] <= 80_000
    simulated = mtfc("simulate", "found.mtf", "--layout", "found", "--target", "box", "--format", "json").json
    assert simulated["step_seconds"] == pytest.approx(found["objective_seconds"])
    assert mtfc("verify", "found.mtf", "--layout", "found", "--backend", "numpy").status == 0
    again = mtfc("search", "found.mtf", "--format", "json", "--budget", "0.5").json
    assert again["objective_seconds"] <= found["objective_seconds"] * (1 + 1e-9)


def test_a_plan_of_a_jax_function_keeps_the_entry(folder: Path, mtfc: Mtfc) -> None:
    """The file of a plan has the machine, which counts where the plan is loaded or named by `--layout`."""
    Path("train.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def loss(w, x):\n"
        "    h = x\n"
        "    for i in range(4): h = jnp.tanh(jnp.exp(h @ w[i])) @ w[i].T\n"
        "    return (h ** 2).mean()\n"
        "def step(w, x): return w - 0.1 * jax.grad(loss)(w, x)\n"
        "example = jnp.ones((4, 4, 8)), jnp.ones((1024, 4))\n"
    )
    Path("box.mtf").write_text(BOX.replace("memory: 100", "memory: 60e3"))
    asked = ("train:step", "--args", "train:example")
    found = mtfc(
        "search", *asked, "--target", "box.mtf", "--budget", "1", "-o", "plan.json", "--format", "json"
    )
    assert found.status == 0, found.err
    assert json.loads(Path("plan.json").read_text())["layout"]["forms"] == {"recompute": 60_000}
    (cost,) = mtfc("cost", *asked, "--layout", "plan.json", "--format", "json").json["layouts"]
    assert cost["memory_per_device"]["total"] <= 60_000
