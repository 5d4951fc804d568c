"""Diagnostics of open files, as `mtfc check` finds them, in the form of the protocol."""

from collections.abc import Iterable, Iterator, Mapping

import attrs
from lsprotocol import types as lsp

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Label, Span
from mtfc.driver import help_pages
from mtfc.driver.check import check_source
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.editor.documents import EditorSources, OpenDocuments, OpenTexts, TextBuffer, is_library, uri_of

SOURCE = "mtfc"

MOST_SHOWN = 1000
"""Most diagnostics of one file that are sent to an editor."""

UNNECESSARY = ("W603", "W604")
"""Warnings about lines that could be removed."""

FAILED = "mtfc"
"""The code of a message about a check that could not be made."""


@attrs.frozen
class CheckedFile:
    """The diagnostics of a file, and the files that they depend on: its imports, found or not."""

    file: str
    diagnostics: tuple[Diagnostic, ...]
    wanted: frozenset[str]


def checked(file: str, texts: OpenTexts) -> CheckedFile:
    """Check a file whose text is among the open texts, or on disk. An error of the compiler becomes a diagnostic."""
    sources = EditorSources(texts)
    try:
        text = texts.read(file)
        sources.texts[file] = text or ""
        found = check_source(file, Choice(), sources)
    except CompileError as error:
        found = list(error.diagnostics)
    except UsageError as error:
        found = [_failed(file, str(error))]
    except Exception as error:
        found = [_failed(file, f"internal error: {type(error).__name__}: {error}")]
    return CheckedFile(file, tuple(found), frozenset(sources.wanted))


def _failed(file: str, message: str) -> Diagnostic:
    return Diagnostic(FAILED, message, Span(file, 1, 1, 1, 1))


def diagnostics_of(file: str, texts: OpenTexts) -> tuple[Diagnostic, ...]:
    return checked(file, texts).diagnostics


def seen_in(file: str, found: Iterable[CheckedFile]) -> list[tuple[Diagnostic, Span]]:
    """Return the diagnostics to show in a file, each with its place: all of its own check, and those of files that import it
    which its own check does not find, such as errors that only one call shows.
    """
    shown: list[tuple[Diagnostic, Span]] = []
    for each in sorted(found, key=lambda each: (each.file != file, each.file)):
        known = {(diagnostic.code, diagnostic.message, place) for diagnostic, place in shown}
        for diagnostic in each.diagnostics:
            place = place_of(diagnostic, each.file)
            is_new = each.file == file or (diagnostic.code, diagnostic.message, place) not in known
            if place.file == file and is_new:
                shown.append((diagnostic, place))
    return sorted(shown, key=lambda item: (item[1], item[0].code, item[0].message))[:MOST_SHOWN]


def place_of(diagnostic: Diagnostic, checked_file: str) -> Span:
    """Return the place in a user's file where a diagnostic is shown."""
    span = diagnostic.span
    if span.file == checked_file or not (is_library(span.file) or span.file.startswith("<")):
        return span
    own = [label.span for label in diagnostic.labels if label.span.file == checked_file]
    return own[-1] if own else Span(checked_file, 1, 1, 1, 1)


def to_protocol(
    diagnostic: Diagnostic, place: Span, buffer: TextBuffer, documents: OpenDocuments
) -> lsp.Diagnostic:
    """Return a diagnostic as an editor shows it: labels become related information, help the last line."""
    help = f"\nhelp: {diagnostic.help}" if diagnostic.help else ""
    where = f"{diagnostic.span}: " if place != diagnostic.span else ""
    severity = (
        lsp.DiagnosticSeverity.Error if diagnostic.severity == "error" else lsp.DiagnosticSeverity.Warning
    )
    return lsp.Diagnostic(
        buffer.range(place),
        f"{where}{diagnostic.message}{help}",
        severity,
        diagnostic.code,
        code_description=_page(diagnostic.code),
        source=SOURCE,
        tags=[lsp.DiagnosticTag.Unnecessary] if diagnostic.code in UNNECESSARY else None,
        related_information=list(_related(diagnostic, place, documents)) or None,
    )


def _page(code: str) -> lsp.CodeDescription | None:
    """Return the address of the section about a diagnostic, for editors that make a link of its code."""
    try:
        line = help_pages.code_places().get(code)
    except UsageError:
        return None
    return lsp.CodeDescription(f"{help_pages.code_page().as_uri()}#L{line}") if line else None


def _related(
    diagnostic: Diagnostic, place: Span, documents: OpenDocuments
) -> Iterator[lsp.DiagnosticRelatedInformation]:
    """Yield the further places of a diagnostic that are in open documents."""
    own = (Label(diagnostic.span, "here"),) if place != diagnostic.span else ()
    buffers: dict[str, TextBuffer | None] = {}
    for label in (*own, *diagnostic.labels):
        file = label.span.file
        if file not in buffers:
            buffers[file] = documents.of_file(file)
        buffer = buffers[file]
        if buffer is not None:
            location = lsp.Location(buffer.uri, buffer.range(label.span))
            yield lsp.DiagnosticRelatedInformation(location, label.message)


def published(
    checks: Mapping[str, CheckedFile], documents: OpenDocuments
) -> dict[str, tuple[int | None, list[lsp.Diagnostic]]]:
    """Return the diagnostics of each file with any, and of each open one, by address, with the version that they are of."""
    files = {buffer.file for buffer in documents.buffers.values()}
    for each in checks.values():
        files |= {place_of(diagnostic, each.file).file for diagnostic in each.diagnostics}
    found: dict[str, tuple[int | None, list[lsp.Diagnostic]]] = {}
    for file in sorted(files):
        rows = seen_in(file, checks.values())
        for buffer in _buffers(file, documents):
            shown = [to_protocol(diagnostic, place, buffer, documents) for diagnostic, place in rows]
            found[buffer.uri] = (buffer.version, shown)
    return found


def _buffers(file: str, documents: OpenDocuments) -> Iterator[TextBuffer]:
    """Yield the buffers of a file, which may be open under several addresses, or one for a file that is not open."""
    own = [buffer for buffer in documents.buffers.values() if buffer.file == file]
    if own:
        yield from own
    elif (uri := uri_of(file)) is not None:
        yield documents.of_file(file) or TextBuffer(uri, file, "")
