"""The table of XLA's known faults: each shows itself with the JAX at hand, and plans that meet one say so."""

import os
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mtfc
from mtfc.driver.jax_functions.xla_faults import FAULTS, Fault
from tests.command_server import Started
from tests.harness import AMPLE
from tests.jax_functions.fault_program import SHOWN, plan_of

ENDED = -6
"""The status of a process that XLA ends."""


PROGRAM = """
import sys
from tests.jax_functions.fault_program import outcome
for which in sys.argv[2:]:
    print(outcome(sys.argv[1], which), flush=True)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_shows_with_the_jax_at_hand(fault: Fault, jax_server: Path, tmp_path: Path) -> None:
    """Under innocent rules the program is right. A fault that is gone leaves the table."""
    is_seen = jax.__version__ in fault.seen
    which = ["innocent", *(["rules"] if is_seen else [])]
    child = Started(jax_server, ["-c", PROGRAM, fault.name, *which], tmp_path, environment(), 300)
    out, err = child.communicate()
    assert out.split()[:1] == ["right"], err
    found = "ended" if child.returncode == ENDED else out.split()[-1]
    expected = "ended" if fault.ends_process else "error" if fault.may_fail else "wrong"
    assert found == (expected if is_seen else "right"), err
    if not is_seen:
        pytest.skip("not seen with this version")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_plan_knows_the_fault_and_no_other(fault: Fault) -> None:
    met = plan_of(fault.name, "rules")[0].known_faults
    assert [each.fault.name for each in met] == [fault.name]
    assert set(SHOWN[fault.name].rules) == set(met[0].dims)
    assert plan_of(fault.name, "innocent")[0].known_faults == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_step_has_no_fault(fault: Fault) -> None:
    plan, args = plan_of(fault.name, "rules")
    pairs = zip(jax.tree.leaves(plan.step(*args)), jax.tree.leaves(plan.function(*args)), strict=True)
    assert all(np.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True) for x, y in pairs)


def faults(function: Any, *args: Any, rules: dict[str, str], mesh: dict[str, int] | None = None) -> list[str]:
    plan = mtfc.from_jax(function, *args).plan(rules, mesh or {"a": 4})
    return [each.fault.name for each in plan.known_faults]


X, U = np.ones((8, 16), "float32"), np.ones((8, 1), "float32")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.nn.softmax(x, 1),
        lambda x: jax.nn.log_softmax(x, 1),
        lambda x: jax.nn.logsumexp(x, 1),
        lambda x: jax.grad(lambda x: jax.nn.logsumexp(x, 1).sum())(x),
        lambda x: jnp.argmax(x, 1),
        lambda x: jnp.max(x.astype("int32"), 1),
        lambda x: jnp.max(x, 0),
        lambda x: lax.dynamic_update_slice(x, x[:, :1], (0, 15)),
        lambda x: x.at[:, 3].set(1.0),
        lambda x: jnp.tanh(x.at[:, 1:].set(x[:, :-1])).at[:, 3].set(1.0),
    ],
    ids=[
        "softmax", "log_softmax", "logsumexp", "gradient", "argmax", "integers", "other", "start", "row", "tanh",
    ],
)  # fmt: skip
def test_neighbours_are_innocent(function: Any) -> None:
    assert faults(function, X, rules={"x_1": "a"}) == []


def test_a_maximum_without_a_sum_is_none_of_a_softmax() -> None:
    def shifted(x: Any) -> Any:
        return jnp.exp(x - jnp.max(x, 1, keepdims=True))

    assert faults(shifted, X, rules={"x_1": "a"}) == ["NaN in a maximum"]


def test_a_constant_start_out_of_range_is_a_fault() -> None:
    def update(x: Any, u: Any) -> Any:
        return lax.dynamic_update_slice(x, u, (0, 20))

    assert faults(update, X, U, rules={"x_1": "a"}) == ["start of an update"]


def test_every_road_names_the_line_and_what_to_do() -> None:
    def largest(x: Any) -> Any:
        return jnp.max(x, 1)

    program = mtfc.from_jax(largest, X)
    plan = program.plan({"x_1": "a"}, {"a": 4})
    line = f"test_xla_faults.py:{largest.__code__.co_firstlineno + 1}: "
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan.apply()
    (warning,) = caught
    for text in (plan.explain(), str(program.verify(plan)), str(warning.message)):
        assert line in text, text
        assert "loses NaN" in text
        assert "take `plan.step`" in text


def test_what_ends_the_process_is_not_run() -> None:
    x = np.ones((4, 8, 8), "complex64")
    program = mtfc.from_jax(jnp.fft.fftn, x)
    plan = program.plan({"a_2": "a"}, {"a": 4})
    with pytest.raises(ValueError, match=r"ends the process.*plan\.step"):
        plan.apply()
    found = program.verify(plan)
    assert {each.road for each in found.outputs} == {"plan.step"}
    assert found.ok
    assert "plan.apply was not run" in str(found)


def test_a_plan_says_which_axes_are_idle() -> None:
    plan = mtfc.from_jax(jnp.tanh, X).plan({"batch": "a"}, {"a": 2, "b": 4})
    assert plan.idle_axes == ("b",)
    assert "no rule uses b" in plan.explain()


def test_a_search_avoids_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best layout splits the columns, whose maximum then loses NaN. So the search takes the best of the others."""

    def largest(x: Any, w: Any) -> Any:
        return jnp.max(jnp.tanh(x @ w), 1)

    shapes = jax.ShapeDtypeStruct((8, 4096), "float32"), jax.ShapeDtypeStruct((4096, 65536), "float32")
    program = mtfc.from_jax(largest, *shapes)
    plan = program.search(devices=4, budget=AMPLE)
    assert plan.rules
    assert plan.known_faults == ()
    monkeypatch.setattr("mtfc.driver.jax_functions.imported_program.met_faults", lambda *_: ())
    assert [each.fault.name for each in program.search(devices=4, budget=AMPLE).known_faults] == [
        "NaN in a maximum"
    ]


def test_a_search_keeps_a_fault_that_all_layouts_meet() -> None:
    """The array fits on no device whole, and its maximum is over both dimensions."""
    program = mtfc.from_jax(jnp.max, jax.ShapeDtypeStruct((2**18, 2**18), "float32"))
    plan = program.search(devices=8, budget=AMPLE)
    assert [each.fault.name for each in plan.known_faults] == ["NaN in a maximum"]


def test_a_searched_plan_has_no_idle_axis() -> None:
    def square(x: Any) -> Any:
        return x @ x.T

    program = mtfc.from_jax(square, jax.ShapeDtypeStruct((2, 2**20), "float32"))
    plan = program.search(devices=8, budget=AMPLE)
    assert plan.rules
    assert plan.idle_axes == ()
