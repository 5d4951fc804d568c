"""A file at any stage of its compilation, for `mtfc compile`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mtfc.backends.registry import BACKENDS, TextKind, text_kinds
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes.pass_base import Pass, PipelineError
from mtfc.compiler.passes.pipelines import PASSES, Observer, default_pipeline, differentiation, parse_pipeline
from mtfc.compiler.passes.pipelines import run as run_passes
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import CompileOptions


@attrs.frozen
class Emitted:
    """The text of a program at one stage, and the layout that it was compiled for."""

    kind: str
    model: str
    case: LayoutOnMesh
    text: str

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        mesh = dict(self.case.mesh.axes)
        return {
            "emit": self.kind,
            "model": self.model,
            "layout": self.case.name,
            "mesh": mesh,
            "text": self.text,
        }


def emit(options: CompileOptions, sources: Sources, show: Callable[[str], None]) -> Emitted:
    """Compile a file to the kind that the options name. Raises `CompileError` and `UsageError`.

    show: receives the program after each pass that `print_ir_after` names.
    """
    selection = select(options.file, options.choice, sources)
    if options.train and selection.program.training is None:
        raise UsageError(
            f"model {selection.program.name} has no training step: there is no `train` block for it"
        )
    case, passes = selection.cases[0], _passes(options)
    if options.emit not in IR_KINDS and not any(each.level == "lowered" for each in passes):
        raise UsageError(f"--emit {options.emit} needs all passes, and these end before lower-collectives")
    program = _compiled(case.placed(selection.program), passes, options, show)
    return Emitted(options.emit, program.name, case, EMITTERS[options.emit].emit(program))


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


def _compiled(
    program: Program, passes: tuple[Pass, ...], options: CompileOptions, show: Callable[[str], None]
) -> Program:
    """Run the passes. An impossible order of passes in `--passes` is wrong usage."""
    try:
        return run_passes(program, passes, _observers(options, show))
    except PipelineError as error:
        raise UsageError(f"--passes: these cannot run in this order: {error}") from error


def _passes(options: CompileOptions) -> tuple[Pass, ...]:
    """Return the given passes, or those that the kind needs, up to `--stop-after`. Raises `UsageError`."""
    if options.passes is not None:
        try:
            passes = parse_pipeline(options.passes)
        except PipelineError as error:
            raise UsageError(f"--passes: {error}") from None
    else:
        passes = PIPELINES.get(options.emit, default_pipeline())
    if options.stop_after is None:
        return passes
    last = _pass_name(options.stop_after, "--stop-after", passes)
    return passes[: 1 + max(i for i, each in enumerate(passes) if each.name == last)]


def _pass_name(name: str, option: str, passes: tuple[Pass, ...]) -> str:
    """Return the name of a pass that runs. Raises `UsageError` for any other name."""
    running = list(dict.fromkeys(each.name for each in passes))
    if name in running:
        return name
    if name in PASSES:
        raise UsageError(
            f"{option} {name}: this pass does not run here; those that do are {', '.join(running) or 'none'}"
        )
    raise UsageError(f"{option} {name}: there is no such pass; the passes are {', '.join(PASSES)}")


def _observers(options: CompileOptions, show: Callable[[str], None]) -> list[Observer]:
    """Return the observers that show the program after the passes of `--print-ir-after`."""
    wanted = options.print_ir_after
    if wanted is None:
        return []
    if wanted != "all":
        _pass_name(wanted, "--print-ir-after", _passes(options))

    def observe(each: Pass, program: Program, seconds: float) -> None:
        if wanted in ("all", each.name):
            show(f"// after {each} ({1000 * seconds:.1f} ms)\n{print_program(program)}")

    return [observe]


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
