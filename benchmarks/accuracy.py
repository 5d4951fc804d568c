"""What is predicted beside what is measured.

- Training steps on eight virtual CPU devices, which `mtfc calibrate` measures first, beside `mtfc simulate`: the error of
  each, and whether of any two whose measured times are more than 20 per cent apart the right one is predicted to be faster.
  Of several rounds, each with a calibration of its own, the least times count, measured and predicted ones.
- The cycles of computation that the TPU compiler expects for whole training steps, beside the computation that `simulate`
  predicts, but for the gradients of pools, of which that compiler says nothing; and what the step that it made sends and
  holds, beside what `cost` says. This needs libtpu, and no TPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import attrs

from benchmarks.figures import Figure, median_seconds
from mtfc.backends import calibration, hlo, jax_backend, jax_runtime, tpu
from mtfc.backends.allocator import keep_memory
from mtfc.backends.devices import Unavailable
from mtfc.cli.inputs import draw_batch
from mtfc.cli.selection import Choice, choose
from mtfc.compiler.analysis.cost import charges, total
from mtfc.compiler.analysis.kernels import Memory
from mtfc.compiler.analysis.memory import memory_on
from mtfc.compiler.analysis.roofline import work
from mtfc.compiler.analysis.sizes import Numbers, whole
from mtfc.compiler.analysis.step_time import StepTime, step_time
from mtfc.compiler.hardware import Device, Hardware
from mtfc.compiler.ir.core import Equation, Function, Program
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.types import Mesh
from mtfc.frontend.targets import named

EXAMPLES = Path(__file__).parent.parent / "examples"
DEVICES = 8
RUNS = 5
ROUNDS = 5
"""The machine is calibrated, and then all steps are measured, so many times: its speed changes from minute to minute."""

APART = 1.2
"""Measured times whose ratio is larger must be predicted in the same order."""


@attrs.frozen
class Case:
    """A layout of an example, on a mesh of other sizes and with other dimensions where that is said."""

    model: str
    layout: str
    mesh: str | None = None
    dims: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        sizes = ", ".join(f"{dim} {size}" for dim, size in self.dims[:2])
        return f"{self.model} {self.layout}" + (f" ({sizes})" if sizes else "")

    def lowered(self) -> Program:
        path = EXAMPLES / f"{self.model}.mtf"
        choice = Choice(model=None, layout=self.layout, mesh=self.mesh, dims=dict(self.dims))
        selection = choose(path.read_text(), str(path), choice)
        return selection.cases[0].lower(selection.program)


def _cases(model: str, layouts: Mapping[str, str | None], **dims: int) -> list[Case]:
    return [Case(model, layout, mesh, tuple(dims.items())) for layout, mesh in layouts.items()]


TWO_LAYER = dict.fromkeys(("replicated", "data_parallel", "model_parallel", "hybrid", "tiled_3d"))
DIGITS = dict.fromkeys(("replicated", "batch_split", "hidden_split", "tiled", "image_split"))
TRANSFORMER = {"data_parallel": "all:8", "model_parallel": "all:8", "hybrid": "rows:2;cols:4"}
SMALL = {"d_model": 256, "length": 128, "vocab": 4096, "d_k": 32, "layers": 2}

MEASURED = (
    *_cases("two_layer", TWO_LAYER, batch=1024, io=256),
    *_cases("two_layer", TWO_LAYER, batch=128, io=1024),
    *_cases("digits", DIGITS, batch=960, hidden=2048, rows=16, cols=16),
    *_cases("soybean_mlp", {"data": "gpus:8", "hybrid": "groups:2;gpus:4"}, batch=800, units=1024),
    *_cases("transformer_lm", TRANSFORMER, batch=16, heads=8, d_ff=1024, **SMALL),
    *_cases("moe_lm", {"expert_parallel": None, "hybrid": "rows:4;cols:2"}, batch=16, groups=8, d_ff=512, **SMALL),
    *_cases("lenet", {"data": "gpus:8", "hybrid": "rows:4;cols:2"}, batch=1024),
    *_cases("rnnlm", {"data": "nodes:2;gpus:4", "hybrid": "nodes:2;gpus:4"}, batch=64, units=512, words=4000, length=10),
)  # fmt: skip

COMPILED = (
    ("v2:2x2", Case("two_layer", "hybrid", None, (("batch", 8192), ("io", 2048)))),
    ("v3:2x2", Case("two_layer", "tiled_3d", None, (("batch", 8192), ("io", 2048)))),
    ("v5e:2x4", Case("two_layer", "data_parallel", None, (("batch", 8192), ("io", 2048)))),
    (
        "v2:2x2",
        Case("digits", "tiled", None, (("batch", 8192), ("hidden", 8192), ("rows", 64), ("cols", 64))),
    ),
    ("v2:16x16", Case("transformer_lm", "hybrid")),
    ("v3:8x16", Case("transformer_lm", "model_parallel")),
    ("v3:2x2", Case("vgg16", "data")),
    ("v3:2x2", Case("alexnet", "data")),
)
"""Where the TPU compiler compiles them for."""

LLAMA = (("batch", 16), ("length", 2048), ("layers", 4), ("vocab", 32768))
LANGUAGE = (("batch", 128), ("length", 512), ("d_model", 1024), ("d_ff", 4096), ("heads", 16), ("d_k", 64))

LOOKED_AT = (
    ("v2:16x16", Case("transformer_seq2seq", "hybrid")),
    ("v5e:2x4", Case("transformer_lm", "data_parallel", "all:8", LANGUAGE)),
    ("v5p:2x2x2", Case("llama", "tensor_parallel", "data:4;model:2", LLAMA)),
    ("v3:2x2", Case("moe_lm", "expert_parallel")),
    ("v3:2x2", Case("rnnlm", "data", "nodes:2;gpus:4", (("batch", 512),))),
    ("v2:2x2", Case("lenet", "data", "gpus:8", (("batch", 8192),))),
    ("v2:2x2", Case("soybean_cnn", "data")),
    ("v3:2x2", Case("resnet101", "data", "nodes:2;gpus:4", (("batch", 256),))),
)
"""Those whose kernels were looked at when the model of TPUs had been made with those above, to see what it lacked."""

LONG = (("batch", 64), ("length", 1024), ("d_model", 2048), ("d_ff", 8192), ("heads", 16), ("d_k", 128))
TRANSLATION = (
    ("batch", 64),
    ("positions", 512),
    ("d_model", 1024),
    ("d_ff", 4096),
    ("heads", 16),
    ("d_k", 64),
)

THEN_LOOKED_AT = (
    ("v2:2x2", Case("nmt", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v3:2x2", Case("rnntc", "hybrid", "nodes:2;gpus:4", (("batch", 512),))),
    ("v3:2x2", Case("unet", "data", "rows:2;cols:4")),
    ("v5e:2x4", Case("soybean_mlp_8k", "tiled", "groups:2;gpus:4")),
    ("v5p:2x2x2", Case("transformer_lm", "hybrid", "rows:2;cols:4", LONG)),
    ("v5e:2x4", Case("transformer_seq2seq", "data_parallel", "all:8", TRANSLATION)),
    ("v5e:2x4", Case("moe_lm", "hybrid", "rows:4;cols:2")),
    ("v5e:2x4", Case("inception_v3", "data", "nodes:2;gpus:4", (("batch", 128),))),
)
"""Those that were compared before anybody looked at their kernels, and then looked at, too."""

SHORT = (("batch", 16), ("length", 1024), ("layers", 4), ("vocab", 32768))
NARROW = (("batch", 64), ("length", 512), ("d_model", 1024), ("d_ff", 4096), ("heads", 16), ("d_k", 64))
SMALL_TRANSLATION = (
    ("batch", 32),
    ("positions", 128),
    ("d_model", 512),
    ("d_ff", 2048),
    ("heads", 16),
    ("d_k", 32),
)

AT_LAST_LOOKED_AT = (
    ("v6e:2x4", Case("llama", "tensor_parallel", "data:4;model:2", SHORT)),
    ("v4:2x2x2", Case("transformer_lm", "data_parallel", "all:8", NARROW)),
    ("v2:2x2", Case("rnntc", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v5p:2x2x2", Case("moe_lm", "expert_parallel")),
    ("v6e:2x4", Case("soybean_mlp_8k", "hybrid", "groups:2;gpus:4")),
    ("v5e:2x4", Case("rnnlm", "hybrid", "nodes:2;gpus:4", (("batch", 256),))),
    ("v4:2x2x2", Case("vgg16", "data")),
    ("v2:2x2", Case("transformer_seq2seq", "model_parallel", "all:8", SMALL_TRANSLATION)),
)
"""Those that were compared before, too; then rnnlm's kernels were looked at."""

