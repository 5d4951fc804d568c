"""The language server: `mtfc lsp` speaks the Language Server Protocol on standard input and output.

The main thread answers requests about names, which take milliseconds. One thread checks the files: a change is checked at once,
and changes that come meanwhile are checked together. Figures and searches are computed in other processes (`figures.py`), and
dropped when the text changes. So typing never waits.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, TypeVar

import attrs
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol
from pygls.protocol.language_server import lsp_method

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span
from mtfc.driver.version import installed_version
from mtfc.editor import checks, completion, fixes, hover, outline, renaming
from mtfc.editor.checks import CheckedFile, checked, diagnostics_of
from mtfc.editor.documents import (
    SUFFIX,
    Declarations,
    OpenDocuments,
    OpenTexts,
    Project,
    TextBuffer,
    declarations,
    is_library,
)
from mtfc.editor.figures import (
    Case,
    CaseFigures,
    Failed,
    FiguresQueue,
    Request,
    Worker,
    best_layout,
    cost_report,
)
from mtfc.editor.names import Occurrence, occurrences
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.format import format_source

NAME = "mtfc"

FIGURES_AFTER = 0.15
"""Seconds after a change before figures are computed: while somebody types, nobody reads them."""

HOVER_WAITS, HINTS_WAIT = 2.0, 30.0
"""Seconds that a hover, and hints and lines above models, wait for figures that are being computed."""

SEARCH_BUDGET = 20.0
"""Seconds of a search."""

R = TypeVar("R")


class _Protocol(LanguageServerProtocol):
    """The protocol with our own buffers: those of pygls end lines at characters that the compiler does not."""

    _server: Server

    @lsp_method(lsp.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: lsp.DidOpenTextDocumentParams) -> None:
        """Take an opened file, and check all files."""
        document = params.text_document
        self._server.documents.open(document.uri, document.text, document.version)
        self._server.check_soon()

    @lsp_method(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: lsp.DidChangeTextDocumentParams) -> None:
        """Take the changes of a file, and check all files."""
        document = params.text_document
        self._server.documents.change(document.uri, list(params.content_changes), document.version)
        self._server.check_soon()

    @lsp_method(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: lsp.DidCloseTextDocumentParams) -> None:
        """Forget a closed file and its figures, and check the others, which may read it from the disk now."""
        buffer = self._server.documents.buffers.get(params.text_document.uri)
        self._server.documents.close(params.text_document.uri)
        if buffer is not None:
            self._server.figures.forget(buffer.file)
        self._server.check_soon()


@attrs.frozen
class View:
    """An open file for the answer to one request: its text, the texts of other files, its project and its declarations."""

    buffer: TextBuffer
    texts: OpenTexts
    project: Project
    file: Declarations

    @functools.cached_property
    def names(self) -> list[Occurrence]:
        return occurrences(self.file, self.project)

    def at(self, position: lsp.Position) -> Occurrence | None:
        return hover.at(self.names, *self.buffer.place(position))


class Server(LanguageServer):
    """The state of a server. chosen: the layout that is chosen for a model, by file. searched: results of searches."""

    def __init__(self) -> None:
        """Start without documents.

        target: the machine that predictions are for. searches: the process of searches.
        """
        super().__init__(NAME, installed_version() or "0", protocol_cls=_Protocol)
        self.documents = OpenDocuments()
        self.figures = FiguresQueue()
        self.searches = Worker()
        self.target: str | None = None
        self.chosen: dict[tuple[str, str], str] = {}
        self.searched: dict[tuple[str, str], dict[tuple[str, int], hover.BestKnown]] = {}
        self.checks: dict[str, CheckedFile] = {}
        self._texts: dict[str, str] = {}
        self._shown: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "check")
        self._checker: asyncio.Task[None] | None = None
        self._is_dirty = False

    # Views

    def view(self, uri: str) -> View | None:
        """Return an open file with its declarations and its project; None if the file is unknown."""
        buffer = self.documents.of_uri(uri)
        if buffer is None:
            return None
        texts = self.documents.texts()
        project = Project(texts.read)
        return View(buffer, texts, project, declarations(buffer.text, buffer.file))

    def location(self, span: Span) -> lsp.Location | None:
        buffer = self.documents.of_file(span.file)
        return lsp.Location(buffer.uri, buffer.range(span)) if buffer else None

    async def in_thread(self, function: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    # Checks

    def check_soon(self) -> None:
        """Check the open files that have changed; at once, or when the check that is being made has ended."""
        self._is_dirty = True
        if self._checker is None or self._checker.done():
            self._checker = asyncio.get_running_loop().create_task(self._check_all())

    async def _check_all(self) -> None:
        """Check files whose texts have changed until none is left, and publish the diagnostics."""
        while self._is_dirty:
            self._is_dirty = False
            texts = self.documents.texts()
            for file in self._changed(texts):
                self.checks[file] = await self.in_thread(functools.partial(checked, file, texts))
                if self._is_dirty:
                    break
            else:
                self._texts = dict(texts.by_file)
                self._publish()
                for buffer in self.documents.buffers.values():
                    later = functools.partial(self._renew, buffer.uri, buffer.text)
                    asyncio.get_running_loop().call_later(FIGURES_AFTER, later)

    def _changed(self, texts: OpenTexts) -> list[str]:
        """Return the open files to check: those with another text, and those that import one; drop closed ones."""
        for file in self.checks.keys() - texts.by_file.keys():
            del self.checks[file]
        files = texts.by_file.keys() | self._texts.keys()
        changed = {file for file in files if texts.by_file.get(file) != self._texts.get(file)}
        return [
            file
            for file in texts.by_file
            if file in changed or file not in self.checks or not changed.isdisjoint(self.checks[file].wanted)
        ]

    def _publish(self) -> None:
        """Send the diagnostics of all files, and an empty list for files that have none any more."""
        found = checks.published(self.checks, self.documents)
        for uri in sorted(self._shown - found.keys()):
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))
        self._shown = set(found)
        for uri, (version, shown) in found.items():
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, shown, version))

    # Figures

    def cases(self, view: View) -> list[Case]:
        """Return the models of a file with their layouts, the chosen ones first."""
        chosen = self.chosen_cases(view)
        every = [(model, layout) for model, _ in chosen for layout in layouts_for(view.file, model)]
        return list(dict.fromkeys([*chosen, *every]))

    def chosen_layout(self, file: Declarations, model: str) -> str | None:
        """Return the layout that is chosen for a model, or else its first one."""
        known = layouts_for(file, model)
        wanted = self.chosen.get((file.file, model))
        return wanted if wanted in known else next(iter(known), None)

    def _renew(self, uri: str, text: str) -> None:
        """Ask for the figures of a file, unless it has changed meanwhile, and let the editor show them."""
        view = self._want(uri, text)
        if view is not None:
            asyncio.get_running_loop().create_task(self._refresh(view))

    def _want(self, uri: str, text: str) -> View | None:
        """Ask for the figures of a file, unless it has changed meanwhile."""
        buffer = self.documents.buffers.get(uri)
        view = self.view(uri) if buffer and buffer.text == text and not is_library(buffer.file) else None
        if view is not None:
            self.figures.want(view.buffer.file, self._near(view), self.target, self.cases(view))
        return view

    def _near(self, view: View) -> dict[str, str]:
        """Return the open texts that the figures of a file may depend on."""
        folder = PurePath(view.buffer.file).parent
        return {file: text for file, text in view.texts.by_file.items() if PurePath(file).parent == folder}

    async def _refresh(self, view: View) -> None:
        """Let the editor ask again for hints and for lines above models, once the figures are there.

        A request of the editor may not lead here: the editor answers with the next request, for ever.
        """
        await self.figures.wait(view.buffer.file, self.cases(view), HINTS_WAIT)
        workspace = self.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            self.workspace_inlay_hint_refresh(None)
        if workspace and workspace.code_lens and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    async def figures_for(self, view: View, cases: Sequence[Case], seconds: float) -> list[CaseFigures]:
        """Return the figures of cases for the text of a view; those that are not known in time are missing."""
        self._want(view.buffer.uri, view.buffer.text)
        await self.figures.wait(view.buffer.file, cases, seconds)
        known = self.figures.of_file(view.buffer.file)
        return [known[case] for case in cases if case in known]

    def chosen_cases(self, view: View) -> list[Case]:
        return [(model, self.chosen_layout(view.file, model)) for model in view.file.symbols["model"]]

    def stop(self) -> None:
        self.figures.stop()
        self.searches.stop()


def layouts_for(file: Declarations, model: str) -> list[str]:
    """Return the layouts of a file that are for a model."""
    return [
        name
        for name, symbol in file.symbols["layout"].items()
        if isinstance(symbol.node, ast.LayoutDecl)
        and (not symbol.node.models or model in {each.text for each in symbol.node.models})
    ]


server = Server()


Handler = Callable[[View, Any], Any]
"""Answers a request about a document, whose view it gets."""


def feature(method: str, options: object = None) -> Callable[[Handler], Callable[[Any], Any]]:
    """Register a handler. A document that does not exist has no answer; an error in the handler is logged, and has none."""

    def register(handler: Handler) -> Callable[[Any], Any]:
        """Register a handler of requests about an open file; for a file that is not open the answer is None."""

        async def answer_later(params: Any) -> Any:
            with logged(method):
                view = server.view(params.text_document.uri)
                return await handler(view, params) if view else None

        def answer(params: Any) -> Any:
            with logged(method):
                view = server.view(params.text_document.uri)
                return handler(view, params) if view else None

        chosen = answer_later if asyncio.iscoroutinefunction(handler) else answer
        return server.feature(method, options)(functools.wraps(handler)(chosen))

    return register


@contextmanager
def logged(method: str) -> Iterator[None]:
    """Log an error, after which a request has no answer."""
    try:
        yield
    except JsonRpcException:
        raise
    except Exception:
        logging.exception("no answer to %s", method)


@server.feature(lsp.INITIALIZE)
def initialize(params: lsp.InitializeParams) -> None:
    """Take the encoding of positions and the options of the editor."""
    encoding = server.workspace.position_encoding
    server.documents.encoding = str(getattr(encoding, "value", encoding))
    configure(params.initialization_options)


@server.feature(lsp.INITIALIZED)
def initialized(params: lsp.InitializedParams) -> None:
    """Ask the editor to tell of changes on disk, which imports depend on; VS Code's extension does so by itself."""
    workspace = server.client_capabilities.workspace
    watched = workspace.did_change_watched_files if workspace else None
    if watched and watched.dynamic_registration:
        files = lsp.DidChangeWatchedFilesRegistrationOptions([lsp.FileSystemWatcher(f"**/*{SUFFIX}")])
        wish = lsp.Registration("files", lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES, files)
        server.client_register_capability(lsp.RegistrationParams([wish]))


