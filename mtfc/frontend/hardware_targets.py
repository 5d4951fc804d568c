"""Find the hardware that `--target` names: in the file, in the library, or in a file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.diagnostics import CompileError, Diagnostics, Label, Span
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.names.standard_library import FOLDER, SHOWN
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

HARDWARE = FOLDER / "hardware"
OPTION = "<--target>"


def library_machines() -> tuple[str, ...]:
    """Return the names of the library's machines: each has a file of that name."""
    return tuple(sorted(path.stem for path in HARDWARE.glob("*.mtf")))


def is_path(target: str) -> bool:
    """Return True if a target is the path of a file, and not a name."""
    return Path(target).suffix == ".mtf"


def find_hardware(target: str, declared: Mapping[str, Hardware]) -> Hardware:
    """Return the hardware of this name, declared in the file or else in the library. Raises `CompileError` (E313)."""
    name = target.strip()
    if name in declared:
        return declared[name]
    if name in library_machines():
        return hardware_in_file((HARDWARE / f"{name}.mtf").read_text("utf-8"), f"{SHOWN}hardware/{name}.mtf")
    scope = Scope(Diagnostics())
    known = [*declared, *library_machines()]
    help = f"one of: {', '.join(known)}; or a file that declares one: `--target box.mtf`"
    scope.unknown("E313", f"unknown hardware `{name}`", ast.Name(_whole(target), name), known, help)
    raise CompileError(scope.diagnostics)


def hardware_in_file(text: str, file: str) -> Hardware:
    """Return the only hardware that a file declares. Raises `CompileError` (E313)."""
    diagnostics = Diagnostics()
    module = elaborate(parse(text, file, diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    if len(module.hardware) != 1:
        several = f"several hardware: {', '.join(module.hardware)}"
        message = f"this file declares {several if module.hardware else 'no hardware'}"
        help = "a file for `--target` declares one, such as `mtfc calibrate` writes"
        Scope(diagnostics).error("E313", message, Span(file, 1, 1, 1, 1), help=help)
        diagnostics.raise_if_errors()
    (hardware,) = module.hardware.values()
    return hardware


def raise_no_room(target: str, message: str, help: str) -> NoReturn:
    """Raise `CompileError` (E316) for a mesh that does not fit on the hardware."""
    scope = Scope(Diagnostics())
    scope.error("E316", message, _whole(target), help=help)
    raise CompileError(scope.diagnostics)


def memory_error(message: str, labels: Iterable[Label], help: str) -> CompileError:
    """Return the error (E321) for a memory limit that is too small."""
    scope = Scope(Diagnostics())
    scope.error("E321", message, Span("<--memory>", 1, 1, 1, 2), labels, help)
    return CompileError(scope.diagnostics)


def _whole(target: str) -> Span:
    return Span(OPTION, 1, 1, 1, 1 + len(target))