SHORTER = (("batch", 8), ("length", 1024), ("layers", 4), ("vocab", 32768))

HELD_OUT = (
    ("v5p:2x2x2", Case("rnnlm", "flexflow", "nodes:2;gpus:4", (("batch", 256),))),
    ("v3:2x2", Case("rnnlm", "model", "gpus:8", (("batch", 128),))),
    ("v6e:2x4", Case("nmt", "hybrid", "nodes:2;gpus:4", (("batch", 128),))),
    ("v5e:2x4", Case("llama", "fsdp", "data:4;model:2", SHORTER)),
    ("v4:2x2x2", Case("soybean_cnn", "hybrid")),
    ("v5p:2x2x2", Case("alexnet", "hybrid", "groups:4;gpus:2")),
    ("v3:2x2", Case("transformer_lm", "hybrid", "rows:2;cols:4", NARROW)),
    ("v5e:2x4", Case("vgg16", "mixed")),
)
"""Those whose kernels nobody looked at before they were compared: they tell how far the model carries."""

SMALLER = (
    ("v5e:2x4", Case("lenet", "mixed", "gpus:4", (("batch", 4096),))),
    ("v4:2x2x2", Case("lenet", "hybrid", "rows:2;cols:4", (("batch", 2048),))),
    ("v5e:2x4", Case("soybean_cnn", "data", "gpus:8", (("height", 24), ("width", 24), ("channels", 512)))),
    ("v3:2x2", Case("soybean_cnn", "tiled", "groups:2;gpus:4")),
    ("v5e:2x4", Case("alexnet", "data", "gpus:8", (("batch", 256),))),
    ("v4:2x2x2", Case("digits", "image_split", None, (("batch", 4096), ("hidden", 4096)))),
    ("v5p:2x2x2", Case("soybean_mlp", "hybrid", "groups:2;gpus:4", (("batch", 4096),))),
    ("v6e:2x4", Case("rnntc", "data", "nodes:2;gpus:4", (("batch", 256),))),
)
"""The same of convolutions and small networks, chosen before the model knew more of convolutions, compared afterwards. Then
kernels of digits and of soybean_mlp were looked at, and soybean_cnn's of those above."""

