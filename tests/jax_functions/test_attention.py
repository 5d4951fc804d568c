"""Attention in imported functions is one op, and so is its gradient, however a library writes it."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.ops.attention import limits_of
from mtfc.compiler.passes.fuse_attention import FuseAttention, reasons
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.compiler.passes.pipelines import run
from tests.harness import generic_data
from tests.jax_functions.models import Model, array

BATCH, LENGTH, HEADS, SIZE, EMBED = 2, 16, 3, 4, 8


def weights(*layers: int) -> dict[str, Any]:
    projections = {name: array(*layers, EMBED, HEADS, SIZE) for name in "qkv"}
    return {**projections, "o": array(*layers, HEADS, SIZE, EMBED)}


def projected(p: Any, x: Any) -> list[Any]:
    return [jnp.einsum("ble,ehd->bhld", x, p[name]) for name in "qkv"]


def causal(p: Any, x: Any) -> Any:
    """A causal attention as most people write it."""
    q, k, v = projected(p, x)
    scores = jnp.einsum("bhld,bhmd->bhlm", q, k) / jnp.sqrt(SIZE)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    return jnp.einsum("bhlm,bhmd,hde->ble", jax.nn.softmax(scores), v, p["o"])


def by_hand(p: Any, x: Any) -> Any:
    """A softmax by hand: its maximum has a gradient, and the mask has its number first."""
    q, k, v = projected(p, x)
    i = jnp.arange(x.shape[1])
    scores = jnp.where(i[:, None] < i, -jnp.inf, q @ k.swapaxes(-1, -2) * SIZE**-0.5)
    e = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("bhld,hde->ble", (e @ v) / e.sum(-1, keepdims=True), p["o"])


def capped(p: Any, x: Any) -> Any:
    """A soft cap and a bias for each pair of a head and a key, in bf16, with a softmax in f32."""
    q, k, v = (each.astype(jnp.bfloat16) for each in projected(p, x))
    scores = (q * SIZE**-0.5) @ k.swapaxes(-1, -2)
    scores = 5 * jnp.tanh(scores / 5) + p["bias"][:, None].astype(jnp.bfloat16)
    found = jax.nn.softmax(scores.astype(jnp.float32)).astype(v.dtype) @ v
    return jnp.einsum("bhld,hde->ble", found.astype(jnp.float32), p["o"])


def grouped(p: Any, x: Any) -> Any:
    """`jax.nn.dot_product_attention` with one head of keys and values for all heads of queries."""
    q, k, v = (each.swapaxes(1, 2) for each in projected(p, x))
    found = jax.nn.dot_product_attention(q, k[:, :, :1], v[:, :, :1], is_causal=True)
    return jnp.einsum("blhd,hde->ble", found, p["o"])


def windowed(p: Any, x: Any) -> Any:
    """A window of `jax.nn.dot_product_attention`, whose positions are arrays that the function closes over."""
    q, k, v = (each.swapaxes(1, 2) for each in projected(p, x))
    found = jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(4, 0))
    return jnp.einsum("blhd,hde->ble", found, p["o"])


def of_documents(p: Any, x: Any) -> Any:
    """ALiBi, a causal mask, and documents that do not see each other; positions are made outside."""
    q, k, v = projected(p, x)
    ahead = POSITIONS[:, None] - POSITIONS
    slopes = 0.5 ** jnp.arange(1, 1 + HEADS)[:, None, None]
    scores = jnp.einsum("bhld,bhmd->bhlm", q, k) * SIZE**-0.5 - slopes * ahead
    document = POSITIONS // 5
    seen = (ahead >= 0) & (document[:, None] == document)
    return jnp.einsum("bhlm,bhmd,hde->ble", jax.nn.softmax(jnp.where(seen, scores, -1e9)), v, p["o"])


def scanned(p: Any, x: Any) -> Any:
    def layer(x: Any, p: Any) -> Any:
        return x + causal(p, x), None

    return jax.lax.scan(jax.checkpoint(layer), x, p)[0]


def two_layers(p: Any, x: Any) -> Any:
    for each in p:
        x = x + jax.checkpoint(causal)(each, x)
    return x


def of_nnx() -> Model:
    from flax import nnx

    layer = nnx.eval_shape(lambda: nnx.MultiHeadAttention(HEADS, EMBED, 12, decode=False, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(layer)
    return lambda p, x: nnx.merge(graph, p)(x, mask=nnx.make_causal_mask(x[..., 0])), (state, X)


def of_linen() -> Model:
    from flax import linen

    layer = linen.MultiHeadDotProductAttention(HEADS, qkv_features=12)
    params = jax.eval_shape(layer.init, jax.random.key(0), X)
    return lambda p, x: layer.apply(p, x, mask=linen.make_causal_mask(x[..., 0])), (params, X)


def of_equinox() -> Model:
    import equinox as eqx

    layer = eqx.nn.MultiheadAttention(2, EMBED, key=jax.random.key(0))
    params, rest = eqx.partition(layer, eqx.is_array)

    def function(p: Any, x: Any) -> Any:
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        return jax.vmap(lambda y: eqx.combine(p, rest)(y, y, y, mask=mask))(x)

    return function, (params, X)


def of_haiku() -> Model:
    import haiku as hk

    def net(x: Any) -> Any:
        mask = jnp.tril(jnp.ones((1, 1, x.shape[1], x.shape[1])))
        return hk.MultiHeadAttention(HEADS, SIZE, w_init=hk.initializers.RandomNormal())(x, x, x, mask)

    pure = hk.without_apply_rng(hk.transform(net))
    return pure.apply, (jax.eval_shape(pure.init, jax.random.key(0), X), X)


X = array(BATCH, LENGTH, EMBED)
POSITIONS = jnp.arange(LENGTH)

MODELS: dict[str, Callable[[], Model]] = {
    "causal": lambda: (causal, (weights(), X)),
    "by hand": lambda: (by_hand, (weights(), X)),
    "capped": lambda: (capped, ({**weights(), "bias": array(HEADS, LENGTH)}, X)),
    "grouped": lambda: (grouped, (weights(), X)),
    "windowed": lambda: (windowed, (weights(), X)),
    "of documents": lambda: (of_documents, (weights(), X)),
    "scanned": lambda: (scanned, (weights(2), X)),
    "two layers": lambda: (two_layers, ([weights(), weights()], X)),
    "nnx": of_nnx,
    "linen": of_linen,
    "equinox": of_equinox,
    "haiku": of_haiku,
}
LAYERS = {"two layers": 2}
ATTENTIONS = {"two layers": 4, "scanned": 2}
"""The number of ops in a gradient: layers with `checkpoint` compute attention again."""


@cache
def imported(name: str, with_gradients: bool) -> Program:
    function, args = MODELS[name]()

    def loss(p: Any, x: Any) -> Any:
        return jnp.sum(function(p, x) ** 2)

    return mtfc.from_jax(jax.value_and_grad(loss) if with_gradients else loss, *args).imported.program


def counts(program: Program) -> dict[str, int]:
    ops = [eqn.op for function in program.functions for eqn in walk(function.body)]
    return {op: ops.count(op) for op in ("attention", "attention_dq", "attention_dkv", "exp")}


@pytest.mark.parametrize("name", MODELS)
def test_attention_of_libraries_is_one_op(name: str) -> None:
    fused = run(imported(name, with_gradients=False), (FuseAttention(least=1),))
    assert counts(fused) == {
        "attention": LAYERS.get(name, 1),
        "attention_dq": 0,
        "attention_dkv": 0,
        "exp": 0,
    }


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_jax_become_the_ops_for_gradients(name: str) -> None:
    plain = everything_in(imported(name, with_gradients=True), "f64")
    fused = run(plain, (FuseAttention(least=1),))
    layers = LAYERS.get(name, 1)
    wanted = {"attention_dq": layers, "attention_dkv": layers, "exp": 0}
    assert counts(fused) == {"attention": ATTENTIONS.get(name, 1), **wanted}
    (function,), (new,) = plain.functions, fused.functions
    given = {key: x * 0.3 for key, x in generic_data(function, 0).items()}
    expected, found = interpret(function, plain, given), interpret(new, fused, given)
    for key, wanted_array in expected.items():
        np.testing.assert_allclose(found[key], wanted_array, rtol=1e-7, atol=1e-7, err_msg=key)


@pytest.mark.parametrize(
    ("name", "roles", "limits"), [("windowed", "", (0, 4)), ("of documents", "bias same_ids", (0, None))]
)
def test_masks_are_those_that_kernels_know(
    name: str, roles: str, limits: tuple[int | None, int | None]
) -> None:
    (function,) = run(imported(name, with_gradients=False), (FuseAttention(least=1),)).functions
    (eqn,) = (eqn for eqn in walk(function.body) if eqn.op == "attention")
    assert eqn.attrs["roles"] == roles and limits_of(eqn) == limits


SOFTMAXES: dict[str, Callable[[Any], Any]] = {
    "a mask behind the exponentials": lambda s: jax.nn.softmax(s, where=POSITIONS[:, None] >= POSITIONS),
    "no maximum": lambda s: jnp.exp(s) / jnp.sum(jnp.exp(s), axis=-1, keepdims=True),
    "log_softmax": lambda s: jnp.exp(jax.nn.log_softmax(s)),
    "logsumexp": lambda s: jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True)),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_other_softmaxes_are_named(name: str) -> None:
    def function(p: Any, x: Any) -> Any:
        q, k, v = projected(p, x)
        found = SOFTMAXES[name](jnp.einsum("bhld,bhmd->bhlm", q, k))
        return jnp.einsum("bhlm,bhmd->bhld", found, v)

    program = mtfc.from_jax(function, weights(), X).imported.program
    assert [each.text.partition(" as ")[0] for each in reasons(program, 1)] == [
        "its weights are not computed"
    ]


DROPOUTS: dict[str, Callable[[Any, Any], Any]] = {
    "a choice": lambda w, keep: jnp.where(keep, w / 0.75, 0),
    "a product": lambda w, keep: w * keep / 0.75,
    "Flax": lambda w, keep: w * (keep.astype(w.dtype) / jnp.asarray(0.75, w.dtype)),
    "truth values first": lambda w, keep: ~keep * (w * 1.25),
}


def attends(change: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function that changes the weights of its attention by truth values, and its arguments."""

    def function(p: Any, x: Any, keep: Any) -> Any:
        q, k, v = projected(p, x)
        return change(jax.nn.softmax(q @ k.swapaxes(-1, -2)), keep) @ v

    return function, (weights(), X, jax.ShapeDtypeStruct((LENGTH, LENGTH), jnp.bool_))


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_of_weights_is_inside_the_op(name: str, has_gradients: bool) -> None:
    function, args = attends(DROPOUTS[name])
    gradient = jax.value_and_grad(lambda p, x, keep: jnp.sum(function(p, x, keep) ** 2))
    plain = everything_in(
        mtfc.from_jax(gradient if has_gradients else function, *args).imported.program, "f64"
    )
    fused = run(plain, (FuseAttention(least=1),))
    found_ops = counts(fused)
    assert found_ops["attention"] == 1 and found_ops["exp"] == 0
    assert found_ops["attention_dq"] == found_ops["attention_dkv"] == has_gradients
    given = generic_data(plain.functions[0], 0)
    expected, found = (interpret(each.functions[0], each, given) for each in (plain, fused))
    for key, wanted in expected.items():
        np.testing.assert_allclose(found[key], wanted, rtol=1e-7, atol=1e-7, err_msg=key)


