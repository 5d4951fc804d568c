"""Generated functions with loops in the place of repeated statements compute the same, and do not grow with the layers."""

import ast
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import pytest

import mtfc
from mtfc.backends.common import emitter, repeats
from mtfc.backends.common.arranging import arranged
from mtfc.backends.common.inlining import inlined
from mtfc.backends.jax.runtime import load
from tests.sampling import some

SIZE = 8

Arrays = dict[str, Any]


def loss(params: Sequence[Arrays], x: Any, order: Sequence[int] = ()) -> Any:
    for layer in [params[i] for i in order] or params:
        x = x + jnp.tanh(x @ layer["up"] + layer["bias"]) @ layer["down"]
    return jnp.mean(x * x)


def step(params: Sequence[Arrays], first: Any, second: Any, x: Any, order: Sequence[int] = ()) -> Any:
    gradients = jax.grad(loss)(params, x, order)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)
    params = jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 0.1), params, first, second)
    return params, first, second


def arguments(layers: int) -> tuple[Any, ...]:
    key = jax.random.key(0)
    shapes = {"up": (SIZE, 2 * SIZE), "bias": (2 * SIZE,), "down": (2 * SIZE, SIZE)}
    params = [
        {name: jax.random.normal(jax.random.fold_in(key, 9 * i + len(name)), s) for name, s in shapes.items()}
        for i in range(layers)
    ]
    zeros = jax.tree.map(jnp.zeros_like, params)
    return params, zeros, zeros, jax.random.normal(key, (4, SIZE))


LAYOUTS = {
    "data": {"batch": "data"},
    "fsdp": {"batch": "data", "params": {"*": "data"}, "optimizer": {"*": "data"}},
    "model": {"batch": "data", "hidden": "model"},
}


def planned(layers: int, layout: str, order: Sequence[int] = ()) -> Any:
    """Return the plan of a step. order: the layers as they are applied, if that is another order."""
    names = {"x": "batch embed", "params/*/up": "embed hidden"}
    program = mtfc.from_jax(partial(step, order=order), *arguments(layers), names=names)
    return program.plan(LAYOUTS[layout], {"data": 2, "model": 2})


def jaxpr_of(plan: Any) -> Any:
    """Return what JAX traces from the text of a plan."""
    module = load(plan.jax())
    placed = plan._packed.abstract()
    params, state, inputs = (
        {name: placed[name] for name in table} for table in (module.PARAMETERS, module.STATE, module.INPUTS)
    )
    return jax.make_jaxpr(module.train_step.__wrapped__)(params, state, inputs, 0).jaxpr


def digest(jaxpr: Any) -> Any:
    """Return equations by what they compute from the arguments, each once and in an order of their own, and the results."""
    made: dict[Any, Any] = {v: ("argument", i) for i, v in enumerate((*jaxpr.constvars, *jaxpr.invars))}

    def key(x: Any) -> Any:
        if hasattr(x, "eqns") or hasattr(x, "jaxpr"):
            return digest(getattr(x, "jaxpr", x))
        return tuple(map(key, x)) if isinstance(x, (tuple, list)) else str(x)

    def read(x: Any) -> Any:
        return made.get(x) if isinstance(x, jax.extend.core.Var) else ("number", str(x), str(x.aval))

    keys = []
    for eqn in jaxpr.eqns:
        options = sorted((name, key(value)) for name, value in eqn.params.items())
        keys.append(hash((eqn.primitive.name, *options, *map(read, eqn.invars))))
        made |= {v: (keys[-1], i) for i, v in enumerate(eqn.outvars)}
    return tuple(sorted({*keys})), tuple(map(read, jaxpr.outvars))