LATER = (
    ("v4:2x2x2", Case("two_layer", "model_parallel", None, (("batch", 4096), ("io", 1024)))),
    ("v6e:2x4", Case("digits", "hidden_split", None, (("batch", 8192), ("hidden", 4096)))),
    ("v5p:2x2x2", Case("digits", "batch_split", None, (("batch", 8192), ("hidden", 8192)))),
    ("v3:2x2", Case("soybean_mlp", "data", "gpus:8", (("batch", 4096),))),
    ("v5e:2x4", Case("nmt", "data", "nodes:2;gpus:4", (("batch", 128),))),
    ("v4:2x2x2", Case("rnnlm", "hybrid", "nodes:2;gpus:4", (("batch", 256),))),
    ("v6e:2x4", Case("transformer_lm", "data_parallel", "all:8", NARROW)),
    ("v5p:2x2x2", Case("transformer_seq2seq", "model_parallel", "all:8", SMALL_TRANSLATION)),
    ("v3:2x2", Case("lenet", "hybrid", "rows:2;cols:4", (("batch", 4096),))),
    ("v4:2x2x2", Case("llama", "fsdp", "data:4;model:2", SHORTER)),
)
"""Chosen when the model knew what products wait for, before any of these was compiled, and compared once. Then
products in loops that fit into the processor's own memory were said not to wait, for what single ones take."""

