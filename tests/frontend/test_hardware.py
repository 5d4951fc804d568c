"""Test hardware: the meaning of declarations, and the library's machines against their data sheets."""

import re

import pytest

from mtfc.compiler.cost.hardware import Device, DotShares, Hardware, Link, Rate, Scratchpad
from mtfc.compiler.diagnostics import CompileError, Diagnostics
from mtfc.compiler.ir.types import Mesh
from mtfc.driver.loading.target import check_room
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.hardware.declarations import hardware_text
from mtfc.frontend.hardware_targets import find_hardware, machine_in_file
from mtfc.frontend.semantics.names.standard_library import HARDWARE, library_machines
from mtfc.frontend.syntax.format import format_source
from mtfc.frontend.syntax.parser import parse

BOX = """\
hardware box = {
  device: {
    flops: { f32: { 1e6: 1e9, 1e9: 4e10 }, bf16: 2 ** 40 }
    memory: 16e9
    bandwidth: 1e11
    overhead: 2e-6
    ops: { gather: 1e9, pool: 5e8 }
    matrix: 128
    scratchpad: { bytes: 2 ** 20, wait: 1e-6, results: 1e12 }
  }
  link wire: { kind: ring, size: 4, bandwidth: 10e9 / 2, latency: 1e-6 }
  link net: { kind: switch, bandwidth: { 1000: 1e8, 1000000: 1e9 }, shared: 4 }
}
"""


def module(text: str) -> Module:
    diagnostics = Diagnostics()
    found = elaborate(parse(text, "t.mtf", diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    return found


def test_a_declaration() -> None:
    device = Device(
        {"f32": Rate(((1e6, 1e9), (1e9, 4e10))), "bf16": Rate.constant(2.0**40)},
        16e9,
        Rate.constant(1e11),
        2e-6,
        {"gather": 1e9, "pool": 5e8},
        mxu_size=128,
        scratchpad=Scratchpad(2.0**20, latency=1e-6, results=1e12),
    )
    wire = Link("wire", "ring", (4,), Rate.constant(5e9), 1e-6)
    net = Link("net", "switch", (), Rate(((1e3, 1e8), (1e6, 1e9))), 0.0, shared=4)
    assert module(BOX).hardware == {"box": Hardware("box", device, (wire, net))}


SHAPED = "dots: { short: { 64: 0.25, 512: 1 }, summed: 0.5 }"


def test_shares_of_dots() -> None:
    text = BOX.replace("matrix: 128", SHAPED)
    box = module(text).hardware["box"]
    assert box.device.dots == DotShares(short=Rate(((64.0, 0.25), (512.0, 1.0))), summed=Rate.constant(0.5))
    assert box.device.dots.of(64, 1000, 7) == 0.125
    assert machine_in_file(hardware_text(box, ""), "t.mtf").device.dots == box.device.dots


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("dots: 0.5", "E315"),
        ("dots: {}", "E315"),
        ("dots: { short: 1.5 }", "shares above 0 and up to 1, and one of these is 1.5"),
        ("dots: { short: { 64: 0.25, 512: 2 } }", "one of these is 2"),
        ("dots: { short: 0 }", "E315"),
        ("dots: { tall: 1 }", "E012"),
    ],
)
def test_shares_that_cannot_be(wrong: str, says: str) -> None:
    with pytest.raises(CompileError) as error:
        module(BOX.replace("matrix: 128", wrong))
    assert any(says in f"{each.code} {each.message}" for each in error.value.diagnostics)


ATTENDING = "attention: { forward: { 1024: 1e12, 4096: 2e12 }, backward: 1e12 }"


def test_rates_of_attention() -> None:
    """A GPU has kernels for attention if it has their rates."""
    (box,) = module(BOX.replace("matrix: 128", ATTENDING)).hardware.values()
    assert isinstance(box, Hardware)
    assert box.device.attention["forward"].peak == 2e12
    assert machine_in_file(hardware_text(box, ""), "t.mtf").device.attention == box.device.attention
    assert (box.device.attending, find_hardware("v100", {}).device.attending) == ("gpu", None)
    assert find_hardware("tpu_v5p", {}).device.attending == "tpu"
    assert find_hardware("tpu_v2", {}).device.attending is None


