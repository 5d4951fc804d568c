"""The TPU compiler: the error without libtpu, and the cycles of a compiled dot with it."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import product
from math import prod
from types import ModuleType

import attrs
import pytest

from mtfc.backends import hlo
from mtfc.backends.common.devices import Unavailable
from mtfc.backends.common.tpu_flags import FUSION_FLAGS, TPU_VARIABLE
from mtfc.backends.jax import backend, runtime, tpu_topologies
from tests.harness import lowered


def jax_module(source: str) -> ModuleType:
    """Return the JAX module of a program, not bound to a mesh."""
    module = ModuleType("generated")
    exec(backend.generate(lowered(source)), vars(module))
    return module


def test_without_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_topologies, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"pip install '.\[tpu\]'"):
        tpu_topologies.topology("v5e:2x2")


def test_a_program_that_jax_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")

    class Unreadable:
        def as_text(self) -> str:
            raise jax.errors.JaxRuntimeError(
                "INTERNAL: async-update instruction should have 1 operands but sees 3"
            )

    monkeypatch.setattr("importlib.metadata.version", {"jax": "0.10.2", "libtpu": "0.0.52"}.__getitem__)
    with pytest.raises(
        Unavailable, match=r"JAX 0.10.2 cannot read what libtpu 0.0.52 compiled.*async-update"
    ):
        tpu_topologies.text(Unreadable())


@pytest.mark.parametrize(("topology", "wanted"), [("v5p:2x2x1", ""), ("v5e:2x4", " ".join(FUSION_FLAGS))])
def test_a_topology_gets_the_flags_of_its_chips(
    topology: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other flags of the environment stay, also one for these kernels."""
    pytest.importorskip("jax")
    from jax.experimental import topologies

    class Described:
        devices = ()

    monkeypatch.setattr(tpu_topologies, "find_spec", lambda name: True)
    monkeypatch.setattr("importlib.metadata.version", {"libtpu": "0.0.50.1"}.__getitem__)
    monkeypatch.setattr(topologies, "get_topology_desc", lambda **options: Described)
    for given in ("--a=1", f"--a=1 {' '.join(FUSION_FLAGS)}"):
        monkeypatch.setenv(TPU_VARIABLE, given)
        tpu_topologies.topology(topology)
        assert os.environ[TPU_VARIABLE] == f"--a=1 {wanted}".strip()
    off = FUSION_FLAGS[0].replace("true", "false")
    monkeypatch.setenv(TPU_VARIABLE, off)
    tpu_topologies.topology(topology)
    assert os.environ[TPU_VARIABLE] == (f"{off} {FUSION_FLAGS[1]}" if wanted else off)


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_dot_takes_the_cycles_of_its_flops() -> None:
    text = """\
dim a = 8192
dim b = 4096
dim c = 4096
mesh line = [all: 4]
layout split on line = { a: all }
model net(x: [a, b]) {
  param w: [b, c] = normal()
  h = einsum(x, w -> [a, c])
  return h
}
"""
    cycles = hlo.cycles(
        runtime.lowered(lowered(text), "forward", tpu_topologies.topology("v5e:2x2")).compile().as_text()
    )
    flops = 2 * 8192 * 4096 * 4096 / 4
    assert flops / 197e12 < cycles / tpu_topologies.GENERATIONS["v5e"].clock < 2 * flops / 197e12


@attrs.frozen
class Chip:
    """A TPU chip at its place, as JAX describes one."""

    id: int
    coords: tuple[int, ...]
    platform: str = "tpu"
    device_kind: str = "TPU v5"
    core_on_chip: int = 0
    slice_index: int = 0
    process_index: int = 0


def mesh_text(shape: Sequence[int]) -> str:
    """Return a JAX module for a mesh."""
    axes = ", ".join(f"a{i}: {size}" for i, size in enumerate(shape))
    return f"""\
dim d = {prod(shape)}
mesh grid = [{axes}]
layout split on grid = {{ d: ({", ".join(f"a{i}" for i in range(len(shape)))}) }}
model net(x: [d]) {{
  y = x + 1.0
  return y
}}
"""


SHAPES = [(64,), (8, 8), (2, 32), (32, 2), (16, 4), (4, 4, 4), (2, 2, 16), (2, 16, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mesh_may_split_physical_axes(shape: tuple[int, ...]) -> None:
    """Every mesh lies on a torus of 4 x 4 x 4 chips, also one whose axes are parts of the torus's."""
    jax = pytest.importorskip("jax")
    chips = [Chip(i, place) for i, place in enumerate(product(range(4), repeat=3))]
    module = jax_module(mesh_text(shape))
    mesh = module.make_mesh(chips)
    assert mesh.devices.shape == shape
    assert {chip.id for chip in mesh.devices.flat} == set(range(64))
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(
    "name", ["v2:4x4", "v3:4x4", "v4:4x4x4", "v4:4x4x8", "v5p:4x4x4", "v5p:8x8x8", "v5e:16x16", "v6e:8x16"]
)
def test_every_mesh_starts_on_every_topology(name: str) -> None:
    """All meshes of two axes start on the devices that libtpu describes."""
    chips = tpu_topologies.topology(name)
    for first in (size for size in range(2, len(chips)) if len(chips) % size == 0):
        shape = (first, len(chips) // first)
        assert jax_module(mesh_text(shape)).make_mesh(chips).devices.shape == shape
