"""Test dense layers, activations, normalization, embeddings and dropout."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests.harness import call, differentiated, jax_module, load, numpy_module
from tests.library.networks import Expected, Network, agrees

DIMS = {"batch": 4, "length": 6, "d": 8, "e": 10, "ff": 16}
ROWS = {"x": "f32[batch, length, d]"}


def test_dense() -> None:
    network = Network(
        imports=["nn"],
        dims=DIMS,
        layouts=["batch: a, e: b, ff: b", "d: (a, b)"],
        inputs=ROWS,
        body="""
          y = nn.dense[d_out = e](x)
          z = nn.dense_no_bias[d_out = e](x)
          f = nn.feed_forward[d_ff = ff](x)
          g = nn.swiglu[d_ff = ff](x)
        """,
        outputs={
            "y": "batch, length, e",
            "z": "batch, length, e",
            "f": "batch, length, d",
            "g": "batch, length, d",
        },
    )

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        gate = jax.nn.silu(x @ p["swiglu_w_gate"])
        return {
            "y": x @ p["dense_w"] + p["dense_bias"],
            "z": x @ p["dense_no_bias_w"],
            "f": jnp.maximum(x @ p["feed_forward_wi"], 0) @ p["feed_forward_wo"],
            "g": (gate * (x @ p["swiglu_w_up"])) @ p["swiglu_w_down"],
        }

    agrees(network, expected)


def test_activations() -> None:
    plain = ("gelu", "gelu_tanh", "silu", "softplus", "leaky_relu", "elu", "selu")
    names = (*plain, "softmax", "log_softmax")
    network = Network(
        imports=["nn"],
        dims=DIMS,
        layouts=["batch: a, d: b"],
        inputs=ROWS,
        body="\n".join(f"{name} = nn.{name}(x * 3.0)" for name in names)
        + """
          steep = nn.leaky_relu(x, slope = 0.2)
          deep = nn.elu(x, alpha = 1.5)
          total = nn.logsumexp(x * 9.0)
          other = nn.softmax(x, length)
        """,
        outputs={
            **dict.fromkeys((*names, "steep", "deep"), "batch, length, d"),
            "total": "batch, length",
            "other": "batch, d, length",
        },
    )

    def expected(x: Any) -> dict[str, Any]:
        return {
            "gelu": jax.nn.gelu(3 * x, approximate=False),
            "gelu_tanh": jax.nn.gelu(3 * x, approximate=True),
            "silu": jax.nn.silu(3 * x),
            "softplus": jax.nn.softplus(3 * x),
            "leaky_relu": jax.nn.leaky_relu(3 * x),
            "elu": jax.nn.elu(3 * x),
            "selu": jax.nn.selu(3 * x),
            "steep": jax.nn.leaky_relu(x, 0.2),
            "deep": jax.nn.elu(x, 1.5),
            "total": jax.nn.logsumexp(9 * x, axis=-1),
            "softmax": jax.nn.softmax(3 * x),
            "log_softmax": jax.nn.log_softmax(3 * x),
            "other": jnp.swapaxes(jax.nn.softmax(x, axis=1), 1, 2),
        }

    agrees(network, expected)


def test_large_numbers_do_not_overflow() -> None:
    source = """
    import nn
    dim d = 4
    model m(x: f32[d]) {
      a = nn.softmax(x)
      b = nn.log_softmax(x)
      c = nn.softplus(x)
      e = nn.elu(x)
      f = nn.elu(x * 1e-12)
      total = nn.logsumexp(x)
      return a, b, c, e, f, total
    }
    """
    (program,) = load(source).programs
    x = np.array([1e4, -1e4, 3e4, 0], np.float32)
    results = interpret(program.function("forward"), program, {"x": x})
    np.testing.assert_array_equal(results["a"], [0, 0, 1, 0])
    np.testing.assert_array_equal(results["b"], [-2e4, -4e4, 0, -3e4])
    np.testing.assert_allclose(results["c"], [1e4, 0, 3e4, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(results["e"], [1e4, -1, 3e4, 0], rtol=1e-6)
    np.testing.assert_allclose(results["f"], np.expm1(x.astype(np.float64) * 1e-12), rtol=1e-6)
    assert results["total"] == 3e4


EXTREME_ROWS = """
import nn
dim n = 6
dim d = 4
mesh line = [all: 2]
layout rows on line = { n: all }
layout along on line = { d: all }
model m(x: [n, d], w: [n], p: [n, d]) {
  total = nn.logsumexp(x)
  share = nn.softmax(x)
  logs = nn.log_softmax(x)
  dtotal = gradients(sum(total * w), [x])
  dshare = gradients(sum(share * p), [x])
  dlogs = gradients(sum(logs * p), [x])
  return total, share, logs, dtotal, dshare, dlogs
}
"""


@pytest.mark.parametrize("backend", [numpy_module, jax_module])
@pytest.mark.parametrize("layout", ["rows", "along"])
def test_rows_of_infinities_are_as_in_jax(layout: str, backend: Any) -> None:
    inf, nan = np.inf, np.nan
    rows = [
        [-inf] * 4,
        [inf, 1, 2, 3],
        [nan, 1, 2, -inf],
        [0, -inf, 1, 2],
        [-inf, inf, 0, 1],
        [inf, inf, -inf, nan],
    ]
    x, w = np.array(rows, np.float32), np.arange(1, 7, dtype=np.float32)
    p = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    selection = choose(EXTREME_ROWS, "test.mtf", Choice(None, layout, None, {}))
    placed = selection.cases[0].lower(selection.program, "forward")
    with np.errstate(all="ignore"):
        found = call(backend(placed), placed.function("forward"), {"x": x, "w": w, "p": p})
    functions: dict[str, tuple[Callable[..., Any], Any]] = {
        "total": (lambda x: jax.nn.logsumexp(x, axis=-1), w),
        "share": (jax.nn.softmax, p),
        "logs": (jax.nn.log_softmax, p),
    }
    for name, (function, weights) in functions.items():
        slope = jax.grad(lambda x, f=function, w=weights: (f(x) * w).sum())(x)
        np.testing.assert_allclose(found[name], function(x), rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(found[f"d{name}"], slope, rtol=1e-5, err_msg=f"d{name}")


@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    network = Network(
        imports=["nn", "losses"],
        dims={"batch": 4, "length": 6, "vocab": 12},
        layouts=["batch: a, vocab: b", "vocab: (a, b)"],
        inputs={
            "logits": "f32[batch, length, vocab]",
            "targets": "i32[batch, length]",
            "w": "f32[batch, length]",
        },
        body=f"""
          each = nn.cross_entropy(logits * 5.0, targets, smoothing = {smoothing})
          all = losses.softmax_cross_entropy(logits, targets, smoothing = {smoothing})
          some = losses.weighted_cross_entropy(logits, targets, square(w), smoothing = {smoothing})
        """,
        outputs={"each": "batch, length", "all": "", "some": ""},
        below={"targets": 12},
    )

    def one(logits: Any, targets: Any) -> Any:
        wanted = (1 - smoothing) * jax.nn.one_hot(targets, 12) + smoothing / 12
        return -(wanted * jax.nn.log_softmax(logits)).sum(-1)

    def expected(logits: Any, targets: Any, w: Any) -> dict[str, Any]:
        return {
            "each": one(5 * logits, targets),
            "all": one(logits, targets).mean(),
            "some": jnp.average(one(logits, targets), weights=w**2),
        }

    agrees(network, expected)


def test_other_losses() -> None:
    network = Network(
        imports=["losses"],
        dims={"batch": 4, "d": 8},
        layouts=["batch: a, d: b"],
        inputs={"x": "f32[batch, d]", "y": "f32[batch, d]"},
        body="""
          binary = losses.sigmoid_cross_entropy(x * 4.0, sigmoid(y))
          squares = losses.mean_squared_error(x, y)
          decay = losses.l2(x, weight = 0.01)
          steady = losses.z_loss(x * 3.0, weight = 0.1)
        """,
        outputs={"binary": "", "squares": "", "decay": "", "steady": ""},
    )

    def expected(x: Any, y: Any) -> dict[str, Any]:
        q = jax.nn.sigmoid(y)
        binary = -(q * jax.nn.log_sigmoid(4 * x) + (1 - q) * jax.nn.log_sigmoid(-4 * x))
        return {
            "binary": binary.mean(),
            "squares": ((x - y) ** 2).mean(),
            "decay": 0.005 * jnp.vdot(x, x),
            "steady": 0.1 * (jax.nn.logsumexp(3 * x, axis=-1) ** 2).mean(),
        }

    agrees(network, expected)


def test_normalization() -> None:
    network = Network(
        imports=["nn"],
        dims=DIMS,
        layouts=["batch: a, d: b", "batch: (a, b)"],
        inputs={**ROWS, "average": "f32[d]", "variance": "f32[d]"},
        body="""
          layer = nn.layer_norm(x + 3.0)
          rms = nn.rms_norm(x)
          batched = nn.batch_norm(x * 2.0 + 1.0)
          mean, var = nn.moments(x)
          fixed = nn.normalize(x, average, square(variance))
        """,
        outputs={
            **dict.fromkeys(("layer", "rms", "batched", "fixed"), "batch, length, d"),
            "mean": "d",
            "var": "d",
        },
    )

    def expected(x: Any, average: Any, variance: Any, **p: Any) -> dict[str, Any]:
        y, z = x + 3, 2 * x + 1
        unit = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-6)
        root = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        whole = (z - z.mean((0, 1))) / jnp.sqrt(z.var((0, 1)) + 1e-5)
        given = (x - average) / jnp.sqrt(variance**2 + 1e-5)
        return {
            "layer": unit * p["layer_norm_scale"] + p["layer_norm_bias"],
            "rms": root * p["rms_norm_scale"],
            "batched": whole * p["batch_norm_scale"] + p["batch_norm_bias"],
            "fixed": given * p["normalize_scale"] + p["normalize_bias"],
            "mean": x.mean((0, 1)),
            "var": x.var((0, 1)),
        }

    agrees(network, expected)


def test_embedding_and_positions() -> None:
    network = Network(
        imports=["nn"],
        dims={"batch": 4, "length": 6, "vocab": 12, "d": 8},
        layouts=["batch: a, vocab: b", "length: a, d: b"],
        inputs={"ids": "i32[batch, length]"},
        body="""
          e = nn.embedding[vocab = vocab, d_model = d](ids)
          p = nn.learned_positions[length = length, d_model = d]()
          s = nn.sinusoidal_positions[length = length, d_model = d]()
        """,
        outputs={"e": "batch, length, d", "p": "length, d", "s": "length, d"},
        below={"ids": 12},
    )
    angle = np.arange(6)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    waves = np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)

    def expected(ids: Any, **p: Any) -> dict[str, Any]:
        return {"e": p["embedding_table"][ids], "p": p["learned_positions_positions"], "s": waves}

    agrees(network, expected)


def test_dropout_is_the_same_on_every_layout() -> None:
    network = Network(
        imports=["nn"],
        dims={"batch": 8, "d": 16},
        layouts=["batch: a, d: b", "d: (a, b)"],
        inputs={"x": "f32[batch, d]"},
        body="y = nn.dropout(x, rate = 0.25)",
        outputs={"y": "batch, d"},
    )

    agrees(network, _dropped(network))


def _dropped(network: Network) -> Expected:
    """Return dropout's results in training, with the zeros that the program draws; check that nothing is dropped outside."""
    (program,) = load(network.source).programs
    ones = {"x": np.ones((8, 16), np.float32), "y_weight": np.zeros((8, 16), np.float32)}
    assert np.all(interpret(program.function("forward"), program, ones)["y"] == 1)
    trained = differentiated(program, "gradients")
    factor = interpret(trained.function("gradients"), trained, ones)["y"]
    assert {*np.unique(factor)} == {np.float32(0), np.float32(1 / 0.75)}
    assert 0.6 < (factor > 0).mean() < 0.9
    return lambda x: {"y": x * factor}


