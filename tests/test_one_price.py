"""One price: the search and `mtfc simulate` have the same seconds and bytes for the same layout on the same machine."""

import os
from pathlib import Path

import pytest

import mtfc
from mtfc.compiler.search.global_layouts.global_search import ROUNDING
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, choose
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import target_of
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.search import search
from mtfc.driver.simulate import simulate_layout
from tests.documents import ROOT
from tests.sampling import EVERY_CASE

FILES = sorted((ROOT / "examples").glob("*.mtf"))
MACHINES = ("h100", "tpu_v2", "tpu_v5p", "p100_cluster", "p2_8xlarge")
EVERY = bool(os.environ.get("EVERY_PRICE"))
LONG = ("nmt", "rnnlm", "llama", "unet", "transformer_lm", "moe_lm", "pipeline", "digits_resnet")
"""The examples that take seconds to compile: one layout on one machine in `make test`."""
LEFT_OUT = (
    "inception_v3",
    "resnet101",
    "vgg16",
    "transformer_shared",
    "transformer_seq2seq",
    "soybean_mlp_8k",
    "pipeline",
    "digits_resnet",
    "unet",
    "gpt2",
)
"""The examples whose ops and layouts others have: `make test-all` prices them."""
PRICED = [file for file in FILES if EVERY or EVERY_CASE or file.stem not in LEFT_OUT]


@pytest.mark.parametrize("file", PRICED, ids=lambda file: file.stem)
def test_the_search_prices_what_simulate_shows(file: Path) -> None:
    selection = choose(file.read_text("utf-8"), str(file), Choice(), every_layout=True, skip_illegal=True)
    number = FILES.index(file)
    few = 1 if file.stem in LONG else 2
    machines = MACHINES if EVERY else [MACHINES[(number + i) % len(MACHINES)] for i in range(few)]
    for machine in machines:
        hardware = target_of(machine, selection.hardware, Sources())
        pricer = LayoutPricer.of(selection.program, hardware)
        for case in selection.cases if EVERY else selection.cases[:few]:
            if not isinstance(case, LayoutOnMesh):
                continue
            shown = simulate_layout(case.on(hardware).lower(selection.program), hardware)
            price = pricer(case.mesh, case.layout)
            assert shown.step.seconds == pytest.approx(price.seconds, rel=1e-9), (machine, case.name)
            assert pricer.least_seconds(case.mesh.devices) <= price.seconds * (1 + ROUNDING)
            record = shown.record()
            assert record["step_seconds"] == pytest.approx(price.seconds, rel=1e-9)
            assert record["memory_per_device"]["total"] == price.tiled


def _simulated(file: Path, layout: str) -> float:
    return mtfc.compile(file, layout=layout).simulate("p100_cluster")["step_seconds"]


@pytest.mark.parametrize("name", ["two_layer", "lenet", "soybean_mlp"])
def test_a_placement_that_is_a_layout_has_the_price_of_the_layout_beside_its_own(
    name: str, tmp_path: Path
) -> None:
    text, file = (ROOT / "examples" / f"{name}.mtf").read_text("utf-8"), tmp_path / "placed.mtf"
    file.write_text(text)
    found = mtfc.search(file, target="p100_cluster", space="soap", devices=4, budget=1.0)
    layout = found["best_layout"]
    assert found["objective_seconds"] <= layout["placed_seconds"]
    axes = ", ".join(f"{axis}: {size}" for axis, size in layout["mesh"].items())
    file.write_text(f"{text}\nmesh its = [{axes}]\nlayout own on its = {{ {layout['layout']} }}\n")
    assert _simulated(file, "own") == pytest.approx(layout["step_seconds"], rel=1e-9)


SEVERAL = """
dim batch = 4096
dim io = 1024
dim hidden = 4096
mesh front = [all: 4]
mesh back = [rows: 4]
layout one on front = { batch: all }
layout same on back = { part (h, y, loss) on front: { batch: all } }
model m(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  h = einsum(x, w -> [batch, hidden])
  y = einsum(h, v -> [batch, io])
  loss = sum(square(y - x))
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


def test_layouts_of_several_meshes_have_the_price_of_simulate_and_of_the_layout_on_one(
    tmp_path: Path,
) -> None:
    file, sources = tmp_path / "several.mtf", Sources()
    file.write_text(SEVERAL)
    assert _simulated(file, "same") == pytest.approx(_simulated(file, "one"), rel=1e-9)
    asked = SearchOptions(str(file), Choice(), "p100_cluster", space="meshes", budget=2.0)
    answer = search(asked, sources)
    found = answer.result.record()
    assert found["step_seconds"] <= found["declared_seconds"]
    file.write_text(answer.written())
    assert _simulated(file, found["layout"]) == pytest.approx(found["step_seconds"], rel=1e-9)
