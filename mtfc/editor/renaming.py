"""References of a symbol in all files that may see it, and its renaming.

A file sees only files in its own folder and the library. So the references of a symbol are in the file that declares it, in files
beside it, and for a symbol of the library in all open files. A renaming is refused if a name in any of these files would then
mean something else, or if the compiler would find errors that it did not find before.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mtfc.compiler.diagnostics import Diagnostic
from mtfc.editor.documents import (
    DeclaredSymbol,
    OpenTexts,
    Project,
    TextBuffer,
    declarations,
    is_library,
    syntax_errors,
    uri_of,
)
from mtfc.editor.fixes import applied
from mtfc.editor.names import Occurrence, occurrences
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.syntax.lexer import RESERVED

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

CheckFile = Callable[[str, OpenTexts], Sequence[Diagnostic]]
"""Returns the diagnostics of a file, given the open texts."""


class CannotRename(Exception):
    """A renaming is refused; the message says why."""


def files_of(symbol: DeclaredSymbol, texts: OpenTexts) -> Iterator[str]:
    """Yield the files that may have references of a symbol, the one that declares it first."""
    own = symbol.place.file
    yield own
    if is_library(own):
        yield from (file for file in map(standard_library.file_of, standard_library.modules()) if file != own)
        yield from (file for file in texts.by_file if file != own)
    else:
        yield from texts.beside(own)


def references(symbol: DeclaredSymbol, texts: OpenTexts) -> dict[str, list[Occurrence]]:
    """Return the occurrences of a symbol by file."""
    found = {file: _in_file(file, texts, symbol.name) for file in dict.fromkeys(files_of(symbol, texts))}
    own = {file: [each for each in all if each.symbol == symbol] for file, all in found.items()}
    return {file: each for file, each in own.items() if each}


def _in_file(file: str, texts: OpenTexts, name: str) -> list[Occurrence]:
    """Return the occurrences of a file that has a name anywhere in its text; none for another file."""
    text = texts.read(file)
    if text is None or name not in text:
        return []
    return occurrences(declarations(text, file), Project(texts.read))


def check_renamable(symbol: DeclaredSymbol) -> None:
    """Raise `CannotRename` for a symbol that no renaming can change."""
    if is_library(symbol.place.file):
        raise CannotRename(
            f"`{symbol.name}` is declared in {symbol.place.file}, which belongs to the library"
        )
    if symbol.kind == "module":
        raise CannotRename(f"`{symbol.name}` is a module, which has the name of its file: rename the file")


def renamed(
    symbol: DeclaredSymbol, name: str, texts: OpenTexts, check: CheckFile
) -> dict[str, list[Occurrence]]:
    """Return the occurrences to rename, by file. Raises `CannotRename`."""
    check_renamable(symbol)
    if not NAME.fullmatch(name):
        raise CannotRename(f"`{name}` is no name: names are made of the letters a to z, digits and `_`")
    if name in RESERVED:
        raise CannotRename(f"`{name}` is a word of the language")
    found = references(symbol, texts)
    for file in found:
        if syntax_errors(texts.read(file) or "", file):
            raise CannotRename(f"{file} has syntax errors, and names in them could not be renamed")
    new = OpenTexts(
        {**texts.by_file, **{file: _text(file, each, name, texts) for file, each in found.items()}}
    )
    _check_meaning(symbol, name, texts, new)
    _check_errors(found, name, texts, new, check)
    return found


def _text(file: str, found: Iterable[Occurrence], name: str, texts: OpenTexts) -> str:
    buffer = TextBuffer(uri_of(file) or file, file, texts.read(file) or "")
    return applied(buffer, [(each.span, name) for each in found])


def _check_meaning(symbol: DeclaredSymbol, name: str, old: OpenTexts, new: OpenTexts) -> None:
    """Raise `CannotRename` unless the names of all files mean the same before and after, one for one."""
    meaning: dict[DeclaredSymbol, DeclaredSymbol] = {}
    for file in dict.fromkeys(files_of(symbol, old)):
        text = old.read(file)
        if text is None or (symbol.name not in text and name not in text):
            continue
        before, after = (
            occurrences(declarations(each.read(file) or "", file), Project(each.read)) for each in (old, new)
        )
        if len(before) != len(after):
            raise CannotRename(f"`{name}` means something else already in {file}")
        for a, b in zip(before, after, strict=True):
            if meaning.setdefault(a.symbol, b.symbol) != b.symbol:
                raise CannotRename(f"`{name}` means something else already: see line {a.span.line} of {file}")
    if len(set(meaning.values())) < len(meaning):
        raise CannotRename(f"`{name}` is the name of something else already")


def _check_errors(
    found: Mapping[str, Sequence[Occurrence]], name: str, old: OpenTexts, new: OpenTexts, check: CheckFile
) -> None:
    """Raise `CannotRename` if the compiler finds errors that it did not find before."""
    for file in found:
        before, after = (Counter(each.code for each in check(file, texts)) for texts in (old, new))
        if more := after - before:
            worst = next(each for each in check(file, new) if each.code in more)
            raise CannotRename(
                f"`{name}` would lead to an error in {file}, line {worst.line}: {worst.message}"
            )
