"""`mtfc simulate` of a placement: the step of `mtfc search --space soap`, and its time, bytes and memory by device and line."""

import json
from itertools import groupby, pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.declarations import placement_text
from mtfc.placements.operators.strategy import random_strategy
from mtfc.placements.placement_search import placement_space
from tests.cli.conftest import Mtfc
from tests.placements.placement_programs import PROGRAMS, prepared
from tests.sampling import some

DEVICES = 4
FIGURES = ("compute_seconds", "exposed_communication_seconds", "bytes_sent", "memory")
BOX = """
hardware box = {
  device: { flops: { f32: 1e9 }, memory: 4000, bandwidth: 1e9, overhead: 1e-6 }
  link wire: { kind: switch, size: 2, bandwidth: 1e6, latency: 1e-3 }
}
"""
TWO = """
dim batch = 8
dim io = 16
dim units = 8
model two(x: [batch, io]) {
  param w: [io, units] = zeros()
  param v: [units, io] = zeros()
  h = einsum(x, w -> [batch, units])
  y = einsum(h, v -> [batch, io])
  return y
}
"""


def random_placements(name: str, target: str) -> dict[str, str]:
    """Return three placements of a program, by name."""
    space = placement_space(prepared(name), find_hardware(target, {}), DEVICES)
    drawn = [random_strategy(space.choices, random) for random in [Random(3)] for _ in range(3)]
    names = [f"p{i}" for i in range(len(drawn))]
    texts = (placement_text(each, DEVICES, space.graph, s) for each, s in zip(names, drawn, strict=True))
    return dict(zip(names, texts, strict=True))


@pytest.mark.parametrize(
    ("name", "target"), [*product(PROGRAMS, ["k80_cluster"]), *product(some(PROGRAMS, 4), ["tpu_v4"])]
)
def test_a_step_is_that_of_the_search_and_its_lines_add_up(
    mtfc: Mtfc, folder: Path, name: str, target: str
) -> None:
    """Sums agree to the last bit: times are multiples of 2^-44 s."""
    placements = random_placements(name, target)
    (folder / "p.mtf").write_text(PROGRAMS[name] + "\n".join(placements.values()))
    asked = ("p.mtf", "--target", target, "--format", "json")
    budget = ("--space", "soap", "--devices", str(DEVICES), "--budget", "0.01")
    known = mtfc("search", *asked, *budget).json["baselines"]
    for each in placements:
        found = mtfc("simulate", *asked, "--layout", each, "--trace", "t.json").json
        assert found["step_seconds"] == known[each]
        check_sums(found)
        check_trace(found, json.loads((folder / "t.json").read_text()))


def check_sums(found: dict[str, Any]) -> None:
    compute, exposed, sent, memory = (sum(line[key] for line in found["lines"]) for key in FIGURES)
    assert compute + exposed == found["step_seconds"]
    assert (compute, exposed) == (found["compute_seconds"], found["exposed_communication_seconds"])
    assert exposed <= found["communication_seconds"] <= found["step_seconds"]
    assert (sent, memory) == (found["bytes_sent"], found["memory_per_device"]["total"])
    *parts, total = found["memory_per_device"].values()
    assert sum(parts) == total == max(each["memory"] for each in found["by_device"])
    assert len(found["by_device"]) == found["devices"] == DEVICES
    assert 0 < max(each["compute_seconds"] for each in found["by_device"]) <= found["step_seconds"]
    assert 0 < found["utilisation"] < 1
    assert bool(sent) == bool(found["links"])


