"""The TPU compiler, without a TPU: libtpu compiles ahead of time for a topology that is only described.

The compiled text has the cycles that the compiler expects each kernel to take, without collectives (`cycles`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from mtfc.backends.common.devices import Unavailable, import_jax
from mtfc.backends.common.tpu_flags import FUSION_FLAGS, TPU_VARIABLE, V5E, fusion_flags
from mtfc.backends.hlo import CALLED, Instruction, computations, iterations, limit
from mtfc.backends.jax.runtime import lowered
from mtfc.compiler.ir.core import Program

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')

CLOCKS = {"v2": 700e6, "v3": 940e6, "v4": 1050e6, "v5e": 1500e6, "v5p": 1750e6, "v6e": 1750e6}
"""Generation -> cycles per second.

v2 and v3: Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 2020. v4: Jouppi et al., TPU v4,
ISCA 2023. The others follow from their peaks: a v5e chip has 4 matrix units of 128 x 128, a v5p chip 8, and a v6e chip the
equivalent of 16.
"""

CHIPS = {"v2": "0x0027", "v3": "0x0027", "v4": "0x005e", "v5e": V5E}
"""Generation -> the PCI device number of its chips, of those whose flags differ."""

CONFIGURATIONS = {"v4": "megacore"}
"""Generation -> the chip configuration to ask libtpu for. On v4, `megacore` makes one device of the two cores, as on v5p."""


def topology(name: str) -> list[Any]:
    """Return the devices of a topology such as `v5e:4x4`. Raises `Unavailable` if libtpu is missing or does not know it.

    libtpu reads flags once: the first topology of a process decides.
    """
    import_jax()
    if find_spec("libtpu") is None:
        raise Unavailable("compiling for TPUs needs the package libtpu: pip install libtpu")
    os.environ[TPU_VARIABLE] = _flags(os.environ[TPU_VARIABLE], CHIPS.get(name.split(":")[0], ""))
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no TPU to ask about itself
    from jax.experimental import topologies

    configuration = CONFIGURATIONS.get(name.split(":")[0])
    options = {"chip_config_name": configuration} if configuration else {}
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
        return list(described.devices)
    except Exception as error:  # whatever the plugin raises
        raise Unavailable(f"libtpu does not describe the topology {name}: {error}") from error


def _flags(given: str, chip: str) -> str:
    """Return flags with those for sending inside dots that a chip takes. A flag of the user's stays as it is."""
    kept = [flag for flag in given.split() if flag not in FUSION_FLAGS]
    names = {flag.split("=")[0] for flag in kept}
    added = fusion_flags(chip)  # type: ignore[no-untyped-call]
    return " ".join([*kept, *(flag for flag in added if flag.split("=")[0] not in names)])


def compiled(program: Program, name: str, function: str | None = None) -> Any:
    """Compile a function of the lowered program for a topology, on as many of its devices as the mesh has.

    Returns a `jax.stages.Compiled`.
    """
    return lowered(program, function, topology(name)).compile()


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


def cycles(hlo: str) -> int:
    """Return the cycles that the TPU compiler expects one device to compute in one run; loops count once per iteration.

    Collectives count nothing, and neither do kernels without an estimate, such as copies in the background.
    """
    known: dict[str, int] = {}
    limits: dict[str, int] = {}
    name = ""
    for name, instructions in computations(hlo):
        limits |= limit(name, instructions, limits)
        known[name] = sum(_cycles(instruction, known, limits) for instruction in instructions)
    return known.get(name, 0)


def _cycles(instruction: Instruction, known: Mapping[str, int], limits: Mapping[str, int]) -> int:
    """Return the cycles of an instruction. The estimate of a kernel includes everything that is fused into it."""
    if instruction.collective:
        return 0
    if instruction.opcode in ("while", "call", "conditional"):
        inside = sum(known.get(callee, 0) for callee in CALLED.findall(instruction.rest))
        return inside and inside * iterations(instruction, limits)
    found = CYCLES.search(instruction.rest)
    return int(found[1]) if found else 0
