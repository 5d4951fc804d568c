"""Draw the figures of the documentation: `make figures`, or `python -m benchmarks.plots NAME ...` for some of them.

`timeline`: two layouts of AlexNet on eight K80s. `losses`: training the language model of `examples/pylib_lm` under each
layout, which takes about five minutes. `convergence`: FlexFlow's Figure 9, a residual network on digits. `search`: the bound
and the best cost of two searches over time. `quality`: held-out bits of a byte by the size of a model, as `python -m
benchmarks quality` trains them. `collectives`: what each collective does to the parts of an array. `soybean` and `speedups`:
Figures 8 to 10 of SoyBean. `gpt`: what the lines of `examples/jax/gpt.py` send. `throughput`: FlexFlow's Figure 7, as `python -m
benchmarks throughput` measures it. Each is an SVG file in `docs/images/`, drawn from numbers that the program prints or computes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import patches, pyplot

from benchmarks import quality, soap, throughput
from benchmarks import soybean as experiments
from mtfc.compiler.activity import progress_to
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.search import search

IMAGES = Path("docs/images")
STAGES = {"forward": "#4c78a8", "backward": "#f58518", "update": "#54a24b"}
SENT = "#b279a2"
MTFC = [sys.executable, "-m", "mtfc"]


def timeline() -> Any:
    """Draw one training step of AlexNet under two layouts: a row for the processor, a row for each link."""
    layouts = ("data", "hybrid")
    figure, axes = pyplot.subplots(len(layouts), 1, figsize=(9, 3.4), sharex=True)
    for axis, layout in zip(axes, layouts, strict=True):
        events = traced("examples/alexnet.mtf", layout, "p2_8xlarge")
        lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        for event in (e for e in events if e["ph"] == "X"):
            color = STAGES[event["cat"]] if event["tid"] == 0 else SENT
            span = [(event["ts"] / 1e3, event["dur"] / 1e3)]
            axis.broken_barh(span, (-event["tid"] - 0.4, 0.8), facecolors=color)
        axis.set_yticks([-lane for lane in lanes], [re.sub(r" 0$", "", name) for name in lanes.values()])
        axis.set_title(f"layout {layout}", loc="left", fontsize=10)
    axes[-1].set_xlabel("milliseconds")
    handles = [patches.Rectangle((0, 0), 1, 1, color=color) for color in (*STAGES.values(), SENT)]
    figure.legend(handles, (*STAGES, "communication"), ncols=4, loc="upper right", frameon=False, fontsize=9)
    return figure


def soybean() -> Any:
    """Draw SoyBean's Figures 8 and 9: computation, and waiting for communication, under each strategy."""
    figure, axes = pyplot.subplots(1, len(experiments.CASES), figsize=(11, 3))
    for axis, name in zip(axes, experiments.CASES, strict=True):
        for group, gpus in enumerate(experiments.GPUS):
            for i, (strategy, step) in enumerate(experiments.steps(name, gpus).items()):
                if strategy == experiments.SERVER:
                    continue
                at, compute = group * 4 + i, 1e3 * step.total.compute
                axis.bar(at, compute, color=COLOURS[i])
                axis.bar(at, 1e3 * step.total.exposed, bottom=compute, color=COLOURS[i], alpha=0.35)
        axis.set_xticks([4 * group + 2 for group in range(len(experiments.GPUS))], experiments.GPUS)
        axis.set_title(f"Figure {name}", loc="left", fontsize=10)
    axes[0].set_ylabel("ms a step, on so many GPUs")
    names = (experiments.DATA, experiments.MODEL, experiments.TILING, "waiting for communication")
    faces = [*((colour, 1.0) for colour in COLOURS[1:4]), ("grey", 0.35)]
    handles = [patches.Rectangle((0, 0), 1, 1, color=colour, alpha=alpha) for colour, alpha in faces]
    figure.legend(handles, names, ncols=4, loc="lower center", frameon=False, fontsize=9)
    figure.subplots_adjust(bottom=0.22, wspace=0.4)
    return figure


