"""`mtfc inspect`: what XLA compiles a step to, beside the prediction, in total and by line."""

from importlib.util import find_spec
from pathlib import Path

import pytest

import mtfc
from mtfc.backends.jax.tpu_topologies import smallest
from mtfc.driver import compiled_step
from mtfc.driver.compiled_step import CompileTarget, XlaProgram
from mtfc.driver.errors import FailedRequest
from mtfc.driver.verification import checks
from mtfc.reports.inspection import Inspection, StepFigures
from tests.cli.conftest import Mtfc

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = {
    "two_layer": ("tiled_3d", None, {}),
    "digits": ("tiled", None, {"batch": 512}),
    "soybean_mlp": ("hybrid", "groups:2;gpus:4", {"batch": 64, "units": 256}),
    "moe_lm": ("hybrid", "rows:2;cols:2",
     {"batch": 8, "groups": 4, "length": 32, "vocab": 64, "d_model": 32, "d_k": 8, "d_ff": 64, "layers": 2}),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def found(request: pytest.FixtureRequest) -> Inspection:
    layout, mesh, dims = CASES[request.param]
    return mtfc.inspect(EXAMPLES / f"{request.param}.mtf", layout=layout, mesh=mesh, dims=dims)


def sent(figures: StepFigures) -> dict[str, object]:
    """Return the bytes of operands of each kind of collective that occurs."""
    return {kind: sent.bytes for kind, sent in figures.totals.collectives.items()}


def test_arguments_are_exact_and_memory_is_near(found: Inspection) -> None:
    said, real = found["predicted"].memory, found["compiled"].memory
    assert said["arguments"] == real["arguments"]
    assert said["total"] == pytest.approx(real["total"], rel=0.15)
    assert real["total"] == real["arguments"] + real["outputs"] + real["temporaries"]


def test_flops_and_bytes_agree_with_the_prediction(found: Inspection) -> None:
    is_small = (
        found.cost.model == "moe_lm"
    )  # XLA draws random numbers and updates in more operations than dots have here
    assert found["predicted"].flops == pytest.approx(found["compiled"].flops, rel=0.3 if is_small else 0.01)
    assert sent(found["predicted"]) == sent(found["compiled"])
    assert found["predicted"].wire_bytes == found["compiled"].wire_bytes > 0


def test_lines_add_up_to_the_step(found: Inspection) -> None:
    record = found.record()
    for figures, lines in (
        (record, record["lines"]),
        (record["predicted"], [line["predicted"] for line in record["lines"]]),
    ):
        for name in ("flops_per_device", "wire_bytes_per_device"):
            assert sum(line[name] for line in lines) == pytest.approx(figures[name])


def test_each_line_has_its_own_collectives_and_dots() -> None:
    """Operands of a combined all-reduce belong to the lines that made them, as in the prediction."""
    record = mtfc.inspect(EXAMPLES / "two_layer.mtf", layout="tiled_3d").record()
    wire = {line["line"]: line["wire_bytes_per_device"] for line in record["lines"] if line["line"]}
    assert wire == {
        line["line"]: line["predicted"]["wire_bytes_per_device"] for line in record["lines"] if line["line"]
    }
    assert {line for line, amount in wire.items() if amount} == {21, 22, 23}
    assert record["groups"][0] == {
        "kind": "all_reduce",
        "groups": "2 of 4",
        "asynchronous": False,
        "count": 1,
        "elements_per_device": 1,
        "bytes_per_device": 4,
        "wire_bytes_per_device": 6.0,
    }


@pytest.mark.usefixtures("in_children")
def test_a_child_has_as_many_devices_as_the_mesh() -> None:
    found = mtfc.inspect(EXAMPLES / "two_layer.mtf", "cpu", layout="batch: all", mesh="all: 64")
    assert (found.target, found["compiled"].memory["arguments"]) == (
        "cpu:64",
        found["predicted"].memory["arguments"],
    )
    assert found["compiled"].wire_bytes == found["predicted"].wire_bytes > 0


LOOP = """\
dim batch = 8
dim d = 16
dim e = 16
dim layers = {layers}
mesh line = [all: 4]
layout split on line = {{ batch: all }}
model net(x: [batch, d]) {{
  h = x
  repeat layers {{
    param w: [d, e] = normal()
    h = rename(tanh(einsum(h, w -> [batch, e])), e -> d)
  }}
  y = sum(h)
  return y
}}
"""


@pytest.mark.parametrize("layers", [1, 5])
def test_loops_count_in_each_iteration(layers: int, tmp_path: Path) -> None:
    file = tmp_path / "net.mtf"
    file.write_text(LOOP.format(layers=layers))
    found = mtfc.inspect(file, "cpu")
    assert "one forward pass on each of 4 devices" in str(found)
    (dot,) = (line for line in found.record()["lines"] if line["line"] == 11)
    assert (
        dot["flops_per_device"] == dot["predicted"]["flops_per_device"] == layers * (2 * 2 * 16 * 16 + 2 * 16)
    )


def test_one_device_and_no_layout() -> None:
    found = mtfc.inspect(EXAMPLES / "two_layer.mtf", "cpu:1", mesh="one")
    assert (found.cost.mesh.devices, sent(found["compiled"]), found["compiled"].wire_bytes) == (1, {}, 0)
    assert "collectives" not in str(found)


@pytest.mark.parametrize(
    ("generation", "count", "name"),
    [
        ("v2", 8, "v2:2x2"),
        ("v2", 128, "v2:8x8"),
        ("v5e", 1, "v5e:2x2"),
        ("v5e", 9, "v5e:4x4"),
        ("v6e", 8, "v6e:2x4"),
        ("v5p", 8, "v5p:2x2x2"),
        ("v4", 512, "v4:8x8x8"),
    ],
)
def test_the_smallest_topology_that_has_a_mesh(generation: str, count: int, name: str) -> None:
    assert smallest(generation, count) == name


@pytest.mark.parametrize(
    ("name", "machine", "full"),
    [
        ("cpu", "cpu", "cpu:8"),
        (" cpu:16 ", "cpu", "cpu:16"),
        ("gpu", "gpu", "gpu:8"),
        ("h100", "h100", "h100:8"),
        ("v100:8", "v100", "v100:8"),
        ("tpu_v5e", "tpu_v5e", "v5e:2x4"),
        ("v5p:4x4x4", "tpu_v5p", "v5p:4x4x4"),
        ("tpu_v2:16x16", "tpu_v2", "v2:16x16"),
        ("v7x", "tpu_v7x", "v7x:2x2x1"),
    ],
)
def test_targets(name: str, machine: str, full: str) -> None:
    target = CompileTarget.of(name)
    assert (target.machine, target.named(8)) == (machine, full)


@pytest.mark.parametrize(
    "name",
    ["", "cpu:0", "cpu:x", "cpu:-1", "tpu", "v9:2x2", "v5e:", "v5e:4", "box.mtf", "cpu:8:8", "gpu:", "CPU"],
)
def test_other_targets_are_refused(mtfc: Mtfc, name: str) -> None:
    found = mtfc("inspect", str(EXAMPLES / "two_layer.mtf"), "--target", name or " ")
    assert (found.status, found.out) == (2, "")
    assert "expected" in found.err


def test_a_mesh_that_the_target_has_no_devices_for(mtfc: Mtfc) -> None:
    found = mtfc("inspect", str(EXAMPLES / "two_layer.mtf"), "--target", "cpu:4", "--layout", "hybrid")
    assert (found.status, "has too few devices for 8: choose another `--mesh`" in found.err) == (2, True)


def test_a_machine_without_a_gpu_says_what_else_can_be_compiled_for(mtfc: Mtfc) -> None:
    pytest.importorskip("jax")
    found = mtfc("inspect", str(EXAMPLES / "two_layer.mtf"), "--target", "h100", "--layout", "hybrid")
    assert (found.status, "take another mesh, cpu:8 or TPUs" in found.err) == (3, True)


class Gpu:
    device_kind = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("name", "count", "fits"),
    [("gpu", 2, True), ("h100", 2, True), ("h100:2", 1, True), ("a100", 1, False), ("gpu", 3, False)],
)
def test_gpus_are_those_of_the_machine(
    name: str, count: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_step, "of_kind", lambda *_: [Gpu(), Gpu()])
    if fits:
        assert len(CompileTarget.of(name).devices(count)) == 2
    else:
        with pytest.raises(mtfc.Unavailable, match="such devices, and the mesh has"):
            CompileTarget.of(name).devices(count)