SMALL_ON_V6E = (
    ("v6e:2x4", Case("two_layer", "tiled_3d", None, (("batch", 8192), ("io", 2048)))),
    ("v6e:2x4", Case("soybean_mlp", "hybrid", "groups:2;gpus:4", (("batch", 4096),))),
    ("v6e:2x4", Case("digits", "tiled", None, (("batch", 4096), ("hidden", 2048)))),
    ("v6e:2x4", Case("rnnlm", "data", "nodes:2;gpus:4", (("batch", 256),))),
)
"""Chosen after those, and compared with two models: what they showed of a bandwidth by size on v6e is why there is none."""

AS_DECLARED = tuple(
    (topology, Case(model, layout))
    for topology in ("v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4")
    for model, layouts in (("two_layer", TWO_LAYER), ("digits", DIGITS))
    for layout in layouts
)
"""The two smallest examples. What is known of programs that lie in the processor's own memory is from these and `LATER`."""

THAT_FIT = (
    ("v4:2x2x2", Case("two_layer", "hybrid", None, (("batch", 512), ("io", 256)))),
    ("v5p:2x2x2", Case("two_layer", "data_parallel", None, (("batch", 1024), ("io", 512)))),
    ("v6e:2x4", Case("two_layer", "replicated", None, (("batch", 256), ("io", 512)))),
    ("v5e:2x4", Case("two_layer", "tiled_3d", None, (("batch", 2048), ("io", 256)))),
    ("v6e:2x4", Case("digits", "batch_split", None, (("batch", 960), ("hidden", 1024)))),
    ("v5e:2x4", Case("digits", "image_split", None, (("batch", 480), ("hidden", 2048)))),
    ("v4:2x2x2", Case("digits", "tiled", None, (("batch", 1920), ("hidden", 4096)))),
    ("v5p:2x2x2", Case("digits", "hidden_split", None, (("batch", 2400), ("hidden", 512)))),
    ("v6e:2x4", Case("lenet", "data", None, (("batch", 512),))),
    ("v5e:2x4", Case("lenet", "hybrid", None, (("batch", 256),))),
    ("v4:2x2x2", Case("lenet", "mixed", None, (("batch", 1024),))),
)
"""Chosen then, before any of them was compiled, and compared; after that reductions were put together, and roundings counted."""

THAT_FIT_TOO = (
    ("v4:2x2x2", Case("two_layer", "data_parallel", None, (("batch", 2048), ("io", 128)))),
    ("v5e:2x4", Case("two_layer", "hybrid", None, (("batch", 4096), ("io", 512)))),
    ("v6e:2x4", Case("two_layer", "model_parallel", None, (("batch", 1024), ("io", 1024)))),
    ("v5p:2x2x2", Case("two_layer", "tiled_3d", None, (("batch", 512), ("io", 512)))),
    ("v5e:2x4", Case("digits", "tiled", None, (("batch", 3840), ("hidden", 1024)))),
    ("v6e:2x4", Case("digits", "image_split", None, (("batch", 240), ("hidden", 512)))),
    ("v4:2x2x2", Case("digits", "replicated", None, (("batch", 480), ("hidden", 256)))),
    ("v5p:2x2x2", Case("digits", "batch_split", None, (("batch", 1920), ("hidden", 2048)))),
)
"""Chosen at last, before any of them was compiled, and compared once."""