def test_floats_of_8_bits_have_a_rate_of_their_own() -> None:
    h100, a100 = (find_hardware(name, {}).device for name in ("h100", "a100"))
    assert h100.rate("f8e4m3fn") is h100.rate("f8e5m2") is h100.flops["f8"]
    assert a100.rate("f8e4m3fn") is a100.flops["bf16"], "XLA converts them to 16 bits"


def test_an_op_that_does_not_exist() -> None:
    with pytest.raises(CompileError, match="E012") as error:
        module(BOX.replace("gather", "gathers"))
    assert error.value.diagnostics[0].help == "did you mean `gather`?"


SCRATCHPAD = "{ bytes: 2 ** 20, wait: 1e-6, results: 1e12 }"


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("matrix: 128", "attention: 1e12", "E315: `attention` takes FLOP/s by pass"),
        ("matrix: 128", "attention: {}", "E315: `attention` takes FLOP/s by pass"),
        ("matrix: 128", "attention: { forward: 1e12, backward: 1e12, sideways: 1 }", "no pass is called `sideways`"),
        ("matrix: 128", "attention: { forward: 0, backward: 1e12 }", "E315"),
        (SCRATCHPAD, "2 ** 20", "E315: `scratchpad` takes `{ bytes: ..., wait: ... }`"),
        (SCRATCHPAD, "{ wait: 1e-6 }", "E314: a scratchpad needs an entry `bytes`"),
        (SCRATCHPAD, "{ bytes: 2 ** 20, read: 1e12 }", "E012: a scratchpad has no entry `read`"),
        (SCRATCHPAD, "{ bytes: 0 }", "E315: `bytes` takes a number from"),
    ],
)  # fmt: skip
def test_entries_that_cannot_be(right: str, wrong: str, says: str) -> None:
    with pytest.raises(CompileError) as error:
        module(BOX.replace(right, wrong))
    assert says in str(error.value)


def test_rates_between_sizes() -> None:
    rate = Rate(((1e2, 1e3), (1e4, 1e5), (1e5, 1e5)))
    assert [rate.at(size) for size in (1, 1e2, 1e3, 1e4, 3e4, 1e9)] == pytest.approx(
        [1e3, 1e3, 1e4, 1e5, 1e5, 1e5]
    )
    assert rate.peak == 1e5


def test_a_dtype_that_is_not_given_is_like_f32() -> None:
    f32, bf16, f16 = Rate.constant(2.0), Rate.constant(8.0), Rate.constant(6.0)
    assert Device({"f32": f32, "bf16": bf16}, 1, f32).rate("i32") is f32
    assert Device({"f16": f16, "bf16": bf16}, 1, f32).rate("f32") is f16


def test_declared_hardware_goes_before_the_librarys() -> None:
    own = module(BOX.replace("box", "h100"))
    assert find_hardware("h100", own.hardware).device.memory == 16e9
    assert find_hardware("h200", own.hardware).device.memory == 141 * 2**30


@pytest.mark.parametrize("name", ["h10", "H100"])
def test_unknown_hardware(name: str) -> None:
    with pytest.raises(CompileError) as error:
        find_hardware(name, module(BOX).hardware)
    (diagnostic,) = error.value.diagnostics
    assert (diagnostic.code, diagnostic.help) == ("E313", "did you mean `h100`?")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dim batch = 4\n", "declares no hardware"),
        (BOX + BOX.replace("box", "other"), "several hardware: box, other"),
    ],
)
def test_a_file_with_no_hardware_or_several(text: str, says: str) -> None:
    with pytest.raises(CompileError) as error:
        machine_in_file(text, "t.mtf")
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "E313"
    assert says in diagnostic.message


def test_a_mesh_that_is_too_large() -> None:
    p100 = find_hardware("p100_cluster", {})
    check_room(p100, Mesh("all", (("rows", 4), ("cols", 4))), "p100_cluster")
    with pytest.raises(CompileError, match=r"E316.* 20 processors"):
        check_room(p100, Mesh("all", (("rows", 4), ("cols", 5))), "p100_cluster")
    with pytest.raises(
        CompileError, match=r"E316.* 5 x 3 processors does not lie on the 4 that `infiniband`"
    ):
        check_room(p100, Mesh("all", (("rows", 5), ("cols", 3))), "p100_cluster")
    check_room(find_hardware("h100", {}), Mesh("all", (("all", 10**6),)), "h100")


