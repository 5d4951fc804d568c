"""Read a memory limit, run passes under it, and say what fills the memory where no choice of kept values fits.

A limit is a size, the memory of a machine, or a size on a machine: `80GiB`, `h100`, `40GiB@h100`. The machine decides what takes
memory and what it costs to compute again. A size alone counts memory as `mtfc cost` does. A word such as `full` says what is kept
in place of a limit.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import attrs

from mtfc.compiler.cost.hardware import Hardware, Machine
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.diagnostics import CompileError, Label, Span, failure
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipeline_loops import PipelineLoops
from mtfc.compiler.passes.pipelines import Observer, run
from mtfc.compiler.passes.recompute import KEPT, MemoryLimitError, Recompute, limit_on
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import target_of
from mtfc.frontend.hardware_targets import find_machine, is_path, split_target
from mtfc.frontend.semantics.names.standard_library import library_machines

UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate("kMGT", 1)}}
UNITS |= {f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}

SHOWN = 3
"""The lines that an error names: those that fill most of the memory."""


def limit_of(
    memory: str | None, declared: Mapping[str, Machine], layout: Layout | None = None
) -> Recompute | None:
    """Return the pass that keeps to the limit of `--memory`, or else to the one that a layout has. Raises `UsageError`.

    declared: the machines of the file, beside those of the library. A machine may be in a file of its own, too.
    """
    option = "--memory"
    if memory is None and layout is not None and layout.forms.recompute:
        memory, option = str(layout.forms.recompute), f"`recompute` of layout {layout.name}"
    if memory is None:
        return None
    if memory.strip() in KEPT:
        return Recompute(memory.strip())
    size, at, machine = memory.rpartition("@")
    machine = machine.strip()
    is_machine = is_path(machine) or split_target(machine)[0] in (*declared, *library_machines())
    try:
        if not (at or is_machine):
            return Recompute(bytes_in(memory))
        limit = limit_on(target_of(machine, declared, Sources()))
        return attrs.evolve(limit, memory=bytes_in(size)) if at else limit
    except CompileError as error:
        wrong, *_ = error.diagnostics
        said = [text for text in (wrong.message, wrong.help) if text]
        raise UsageError(f"{option}: {'; '.join(said)}") from None
    except ValueError as error:
        raise UsageError(f"{option}: {error}, a machine such as h100, or one of {', '.join(KEPT)}") from None


def written_limit(hardware: Hardware, declared: Mapping[str, Machine]) -> str | int:
    """Return the entry `recompute` for the memory of a machine: its name, or the bytes of a machine that a layout cannot name."""
    is_known = hardware.name in declared or hardware.name in library_machines()
    is_whole = is_known and find_machine(hardware.name, declared) == hardware
    return hardware.name if is_whole else int(hardware.device.memory)


def bytes_in(text: str) -> int:
    """Return the bytes of a size such as `80GiB`, `95 GB` or `1.5e9`. Raises `ValueError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d{1,2})?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    size = int(float(match[1]) * units.get(match[2].lower(), 0)) if match and len(match[1]) < 30 else 0
    if not 0 < size < 2**63:
        raise ValueError(f"expected a size such as 80GiB, 95GB or 500MiB, not `{text}`")
    return size


def run_limited(
    program: Program, passes: Iterable[Pass], observers: Sequence[Observer] = (), level: Level = "global"
) -> Program:
    """Run passes as `pipelines.run` does. Raises `CompileError` (E321) if the program does not fit into the memory limit.

    Stages of pipelines keep all values, or else by the first of `WORDS` with which the program fits.
    """
    passes, words = tuple(passes), WORDS if program.layout and program.layout.pipelines else ()
    for word in ("", *words):
        kept = [PipelineLoops(keep=word) if each == PipelineLoops() else each for each in passes]
        try:
            return run(program, kept, observers, level)
        except MemoryLimitError as error:
            least = error
    raise _error(program, least) from None


WORDS = ("selective", "minimal", "full")
"""Words for what stages of pipelines keep under a memory limit, the fastest first."""


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
    enough = _rounded_up(least) + (f"@{error.machine}" if error.machine else "")
    more = "split more dimensions, or make `batch` or another dimension smaller"
    axis = next((axis for axis, size in program.placed_on.axes if size > 1), None)
    is_kept = 2 * whole(error.least.activations_peak) < least
    if axis and is_kept and not (program.layout and program.layout.params.axes):
        more = f"store the model in parts, `params: {{ *: {axis} }}; optimizer: {{ *: {axis} }}`, or use more devices"
    help = f"{more}; or allow `--memory {enough}`; `mtfc search` finds the best layout that fits"
    is_written = bool(lines and program.layout and program.layout.forms.recompute)
    place = labels[0].span if is_written else Span("<--memory>", 1, 1, 1, 2)
    return failure("E321", message, place, help, labels[is_written:])
