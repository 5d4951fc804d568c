"""The process that computes what takes long: figures of a case, a search, a report.

The server writes requests to its standard input and reads answers from its standard output, each a length and a pickle. It stops
a computation that nobody wants any more by ending the process.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Mapping
from typing import BinaryIO, Protocol

import attrs

from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.errors import UsageError
from mtfc.editor.documents import EditorSources, OpenTexts
from mtfc.editor.figures import CaseFigures, case_figures

LENGTH = struct.Struct("<Q")


class Request(Protocol):
    """Something to compute. Open buffers come before files on disk."""

    @property
    def texts(self) -> Mapping[str, str]:
        """The open buffers by file."""
        ...

    def answer(self, sources: EditorSources) -> object:
        """Compute the answer. Raises the errors of the driver."""
        ...


@attrs.frozen
class FiguresRequest:
    """A question for the figures of a model under a layout; without a layout, under the one that splits nothing."""

    texts: Mapping[str, str]
    file: str
    model: str
    layout: str | None
    target: str | None

    def answer(self, sources: EditorSources) -> CaseFigures:
        return case_figures(self.file, self.model, self.layout, self.target, sources)


@attrs.frozen
class SearchRequest:
    """A question for the best layout of a model on the mesh of a layout, within some seconds."""

    texts: Mapping[str, str]
    file: str
    model: str
    mesh: str | None
    target: str | None
    budget: float

    def answer(self, sources: EditorSources) -> dict[str, object]:
        from mtfc.driver.loading.choice import Choice
        from mtfc.driver.options import SearchOptions
        from mtfc.driver.searching.search import search

        choice = Choice(model=self.model, mesh=self.mesh)
        return search(SearchOptions(self.file, choice, self.target, budget=self.budget), sources).record()


@attrs.frozen
class ReportRequest:
    """A question for the costs by line, the causes and the time of a step under a layout, as text."""

    texts: Mapping[str, str]
    file: str
    layout: str | None
    target: str | None

    def answer(self, sources: EditorSources) -> str:
        from mtfc.driver.cost import model_costs
        from mtfc.driver.explain import explain
        from mtfc.driver.loading.choice import Choice
        from mtfc.driver.searching.search import DEFAULT_TARGET
        from mtfc.driver.simulate import simulate

        choice = Choice(layout=self.layout)
        parts = (
            model_costs(self.file, choice, sources),
            explain(self.file, choice, sources),
            simulate(self.file, choice, self.target or DEFAULT_TARGET, sources),
        )
        return "\n".join(each.report(sources.with_library()) for each in parts)


@attrs.frozen
class Failed:
    """The reason why there is no answer."""

    reason: str


def answered(request: Request) -> object:
    """Return the answer to a request, or the reason why there is none: nothing that a file has ends the process."""
    from mtfc.compiler.search.found import NothingFits

    try:
        return request.answer(EditorSources(OpenTexts(request.texts)))
    except CompileError as error:
        return Failed(error.diagnostics[0].message if error.diagnostics else "the file has errors")
    except (UsageError, NothingFits) as error:
        return Failed(str(error))
    except Exception as error:
        return Failed(f"internal error: {type(error).__name__}: {error}")


def framed(message: object) -> bytes:
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def received(stream: BinaryIO) -> Request | None:
    """Read a request; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    request: Request = pickle.loads(stream.read(LENGTH.unpack(head)[0]))
    return request


def main() -> None:
    """Answer requests until the server closes the stream. What the compiler prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (request := received(sys.stdin.buffer)) is not None:
        answers.write(framed(answered(request)))
        answers.flush()
