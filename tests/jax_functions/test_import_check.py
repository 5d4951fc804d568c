"""The check of an import over a finite field: no false alarm, and no planted fault of the import is missed."""

from collections.abc import Callable
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import pytest

import mtfc
from mtfc.driver.jax_functions.comparison import import_case
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.verification.results import ExactCase
from mtfc.frontend.jaxpr import rules
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from tests.jax_functions.models import MODELS
from tests.jax_functions.primitives import CASES
from tests.jax_functions.test_primitives import imported
from tests.sampling import some

SKIPPED = {"matrices", "spectrum", "complex", "while_with_a_long_counter"}
"""Cases with complex numbers, or with too many elements."""

OUT_OF_RANGE = {"counted_rows"}
"""Cases that read beyond the end of an array, where the import must do as JAX does."""


def checked(function: Callable[..., Any], *args: Any) -> ExactCase:
    return import_case(mtfc.from_jax(function, *args, parameters=()).imported, 0)


@pytest.mark.parametrize("name", some((name for name in CASES if name not in OUT_OF_RANGE), 60))
def test_a_right_import_is_no_alarm(name: str) -> None:
    found = import_case(imported(name)[0].imported, 0)
    assert found.ok
    assert (found.skipped is not None) == (name in SKIPPED)
    assert found.skipped or found.found.elements > 0


@pytest.mark.parametrize("name", some(MODELS, 5))
def test_every_number_of_a_model_is_judged(name: str) -> None:
    function, args = MODELS[name]()
    found = import_case(mtfc.from_jax(function, *args).imported, 0)
    assert (found.ok, found.skipped, found.found.not_judged) == (True, None, 0)


def cut(x: jax.Array) -> jax.Array:
    return x[:, 2:6] * jnp.arange(1.0, 5.0) + 1


def joined(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x[:, :3], 2 * x], 1)


def turned(x: jax.Array) -> jax.Array:
    return jnp.flip(x, 1) @ x.T


def summed(x: jax.Array) -> jax.Array:
    return jnp.cumsum(x, 1)[:, ::-1]


def looked_up(x: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice(x, (1, 2), (3, 4))


def scanned(x: jax.Array) -> jax.Array:
    ys: jax.Array = jax.lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x)[1]
    return ys


def swapped(x: Any, first: Any, second: Any) -> tuple[Any, Any, Any]:
    return x, second, first


def changed(params: dict[str, Any]) -> Callable[[AppliedPrimitive], AppliedPrimitive]:
    return lambda step: attrs.evolve(step, params={**step.params, **params})


@pytest.mark.parametrize(
    ("function", "primitive", "fault"),
    [
        (cut, "slice", changed({"start_indices": (0, 1), "limit_indices": (8, 5)})),
        (cut, "mul", lambda step: attrs.evolve(step, operands=(step.operands[0], step.operands[0]))),
        (joined, "concatenate", lambda step: attrs.evolve(step, operands=step.operands[::-1])),
        (summed, "cumsum", changed({"reverse": True})),
        (looked_up, "dynamic_slice", lambda step: attrs.evolve(step, operands=swapped(*step.operands))),
        (scanned, "scan", changed({"reverse": True})),
    ],
)
def test_a_planted_fault_of_the_import_is_found(
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    primitive: str,
    fault: Callable[[AppliedPrimitive], AppliedPrimitive],
) -> None:
    """A rule emits another step than it has linked, as a rule that computes a start wrongly does."""
    x = jnp.ones((8, 8))
    assert checked(function, x).ok
    right = rules.RULES[primitive]
    wrong = attrs.evolve(right, emit=lambda emitter, step: right.emit(emitter, fault(step)))
    monkeypatch.setitem(rules.RULES, primitive, wrong)  # type: ignore[arg-type]
    assert not checked(function, x).ok


def test_verify_begins_with_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    program = mtfc.from_jax(cut, jnp.ones((8, 8)))
    found = program.verify(program.plan({"batch": "a"}, {"a": 2}))
    assert found.ok
    assert str(found).startswith("import               exact  ok     all 64 elements are equal")
    right = rules.RULES["slice"]
    fault = changed({"start_indices": (0, 1), "limit_indices": (8, 5)})
    wrong = attrs.evolve(right, emit=lambda emitter, step: right.emit(emitter, fault(step)))
    monkeypatch.setitem(rules.RULES, "slice", wrong)  # type: ignore[arg-type]
    program = mtfc.from_jax(cut, jnp.ones((8, 8)))
    found = program.verify(program.plan({"batch": "a"}, {"a": 2}))
    assert not found.ok
    assert "import               exact  WRONG  results that differ: result of forward" in str(found)
    assert "plan.step DIFFERS" in str(found)
    alone = attrs.evolve(found, imported=None)
    assert "; the exact check does not cover the import" in str(alone)


def stepped(w: jax.Array, n: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return w + jnp.log(-jnp.abs(x)).sum(0), n + 1


def of_positive(w: jax.Array, n: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return w + jnp.log(x.min()), n + 1


def of_large(w: jax.Array, n: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return w + jnp.log(jnp.log(x.min())), n + 1


@pytest.mark.parametrize(("function", "names"), [(stepped, ("result_0",)), (of_positive, ()), (of_large, ())])
def test_a_result_without_numbers_is_drawn_again_or_fails(
    function: Callable[..., Any], names: tuple[str, ...]
) -> None:
    program: ImportedProgram = mtfc.from_jax(function, jnp.ones(4), jnp.int32(0), jnp.ones((8, 4)))
    found = program.verify(program.plan({"batch": "a"}, {"a": 2}))
    assert (found.ok, found.without_numbers) == (not names, names)
    assert ("NOT COMPARED" in str(found)) == bool(names)


def test_numbers_of_python_are_leaves() -> None:
    def step(state: dict[str, Any], x: jax.Array, rate: Any) -> dict[str, Any]:
        return {"step": state["step"] + 1, "w": state["w"] + rate * x.sum(0)}

    args = {"step": 0, "w": jnp.ones(4)}, jnp.ones((8, 4)), 0.5
    program = mtfc.from_jax(step, *args)
    plan = program.plan({"batch": "a"}, {"a": 2})
    assert int(plan.step(*args)["step"]) == 1
    assert program.verify(plan).ok and program.verify(plan, *args).ok
