"""Files of IR text, as `mtfc compile` prints it, in the place of a .mtf file."""

from __future__ import annotations

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span, failure
from mtfc.compiler.ir.builder import VerifyError
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.parser import ReadError, read_program
from mtfc.compiler.ir.printer import is_placed
from mtfc.compiler.ir.verifier import LEVELS, Level, verify
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from mtfc.driver.loading.sources import Sources, line_span
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.layout_options import parse_layout, parse_mesh
from mtfc.frontend.syntax.parser import parse

SUFFIX = ".ir"


def is_ir(file: str) -> bool:
    return file.endswith(SUFFIX)


def read_ir(file: str, choice: Choice, sources: Sources) -> tuple[Program, Level]:
    """Return the program of a file, and the last level at which all invariants hold.

    A global program gets the mesh and the layout of the options. Raises `CompileError` and `UsageError`.
    """
    if choice.model or choice.dims or choice.settings:
        raise UsageError(f"{file} holds one program at fixed sizes: no --model, --dim or --set")
    sources.add_choice(choice)
    name = sources.read(file)
    text = sources.texts[name]
    try:
        program = read_program(text)
        level = level_of(program)
        if not program.has_function("forward"):
            raise ReadError("there is no function forward", 1)
    except ReadError as error:
        message = str(error).removeprefix(f"line {error.line}: ")
        raise failure("E014", message, line_span(name, text, error.line)) from None
    except VerifyError as error:
        raise failure("E014", error.reason, _place(name, text, error.where)) from None
    if level == "global":
        return _placed(program, choice), level
    if choice.mesh or choice.layout:
        raise UsageError(f"{file} has layouts already: no --mesh or --layout")
    return program, level


def level_of(program: Program) -> Level:
    """Return the last level at which a program is sound. Raises a `VerifyError`, if possible one that is not about levels."""
    has_layouts = any(map(is_placed, program.functions))
    errors = []
    for level in [each for each in reversed(list(LEVELS)) if LEVELS[each].layouts == has_layouts]:
        try:
            verify(program, level)
        except VerifyError as error:
            errors.append(error)
        else:
            return level
    raise next((each for each in errors if "at level" not in each.reason), errors[-1])


def _placed(program: Program, choice: Choice) -> Program:
    """Return a global program with the mesh and layout of the options, or those of the text, or one device."""
    if choice.mesh is None and choice.layout is None:
        return attrs.evolve(program, mesh=program.mesh or ONE_DEVICE, layout=program.layout or UNDISTRIBUTED)
    diagnostics = Diagnostics()
    dims = "".join(
        f"dim {dim.name} = {dim.size}\n" for dim in program.dims.values() if dim.name.isidentifier()
    )
    module = elaborate(parse(dims, "<dims>", diagnostics), diagnostics)
    mesh = parse_mesh(choice.mesh, module) if choice.mesh else program.mesh or ONE_DEVICE
    layout = parse_layout(choice.layout, module, mesh).layout if choice.layout else UNDISTRIBUTED
    return attrs.evolve(program, mesh=mesh, layout=layout)


def _place(file: str, text: str, where: str) -> Span:
    """Return the span of the equation that an error names, or of the first line."""
    found = (i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(where))
    return line_span(file, text, next(found, 1))
