"""The verdict of XLA on plans: what its programs send, compute and keep, beside the prediction."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mtfc
from mtfc.compiler.cost.volumes import Charge, SentVolume, layout_cost
from mtfc.compiler.diagnostics import Span
from mtfc.reports.inspection import ROADS, Inspection, StepFigures
from tests.jax_functions.models import MODELS, array


def two_dots(w: Any, x: Any) -> Any:
    """Sum two dots along a split dimension: the sum may be completed once, and XLA completes it twice."""
    return jnp.tanh(x @ w["a"] + (2 * x) @ w["b"])


def kinds(figures: StepFigures) -> dict[str, int]:
    """Return the bytes of operands of each kind of collective that occurs."""
    return {kind: int(sent.bytes) for kind, sent in figures.totals.collectives.items()}  # type: ignore[arg-type]


def test_all_programs_of_a_plan_send_what_is_predicted() -> None:
    function, args = MODELS["perceptron"]()
    program = mtfc.from_jax(function, *args)
    plan = program.plan({"batch": "x", "hidden": "y"}, {"x": 4, "y": 2})
    found = plan.inspect("cpu", apply=True)
    assert (
        kinds(found["predicted"]) == kinds(found["compiled"]) == kinds(found["apply"]) == {"all_reduce": 1828}
    )
    assert found["predicted"].wire_bytes == found["compiled"].wire_bytes == found["apply"].wire_bytes
    assert found["predicted"].memory["arguments"] == found["compiled"].memory["arguments"]
    assert found["predicted"].flops == pytest.approx(found["compiled"].flops, rel=0.01)
    assert found["compiled"].flops == pytest.approx(found["apply"].flops, rel=0.01)
    assert found.exceeding == ()


def test_the_line_where_xla_sends_more_is_named() -> None:
    weights = {"a": array(8, 16), "b": array(8, 16)}
    program = mtfc.from_jax(two_dots, weights, array(4, 8), names={"x": "batch inner"})
    found = program.plan({"inner": "x"}, {"x": 4}).inspect("cpu", apply=True)
    assert (kinds(found["predicted"]), kinds(found["compiled"])) == ({"all_reduce": 256}, {"all_reduce": 256})
    assert kinds(found["apply"]) == {"all_reduce": 512}
    lines, first = inspect.getsourcelines(two_dots)
    place = (__file__, first + len(lines) - 1)
    assert found.exceeding == (place,)
    assert found.verdict(place) == "only plan.step avoids it"
    record = found.record()
    assert record["exceeding"] == [
        {"file": place[0], "line": place[1], "verdict": "only plan.step avoids it"}
    ]
    (line,) = record["lines"]
    assert (line["line"], line["wire_bytes_per_device"], record["apply"]["wire_bytes_per_device"]) == (
        place[1],
        384,
        768,
    )
    row = f"test_inspection.py:{place[1]}      384 B      384 B       768 B            768 B  only plan.step avoids it"
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
    program = mtfc.from_jax(step, weights, weights, array(64, 16))
    stored = {"*": "data"}
    plan = program.plan({"batch": "data", "params": stored, "optimizer": stored}, {"data": 4})
    found = plan.inspect("cpu", apply=True)
    assert kinds(found["apply"])["all_gather"] == kinds(found["predicted"])["all_gather"] == 768


@pytest.mark.parametrize("stored", [{"optimizer": {"*": "data"}}, {"params": {"*": "data"}}])
@pytest.mark.parametrize("rows", [8, 256])
def test_applied_micro_batches_send_no_more_than_shardings_alone(rows: int, stored: Any) -> None:
    """Gradients are summed as the update splits them. A small batch moves its activations rather than the weights."""

    def step(w: Any, momenta: Any, batches: Any) -> Any:
        def loss(w: Any, x: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - x) ** 2)

        def add(gradients: Any, x: Any) -> Any:
            value, more = jax.value_and_grad(loss)(w, x)
            return jax.tree.map(jnp.add, gradients, more), value

        gradients, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, w), batches)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda w, m: w - 0.1 * m, w, momenta), momenta, values.mean()

    weights = {"a": array(16, 32), "b": array(32, 16)}
    program = mtfc.from_jax(step, weights, weights, array(3, rows, 16), names={"batches": "micro batch io"})
    found = program.plan({"batch": "data", **stored}, {"data": 4}).inspect("cpu", apply=True)
    assert found["predicted"].wire_bytes == found["compiled"].wire_bytes
    assert 0 < found["apply"].wire_bytes <= found["shardings"].wire_bytes


def test_the_users_lines_and_scopes_stay_in_applied_functions() -> None:
    def scoped(x: Any) -> Any:
        with jax.named_scope("inner"):
            return jnp.cumsum(jnp.sin(x))

    program = mtfc.from_jax(scoped, array(8))
    plan = program.plan({}, {"x": 1})
    text = jax.jit(plan.apply(scoped)).lower(array(8)).as_text(debug_info=True)
    sines = [line for line in text.splitlines() if "inner/sin" in line]
    assert sines
    assert 'test_inspection.py":' in text


@pytest.mark.usefixtures("in_children")
def test_a_plan_needs_no_devices_of_its_own_process() -> None:
    """The step is compiled in a child: this process has too few devices for 64, and `apply` would need them."""
    program = mtfc.from_jax(two_dots, {"a": array(8, 16), "b": array(8, 16)}, array(64, 8))
    plan = program.plan({"batch": "x"}, {"x": 64})
    found = plan.inspect("cpu")
    assert (found.cost.mesh.devices, kinds(found["predicted"]), kinds(found["compiled"])) == (64, {}, {})
    with pytest.raises(mtfc.Unavailable, match="64"):
        plan.inspect("cpu", apply=True)
    with pytest.raises(ValueError, match="too few devices for 64"):
        plan.inspect("cpu:8")


@pytest.mark.usefixtures("in_children")
def test_primitives_that_no_op_stands_for_are_compiled_in_this_process() -> None:
    program = mtfc.from_jax(lambda x: jax.scipy.special.erfinv(x), array(8, 4), names={"x": "rows cols"})
    found = program.plan({"rows": "x"}, {"x": 4}).inspect("cpu")
    assert found["compiled"].memory["arguments"] == found["predicted"].memory["arguments"]


def sent(**lines: int) -> StepFigures:
    places = [
        (Span("user.py", int(name[1:]), 1, 1, 1), SentVolume(1, size, size, size))
        for name, size in lines.items()
    ]
    return StepFigures(
        {}, tuple(Charge(span, "forward", kind="all_gather", sent=sent) for span, sent in places)
    )


def inspection(*figures: StepFigures) -> Inspection:
    cost = layout_cost(mtfc.from_jax(jnp.sin, array(4)).plan({}, {"x": 2}).program)
    return Inspection(cost, "cpu:2", "XLA", 0.0, dict(zip(ROADS, figures, strict=True)))


def test_verdicts() -> None:
    """Lines count only in programs that send more as a whole."""
    known = sent(_1=10, _2=10)
    found = inspection(known, known, sent(_1=10, _2=30, _3=5), sent(_1=60, _2=40, _3=5))
    assert [line for _, line in found.exceeding] == [1, 2, 3]
    assert [found.verdict(place) for place in found.exceeding] == [
        "plan.apply mends it",
        "plan.apply mends a part",
        "only plan.step avoids it",
    ]
    elsewhere = sent(_3=20)
    assert inspection(known, known, elsewhere, elsewhere).exceeding == ()
    mended = inspection(known, known, elsewhere, sent(_3=90))
    assert [mended.verdict(place) for place in mended.exceeding] == ["plan.apply mends it"]