def without_inlining(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(emitter, "inlined", lambda lines, *_: lines)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", some([2, 5, 12], 2))
def test_loops_are_traced_as_the_statements_they_replace(
    layers: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_inlining(monkeypatch)
    plan = planned(layers, layout)
    looped = digest(jaxpr_of(plan))
    assert (" for i in range" in plan.jax()) or layers == 2
    monkeypatch.setattr(repeats, "LEAST", 10**9)
    assert looped == digest(jaxpr_of(plan))


@pytest.mark.parametrize(
    "order",
    [
        (0, 0, *range(1, 11)),
        [i // 2 for i in range(12)],
        range(11, -1, -1),
        (0,) * 12,
        (3, 1, 4, 0, 5, 2) * 2,
    ],
    ids=["first_twice", "each_twice", "backwards", "one", "others"],
)
def test_layers_in_other_orders_are_traced_as_their_statements(
    order: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_inlining(monkeypatch)
    plan = planned(max(order) + 1, "fsdp", order)
    looped = digest(jaxpr_of(plan))
    monkeypatch.setattr(repeats, "LEAST", 10**9)
    assert looped == digest(jaxpr_of(plan))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_text_of_a_plan_does_not_grow_with_the_layers(layout: str) -> None:
    short, long = (planned(layers, layout).jax() for layers in (8, 16))
    assert len(long.splitlines()) <= len(short.splitlines()) + 4


def test_the_text_computes_what_the_function_does() -> None:
    plan, given = planned(6, "model"), arguments(6)
    for found, wanted in zip(jax.tree.leaves(plan.step(*given)), jax.tree.leaves(step(*given)), strict=True):
        assert jnp.abs(found - wanted).max() <= 1e-3 * max(1, jnp.abs(wanted).max())


def language_model_step() -> Any:
    """Return the results of a step of a small language model with AdamW."""
    text = Path("examples/jax/decoder.py").read_text()
    exec(text.replace('jax.config.update("jax_num_cpu_devices", 8)', ""), model := dict[str, Any]())
    params = model["init"](0)
    ids = jax.random.randint(jax.random.key(0), (8, 17), 0, model["VOCAB"])
    names = {"ids": "batch length", "**/up": "embed hidden", "**/qkv": "embed (three heads head_dim)"}
    given = params, model["optimizer"].init(params), ids
    program = mtfc.from_jax(model["step"], *given, names=names)
    return program.plan(LAYOUTS["model"], {"data": 2, "model": 2}).step(*given)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", some([1, 2, 12], 2))
def test_inlined_lines_are_traced_as_those_they_replace(
    layers: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(layers, layout)
    found, lines = digest(jaxpr_of(plan)), len(plan.jax().splitlines())
    without_inlining(monkeypatch)
    assert found == digest(jaxpr_of(plan))
    assert lines < 0.85 * len(plan.jax().splitlines())


def test_inlined_lines_compute_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = language_model_step()
    without_inlining(monkeypatch)
    for bits, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(language_model_step()), strict=True):
        assert (bits == wanted).all()


@pytest.mark.parametrize(
    "expression", ["a - b", "-a", "a * b", "f(a)", "a.T", "a < b", "f(a)[..., None]", "a / b", "a ** b", "10"]
)
@pytest.mark.parametrize(
    "reader", ["{} * c", "c - {}", "{} ** c", "f(c, {})", "-{}", "{}.astype(c)", "{}[0]", "c == {}", "f(*{})"]
)
def test_inlined_expressions_keep_their_parentheses(expression: str, reader: str) -> None:
    name, result = (f"{repeats.MARK}{i}{repeats.MARK}" for i in range(2))
    lines = [f"{name} = {expression}", f"{result} = {reader.format(name)}"]
    (line,) = inlined(lines, {}, (), ("x", "y"), 110)
    wanted = f"{result} = {reader.format(f'({expression})')}"
    assert ast.dump(ast.parse(line)) == ast.dump(ast.parse(wanted))


def test_values_stay_in_front_of_carries_that_they_read() -> None:
    a, b, c, d = (f"{repeats.MARK}{i}{repeats.MARK}" for i in range(4))
    lines = [f"{a} = x", f"{b} = y", "for i in range(2):"]
    lines += [f"    {c} = f({b})", f"    {d} = f({a})", f"    {a} = {c}", f"    {b} = {d}"]
    assert [*inlined([*lines, f"return {a}, {b}"], {}, (), "abcd", 110)] == [*lines, f"return {a}, {b}"]


def test_values_of_two_collectives_go_to_the_list_of_each() -> None:
    names = iter(f"{repeats.MARK}{i}{repeats.MARK}" for i in range(1000))
    x, *values = (next(names) for _ in range(31))
    sums = [[next(names) for _ in values] for _ in "ab"]
    statements = [repeats.Statement(f"{v} = {x} * 2", "# line 1") for v in values]
    for axis, results in zip("ab", sums, strict=True):
        total = f'{", ".join(results)} = psum(({", ".join(values)}), "{axis}")'
        statements.append(repeats.Statement(total, "# line 2"))
    texts = {x: 'params["x"]'}
    found = arranged(statements, lambda _: next(names), texts, [])
    written = repeats.LoopWriter(found, lambda _: next(names), [x], texts).lines()
    code = "\n".join(written).replace(x, texts[x]).replace(repeats.MARK, "_")
    given: dict[str, Any] = {"psum": lambda terms, axis: [*terms, axis], "params": {"x": 3}}
    exec(code, given)
    found_sums = [
        value for value in given.values() if isinstance(value, list) and value[-1:] in (["a"], ["b"])
    ]
    assert found_sums == [[6] * 30 + [axis] for axis in "ab"]
