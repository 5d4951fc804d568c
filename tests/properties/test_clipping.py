"""`clip`: gradients are clipped by their joint norm, as `optax.clip_by_global_norm` clips whole arrays, under random layouts."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

from tests.harness import Arrays, call, jax_module, lowered, numpy_module
from tests.properties.campaign import holds_for

DIMS = {"batch": 8, "d": 8, "hidden": 16, "classes": 4, "layers": 2}

SOURCE = """
dim batch = 8; dim d = 8; dim hidden = 16; dim classes = 4; dim layers = 2
mesh cube = [x: 2, y: 2, z: 2]
layout drawn on cube = {{ {rules} }}
model m(inputs: [batch, d], targets: [batch, classes]) {{
  param scale: [d] = ones()
  param out: [d, classes] = normal(stddev = 0.5)
  h = inputs * scale
  repeat layers {{
    param w: [d, hidden] = normal(stddev = 0.5)
    param v: [hidden, d] = normal(stddev = 0.5)
    h = h + einsum(tanh(einsum(h, w -> [batch, hidden])), v -> [batch, d])
  }}
  loss = mean(square(einsum(h * scale, out -> [batch, classes]) - targets))
  return loss
}}
train m {{ minimize loss; optimizer = sgd(learning_rate = 1.0); clip = {clip}; report grad_norm; {more} }}
"""

SHAPES = {"scale": (8,), "out": (8, 4), "layers.w": (2, 8, 16), "layers.v": (2, 16, 8)}


@st.composite
def layouts(draw: Any) -> str:
    """Draw the rules of a layout: dimensions over some axes of the mesh, and storage of parameters and of optimizer state."""
    axes = draw(st.permutations("xyz"))
    free, rules = list(axes), []
    for dim in draw(st.lists(st.sampled_from(("batch", "hidden", "classes")), unique=True, max_size=3)):
        taken = [free.pop() for _ in range(draw(st.integers(0, min(2, len(free)))))]
        rules += [f"{dim}: ({', '.join(taken)})"] if taken else []
    for section in draw(st.lists(st.sampled_from(("params", "optimizer")), unique=True)):
        stored = draw(st.lists(st.sampled_from(axes), unique=True, min_size=1))
        dim = draw(st.sampled_from(("*", "d")))
        used = set("".join(rules)) & {"x", "y", "z"} if dim == "d" else set()
        stored = [axis for axis in stored if axis not in used]
        rules += [f"{section}: {{ {dim}: ({', '.join(stored)}) }}"] if stored else []
    return ", ".join(rules)


def arrays(count: int) -> tuple[Arrays, Arrays]:
    """Draw parameters, and the inputs of `count` micro-batches."""
    random = np.random.default_rng(0)
    params = {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    inputs = {"inputs": (count, 8, 8), "targets": (count, 8, 4)}
    return params, {name: random.standard_normal(shape).astype(np.float32) for name, shape in inputs.items()}


def loss_of(params: Arrays, inputs: Any, targets: Any) -> Any:
    h = inputs * params["scale"]
    for w, v in zip(params["layers.w"], params["layers.v"], strict=True):
        h = h + jnp.tanh(h @ w) @ v
    return jnp.mean(jnp.square((h * params["scale"]) @ params["out"] - targets))


@cache
def expected(clip: float, count: int) -> tuple[Arrays, float]:
    """Return the parameters after the step, by JAX and optax on whole arrays, and the norm of the gradients."""
    params, inputs = arrays(count)
    batches = (inputs["inputs"], inputs["targets"])
    gradients = jax.grad(lambda p: jnp.mean(jax.vmap(lambda x, y: loss_of(p, x, y))(*batches)))(params)
    clipped, _ = optax.clip_by_global_norm(clip).update(gradients, optax.EmptyState())
    norm = float(optax.tree.norm(gradients))
    return {name: params[name] - np.asarray(g) for name, g in clipped.items()}, norm


def check(rules: str, clip: float, count: int, backend: str) -> None:
    more = f"accumulate = {count}" if count > 1 else ""
    program = lowered(SOURCE.format(rules=rules, clip=clip, more=more), "step", "drawn")
    module = jax_module(program) if backend == "jax" else numpy_module(program)
    params, inputs = arrays(count)
    batch = inputs if count > 1 else {name: x[0] for name, x in inputs.items()}
    found = call(module, program.function("step"), {**params, **batch})
    wanted, norm = expected(clip, count)
    np.testing.assert_allclose(found["grad_norm"], norm, rtol=1e-5)
    rounding = 1e-5 * max(1.0, min(norm, clip))
    for name, value in wanted.items():
        np.testing.assert_allclose(
            found[name], value, rtol=1e-5, atol=rounding, err_msg=f"{{{rules}}}: {name}"
        )


CASES = st.tuples(layouts(), st.sampled_from((0.01, 1.0, 1e6)), st.sampled_from((1, 2)))


@holds_for(CASES, 20)
def test_joint_norm_on_numpy(case: tuple[str, float, int]) -> None:
    check(*case, "numpy")


@holds_for(CASES, 4)
def test_joint_norm_on_jax(case: tuple[str, float, int]) -> None:
    check(*case, "jax")


PENDING = [
    "batch: (x, y, z)",
    "batch: x, hidden: (y, z)",
    "batch: (x, y), params: { *: (x, y, z) }",
    "batch: (x, y), hidden: z, params: { *: x }, optimizer: { *: (x, y) }",
    "hidden: x, classes: y, optimizer: { d: z }",
]
"""Gradients with pending sums, split gradients, and gradients that some processors hold twice."""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rules", PENDING)
def test_chosen_layouts(rules: str, count: int) -> None:
    check(rules, 0.5, count, "numpy")
