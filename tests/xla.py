"""XLA options for tests: each program runs once, so most optimizations cost more than they save.

`FUZZ_MINUTES` keeps the options of users, and so does the fixture `optimized`, for tests that depend on XLA's rounding. An
unknown flag ends the process, so the flag below is given only to versions of XLA that are known to have it.
"""

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

QUICK = not os.environ.get("FUZZ_MINUTES")

_EMITTERS = "xla_cpu_use_fusion_emitters"
"""The newer CPU emitters of XLA, which users' programs are compiled with. They take twice as long to compile."""

_IS_KNOWN = version("jaxlib").startswith("0.10.")

_ONE_PART = "--xla_cpu_parallel_codegen_split_count=1"
"""LLVM compiles a program in one part: threads that compile parts of small programs take a seventh more processor time."""

QUICK_FLAGS = (f"--{_EMITTERS}=false", _ONE_PART) if QUICK and _IS_KNOWN else ()
"""Flags for commands that tests start."""

FLAGS = ("--xla_force_host_platform_device_count=8", *QUICK_FLAGS)

FULL: dict[str, bool | str] = {_EMITTERS: True} if _IS_KNOWN else {}
"""Options for one compilation that turn on the features that `FLAGS` turns off."""


def keep_compiled(folder: Path) -> None:
    """Let JAX look for compiled programs in a folder before it compiles: tests of a file compile the same ones many times."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()


def share_context() -> None:
    """Let JAX lower programs in one MLIR context, a new one after each call of this function.

    JAX makes a context for each program, with all dialects: for small programs this takes a tenth of the time to compile.
    """
    from jax._src.interpreters import mlir

    if make := getattr(mlir, "make_ir_context", None):
        mlir.make_ir_context = cache(getattr(make, "__wrapped__", make))
