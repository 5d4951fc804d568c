"""Attention over a sequence that devices share: the generated ring beside two written by hand (`handwritten_ring.py`).

Under a causal mask, one of them balances the work of devices, as the generated ring does. All compute a loss and the gradients of
queries, keys and values on virtual CPU devices. Bytes are those that leave a device, and temporaries those of the compiled
program. Only short sequences are run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import attrs
import numpy as np

from benchmarks.figures import Figure, median_ratio
from mtfc.compiler.ir.core import Program

SOURCE = """
dim heads = {heads}; dim sharers = {sharers}; dim length = {length}; dim memory = {length}; dim d_k = {depth}
mesh line = [ring: {devices}]
layout split on line = {{ length: ring }}

model net(
  q: [heads, sharers, length, d_k], keys: [heads, length, d_k], values: [heads, length, d_k],
  given: [heads, sharers, length, d_k]
) {{
  k = rename(keys, length -> memory)
  v = rename(values, length -> memory)
  s = einsum(q, k -> [heads, sharers, length, memory])
  {mask}
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(e, v -> [heads, sharers, length, d_k]) / sum(e, over = memory)
  loss = sum(y * given)
  return loss
}}
"""

CAUSAL = "s = where(broadcast(range(memory) -> [length, memory]) <= range(length), s, -30000.0)"

RUNS = 3


@attrs.frozen
class RingCase:
    """Attention of `heads` keys and values, each shared by `sharers` queries, with `length` positions on `devices`."""

    is_causal: bool
    devices: int
    length: int
    heads: int = 1
    sharers: int = 4
    depth: int = 64
    is_run: bool = False

    @property
    def name(self) -> str:
        return f"{'causal' if self.is_causal else 'plain'}, {self.length >> 10} k positions, {self.devices} devices"

    def program(self, passes: str) -> Program:
        from mtfc.compiler.passes.pipelines import parse_pipeline, run
        from mtfc.driver.loading.choice import Choice
        from mtfc.driver.loading.selection import choose

        sizes = {"heads": self.heads, "sharers": self.sharers, "length": self.length, "depth": self.depth}
        text = SOURCE.format(**sizes, devices=self.devices, mask=CAUSAL if self.is_causal else "")
        selection = choose(text, "ring.mtf", Choice(layout="split"))
        (case,) = selection.cases
        placed = attrs.evolve(selection.program, mesh=case.mesh, layout=case.layout)
        return run(placed, parse_pipeline(passes))


PASSES = "fuse-attention,default{differentiate.of=gradients,spread-attention.form=ring}"

CASES = (
    *(RingCase(is_causal, 8, 8 << 10, is_run=True) for is_causal in (False, True)),
    *(
        RingCase(is_causal, devices, length << 10)
        for is_causal in (False, True)
        for devices, length in ((8, 32), (8, 128), (16, 32), (16, 128))
    ),
)


def figures() -> Iterator[Figure]:
    with ProcessPoolExecutor(1, get_context("spawn"), _reserve_devices) as process:
        for found in process.map(_compared, CASES):
            yield from found


def _reserve_devices() -> None:
    """Set the environment; call this before JAX starts in this process."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"


def _compared(case: RingCase) -> list[Figure]:
    return list(_figures(case))


def _figures(case: RingCase) -> Iterator[Figure]:
    import jax

    from benchmarks.handwritten_ring import KEYS, QUERIES, loss_and_gradients
    from mtfc.backends.hlo import wire_bytes
    from mtfc.backends.jax import runtime as jax_runtime

    program = case.program(PASSES)
    ours = jax_runtime.lowered(program, "gradients").compile()
    mesh = jax.make_mesh((case.devices,), ("ring",), devices=jax.devices()[: case.devices])
    keys = (case.heads, case.length, case.depth)
    queries = (case.heads, case.sharers, case.length, case.depth)

    def abstract(shape: tuple[int, ...], spec: Any) -> Any:
        make: Any = jax.ShapeDtypeStruct
        return make(shape, np.float32, sharding=jax.NamedSharding(mesh, spec))

    arguments = [
        abstract(*each) for each in ((queries, QUERIES), (keys, KEYS), (keys, KEYS), (queries, QUERIES))
    ]
    peers = {"the ring by hand": False} | ({"the balanced ring by hand": True} if case.is_causal else {})
    with jax.set_mesh(mesh):
        compiled = {
            name: loss_and_gradients(case.is_causal, is_balanced).lower(*arguments).compile()
            for name, is_balanced in peers.items()
        }
    for what, measure in (
        ("bytes that leave a device", lambda each: wire_bytes(each.as_text())),
        ("temporaries", lambda each: each.memory_analysis().temp_size_in_bytes),
    ):
        yield Figure(f"{case.name}: {what}", measure(ours), "B", min(map(measure, compiled.values())))
        for name, theirs in compiled.items():
            yield Figure(f"    over {name}", measure(ours) / measure(theirs), "x")
    if case.is_run:
        for name, theirs in compiled.items():
            yield _timed(case, program, name, theirs, arguments)


def _timed(case: RingCase, program: Program, name: str, theirs: Any, arguments: list[Any]) -> Figure:
    import jax

    from mtfc.backends.jax import backend as jax_backend
    from mtfc.backends.jax import runtime as jax_runtime

    random = np.random.default_rng(0)
    arrays = [random.standard_normal(each.shape, np.float32) for each in arguments]
    module = jax_runtime.load(jax_backend.generate(program))
    inputs = module.shard(dict(zip(("q", "keys", "values", "given"), arrays, strict=True)), module.INPUTS)
    placed = [jax.device_put(x, each.sharding) for x, each in zip(arrays, arguments, strict=True)]

    def waiting(function: Callable[..., Any], *args: Any) -> Callable[[], object]:
        wait: Any = jax.block_until_ready
        return lambda: wait(function(*args))

    a, b, ratio = median_ratio(waiting(module.gradients, {}, inputs), waiting(theirs, *placed), RUNS)
    return Figure(f"    time over that of {name}", ratio, f"({a:.3f} s, {b:.3f} s)", 1.0)
