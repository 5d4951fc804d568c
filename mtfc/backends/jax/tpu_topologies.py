"""The TPU compiler, without a TPU: libtpu compiles ahead of time for a topology that is only described."""

import os
from importlib.util import find_spec
from math import prod
from typing import Any

import attrs

from mtfc.backends.common.devices import Unavailable, import_jax, installing
from mtfc.backends.common.tpu_flags import FUSION_FLAGS, TPU_VARIABLE, V5E, fusion_flags


@attrs.frozen
class TpuGeneration:
    """A generation of TPUs. clock: cycles per second, or 0 if unknown. cores: devices of a chip. sides: those of a topology.

    chip: the PCI device number, of chips whose flags differ. name: that of libtpu, if it is another one. options: for libtpu.
    """

    clock: float
    cores: int = 1
    sides: int = 2
    chip: str = ""
    name: str = ""
    options: dict[str, str] = attrs.field(factory=dict)


GENERATIONS = {
    "v2": TpuGeneration(700e6, cores=2, chip="0x0027"),
    "v3": TpuGeneration(940e6, cores=2, chip="0x0027"),
    "v4": TpuGeneration(1050e6, sides=3, chip="0x005e", options={"chip_config_name": "megacore"}),
    "v5e": TpuGeneration(1500e6, chip=V5E),
    "v5p": TpuGeneration(1750e6, sides=3),
    "v6e": TpuGeneration(1750e6),
    "v7x": TpuGeneration(0, cores=2, sides=3, name="tpu7x"),
}
"""Generations by name. On v4, `megacore` makes one device of the two cores, as on v5p.

Clocks of v2 and v3: Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 2020. v4: Jouppi et
al., TPU v4, ISCA 2023. The others follow from their peaks: a v5e chip has 4 matrix units of 128 x 128, a v5p chip 8, and a v6e
chip the equivalent of 16.
"""

WITHOUT_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
"""Variables without which libtpu looks for a TPU that is not there, warns of it, and lets one process at a time compile."""


def smallest(generation: str, count: int) -> str:
    """Return the smallest topology of a generation with at least `count` devices, such as `v5e:4x4`."""
    of = GENERATIONS[generation]
    sides = [2, 2, 1][: of.sides]
    while prod(sides) * of.cores < count:
        sides[max(range(of.sides), key=lambda i: (-sides[i], i))] *= 2
    return f"{generation}:{'x'.join(map(str, sides))}"


def topology(name: str) -> list[Any]:
    """Return the devices of a topology such as `v5e:4x4`. Raises `Unavailable` if libtpu is missing or does not know it.

    libtpu reads flags once: the first topology of a process decides.
    """
    import_jax()
    if find_spec("libtpu") is None:
        raise Unavailable(f"compiling for TPUs needs the package libtpu: {installing('tpu')}")
    generation, _, shape = name.partition(":")
    of = GENERATIONS[generation]
    os.environ[TPU_VARIABLE] = _flags(os.environ[TPU_VARIABLE], of.chip)
    for variable, value in WITHOUT_TPU.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    known = f"{of.name or generation}:{shape}"
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=known, **of.options).devices)
    except Exception as error:  # whatever the plugin raises
        reason = str(error).splitlines()[0]
        raise Unavailable(f"libtpu does not describe the topology {name}: {reason}") from error


def _flags(given: str, chip: str) -> str:
    """Return flags with those for sending inside dots that a chip takes. A flag of the user's stays as it is."""
    kept = [flag for flag in given.split() if flag not in FUSION_FLAGS]
    names = {flag.split("=")[0] for flag in kept}
    added = fusion_flags(chip)  # type: ignore[no-untyped-call]
    return " ".join([*kept, *(flag for flag in added if flag.split("=")[0] not in names)])


def text(executable: Any) -> str:
    """Return the text of a compiled program. Raises `Unavailable` if this JAX cannot read what this libtpu wrote.

    A libtpu newer than the one that JAX asks for may write asynchronous collectives in a form that JAX does not know.
    """
    from importlib.metadata import version

    try:
        return str(executable.as_text())
    except import_jax().errors.JaxRuntimeError as error:
        pair = f"JAX {version('jax')} cannot read what libtpu {version('libtpu')} compiled"
        raise Unavailable(
            f'{pair}: install the one that it asks for, pip install "jax[tpu]" ({error})'
        ) from error
