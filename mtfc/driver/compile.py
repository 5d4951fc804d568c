"""A file at any stage of its compilation, for `mtfc compile`."""

import json
import sys
from collections.abc import Callable, Mapping
from difflib import unified_diff
from typing import Any

import attrs

from mtfc.backends.registry import BACKENDS, TextKind, text_kinds
from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.pass_base import Pass, PipelineError, options_of
from mtfc.compiler.passes.pipelines import (
    PASSES,
    Observer,
    default_pipeline,
    differentiation,
    parse_pipeline,
    unknown_pass,
    within_memory,
)
from mtfc.compiler.passes.recompute import Recompute
from mtfc.driver.errors import UsageError, raised_as
from mtfc.driver.loading.cases import CaseOnDevices
from mtfc.driver.loading.memory_limit import limit_of, run_limited
from mtfc.driver.loading.other_files import is_ir, read_ir
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import CompileOptions


@attrs.frozen
class Emitted:
    """The text of a program at one stage."""

    kind: str
    program: Program
    text: str

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        mesh, layout = self.program.mesh, self.program.layout
        return {
            "emit": self.kind,
            "model": self.program.name,
            "layout": layout.name if layout else None,
            "mesh": dict(mesh.axes) if mesh else {},
            "text": self.text,
        }


@attrs.frozen
class PassRecord:
    """The record of a pass. text: the program after it, or the changed lines; None if the pass changed nothing that is shown."""

    name: str
    seconds: float
    text: str | None

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return {
            "pass": self.name,
            "seconds": self.seconds,
            "changed": self.text is not None,
            "text": self.text,
        }


def emit(options: CompileOptions, sources: Sources, show: Callable[[PassRecord], None]) -> Emitted:
    """Compile a file to the kind that the options name. Raises `CompileError` and `UsageError`.

    show: receives a record of each pass that `print_ir_after` names.
    """
    program, level, limit = _read(options, sources)
    if isinstance(program, Emitted):
        return program
    if options.train and program.training is None:
        raise UsageError(f"model {program.name} has no training step: there is no `train` block for it")
    passes = _passes(options, program, level, limit)
    lowers = level == "lowered" or any(each.level == "lowered" for each in passes)
    if options.emit not in IR_KINDS and not lowers:
        raise UsageError(f"--emit {options.emit} needs all passes, and these end before lower-collectives")
    observers = _observers(options, program, passes, show)
    with raised_as(UsageError, "--passes: these cannot run in this order", PipelineError):
        program = run_limited(program, passes, observers, level)
    if options.emit in IR_KINDS:
        return Emitted(options.emit, program, print_program(program, options.locations))
    with doing(f"making {options.emit}"):
        return Emitted(options.emit, program, EMITTERS[options.emit].emit(program))


def _read(options: CompileOptions, sources: Sources) -> tuple[Program | Emitted, Level, Recompute | None]:
    """Return the program of a .mtf file, or of a file of IR text, ready for passes, its level, and the memory limit.

    Instead of a program it may be the text for a placement or a layout of several meshes, which passes do not lower as a whole.
    """
    if is_ir(options.file):
        program, level = read_ir(options.file, options.choice, sources)
        return program, level, limit_of(options.choice.memory, {}, program.layout)
    selection = select(options.file, options.choice, sources, or_placement=True, or_multi_mesh=True)
    case = selection.case
    if not isinstance(case, LayoutOnMesh):
        return _emitted_otherwise(options, case, selection.program), "global", None
    return case.placed(selection.program), "global", case.limit


def _emitted_otherwise(options: CompileOptions, case: CaseOnDevices, program: Program) -> Emitted:
    """Return the module of a placement or of a layout of several meshes. Raises `UsageError` for any other text."""
    placed = attrs.evolve(program, mesh=case.mesh, layout=case.layout)
    if options.train and placed.training is None:
        raise UsageError(f"model {placed.name} has no training step: there is no `train` block for it")
    if options.emit not in case.emits:
        texts = " or ".join(", ".join(case.emits).rsplit(", ", 1))
        raise UsageError(f"`{case.name}` is {case.kind}{case.content}: --emit {texts}")
    for_passes = {
        "--passes": options.passes,
        "--stop-after": options.stop_after,
        "--print-ir-after": options.print_ir_after,
    }
    case.refuse(for_passes, f", {case.unlowered} not lowered by passes as a whole")
    return Emitted(options.emit, placed, case.text(program, options.emit, options.locations))