@server.feature(lsp.SHUTDOWN)
def shutdown(params: None) -> None:
    server.stop()


@server.feature(lsp.WORKSPACE_DID_CHANGE_CONFIGURATION)
def changed_configuration(params: lsp.DidChangeConfigurationParams) -> None:
    """Take new options, under which all open files are looked at again."""
    configure(params.settings)
    for buffer in server.documents.buffers.values():
        server._renew(buffer.uri, buffer.text)


def configure(settings: object) -> None:
    """Take the target from settings: `{"target": "h100"}`, or the same in a section `mtfc`.

    Settings without a target leave it as it is: some editors send empty ones after the initialization options.
    """
    found = settings.get("mtfc", settings) if isinstance(settings, dict) else {}
    if isinstance(found, dict) and "target" in found:
        target = found["target"]
        server.target = target if isinstance(target, str) and target.strip() else None


@server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)
def changed_files(params: lsp.DidChangeWatchedFilesParams) -> None:
    """Check all again: a file that an open one imports may have changed on disk."""
    server.checks.clear()
    server.check_soon()


# Names


@feature(lsp.TEXT_DOCUMENT_DEFINITION)
def definition(view: View, params: lsp.DefinitionParams) -> lsp.Location | None:
    """Return the place where the symbol at the cursor is declared; of a module, the start of its file."""
    found = view.at(params.position)
    if found is None:
        return None
    if found.symbol.kind == "module":
        return server.location(Span(view.project.module_file(found.symbol.name, view.file), 1, 1, 1, 1))
    return server.location(found.symbol.place)


