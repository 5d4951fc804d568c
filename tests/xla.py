"""How the tests have XLA compile: each program runs once, so most optimizations cost more than they save.

`FUZZ_MINUTES` leaves everything as users have it, and so does the fixture `optimized` for what depends on how XLA rounds. A flag
that an XLA does not know ends the process, so the one below is given to those versions alone that were seen to have it.
"""

from __future__ import annotations

import os
from importlib.metadata import version

QUICK = not os.environ.get("FUZZ_MINUTES")

_EMITTERS = "xla_cpu_use_fusion_emitters"
"""Newer code of XLA for the CPU that takes twice as long to compile, and that every program runs which users compile."""

_IS_KNOWN = version("jaxlib").startswith("0.10.")

FLAGS = (
    "--xla_force_host_platform_device_count=8",
    *([f"--{_EMITTERS}=false"] if QUICK and _IS_KNOWN else []),
)

FULL: dict[str, bool | str] = {_EMITTERS: True} if _IS_KNOWN else {}
"""Options for one compilation: with what `FLAGS` turns off."""