def check_trace(found: dict[str, Any], trace: dict[str, Any]) -> None:
    """Each device and port has a track, on which a task ends before the next begins."""
    events = trace["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [tracks[i] for i in range(DEVICES)] == [f"device {i}" for i in range(DEVICES)]
    assert len(set(tracks.values())) == len(tracks)
    slices = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["tid"], e["ts"]))
    busy = dict.fromkeys(tracks, 0.0)
    for track, on_it in groupby(slices, lambda event: event["tid"]):
        own = list(on_it)
        assert all(one["ts"] + one["dur"] <= other["ts"] + 1e-6 for one, other in pairwise(own))
        busy[track] = sum(event["dur"] for event in own)
    for i, each in enumerate(found["by_device"]):
        assert busy[i] == pytest.approx(each["compute_seconds"] * 1e6)
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(found["step_seconds"] * 1e6)
    ports = {name: busy[track] for track, name in tracks.items() if track >= DEVICES}
    for link, seconds in found["links"].items():
        assert max(ports[name] for name in ports if name.startswith(f"{link} from")) == pytest.approx(
            seconds * 1e6
        )


def test_two_operators_on_two_devices(mtfc: Mtfc, folder: Path) -> None:
    """Nothing overlaps: the first product, a transfer of its result, the second product."""
    (folder / "two.mtf").write_text(TWO + BOX + "placement apart on 2 = { h: {} on [0], y: {} on [1] }")
    found = mtfc("simulate", "two.mtf", "--target", "box", "--layout", "apart", "--format", "json").json
    sent = 1e-3 + 4 * 8 * 8 / 1e6
    assert found["exposed_communication_seconds"] == pytest.approx(sent)
    assert found["communication_seconds"] == pytest.approx(sent)
    assert found["links"] == {"wire": pytest.approx(sent)}
    product = 1e-6 + 2 * 8 * 16 * 8 / 1e9  # longer than what it moves
    assert [each["compute_seconds"] for each in found["by_device"]] == pytest.approx([product, product])
    assert [line["compute_seconds"] for line in found["lines"]] == pytest.approx([product, product])
    assert found["utilisation"] == pytest.approx(2 * 8 * 16 * 8 / 1e9 / found["step_seconds"])
    assert (found["layout"], found["mesh"], found["fits"]) == ("apart", {}, True)


def test_text(mtfc: Mtfc, folder: Path) -> None:
    (folder / "p.mtf").write_text(PROGRAMS["dense"] + "placement p on 2 = { h: { batch: 2 } on [0, 1] }")
    out = mtfc("simulate", "p.mtf", "--target", "p100_cluster", "--layout", "p").out
    assert out.startswith("dense, placement p: one training step on 2 devices of p100_cluster\n")
    figures = ("of the peak", "on the longest path", "busiest ports: nvlink", "of 16 GiB")
    for word in (*figures, "relu(einsum(x, w"):
        assert word in out


def test_memory_of_whole_operators_on_one_device(mtfc: Mtfc, folder: Path) -> None:
    """Each parameter is stored once, with a gradient and the state of momentum."""
    (folder / "p.mtf").write_text(PROGRAMS["dense"] + "placement p on 2 = {}")
    found = mtfc("simulate", "p.mtf", "--target", "p100_cluster", "--layout", "p", "--format", "json").json
    size = 4 * (12 * 16 + 16 + 16 * 4)
    memory = found["memory_per_device"]
    assert (memory["parameters"], memory["gradients"], memory["optimizer"]) == (size, size, size)
    assert found["bytes_sent"] == 0 == found["exposed_communication_seconds"]
    assert found["by_device"][1] == {"device": 1, "compute_seconds": 0.0, "memory": 0}


def test_more_parts_than_devices(mtfc: Mtfc, folder: Path) -> None:
    """The figures depend on the devices of the parts, and not on the number of idle devices."""
    entries = "{ h: { batch: 8 } on [0, 1, 1, 1, 0, 0, 1, 0], logits: { batch: 2 } on [1, 0] }"
    (folder / "p.mtf").write_text(
        PROGRAMS["dense"] + f"placement a on 2 = {entries}\nplacement b on 8 = {entries}"
    )
    asked = ("simulate", "p.mtf", "--target", "k80_cluster", "--format", "json", "--layout")
    few, many = mtfc(*asked, "a").json, mtfc(*asked, "b").json
    assert few["step_seconds"] == many["step_seconds"] and few["lines"] == many["lines"]
    assert few["by_device"] == many["by_device"][:2]


