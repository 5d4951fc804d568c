"""`mtfc simulate`: text and JSON, targets, and the timeline."""

import json
from pathlib import Path

import pytest

from mtfc.compiler.cost.step_time import IN, OUT, step_time
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from tests.cli.conftest import Mtfc
from tests.search.equation_networks import EXAMPLES, example, machine

BOX = """\
hardware box = {
  device: { flops: { f32: 1e12 }, memory: 100, bandwidth: 1e11, overhead: 1e-6 }
  link wire: { kind: ring, size: 4, bandwidth: 1e9, latency: 1e-6 }
}
"""


def test_json(mtfc: Mtfc) -> None:
    found = mtfc("simulate", "model.mtf", "--target", "h100", "--layout", "data", "--format", "json").json
    assert (found["model"], found["target"], found["layout"]) == ("small", "h100", "data")
    assert (found["mesh"], found["devices"], found["fits"]) == ({"all": 2}, 2, True)
    compute, exposed = found["compute_seconds"], found["exposed_communication_seconds"]
    assert found["step_seconds"] == pytest.approx(compute + exposed)
    assert 0 < exposed <= found["communication_seconds"] * (1 + 1e-9)
    assert found["memory_per_device"].keys() == {
        "parameters",
        "gradients",
        "optimizer",
        "activations_peak",
        "total",
    }
    by_line = {line["line"]: line for line in found["lines"]}
    assert sum(line["compute_seconds"] for line in by_line.values()) == pytest.approx(compute)
    assert sum(line["exposed_communication_seconds"] for line in by_line.values()) == pytest.approx(exposed)
    assert {line["file"] for line in by_line.values()} == {"model.mtf"}


def test_text(mtfc: Mtfc) -> None:
    out = mtfc("simulate", "model.mtf", "--target", "p100_cluster", "--layout", "both").out
    assert out.startswith(
        "small, layout both: one training step on each of 6 devices [rows: 2, cols: 3], on p100_cluster"
    )
    for word in ("step", "computation", "communication", "exposed", "memory", "nvlink", "infiniband"):
        assert word in out
    assert "einsum(x, w -> [batch, classes]) + bias" in out


def test_a_dtype_without_a_rate_is_told(mtfc: Mtfc, folder: Path) -> None:
    assert "rate of" not in mtfc("simulate", "model.mtf", "--target", "v100").out
    (folder / "box.mtf").write_text(BOX.replace("f32", "f16"))
    assert (
        "f32 at the rate of f16: box has none of its own"
        in mtfc("simulate", "model.mtf", "--target", "box.mtf").out
    )


def test_a_file_without_training_is_timed_forward(mtfc: Mtfc, folder: Path) -> None:
    text = (folder / "model.mtf").read_text()
    (folder / "model.mtf").write_text(text.partition("train ")[0])
    assert "one forward pass" in mtfc("simulate", "model.mtf", "--target", "h100").out


def test_hardware_of_the_file_and_of_another(mtfc: Mtfc, folder: Path) -> None:
    (folder / "box.mtf").write_text(BOX)
    other = mtfc("simulate", "model.mtf", "--target", "box.mtf", "--format", "json").json
    with (folder / "model.mtf").open("a") as file:
        file.write(BOX)
    own = mtfc("simulate", "model.mtf", "--target", "box", "--format", "json").json
    assert own == other
    assert not own["fits"]
    assert "does NOT fit" in mtfc("simulate", "model.mtf", "--target", "box").out


def test_list(mtfc: Mtfc, folder: Path) -> None:
    (folder / "model.mtf").write_text((folder / "model.mtf").read_text() + BOX)
    out = mtfc("simulate", "model.mtf", "--target", "list").out
    assert {"box", "h100", "tpu_v2", "k80_cluster"} <= {line.split()[0] for line in out.splitlines()}


def test_place(mtfc: Mtfc) -> None:
    """The link of an axis decides the speed of its communication."""
    options = ["simulate", "model.mtf", "--target", "k80_cluster", "--layout", "both", "--format", "json"]
    default, other = mtfc(*options).json, mtfc(*options, "--place", "rows,cols").json
    assert default["links"] != other["links"]
    assert default == mtfc(*options, "--place", "cols, rows").json
    outcome = mtfc(*options, "--place", "rows")
    assert (outcome.status, "--place takes the axes of the mesh, each once: cols,rows" in outcome.err) == (
        2,
        True,
    )