@pytest.mark.parametrize("name", library_machines())
def test_every_machine_of_the_library(name: str) -> None:
    """Each machine is in a file of its name, in canonical form, with the sources of its figures."""
    text = (HARDWARE / f"{name}.mtf").read_text("utf-8")
    assert format_source(text) == text
    assert machine_in_file(text, f"{name}.mtf").name == name
    assert re.search("data sheet|Google Cloud's page|Jouppi|the paper", text)


@pytest.mark.parametrize(
    ("name", "petaflops"),
    [
        ("tpu_v2", 11.5),
        ("tpu_v3", 126),
        ("tpu_v4", 1100),
        ("tpu_v5e", 50.63),
        ("tpu_v5p", 4000),
        ("tpu_v6e", 234.9),
    ],
)
def test_peaks_of_whole_pods(name: str, petaflops: float) -> None:
    """Sources: the Mesh-TensorFlow paper (section 9) for TPU v2, the JAX scaling book for v5p, else Google Cloud's pages."""
    pod = find_hardware(name, {})
    assert pod.devices is not None
    assert pod.devices * pod.device.rate("bf16").peak == pytest.approx(petaflops * 1e15, rel=0.03)


def test_the_library_is_complete() -> None:
    wanted = (
        "p100_cluster k80_cluster p2_8xlarge tpu_v2 tpu_v3 tpu_v4 tpu_v5e tpu_v5p tpu_v6e tpu_v7x"
        " v100 a100 h100 h200 b200 gb200"
    )
    assert set(library_machines()) == set(wanted.split())
    sizes = {name: find_hardware(name, {}).devices for name in library_machines()}
    assert (sizes["p100_cluster"], sizes["k80_cluster"], sizes["p2_8xlarge"]) == (16, 64, 8)
    assert (sizes["tpu_v2"], sizes["tpu_v3"], sizes["tpu_v4"], sizes["h100"]) == (512, 2048, 4096, None)


def test_which_machines_have_peak_figures_only() -> None:
    peak = {name for name in library_machines() if find_hardware(name, {}).has_peak_figures}
    assert peak == {"v100", "k80_cluster", "p100_cluster", "p2_8xlarge"}
    for name in library_machines():
        text = (HARDWARE / f"{name}.mtf").read_text("utf-8")
        assert ("these are peak figures" in text) == (name in peak), "its comment says so"


@pytest.mark.parametrize(
    ("figures", "is_peak"),
    [
        ("flops: { f32: 1e12 }, memory: 1e9, bandwidth: 1e11", True),
        ("flops: { f32: 1e12 }, memory: 1e9, bandwidth: 1e11, overhead: 1e-6", False),
        ("flops: { f32: { 1e6: 1e9, 1e9: 1e12 } }, memory: 1e9, bandwidth: 1e11", False),
        ("flops: { f32: 1e12 }, memory: 1e9, bandwidth: { 1e3: 1e9, 1e9: 1e11 }", False),
    ],
)
def test_peak_figures_know_neither_small_kernels_nor_their_start(figures: str, is_peak: bool) -> None:
    (own,) = module(f"hardware own = {{ device: {{ {figures} }} }}").hardware.values()
    assert own.has_peak_figures is is_peak and bool(own.caveat) is is_peak


MEASURED = {
    "two_layer": 10.19, "digits": 4.366, "soybean_mlp_8k": 6.686, "transformer_lm": 21.37, "llama": 44.66,
}  # fmt: skip
"""Milliseconds of steps on one H100, from docs/simulate.md: five of the ten steps that the machine's figures are fitted to."""


def test_the_h100_is_as_it_was_measured() -> None:
    from benchmarks import gpu
    from benchmarks.accuracy import predicted

    cases = {case.model: case for case in gpu.MEASURED}
    ratios = {
        model: predicted(cases[model].lowered(), find_hardware("h100", {})).seconds * 1e3 / milliseconds
        for model, milliseconds in MEASURED.items()
    }
    assert all(0.85 < ratio < 1.2 for ratio in ratios.values()), ratios
    assert sum(abs(ratio - 1) for ratio in ratios.values()) / len(ratios) < 0.08, ratios
