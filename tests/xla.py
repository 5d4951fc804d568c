"""XLA options for tests: each program runs once, so most optimizations cost more than they save.

`FUZZ_MINUTES` keeps the options of users, and so does the fixture `optimized`, for tests that depend on XLA's rounding. An
unknown flag ends the process, so the flag below is given only to versions of XLA that are known to have it.
"""

from __future__ import annotations

import os
from importlib.metadata import version

QUICK = not os.environ.get("FUZZ_MINUTES")

_EMITTERS = "xla_cpu_use_fusion_emitters"
"""The newer CPU emitters of XLA, which users' programs are compiled with. They take twice as long to compile."""

_IS_KNOWN = version("jaxlib").startswith("0.10.")

FLAGS = (
    "--xla_force_host_platform_device_count=8",
    *([f"--{_EMITTERS}=false"] if QUICK and _IS_KNOWN else []),
)

FULL: dict[str, bool | str] = {_EMITTERS: True} if _IS_KNOWN else {}
"""Options for one compilation that turn on the features that `FLAGS` turns off."""