def test_trace(mtfc: Mtfc, folder: Path) -> None:
    found = mtfc("simulate", "model.mtf", "--target", "h100", "--trace", "t.json", "--format", "json").json
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 and event["args"]["file"] == "model.mtf" for event in slices)
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(found["step_seconds"] * 1e6)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads == {"processor 0", *found["links"]}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["model.mtf", "--target", "h100", "--trace", "none/t.json"], 2, "none/t.json"),
        (["model.mtf", "--target", "h10"], 1, "did you mean `h100`?"),
        (["model.mtf", "--target", "model.mtf"], 1, "error[E313]: this file declares no hardware"),
        (
            ["model.mtf", "--target", "p2_8xlarge", "--mesh", "all:16", "--layout", "replicated"],
            1,
            "has 8 devices",
        ),
        (["model.mtf", "--target", "none.mtf"], 2, "cannot read none.mtf"),
        (["model.mtf"], 2, "--target"),
        (["--target", "h100"], 2, "mtfc: simulate takes a FILE; only --target list goes without one\n"),
    ],
)
def test_wrong_options(mtfc: Mtfc, arguments: list[str], status: int, text: str) -> None:
    outcome = mtfc("simulate", *arguments)
    assert (outcome.status, outcome.out) == (status, "")
    assert text in outcome.err


def test_a_timeline_on_standard_output_stands_there_alone(mtfc: Mtfc) -> None:
    run = mtfc("simulate", "model.mtf", "--target", "p100_cluster", "--layout", "data", "--trace", "-")
    assert run.json["traceEvents"] and "computation" in run.err


def test_machines_are_listed_without_a_file(mtfc: Mtfc, folder: Path) -> None:
    table = mtfc("simulate", "--target", "list")
    assert table.status == 0 and table.out.startswith("target ")
    found = mtfc("simulate", "--target", "list", "--format", "json").json
    assert [each["target"] for each in found] == [line.split()[0] for line in table.out.splitlines()[1:]]
    h100 = next(each for each in found if each["target"] == "h100")
    assert (h100["devices"], h100["memory"]) == (None, 80 * 2**30) and h100["flops"]["bf16"] > 1e14
    (folder / "own.mtf").write_text((folder / "model.mtf").read_text() + BOX)
    own = mtfc("simulate", "own.mtf", "--target", "list", "--format", "json").json
    assert own[0] == {
        "target": "box", "devices": 4, "flops": {"f32": 1e12}, "memory": 100, "links": ["wire"], "peak_figures": False,
    }  # fmt: skip
    assert own[1:] == found


def test_parameter_servers(mtfc: Mtfc) -> None:
    """All devices push 4 GiB of gradients and pull 4 GiB of parameters through the port of the server, of 10 GB/s."""
    asked = ("simulate", str(EXAMPLES / "soybean_mlp_8k.mtf"), "--layout", "data", "--target", "p2_8xlarge")
    plain = mtfc(*asked, "--format", "json").json
    one, eight = (mtfc(*asked, "--parameter-servers", n, "--format", "json").json for n in ("1", "8"))
    weights = 4 * 8192**2 * 4
    assert one["parameter_servers"] == 1 and "parameter_servers" not in plain
    assert one["exposed_communication_seconds"] == pytest.approx(2 * 8 * weights / 10e9, rel=1e-3)
    assert eight["exposed_communication_seconds"] == pytest.approx(
        2 * weights / 5e9, rel=1e-3
    )  # two devices share a switch
    assert one["compute_seconds"] == eight["compute_seconds"]
    assert (
        plain["compute_seconds"] < one["compute_seconds"]
    )  # servers take stacks of gradients, which are read again
    assert "on p2_8xlarge, with 8 parameter servers" in mtfc(*asked, "--parameter-servers", "8").out
    wrong = mtfc(*asked[:3], "model", *asked[4:], "--parameter-servers", "1")
    assert wrong.status == 2 and "does not sum gradients over devices" in wrong.err


def test_a_parameter_is_pulled_when_it_has_been_pushed() -> None:
    """Other gradients are pushed meanwhile: the port receives and sends at the same time."""
    program, line = example("two_layer"), Mesh("line", (("all", 8),))
    layout = Layout("data", Rules((("batch", line.names),)))
    hardware = machine("p2_8xlarge")
    function = lower(program, line, layout).function("step")
    step = step_time(function, line, hardware, servers=1)
    pushes, pulls = ([e for e in step.events if e.device == lane] for lane in (IN, OUT))
    assert len(pushes) == len(pulls) > 0
    for push, pull in zip(pushes, pulls, strict=True):
        assert pull.start >= push.end
