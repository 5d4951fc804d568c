"""The standard library: the modules in `mtfc/std`, in the language itself.

A file that imports a module should not wait for all of it to be parsed. The library is in canonical form, where a declaration
begins in the first column, so a module is divided into declarations without parsing, and each is parsed when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import attrs

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

FOLDER = Path(__file__).parents[3] / "std"
SHOWN = "mtfc/std/"
"""What diagnostics call the folder, wherever mtfc is installed."""

DECLARATION = re.compile(r"^(import|dim|fn|optimizer)[ \t]+(\w+)", re.MULTILINE)

D = TypeVar("D")
N = TypeVar("N", ast.DimDecl, ast.ImportDecl)


@attrs.frozen
class UnparsedDeclaration:
    """One declaration of a module, not parsed yet, and the line on which it begins."""

    keyword: str
    name: str
    file: str
    line: int
    text: str


class LazyDeclarations(Mapping[str, D]):
    """Declarations by name, parsed when they are looked up; `pick` says what there is of those of one name."""

    def __init__(
        self, sections: Mapping[str, tuple[UnparsedDeclaration, ...]], pick: Callable[[tuple[Any, ...]], D]
    ) -> None:
        self._sections, self._pick = sections, pick

    def __getitem__(self, name: str) -> D:
        return self._pick(tuple(declaration(section) for section in self._sections[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


def modules() -> tuple[str, ...]:
    """The names of all modules."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.mtf")))


@cache
def text(module: str) -> str | None:
    """The text of a module, None where there is none of that name."""
    path = FOLDER / f"{module}.mtf"
    return path.read_text("utf-8") if path.is_file() else None


def file_of(module: str) -> str:
    return f"{SHOWN}{module}.mtf"


def texts(files: Iterable[str]) -> dict[str, str]:
    """The texts of those files that are of the library."""
    found = {file: text(Path(file).stem) for file in files if file.startswith(SHOWN)}
    return {file: each for file, each in found.items() if each is not None}


@cache
def sections(module: str) -> tuple[UnparsedDeclaration, ...]:
    """The declarations of a module, in order; comments between them belong to the one before."""
    whole = text(module) or ""
    found = list(DECLARATION.finditer(whole))
    ends = [*(match.start() for match in found[1:]), len(whole)]
    return tuple(
        UnparsedDeclaration(
            match[1],
            match[2],
            file_of(module),
            1 + whole.count("\n", 0, match.start()),
            whole[match.start() : end],
        )
        for match, end in zip(found, ends, strict=True)
    )


@cache
def declaration(section: UnparsedDeclaration) -> ast.Declaration:
    """Raises `CompileError` where it does not parse."""
    diagnostics = Diagnostics()
    (found,) = parse(section.text, section.file, diagnostics, section.line).declarations
    diagnostics.raise_if_errors()
    return found


def declarations(module: str, kind: type[N]) -> list[N]:
    """The declarations of one kind, all parsed: for kinds that a module has few of."""
    keyword = {ast.DimDecl: "dim", ast.ImportDecl: "import"}[kind]
    parsed = (declaration(section) for section in sections(module) if section.keyword == keyword)
    return [each for each in parsed if isinstance(each, kind)]


def by_name(module: str, keyword: str) -> dict[str, tuple[UnparsedDeclaration, ...]]:
    found: dict[str, tuple[UnparsedDeclaration, ...]] = {}
    for section in sections(module):
        if section.keyword == keyword:
            found[section.name] = (*found.get(section.name, ()), section)
    return found


def functions(module: str) -> Mapping[str, ast.FnDecl]:
    return LazyDeclarations(by_name(module, "fn"), lambda found: found[0])


def optimizers(module: str) -> Mapping[str, tuple[ast.OptimizerDecl, ...]]:
    """The optimizers by name: all declarations of each."""
    return LazyDeclarations(by_name(module, "optimizer"), lambda found: found)


def with_function(name: str) -> list[str]:
    """The modules that have a function of this name."""
    return [module for module in modules() if name in by_name(module, "fn")]