@feature(lsp.TEXT_DOCUMENT_REFERENCES)
def find_references(view: View, params: lsp.ReferenceParams) -> list[lsp.Location]:
    """Return the places of the symbol at a position, in all open files and their imports."""
    found = view.at(params.position)
    if found is None:
        return []
    with_declaration = params.context.include_declaration
    places = [
        each.span
        for all in renaming.references(found.symbol, view.texts).values()
        for each in all
        if with_declaration or each.span != found.symbol.place
    ]
    return [location for span in places if (location := server.location(span))]


@feature(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
def highlight(view: View, params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
    """Return the places in the file of the symbol at a position."""
    found = view.at(params.position)
    kinds = {"used": lsp.DocumentHighlightKind.Read}
    return [
        lsp.DocumentHighlight(
            view.buffer.range(each.span), kinds.get(each.role, lsp.DocumentHighlightKind.Write)
        )
        for each in view.names
        if found is not None and each.symbol == found.symbol
    ]


@feature(lsp.TEXT_DOCUMENT_PREPARE_RENAME)
def prepare_rename(view: View, params: lsp.PrepareRenameParams) -> lsp.PrepareRenamePlaceholder | None:
    """Return the name at the cursor and its range, if it can be renamed."""
    found = view.at(params.position)
    if found is None:
        return None
    with refusing():
        renaming.check_renamable(found.symbol)
    text = view.buffer.span_text(found.span)
    return lsp.PrepareRenamePlaceholder(view.buffer.range(found.span), text)


@feature(lsp.TEXT_DOCUMENT_RENAME, lsp.RenameOptions(prepare_provider=True))
async def rename(view: View, params: lsp.RenameParams) -> lsp.WorkspaceEdit | None:
    """Return the edits that rename the symbol at the cursor in all open files."""
    found = view.at(params.position)
    if found is None:
        return None
    work = functools.partial(renaming.renamed, found.symbol, params.new_name, view.texts, diagnostics_of)
    with refusing():
        edits = await server.in_thread(work)
    changes = {}
    for file, each in edits.items():
        buffer = server.documents.of_file(file)
        if buffer is not None:
            changes[buffer.uri] = [buffer.replaced(one.span, params.new_name) for one in each]
    return lsp.WorkspaceEdit(changes)


@contextmanager
def refusing() -> Iterator[None]:
    """Answer with the reason why a symbol cannot be renamed."""
    try:
        yield
    except renaming.CannotRename as error:
        raise JsonRpcException(str(error), lsp.LSPErrorCodes.RequestFailed.value) from None


# What stands at the cursor


@feature(lsp.TEXT_DOCUMENT_HOVER)
async def show_hover(view: View, params: lsp.HoverParams) -> lsp.Hover | None:
    """Explain the name, keyword or op at the cursor, with figures of the layouts where they are known."""
    line, column = view.buffer.place(params.position)
    found = view.at(params.position)
    word = view.buffer.line(line)
    if found is None:
        text = hover.built_in(_word(word, column))
        return None if text is None else lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text))
    cases = server.chosen_cases(view)
    known = await server.figures_for(view, cases, HOVER_WAITS)
    figures = next(
        (each for each in known if (view.buffer.file, line) in each.lines), known[0] if known else None
    )
    text = hover.declared(found.symbol, view.project)
    if found.symbol.kind == "dimension":
        text += hover.dimension(found.symbol, figures)
    statement = hover.statement_of(view.file, found.symbol, found.span)
    text += hover.values(found.symbol, statement, figures)
    text += hover.line(figures, view.buffer.file, line)
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text), view.buffer.range(found.span))


