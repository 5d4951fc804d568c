"""Costs of a model under a layout, by source line and by value, in a form that can be sent between processes.

The server asks for one case at a time: a model and a layout. A line has the figures of all that it computes, those in the
functions that it calls included; so a line inside of a function has a part of what the calling line has.

Long computations in a process of their own, the newest wish first: figures of a case, a search, a report.

The server writes requests to the process's standard input and reads answers from its standard output, each a length and a
pickle. It stops a computation that nobody wants any more by ending the process.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

import attrs

from mtfc.compiler.analysis.provenance import SentArray, sent_arrays
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import Seconds
from mtfc.compiler.cost.volumes import PlacedCost, grouped, total
from mtfc.compiler.diagnostics import CompileError, Span
from mtfc.compiler.ir.core import Equation, Function, Program, walk
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.search.found import NothingFits
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.search import DEFAULT_TARGET, search
from mtfc.editor.documents import EditorSources, OpenTexts
from mtfc.frontend.layout_options import ONE
from mtfc.reports.cost_report import LineCost, line_costs, transfers
from mtfc.reports.source_lines import Line, chain_of, count_text, flops_text, line_of
from mtfc.reports.step_report import seconds_text

MOST_CAUSES = 6
"""Most causes of collectives that are shown of a line, those for the largest arrays."""


@attrs.frozen
class ValueFigures:
    """A value under a layout.

    path: its full name. places: the place that defines it, then the calls that led there, each in its file. type: with the axes
    that split it.
    """

    path: str
    places: tuple[Span, ...]
    type: TensorType

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@attrs.frozen
class CaseFigures:
    """A model under a layout, on one device.

    parameters: their number in the whole model. flops, sent, seconds: of a step; seconds are None if the mesh does not lie on the
    machine. peak: True if the machine has peak figures only. lines: phrases about what a line computes, sends and stores.
    """

    model: str
    layout: str
    is_declared: bool
    mesh: Mesh
    trains: bool
    target: str
    parameters: int
    flops: int
    sent: int
    memory: int
    fits: bool
    seconds: float | None
    peak: bool
    lines: Mapping[Line, tuple[str, ...]]
    values: tuple[ValueFigures, ...]


def case_figures(
    file: str, model: str, layout: str | None, target: str | None, sources: Sources
) -> CaseFigures:
    """Return the figures of a model under a layout, or without any.

    target: a machine; None for the first that the file declares, or else the default one. Raises `CompileError` and `UsageError`.
    """
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.driver.loading.target import has_room, target_of
    from mtfc.driver.simulate import simulate_layout

    choice = Choice(model=model, layout=layout, mesh=None if layout else ONE)
    selection = select(file, choice, sources)
    (case,) = selection.cases
    equal = (name for name, each in selection.hardware.items() if isinstance(each, Hardware))
    declared = next(equal, DEFAULT_TARGET)
    hardware = target_of(target or declared, selection.hardware, sources)
    program = case.lower(selection.program)
    simulated = simulate_layout(program, hardware)
    step, cost = simulated.step if has_room(hardware, case.mesh) else None, simulated.cost
    function = program.function("step" if cost.trains else "forward")
    totals = total(cost.step)
    return CaseFigures(
        model=selection.program.name,
        layout=case.name,
        is_declared=layout is not None,
        mesh=case.mesh,
        trains=cost.trains,
        target=hardware.name,
        parameters=sum(each.type.size for each in selection.program.parameters if not each.is_state),
        flops=whole(totals.flops),
        sent=whole(totals.sent.bytes),
        memory=simulated.memory,
        fits=simulated.fits,
        seconds=step.seconds if step else None,
        peak=bool(hardware.caveat),
        lines=_lines(cost, step.lines if step else {}, sent_arrays(function, case.mesh, case.layout)),
        values=tuple(_values(selection.program, function, case)),
    )


# Lines


def _at(span: Span | None) -> set[Line]:
    """Return the lines that a figure belongs to."""
    return {line_of(each) for each in chain_of(span)}


def _lines(
    cost: PlacedCost, seconds: Mapping[Span | None, Seconds], arrays: Sequence[SentArray]
) -> dict[Line, tuple[str, ...]]:
    """Return the phrases about each line: its work, its memory, its time and what it sends."""
    sent: dict[Line, list[SentArray]] = {}
    for array in arrays:
        for line in _at(array.span):
            sent.setdefault(line, []).append(array)
    found = line_costs(cost, _at, seconds)
    return {line: tuple(_phrases(each, sent.get(line, ()), cost.file)) for line, each in found.items()}


def _phrases(found: LineCost, arrays: Sequence[SentArray], file: str | None) -> Iterator[str]:
    """Yield what a line computes, sends, stores and waits for, and the reasons for what it sends."""
    totals, by_stage = total(found.charges), grouped(found.charges, lambda charge: charge.stage)
    if whole(totals.flops):
        counts = {stage: whole(total(charges).flops) for stage, charges in by_stage.items()}
        stages = ", ".join(f"{stage} {count_text(count)}" for stage, count in counts.items() if count)
        yield f"computes {flops_text(whole(totals.flops))}: {stages}"
    if kinds := [f"{kind} {size}" for kind, size in transfers(found.charges)]:
        yield f"sends {bytes_text(whole(totals.sent.bytes))}: {', '.join(kinds)}"
    if stored := sum(map(whole, found.stored)):
        yield f"stores {bytes_text(stored)}"
    if found.seconds:
        seconds = sum(found.seconds, start=Seconds())
        wait = f", and waits {seconds_text(seconds.exposed)} for communication" if seconds.exposed else ""
        yield f"takes {seconds_text(seconds.compute)}{wait}"
    largest = sorted(arrays, key=lambda each: -each.bytes)
    causes = list(dict.fromkeys(chain.from_iterable(_causes(each, file) for each in largest)))
    yield from causes[:MOST_CAUSES]
    if len(causes) > MOST_CAUSES:
        yield f"and {len(causes) - MOST_CAUSES} more collectives: `mtfc explain` shows all"


def _causes(array: SentArray, file: str | None) -> Iterator[str]:
    """Yield a sentence for each rule that leads to a collective."""
    sent = f"{array.kind}{{{', '.join(array.axes)}}} of {bytes_text(array.bytes)}, {array.stage}"
    for cause in array.causes:
        place = cause.span.seen_from(file) if cause.span else "the result"
        yield f"{sent}: `{cause.rule}`, as {place} {cause.what}"
    if not array.causes:
        yield f"{sent}: neighbours along a dimension that is split"


# Values


def _values(program: Program, placed: Function, case: LayoutOnMesh) -> Iterator[ValueFigures]:
    """Yield the values that the user has named, with the types that they have in the placed function.

    A value that optimizations have removed has the type that the layout's rules give it.
    """
    kept = {(eqn.path, eqn.span): eqn.result.type for eqn in walk(placed.body) if _is_named(eqn)}
    by_path = {path: type for (path, _), type in reversed(kept.items())}
    forward = program.function("forward")
    for eqn in walk(forward.body):
        if _is_named(eqn):
            found = (
                kept.get((eqn.path, eqn.span)) or by_path.get(eqn.path) or _by_rules(eqn.result.type, case)
            )
            yield ValueFigures(str(eqn.path), tuple(chain_of(eqn.span)), found)
    arguments = {argument.value.name: argument for argument in placed.arguments}
    places = {each.name: each.span for each in program.parameters}
    for argument in forward.arguments:
        name = argument.value.name
        type = arguments[name].value.type if name in arguments else _by_rules(argument.value.type, case)
        yield ValueFigures(name, tuple(chain_of(places.get(name) or argument.span)), type)


def _is_named(eqn: Equation) -> bool:
    return eqn.path is not None and eqn.span is not None and len(eqn.results) == 1


def _by_rules(type: TensorType, case: LayoutOnMesh) -> TensorType:
    return type.split_by({dim: axes for dim, axes in case.layout.rules.axes if dim in type.names})


def defined_in(values: Iterable[ValueFigures], name: str, statement: Span) -> list[ValueFigures]:
    """Return the values that a statement defines under a name, one for each call that leads to the statement."""
    return [
        each
        for each in values
        if each.name == name and any(_inside(place, statement) for place in each.places)
    ]


def _inside(place: Span, whole: Span) -> bool:
    """Return True if a place lies within another one."""
    return (
        place.file == whole.file
        and (whole.line, whole.column) <= (place.line, place.column)
        and (place.end_line, place.end_column) <= (whole.end_line, whole.end_column)
    )


COMMAND = (sys.executable, "-P", "-c", "from mtfc.editor.figures import main; main()")
"""`-P`: Python files in the folder where the editor was started must not hide packages."""

LENGTH = struct.Struct("<Q")

LONGEST = 60.0
"""Seconds after which a computation is given up."""

PATIENCE = 1.0
"""Seconds that a computation which nobody wants any more may still take: a new process takes about half of that to start."""


class Worker:
    """A process that answers one request at a time. It is started when it is needed, and anew after it was stopped."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, request: Request, longest: float = LONGEST) -> object:
        """Return the answer, or `Failed`. A cancelled question ends the process."""
        async with self._turn:
            try:
                return await asyncio.wait_for(self._answer(request), longest)
            except TimeoutError:
                self.stop()
                return Failed(f"no answer within {longest:g} s")
            except asyncio.CancelledError:
                self.stop()
                raise
            except Exception as error:  # the process has ended, or has written something else
                self.stop()
                return Failed(f"the computation ended without an answer: {error}")

    async def _answer(self, request: Request) -> object:
        """Send a request to the process, which is started if none runs, and return its answer."""
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(framed(request))
        await self._process.stdin.drain()
        head = await self._process.stdout.readexactly(LENGTH.size)
        return pickle.loads(await self._process.stdout.readexactly(LENGTH.unpack(head)[0]))

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
        self._process = None


