"""`mtfc compile`: what a file becomes, at any stage."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping

from mtfc.cli.options import add_format, add_selection, add_source
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes.pass_base import Pass, PipelineError
from mtfc.compiler.passes.pipelines import PASSES, Observer, default_pipeline, differentiation, parse_pipeline
from mtfc.compiler.passes.pipelines import run as run_passes
from mtfc.driver.data.files import STANDARD, check_apart, check_writable, write_text
from mtfc.driver.errors import OK, UsageError
from mtfc.driver.running import execution
from mtfc.driver.selection import Case, select
from mtfc.driver.sources import Sources

EXAMPLES = """\
examples:
  mtfc compile model.mtf                              one processor's program, with its collectives
  mtfc compile model.mtf --emit jax -o model.py       a JAX module that runs without mtfc
  mtfc compile model.mtf --print-ir-after all         also what each pass makes, on standard error
  mtfc compile model.mtf --stop-after insert-reshards
  mtfc compile model.mtf --passes "differentiate,simplify,dce"

kinds:
  ast        the syntax tree                 numpy      a NumPy module that simulates every processor
  ir         the model as one program        jax        a JAX module
  grad       with gradients and updates      stablehlo  what JAX hands to XLA
  spmd       one processor's program         hlo        what XLA compiles it to
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--emit", choices=("ast", *EMITTERS), default="spmd", metavar="KIND", help="default: spmd"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", default=STANDARD, help="where to write (default: standard output)"
    )
    parser.add_argument(
        "--train", action="store_true", help="insist on a training step: an error where the file has none"
    )
    passes = parser.add_argument_group("passes")
    passes.add_argument("--print-ir-after", metavar="PASS|all", help="show the program after that pass")
    passes.add_argument(
        "--passes", metavar="PIPELINE", help="run these: NAME or NAME{option=value}, with commas between"
    )
    passes.add_argument("--stop-after", metavar="PASS", help="end with that pass")
    add_selection(parser, "the first")
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    check_writable(options.output)
    check_apart({"-o": options.output}, {"FILE": options.file})
    if options.emit == "ast":
        return _emit_ast(options, sources)
    selection = select(options, sources)
    if options.train and selection.program.training is None:
        raise UsageError(
            f"model {selection.program.name} has no training step: there is no `train` block for it"
        )
    case, passes = selection.cases[0], _passes(options)
    if options.emit not in SHOWN_AT_ANY_LEVEL and not any(each.level == "lowered" for each in passes):
        raise UsageError(f"--emit {options.emit} needs all passes, and these end before lower-collectives")
    program = _compiled(case.placed(selection.program), passes, options)
    text = EMITTERS[options.emit](program)
    _write(options, text if options.format == "text" else _json(options.emit, program.name, case, text))
    return OK


def _compiled(program: Program, passes: tuple[Pass, ...], options: argparse.Namespace) -> Program:
    """Run the passes. Any may follow any in `--passes`: an order that cannot be is wrong usage."""
    observers = _observers(options)
    if options.passes is None:
        return run_passes(program, passes, observers)
    try:
        return run_passes(program, passes, observers)
    except Exception as error:
        raise UsageError(
            f"--passes: these cannot run in this order: {error or type(error).__name__}"
        ) from error


def _write(options: argparse.Namespace, text: str) -> None:
    write_text(options.output, text if text.endswith("\n") else f"{text}\n")


def _json(kind: str, model: str, case: Case, text: str) -> str:
    mesh = dict(case.mesh.axes)
    return json.dumps(
        {"emit": kind, "model": model, "layout": case.name, "mesh": mesh, "text": text}, indent=2
    )


def _emit_ast(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.frontend.syntax.ast_printer import to_json, to_text
    from mtfc.frontend.syntax.parser import parse

    diagnostics = Diagnostics()
    file = sources.read(options.file)
    tree = parse(sources.texts[file], file, diagnostics)
    diagnostics.raise_if_errors()
    _write(options, to_text(tree) if options.format == "text" else json.dumps(to_json(tree), indent=2))
    return OK


# Passes


def _passes(options: argparse.Namespace) -> tuple[Pass, ...]:
    """The passes to run: those given or those that the kind needs, up to `--stop-after`. Raises `UsageError`."""
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
    running = list(dict.fromkeys(each.name for each in passes))
    if name in running:
        return name
    if name in PASSES:
        raise UsageError(
            f"{option} {name}: this pass does not run here; those that do are {', '.join(running) or 'none'}"
        )
    raise UsageError(f"{option} {name}: there is no such pass; the passes are {', '.join(PASSES)}")


def _observers(options: argparse.Namespace) -> list[Observer]:
    """What `--print-ir-after` asks for."""
    wanted = options.print_ir_after
    if wanted is None:
        return []
    if wanted != "all":
        _pass_name(wanted, "--print-ir-after", _passes(options))

    def show(each: Pass, program: Program, seconds: float) -> None:
        if wanted in ("all", each.name):
            print(f"// after {each} ({1000 * seconds:.1f} ms)\n{print_program(program)}", file=sys.stderr)

    return [show]


# Kinds

PIPELINES = {
    "ir": (),
    "grad": differentiation(),
    "jax": default_pipeline("module"),
    "numpy": default_pipeline("module"),
}
"""The passes of the kinds that do not use the default pipeline."""


def _stablehlo(program: Program) -> str:
    from mtfc.backends.jax.runtime import stablehlo

    return stablehlo(program)


def _hlo(program: Program) -> str:
    from mtfc.backends.jax.runtime import hlo

    return hlo(program)


SHOWN_AT_ANY_LEVEL = frozenset({"ir", "grad", "spmd"})

EMITTERS: Mapping[str, Callable[[Program], str]] = {
    "ir": print_program,
    "grad": print_program,
    "spmd": print_program,
    "numpy": lambda program: execution.source(program, "numpy"),
    "jax": lambda program: execution.source(program, "jax"),
    "stablehlo": _stablehlo,
    "hlo": _hlo,
}
