"""The process that computes what takes long: figures of a case, a search, a report.

The server writes requests to its standard input and reads answers from its standard output, each a length and a pickle. It stops
a computation that nobody wants any more by ending the process.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import attrs

from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.errors import UsageError
from mtfc.editor.documents import EditorSources, OpenTexts

LENGTH = struct.Struct("<Q")


@attrs.frozen
class Request:
    """Something to compute. texts: the open buffers by file, which come before files on disk. work: a function of a module, with
    its arguments but for the sources; it raises the errors of the driver.
    """

    texts: Mapping[str, str]
    work: Callable[[EditorSources], object]


def best_layout(
    file: str, model: str, mesh: str | None, target: str | None, budget: float, sources: EditorSources
) -> dict[str, Any]:
    """Return the record of a search for the best layout of a model on the mesh of a layout, within some seconds."""
    from mtfc.driver.loading.choice import Choice
    from mtfc.driver.options import SearchOptions
    from mtfc.driver.searching.search import search

    choice = Choice(model=model, mesh=mesh)
    found: dict[str, Any] = search(
        SearchOptions(file, choice, target, budget=budget), sources
    ).result.record()
    return found


def cost_report(file: str, layout: str | None, target: str | None, sources: EditorSources) -> str:
    """Return the costs by line, the causes of collectives and the time of a step under a layout, as text."""
    from mtfc.driver.cost import model_costs
    from mtfc.driver.explain import explain
    from mtfc.driver.loading.choice import Choice
    from mtfc.driver.searching.search import DEFAULT_TARGET
    from mtfc.driver.simulate import simulate

    choice = Choice(layout=layout)
    parts = (
        model_costs(file, choice, sources),
        explain(file, choice, sources),
        simulate(file, choice, target or DEFAULT_TARGET, sources),
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
        return request.work(EditorSources(OpenTexts(request.texts)))
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