RECURRENT = (
    ("v4:2x2x2", Case("rnntc", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v5p:2x2x2", Case("rnntc", "hybrid", "nodes:2;gpus:4", (("batch", 512),))),
    ("v4:2x2x2", Case("nmt", "data", "nodes:2;gpus:4", (("batch", 128),))),
    ("v5p:2x2x2", Case("nmt", "hybrid", "nodes:2;gpus:4", (("batch", 128),))),
    ("v5e:2x4", Case("rnnlm", "data", "nodes:2;gpus:4", (("batch", 256),))),
    ("v6e:2x4", Case("rnnlm", "hybrid", "nodes:2;gpus:4", (("batch", 128),))),
)
"""Chosen when rnnlm of `HELD_OUT` and `LATER` had been looked at, before any of these was compiled, and compared once."""


def figures() -> Iterator[Figure]:
    os.environ["JAX_PLATFORMS"] = "cpu"  # where libtpu is installed, it has no TPU to run on
    yield from _measured()
    yield from _compiled()


def predicted(program: Program, hardware: Hardware) -> StepTime:
    assert program.mesh is not None
    return step_time(program.function("step"), program.mesh, hardware)


# Measured


def _measured() -> Iterator[Figure]:
    keep_memory()
    programs = [case.lowered() for case in MEASURED]
    steps = [stepping(program) for program in programs]
    rounds = []
    for number in range(ROUNDS):
        hardware = calibration.with_jax("here", DEVICES, calibration.Effort())
        found = [predicted(program, hardware).seconds for program in programs]
        rounds.append([*zip(found, (median_seconds(each, RUNS) for each in steps), strict=True)])
        yield Figure(f"round {number + 1}: mean relative error", mean_error(rounds[-1]), "")
        yield Figure("    pairs predicted in the wrong order", order(rounds[-1])[1], "")
    fastest = []
    for case, turns in zip(MEASURED, zip(*rounds, strict=True), strict=True):
        said, seconds = zip(*turns, strict=True)
        fastest.append((min(said), min(seconds)))
        yield Figure(f"{case.name}: measured step, of the fastest round", min(seconds), "s")
        yield Figure("    that of the slowest round over it", max(seconds) / min(seconds), "")
        yield Figure("    predicted over measured", min(said) / min(seconds), "")
    yield Figure("steps measured", len(fastest), "")
    yield Figure("mean relative error", mean_error(fastest), "")
    typical = exp(fmean(abs(log(p / m)) for p, m in fastest))
    yield Figure("typical factor between predicted and measured", typical, "")
    apart, wrong = order(fastest)
    yield Figure("pairs that are more than 20 per cent apart", apart, "")
    yield Figure("of these predicted in the wrong order", wrong, "", 0)


def mean_error(found: Sequence[tuple[float, float]]) -> float:
    """Of (predicted, measured) times."""
    return fmean(abs(p / m - 1) for p, m in found)


def measured(program: Program, at_once: int = 1) -> float:
    """Seconds of a training step, of so many whose results are waited for at once."""
    return median_seconds(stepping(program, at_once), RUNS) / at_once


def stepping(program: Program, at_once: int = 1) -> Callable[[], None]:
    """Does so many training steps, on data that is drawn, and waits for their results."""
    module = jax_runtime.load(jax_backend.generate(program))
    batch = draw_batch(program.function("forward"), 0)[0]
    held = {
        "parameters": module.init(0),
        "state": module.init_state() if hasattr(module, "init_state") else {},
    }
    inputs = module.shard(batch, module.INPUTS)

    def steps() -> None:
        for _ in range(at_once):
            outputs, held["parameters"], held["state"] = module.train_step(
                held["parameters"], held["state"], inputs, 0
            )
        outputs["loss"].block_until_ready()

    steps()  # the first steps are slower, until the process has all its memory
    steps()
    return steps


def order(found: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Of (predicted, measured) times: pairs whose measured ones are apart, and those of them that are predicted the wrong way."""
    apart = [
        (a, b) for a, b in combinations(sorted(found, key=lambda each: each[1]), 2) if b[1] > APART * a[1]
    ]
    return len(apart), sum(a[0] >= b[0] for a, b in apart)


# Compiled


def _compiled() -> Iterator[Figure]:
    try:
        tpu.topology(COMPILED[0][0])
    except Unavailable as error:
        print(f"  left out: {error}")
        return
    errors = []
    for topology, case in COMPILED:
        errors.append((yield from _beside_compiled(topology, case)))
    yield Figure("largest relative error of the predicted computation", max(errors), "", 0.15)
    sets = (
        ("looked at afterwards", LOOKED_AT),
        ("then looked at", THEN_LOOKED_AT),
        ("at last looked at", AT_LAST_LOOKED_AT),
        ("of which one was looked at", HELD_OUT),
        ("of convolutions and small networks, of which two were looked at", SMALLER),
        ("chosen later", LATER),
        ("small, on v6e", SMALL_ON_V6E),
        ("of the smallest examples, looked at", AS_DECLARED),
        ("that lie in the processor's own memory", THAT_FIT),
        ("of such, compared at last", THAT_FIT_TOO),
        ("of recurrent networks", RECURRENT),
    )
    for what, cases in sets:
        others, at_most = [], 0 if cases in (LOOKED_AT, THEN_LOOKED_AT, AT_LAST_LOOKED_AT) else None
        for topology, case in cases:
            others.append((yield from _beside_compiled(topology, case, at_most)))
        within = sum(error <= 0.15 for error in others)
        yield Figure(f"of steps {what}: relative errors of at most 0.15", within, "")
        yield Figure("    and mean relative error", fmean(others), "")


def _beside_compiled(
    topology: str, case: Case, unpredicted_at_most: int | None = 0
) -> Generator[Figure, None, float]:
    """The relative error of the predicted computation. In place of some reduce-scatters XLA sends an all-reduce."""
    program, generation = case.lowered(), topology.split(":")[0]
    step = tpu.compiled(program, topology, "step")
    cycles = hlo.cycles(step.as_text())
    compiled, hardware = cycles / tpu.CLOCKS[generation], named(f"tpu_{generation}", {})
    said_nothing_of = unpooling(program.function("step"), program.placed_on, hardware.device)
    computation = predicted(program, hardware).total.compute - said_nothing_of
    yield Figure(f"{case.name} on TPU {generation}: cycles of computation", cycles, "")
    yield Figure("    predicted computation over the compiler's", computation / compiled, "")
    wrong = unpredicted(program, step.as_text())
    yield Figure("    elements in collectives that were not predicted", wrong, "", unpredicted_at_most)
    yield Figure("    predicted memory over the compiler's", memory(program, hardware) / allocated(step), "")
    return abs(computation / compiled - 1)


def unpredicted(program: Program, text: str) -> int:
    """By how many elements, kind by kind, the collectives in the HLO of a step differ from those of `mtfc cost`."""
    found = {kind: each["elements_per_device"] for kind, each in hlo.collectives(text).items()}
    charged = total(charges(program.function("step"), Numbers(program.placed_on)))
    said = {kind: whole(sent.elements) for kind, sent in charged.collectives.items()}
    return sum(abs(found.get(kind, 0) - said.get(kind, 0)) for kind in found.keys() | said.keys())


def memory(program: Program, hardware: Hardware) -> int:
    return whole(memory_on(program.function("step"), program.placed_on, hardware.device).total)


def allocated(step: Any) -> int:
    """Bytes that one device holds while a compiled step runs; what is given back is written over what it replaces."""
    said = step.memory_analysis()
    given = said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes
    return int(given + said.temp_size_in_bytes)


def unpooling(function: Function, mesh: Mesh, device: Device) -> float:
    """Predicted seconds of the gradients of pools to a maximum: the compiler names no cycles of its select-and-scatter."""
    memory, seconds = Memory(function, mesh, device), 0.0
    for eqn, each in zip(function.body, work(function, mesh, device), strict=True):
        if eqn.regions:
            seconds += dim_of(eqn).size * unpooling(region_of(eqn), mesh, device)
        elif memory.kernel(eqn) == "unpool" or _is_of_pool(eqn, memory):
            seconds += each.seconds
    return seconds


def _is_of_pool(eqn: Equation, memory: Memory) -> bool:
    """Whether it says where the largest elements of windows are, or puts gradients there, for `fold`."""
    if eqn.op == "is_argmax":
        seen = (each for value in eqn.operands for each in memory.seen(value)[:-1])
        return any(memory.makers[each].op == "window" for each in seen)
    users = [*memory.users(eqn.results[0])] if eqn.op == "mask" else []
    return bool(users) and all(user.op == "fold" for user in users)