def _word(line: str, column: int) -> str:
    """Return the dotted name at a column."""
    words = (each for each in re.finditer(r"[\w.]+", line) if each.start() < column <= each.end() + 1)
    return next((each[0] for each in words), "")


def _completion(view: View, position: lsp.Position) -> completion.Completion:
    """Return the completion at a position, with snippets if the editor takes them."""
    beside = (file for file in view.texts.beside(view.buffer.file))
    capabilities = server.client_capabilities.text_document
    item = capabilities.completion.completion_item if capabilities and capabilities.completion else None
    cursor = completion.cursor_at(view.buffer.text, *view.buffer.place(position))
    return completion.Completion(cursor, view.file, view.project, beside, bool(item and item.snippet_support))


@feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[".", "[", ":"]))
def complete(view: View, params: lsp.CompletionParams) -> lsp.CompletionList:
    """Return completions for the word before a position."""
    found = _completion(view, params.position)
    items = found.items()
    word = found.cursor.word
    start = view.buffer.position(found.cursor.line, found.cursor.column - len(word))
    whole = lsp.Range(start, params.position)
    for item in items:
        item.text_edit = lsp.TextEdit(whole, item.insert_text or item.label)
        item.insert_text = None
    return lsp.CompletionList(is_incomplete=False, items=items)


