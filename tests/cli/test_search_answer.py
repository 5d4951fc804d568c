"""The answer of a search for a plan: prices of other resources, idle devices, bytes of each link, the page, and the budget."""

import re
from pathlib import Path
from time import process_time
from typing import Any

import pytest

import mtfc as api
from mtfc.compiler.cost.step_time import sent_on_lanes
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.found import NothingFits
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching import plan
from mtfc.driver.searching.layouts import LayoutFinder
from mtfc.driver.searching.search import search
from mtfc.frontend.hardware_targets import find_hardware
from tests.cli.conftest import Mtfc
from tests.cli.test_report import PageParts

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO_LAYER = str(EXAMPLES / "two_layer.mtf")
WIDE = ("--dim", "batch=16384", "--dim", "io=2048", "--dim", "hidden=8192")


def test_prices_are_those_of_the_same_search_with_other_resources(mtfc: Mtfc) -> None:
    asked = ("--target", "h100", "--devices", "4", *WIDE, "--budget", "1", "--format", "json")
    found = mtfc("search", TWO_LAYER, *asked, "--what-if").json
    prices = {each["change"]: each for each in found["what_if"]}
    resources = ("1 GiB more memory", "twice the network", "twice the batch", "twice the devices")
    assert list(prices) == [*resources, "half the devices"]
    step = found["overlapping_seconds"]
    for change, each in prices.items():
        scale = 2 if change == "twice the batch" else 1
        assert each["seconds_per_example_ratio"] == pytest.approx(each["step_seconds"] / step / scale)
    assert prices["1 GiB more memory"]["seconds_per_example_ratio"] <= 1 + 1e-12
    assert prices["twice the network"]["seconds_per_example_ratio"] < 1
    assert [prices[f"{many} the devices"]["devices"] for many in ("twice", "half")] == [8, 2]
    for change, devices in (("twice the devices", "8"), ("half the devices", "2")):
        least = min(mtfc("search", TWO_LAYER, *asked, "--devices", devices).json["baselines"].values())
        assert prices[change]["step_seconds"] <= least * (1 + 1e-12)


def test_each_price_begins_with_the_found_plan(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without a rule that the other sizes allow is left out, and never priced."""
    starts: list[tuple[Mesh, Layout] | None] = []
    searched = plan._best_plan

    def noted(task: plan.SearchTask) -> tuple[plan.LayoutSearch, plan.SearchAnswer]:
        starts.append(task.start)
        return searched(task)

    monkeypatch.setattr(plan, "_best_plan", noted)
    asked = ("--target", "tpu_v2", "--mesh", "x:2;y:2", "--dim", "hidden=4", "--budget", "1", "--what-if")
    assert mtfc("search", TWO_LAYER, *asked).status == 0
    first, *others = starts
    assert first is None and len(others) == 5
    sizes = [each and each[0].devices for each in others]
    assert sizes[:3] == [4, 4, 4] and sizes[4] == 2


def test_an_interrupt_ends_the_prices(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "_again", interrupted)
    run = mtfc("search", TWO_LAYER, "--target", "h100", "--devices", "2", "--budget", "1", "--what-if")
    assert run.status == 0 and "Other resources" in run.out


def test_idle_devices_are_counted(mtfc: Mtfc) -> None:
    asked = ("search", TWO_LAYER, "--target", "h100", "--devices", "8", "--budget", "1")
    assert (
        "note: no rule uses all: 7 of 8 devices are idle, and on 1 the plan takes 15.84 us"
        in mtfc(*asked).out
    )
    found = mtfc(*asked, "--format", "json").json
    assert found["fewer_devices"] == {"devices": 1, "step_seconds": found["objective_seconds"]}
    assert "fewer_devices" not in mtfc(*asked, *WIDE, "--format", "json").json


@pytest.mark.parametrize(("machine", "links"), [("h100", {"nvlink"}), ("tpu_v2", {"chip", "ici.0", "ici.1"})])
def test_bytes_of_links_add_up_to_those_on_the_wire(mtfc: Mtfc, machine: str, links: set[str]) -> None:
    """Check that each byte goes over one link where no collective is an all-to-all or a permute."""
    selection = select(TWO_LAYER, Choice(), Sources(), every_layout=True)
    costs = mtfc("cost", TWO_LAYER, "--format", "json").json["layouts"]
    for case, cost in zip(selection.cases, costs, strict=True):
        function = case.lower(selection.program).function("step")
        sent = sent_on_lanes(function, Topology.of(case.mesh, find_hardware(machine, {})))
        assert {*sent} <= links
        assert sum(sent.values()) == pytest.approx(cost["step"]["wire_bytes_per_device"], rel=1e-6, abs=1)


def test_the_page_shows_the_figures_of_each_plan(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("report", "model.mtf", "-o", "out.html", "--search", "1", "--target", "h100")
    assert outcome.status == 0, outcome.err
    record = PageParts((folder / "out.html").read_text("utf-8")).record
    for each in record["layouts"]:
        rows = dict(each["plan"])
        assert (
            rows["Step"].endswith("/s") and f"{each['step']['utilisation']:.1%} of the peak" in rows["Step"]
        )
        assert rows["Memory of 80 GiB"].startswith("parameters")
    found = mtfc("search", "model.mtf", "--target", "h100", "--devices", "4", "--budget", "1").out
    assert record["search"]["kinds"] and all(
        kind.split(":")[0] in " ".join(found.split()) for kind in record["search"]["kinds"][:1]
    )


def test_without_time_the_layouts_of_the_file_are_priced(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is CPU time: that of other processes, or of sleep, does not count."""
    asked = ("search", TWO_LAYER, "--target", "h100", "--devices", "8", "--format", "json")
    found = mtfc(*asked, "--budget", "0.001").json
    declared = {"data_parallel", "model_parallel", "hybrid", "replicated", "tiled_3d"}
    assert declared <= {*found["baselines"]} and "zero1" not in found["baselines"]
    assert found["objective_seconds"] <= min(found["baselines"].values())
    everything = mtfc(*asked, "--budget", "1").json
    assert {"zero1", "fsdp"} <= {*everything["baselines"]}
    assert found["evaluated"] < everything["evaluated"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"space": "rules"},
        {"space": "tiling"},
        {"space": "pipelines", "budget": 4},
        {"space": "soap", "target": "p100_cluster", "exhaustive": True},
        {"space": "meshes", "devices": None},
    ],
)
def test_the_first_line_says_that_the_time_ended(options: dict[str, Any]) -> None:
    file = {"meshes": "two_meshes", "pipelines": "pipeline"}.get(options.get("space", ""), "lenet")
    asked = {"target": "h100", "budget": 0.001, "devices": 4, **options}
    found = search(SearchOptions(str(EXAMPLES / f"{file}.mtf"), **asked), Sources()).result
    first, *rest = found.report().splitlines()
    assert first.startswith("The time ended after ") and ("at most " in first or "nothing is proven" in first)
    assert rest
    record = found.record()
    assert record["ending"] == "time" and not record["optimal"]
    assert record["gap"] is None or record["gap"] > 0


