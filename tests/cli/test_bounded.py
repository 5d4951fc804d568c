"""`verify` ends: a check that hangs, or that ends its process, is a sentence, and the next check goes on."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from mtfc.driver.jax_functions import comparison
from mtfc.driver.verification.checks import Remade, results
from tests.cli.bounded_checks import found, listed
from tests.cli.conftest import Mtfc


@pytest.mark.usefixtures("in_children")
def test_a_check_that_ends_its_process_is_a_sentence() -> None:
    first, second, third = found("ends", "aborts", "ends")
    assert (first, third) == ("done", "done")
    assert second.startswith("failed: its process was ended by SIGABRT")


@pytest.mark.usefixtures("in_children")
@pytest.mark.parametrize("hangs", ["computes", "sleeps"])
def test_a_check_that_hangs_is_a_sentence(hangs: str) -> None:
    """A child gets its seconds as processor time, in ten times as long."""
    started = time.monotonic()
    assert found(hangs, "ends", seconds=0.6) == [
        "begun",
        "failed: did not end in 1 s: a budget gives more time",
        "done",
    ]
    assert time.monotonic() - started < 60


@pytest.mark.usefixtures("in_children")
def test_checks_beyond_the_budget_are_skipped() -> None:
    sentence = "the budget of 2 s is over"
    assert found("ends", "sleeps", "ends", budget=2.0) == ["done", "begun", sentence, sentence]


@pytest.mark.usefixtures("in_children")
def test_an_error_of_a_check_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="of a check"):
        found("ends", "raises", "ends")


@pytest.mark.usefixtures("in_children")
def test_checks_that_no_process_can_make_run_here() -> None:
    """A function without a name in a module cannot be sent."""
    assert [*results(listed(["ends"], 60.0), Remade("tests:none", (lambda: 0,)))] == ["done"]


@pytest.mark.usefixtures("in_children")
def test_a_model_in_a_process_of_its_own(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--layout", "both")
    assert outcome.status == 0
    assert [line.split()[:3] for line in outcome.out.splitlines()[:-1]] == [
        ["gradients", "exact", "ok"],
        ["both", "exact", "ok"],
        ["training", "step", "f64"],
        ["both", "numpy", "ok"],
        ["both", "jax", "ok"],
    ]


@pytest.mark.usefixtures("in_children")
def test_a_budget_of_the_command(mtfc: Mtfc) -> None:
    outcome = mtfc("verify", "model.mtf", "--layout", "both", "--budget", "0.001")
    assert outcome.status == 1
    assert outcome.out.splitlines()[-1] == "0 of 0 cases agree with the undistributed program, 2 skipped"
    assert "skipped: the budget of 0.001 s is over" in outcome.out


def until_large(factor: float) -> Callable[[jax.Array], jax.Array]:
    def grow(x: jax.Array) -> jax.Array:
        def one(row: jax.Array) -> jax.Array:
            return jax.lax.while_loop(lambda c: c.sum() < 50.0, lambda c: c * factor, row)

        return jax.vmap(one)(x)

    return grow


@pytest.mark.usefixtures("in_children")
def test_a_loop_that_does_not_end_on_some_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn rows of zeros or of negative numbers never grow to 50; positive ones do."""
    monkeypatch.setattr(comparison, "SECONDS", 4.0)
    monkeypatch.setattr(comparison, "PER_STEP", 0.0)
    program = mtfc.from_jax(until_large(1.3), jnp.ones((8, 4)))
    verified = program.verify(program.plan({"batch": "a"}, {"a": 2}))
    assert verified.ok
    assert {each.road for each in verified.outputs} == {"plan.apply", "plan.step"}


@pytest.mark.usefixtures("in_children")
def test_a_loop_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SECONDS", 0.6)
    monkeypatch.setattr(comparison, "PER_STEP", 0.0)
    program = mtfc.from_jax(until_large(0.5), jnp.ones((8, 4)))
    verified = program.verify(program.plan({"batch": "a"}, {"a": 2}))
    assert not verified.ok and not verified.outputs
    assert "FAILED the function itself did not end in 1 s" in str(verified)


@pytest.mark.usefixtures("in_children")
def test_a_partitioner_that_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's partitioner ends the process for a Fourier transform along a dimension that is split, if nobody knew of it."""
    x = jnp.ones((4, 8, 8), jnp.complex64)
    program = mtfc.from_jax(jnp.fft.fftn, x)
    plan = program.plan({"a_2": "a"}, {"a": 4})
    monkeypatch.setattr(type(plan), "known_faults", ())
    verified = program.verify(plan)
    step = [each for each in verified.outputs if each.road == "plan.step"]
    assert step and all(each.ok for each in step)
    has_fault = not any(each.road == "plan.apply" for each in verified.outputs)
    assert has_fault == bool(verified.ended) == (not verified.ok)
    assert all(each.startswith("plan.apply XLA ended its process: ") for each in verified.ended)


@pytest.mark.usefixtures("in_children")
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_wrong_plan_is_found_in_another_process(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    program = mtfc.from_jax(lambda x: jnp.tanh(x) + 1.0, jnp.ones((8, 4)))
    plan = program.plan({"batch": "a"}, {"a": 2})
    right = type(plan).apply(plan)
    monkeypatch.setattr(type(plan), "apply", lambda _: lambda x: factor * right(x))
    verified = program.verify(plan, np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4))
    assert verified.ok == (factor == 1.0)
