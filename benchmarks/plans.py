"""The plans that `mtfc search` finds in 60 s: the step, the gap to the lower bound, and the CPU seconds of the search.

`python -m benchmarks plans` searches all models on 8, 64 and 256 H100 and on 16, 64 and 256 TPU v5p, which takes an hour.
`python -m benchmarks.plans --budget 10 llama h100` searches those whose name has each of the words, such as `8b 64 h100`.

The models are those of `examples/`, at the sizes of Llama 3 and of ResNet-50, and three of this file: a vision Transformer
(ViT-L/16), gated recurrent units, and a graph network that sends messages along edges (the sizes of ogbn-arxiv).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from benchmarks.figures import Figure
from mtfc.compiler.search.found import NothingFits
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.search import search
from mtfc.reports.step_report import seconds_text

BUDGET = 60.0
LATE = 1.1
"""The most CPU seconds of a search, in budgets."""

MOST_GAP, SMALL_GAP = 10.0, 5.0
"""The aims: the largest gap in per cent, and the gap that half of the plans are below."""

MACHINES = {"h100": (8, 64, 256), "tpu_v5p": (16, 64, 256)}

VIT = """
import losses
import nn
import transformer
dim batch = 4096; dim length = 256; dim memory = length; dim pixels = 768; dim classes = 1000
dim d_model = 1024; dim heads = 16; dim d_k = 64; dim d_ff = 4096; dim layers = 24
model vit(patches: [batch, length, pixels], labels: i32[batch]) {
  x = nn.dense[d_out = d_model](patches) + nn.learned_positions[length = length, d_model = d_model]()
  repeat layers {
    x = transformer.encoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = d_ff](x)
  }
  logits = nn.dense[d_out = classes](mean(nn.layer_norm(x), over = [length]))
  loss = losses.softmax_cross_entropy(logits, labels)
  return loss
}
train vit {
  minimize loss
  optimizer = adamw(learning_rate = 1e-3, weight_decay = 0.1)
  precision = { params: f32, compute: bf16 }
}
"""

GRU = """
import losses
import nn
import rnn
dim batch = 1024; dim length = 128; dim words = 32000; dim vocab = words
dim units = 2048; dim inputs = units; dim layers = 2
model words(read: i32[batch, length], next: i32[batch, length]) {
  x = nn.embedding[vocab = words, d_model = units](read)
  repeat layers { x = rnn.gru[hidden = units](rename(x, units -> inputs)) }
  loss = losses.softmax_cross_entropy(nn.dense[d_out = vocab](rename(x, units -> inputs)), next)
  return loss
}
train words { minimize loss; optimizer = adam(learning_rate = 1e-3) }
"""

GRAPH = """
import losses
import nn
dim nodes = 169472; dim edges = 1166336; dim features = 128; dim classes = 40
dim hidden = 256; dim before = hidden; dim layers = 3
fn exchange(h: [nodes, hidden], source: i32[edges], target: i32[edges]) -> [nodes, hidden] {
  sent = nn.dense[d_out = hidden](rename(gather(h, source, nodes), hidden -> before))
  taken = scatter_add(relu(sent), target, nodes, [nodes, hidden])
  return nn.layer_norm(h + nn.dense[d_out = hidden](rename(taken, hidden -> before)))
}
model graph(x: [nodes, features], source: i32[edges], target: i32[edges], labels: i32[nodes]) {
  h = nn.dense[d_out = hidden](x)
  repeat layers { h = exchange(h, source, target) }
  loss = losses.softmax_cross_entropy(nn.dense[d_out = classes](rename(h, hidden -> before)), labels)
  return loss
}
train graph { minimize loss; optimizer = adam(learning_rate = 1e-3) }
"""


@attrs.frozen
class Planned:
    """A model: a file of `examples/` or a text, the name of the model, and sizes that replace those of the file."""

    source: str
    model: str | None = None
    dims: Mapping[str, int] = attrs.field(factory=dict)

    def file(self, folder: Path) -> str:
        """Return the path of the file; a text is written into the folder."""
        if "\n" not in self.source:
            return self.source
        path = folder / "model.mtf"
        path.write_text(self.source, "utf-8")
        return str(path)


LARGE = {"batch": 256, "kv_heads": 8}
MODELS = {
    "llama 8b": Planned("examples/llama.mtf", "llama", {"batch": 256}),
    "llama 70b": Planned(
        "examples/llama.mtf", "llama", {**LARGE, "d_model": 8192, "sharers": 8, "d_ff": 28672, "layers": 80}
    ),
    "llama 405b": Planned(
        "examples/llama.mtf",
        "llama",
        {**LARGE, "d_model": 16384, "sharers": 16, "d_ff": 53248, "layers": 126},
    ),
    "mixture of experts": Planned("examples/moe_lm.mtf", "moe_lm", {"batch": 512, "groups": 256}),
    "resnet50": Planned("examples/resnet101.mtf", "resnet101", {"batch": 4096, "blocks4": 5}),
    "unet": Planned("examples/unet.mtf"),
    "vit": Planned(VIT),
    "graph network": Planned(GRAPH),
    "gru": Planned(GRU),
}


@attrs.frozen
class Run:
    """A search for the plan of a model on a machine."""

    name: str
    planned: Planned
    machine: str
    devices: int

    @property
    def title(self) -> str:
        return f"{self.name} on {self.devices} {self.machine}"

    def figure(self, folder: Path, budget: float) -> Figure:
        """Search, and return the gap in per cent; infinite if nothing is proven or nothing fits."""
        choice = Choice(model=self.planned.model, dims=self.planned.dims)
        options = SearchOptions(self.planned.file(folder), choice, self.machine, self.devices, budget=budget)
        try:
            found = search(options, Sources()).result.record()
        except NothingFits:
            return Figure(f"{self.title}: nothing fits; gap", float("inf"), "%", MOST_GAP)
        step, bound = found["overlapping_seconds"], found["lower_bound_seconds"]
        gap = 100 * (step / bound - 1) if bound else float("inf")
        late = "" if found["search_seconds"] <= LATE * budget else ", late"
        text = f"{self.title}: {seconds_text(step)}, searched {found['search_seconds']:.0f} s{late}; gap"
        return Figure(text, gap, "%", MOST_GAP)


def runs(words: list[str]) -> Iterator[Run]:
    """Yield the searches whose titles have all of the words."""
    for name, planned in MODELS.items():
        for machine, numbers in MACHINES.items():
            found = (Run(name, planned, machine, number) for number in numbers)
            yield from (each for each in found if all(word in each.title.split() for word in words))


def figures(words: list[str] | None = None, budget: float = BUDGET) -> Iterator[Figure]:
    gaps = []
    with TemporaryDirectory() as folder:
        for each in runs(words or []):
            figure = each.figure(Path(folder), budget)
            gaps.append(figure.value)
            yield figure
    small = sum(gap <= SMALL_GAP for gap in gaps)
    yield Figure(
        f"plans with a gap above {SMALL_GAP:g} %, of {len(gaps)}", len(gaps) - small, "", len(gaps) / 2
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans")
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help="CPU seconds of each search (default: 60)"
    )
    parser.add_argument("words", nargs="*", help="words of the runs to search, such as 8b 64 h100")
    asked = parser.parse_args()
    for figure in figures(asked.words, asked.budget):
        print(figure, flush=True)
