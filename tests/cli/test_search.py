"""`mtfc search`: its output, the written file, and its options."""

import re
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mtfc.cli import search as search_command
from mtfc.compiler.search.per_equation import per_equation_search as tiling_search
from mtfc.compiler.search.solver import solver_search
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching import compilation_time, placements
from mtfc.driver.searching.pipelined import PipelineSearch
from mtfc.driver.searching.search import search
from mtfc.placements.placement_search import PlacementSpace, placement_space
from mtfc.reports.search_report import at_most, bounded, gap_over
from tests.cli.conftest import Mtfc
from tests.cli.test_simulate import BOX
from tests.placements.placement_programs import PROGRAMS
from tests.search.equation_networks import EXAMPLES
from tests.search.test_global_layouts_exhaustive import STACK


def test_json(mtfc: Mtfc) -> None:
    found = mtfc("search", "model.mtf", "--devices", "4", "--target", "tpu_v2", "--format", "json").json
    assert (found["space"], found["target"], found["devices"]) == ("plan", "tpu_v2", 4)
    assert found["optimal"] and found["lower_bound_seconds"] == found["objective_seconds"]
    assert all(found["objective_seconds"] <= seconds for seconds in found["baselines"].values())
    assert found["objective_seconds"] <= found["compute_seconds"] + found["communication_seconds"]
    assert found["evaluated"] > 0 and found["search_seconds"] > 0
    assert set(found["baselines"]) >= {"data_parallel"}


def test_the_file_it_writes_has_the_layout_as_its_first(mtfc: Mtfc, tmp_path: Path) -> None:
    out = str(tmp_path / "best.mtf")
    found = mtfc("search", "model.mtf", "--devices", "4", "-o", out, "--format", "json").json
    cost = mtfc("cost", out, "--layout", "found", "--format", "json").json["layouts"][0]
    assert (cost["layout"], cost["mesh"]) == ("found", found["mesh"])
    assert cost["memory_per_device"]["total"] == found["memory_per_device"]
    assert mtfc("compile", out).status == 0
    other = str(tmp_path / "again.mtf")
    again = mtfc("search", out, "--devices", "4", "-o", other, "--format", "json").json
    assert again["objective_seconds"] == found["objective_seconds"]
    assert "found_2" in Path(other).read_text("utf-8")


def test_a_declared_mesh_is_not_declared_again(mtfc: Mtfc, tmp_path: Path) -> None:
    out = tmp_path / "best.mtf"
    assert mtfc("search", "model.mtf", "--mesh", "line", "-o", str(out)).status == 0
    assert out.read_text("utf-8").count("mesh ") == Path("model.mtf").read_text("utf-8").count("mesh ")


def test_layouts_go_on_saying_which_mesh_they_are_on(mtfc: Mtfc, tmp_path: Path) -> None:
    """With a second mesh in the file, the layouts without a mesh must name theirs."""
    Path("one.mtf").write_text(
        "dim batch = 64\nmesh line = [all: 8]\nlayout data = { batch: all }\n"
        "model m(x: [batch]) {\n  y = relu(x)\n  return y\n}\n"
    )
    out = tmp_path / "best.mtf"
    assert mtfc("search", "one.mtf", "--devices", "4", "-o", str(out)).status == 0
    assert "layout data on line = { batch: all }" in out.read_text("utf-8")
    assert mtfc("check", str(out)).status == 0


def test_a_mesh_that_no_layout_is_for(mtfc: Mtfc, tmp_path: Path) -> None:
    out, asked = str(tmp_path / "best.mtf"), ("--mesh", "up:2;down:2", "--target", "tpu_v2")
    found = mtfc("search", "model.mtf", *asked, "--format", "json", "-o", out).json
    assert found["mesh"] == {"up": 2, "down": 2}
    assert mtfc("check", out).status == 0


