"""Published training runs beside predictions of their plans: a check, to which nothing may be fitted.

Each run becomes a .mtf file: the model of its shape, and a layout with its mesh, pipeline and recomputation. `python -m
benchmarks published` writes the files to a temporary folder, and prints for each run the published and the predicted step time
and memory, then the mean errors, and whether the plans of one model are in the published order. `python -m benchmarks.published
FOLDER` writes the files there.

Sources, by the first letter of a run:

- T: AI-Hypercomputer/maxtext, MaxText/configs/v5e/README.md and v5p/README.md, with the scripts beside them. They state TFLOP/s
  of a device. MaxText counts 6 x parameters x tokens + 12 x heads x head size x layers x length^2 x batch, of which the step
  times follow.
- G1 to G6: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198, table 5 and
  figure 1; their values stand in calculon-ai/calculon, calculon/llm/validation.py.
- G17, G18: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md. G17 is eager PyTorch, G18 is compiled. The GPUs are
  H100 with 96 GB of HBM2e at 2.4 TB/s and 500 W (`hbm2e`). Their selective recomputation keeps every second product.
- G40: "The Llama 3 Herd of Models", arXiv:2407.21783, table 4: 430 TFLOP/s of a device.

Megatron stores 16-bit parameters besides their 32-bit copies, and dropout masks; these plans do not. Llama 3 405B has 126 layers
on 16 stages, with one layer less on the first and on the last stage; this plan has 128. Its number of chunks is not published,
and not how its activations are split: they are split here as in Megatron's selective runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import attrs

from benchmarks.figures import Figure
from mtfc.compiler.cost.hardware import Hardware, Rate
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.simulate import simulate
from mtfc.frontend.hardware.declarations import hardware_text
from mtfc.frontend.hardware_targets import find_hardware

GIB = 2**30
MEAN_ERROR, MOST_ERROR, MEMORY_ERROR = 0.1, 0.2, 0.1
"""The aims: the mean and the largest error of step times, and the mean error of memory."""


HBM2E = "h100_hbm2e"


def hbm2e() -> Hardware:
    """Return the node of the library's H100 with HBM2e and 500 W.

    The data sheets have 756 TFLOP/s in bf16 for 350 W (PCIe) and 989 for 700 W (SXM); between them the rates are taken to be
    linear. Kernels reach the same share of the memory's 2.4 TB/s as on the library's H100.
    """
    h100 = find_hardware("h100", {})
    share = (756 + (989 - 756) * (500 - 350) / (700 - 350)) / 989

    def slower(rates: Mapping[str, Rate]) -> dict[str, Rate]:
        return {
            key: Rate(tuple((size, share * each) for size, each in rate.points))
            for key, rate in rates.items()
        }

    device = attrs.evolve(
        h100.device,
        flops=slower(h100.device.flops),
        attention=slower(h100.device.attention),
        memory=96 * GIB,
        bandwidth=Rate.constant(h100.device.bandwidth.peak * 2.4 / 3.35),
    )
    return attrs.evolve(h100, name=HBM2E, device=device)


@attrs.frozen
class Shape:
    """The sizes of a decoder. is_gated: as in Llama; else as in GPT, with biases and learned positions."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    is_gated: bool = True


SHAPES = {
    "megatron-22b": Shape(48, 6144, 24576, 64, 64, 96, 51200, False),
    "mega-175b": Shape(96, 12288, 49152, 96, 96, 128, 51200, False),
    "mega-530b": Shape(105, 20480, 81920, 128, 128, 160, 51200, False),
    "maxtext-16b": Shape(32, 4096, 28672, 64, 64, 128, 32000),
    "maxtext-32b": Shape(32, 8192, 28672, 64, 64, 128, 32000),
    "maxtext-64b": Shape(64, 8192, 28672, 64, 64, 128, 32000),
    "maxtext-128b": Shape(64, 8192, 57344, 128, 128, 128, 32000),
    "maxtext-256b": Shape(64, 16384, 57344, 128, 128, 128, 32000),
    "llama3-8b": Shape(32, 4096, 14336, 32, 8, 128, 128256),
    "llama3-405b": Shape(128, 16384, 53248, 128, 8, 128, 128256),
}


@attrs.frozen
class Run:
    """A published run: `seconds` of a step, `gib` of memory on a device if published.

    mesh: the devices of each kind, the outermost first: data (FSDP), stages, model (tensor parallel). micro_batches and chunks:
    those of a pipeline. parts: True if Megatron's sequence parallelism, or activations split like it, save memory.
    """

    id: str
    machine: str
    model: str
    length: int
    batch: int
    mesh: Mapping[str, int]
    dtype: str
    recomputed: str
    seconds: float
    gib: float | None = None
    parts: bool = False
    micro_batches: int = 0
    chunks: int = 1

    @property
    def shape(self) -> Shape:
        return SHAPES[self.model]


