# mypy: allow-untyped-defs, allow-untyped-calls
"""Flags that let TPUs send while dots compute, for the commands and, as text, for generated modules.

libtpu reads them from the environment when JAX makes its devices. docs/decisions/0052-collectives-overlap-inside-an-iteration.md
has the measurements.
"""

import os
from pathlib import Path

TPU_VARIABLE = "LIBTPU_INIT_ARGS"

TPU_FLAGS = (
    "--xla_enable_async_all_gather=true",
    "--xla_enable_async_all_reduce=true",
    "--xla_tpu_prefer_async_allgather_to_allreduce=true",
)

FUSION_FLAGS = (
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true",
)
"""Flags that not every chip takes."""

CHIPS_BEFORE_V5 = ("0x0027", "0x0056", "0x005e")
"""The PCI device numbers of these TPUs, as JAX knows them; v2 and v3 have one."""

V5E = "0x0063"


def add_tpu_flags():
    """Let TPUs send while dots compute. A flag that the environment has already stays as it is."""
    for flag in (*TPU_FLAGS, *fusion_flags(tpu_chip())):
        given = os.environ.get(TPU_VARIABLE, "")
        if flag.split("=")[0] not in given:
            os.environ[TPU_VARIABLE] = f"{given} {flag}"


def fusion_flags(chip):
    """Return the flags with which libtpu sends inside dots on a chip, by its PCI device number.

    On chips before v5, kernels of dots with all-reduces need more memory than there is. Newer versions of
    libtpu compile these kernels for v5e alone, and refuse the program elsewhere.
    """
    if chip != V5E and not libtpu_fuses_on_all_chips():
        return ()
    return FUSION_FLAGS[:1] if chip in CHIPS_BEFORE_V5 else FUSION_FLAGS


def libtpu_fuses_on_all_chips():
    """Return True for libtpu up to 0.0.42."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return [int(part) for part in version("libtpu").split(".")[:3]] <= [0, 0, 42]
    except (PackageNotFoundError, ValueError):
        return False


def tpu_chip():
    """Return the PCI device number of this machine's TPUs, or an empty text if no flag depends on it."""
    found = Path("/sys/bus/pci/devices").glob("*/vendor")
    try:
        made_by_google = [each.parent for each in found if each.read_text().strip() == "0x1ae0"]
        numbers = [(each / "device").read_text().strip() for each in made_by_google]
    except OSError:
        return ""
    return next((number for number in numbers if number in (*CHIPS_BEFORE_V5, V5E)), "")