def test_a_machine_of_the_file_is_the_default(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(
        BOX.replace("memory: 100", "memory: 1e9") + Path("model.mtf").read_text("utf-8")
    )
    found = mtfc("search", "own.mtf", "--format", "json").json
    assert (found["target"], found["devices"]) == ("box", 4)


@pytest.mark.parametrize(
    ("space", "message"),
    [("rules", "no layout's memory suffices"), ("tiling", "no tiling's memory suffices")],
)
def test_nothing_fits(mtfc: Mtfc, space: str, message: str) -> None:
    Path("own.mtf").write_text(BOX + Path("model.mtf").read_text("utf-8"))
    run = mtfc("search", "own.mtf", "--space", space)
    assert run.status == 1
    assert f"{message}: a device has 100 B" in run.err


def test_a_part_of_a_machine_is_no_memory_limit(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(BOX.replace("memory: 100", "memory: 80e3") + STACK)
    wrong = mtfc("cost", "own.mtf", "--memory", "box:gpu")
    assert wrong.status == 2 and wrong.err.startswith("mtfc: --memory: `box` has one kind of device")


def test_micro_batches_are_found_where_nothing_else_fits(mtfc: Mtfc) -> None:
    """The batch of the step stays the same: 1,024 examples. The file that the search writes has both numbers."""
    Path("own.mtf").write_text(BOX.replace("memory: 100", "memory: 12e3") + STACK)
    found = search(SearchOptions("own.mtf", devices=4), Sources())
    assert "micro-batches: `--dim batch=" in found.result.report()
    written = found.written()
    Path("found.mtf").write_text(written)
    (batch,), (number,) = (
        re.findall(r"dim batch = (\d+)", written),
        re.findall(r"accumulate = (\d+)", written),
    )
    assert int(batch) * int(number) == 1024 and int(number) > 1
    (cost,) = mtfc("cost", "found.mtf", "--layout", "found", "--format", "json").json["layouts"]
    assert cost["memory_per_device"]["total"] <= 12_000
    again = mtfc("search", "found.mtf", "--devices", "4", "--format", "json", "--budget", "1").json
    assert again["objective_seconds"] == pytest.approx(found.result.record()["objective_seconds"])


def test_nothing_fits_names_the_nearest_layout(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(BOX.replace("memory: 100", "memory: 1e3") + STACK)
    found = mtfc("search", "own.mtf", "--devices", "4")
    assert found.status == 1 and "the nearest is {" in found.err and "more devices" in found.err


LAYERS = """
dim layers = 8
dim batch = 64
dim d = 32
dim h = 64
model deep(x: [batch, d]) {
  y = x
  repeat layers {
    param w: [d, h] = normal(stddev = 0.1)
    param v: [h, d] = normal(stddev = 0.1)
    y = einsum(relu(einsum(y, w -> [batch, h])), v -> [batch, d])
  }
  loss = mean(square(y))
  return loss
}
train deep {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


def test_pipelines_are_found_written_and_priced_as_they_run(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(LAYERS)
    asked = ("--space", "pipelines", "--target", "p100_cluster", "--devices", "4", "--recompute")
    found = mtfc("search", "own.mtf", *asked, "-o", "found.mtf", "--format", "json").json
    assert "pipeline layers: {" in found["layout"] and not found["optimal"] and not found["recomputed"]
    assert mtfc("check", "found.mtf").status == 0
    (cost,) = mtfc("cost", "found.mtf", "--format", "json").json["layouts"]
    assert cost["pipelines"] and cost["memory_per_device"]["total"] == found["memory_per_device"]
    simulated = mtfc("simulate", "found.mtf", "--target", "p100_cluster", "--format", "json").json
    assert simulated["compute_seconds"] == pytest.approx(found["compute_seconds"])
    again = mtfc("search", "found.mtf", "--target", "p100_cluster", "--devices", "4", "--format", "json").json
    assert again["baselines"]["found"] == found["objective_seconds"]
    assert again["objective_seconds"] <= found["objective_seconds"]


ROOMY = """
hardware tight = {
  device: { flops: { f32: 1e13 }, memory: MEMORY, bandwidth: 1e12 }
  link wire: { kind: switch, size: 8, bandwidth: 1e11, latency: 1e-6 }
}
"""


def test_pipelines_store_parameters_in_parts_where_memory_is_short(mtfc: Mtfc) -> None:
    """Only the batch can be split beside the layers, and a stage's parameters and state do not fit whole."""
    wide = LAYERS.replace("dim d = 32", "dim d = 256").replace("dim h = 64", "dim h = 1023")
    text = ROOMY.replace("MEMORY", "20e6") + wide.replace("sgd", "adam")
    Path("own.mtf").write_text(text)
    asked = ("--space", "pipelines", "--devices", "8", "--axes", "2", "--budget", "3")
    found = mtfc("search", "own.mtf", *asked, "-o", "found.mtf", "--format", "json").json
    assert "pipeline layers" in found["layout"] and "params: { *: " in found["layout"]
    (cost,) = mtfc("cost", "found.mtf", "--format", "json").json["layouts"]
    assert cost["memory_per_device"]["total"] == found["memory_per_device"] <= 20e6


def test_no_pipeline_fits(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(BOX.replace("memory: 100", "memory: 9e3") + LAYERS)
    run = mtfc("search", "own.mtf", "--space", "pipelines")
    assert run.status == 1 and "no pipeline was found whose memory suffices" in run.err


@pytest.mark.parametrize("layers", ["layers: (a, b)", "layers: a"])
def test_pipelines_begin_with_those_of_the_file(mtfc: Mtfc, layers: str) -> None:
    """The result is at most as slow, also if stages lie on two axes, which the search itself does not try."""
    own = f"mesh grid = [a: 2, b: 2]\nlayout own on grid = {{ {layers}, pipeline layers: {{ batch: 8 }} }}\n"
    Path("own.mtf").write_text(own + LAYERS)
    for space in ("plan", "pipelines"):
        asked = ("--target", "p100_cluster", "--devices", "4", "--space", space, "--budget", "0.01")
        found = mtfc("search", "own.mtf", *asked, "--format", "json").json
        assert found["objective_seconds"] <= found["baselines"]["own"]


def test_spaces_are_parts_of_the_plan(mtfc: Mtfc) -> None:
    """A search with less to choose is never better than the plan, and each has the price of the plan's own pricer."""
    Path("own.mtf").write_text("mesh line = [all: 4]\nlayout own on line = { batch: all }\n" + LAYERS)
    asked = ("search", "own.mtf", "--target", "p100_cluster", "--format", "json", "--budget", "1")
    plan = mtfc(*asked, "--devices", "4").json["objective_seconds"]
    for space in ("rules", "pipelines", "forms"):
        devices = () if space == "forms" else ("--devices", "4")
        assert mtfc(*asked, *devices, "--space", space).json["objective_seconds"] >= plan * (1 - 1e-12)


def test_an_interrupt_among_pipelines_leaves_the_layout(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*asked: object) -> None:
        raise KeyboardInterrupt

    Path("own.mtf").write_text(LAYERS)
    monkeypatch.setattr(PipelineSearch, "best", interrupted)
    run = mtfc(
        "search", "own.mtf", "--target", "p100_cluster", "--devices", "4", "--axes", "1", "-o", "found.mtf"
    )
    assert run.status == 0 and "Interrupted. " in run.out
    assert mtfc("check", "found.mtf").status == 0


@pytest.mark.parametrize("space", ["plan", "rules", "tiling"])
def test_steps_with_and_without_overlap(mtfc: Mtfc, space: str) -> None:
    options = ("search", "model.mtf", "--mesh", "line", "--target", "tpu_v2", "--space", space)
    found = mtfc(*options, "--objective", "time", "--format", "json").json
    assert found["lower_bound_seconds"] <= found["objective_seconds"] == found["overlapping_seconds"]
    assert found["baselines"] == found["overlapping_baselines"]
    serial = mtfc(*options, "--objective", "serial", "--format", "json").json
    assert serial["objective_seconds"] >= serial["overlapping_seconds"] >= found["objective_seconds"]
    assert "without overlap" in mtfc(*options, "--objective", "serial").out


def test_why_not(mtfc: Mtfc) -> None:
    options = ("search", "model.mtf", "--mesh", "line", "--target", "tpu_v2", "--why-not", "batch: all")
    out = mtfc(*options).out
    assert "Why not { batch: all }: the best layout with it takes" in out
    assert "from layout found to layout forced" in out
    found = mtfc(*options, "--format", "json").json
    forced = found["why_not"]
    assert "batch: all" in forced["layout"]
    assert forced["optimal"] and forced["objective_seconds"] >= found["objective_seconds"]
    lines = sum(line["bytes_per_device"][1] for line in forced["difference"]["lines"])
    assert lines == forced["difference"]["bytes_per_device"][1]
    for which, best in enumerate((found, forced)):
        lines = sum(line["seconds"][which] for line in forced["difference"]["lines"])
        assert lines == pytest.approx(best["objective_seconds"])


def test_why_not_what_was_found(mtfc: Mtfc) -> None:
    """The found rules cost nothing more: both searches include the storage of parameters."""
    options = (
        "search", "model.mtf", "--mesh", "line", "--target", "tpu_v2", "--storage", "--objective", "memory",
    )  # fmt: skip
    found = mtfc(*options, "--format", "json").json
    assert "params" in found["layout"]
    again = mtfc(*options, "--why-not", found["layout"].split(", params")[0], "--format", "json").json
    assert again["why_not"]["memory_per_device"] == found["memory_per_device"]


TANHS = """dim batch = 4
dim io = 6
mesh line = [all: 2]
layout whole on line = {}
model deep(x: f32[batch, io]) {
  param w: f32[io] = zeros()
  a = tanh(x * w)
  b = tanh(exp(a) * w)
  c = tanh(exp(b) * w)
  d = tanh(exp(c) * w)
  loss = mean(square(tanh(exp(d) * w)))
  return loss
}
train deep { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


@pytest.mark.parametrize(("batch", "micro"), [("4", True), ("3", False), ("1", False)])
def test_the_least_memory_tries_recomputation_and_micro_batches(mtfc: Mtfc, batch: str, micro: bool) -> None:
    """An odd batch has a single micro-batch, and values are computed again. No proof covers either."""
    Path("tanhs.mtf").write_text(TANHS)
    asked = ("search", "tanhs.mtf", "--dim", f"batch={batch}", "--target", "h100", "--mesh", "line")
    least = (*asked, "--objective", "memory")
    found = mtfc(*least, "-o", "best.mtf", "--format", "json").json
    kept = mtfc(*least, "--space", "rules", "--format", "json").json
    assert found["memory_per_device"] < kept["memory_per_device"] and not found["optimal"]
    cost = mtfc("cost", "best.mtf", "--layout", "found", "--format", "json").json["layouts"][0]
    assert cost["memory_per_device"]["total"] == found["memory_per_device"] == found["objective_bytes"]
    written = Path("best.mtf").read_text("utf-8")
    assert ("accumulate = 4" in written, "recompute: " in written) == (micro, not micro)
    report = " ".join(mtfc(*least).out.split())
    assert "without recomputation, other forms or a pipeline" in report and "space `plan`" not in report


TILING = ("search", "model.mtf", "--mesh", "line", "--target", "tpu_v2", "--space", "tiling")


def test_why_not_another_tiling_of_an_equation(mtfc: Mtfc) -> None:
    rule = "value forward.einsum: {}"
    found = mtfc(*TILING, "--why-not", rule, "--format", "json").json
    forced = found["why_not"]
    assert forced["rules"] == rule and forced["optimal"]
    assert rule in forced["layout"] and rule not in found["layout"]
    assert forced["objective_seconds"] > found["objective_seconds"]
    assert f"Why not {{ {rule} }}" in mtfc(*TILING, "--why-not", rule).out


def test_only_equations_with_a_split_are_shown(mtfc: Mtfc) -> None:
    written = mtfc(*TILING, "-o", "best.mtf").out
    assert "value forward.einsum: {" in written and ": {}" not in written
    shown, count = (int(number) for number in re.findall(r"These are (\d+) of (\d+) equations", written)[0])
    assert shown == written.count("    value ") <= 30
    assert count == Path("best.mtf").read_text().count("  value ")


DECODER = """
import losses
import nn
import transformer
dim batch = 16; dim length = 1024; dim memory = length; dim vocab = 8192; dim width = 1024
dim groups = 2; dim heads = 4; dim depth = 128; dim hidden = 4096; dim layers = 4
mesh grid = [data: 2, model: 2]
layout plain on grid = { batch: data, vocab: model, groups: model, hidden: model }
layout chosen on grid = { batch: data, vocab: model, groups: model, hidden: model, forms: { regions: memory } }
model lm(tokens: i32[batch, length]) {
  x = nn.embedding[vocab = vocab, d_model = width](tokens)
  repeat layers checkpoint {
    x = transformer.llama_layer[memory = memory, groups = groups, heads = heads, d_k = depth, d_ff = hidden](x)
  }
  loss = losses.softmax_cross_entropy(nn.dense_no_bias[d_out = vocab](x), tokens)
  return loss
}
train lm {
  minimize loss
  optimizer = adamw(learning_rate = 1e-3)
  precision = { params: f32, compute: bf16 }
}
"""
FORMS = ("search", "decoder.mtf", "--target", "tpu_v5p", "--space", "forms")


def test_forms_of_one_layout_keep_its_rules(mtfc: Mtfc) -> None:
    Path("decoder.mtf").write_text(DECODER)
    found = mtfc(*FORMS, "--format", "json", "-o", "best.mtf").json
    assert found["layout"].startswith("batch: data, vocab: model, groups: model, hidden: model")
    assert found["forms"] == {"regions": "time", "dots": "joined", "flops_per_byte": 233}
    assert found["objective_seconds"] < 0.999 * found["without_forms"]["objective_seconds"]
    simulated = ("simulate", "best.mtf", "--target", "tpu_v5p", "--format", "json")
    assert mtfc(*simulated, "--layout", "found").json["step_seconds"] == found["overlapping_seconds"]
    declared = mtfc(*FORMS, "--layout", "chosen", "--format", "json").json
    assert declared["objective_seconds"] == found["objective_seconds"]
    assert list(declared["baselines"]) == ["chosen"] and found["baselines"] == {}


def test_a_layout_that_no_forms_improve(mtfc: Mtfc) -> None:
    Path("decoder.mtf").write_text(DECODER)
    run = mtfc(*FORMS, "--layout", "{ batch: data }", "--mesh", "data:4")
    assert run.status == 0 and "No `forms` of this layout save a thousandth. 6 layouts were" in run.out


def test_a_layout_that_fits_only_with_forms(mtfc: Mtfc) -> None:
    device = "device: { flops: { f32: 1e14, bf16: 2e14 }, memory: 1.26e9, bandwidth: 1e12 }"
    tight = f"hardware tight = {{ {device}; link wire: {{ kind: switch, size: 4, bandwidth: 1e11 }} }}"
    Path("decoder.mtf").write_text(DECODER + tight)
    run = mtfc("search", "decoder.mtf", "--space", "forms", "--target", "tight")
    assert run.status == 0 and "fits into the memory with these `forms`, and not without" in run.out


CUTS = ("search", "model.mtf", "--target", "p100_cluster", "--space", "kcuts", "--budget", "20")


def test_k_cuts_beside_the_fewest_bytes(mtfc: Mtfc) -> None:
    found = mtfc(*CUTS, "--devices", "4", "--format", "json", "-o", "cut.mtf").json
    assert (found["objective"], found["mesh"]) == ("bytes", {"x": 2, "y": 2})
    after = found["bytes_after_cuts"]
    assert len(after) == 2 and after[0] <= after[1] == 4 * found["objective_bytes"]
    assert 0 < found["lower_bound_bytes"] <= found["objective_bytes"] and found["lower_bound_seconds"] is None
    assert 0 < found["bytes_sent"] <= found["objective_bytes"]
    assert mtfc("verify", "cut.mtf", "--layout", "found", "--backend", "numpy").status == 0
    out = mtfc(*CUTS, "--devices", "4", "--axes-names", "a,b").out
    assert (
        "After each cut, all devices together send" in out
        and "mesh found_mesh = [a: 2, b: 2]" in out
        and "sends" in out
    )
    asked = ("search", "model.mtf", "--target", "p100_cluster", "--devices", "4", "--space", "tiling")
    best = mtfc(*asked, "--objective", "bytes", "--format", "json").json
    assert best["optimal"] and best["objective_bytes"] <= found["objective_bytes"]
    assert best["layout"] and "sends" in mtfc(*asked, "--objective", "bytes").out


def test_one_cut_and_cuts_of_a_given_mesh(mtfc: Mtfc) -> None:
    assert "After each cut" in mtfc(*CUTS, "--devices", "1").out
    given = mtfc(*CUTS, "--mesh", "up:1;down:2", "--format", "json").json
    assert given["mesh"] == {"up": 1, "down": 2} and given["bytes_after_cuts"][0] == 0


def test_tilings_start_from_the_best_global_layout(mtfc: Mtfc) -> None:
    """The solver's layouts take longer on a TPU: it does not know that small programs lie in the scratchpad."""
    machine = ("--target", "tpu_v2", "--devices", "8", "--format", "json")
    asked = ("search", str(EXAMPLES / "two_layer.mtf"), *machine)
    best = mtfc(*asked, "--space", "rules", "--objective", "serial").json
    tiling = mtfc(*asked, "--space", "tiling").json
    assert best["objective_seconds"] == tiling["objective_seconds"]
    assert tiling["lower_bound_seconds"] < tiling["objective_seconds"]


def test_a_tiling_is_written_and_exported(mtfc: Mtfc, tmp_path: Path) -> None:
    out, exported = str(tmp_path / "tiled.mtf"), str(tmp_path / "instance.json")
    found = mtfc(
        *("search", "model.mtf", "--devices", "4", "--target", "tpu_v2", "--space", "tiling"),
        *("-o", out, "--export", exported, "--format", "json"),
    ).json
    assert found["space"] == "tiling" and found["optimal"]
    assert found["objective_seconds"] <= min(found["baselines"].values())
    assert mtfc("check", out).status == 0
    assert mtfc("verify", out, "--layout", "found", "--backend", "numpy").status == 0
    step = mtfc("simulate", out, "--layout", "found", "--target", "tpu_v2", "--format", "json").json
    assert step["memory_per_device"]["total"] == found["memory_per_device"]
    solved = mtfc("solve", exported).json
    assert solved["cost"] == solved["lower_bound"]


@pytest.mark.parametrize("space", ["rules", "soap"])
def test_a_file_that_is_written_to_standard_output_stands_there_alone(mtfc: Mtfc, space: str) -> None:
    asked = ("search", "model.mtf", *PLACED, "--space", space, "-o", "-")
    run = mtfc(*asked)
    assert run.out.startswith("dim batch = 4") and "found" in run.out
    assert run.out.rstrip().endswith("}") and "a step" not in run.out and "a step" in run.err
    assert '"optimal"' in mtfc(*asked, "--format", "json").err


def test_the_bound_of_a_tiling_is_not_rounded_above_it(mtfc: Mtfc, folder: Path) -> None:
    """The solver counts in picoseconds, and rounds 10.92896 ns up."""
    (folder / "few.mtf").write_text("dim a = 1000\nmodel m(x: [a]) {\n  y = relu(x)\n  return y\n}\n")
    machine = ("--target", "p100_cluster", "--devices", "1")
    found = mtfc("search", "few.mtf", *machine, "--space", "tiling", "--format", "json").json
    assert found["optimal"]
    assert found["lower_bound_seconds"] == found["objective_seconds"] == pytest.approx(8000 / 732e9)


@pytest.mark.parametrize("space", ["rules", "soap"])
def test_an_earlier_result_keeps_its_name_in_the_comparison(mtfc: Mtfc, folder: Path, space: str) -> None:
    asked = (*PLACED, "--space", space)
    mtfc("search", "model.mtf", *asked, "-o", "once.mtf")
    run = mtfc("search", "once.mtf", *asked, "-o", "twice.mtf")
    rows = [line.split()[0] for line in run.out.splitlines() if re.match(r"  found", line)]
    assert rows == ["found_2", "found"]
    assert re.search(r"(layout|placement) found_2 on", run.out)
    assert re.search(r"(layout|placement) found_2 on", (folder / "twice.mtf").read_text())


def test_the_options_of_the_chains(mtfc: Mtfc) -> None:
    chains = ("--seed", "7", "--beta", "100", "--proposals", "30", "--budget", "60", "--dimensions", "S,P")
    asked = ("search", "model.mtf", *PLACED, "--devices", "4", *chains, "--format", "json")
    found = mtfc(*asked, "--one-dimension", "--starts", "expert, random").json
    assert found["restricted_to"] == "S, P, one dimension"
    assert [each["objective_seconds"] for each in found["history"]][-1] == found["objective_seconds"]
    assert not re.search(r": \{ \w+: \d, ", found["layout"])
    delta, full = (mtfc(*asked, "--simulation", each).json for each in ("delta", "full"))
    assert delta["layout"] == full["layout"] and delta["evaluated"] == full["evaluated"]
    assert delta["objective_seconds"] <= found["objective_seconds"]
    assert "restricted to S, P\n" in mtfc(*asked[:-2]).out
    alone = mtfc(*asked[:-2], "--dimensions", "O", "--format", "json").json["layout"]
    assert "on [0]" in alone and not re.search(r"\w+: \d", alone)


PLACED = ("--space", "soap", "--target", "p100_cluster", "--devices", "2", "--budget", "0.5")


def test_a_placement_that_was_found_runs(mtfc: Mtfc, tmp_path: Path) -> None:
    out = str(tmp_path / "placed.mtf")
    found = mtfc("search", "model.mtf", *PLACED, "-o", out, "--format", "json").json
    assert (found["space"], found["devices"]) == ("soap", 2)
    assert 0 < found["lower_bound_seconds"] <= found["objective_seconds"] <= min(found["baselines"].values())
    assert found["layout"] in Path(out).read_text("utf-8")
    assert mtfc("verify", out, "--backend", "numpy").status == 0
    other = str(tmp_path / "again.mtf")
    again = mtfc("search", out, *PLACED, "-o", other)
    assert "placement found_2" in Path(other).read_text("utf-8")
    assert "  found " in again.out and "data_parallel" in again.out


def test_a_search_goes_on_from_the_placements_of_the_file(mtfc: Mtfc, tmp_path: Path) -> None:
    """The declared layouts are better than a result without any search time."""
    out, asked = (
        str(tmp_path / "placed.mtf"),
        ("--space", "soap", "--target", "p100_cluster", "--devices", "4"),
    )
    (tmp_path / "small.mtf").write_text(PROGRAMS["recurrent"])
    found = mtfc("search", "small.mtf", *asked, "--budget", "2", "-o", out, "--format", "json").json
    assert found["objective_seconds"] < 0.9 * min(found["baselines"].values())
    again = mtfc("search", out, *asked, "--budget", "1e-9", "--format", "json").json
    assert again["objective_seconds"] == again["baselines"]["found"] == found["objective_seconds"]
    assert again["layout"] == found["layout"].replace("placement found", "placement found_2")
    shown = mtfc("search", out, *asked, "--budget", "1e-9").out
    assert re.search("^  found_2 .* 1.00\n(.*\n)*  found .* 1.00$", shown, re.MULTILINE)


def test_placements_are_proven_to_be_the_best(mtfc: Mtfc) -> None:
    found = mtfc("search", "model.mtf", *PLACED[:-1], "20", "--exhaustive", "--format", "json").json
    assert found["optimal"] and found["locally_optimal"]
    assert found["lower_bound_seconds"] == found["objective_seconds"]


def test_few_placements_are_all_looked_at(mtfc: Mtfc, folder: Path) -> None:
    text = "dim a = 4\nmodel m(x: [a]) {\n  y = relu(x)\n  return y\n}\n"
    (folder / "few.mtf").write_text(text)
    found = mtfc("search", "few.mtf", *PLACED, "--format", "json").json
    assert found["optimal"] and found["strategies"] <= 100
    assert found["evaluated"] <= 4 * found["strategies"]  # with or without a random start


TWO_OPERATORS = """\
dim batch = 4
dim io = 6
dim classes = 3
model two(x: f32[batch, io]) {
  param w: f32[io, classes] = normal(stddev = 0.5)
  param v: f32[classes, io] = normal(stddev = 0.5)
  h = relu(einsum(x, w -> [batch, classes]))
  loss = mean(square(einsum(h, v -> [batch, io]) - x))
  return loss
}
train two { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


@pytest.fixture
def two_operators(folder: Path) -> str:
    (folder / "two.mtf").write_text(TWO_OPERATORS)
    return "two.mtf"


def test_why_not_another_placement(mtfc: Mtfc, two_operators: str) -> None:
    rules = "h: { classes: 3 }; loss: {} on [2]"
    options = ("search", two_operators, *PLACED[:4], "--devices", "3", "--budget", "2", "--why-not", rules)
    found = mtfc(*options, "--format", "json").json
    forced, difference = found["why_not"], found["why_not"]["difference"]
    assert forced["rules"] == rules
    assert "  h: { classes: 3 } on [0, 1, 2]\n  loss: {} on [2]\n" in forced["layout"]
    assert not found["optimal"] or forced["objective_seconds"] >= found["objective_seconds"]
    keys = {
        "seconds": "objective_seconds",
        "bytes_sent": "bytes_sent",
        "memory_per_device": "memory_per_device",
    }
    for key, whole in keys.items():
        assert difference[key] == [found[whole], forced[whole]]
        for which in (0, 1):
            lines = sum(line[key][which] for line in difference["lines"])
            assert lines == pytest.approx(difference[key][which])
    operators = {name for line in difference["lines"] for name in line["operators"]}
    assert operators <= {"h", "loss"} and all(line["line"] > 0 for line in difference["lines"])
    out = mtfc(*options).out
    assert f"Why not {{ {rules} }}: the best placement with it" in out
    assert (
        "from placement found to placement forced" in out and "forced: h: { classes: 3 } on [0, 1, 2]" in out
    )


def test_placements_of_more_parts_than_devices_are_not_compared(mtfc: Mtfc) -> None:
    text = f"{TWO_OPERATORS}\nplacement twice on 2 = {{ h: {{ batch: 4 }} on [0, 1, 0, 1] }}\n"
    Path("twice.mtf").write_text(text)
    assert "twice" not in mtfc("search", "twice.mtf", *PLACED, "--format", "json").json["baselines"]


@pytest.mark.parametrize("space", ["rules", "tiling", "soap"])
def test_one_device(mtfc: Mtfc, space: str) -> None:
    asked = ("--devices", "1", "--target", "p100_cluster", "--space", space, "--budget", "5")
    found = mtfc("search", "model.mtf", *asked, "--format", "json").json
    assert found["devices"] == 1 and found["objective_seconds"] > 0
    assert "on 1 device of p100_cluster" in mtfc("search", "model.mtf", *asked).out


LARGE = """\
dim time = 4
dim batch = 64
dim units = 4096
model m(x: [time, batch, units]) {
  h = zeros([batch, units])
  scan now = x along time {
    h = exp(now) * h + 1.0
  }
  return h
}
"""


@pytest.mark.parametrize("space", ["rules", "tiling"])
def test_the_mesh_that_is_asked_for_is_the_one_that_is_used(mtfc: Mtfc, folder: Path, space: str) -> None:
    """The result is on this mesh even though data parallelism on a mesh of one axis is as good."""
    (folder / "large.mtf").write_text(LARGE)
    asked = ("--mesh", "up:2;down:2", "--target", "h100", "--space", space)
    found = mtfc("search", "large.mtf", *asked, "--format", "json").json
    assert found["mesh"] == {"up": 2, "down": 2}
    assert found["objective_seconds"] == found["baselines"]["data_parallel"]


@pytest.mark.parametrize("space", ["rules", "soap"])
def test_data_parallelism_splits_no_dimension_that_a_loop_runs_along(
    mtfc: Mtfc, folder: Path, space: str
) -> None:
    (folder / "large.mtf").write_text(LARGE)
    asked = ("--target", "p100_cluster", "--space", space, "--budget", "2", "--format", "json")
    whole = mtfc("search", "large.mtf", "--devices", "1", *asked).json["objective_seconds"]
    split = mtfc("search", "large.mtf", "--devices", "4", *asked).json["baselines"]["data_parallel"]
    assert split < whole / 2


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (40.2, "40.2 times the best"),
        (1.333, "33.3% above the best"),
        (1.0000212, "0.0021% above the best"),
    ],
)
def test_distances_from_the_optimum_are_rounded_up(ratio: float, text: str) -> None:
    assert at_most(ratio) == text


def test_nothing_is_below_zero() -> None:
    assert gap_over(0.0, 0.0) == 0 and gap_over(3.0, 2.0) == 0.5 and gap_over(3.0, 0.0) is None
    assert bounded("layout", 0.0, 0.0, str) == "Proven: no layout is better."
    assert "Nothing is proven" in bounded("layout", 3.0, 0.0, str)


@pytest.mark.parametrize("space", ["tiling", "soap"])
def test_compiling_the_loops_of_a_search_takes_nothing_of_its_budget(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    event = pytest.importorskip("numba.core.event")

    def compiled() -> None:
        with event.trigger_event("numba:compile"):
            time.sleep(1.5)

    def compiled_space(*arguments: Any, **options: Any) -> PlacementSpace:
        compiled()
        return placement_space(*arguments, **options)

    monkeypatch.setattr(placements, "placement_space", compiled_space)
    monkeypatch.setattr(solver_search, "compile_loops", compiled)
    monkeypatch.setattr(compilation_time, "SHORT", 1.0)
    (folder / "few.mtf").write_text("dim a = 4\nmodel m(x: [a]) {\n  y = relu(x)\n  return y\n}\n")
    run = mtfc("search", "few.mtf", *PLACED, "--space", space, "--format", "json")
    assert run.json["optimal"]
    assert "not in the --budget" in run.err


@pytest.mark.parametrize("space", ["rules", "tiling", "soap"])
def test_written_files_have_the_sizes_of_the_search(mtfc: Mtfc, folder: Path, space: str) -> None:
    """The mesh of the result might not divide the sizes in the file."""
    text = (folder / "model.mtf").read_text("utf-8").replace("dim io = 6", "dim io = (2 +\n 4) * 1  # units")
    (folder / "model.mtf").write_text(text)
    asked = (
        "--dim", "io=12", "--dim", "batch=8", "--devices", "8", "--target", "p100_cluster", "--budget", "5",
    )  # fmt: skip
    assert mtfc("search", "model.mtf", *asked, "--space", space, "-o", "out.mtf").status == 0
    written = Path("out.mtf").read_text("utf-8")
    assert "dim batch = 8\ndim io = 12  # units\ndim classes = 3\n" in written
    assert " found on " in written
    assert mtfc("verify", "out.mtf", "--backend", "numpy").status == 0


@pytest.mark.parametrize("option", ["-o", "--export"])
def test_an_unwritable_file_is_reported_before_the_search(mtfc: Mtfc, folder: Path, option: str) -> None:
    asked = ("search", "model.mtf", "--mesh", "line", "--space", "tiling", "--budget", "1000000", option)
    with patch.object(search_command, "search", side_effect=AssertionError("it searches")):
        for path, reason in (
            (str(folder / "none" / "out"), "no such directory"),
            (str(folder), "is a directory: name a file in it"),
        ):
            run = mtfc(*asked, path)
            assert (run.status, run.out, run.err) == (2, "", f"mtfc: cannot write {path}: {reason}\n")


DEEP = """\
dim batch = 64
dim units = 64
dim made = units
dim time = 200
model m(x: [batch, units]) {
  param w: [units, made] = normal(stddev = 0.1)
  repeat time {
    x = rename(tanh(einsum(x, w -> [batch, made])), made -> units)
  }
  return x
}
"""


def test_more_placements_than_floats_count(mtfc: Mtfc, folder: Path) -> None:
    """A deep network on many devices has 10^700 placements."""
    (folder / "deep.mtf").write_text(DEEP)
    asked = ("--space", "soap", "--target", "k80_cluster", "--devices", "64", "--budget", "1")
    run = mtfc("search", "deep.mtf", *asked)
    assert run.status == 0
    assert re.search(r"Of \d\.\d\de\+\d{3} strategies of", run.out)
    assert mtfc("search", "deep.mtf", *asked, "--format", "json").json["strategies"] is None


def test_an_interrupted_search_for_tilings_says_so(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*asked: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiling_search, "timed_network", interrupted)
    out = mtfc(*TILING).out
    assert "Interrupted. No layout in the space `tiling` is below" in out and "--budget" not in out


SEVEN = ("search", "model.mtf", "--devices", "7", "--target", "h100")


@pytest.mark.parametrize("space", ["rules", "tiling"])
def test_why_nothing_is_split(mtfc: Mtfc, space: str) -> None:
    asked = (*SEVEN, "--space", space)
    reason = "the size of no dimension that can be split is a multiple of 7 (batch: 4, classes: 3, io: 6)"
    assert mtfc(*asked, "--format", "json").json["nothing_split"] == reason
    assert f"note: nothing is split: {reason}" in " ".join(mtfc(*asked).out.split())


def test_why_nothing_is_split_where_it_could_be(mtfc: Mtfc) -> None:
    """The small model takes less time undistributed than with any communication."""
    asked = ("search", "model.mtf", "--devices", "3", "--target", "h100")
    serial = (*asked, "--objective", "serial")
    found = mtfc(*serial, "--format", "json").json
    assert found["layout"] == "" and found["nothing_split"]
    assert f"note: nothing is split: {found['nothing_split']}" in " ".join(mtfc(*serial).out.split())
    split = mtfc(*asked, "--objective", "memory", "--format", "json").json
    assert split["layout"] and split["nothing_split"] is None
    one = mtfc("search", "model.mtf", "--mesh", "one", "--format", "json").json
    assert one["nothing_split"] is None


@pytest.mark.parametrize("space", ["rules", "tiling"])
def test_written_layouts_cause_no_warning(mtfc: Mtfc, space: str) -> None:
    assert mtfc(*SEVEN, "--space", space, "-o", "out.mtf").status == 0
    checked = mtfc("check", "out.mtf", "--layout", "found")
    assert (checked.status, checked.err) == (0, "")
    assert ("allow W601" in Path("out.mtf").read_text("utf-8")) is (space == "rules")
    split = ("search", "model.mtf", "--devices", "3", "--target", "h100", "--objective", "memory")
    assert mtfc(*split, "-o", "split.mtf").status == 0
    assert "allow" not in Path("split.mtf").read_text("utf-8")
