"""Calibration: its text declares the measured hardware, and its kernels measure what they should."""

import platform
import subprocess
import sys

import jax.numpy as jnp
import pytest

from mtfc.backends.calibrate.calibration import QUICK, beyond, link_of, rising, with_jax, with_numpy
from mtfc.backends.calibrate.kernels import COLLECTIVES, KERNELS, SHAPES
from mtfc.compiler.cost.hardware import Device, Hardware, Kind, Link, Rate
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.ops.collectives import SENDINGS
from mtfc.compiler.ir.types import Mesh
from mtfc.frontend.hardware.declarations import hardware_text
from mtfc.frontend.hardware_targets import HARDWARE, library_machines, machine_in_file


def test_more_work_never_takes_less_time() -> None:
    rate = rising([(10, 1.0), (100, 2.0), (1000, 1.5)])
    assert rate == Rate(((10.0, 10.0), (100.0, 50.0), (1000.0, 500.0)))


def test_rates_are_without_what_each_kernel_costs() -> None:
    assert beyond(2.0, [(10, 2.1), (100, 4.0), (1000, 22.0)]) == [(100, 2.0), (1000, 20.0)]
    assert beyond(2.0, [(10, 1.9), (100, 2.0)]) == [(100, 2.0)]


REDUCED = [(64, 60e-6), (1 << 16, 61e-6), (1 << 20, 200e-6), (1 << 24, 2e-3)]
SLOWER = [(size, 3 * seconds) for size, seconds in REDUCED]


def seconds_on(link: Link, kind: str, size: int) -> float:
    """Return the seconds of a collective of four devices, on an array of `size` bytes."""
    box = Hardware("here", Device({"f32": Rate.constant(1.0)}, 1.0, Rate.constant(1.0)), (link,))
    local = size // 4 if SENDINGS[kind].operand == "part" else size
    (found,) = Topology.of(Mesh("all", (("all", 4),)), box).seconds(kind, ("all",), local, 1).values()
    return found


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("link_kind", ["switch", "memory"])
def test_a_link_predicts_the_collectives_that_it_was_made_from(link_kind: Kind, kind: str) -> None:
    times = dict.fromkeys(COLLECTIVES, SLOWER) | {"all_reduce": REDUCED}
    link = link_of("link", link_kind, 4, times)
    for size, seconds in times[kind]:
        assert seconds_on(link, kind, size) == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize("link_kind", ["switch", "memory"])
def test_a_link_that_follows_the_formulas_has_one_bandwidth(link_kind: Kind) -> None:
    link = Link("link", link_kind, (4,), Rate.constant(1e9), 1e-5)
    times = {
        kind: [(size, seconds_on(link, kind, size)) for size in (4, 1 << 10, 1 << 20, 1 << 24)]
        for kind in COLLECTIVES
    }
    found = link_of("link", link_kind, 4, times)
    assert not found.collectives
    assert found.latency == pytest.approx(1e-5, rel=1e-3)
    assert found.bandwidth.peak == pytest.approx(1e9, rel=1e-2)


def test_a_link_that_is_all_latency() -> None:
    link = link_of("link", "switch", 2, {"all_reduce": [(64, 1e-5), (128, 1e-5)]})
    assert link.latency == pytest.approx(5e-6)
    assert link.bandwidth.peak > 0


@pytest.mark.parametrize("name", library_machines())
def test_hardware_as_text_means_the_same(name: str) -> None:
    hardware = machine_in_file((HARDWARE / f"{name}.mtf").read_text("utf-8"), name)
    text = hardware_text(hardware, "A copy.")
    again = machine_in_file(text, name)
    assert [link.kind for link in again.links] == [link.kind for link in hardware.links]
    assert [link.sizes for link in again.links] == [link.sizes for link in hardware.links]
    assert again.device.mxu_size == hardware.device.mxu_size
    assert (again.device.scratchpad is None) == (hardware.device.scratchpad is None)
    assert again.device.memory == pytest.approx(hardware.device.memory, rel=1e-3)
    assert again == machine_in_file(hardware_text(again, ""), name)


def test_tables_as_text() -> None:
    rate = Rate(((1e3, 2.5e9), (1e6, 4e10)))
    link = Link("wire", "torus", (4, 2), rate, 1.5e-6, shared=2, wraps=4, collectives={"permute": rate})
    hardware = Hardware(
        "box",
        Device({"f32": rate, "bf16": Rate.constant(3e12)}, 16e9, rate, 1e-6, {"exp": 2e9}, 0.25, loop=8e-6),
        (link,),
    )
    assert machine_in_file(hardware_text(hardware, "One line.\nAnother."), "t.mtf") == hardware


def test_numpy_has_one_device() -> None:
    found, _ = with_numpy(None, QUICK)
    assert found.devices == 1
    assert found.device.flops.keys() == {"f32", "f64"}
    assert machine_in_file(hardware_text(found, ""), "t.mtf").name == "here"


@pytest.fixture(scope="module")
def measured() -> Hardware:
    return with_jax(2, QUICK)[0]


def test_virtual_devices_of_jax(measured: Hardware) -> None:
    found = measured
    assert found.devices == 2
    assert 0 < found.device.overhead < 1e-2
    assert found.device.loop < 1e-2
    assert found.links[0].latency < 1
    assert (found.links[0].kind, found.device.overlap) == ("memory", 0)
    assert machine_in_file(hardware_text(found, ""), "t.mtf").name == "here"


def test_random_numbers_take_longer_than_their_bytes(measured: Hardware) -> None:
    found = measured.device
    bytes = 4 * QUICK.elements
    assert found.ops["normal"] < QUICK.elements / (bytes / found.bandwidth.at(bytes))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_can_be_chained(name: str) -> None:
    """Each kernel returns as many numbers as it takes, between 0 and 1."""
    start = jnp.linspace(0.1, 0.9, 4096, dtype="float32").reshape(SHAPES.get(name, (-1,)))
    x = start
    for _ in range(8):
        x = KERNELS[name](x)
        assert x.shape == start.shape
        assert bool(jnp.isfinite(x).all())
        if name != "normal":
            assert 0 <= float(x.min()) <= float(x.max()) <= 1


PAGES = """\
import resource
import numpy as np
from mtfc.backends.common.allocator import keep_memory

keep_memory()
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_stays_with_the_process() -> None:
    """128 MiB are 32,768 pages. The second allocation fetches none."""
    run = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    first, _, third = map(int, run.stdout.split())
    assert first > 100 * (third + 1)
