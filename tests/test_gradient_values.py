"""`gradients(loss, [w, x])` in a model: values that can be differentiated again, against `jax.grad` of `jax.grad`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtfc.backends.interpreter import interpret
from tests.harness import Arrays, agree, diagnose, differentiated, generic_data, load

DEEP = """
dim batch = 4; dim time = 4; dim memory = time; dim io = 4; dim out = io; dim layers = 2; dim steps = 3
mesh grid = [rows: 2, cols: 2]
layout positions on grid = { batch: rows, time: cols }
layout channels on grid = { batch: rows, io: cols, params: { *: rows } }

fn attend[length, memory, d](x: any[..., length, d], y: any[..., memory, d]) -> any[..., length, d] {
  logits = einsum(x, y -> [..., length, memory])
  e = exp(logits - max(logits, over = memory))
  return einsum(e / sum(e, over = memory), y -> [..., length, d])
}

model net(x: f64[batch, time, io], y: f64[batch, time, io]) {
  param s: f64[io] = uniform(low = 0.5, high = 1.5)
  h = x * s
  repeat layers checkpoint {
    param w: f64[io, out] = normal(stddev = 0.5)
    q = rename(einsum(h, w -> [batch, time, out]), out -> io)
    h = h + tanh(attend(q, rename(h, time -> memory)))
  }
  z = zeros([batch, io], dtype = f64)
  scan h_t = h along time {
    z = tanh(0.5 * z + h_t * s)
    yield zs = z
  }
  loss = mean(square(zs - transpose(y -> [time, batch, io])))
  slope_x, slope_s = gradients(loss, [x, s])
  product = gradients(sum(slope_x * y) + sum(square(slope_s)), s)
  fast = s
  repeat steps {
    error = mean(square(x * fast - y))
    fast = fast - 0.1 * gradients(error, fast)
  }
  total = loss + mean(square(slope_x)) + mean(square(product)) + mean(square(x * fast - y))
  return total, slope_x, slope_s, product, fast
}
train net { minimize total; optimizer = sgd(0.1) }
"""


def by_jax(arrays: Arrays) -> Arrays:
    """Compute the outputs and gradients of `DEEP`."""

    def loss(x: Any, s: Any, y: Any, w: Any) -> Any:
        h = x * s
        for layer in w:
            weights = jax.nn.softmax(jnp.einsum("btd,bmd->btm", h @ layer, h), axis=-1)
            h = h + jnp.tanh(weights @ h)
        z, terms = jnp.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            z = jnp.tanh(0.5 * z + h[:, t] * s)
            terms.append(jnp.mean(jnp.square(z - y[:, t])))
        return sum(terms) / len(terms)

    def total(given: Arrays) -> Any:
        x, s, y, w = given["x"], given["s"], given["y"], given["layers.w"]
        slope_x, slope_s = jax.grad(loss, (0, 1))(x, s, y, w)

        def directed(s: Any) -> Any:
            slopes = jax.grad(loss, (0, 1))(x, s, y, w)
            return jnp.sum(slopes[0] * y) + jnp.sum(jnp.square(slopes[1]))

        product, fast = jax.grad(directed)(s), s
        for _ in range(3):
            fast = fast - 0.1 * jax.grad(lambda f: jnp.mean(jnp.square(x * f - y)))(fast)
        result = loss(x, s, y, w) + jnp.mean(jnp.square(slope_x)) + jnp.mean(jnp.square(product))
        result += jnp.mean(jnp.square(x * fast - y))
        return result, {
            "total": result,
            "slope_x": slope_x,
            "slope_s": slope_s,
            "product": product,
            "fast": fast,
        }

    with jax.enable_x64(True):
        grads, outputs = jax.jit(jax.grad(total, has_aux=True))(arrays)
        return {**outputs, **{f"d_{name}": x for name, x in grads.items()}}


def test_third_derivatives_through_loops_and_attention_are_those_of_jax() -> None:
    (program,) = load(DEEP).programs
    whole = differentiated(program, "gradients")
    arrays = generic_data(whole.function("gradients"), seed=3)
    actual, expected = interpret(whole.function("gradients"), whole, arrays), by_jax(arrays)
    assert actual.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(actual[name], wanted, rtol=1e-8, atol=1e-10, err_msg=name)


def test_layouts_agree() -> None:
    agree(DEEP, jax=False)


SMALL = """
dim batch = 8; dim io = 4; dim hidden = 8
mesh grid = [rows: 2, cols: 2]
layout both on grid = {{ batch: rows, hidden: cols }}
model net(x: [batch, io]) {{
  param w: [io, hidden] = normal(stddev = 0.5)
  h = where(training, tanh(einsum(x, w -> [batch, hidden])), einsum(x, w -> [batch, hidden]))
  score = sum(square(h))
  {statements}
  loss = mean(square(g)) + score
  return loss
}}
train net {{ minimize loss; optimizer = adam(0.1); accumulate = 2; clip = 1.0 }}
"""


def test_both_backends_agree_with_micro_batches_and_the_flag() -> None:
    agree(SMALL.format(statements="g = gradients(score, x)"))


def test_no_gradient_reaches_a_value_behind_a_barrier() -> None:
    source = SMALL.format(statements="g = gradients(sum(stop_gradient(h)) + floor(sum(x)), x) + score")
    (program,) = load(source).programs
    arrays = generic_data(program.function("forward"), 0)
    found = interpret(program.function("forward"), program, arrays)
    score = np.square(arrays["x"] @ arrays["w"]).sum()
    np.testing.assert_allclose(found["loss"], score**2 + score, rtol=1e-5)


def test_gradients_of_gradients_without_end_are_refused() -> None:
    chain = "\n  ".join(f"g{i + 1} = gradients(sum(g{i}), x)" for i in range(30))
    statements = f"g0 = tanh(x) * sigmoid(x)\n  {chain}\n  g = g30"
    errors = [each for each in diagnose(SMALL.format(statements=statements)) if each.code.startswith("E")]
    assert [each.code for each in errors] == ["E122"]
