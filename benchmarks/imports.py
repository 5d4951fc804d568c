# mypy: allow-untyped-calls
"""JAX programs at the size of real models: the time to import them, and what a search finds in a minute.

Shapes stand for all arrays, so nothing is computed. Importing contains JAX's own tracing; the figure divides the rest by the
processor time of `jax.make_jaxpr`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter, process_time
from typing import Any

import attrs

import mtfc
from benchmarks.figures import Figure
from benchmarks.keras_models import Model, resnet50

BUDGET = 60.0
"""Seconds of a search."""


@attrs.frozen
class Decoder:
    """The sizes of a decoder of Llama's form."""

    embed: int
    hidden: int
    layers: int
    heads: int
    groups: int
    length: int
    batch: int
    vocab: int = 128_256
    head_dim: int = 128
    scanned: bool = False


LLAMA_8B = Decoder(embed=4096, hidden=14336, layers=32, heads=32, groups=8, length=8192, batch=64)
LLAMA_70B = Decoder(embed=8192, hidden=28672, layers=80, heads=64, groups=8, length=8192, batch=64)


def figures() -> Iterator[Figure]:
    models: dict[str, tuple[Callable[[], Model], int, float, float | None]] = {
        "ResNet50 of Keras, gradients": (resnet50, 16, 5.0, None),
        "decoder of 8 B as a scan, AdamW": (
            lambda: step(attrs.evolve(LLAMA_8B, scanned=True)),
            64,
            2.0,
            None,
        ),
        "decoder of 8 B, AdamW": (lambda: step(LLAMA_8B), 64, 2.0, None),
        "decoder of 70 B, AdamW": (lambda: step(LLAMA_70B), 0, 0.0, 5.0),
    }
    for name, (model, devices, gap, seconds) in models.items():
        function, args = model()
        traced, imported, program = _imported(function, args)
        yield Figure(f"{name}: imported, in processor time", imported, "s", seconds)
        yield Figure("    without JAX's tracing, over JAX's tracing", (imported - traced) / traced, "x", 3.0)
        if devices:
            yield from _search(program, devices, gap)


def _imported(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[float, float, Any]:
    """Return the processor seconds of `jax.make_jaxpr` and of `mtfc.from_jax`, the least of three, and the program."""
    import jax

    times: list[tuple[float, float]] = []
    for _ in range(3):
        jax.clear_caches()
        begin = process_time()
        jax.make_jaxpr(function)(*args)
        middle = process_time()
        jax.clear_caches()
        again = process_time()
        program = mtfc.from_jax(function, *args)
        times.append((middle - begin, process_time() - again))
    return min(t for t, _ in times), min(t for _, t in times), program


def _search(program: Any, devices: int, gap: float) -> Iterator[Figure]:
    begin, work = perf_counter(), process_time()
    plan = program.search(devices, "h100", budget=BUDGET, objective="serial", storage=False)
    seconds, work = perf_counter() - begin, process_time() - work
    yield Figure(
        f"    search on {devices} H100, with {work:.0f} s of processor time", seconds, "s", BUDGET + 5
    )
    found = plan.found
    assert found is not None
    found = found.without_forms or found
    yield Figure("    above the lower bound", 100 * (found.objective / found.lower_bound - 1), "%", gap)


def step(sizes: Decoder) -> Model:
    """Return a training step of a decoder in plain JAX, whose layers compute again what the gradient needs, and its arguments."""
    import jax
    import jax.numpy as jnp
    import optax

    s = sizes

    def norm(x: Any, scale: Any) -> Any:
        root = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype("float32")), -1, keepdims=True) + 1e-6)
        return x * root.astype(x.dtype) * scale

    def rotated(x: Any) -> Any:
        angles = jnp.arange(x.shape[1])[:, None] / 500_000.0 ** (jnp.arange(s.head_dim // 2) * 2 / s.head_dim)
        sin, cos = (f(angles)[:, None].astype(x.dtype) for f in (jnp.sin, jnp.cos))
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    @jax.checkpoint
    def layer(x: Any, p: Any) -> Any:
        h = norm(x, p["norm"])
        q = rotated((h @ p["q"]).reshape(*x.shape[:2], s.heads, s.head_dim))
        k = rotated((h @ p["k"]).reshape(*x.shape[:2], s.groups, s.head_dim))
        v = (h @ p["v"]).reshape(*x.shape[:2], s.groups, s.head_dim)
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(*x.shape[:2], -1) @ p["out"]
        h = norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def loss(params: Any, ids: Any) -> Any:
        params = jax.tree.map(lambda x: x.astype("bfloat16"), params)
        x = params["embedding"][ids]
        if s.scanned:
            x, _ = jax.lax.scan(lambda x, p: (layer(x, p), None), x, params["layers"])
        else:
            for p in params["layers"]:
                x = layer(x, p)
        logits = (norm(x, params["norm"]) @ params["head"]).astype("float32")
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:]).mean()

    optimizer = optax.adamw(3e-4)

    def train(params: Any, state: Any, ids: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, ids)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "float32")

    heads, groups = s.heads * s.head_dim, s.groups * s.head_dim
    shapes = {
        "norm": (s.embed,),
        "q": (s.embed, heads),
        "k": (s.embed, groups),
        "v": (s.embed, groups),
        "out": (heads, s.embed),
        "norm2": (s.embed,),
        "gate": (s.embed, s.hidden),
        "up": (s.embed, s.hidden),
        "down": (s.hidden, s.embed),
    }
    if s.scanned:
        layers: Any = {name: array(s.layers, *shape) for name, shape in shapes.items()}
    else:
        layers = [{name: array(*shape) for name, shape in shapes.items()} for _ in range(s.layers)]
    params = {
        "embedding": array(s.vocab, s.embed),
        "layers": layers,
        "norm": array(s.embed),
        "head": array(s.embed, s.vocab),
    }
    state = jax.eval_shape(optimizer.init, params)
    return train, (params, state, jax.ShapeDtypeStruct((s.batch, s.length), "int32"))