def syntax_tree(file: str, sources: Sources, as_json: bool) -> str:
    """Return the syntax tree of a file as text or JSON. Raises `CompileError` and `UsageError`."""
    from mtfc.frontend.syntax.ast_printer import to_json, to_text
    from mtfc.frontend.syntax.parser import parse

    diagnostics = Diagnostics()
    name = sources.read(file)
    tree = parse(sources.texts[name], name, diagnostics)
    diagnostics.raise_if_errors()
    return json.dumps(to_json(tree), indent=2) if as_json else to_text(tree)


# Passes


def list_passes() -> str:
    """Return a table of all passes: the sentence of each, its options with their defaults, and the levels that it takes."""
    rows = []
    for name, each in PASSES.items():
        summary = " ".join((sys.modules[each.__module__].__doc__ or "").partition("\n\n")[0].split())
        rows.append(f"{name}\n  {summary.partition(': ')[2] or summary}")
        rows += [f"  option {field.name}={str(field.default).lower()}" for field in options_of(each)]
        rows.append(f"  takes {', '.join(each.takes)}" + (f"; gives {each.level}" if each.level else ""))
    return "\n".join(rows) + "\n"


def _passes(
    options: CompileOptions, program: Program, level: Level, limit: Recompute | None
) -> tuple[Pass, ...]:
    """Return the given passes, or those that the kind still needs, up to `--stop-after`. Raises `UsageError`."""
    if options.passes is not None:
        with raised_as(UsageError, "--passes", PipelineError):
            passes = parse_pipeline(options.passes)
    else:
        passes = _rest(PIPELINES.get(options.emit, default_pipeline()), program, level)
    if limit is not None and (level == "lowered" or any(each.level == "lowered" for each in passes)):
        passes = within_memory(passes, limit)
    if options.stop_after is None:
        return passes
    last = _pass_name(options.stop_after, "--stop-after", passes)
    return passes[: 1 + max(i for i, each in enumerate(passes) if each.name == last)]


def _rest(passes: tuple[Pass, ...], program: Program, level: Level) -> tuple[Pass, ...]:
    """Return the passes that a program at a level has not had. Global passes may run again, but gradients are added once."""
    start = next((i for i, each in enumerate(passes, 1) if each.level == level), 0)
    is_done = len(program.functions) > 1
    return tuple(each for each in passes[start:] if not (is_done and isinstance(each, Differentiate)))


def _pass_name(name: str, option: str, passes: tuple[Pass, ...]) -> str:
    """Return the name of a pass that runs. Raises `UsageError` for any other name."""
    running = list(dict.fromkeys(each.name for each in passes))
    if name in running:
        return name
    if name in PASSES:
        raise UsageError(
            f"{option} {name}: this pass does not run here; those that do are {', '.join(running) or 'none'}"
        )
    raise UsageError(f"{option}: {unknown_pass(name, PASSES)}")


def _observers(
    options: CompileOptions, program: Program, passes: tuple[Pass, ...], show: Callable[[PassRecord], None]
) -> list[Observer]:
    """Return the observers that show the program after the passes of `--print-ir-after`."""
    wanted = options.print_ir_after
    if wanted is None:
        return []
    if wanted != "all":
        _pass_name(wanted, "--print-ir-after", passes)
    before = _shown(program, options.print_function)

    def observe(each: Pass, program: Program, seconds: float) -> None:
        """Show what a pass has done to the program, as the options want it."""
        nonlocal before
        text, last = _shown(program, options.print_function), before
        before = text
        if wanted in ("all", each.name):
            shown = _changed_lines(last, text) if options.print_diff else text
            show(PassRecord(str(each), seconds, None if text == last and wanted == "all" else shown))

    return [observe]


def _shown(program: Program, function: str | None) -> str:
    """Return the text of a program, or of one of its functions alone."""
    if function is None:
        return print_program(program)
    found = tuple(each for each in program.functions if each.name == function)
    text = print_program(attrs.evolve(program, functions=found))
    return text[text.index(f"\nfunction {function} ") + 1 :] if found else ""


def _changed_lines(before: str, after: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "".join(f"{line}\n" for line in lines if not line.startswith(("---", "+++")))


# Kinds

PIPELINES = {
    "ir": (),
    "grad": differentiation(),
    **dict.fromkeys(BACKENDS, default_pipeline("module")),
}
"""The passes of the kinds that do not use the default pipeline."""


IR_KINDS = {
    "ir": TextKind("the model as one program", print_program),
    "grad": TextKind("with gradients and updates", print_program),
    "spmd": TextKind("one processor's program", print_program),
}
"""The kinds that show the IR, at any level."""

EMITTERS: Mapping[str, TextKind] = {**IR_KINDS, **text_kinds()}
"""All kinds of text that are made of a program."""