def gpt() -> Any:
    """Draw the bytes that each line of `examples/jax/gpt.py` sends under FSDP: by `jax.jit` with shardings, and by a plan."""
    rules = "batch:data;params:{*:data};optimizer:{*:data}"
    step = ["gpt:step", "--args", "gpt:example", "--layout", rules, "--mesh", "data:8", "--target", "cpu:8"]
    command = [*MTFC, "inspect", *step, "--apply", "--format", "json"]
    done = subprocess.run(command, cwd="examples/jax", capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    source = Path("examples/jax/gpt.py").read_text("utf-8").splitlines()
    lines = [each for each in found["lines"] if each["line"] and sent_by(each, "shardings") > 2e7]
    figure, axis = pyplot.subplots(figsize=(9, 3))
    for i, (road, name) in enumerate(ROADS.items()):
        sizes = [sent_by(each, road) / 1e9 for each in lines]
        total = sum(sent_by(each, road) for each in found["lines"]) / 1e9
        places = [row + 0.38 * i - 0.19 for row in range(len(lines))]
        bars = axis.barh(places, sizes, 0.36, color=COLOURS[2 - i], label=f"{name}: {total:.1f} GB")
        axis.bar_label(bars, [f"{size:.2f}" for size in sizes], padding=3, fontsize=7)
    texts = [f"{source[each['line'] - 1].strip()[:62]}  {each['line']}" for each in lines]
    axis.set_yticks(range(len(lines)), texts, family="monospace", fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("GB that leave each of 8 devices in a training step")
    axis.legend(frameon=False, fontsize=9, loc="center right")
    return figure


ROADS = {"shardings": "jax.jit with NamedSharding", "step": "the plan of mtfc"}


def sent_by(line: Mapping[str, Any], road: str) -> float:
    """Return the bytes that a line sends, as `mtfc inspect` finds them; `plan.step` has the keys of the line itself."""
    return float((line if road == "step" else line[road])["wire_bytes_per_device"])


def speedups() -> Any:
    """Draw SoyBean's Figure 10: throughput on 8 GPUs over the best of one, by batch, with a parameter server beside it."""
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, network in zip(axes, ("alexnet", "vgg16"), strict=True):
        for i, (strategy, found) in enumerate(experiments.speed_ups(network).items()):
            axis.plot(list(found), list(found.values()), marker="o", label=strategy, color=COLOURS[i])
        axis.set_xscale("log", base=2)
        axis.set_xticks(experiments.BATCHES, experiments.BATCHES)
        axis.set_xlabel(f"batch of {network}")
    axes[0].set_ylabel("speed-up over one GPU")
    axes[1].legend(frameon=False, fontsize=9)
    return figure


COLOURS = ("#bab0ac", "#4c78a8", "#f58518", "#54a24b")


def traced(file: str, layout: str, target: str) -> list[dict[str, Any]]:
    """Return the events of the trace that `mtfc simulate` writes."""
    command = [*MTFC, "simulate", file, "--layout", layout, "--target", target, "--trace", "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def losses() -> Any:
    """Draw the losses of a language model under each layout, their distance to the first one, and held-out bits per byte."""
    curves = {layout: trained(layout) for layout in LAYOUTS}
    first = [step["loss"] for step in curves[LAYOUTS[0]]]
    figure, axes = pyplot.subplot_mosaic([["loss", "held out"], ["distance", "held out"]], figsize=(9, 4.2))
    for i, (layout, steps) in enumerate(curves.items()):
        numbers, found = [step["step"] for step in steps], [step["loss"] for step in steps]
        distance = [abs(a - b) for a, b in zip(found, first, strict=True)]
        axes["loss"].plot(numbers, found, label=layout, linewidth=4 - i, alpha=0.6)
        axes["distance"].plot(numbers, distance, label=layout, linewidth=0.7)
    evaluated = [step for step in curves[LAYOUTS[0]] if HELD_OUT in step]
    numbers, found = [step["step"] for step in evaluated], [step[HELD_OUT] for step in evaluated]
    axes["held out"].plot(numbers, found, marker="o")
    axes["loss"].legend(frameon=False, fontsize=8)
    axes["loss"].set_ylabel("loss in nats")
    axes["distance"].set_ylabel(f"distance to\n{LAYOUTS[0]}")
    axes["distance"].set_yscale("symlog", linthresh=1e-7)
    axes["held out"].set_ylabel("held-out bits per byte")
    for name in ("distance", "held out"):
        axes[name].set_xlabel("training step")
    return figure


def convergence() -> Any:
    """Draw the loss of a residual network over the predicted time of two placements (FlexFlow, Figure 9)."""
    digits_losses = [step["loss"] for step in trained_digits()]
    figure, axis = pyplot.subplots(figsize=(6, 2.6))
    for name, seconds in placed_seconds().items():
        times = [1e3 * seconds * number for number in range(1, len(digits_losses) + 1)]
        axis.plot(times, digits_losses, label=f"{name}, {1e6 * seconds:.0f} us a step", linewidth=1)
    axis.set(xlabel="predicted milliseconds on four P100s", ylabel="loss in nats")
    axis.legend(frameon=False, fontsize=8)
    return figure


DIGITS = "examples/digits_resnet.mtf"


def trained_digits() -> list[dict[str, Any]]:
    """Return the figures of each of 84 steps, seven epochs of scans. A placement does not change them, so one device trains."""
    log = Path("build/digits/resnet.jsonl")
    subprocess.run([sys.executable, "examples/digits.py", "--write-only"], check=True)
    options = ("--data", "build/digits/train.npz", "--mesh", "all:1", "--layout", "data", "--steps", "84")
    log.unlink(missing_ok=True)
    subprocess.run([*MTFC, "train", DIGITS, *options, "--log", log], check=True)
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def placed_seconds() -> dict[str, float]:
    """Return the predicted seconds of a step under data parallelism, and under the placement that a search finds."""
    text = [*MTFC, "search", DIGITS, "--space", "soap", "--target", "p100_cluster", "--devices", "4"]
    limits = ("--proposals", "1000", "--budget", "120", "--format", "json")
    found = json.loads(subprocess.run([*text, *limits], check=True, capture_output=True).stdout)
    return {
        "data parallelism": found["baselines"]["data_parallel"],
        "found placement": found["objective_seconds"],
    }


LAYOUTS = ("data_parallel", "model_parallel", "fsdp", "hybrid")
HELD_OUT = "eval/bits_per_byte"


def trained(layout: str) -> list[dict[str, Any]]:
    """Return the figures of each step of `examples/pylib_lm`, which `build/pylib_lm` keeps.

    Only the first layout evaluates.
    """
    folder, example = Path("build/pylib_lm"), Path("examples/pylib_lm")
    log = folder / f"{layout}.jsonl"
    if not log.exists():
        subprocess.run([sys.executable, example / "prepare.py", folder], check=True)
        evaluation = ("--eval", f"{folder}/held_out.bin:uint8", "--eval-every", "100")
        options = (*("--steps", "800", "--layout", layout), *(evaluation if layout == LAYOUTS[0] else ()))
        written = ("--log", f"{log}.part")
        data = ("--data", f"{folder}/train.bin:uint8")
        subprocess.run([*MTFC, "train", example / "pylib_lm.mtf", *data, *options, *written], check=True)
        Path(f"{log}.part").rename(log)
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


SEARCHES = {
    "VGG-16 on 8 P100": SearchOptions("examples/vgg16.mtf", target="p100_cluster", devices=8),
    "Transformer and its storage on 512 TPU v2": SearchOptions(
        "examples/transformer_lm.mtf", target="tpu_v2", storage=True, budget=120.0
    ),
}


def throughputs() -> Any:
    """Draw the samples a second on each GPU by the number of GPUs (FlexFlow, Figure 7)."""
    figure, axes = pyplot.subplots(2, len(soap.TABLE), figsize=(13, 4.6), sharex=True)
    for (row, cluster), (column, network) in product(enumerate(throughput.CLUSTERS), enumerate(soap.TABLE)):
        rows = throughput.rows(network, cluster)
        for i, strategy in enumerate(throughput.STRATEGIES):
            fitting = {r["gpus"]: throughput.rate(r, strategy) for r in rows if r[strategy] is not None}
            axes[row][column].plot(list(fitting), list(fitting.values()), marker=".", color=COLOURS[i])
        axes[row][column].set_xscale("log", base=2)
        axes[row][column].set_xticks(list(throughput.SECONDS), throughput.SECONDS)
        axes[row][column].set_ylim(bottom=0)
        axes[row][column].set_title(f"{network}, {cluster.upper()}", loc="left", fontsize=9)
    names = [each.replace("_", " ") for each in throughput.STRATEGIES]
    figure.legend(axes[0][0].lines, names, ncols=3, loc="lower right", frameon=False, fontsize=9)
    figure.supxlabel("GPUs", fontsize=10)
    figure.supylabel("samples a second on each GPU", fontsize=10)
    return figure


def searches() -> Any:
    """Draw the best cost and the bound of searches for global layouts, from their beginning to the proof."""
    figure, axes = pyplot.subplots(1, len(SEARCHES), figsize=(9, 3))
    for axis, (title, options) in zip(axes, SEARCHES.items(), strict=True):
        seconds, best, bound = zip(*told(options), strict=True)
        axis.step(seconds, best, where="post", label="best layout so far")
        axis.step(seconds, bound, where="post", label="lower bound of all layouts")
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("seconds of the search")
    axes[0].set_ylabel("milliseconds of a step")
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def told(options: SearchOptions) -> list[tuple[float, float, float]]:
    """Search; return what the search reports: its seconds so far, and milliseconds of the best step and of the bound."""
    started, found = monotonic(), list[tuple[float, float, float]]()

    def progress(doing: str, best: float | None, bound: float | None) -> None:
        if best is not None and bound is not None:
            found.append((monotonic() - started, 1e3 * best, 1e3 * bound))

    with progress_to(progress):
        search(options, Sources())
    return found


def qualities() -> Any:
    """Draw held-out bits of a byte by the parameters of a model, under each layout."""
    figure, axis = pyplot.subplots(figsize=(5, 3.4))
    for i, layout in enumerate(quality.LAYOUTS):
        sizes = [quality.parameters(heads) for heads in quality.HEADS]
        bits = [quality.evaluated(heads, layout)[HELD_OUT] for heads in quality.HEADS]
        axis.plot(sizes, bits, marker="os^"[i], linewidth=5 - 2 * i, alpha=0.6, label=layout)
    axis.set_xscale("log")
    axis.set_xlabel("parameters")
    axis.set_ylabel("held-out bits per byte")
    axis.legend(frameon=False, fontsize=8)
    return figure


DEVICES = 4
PARTS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")


def collectives() -> Any:
    """Draw what devices hold before and after each collective: a row for each, with the parts of an array from top to bottom.

    A hatched part is a term of a sum that is still pending.
    """
    whole, own = [set(range(DEVICES))] * DEVICES, [{i} for i in range(DEVICES)]
    rows = (
        ("all_reduce", whole, True, whole),
        ("reduce_scatter", whole, True, own),
        ("all_gather", own, False, whole),
        ("permute", own, False, [own[i - 1] for i in range(DEVICES)]),
    )
    figure, axes = pyplot.subplots(2, 2, figsize=(8, 4))
    for axis, (name, before, is_pending, after) in zip(axes.flat, rows, strict=True):
        _draw_held(axis, 0, before, "////" if is_pending else None)
        _draw_held(axis, DEVICES + 1.5, after, None)
        axis.annotate("", (DEVICES + 1.3, -1), (DEVICES, -1), arrowprops={"arrowstyle": "->"})
        axis.set(xlim=(-0.2, 2 * DEVICES + 1.6), ylim=(0.2 - DEVICES, 1.1), aspect="equal", title=name)
        axis.set_axis_off()
    return figure


def _draw_held(axis: Any, start: float, held: Sequence[set[int]], hatch: str | None) -> None:
    """Draw the parts that each device holds: a column for each device, the first one at `start`."""
    for device, part in product(range(DEVICES), repeat=2):
        box = patches.Rectangle((start + device, -part), 0.8, 0.9, ec="0.7", fc="white")
        if part in held[device]:
            box.set(facecolor=PARTS[part], hatch=hatch, edgecolor="white")
        axis.add_patch(box)


PLOTS: dict[str, Callable[[], Any]] = {
    "timeline": timeline,
    "losses": losses,
    "convergence": convergence,
    "search": searches,
    "quality": qualities,
    "collectives": collectives,
    "soybean": soybean,
    "speedups": speedups,
    "gpt": gpt,
    "throughput": throughputs,
}


def main(names: list[str]) -> None:
    for name in names or PLOTS:
        figure = PLOTS[name]()
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
        print(f"docs/images/{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
