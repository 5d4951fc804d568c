"""The TPU compiler, without a TPU: libtpu compiles ahead of time for a topology that is only described."""

from __future__ import annotations

import os
from importlib.util import find_spec
from math import prod
from typing import Any

from mtfc.backends.common.devices import Unavailable, import_jax
from mtfc.backends.common.tpu_flags import FUSION_FLAGS, TPU_VARIABLE, V5E, fusion_flags

CLOCKS = {"v2": 700e6, "v3": 940e6, "v4": 1050e6, "v5e": 1500e6, "v5p": 1750e6, "v6e": 1750e6}
"""Generation -> cycles per second.

v2 and v3: Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 2020. v4: Jouppi et al., TPU v4,
ISCA 2023. The others follow from their peaks: a v5e chip has 4 matrix units of 128 x 128, a v5p chip 8, and a v6e chip the
equivalent of 16.
"""

FLAT = ("v2", "v3", "v5e", "v6e")
"""The generations whose chips lie in a rectangle. The others have three sides."""

CORES = {"v2": 2, "v3": 2, "v7x": 2}
"""Generation -> the devices of a chip, if these are several."""

NAMES = {"v7x": "tpu7x"}
"""Generation -> its name in libtpu, where this is another one."""

CHIPS = {"v2": "0x0027", "v3": "0x0027", "v4": "0x005e", "v5e": V5E}
"""Generation -> the PCI device number of its chips, of those whose flags differ."""

CONFIGURATIONS = {"v4": "megacore"}
"""Generation -> the chip configuration to ask libtpu for. On v4, `megacore` makes one device of the two cores, as on v5p."""

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
    """Return the smallest topology of a generation with at least so many devices, such as `v5e:4x4`."""
    sides = [2, 2] if generation in FLAT else [2, 2, 1]
    while prod(sides) * CORES.get(generation, 1) < count:
        shortest = min(range(len(sides)), key=lambda i: (sides[i], -i))
        sides[shortest] *= 2
    return f"{generation}:{'x'.join(map(str, sorted(sides) if generation in FLAT else sides))}"


def topology(name: str) -> list[Any]:
    """Return the devices of a topology such as `v5e:4x4`. Raises `Unavailable` if libtpu is missing or does not know it.

    libtpu reads flags once: the first topology of a process decides.
    """
    import_jax()
    if find_spec("libtpu") is None:
        raise Unavailable("compiling for TPUs needs the package libtpu: pip install 'mtfc[tpu]'")
    generation, _, shape = name.partition(":")
    os.environ[TPU_VARIABLE] = _flags(os.environ[TPU_VARIABLE], CHIPS.get(generation, ""))
    for variable, value in WITHOUT_TPU.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    configuration = CONFIGURATIONS.get(generation)
    options = {"chip_config_name": configuration} if configuration else {}
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{NAMES.get(generation, generation)}:{shape}", **options
        )
        return list(described.devices)
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