def _maxtext(id: str, machine: str, model: str, batch: int, mesh: dict[str, int], seconds: float) -> Run:
    recomputed = "full" if machine == "tpu_v5e" else "minimal"
    return Run(id, machine, model, 2048, batch, mesh, "bf16", recomputed, seconds, parts="model" in mesh)


def _megatron(
    id: str, model: str, batch: int, recomputed: str, seconds: float, gib: float | None = None
) -> Run:
    stages = {"mega-175b": 8, "mega-530b": 35}.get(model, 0)
    mesh = {"stages": stages, "model": 8} if stages else {"model": 8}
    return Run(
        id,
        "a100",
        model,
        2048,
        batch,
        mesh,
        "f16",
        recomputed,
        seconds,
        gib,
        parts=recomputed == "selective",
        micro_batches=batch if stages else 0,
        chunks=3 if stages else 1,
    )


def _titan(id: str, seconds: float, gib: float) -> Run:
    return Run(id, HBM2E, "llama3-8b", 8192, 16, {"data": 8}, "bf16", "alternate", seconds, gib)


RUNS = (
    _maxtext("T1", "tpu_v5e", "maxtext-16b", 1536, {"data": 256}, 10.306),
    _maxtext("T2", "tpu_v5e", "maxtext-32b", 1024, {"data": 256}, 12.092),
    _maxtext("T3", "tpu_v5e", "maxtext-64b", 512, {"data": 256}, 13.472),
    _maxtext("T5", "tpu_v5p", "maxtext-32b", 448, {"data": 16, "model": 4}, 8.516),
    _maxtext("T6", "tpu_v5p", "maxtext-64b", 192, {"data": 16, "model": 4}, 7.383),
    _maxtext("T7", "tpu_v5p", "maxtext-128b", 128, {"data": 16, "model": 8}, 5.037),
    _maxtext("T8", "tpu_v5p", "maxtext-256b", 512, {"data": 64, "model": 8}, 10.131),
    _megatron("G1", "megatron-22b", 4, "full", 1.42),
    _megatron("G2", "megatron-22b", 4, "selective", 1.1, 45.56 + 9.5625),
    _megatron("G3", "mega-175b", 64, "full", 18.13),
    _megatron("G4", "mega-175b", 64, "selective", 13.75, 45.56 + 12.35),
    _megatron("G5", "mega-530b", 280, "full", 49.05),
    _megatron("G6", "mega-530b", 280, "selective", 37.83, 31.64 + 23.08),
    _titan("G17", 2.843, 82.4),
    _titan("G18", 2.457, 77.0),
    Run(
        "G40",
        "h100",
        "llama3-405b",
        8192,
        2048,
        {"data": 64, "stages": 16, "model": 8},
        "bf16",
        "none",
        12.504,
        parts=True,
        micro_batches=32,
        chunks=8,
    ),
)


# The plan of a run as a file


GPT_LAYER = """
fn projected[length, d_model, heads, d_k](x: [..., length, d_model]) -> [..., heads, length, d_k] {
  param w: [heads, d_model, d_k] = normal(stddev = 0.02)
  param bias: [heads, d_k] = zeros()
  return einsum(x, w -> [..., heads, length, d_k]) + bias
}

fn self_attention(x: [batch, length, d_model]) -> [batch, length, d_model] {
  q = projected[heads = heads, d_k = d_k](x) as q
  k = projected[heads = heads, d_k = d_k](x) as k
  v = projected[heads = heads, d_k = d_k](x) as v
  mask = attention.causal[length = length, memory = memory]()
  a = attention.dot_product[memory = memory](
    q,
    rename(k, length -> memory),
    rename(v, length -> memory),
    mask = mask
  )
  param w: [heads, d_k, d_model] = normal(stddev = 0.02)
  param bias: [d_model] = zeros()
  return einsum(a, w -> [batch, length, d_model]) + bias
}
"""

GPT = """
  x = nn.embedding[vocab = vocab, d_model = d_model](shift(tokens, length), stddev = 0.02)
  x = x + nn.learned_positions[length = length, d_model = d_model]()
  repeat layers {
    x = x + self_attention(nn.layer_norm(x))
    h = nn.gelu_tanh(nn.dense[d_out = d_ff](nn.layer_norm(x)))
    x = x + nn.dense[d_out = d_model](h)
  }
  logits = nn.dense_no_bias[d_out = vocab](nn.layer_norm(x))
"""

LLAMA = """
  x = nn.embedding[vocab = vocab, d_model = d_model](shift(tokens, length), stddev = 0.02)
  repeat layers {
    x = transformer.llama_layer[
      memory = memory,
      groups = heads,
      heads = sharers,
      d_k = d_k,
      d_ff = d_ff
    ](x)
  }
  logits = nn.dense_no_bias[d_out = vocab](nn.rms_norm(x))
"""