def test_gradients_of_dropout_under_a_flag_stay_separate_ops() -> None:
    """An argument says whether weights are left out, so no factor of the gradients is a number."""
    function, args = attends(lambda w, keep: jnp.where(keep[0, 0], jnp.where(keep, w * 1.25, 0), w))
    gradient = jax.grad(lambda p, x, keep: jnp.sum(function(p, x, keep) ** 2))
    found = reasons(mtfc.from_jax(gradient, *args).imported.program, 1)
    assert [each.text for each in found] == ["the weights are used otherwise, too"]


NO_DROPOUTS: dict[str, Callable[[Any, Any], Any]] = {
    "a divisor": lambda w, keep: w / (keep + 1.0),
    "a reciprocal": lambda w, keep: 0.75 / w * keep,
    "squares": lambda w, keep: w * keep * w,
    "zeros": lambda w, keep: w * keep * 0,
    "two": lambda w, keep: w * keep * ~keep,
}


@pytest.mark.parametrize("name", NO_DROPOUTS)
def test_other_changes_of_weights_are_named(name: str) -> None:
    function, args = attends(NO_DROPOUTS[name])
    found = reasons(mtfc.from_jax(function, *args).imported.program, 1)
    assert [each.text for each in found] == ["the weights are changed before they are multiplied with values"]


