"""The library's optimizers and schedules beside those of optax, step for step.

A network with parameters of 0 to 3 dimensions, some of them in a `repeat`, learns a function from a new batch in every step. mtfc
trains the network under a layout that splits parameters and states. JAX differentiates the same network written by hand, optax
makes the updates. Both start at the same values and compute in f64, so that a difference is one of formulas. But both compute
schedules in f32, and mtfc the norm by which gradients are clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mtfc
from benchmarks.figures import Figure
from mtfc.backends.common.devices import setting_kept

STEPS = 100
LIMIT = 1e-6
BATCH, IO, LAYERS = 16, 4, 3

NETWORK = """
import schedules

dim batch = 16
dim io = 4
dim heads = 2
dim hidden = 8
dim inner = 8
dim layers = 3
mesh grid = [rows: 2, cols: 2]
layout split on grid = { batch: rows, hidden: cols, optimizer: { inner: rows } }

model fit(x: f64[batch, io], y: f64[batch]) {
  param w:    f64[heads, io, hidden] = normal(stddev = 0.5)
  param bias: f64[heads, hidden]     = normal(stddev = 0.1)
  h = sum(tanh(einsum(x, w -> [batch, heads, hidden]) + bias), over = heads)
  repeat layers {
    param u: f64[hidden, inner] = normal(stddev = 0.3)
    param c: f64[inner]         = zeros()
    param v: f64[inner, hidden] = normal(stddev = 0.3)
    h = h + einsum(tanh(einsum(h, u -> [batch, inner]) + c), v -> [batch, hidden])
  }
  param out:   f64[hidden] = normal(stddev = 0.3)
  param scale: f64[]       = ones()
  loss = mean(square(scale * einsum(h, out -> [batch]) - y))
  return loss
}

train fit { minimize loss; optimizer = OPTIMIZER }
"""

RECORDER = """
import schedules

dim d = 2
mesh line = [all: 1]
layout alone on line = {}
optimizer record(value) (p, g) { p = 0.0 * p + value }

model m(x: [d]) {
  param p: [d] = zeros()
  loss = sum(p * x)
  return loss
}

train m { minimize loss; optimizer = record(schedules.SCHEDULE) }
"""
"""A program whose parameter is the value of a schedule in the last step."""

Values = dict[tuple[str, int], Any]
"""Parameters, each iteration of a loop with parameters of its own: name and iteration -> array."""


def optimizers() -> dict[str, Any]:
    """Return calls of the library's optimizers, further entries of a `train` block included, with their equals in optax."""
    import optax

    warm = optax.linear_schedule(0.0, 0.9, 20)
    groups = {"a": optax.adam(0.01), "b": optax.sgd(0.05), "c": optax.set_to_zero()}
    return {
        "sgd(0.05)": optax.sgd(0.05),
        "momentum(0.02)": optax.sgd(0.02, momentum=0.9),
        "momentum(0.05, momentum = 0.5)": optax.sgd(0.05, momentum=0.5),
        "momentum(0.02, momentum = schedules.linear_warmup(step, 0.9, 20))": optax.inject_hyperparams(
            optax.sgd, hyperparam_dtype=np.float64
        )(0.02, momentum=warm),
        "nesterov(0.02)": optax.sgd(0.02, momentum=0.9, nesterov=True),
        "nesterov(0.05, momentum = 0.8)": optax.sgd(0.05, momentum=0.8, nesterov=True),
        "adam(0.01)": optax.adam(0.01),
        "adam(0.01, beta1 = 0.5, beta2 = 0.9, epsilon = 0.01)": optax.adam(0.01, b1=0.5, b2=0.9, eps=0.01),
        "adamw(0.01)": optax.adamw(0.01, weight_decay=0.01),
        "adamw(0.01, beta1 = 0.8, beta2 = 0.95, epsilon = 1e-6, weight_decay = 0.2)": optax.adamw(
            0.01, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.2
        ),
        "adafactor(0.02)": adafactor(0.02),
        "adafactor(0.05, decay = 0.5, clip = 0.7, epsilon1 = 1e-8)": adafactor(0.05, 0.5, 0.7, 1e-8),
        "adafactor(schedules.linear_warmup(step, peak = 0.05, warmup = 20))": adafactor(
            optax.linear_schedule(0.0, 0.05, 20)
        ),
        "sgd(schedules.exponential_decay(step, start = 0.1, factor = 0.5, every = 30))": optax.sgd(
            optax.exponential_decay(0.1, 30, 0.5)
        ),
        "adamw(schedules.cosine(step, peak = 0.02, warmup = 10, steps = 90, end = 0.001))": optax.adamw(
            optax.warmup_cosine_decay_schedule(0.0, 0.02, 10, 90, 0.001), weight_decay=0.01
        ),
        "adam(0.01); clip = 0.1": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01)),
        'adam(0.01); optimizer for "layers.*" = sgd(0.05); frozen "scale", "*.c"': optax.multi_transform(
            groups, lambda params: {key: group_of(key[0]) for key in params}
        ),
    }


def adafactor(learning_rate: Any, decay: float = 0.8, clip: float = 1.0, epsilon: float = 1e-30) -> Any:
    """Return `optax.adafactor(learning_rate, min_dim_size_to_factor=1, ...)`, which computes its decay in f32 alone, in f64."""
    import optax

    def kept(step: Any, exponent: Any) -> Any:
        return 1.0 - (step + 1.0) ** -exponent

    return optax.chain(
        optax.scale_by_factored_rms(
            decay_rate=decay, min_dim_size_to_factor=1, epsilon=epsilon, decay_rate_fn=kept
        ),
        optax.clip_by_block_rms(clip),
        optax.scale_by_learning_rate(learning_rate, flip_sign=False),
        optax.scale_by_param_block_rms(),
        optax.scale(-1),
    )


