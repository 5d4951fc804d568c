"""Run passes under a memory limit, and say what fills the memory where no choice of kept values fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.diagnostics import CompileError, Label
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import Observer, run
from mtfc.compiler.passes.recompute import MemoryLimitError
from mtfc.frontend.hardware_targets import memory_error

SHOWN = 3
"""The lines that an error names: those that fill most of the memory."""


def run_limited(
    program: Program, passes: Iterable[Pass], observers: Sequence[Observer] = (), level: Level = "global"
) -> Program:
    """Run passes as `pipelines.run` does. Raises `CompileError` (E321) if the program does not fit into the memory limit."""
    try:
        return run(program, passes, observers, level)
    except MemoryLimitError as error:
        raise _error(program, error) from None


def _rounded_up(bytes: int) -> str:
    """Return a size of at least so many bytes, with at most four digits."""
    power = max(0, (bytes.bit_length() - 1) // 10)
    return f"{ceil(bytes / 1024**power * 100) / 100:g}{('B', 'KiB', 'MiB', 'GiB', 'TiB')[min(power, 4)]}"


def _error(program: Program, error: MemoryLimitError) -> CompileError:
    """Return the error E321: the least memory, and the lines that need it."""
    least, layout = whole(error.least.total), program.layout.name if program.layout else ""
    what = "a training step" if error.function == "step" else "a forward pass"
    message = (
        f"{what} of `{program.name}` under layout `{layout}` needs at least {bytes_text(least)} on each device,"
        f" more than {bytes_text(error.limit)}"
    )
    lines = [(span, size) for span, size in error.lines() if span is not None]
    labels = tuple(Label(span, f"{bytes_text(size)} in this line") for span, size in lines[:SHOWN])
    help = f"split more dimensions, make `batch` or another dimension smaller, or allow `--memory {_rounded_up(least)}`"
    return memory_error(message, labels, help)
