# mypy: allow-untyped-calls
"""A pipeline of 4 stages on 8 virtual devices, beside the bound of its bubble and beside a pipeline by hand.

The bound is (micro-batches + stages - 1) / micro-batches times the time without a bubble: that of a step in which each device
computes the layers of one stage for the whole batch, without a pipeline. The bound of an interleaved pipeline, with 2 chunks on
each stage, has twice the micro-batches. The pipeline by hand is `jax.shard_map`: a scan over ticks, a `ppermute` in each, and
`jax.grad` of all. All hold the same parameters, and take the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.figures import Figure, median_seconds

STAGES, DATA, MICRO, LAYERS, CHUNKS = 4, 2, 8, 8, 2
BATCH, WIDTH, HIDDEN = 4096, 256, 1024
RUNS = 5

SOURCE = f"""
dim layers = {LAYERS}
dim batch = {BATCH}
dim width = {WIDTH}
dim hidden = {HIDDEN}
mesh grid = [stages: {STAGES}, data: {DATA}]
layout pipeline on grid = {{ layers: stages, batch: (data, stages), pipeline layers: {{ batch: {MICRO} }} }}
layout alone on grid = {{ batch: data }}
model network(x: [batch, width], y: [batch, width]) {{
  h = x
  repeat layers {{
    param w: [width, hidden] = normal(stddev = 0.03)
    param v: [hidden, width] = normal(stddev = 0.01)
    h = h + einsum(relu(einsum(h, w -> [batch, hidden])), v -> [batch, width])
  }}
  loss = mean(square(h - y))
  return loss
}}
train network {{
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}}
"""


INTERLEAVED = SOURCE.replace(f"{{ batch: {MICRO} }}", f"{{ batch: {MICRO}, layers: {CHUNKS} }}")


def figures() -> Iterator[Figure]:
    import numpy as np

    numbers = np.random.default_rng(0)
    batch = {name: numbers.standard_normal((BATCH, WIDTH), np.float32) for name in "xy"}
    ours, alone = _stepping(batch, "pipeline"), _stepping(batch, "alone", layers=LAYERS // STAGES)
    hand, chunked = _by_hand(batch), _stepping(batch, "pipeline", INTERLEAVED)
    rounds = [[median_seconds(each, 1) for each in (ours, alone, hand, chunked)] for _ in range(RUNS)]
    pipeline, stage, other, interleaved = (min(times) for times in zip(*rounds, strict=True))
    bound, less = (stage * (number + STAGES - 1) / number for number in (MICRO, MICRO * CHUNKS))
    yield Figure(f"a step in {MICRO} micro-batches through {STAGES} stages", 1000 * pipeline, "ms")
    yield Figure("    over the bound of the bubble", pipeline / bound, "x", 1.1)
    yield Figure("    over a pipeline by hand", pipeline / other, "x", 1.1)
    yield Figure("    the pipeline by hand over the bound", other / bound, "x")
    yield Figure(f"a step with {CHUNKS} chunks on each stage", 1000 * interleaved, "ms")
    yield Figure("    over the bound of its bubble", interleaved / less, "x", 1.1)
    yield Figure("    over the pipeline", interleaved / pipeline, "x", 1.0)


def _stepping(
    batch: dict[str, Any], layout: str, source: str = SOURCE, layers: int = LAYERS
) -> Callable[[], object]:
    import jax

    import mtfc
    from mtfc.backends.jax.jax_program import JaxProgram

    program = JaxProgram.of(mtfc.compile_text(source, layout=layout, dims={"layers": layers}).jax())
    state, placed = program.init(0), program.place(batch)

    def step() -> None:
        nonlocal state
        state, metrics = program.train_step(state, placed)
        jax.block_until_ready((state.params, metrics))

    return step


def _by_hand(batch: dict[str, Any]) -> Callable[[], object]:
    """Return a step of a pipeline as one writes it in JAX."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    split: Any = jax.sharding.PartitionSpec
    mesh = jax.make_mesh((STAGES, DATA), ("stages", "data"), (jax.sharding.AxisType.Auto,) * 2)

    def layer(h: Any, params: tuple[Any, Any]) -> tuple[Any, None]:
        w, v = params
        return h + jax.nn.relu(h @ w) @ v, None

    def loss(params: tuple[Any, Any], x: Any, y: Any) -> Any:
        stage = lax.axis_index("stages")
        micro = x.reshape(MICRO, -1, WIDTH)
        fed = jnp.pad(micro, ((0, STAGES - 1), (0, 0), (0, 0)))

        def tick(handed: Any, entering: Any) -> tuple[Any, Any]:
            handed = lax.ppermute(handed, "stages", [(i, i + 1) for i in range(STAGES - 1)])
            out, _ = lax.scan(layer, jnp.where(stage == 0, entering, handed), params)
            return out, out

        start = lax.pcast(jnp.zeros_like(micro[0]), "stages", to="varying")
        _, found = lax.scan(tick, start, fed)
        error = jnp.sum(jnp.square(found[STAGES - 1 :].reshape(-1, WIDTH) - y)) / (BATCH * WIDTH)
        return lax.psum(jnp.where(stage == STAGES - 1, error, 0), ("stages", "data"))

    def updated(params: tuple[Any, Any], x: Any, y: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    specs = ((split("stages"),) * 2, split("data"), split("data"))
    step = jax.jit(
        jax.shard_map(updated, mesh=mesh, in_specs=specs, out_specs=(split(), specs[0])), donate_argnums=0
    )
    key = jax.random.key(0)
    shapes = ((LAYERS, WIDTH, HIDDEN), (LAYERS, HIDDEN, WIDTH))
    place = jax.NamedSharding(mesh, split("stages"))
    params = tuple(jax.device_put(0.01 * jax.random.normal(key, shape), place) for shape in shapes)
    x, y = (jax.device_put(batch[name], jax.NamedSharding(mesh, split("data"))) for name in "xy")

    def run() -> None:
        nonlocal params
        value, params = step(params, x, y)
        jax.block_until_ready((value, params))

    return run