def test_a_softmax_of_a_loss_is_not_named() -> None:
    def loss(p: Any, x: Any) -> Any:
        logits = jax.nn.relu(x @ p["a"]) @ p["b"]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0])

    args = {"a": array(6, 5), "b": array(5, 12)}, array(8, 6)
    program = mtfc.from_jax(jax.value_and_grad(loss), *args).imported.program
    assert reasons(program, 1) == []


def test_a_plan_stores_no_weights_of_attention() -> None:
    """A step of 1,024 keys takes a fraction of the memory, and computes the same under layouts that split sequences."""

    def loss(p: Any, x: Any) -> Any:
        return jnp.sum(causal(p, x) ** 2)

    step, args = jax.value_and_grad(loss), (weights(), array(2, 1024, EMBED))
    program = mtfc.from_jax(step, *args)
    random = np.random.default_rng(0)
    given = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape) * 0.3, x.dtype), args)
    expected = jax.jit(step)(*given)
    alone = jax.jit(step).lower(*args).compile().memory_analysis().temp_size_in_bytes
    for layout in ({"batch": "data"}, {"length": "data"}):
        compiled = jax.jit(program.plan(layout, {"data": 2}).step).lower(*args).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < alone / 3
        for a, b in zip(jax.tree.leaves(compiled(*given)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.abs(b).max()))


def test_a_plan_explains_attention_that_stays_separate_ops() -> None:
    def outputs(x: Any) -> Any:
        used = jax.nn.softmax(jnp.einsum("bld,bmd->blm", x, x))
        return used @ x, used

    plan = mtfc.from_jax(outputs, array(2, 1024, EMBED)).plan({"batch": "data"}, {"data": 2})
    assert "the weights are used otherwise, too" in plan.explain()