def group_of(name: str) -> str:
    """Return the group of a parameter in the last call of `optimizers`."""
    if name in ("scale", "layers.c"):
        return "c"
    return "b" if name.startswith("layers.") else "a"


def schedules() -> dict[str, Callable[[Any], Any]]:
    """Return calls of the library's schedules, with their equals in optax, which has none for `warmup_rsqrt`."""
    import optax

    return {
        "constant(0.3)": optax.constant_schedule(0.3),
        "linear_warmup(step, peak = 0.3, warmup = 7)": optax.linear_schedule(0.0, 0.3, 7),
        "warmup_rsqrt(step, peak = 0.3, warmup = 20)": lambda step: (
            0.3 * min((step + 1) / 20, (20 / (step + 1)) ** 0.5)
        ),
        "cosine(step, peak = 0.3, warmup = 7, steps = 60)": optax.warmup_cosine_decay_schedule(
            0.0, 0.3, 7, 60
        ),
        "cosine(step, peak = 0.3, warmup = 0, steps = 80, end = 0.1)": optax.cosine_decay_schedule(
            0.3, 80, alpha=1 / 3
        ),
        "step_decay(step, start = 0.3, factor = 0.5, every = 30)": optax.exponential_decay(
            0.3, 30, 0.5, staircase=True
        ),
        "exponential_decay(step, start = 0.3, factor = 0.9, every = 5)": optax.exponential_decay(0.3, 5, 0.9),
    }


def batch_of(step: int) -> dict[str, Any]:
    """Return the inputs of a step, and a function of them to learn."""
    x = np.random.default_rng(step).standard_normal((BATCH, IO))
    return {"x": x, "y": np.sin(x.sum(axis=1)) + 0.1 * x[:, 0]}


def trained(call: str, backend: str) -> Iterator[Values]:
    """Yield the parameters before the first step and after each step of the generated module."""
    module = mtfc.compile_text(NETWORK.replace("OPTIMIZER", call)).load(backend)
    params, state = module.init(1), module.init_state() if module.STATE else {}
    yield by_layer(module.unshard(params, module.PARAMETERS))
    for step in range(STEPS):
        inputs = module.shard(batch_of(step), module.INPUTS)
        _, params, state = module.train_step(params, state, inputs, step)
        yield by_layer(module.unshard(params, module.PARAMETERS))


def by_layer(params: dict[str, Any]) -> Values:
    """Split stacked parameters of a loop into one for each iteration."""
    found = {}
    for name, x in params.items():
        layers = np.array(x) if name.startswith("layers.") else [np.array(x)]
        found.update({(name, i): layer for i, layer in enumerate(layers)})
    return found


def loss(params: Values, x: Any, y: Any) -> Any:
    """Compute the loss of `NETWORK`."""
    import jax.numpy as jnp

    p = {name: params[name, 0] for name in ("w", "bias", "out", "scale")}
    h = jnp.sum(jnp.tanh(jnp.einsum("bi,nih->bnh", x, p["w"]) + p["bias"]), axis=1)
    for i in range(LAYERS):
        inner = jnp.tanh(h @ params["layers.u", i] + params["layers.c", i])
        h = h + inner @ params["layers.v", i]
    return jnp.mean(jnp.square(p["scale"] * (h @ p["out"]) - y))


def by_optax(optimizer: Any, start: Values) -> Iterator[Values]:
    """Yield the same parameters by optax, from the same initial values. JAX must compute in f64."""
    import jax
    import optax

    @jax.jit
    def updated(params: Values, state: Any, batch: dict[str, Any]) -> Any:
        gradients = jax.grad(loss)(params, batch["x"], batch["y"])
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state

    params = {key: jax.numpy.asarray(x) for key, x in start.items()}
    state = optimizer.init(params)
    yield params
    for step in range(STEPS):
        params, state = updated(params, state, batch_of(step))
        yield params


def largest_difference(call: str, optimizer: Any, backend: str) -> float:
    """Return the largest difference of all steps and parameters, relative to the largest element of the parameter."""
    import jax

    with setting_kept("jax_enable_x64"):  # a generated module in f64 changes it for the whole process
        ours = list(trained(call, backend))
        with jax.enable_x64(True):
            theirs = list(by_optax(optimizer, ours[0]))
    return max(relative(a[key], b[key]) for a, b in zip(ours, theirs, strict=True) for key in a)


def relative(x: Any, expected: Any) -> float:
    """Return the largest difference of elements, relative to the largest of the expected elements."""
    largest = float(np.max(np.abs(expected)))
    difference = float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(expected, np.float64))))
    return difference / largest if largest else difference


def schedule_difference(call: str, expected: Callable[[Any], Any], backend: str) -> float:
    """Return the largest difference of the values of all steps, relative to the largest value."""
    module = mtfc.compile_text(RECORDER.replace("SCHEDULE", call)).load(backend)
    params, inputs = module.init(), module.shard({"x": np.ones(2, np.float32)}, module.INPUTS)
    found = []
    for step in range(STEPS):
        _, params, _ = module.train_step(params, {}, inputs, step)
        found.append(float(module.unshard(params, module.PARAMETERS)["p"][0]))
    return relative(found, [float(expected(step)) for step in range(STEPS)])


def figures() -> Iterator[Figure]:
    for call, optimizer in optimizers().items():
        for backend in ("numpy", "jax"):
            found = largest_difference(call, optimizer, backend)
            yield Figure(f"{call}, {backend}", found, "relative", LIMIT)
    for call, schedule in schedules().items():
        for backend in ("numpy", "jax"):
            found = schedule_difference(call, schedule, backend)
            yield Figure(f"{call}, {backend}", found, "relative", LIMIT)
