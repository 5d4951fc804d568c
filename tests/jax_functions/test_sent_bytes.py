"""The bytes that XLA's programs of a plan send, beside the predicted ones."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp

import mtfc
from mtfc.driver.jax_functions.sent_bytes import BytesComparison, SentBytes
from tests.jax_functions.models import MODELS, array


def two_dots(w: Any, x: Any) -> Any:
    """Sum two dots along a split dimension: the sum may be completed once, and XLA completes it twice."""
    return jnp.tanh(x @ w["a"] + (2 * x) @ w["b"])


def test_all_programs_of_a_plan_send_what_is_predicted() -> None:
    function, args = MODELS["perceptron"]()
    program = mtfc.from_jax(function, *args)
    plan = program.plan({"batch": "x", "params_1": "y"}, {"x": 4, "y": 2})
    found = plan.compare_bytes()
    assert found.predicted.kinds == found.step.kinds == found.applied.kinds == {"all_reduce": 1828}
    assert found.predicted.wire_bytes == found.step.wire_bytes == found.applied.wire_bytes
    assert found.exceeding == ()


def test_the_line_where_xla_sends_more_is_named() -> None:
    weights = {"a": array(8, 16), "b": array(8, 16)}
    program = mtfc.from_jax(two_dots, weights, array(4, 8), names={"x": "batch inner"})
    found = program.plan({"inner": "x"}, {"x": 4}).compare_bytes()
    assert (found.predicted.kinds, found.step.kinds) == ({"all_reduce": 256}, {"all_reduce": 256})
    assert found.applied.kinds == {"all_reduce": 512}
    lines, first = inspect.getsourcelines(two_dots)
    place = (__file__, first + len(lines) - 1)
    assert found.exceeding == (place,)
    assert found.verdict(place) == "only plan.step avoids it"
    (record,) = found.record()["lines"]
    assert (record["line"], record["predicted"], record["apply"]) == (place[1], 384, 768)
    row = f"test_sent_bytes.py:{place[1]}      384 B       768 B            768 B  only plan.step avoids it"
    assert row in str(found)


def test_the_update_of_an_applied_step_computes_on_parameters_as_they_are_stored() -> None:
    """FSDP gathers each matrix once: constraints on the update, or on momenta, would gather more."""

    def step(w: Any, momenta: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])

        value, gradients = jax.value_and_grad(loss)(w)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda w, m: w - 0.1 * m, w, momenta), momenta, value

    weights = {"a": array(16, 32), "b": array(32, 8)}
    program = mtfc.from_jax(step, weights, weights, array(8, 16))
    stored = {"*": "data"}
    plan = program.plan({"batch": "data", "params": stored, "optimizer": stored}, {"data": 4})
    found = plan.compare_bytes()
    assert found.applied.kinds["all_gather"] == found.predicted.kinds["all_gather"] == 768


def test_the_users_lines_and_scopes_stay_in_applied_functions() -> None:
    def scoped(x: Any) -> Any:
        with jax.named_scope("inner"):
            return jnp.cumsum(jnp.sin(x))

    program = mtfc.from_jax(scoped, array(8))
    plan = program.plan({}, {"x": 1})
    text = jax.jit(plan.apply(scoped)).lower(array(8)).as_text(debug_info=True)
    sines = [line for line in text.splitlines() if "inner/sin" in line]
    assert sines
    assert 'test_sent_bytes.py":' in text


def sent(**lines: int) -> SentBytes:
    places = {("user.py", int(name[1:])): size for name, size in lines.items()}
    return SentBytes({("all_gather", place): size for place, size in places.items()}, places)


def test_verdicts() -> None:
    """Lines count only in programs that send more as a whole."""
    known = sent(_1=10, _2=10)
    found = BytesComparison(known, known, sent(_1=10, _2=30, _3=5), sent(_1=60, _2=40, _3=5))
    assert [line for _, line in found.exceeding] == [1, 2, 3]
    assert [found.verdict(place) for place in found.exceeding] == [
        "plan.apply mends it",
        "plan.apply mends a part",
        "only plan.step avoids it",
    ]
    elsewhere = sent(_3=20)
    assert BytesComparison(known, known, elsewhere, elsewhere).exceeding == ()
    mended = BytesComparison(known, known, elsewhere, sent(_3=90))
    assert [mended.verdict(place) for place in mended.exceeding] == ["plan.apply mends it"]