def test_dropout_of_nothing_costs_nothing() -> None:
    source = """
    import nn
    dim d = 4
    model m(x: f32[d]) {
      y = nn.dropout(x, rate = 0.0)
      return y
    }
    """
    (program,) = load(source).programs
    ops = {eqn.op for eqn in differentiated(program, "gradients").function("gradients").body}
    assert not ops & {"bernoulli", "uniform", "where"}


def test_functions_without_parameters_take_any_precision() -> None:
    source = """
    import attention
    import conv
    import nn
    dim batch = 4
    dim length = 8
    dim memory = 8
    dim d = 8
    dim half = 4
    dim k = 2
    model m(x: bf16[batch, length, d], y: bf16[batch, memory, d], ids: i32[batch, length]) {
      a = nn.softmax(nn.gelu(x) + nn.gelu_tanh(x) + nn.silu(x) + nn.softplus(x) + nn.selu(x) + nn.leaky_relu(x))
      b = nn.dropout(nn.log_softmax(x, length), rate = 0.5)
      c, e = nn.moments(x)
      f = attention.dot_product[memory = memory](x, y, y)
      g = conv.max_pool1d[out_length = half, k_length = k](x)
      loss = nn.cross_entropy(x, ids)
      return a, b, c, e, f, g, loss
    }
    """
    (program,) = load(source).programs
    found = {output.name: output.value.type.dtype for output in program.function("forward").outputs}
    assert found == {**dict.fromkeys("abcefg", "bf16"), "loss": "f32"}