def test_a_program_that_the_compiler_refuses_has_status_1(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = XlaProgram(compiler="libtpu 1", failed="RESOURCE_EXHAUSTED: used 20 GiB of 16")
    monkeypatch.setattr(checks, "results", lambda *_: iter([refused]))
    with pytest.raises(FailedRequest, match="libtpu 1 does not compile this for cpu: RESOURCE_EXHAUSTED"):
        mtfc_inspect()
    found = mtfc("inspect", str(EXAMPLES / "two_layer.mtf"), "--target", "cpu")
    assert (found.status, "used 20 GiB of 16" in found.err) == (1, True)


def mtfc_inspect() -> Inspection:
    return mtfc.inspect(EXAMPLES / "two_layer.mtf", "cpu")


def test_layouts_of_several_meshes_are_refused(mtfc: Mtfc) -> None:
    found = mtfc("inspect", str(EXAMPLES / "two_meshes.mtf"), "--target", "cpu", "--layout", "two")
    assert found.status in (1, 2)
    assert "Traceback" not in found.err


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_the_tpu_compiler_gives_cycles_and_asynchrony() -> None:
    found = mtfc.inspect(
        EXAMPLES / "two_layer.mtf", "tpu_v5e", layout="tiled_3d", dims={"batch": 8192, "io": 2048}
    )
    assert found.target == "v5e:2x4"
    assert found["predicted"].memory["arguments"] == found["compiled"].memory["arguments"]
    assert found["predicted"].flops == pytest.approx(found["compiled"].flops, rel=0.01)
    assert found["predicted"].total_cycles == pytest.approx(found["compiled"].total_cycles, rel=0.15)
    assert {when for (_, _, when), _ in found["compiled"].by_groups} == {"asynchronous", "synchronous"}
