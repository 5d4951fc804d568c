# mypy: allow-untyped-defs, allow-untyped-calls
"""Flags that let TPUs send while dots compute, for the commands and, as text, for generated modules.

libtpu reads them from the environment when JAX makes its devices.
"""

import os
from pathlib import Path

TPU_VARIABLE = "LIBTPU_INIT_ARGS"

TPU_FLAGS = (
    "--xla_enable_async_all_gather=true",
    "--xla_enable_async_all_reduce=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_prefer_async_allgather_to_allreduce=true",
)

ALL_REDUCE_FLAG = "--xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true"
"""A flag for chips from v5 on: docs/decisions/0052-collectives-overlap-inside-an-iteration.md has the measurements."""

CHIPS_BEFORE_V5 = ("0x0027", "0x0056", "0x005e")
"""The PCI device numbers of these TPUs, as JAX knows them; v2 and v3 have one."""


def add_tpu_flags():
    """Let TPUs send while dots compute. A flag that the environment has already stays as it is.

    On chips before v5, XLA compiles all-reduces in dots to kernels that need more memory than there is.
    """
    for flag in TPU_FLAGS if has_chips_before_v5() else (*TPU_FLAGS, ALL_REDUCE_FLAG):
        given = os.environ.get(TPU_VARIABLE, "")
        if flag.split("=")[0] not in given:
            os.environ[TPU_VARIABLE] = f"{given} {flag}"


def has_chips_before_v5():
    """Return True if a PCI device of this machine is such a TPU."""
    found = Path("/sys/bus/pci/devices").glob("*/vendor")
    try:
        made_by_google = [each.parent for each in found if each.read_text().strip() == "0x1ae0"]
        return any((each / "device").read_text().strip() in CHIPS_BEFORE_V5 for each in made_by_google)
    except OSError:
        return False