def test_no_pipeline_in_no_time(mtfc: Mtfc) -> None:
    asked = ("search", str(EXAMPLES / "pipeline.mtf"), "--target", "h100", "--devices", "4")
    run = mtfc(*asked, "--space", "pipelines", "--budget", "0.01")
    assert run.status == 1 and "the time ended before any pipeline was priced" in run.err


def test_a_proof_has_no_gap_and_no_line_about_the_time(mtfc: Mtfc) -> None:
    asked = ("search", TWO_LAYER, "--target", "h100", "--devices", "4", "--space", "rules")
    found = mtfc(*asked, "--format", "json").json
    assert (found["ending"], found["gap"], found["optimal"]) == ("complete", 0.0, True)
    assert "The time ended" not in mtfc(*asked).out


def test_a_plan_that_is_a_usual_layout_has_its_name(mtfc: Mtfc) -> None:
    out = mtfc(
        "search", TWO_LAYER, "--target", "h100", "--devices", "4", "--dim", "batch=65536", "--space", "rules"
    ).out
    assert re.search(
        r"  found .*1.00\n(.*\n)*  note: the plan found has the figures of \w+: none better", out
    )


def test_usual_layouts_are_priced_until_one_fits() -> None:
    priced: list[str] = []

    class Pricer:
        known: dict[tuple[Mesh, Layout], object] = {}  # noqa: RUF012
        hardware = find_hardware("h100", {})

        def __call__(self, mesh: Mesh, layout: Layout) -> object:
            priced.append(layout.name)
            price = type("Price", (), {"tiled": 0 if layout.name == "third" else 1e18})()
            self.known[mesh, layout] = price
            return price

    finder = LayoutFinder(None, Pricer(), "time")  # type: ignore[arg-type]
    layouts = [(Mesh("m", (("x", 2),)), Layout(name)) for name in ("first", "second", "third", "fourth")]
    assert [*finder.in_time(layouts, finder.pricer, process_time() - 1)] == layouts[:3]
    assert priced == ["first", "second", "third"]


def test_the_memory_of_a_device_is_an_option(mtfc: Mtfc) -> None:
    """A plan for less memory than the machine's: with micro-batches, whose options are named."""
    asked = ("search", str(EXAMPLES / "llama.mtf"), "--model", "llama", "--target", "h100", "--devices", "64")
    small = [part for each in ("layers=2", "batch=256", "length=2048") for part in ("--dim", each)]
    found = " ".join(mtfc(*asked, *small, "--memory", "6GiB", "--budget", "1").out.split())
    assert "Memory of 6 GiB: " in found
    ((number, size),) = re.findall(r"\d+ micro-batches: `--dim batch=(\d+) --set accumulate=(\d+)`", found)
    assert int(number) * int(size) == 256
    assert "a device has 1 MiB" in mtfc(*asked, *small, "--memory", "1MiB", "--budget", "0.1").err
    assert "--memory: expected a size" in mtfc(*asked, "--memory", "full").err
    with pytest.raises(NothingFits, match="a device has 1 KiB"):
        api.search(TWO_LAYER, target="h100", devices=2, memory="1KiB", budget=0.1)
    layout = ("--mesh", "all:64", "--layout", "batch:all;params:{*:all}", "--target", "h100")
    shown = mtfc("simulate", *asked[1:4], *layout, *small, "--memory", "17GiB").out
    assert re.search(r"memory +[\d.]+ GiB  of 17 GiB", shown)
