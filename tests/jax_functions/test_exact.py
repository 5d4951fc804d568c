"""The exact check of plans: it agrees for right programs, and finds planted faults."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import mtfc
from mtfc.backends.numpy import backend
from mtfc.driver.jax_functions.comparison import exactly_verified
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import Plan
from tests.jax_functions.models import MODELS, array


def function(w: jax.Array, x: jax.Array) -> jax.Array:
    """Have a dot along a split dimension, a mapped primitive, and one that gets whole operands."""
    y = jax.scipy.special.erfinv(0.1 * (x @ w))
    return jnp.linalg.cholesky(y.T @ y + 10 * jnp.eye(8)).sum() + jnp.sort(y, axis=1)


@pytest.fixture
def plan() -> Plan:
    program = mtfc.from_jax(function, array(16, 8), array(12, 16))
    (inner,) = (name for name, size in program.dims.items() if size == 16)
    return program.plan({"batch": "data", inner: "model"}, {"data": 2, "model": 2})


def test_primitives_of_jax_are_uninterpreted(plan: Plan) -> None:
    found = exactly_verified(plan, 0)
    assert (found.ok, found.skipped, found.found.elements, found.found.not_judged) == (
        True,
        None,
        2 * 12 * 8,
        0,
    )
    assert set(found.found.unsure) == {"results of primitives of JAX"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r'psum\((\w+), "data"\)', r"\1[:1]"),  # one term of a sum before a primitive that gets the whole
        (r'psum\((\w+), "model"\)', r"\1[:, :1]"),  # one term before a mapped primitive
        (r"\(1,\), erf_inv\)", "(1,), erf_inv[..., ::-1, :])"),  # other rows for a mapped primitive
    ],
)
def test_planted_faults_are_found(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    text, count = re.subn(right, wrong, backend.generate(plan.program))
    assert count == 1
    monkeypatch.setattr(backend, "generate", lambda _: text)
    found = exactly_verified(plan, 0)
    assert (found.ok, found.wrong) == (False, ("result of forward",))


def test_verify_has_the_exact_check(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ImportedProgram(plan.imported, plan.function)
    found = program.verify(plan)
    assert found.ok
    assert "exact  ok     all 192 elements are equal" in str(found)
    text = backend.generate(plan.program).replace('psum(einsum_2, "data")', "einsum_2[:1]")
    monkeypatch.setattr(backend, "generate", lambda _: text)
    found = program.verify(plan)
    assert (found.ok, all(each.ok for each in found.outputs)) == (False, True)
    assert "exact  WRONG  results that differ: result of forward" in str(found)


def test_a_training_step_is_compared_with_its_state() -> None:
    f, args = MODELS["perceptron"]()
    program = mtfc.from_jax(lambda p, x, y: jax.tree.map(lambda a, b: a - b, p, f(p, x, y)[1]), *args)
    found = exactly_verified(program.plan({"batch": "data"}, {"data": 4}), 0)
    assert (found.ok, found.skipped) == (True, None)


def shuffled(w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
    """Keep the first half of each row in a random order, as a masked autoencoder does; the others are zeros."""
    order = jnp.argsort(jax.random.uniform(key, x.shape), axis=1)
    places = jnp.argsort(order, axis=1)
    kept = jnp.take_along_axis(x, order[:, :4], 1) @ w
    full = jnp.concatenate([kept, jnp.zeros_like(kept)], 1)
    is_masked = places >= 4
    ranked, heights = jax.lax.sort((x, full), dimension=1, num_keys=1)
    return jnp.take_along_axis(full, places, 1) * is_masked / is_masked.sum() + heights / (1 + ranked**2)


def test_sorted_elements_are_a_permutation() -> None:
    """Other indices would leave no element masked, and then nothing could be judged."""
    args = array(4, 4), array(8, 8), jax.eval_shape(lambda: jax.random.key(0))
    program = mtfc.from_jax(shuffled, *args)
    found = exactly_verified(program.plan({"batch": "data"}, {"data": 4}), 0)
    assert (found.ok, found.skipped, found.found.elements, found.found.not_judged) == (
        True,
        None,
        2 * 8 * 8,
        0,
    )


@pytest.mark.parametrize("f", [jax.nn.softmax, jax.nn.logsumexp, lambda x: jnp.maximum(-jnp.inf, jnp.max(x))])
def test_a_maximum_of_a_whole_array_is_no_false_alarm(f: Callable[[jax.Array], jax.Array]) -> None:
    program = mtfc.from_jax(lambda x, y: (f(x), y * 2), jnp.ones(4), jnp.ones(3))
    (name,) = (name for name, size in program.dims.items() if size == 3)
    found = exactly_verified(program.plan({name: "p"}, {"p": 3}), 0)
    assert (found.ok, found.skipped) == (True, None)


def endless(w: jax.Array, x: jax.Array) -> jax.Array:
    """Iterate until a sum over split dimensions is small, in a scan and in a branch. On residues no iteration is the last."""

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.abs(carry[1] - 0.5 * (carry[1] @ w)), 0.5 * (carry[1] @ w)

    def ended(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda carry: jnp.sum(carry[0]) != 0, body, (x + 1, 1e-30 * x))[1]

    scanned = jax.lax.scan(lambda total, w: (total + ended(x @ w), None), x, jnp.stack([w, 2 * w]))[0]
    return jax.lax.cond(x[0, 0] < 9, lambda: ended(scanned @ w), lambda: x)


def test_a_loop_that_does_not_end_on_residues_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    program = mtfc.from_jax(endless, 0.1 * jnp.eye(4), array(8, 4), names={"w": "inner outer"})
    plan = program.plan({"batch": "data", "inner": "model"}, {"data": 2, "model": 2})
    found = program.verify(plan)
    assert found.ok
    assert "equal; of some loops only the first iterations are compared" in str(found)
    assert "loops     that only data ends, counted as 100 iterations in line" in plan.report()
    counted = [each["counted_iterations"] for each in plan.cost()["loops_ended_by_data"]]
    assert counted and {*counted} == {100}
    text, count = re.subn(
        r"(carry_4, carry_3_2 = ne_2, \w+)\n", r"\1[..., ::-1]\n", backend.generate(plan.program)
    )
    assert count == 1
    monkeypatch.setattr(backend, "generate", lambda _: text)
    assert exactly_verified(plan, 0).wrong == ("result of forward",)