def plan_text(run: Run) -> str:
    """Return the .mtf file of a run's plan."""
    shape = run.shape
    sizes = {
        "batch": run.batch,
        "length": run.length,
        "vocab": shape.vocab,
        "d_model": shape.width,
        "heads": shape.kv_heads,
        "sharers": shape.heads // shape.kv_heads,
        "d_k": shape.head,
        "d_ff": shape.inner,
        "layers": shape.layers,
    }
    body = LLAMA if shape.is_gated else GPT
    lines = [f"import {name}" for name in ("attention", "losses", "nn", "transformer")]
    lines += [*(f"dim {name} = {size}" for name, size in sizes.items()), "dim memory = length"]
    lines.append(f"mesh grid = [{', '.join(f'{axis}: {size}' for axis, size in run.mesh.items())}]")
    lines.append(f"layout published on grid = {{ {', '.join(_rules(run))} }}")
    lines.append("" if shape.is_gated else GPT_LAYER)
    lines.append(f"model decoder(tokens: i32[batch, length]) {{{body}")
    lines.append("  loss = losses.softmax_cross_entropy(logits, tokens)\n  return loss\n}")
    lines.append("train decoder {\n  minimize loss\n  optimizer = adamw(learning_rate = 1e-4)")
    lines.append(f"  precision = {{ params: f32, compute: {run.dtype} }}\n  clip = 1.0\n}}\n")
    hardware = hardware_text(hbm2e(), "") if run.machine == HBM2E else ""
    return "\n".join([*lines, hardware])


def _rules(run: Run) -> Iterator[str]:
    batch = [axis for axis in ("data", "stages") if axis in run.mesh]
    if batch:
        yield f"batch: ({', '.join(batch)})"
    if "model" in run.mesh:
        yield from (f"{dim}: model" for dim in ("vocab", "heads", "d_ff"))
    if "data" in run.mesh:
        yield "params: { d_model: data }"
    if run.micro_batches:
        chunks = f", layers: {run.chunks}" if run.chunks > 1 else ""
        yield f"layers: stages, pipeline layers: {{ batch: {run.micro_batches}{chunks} }}"
    if run.parts:
        yield "forms: { regions: memory }"


# Predictions


@attrs.frozen
class Prediction:
    """The predicted seconds of a run's step, and the predicted bytes on a device."""

    run: Run
    seconds: float
    bytes: int

    @property
    def error(self) -> float:
        return self.seconds / self.run.seconds - 1


def predicted(run: Run, folder: Path) -> Prediction:
    """Return the prediction for a run, whose plan is written to a folder."""
    path = folder / f"{run.id}.mtf"
    path.write_text(plan_text(run), encoding="utf-8")
    word = None if run.recomputed == "none" else run.recomputed
    found = simulate(str(path), Choice(memory=word), run.machine, Sources())
    return Prediction(run, found.step.seconds, found.memory)


def figures() -> Iterator[Figure]:
    found = []
    with TemporaryDirectory() as folder:
        for run in RUNS:
            each = predicted(run, Path(folder))
            found.append(each)
            yield from _beside(each)
    errors = [abs(each.error) for each in found]
    yield Figure("mean error of the step time", fmean(errors), "", MEAN_ERROR)
    alone = [abs(each.error) for each in found if not each.run.micro_batches]
    yield Figure("mean error of the step time without pipelines", fmean(alone), "", MEAN_ERROR)
    yield Figure("largest error of the step time", max(errors), "", MOST_ERROR)
    memory = [abs(each.bytes / GIB / each.run.gib - 1) for each in found if each.run.gib is not None]
    yield Figure("mean error of memory", fmean(memory), "", MEMORY_ERROR)
    yield Figure("pairs of plans of one model in the wrong order", wrong_pairs(found), "", 0)


def _beside(each: Prediction) -> Iterator[Figure]:
    run = each.run
    where = " x ".join(f"{axis} {size}" for axis, size in run.mesh.items())
    yield Figure(f"{run.id}: {run.model} on {run.machine}, {where}, {run.recomputed}", run.seconds, "s")
    yield Figure("    predicted", each.seconds, f"s  {each.error:+.1%}")
    if run.gib is not None:
        yield Figure("    memory", run.gib, "GiB")
    beside = "" if run.gib is None else f"  {each.bytes / GIB / run.gib - 1:+.1%}"
    yield Figure("    predicted memory", each.bytes / GIB, f"GiB{beside}")


def wrong_pairs(found: list[Prediction]) -> int:
    """Return the number of pairs of runs of one model on one machine whose predicted order is not the published one.

    Plans that differ in what is no part of a plan, such as eager execution, are one plan.
    """
    pairs = (
        (a, b)
        for a, b in combinations(found, 2)
        if (a.run.model, a.run.machine) == (b.run.model, b.run.machine) and a.seconds != b.seconds
    )
    return sum((a.seconds < b.seconds) != (a.run.seconds < b.run.seconds) for a, b in pairs)


if __name__ == "__main__":
    for each in RUNS:
        (Path(sys.argv[1]) / f"{each.id}.mtf").write_text(plan_text(each), encoding="utf-8")
