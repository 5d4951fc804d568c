"""Tensor parallelism with sequence-parallel regions: generated programs beside one written by hand (`handwritten_regions.py`).

All compute a loss and the gradients of all parameters on 8 virtual CPU devices. Bytes are those that leave a device, and
temporaries those of the compiled program.
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
import losses
import nn
import transformer
dim batch = 16; dim length = {length}; dim memory = length; dim vocab = 1024; dim d_model = 256
dim heads = 8; dim d_k = 32; dim d_ff = 1024; dim layers = 4
mesh grid = [rows: 2, cols: 4]
layout hybrid on grid = {{ batch: rows, vocab: cols, d_ff: cols, heads: cols }}
model lm(tokens: i32[batch, length]) {{
  x = nn.embedding[vocab = vocab, d_model = d_model](tokens)
  repeat layers {checkpoint} {{
    x = transformer.decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = d_ff](x)
  }}
  logits = nn.dense_no_bias[d_out = vocab](nn.layer_norm(x))
  loss = losses.softmax_cross_entropy(logits, tokens)
  return loss
}}
"""

RUNS = 5
PEERS = {"never": "by hand", "time": "by hand on parts", "memory": "by hand on parts"}
"""Forms of the pass, and what stands beside them."""


@attrs.frozen
class RegionCase:
    computes_again: bool
    length: int = 256

    @property
    def name(self) -> str:
        return "with checkpoint" if self.computes_again else "without checkpoint"

    def program(self, form: str) -> Program:
        from mtfc.compiler.passes.pipelines import parse_pipeline, run
        from mtfc.driver.loading.choice import Choice
        from mtfc.driver.loading.selection import choose

        text = SOURCE.format(length=self.length, checkpoint="checkpoint" if self.computes_again else "")
        selection = choose(text, "lm.mtf", Choice(layout="hybrid"))
        (case,) = selection.cases
        placed = attrs.evolve(selection.program, mesh=case.mesh, layout=case.layout)
        passes = f"default{{differentiate.of=gradients,split-regions.form={form}}}"
        return run(placed, parse_pipeline(passes))


CASES = (RegionCase(False), RegionCase(True))


def figures() -> Iterator[Figure]:
    with ProcessPoolExecutor(1, get_context("spawn"), _reserve_devices) as process:
        for found in process.map(_compared, CASES):
            yield from found


def _reserve_devices() -> None:
    """Set the environment; call this before JAX starts in this process."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"


def _compared(case: RegionCase) -> list[Figure]:
    return list(_figures(case))


def _figures(case: RegionCase) -> Iterator[Figure]:
    import jax

    from benchmarks.handwritten_regions import loss_and_gradients
    from mtfc.backends.hlo import wire_bytes
    from mtfc.backends.jax import runtime as jax_runtime

    programs = {form: case.program(form) for form in PEERS}
    mesh = jax.make_mesh((2, 4), ("rows", "cols"))
    values = _arguments(programs["never"], mesh)
    compiled = {form: jax_runtime.lowered(each, "gradients").compile() for form, each in programs.items()}
    for name, on_parts in (("by hand", False), ("by hand on parts", True)):
        compiled[name] = loss_and_gradients(mesh, on_parts, case.computes_again).lower(*values).compile()
    for what, measure in (
        ("bytes that leave a device", lambda each: wire_bytes(each.as_text())),
        ("temporaries", lambda each: each.memory_analysis().temp_size_in_bytes),
    ):
        for form, name in PEERS.items():
            ours, theirs = measure(compiled[form]), measure(compiled[name])
            yield Figure(f"{case.name}, {form}: {what}", ours, "B", None if form == "memory" else theirs)
            yield Figure(f"    over {name}", ours / theirs, "x")
    for form, name in PEERS.items():
        a, b, ratio = median_ratio(
            _generated(programs[form], values), _waiting(compiled[name], *values), RUNS
        )
        yield Figure(f"{case.name}, {form}: time over {name}", ratio, f"({a:.3f} s, {b:.3f} s)", 1.0)


def _arguments(program: Program, mesh: Any) -> tuple[dict[str, dict[str, Any]], Any]:
    """Return random parameters, and tokens, as the function by hand takes them."""
    import jax

    from benchmarks.handwritten_regions import BATCH, ENDS, LAYER

    random = np.random.default_rng(0)

    def placed(name: str, spec: Any) -> Any:
        (argument,) = (a for a in program.function("gradients").arguments if a.value.name == name)
        shape = [dim.size for dim in argument.value.type.dims]
        is_token = argument.value.type.dtype == "i32"
        array = random.integers(0, 1024, shape, np.int32) if is_token else _normal(random, shape)
        return jax.device_put(array, jax.NamedSharding(mesh, spec))

    layers = {name: placed(f"layers.decoder_layer.{name}", spec) for name, spec in LAYER.items()}
    ends = {name: placed(name, spec) for name, spec in ENDS.items()}
    return {"layers": layers, "ends": ends}, placed("tokens", BATCH)


def _normal(random: np.random.Generator, shape: list[int]) -> Any:
    return 0.05 * random.standard_normal(shape, np.float32)


def _waiting(function: Callable[..., Any], *args: Any) -> Callable[[], object]:
    import jax

    wait: Any = jax.block_until_ready
    return lambda: wait(function(*args))


def _generated(program: Program, values: tuple[dict[str, dict[str, Any]], Any]) -> Callable[[], object]:
    """Return the generated function with the same arguments; its loss is compared with that by hand once."""
    from mtfc.backends.jax import backend as jax_backend
    from mtfc.backends.jax import runtime as jax_runtime

    params, tokens = values
    module = jax_runtime.load(jax_backend.generate(program))
    arrays = {f"layers.decoder_layer.{name}": np.asarray(x) for name, x in params["layers"].items()}
    arrays |= {name: np.asarray(x) for name, x in params["ends"].items()}
    inputs = module.shard({"tokens": np.asarray(tokens)}, module.INPUTS)
    return _waiting(module.gradients, module.shard(arrays, module.PARAMETERS), inputs)