@feature(lsp.TEXT_DOCUMENT_SIGNATURE_HELP, lsp.SignatureHelpOptions(trigger_characters=["(", "[", ","]))
def signature_help(view: View, params: lsp.SignatureHelpParams) -> lsp.SignatureHelp | None:
    return _completion(view, params.position).signature_help()


# The whole file


@feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
def document_symbols(view: View, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
    return outline.symbols(view.file.tree, view.buffer)


@feature(lsp.TEXT_DOCUMENT_FOLDING_RANGE)
def folding(view: View, params: lsp.FoldingRangeParams) -> list[lsp.FoldingRange]:
    return outline.folds(view.buffer.text)


@feature(lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, outline.LEGEND)
def tokens(view: View, params: lsp.SemanticTokensParams) -> lsp.SemanticTokens:
    return lsp.SemanticTokens(outline.semantic_tokens(view.buffer, view.names))


@feature(lsp.TEXT_DOCUMENT_FORMATTING)
def formatting(view: View, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
    """Return one edit of the whole text, as `mtfc fmt` writes it; none for a text with syntax errors."""
    try:
        text = format_source(view.buffer.text, view.buffer.file)
    except CompileError:
        return None
    return [] if text == view.buffer.text else [lsp.TextEdit(view.buffer.whole(), text)]


@feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
async def inlay_hints(view: View, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
    """Return hints with figures of the chosen layouts for the lines on the screen."""
    known = await server.figures_for(view, server.chosen_cases(view), HINTS_WAIT)
    first, last = params.range.start.line + 1, params.range.end.line + 1
    return hover.hints(view.file, known, view.buffer, first, last)


@feature(lsp.TEXT_DOCUMENT_CODE_LENS, lsp.CodeLensOptions())
async def code_lens(view: View, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
    """Return the lines above models and layouts: figures, and commands to choose and to search."""
    cases = server.cases(view)
    await server.figures_for(view, cases, HINTS_WAIT)
    chosen = dict(server.chosen_cases(view))
    key = view.buffer.file, view.buffer.text
    return hover.lenses(
        view.file, server.figures.of_file(view.buffer.file), chosen, server.searched.get(key, {}), view.buffer
    )


@feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix]))
async def code_actions(view: View, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """Return the fixes at a place, unless the editor wants other kinds of actions."""
    wanted = params.context.only
    if wanted and not any(
        lsp.CodeActionKind.QuickFix.value.startswith(getattr(o, "value", o)) for o in wanted
    ):
        return []
    return await server.in_thread(lambda: list(_actions(view, params)))


def _actions(view: View, params: lsp.CodeActionParams) -> Iterator[lsp.CodeAction]:
    """Yield the fixes of all diagnostics in a range."""
    file, buffer = view.buffer.file, view.buffer
    first, last = params.range.start.line + 1, params.range.end.line + 1

    def check(text: str) -> Sequence[Diagnostic]:
        return diagnostics_of(file, OpenTexts({**view.texts.by_file, file: text}))

    for diagnostic in check(buffer.text):
        place = checks.place_of(diagnostic, file)
        if place.file != file or place.line > last or place.end_line < first:
            continue
        shown = checks.to_protocol(diagnostic, place, buffer, server.documents)
        for fix in fixes.fixes(diagnostic, buffer, check):
            edits = [buffer.replaced(span, text) for span, text in fix.changes]
            edit = lsp.WorkspaceEdit({buffer.uri: edits})
            yield lsp.CodeAction(fix.title, lsp.CodeActionKind.QuickFix, [shown], edit=edit)


# Commands


def command(
    name: str, required: int
) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """Register a command, whose arguments are texts; those after the required ones may be left out."""

    def register(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Register a handler of a command; its first `required` arguments have to be strings."""
        count = len(inspect.signature(handler).parameters)

        async def answer(*arguments: Any) -> Any:
            given = [each if isinstance(each, str) else None for each in arguments[:count]]
            if len(given) < required or None in given[:required]:
                raise JsonRpcException(
                    f"{name} needs {required} argument{'s' * (required > 1)}",
                    lsp.ErrorCodes.InvalidParams.value,
                )
            return await handler(*given, *[None] * (count - len(given)))

        server.command(name)(answer)
        return handler

    return register


@command("mtfc.layouts", 1)
async def layouts_command(uri: str) -> list[dict[str, object]]:
    """Return the layouts of each model of a file, and the chosen one."""
    view = server.view(uri)
    return [
        {
            "model": each,
            "layouts": layouts_for(view.file, each),
            "chosen": server.chosen_layout(view.file, each),
        }
        for each in (view.file.symbols["model"] if view else ())
        if view is not None
    ]


@command("mtfc.setLayout", 2)
async def set_layout_command(uri: str, layout: str, model: str | None) -> bool:
    """Choose the layout of the figures that are shown: of one model, or of all that it is for. False if there is none."""
    view = server.view(uri)
    if view is None:
        return False
    models = [each for each in view.file.symbols["model"] if model in (None, each)]
    fitting = [each for each in models if layout in layouts_for(view.file, each)]
    for each in fitting:
        server.chosen[view.file.file, each] = layout
    server._renew(uri, view.buffer.text)
    return bool(fitting)


@command("mtfc.costReport", 1)
async def report_command(uri: str, layout: str | None) -> str:
    """Return the costs by line, the causes of collectives and the time of a step, as text."""
    view = server.view(uri)
    if view is None:
        return f"there is no file {uri}"
    wanted = layout or server.chosen_layout(view.file, next(iter(view.file.symbols["model"]), ""))
    work = functools.partial(cost_report, view.buffer.file, wanted, server.target)
    answer = await server.searches.ask(Request(server._near(view), work))
    return answer.reason if isinstance(answer, Failed) else str(answer)


@command("mtfc.searchLayout", 2)
async def search_command(uri: str, model: str, mesh: str | None) -> dict[str, object]:
    """Search for the best layout of a model on a mesh, and remember it for the text as it is."""
    view = server.view(uri)
    if view is None:
        return {"error": f"there is no file {uri}"}
    work = functools.partial(best_layout, view.buffer.file, model, mesh, server.target, SEARCH_BUDGET)
    answer = await server.searches.ask(Request(server._near(view), work), 3 * SEARCH_BUDGET)
    if isinstance(answer, Failed):
        return {"error": answer.reason}
    assert isinstance(answer, dict)
    best = hover.BestKnown(f"`{answer['layout']}`", float(answer["objective_seconds"]))
    known = server.searched.setdefault((view.buffer.file, view.buffer.text), {})
    known[model, int(answer["devices"])] = best
    asyncio.get_running_loop().create_task(server._refresh(view))
    return answer


def run() -> None:
    """Serve until the editor ends the session. What the compiler prints goes to standard error."""
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="mtfc lsp: %(message)s")
    logging.getLogger("pygls").setLevel(logging.ERROR)
    standard_library.modules()
    server.start_io(sys.stdin.buffer, protocol)