def test_a_model_that_computes_nothing(mtfc: Mtfc, folder: Path) -> None:
    (folder / "none.mtf").write_text("dim a = 4\nmodel m(x: [a]) {\n  return x\n}\nplacement p on 2 = {}\n")
    asked = ("none.mtf", "--target", "p100_cluster", "--format", "json")
    found = mtfc("simulate", *asked, "--layout", "p").json
    assert (found["step_seconds"], found["lines"], found["links"]) == (0.0, [], {})
    search = mtfc("search", *asked, "--space", "soap", "--devices", "2").json
    assert search["optimal"] and search["baselines"]["p"] == search["objective_seconds"] == 0.0


def test_a_placement_beyond_memory_still_has_a_time(mtfc: Mtfc, folder: Path) -> None:
    text = PROGRAMS["dense"] + BOX + "placement p on 2 = { h: { batch: 2 } on [0, 1] }"
    (folder / "p.mtf").write_text(text)
    asked = ("p.mtf", "--target", "box")
    found = mtfc("simulate", *asked, "--layout", "p", "--format", "json").json
    assert not found["fits"] and found["memory_per_device"]["total"] > found["memory_of_device"] == 4000
    assert "does NOT fit in 3.906 KiB" in mtfc("simulate", *asked, "--layout", "p").out
    (folder / "p.mtf").write_text(text.replace("4000", "1e9"))
    assert mtfc("simulate", *asked, "--layout", "p", "--format", "json").json["lines"] == found["lines"]


def test_a_placement_that_does_not_fit_has_no_time_in_a_search(mtfc: Mtfc, folder: Path) -> None:
    (folder / "p.mtf").write_text(PROGRAMS["dense"] + BOX + "placement p on 2 = {}")
    asked = ("search", "p.mtf", "--target", "box", "--space", "soap", "--budget", "0.1")
    assert mtfc(*asked, "--format", "json").json["baselines"]["p"] is None
    assert "p              does not fit" in mtfc(*asked).out


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--layout", "p", "--place", "all"], 2, "`p` is a placement, which says where everything is"),
        (["--layout", "p", "--mesh", "all:4"], 2, "`p` is a placement, which has devices of its own"),
        (["--layout", "large"], 1, "placement `large` is on 32 devices, and `p100_cluster` has 16 devices"),
        (["--layout", "other"], 1, "the model has no operator `logit`"),
        (["--layout", "q"], 1, "unknown layout `q`"),
    ],
)
def test_impossible_placements_are_refused(
    mtfc: Mtfc, folder: Path, options: list[str], status: int, text: str
) -> None:
    more = "placement p on 4 = {}\nplacement large on 32 = {}\nplacement other on 2 = { logit: {} on [1] }"
    (folder / "p.mtf").write_text(PROGRAMS["dense"] + more)
    run = mtfc("simulate", "p.mtf", "--target", "p100_cluster", *options)
    assert (run.status, run.out) == (status, "")
    assert text in run.err


@pytest.mark.parametrize("command", ["cost", "explain", "diff"])
def test_other_commands_say_that_it_is_no_layout(mtfc: Mtfc, folder: Path, command: str) -> None:
    (folder / "p.mtf").write_text(PROGRAMS["dense"] + "placement p on 2 = {}")
    second = ("--layout", "p") if command == "diff" else ()
    run = mtfc(command, "p.mtf", "--layout", "p", *second)
    assert run.status == 1
    assert "`p` is a placement, and not a layout" in run.err and "`simulate`, `report`" in run.err


def test_verify_of_one_placement(mtfc: Mtfc, folder: Path) -> None:
    more = "\nplacement p on 2 = { h: { batch: 2 } on [0, 1] }\nplacement q on 2 = {}"
    (folder / "p.mtf").write_text(PROGRAMS["dense"] + more)
    asked = ("verify", "p.mtf", "--layout", "p", "--backend", "numpy", "--format", "json")
    found = mtfc(*asked).json
    assert [(case["layout"], case["backend"], case["ok"]) for case in found["cases"]] == [
        ("p", "numpy", True)
    ]
