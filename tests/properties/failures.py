"""Report a failing random program: the smallest file that fails, the command that shows it, and the pass that is wrong."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from mtfc.backends.interpreter import interpret
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes import pipelines
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout
from tests.harness import Arrays, Tolerance, exact_data, functions, load, tolerance
from tests.properties.reducer import SECONDS, reduced

FOLDER = Path(tempfile.gettempdir()) / "mtfc-failures"

"""The folder of the smallest programs."""

SEEDS = range(1, 5)
"""Seeds of the arguments on which programs are compared before and after a pass."""


@attrs.frozen
class Source:
    """A program of which only the text is known."""

    source: str

    def __str__(self) -> str:
        return self.source


class SmallestFailure(AssertionError):
    """The failure of a random program, with the smallest program that fails alike."""


def failure(name: str, check: Callable[[Any], None], source: str, error: BaseException) -> SmallestFailure:
    """Return the report of a failure of the property `name`, and write the smallest program to a file."""
    small = reduced(source, lambda text: _fails_alike(check, text, error), SECONDS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.mtf"
    path.write_text(small, "utf-8")
    return SmallestFailure(
        f"{_message(check, small) or error}\n\n{small}\n"
        f"first pass whose output differs: {guilty_pass(small) or 'none: the fault is behind the passes'}\n"
        f"file: {path}\n"
        f"again: python -m tests.properties.again {name} {path}"
    )


def _fails_alike(check: Callable[[Any], None], source: str, error: BaseException) -> bool:
    """Return True if the check fails on a legal program, by an error of the same class."""
    try:
        load(source)
    except CompileError:
        return False
    found = _raised(check, source)
    return found is not None and type(found) is type(error)


def _raised(check: Callable[[Any], None], source: str) -> Exception | None:
    try:
        check(Source(source))
    except Exception as found:  # every class of error is a failure of the compiler
        return found
    return None


def _message(check: Callable[[Any], None], source: str) -> str:
    return str(_raised(check, source) or "").strip()


def guilty_pass(source: str) -> str | None:
    """Return the first pass after which a program has other results than before it, with the layout; None if there is none.

    Passes before differentiation are compared on `forward`, later ones on the function that they make.
    """
    module = load(source)
    (program,) = module.programs
    for of, function in functions(program):
        for layout in module.layouts:
            if found := _first_difference(program, layout, of, function):
                return f"{found} (layout {layout.name}, {function})"
    return None


def _first_difference(program: Program, layout: DeclaredLayout, of: str, function: str) -> str | None:
    """Return the first pass that changes results or raises an error."""
    known: dict[str, list[tuple[Arrays, Arrays]]] = {}
    placed = attrs.evolve(program, mesh=layout.mesh, layout=layout.layout)
    for name, found in _passes(placed, of):
        if isinstance(found, Exception):
            return name
        for each in ("forward", function):
            if found.has_function(each) and not _is_kept(found, each, known, tolerance(program)):
                return name
    return None


def _is_kept(
    program: Program, function: str, known: dict[str, list[tuple[Arrays, Arrays]]], accepted: Tolerance
) -> bool:
    """Return True if a function still has its known results. The first time, remember them for some draws of arguments."""
    called = program.function(function)
    if function not in known:
        draws = [exact_data(called, seed) for seed in SEEDS]
        known[function] = [(arrays, interpret(called, program, arrays)) for arrays in draws]
        return True
    try:
        for arrays, expected in known[function]:
            accepted.check(interpret(called, program, arrays), expected, function)
    except Exception:  # every class of error is a failure of the compiler
        return False
    return True


def _passes(program: Program, of: str) -> Iterator[tuple[str, Program | Exception]]:
    """Yield the program before any pass, and after each pass with its name; the error of a pass is the last."""
    yield "none", program
    seen: list[tuple[str, Program | Exception]] = []
    running: list[str] = []

    def observe(each: Any, made: Program, seconds: float) -> None:
        seen.append((each.name, made))
        running.append(each.name)

    try:
        pipelines.run(program, pipelines.default_pipeline(of), [observe])
    except Exception as error:
        passes = pipelines.default_pipeline(of)
        seen.append((passes[len(running)].name, error))
    yield from seen
