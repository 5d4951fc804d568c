"""An editor for tests: a client of the protocol, connected to `mtfc lsp` by standard input and output."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from mtfc.editor.documents import TextBuffer

R = TypeVar("R")

SECONDS = 60.0
"""The time within which any answer comes, also on a busy machine."""


class Editor:
    """A session with a server in a process of its own; every method waits for its answer.

    texts: the open buffers, with the texts that the editor shows. shown: the last diagnostics of each file, with their versions.
    refreshes: how often the server has said that lines above models are to be asked for again. registered: its wishes to be told.
    """

    def __init__(
        self, encoding: lsp.PositionEncodingKind = lsp.PositionEncodingKind.Utf16, **settings: Any
    ) -> None:
        self.texts: dict[str, TextBuffer] = {}
        self.shown: dict[str, lsp.PublishDiagnosticsParams] = {}
        self.encoding = encoding
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.client = LanguageClient("tests", "1")
        self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self._publish(params))
        self.client.feature(lsp.WORKSPACE_INLAY_HINT_REFRESH)(lambda _: None)
        self.client.feature(lsp.WORKSPACE_CODE_LENS_REFRESH)(lambda _: self._refresh())
        self.client.feature(lsp.CLIENT_REGISTER_CAPABILITY)(lambda params: self._register(params))
        self.refreshes = 0
        self.registered: list[lsp.Registration] = []
        self._news = asyncio.Event()
        self.result = self.wait(self._start(settings))

    async def _start(self, settings: dict[str, Any]) -> lsp.InitializeResult:
        await self.client.start_io(sys.executable, "-m", "mtfc", "lsp")
        capabilities = lsp.ClientCapabilities(
            general=lsp.GeneralClientCapabilities(position_encodings=[self.encoding]),
            workspace=lsp.WorkspaceClientCapabilities(
                inlay_hint=lsp.InlayHintWorkspaceClientCapabilities(True),
                code_lens=lsp.CodeLensWorkspaceClientCapabilities(True),
                did_change_watched_files=lsp.DidChangeWatchedFilesClientCapabilities(True),
            ),
        )
        result = await self.client.initialize_async(
            lsp.InitializeParams(capabilities, initialization_options=settings)
        )
        self.client.initialized(lsp.InitializedParams())
        return result

    def _publish(self, params: lsp.PublishDiagnosticsParams) -> None:
        self.shown[params.uri] = params
        self._news.set()

    def _refresh(self) -> None:
        self.refreshes += 1

    def _register(self, params: lsp.RegistrationParams) -> None:
        self.registered += params.registrations

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, SECONDS), self.loop).result()

    def ask(self, method: str, uri: str, **arguments: Any) -> Any:
        """Send a request about a document, and return the answer."""
        kind: Any = lsp.METHOD_TO_TYPES[method][2]
        params = kind(text_document=lsp.TextDocumentIdentifier(uri), **arguments)
        return self.wait(self._ask(method, params))

    def ask_at(self, method: str, uri: str, before: str, after: str = "", **arguments: Any) -> Any:
        """Send a request about the place between two texts."""
        return self.ask(method, uri, position=self.position(uri, before, after), **arguments)

    def rename(self, uri: str, before: str, after: str, name: str) -> Any:
        """Return the edit that renames the symbol at a place."""
        return self.ask_at(lsp.TEXT_DOCUMENT_RENAME, uri, before, after, new_name=name)

    async def _ask(self, method: str, params: Any) -> Any:
        return await self.client.protocol.send_request_async(method, params)

    def command(self, name: str, *arguments: Any) -> Any:
        return self.wait(
            self.client.workspace_execute_command_async(
                lsp.ExecuteCommandParams(name, arguments=list(arguments))
            )
        )

    # OpenDocuments

    def open(self, uri: str, text: str) -> list[lsp.Diagnostic]:
        """Open a document, and return its diagnostics."""
        self.texts[uri] = TextBuffer(uri, uri, text, 1, self.encoding.value)
        self.shown.pop(uri, None)
        self._run(lambda: self.client.text_document_did_open(
            lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "mtf", 1, text))
        ))  # fmt: skip
        return self.diagnostics(uri)

    def open_file(self, path: Path) -> str:
        self.open(path.as_uri(), path.read_text("utf-8"))
        return path.as_uri()

    def edit(self, uri: str, *changes: tuple[lsp.Range | None, str]) -> list[lsp.Diagnostic]:
        """Change a document, and return its diagnostics."""
        self.send_edit(uri, *changes)
        return self.diagnostics(uri)

    def send_edit(self, uri: str, *changes: tuple[lsp.Range | None, str]) -> None:
        version = (self.texts[uri].version or 0) + 1
        for range, text in changes:
            self.texts[uri] = self.texts[uri].edited(range, text, version)
        events: list[Any] = [
            lsp.TextDocumentContentChangeWholeDocument(text)
            if range is None
            else lsp.TextDocumentContentChangePartial(range, text)
            for range, text in changes
        ]
        document = lsp.VersionedTextDocumentIdentifier(version, uri)
        self._run(
            lambda: self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, events))
        )

    def close(self, uri: str) -> None:
        del self.texts[uri]
        self._run(lambda: self.client.text_document_did_close(
            lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri))
        ))  # fmt: skip

    def diagnostics(self, uri: str) -> list[lsp.Diagnostic]:
        """Return the diagnostics of the current version of a document, when they have come."""
        return self.wait(self._diagnostics(uri))

    async def _diagnostics(self, uri: str) -> list[lsp.Diagnostic]:
        while True:
            self._news.clear()
            shown = self.shown.get(uri)
            if shown is not None and shown.version == self.texts[uri].version:
                return list(shown.diagnostics)
            await self._news.wait()

    async def _later(self, action: Any) -> None:
        action()

    def _run(self, action: Any) -> None:
        self.wait(self._later(action))

    # Places

    def position(self, uri: str, before: str, after: str = "") -> lsp.Position:
        """Return the position between two texts that stand side by side once in the document."""
        buffer = self.texts[uri]
        assert buffer.text.count(before + after) == 1, (
            f"{before + after!r} is there {buffer.text.count(before + after)} times"
        )
        return buffer.position(*buffer.place_at(buffer.text.index(before + after) + len(before)))

    def applied(self, edit: lsp.WorkspaceEdit) -> dict[str, str]:
        """Return the texts that an edit makes, by address."""
        return {uri: self.edited(uri, edits) for uri, edits in (edit.changes or {}).items()}

    def edited(self, uri: str, edits: Any) -> str:
        buffer = self.texts.get(uri)
        if buffer is None:
            path = Path(uri.removeprefix("file://"))
            buffer = TextBuffer(uri, uri, path.read_text("utf-8"), None, self.encoding.value)
        for each in sorted(edits, key=lambda e: (e.range.start.line, e.range.start.character), reverse=True):
            buffer = buffer.edited(each.range, each.new_text, None)
        return buffer.text

    def is_alive(self) -> bool:
        process = self.client._server
        return process is not None and process.returncode is None

    def stop(self) -> int | None:
        """End the session as an editor does, and return the status of the server."""

        async def end() -> int | None:
            await self.client.shutdown_async(None)
            self.client.exit(None)
            process = self.client._server
            assert process is not None
            return await process.wait()

        return self.wait(end())