def test_running_averages_have_the_parameters_of_batch_norm() -> None:
    source = """
    import nn
    dim batch = 4
    dim d = 8
    model training(x: [batch, d]) {
      y = nn.batch_norm(x)
      average, variance = nn.moments(x)
      return y, average, variance
    }
    model evaluation(x: [batch, d], average: [d], variance: [d]) {
      y = nn.normalize(x, average, variance) as batch_norm
      return y
    }
    """
    training, evaluation = load(source).programs
    assert {p.name for p in training.parameters} == {p.name for p in evaluation.parameters}
    arrays = {name: np.full(8, 0.5, np.float32) for name in ("batch_norm.scale", "batch_norm.bias")}
    arrays["x"] = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    trained = interpret(training.function("forward"), training, arrays)
    given = {**arrays, "average": trained["average"], "variance": trained["variance"]}
    evaluated = interpret(evaluation.function("forward"), evaluation, given)
    np.testing.assert_allclose(evaluated["y"], trained["y"], rtol=1e-6)


RUNNING = Network(
    imports=["nn"],
    dims=DIMS,
    layouts=["batch: a, d: b", "batch: (a, b)"],
    inputs={**ROWS, "average": "f32[d]", "variance": "f32[d]"},
    body="y, mean, var = nn.running_batch_norm(x * 2.0, average, square(variance)) as batch_norm",
    outputs={"y": "batch, length, d", "mean": "d", "var": "d"},
)


def test_batch_normalization_goes_by_the_batch_in_training() -> None:
    def expected(x: Any, average: Any, variance: Any, **p: Any) -> dict[str, Any]:
        mean, var = (2 * x).mean((0, 1)), (2 * x).var((0, 1))
        y = (2 * x - mean) / jnp.sqrt(var + 1e-5)
        return {"y": y * p["batch_norm_scale"] + p["batch_norm_bias"], "mean": mean, "var": var}

    agrees(RUNNING, expected)


def test_batch_normalization_goes_by_running_averages_outside_of_training() -> None:
    (program,) = load(RUNNING.source).programs
    arrays = RUNNING.arrays(program.function("forward"))
    found = interpret(program.function("forward"), program, arrays)
    unit = (2 * arrays["x"] - arrays["average"]) / np.sqrt(arrays["variance"] ** 2 + 1e-5)
    expected = unit * arrays["batch_norm.scale"] + arrays["batch_norm.bias"]
    np.testing.assert_allclose(found["y"], expected, rtol=2e-4, atol=1e-5)
    np.testing.assert_array_equal(found["mean"], arrays["average"])