Case = tuple[str, str | None]
"""A model and a layout; None for a file without layouts."""


@attrs.define(eq=False)
class _Wish:
    """The cases of one file that are wanted for its texts, and the figures of those that are done."""

    texts: Mapping[str, str]
    target: str | None
    waiting: list[Case]
    done: dict[Case, CaseFigures | Failed] = attrs.field(factory=dict)
    changed: asyncio.Event = attrs.field(factory=asyncio.Event)
    is_stale: bool = False

    def update(self) -> None:
        """Wake all who wait."""
        self.changed.set()
        self.changed = asyncio.Event()


class FiguresQueue:
    """The figures of all open files. A file with a new text has new wishes, and those for the old text are dropped."""

    def __init__(self) -> None:
        """Start without wishes.

        _runner: works on the wishes. _asked: the present wish, its start, and its work.
        """
        self.worker = Worker()
        self._wishes: dict[str, _Wish] = {}
        self._runner: asyncio.Task[None] | None = None
        self._asked: tuple[_Wish, float, asyncio.Task[object]] | None = None

    def want(self, file: str, texts: Mapping[str, str], target: str | None, cases: Sequence[Case]) -> None:
        """Ask for the figures of cases, the first ones first, unless they are asked for or known already."""
        known = self._wishes.get(file)
        if known is not None and (known.texts, known.target) == (texts, target):
            known.waiting = [case for case in cases if case not in known.done]
        else:
            self.forget(file)
            self._wishes[file] = _Wish(texts, target, list(cases))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())

    def forget(self, file: str) -> None:
        """Drop the wishes of a file, and stop a computation for it that has taken long."""
        wish = self._wishes.pop(file, None)
        if wish is None:
            return
        wish.is_stale = True
        wish.update()
        if self._asked is not None and self._asked[0] is wish:
            _, since, task = self._asked
            asyncio.get_running_loop().call_later(max(0.0, since + PATIENCE - time.monotonic()), task.cancel)

    def of_file(self, file: str) -> dict[Case, CaseFigures]:
        """Return all figures that are known for the current text."""
        done = self._wishes[file].done if file in self._wishes else {}
        return {case: each for case, each in done.items() if isinstance(each, CaseFigures)}

    async def wait(self, file: str, cases: Iterable[Case], seconds: float) -> None:
        """Wait until the cases are known, or their text has changed, or some seconds have passed."""
        wish = self._wishes.get(file)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while wish and not wish.is_stale and not wish.done.keys() >= set(cases):
                    await wish.changed.wait()

    async def _run(self) -> None:
        """Compute the wished cases one after the other; those of the file that changed last come first."""
        while (found := self._next()) is not None:
            file, wish, case = found
            request = Request(wish.texts, partial(case_figures, file, *case, wish.target))
            task = asyncio.create_task(self.worker.ask(request))
            self._asked = wish, time.monotonic(), task
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()  # the runner is stopped; a task that is done stays as it is
            if not task.cancelled():
                answer = task.result()
                wish.done[case] = answer if isinstance(answer, CaseFigures | Failed) else Failed("no figures")
            self._asked = None
            wish.update()

    def _next(self) -> tuple[str, _Wish, Case] | None:
        """Return the next case to compute: of the file that changed last."""
        for file, wish in reversed(self._wishes.items()):
            if wish.waiting:
                return file, wish, wish.waiting.pop(0)
        return None

    def stop(self) -> None:
        """Stop all work on figures."""
        if self._runner is not None:
            self._runner.cancel()
        self.worker.stop()


# The process


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
    options = SearchOptions(file, Choice(model=model, mesh=mesh), target, budget=budget)
    found: dict[str, Any] = search(options, sources).result.record()
    return found


def cost_report(file: str, layout: str | None, target: str | None, sources: EditorSources) -> str:
    """Return the costs by line, the causes of collectives and the time of a step under a layout, as text."""
    from mtfc.driver.simulate import explain, model_costs, simulate

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
    try:
        return request.work(EditorSources(OpenTexts(request.texts)))
    except CompileError as error:
        return Failed(error.diagnostics[0].message if error.diagnostics else "the file has errors")
    except (UsageError, NothingFits) as error:
        return Failed(str(error))
    except Exception as error:
        return Failed(f"internal error: {type(error).__name__}: {error}")


def framed(message: object) -> bytes:
    """Return the bytes of a message, after their number, as `received` reads them."""
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
