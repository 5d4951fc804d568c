"""Read the standard library: the modules in `mtfc/std`, written in the language itself.

A declaration of the library is parsed when it is used, so that an import costs little. The library is in canonical form, where
each declaration begins in the first column; so a module can be divided into declarations without parsing it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.records import frozen
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

FOLDER = Path(__file__).parents[3] / "std"
HARDWARE = FOLDER / "hardware"
SHOWN = "mtfc/std/"
"""The name of the folder in diagnostics, wherever mtfc is installed."""

DECLARATION = re.compile(r"^(import|dim|fn|optimizer)[ \t]+(\w+)", re.MULTILINE)

D = TypeVar("D")
N = TypeVar("N", ast.DimDecl, ast.ImportDecl)


@frozen
class UnparsedDeclaration:
    """The text of one declaration of a module, and the line on which it begins."""

    file: str
    line: int
    text: str


class LazyDeclarations(Mapping[str, D]):
    """The declarations of a module that begin with a keyword, by name, parsed when they are looked up.

    pick: selects from the declarations of one name.
    """

    def __init__(self, module: str, keyword: str, pick: Callable[[tuple[Any, ...]], D]) -> None:
        self._sections, self._pick = sections(module).get(keyword, {}), pick

    def __getitem__(self, name: str) -> D:
        return self._pick(tuple(map(declaration, self._sections[name])))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


def library_machines() -> tuple[str, ...]:
    """Return the names of the library's machines: each has a file of that name."""
    return tuple(sorted(path.stem for path in HARDWARE.glob("*.mtf")))


def modules() -> tuple[str, ...]:
    """Return the names of all modules."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.mtf")))


@cache
def text(module: str) -> str | None:
    """Return the text of a module; None if there is no module of the name."""
    path = FOLDER / f"{module}.mtf"
    return path.read_text("utf-8") if path.is_file() else None


def file_of(module: str) -> str:
    return f"{SHOWN}{module}.mtf"


def texts() -> dict[str, str]:
    """Return the texts of all modules by the names of their files."""
    return {file_of(module): text(module) or "" for module in modules()}


@cache
def sections(module: str) -> Mapping[str, Mapping[str, Sequence[UnparsedDeclaration]]]:
    """Return the declarations of a module by keyword and name; a comment belongs to the declaration before it."""
    whole = text(module) or ""
    matches = list(DECLARATION.finditer(whole))
    found: dict[str, dict[str, list[UnparsedDeclaration]]] = {}
    for match, end in zip(matches, [*(match.start() for match in matches[1:]), len(whole)], strict=True):
        line = 1 + whole.count("\n", 0, match.start())
        section = UnparsedDeclaration(file_of(module), line, whole[match.start() : end])
        found.setdefault(match[1], {}).setdefault(match[2], []).append(section)
    return found


@cache
def declaration(section: UnparsedDeclaration) -> ast.Declaration:
    """Parse a declaration. Raises `CompileError` if it does not parse."""
    diagnostics = Diagnostics()
    (found,) = parse(section.text, section.file, diagnostics, section.line).declarations
    diagnostics.raise_if_errors()
    return found


def declarations(module: str, kind: type[N]) -> list[N]:
    """Return the declarations of one kind, all parsed, for kinds with few declarations in a module."""
    keyword = {ast.DimDecl: "dim", ast.ImportDecl: "import"}[kind]
    parsed = (declaration(each) for same in sections(module).get(keyword, {}).values() for each in same)
    return [each for each in parsed if isinstance(each, kind)]


def functions(module: str) -> Mapping[str, ast.FnDecl]:
    return LazyDeclarations(module, "fn", lambda found: found[0])


def optimizers(module: str) -> Mapping[str, tuple[ast.OptimizerDecl, ...]]:
    """Return the optimizers by name, each with all its declarations."""
    return LazyDeclarations(module, "optimizer", lambda found: found)


def with_function(name: str) -> list[str]:
    """Return the modules that have a function of this name."""
    return [module for module in modules() if name in functions(module)]
