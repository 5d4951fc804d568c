"""One price: the search and `mtfc simulate` have the same seconds and bytes for the same layout on the same machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, choose
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import target_of
from mtfc.driver.simulate import simulate_layout
from tests.documents import ROOT

FILES = sorted((ROOT / "examples").glob("*.mtf"))
MACHINES = ("h100", "tpu_v2", "tpu_v5p", "p100_cluster", "p2_8xlarge")
EVERY = bool(os.environ.get("EVERY_PRICE"))
LONG = ("inception_v3", "resnet101", "nmt", "transformer_seq2seq", "rnnlm", "llama", "unet", "transformer_lm")
"""The examples that take seconds to compile: one layout on one machine in `make test`."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
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
            record = shown.record()
            assert record["step_seconds"] == pytest.approx(price.seconds, rel=1e-9)
            assert record["memory_per_device"]["total"] == price.tiled
