"""The search for a layout of several meshes: the rules of each part and what runs there, with the meshes of a declared layout.

A candidate is the text of the file with another layout, so the checks of the language say whether it is legal. Its price is the
simulated step: computation on each mesh, and what travels in between. The rules of one dimension on one mesh change at a time, or
a name moves to another mesh, as long as the step gets shorter. The search starts from the declared layout, and from each part
without rules. It proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import combinations
from time import process_time

import attrs

from mtfc.compiler.activity import report_progress
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Axes, Dim, Layout, Rules
from mtfc.compiler.search.found import Ending, NothingFits, descend, memory_text
from mtfc.compiler.search.global_layouts.layout_space import space_of, values_of
from mtfc.driver.loading.cases import MultiMeshCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.driver.searching.space import SearchAnswer, SearchTask
from mtfc.driver.searching.written import declared_name
from mtfc.frontend.layouts.layout_text import PartText, multi_mesh_text
from mtfc.meshes.mesh_labels import MeshPart, part_at, rest_of
from mtfc.meshes.multi_mesh_step import MultiMeshStep, multi_mesh_step
from mtfc.meshes.segments import part_programs
from mtfc.reports.search_report import MultiMeshSearchResult


@attrs.frozen
class Candidate:
    """The rules of each part, and the names of the calls, variables and loops that run there."""

    rules: tuple[Layout, ...]
    names: tuple[tuple[str, ...], ...]

    def with_rules(self, part: int, layout: Layout) -> Candidate:
        return attrs.evolve(self, rules=(*self.rules[:part], layout, *self.rules[part + 1 :]))

    def moved(self, name: str, target: int, rest: int) -> Candidate:
        """Return the candidate with a name in another part; the part `rest` has what no other part names."""
        kept = [tuple(each for each in own if each != name) for own in self.names]
        if target != rest:
            kept[target] = (*kept[target], name)
        return attrs.evolve(self, names=tuple(kept))


@attrs.define
class MultiMeshSearch:
    """A search from a declared layout. prices: the steps of the candidates that were simulated, None for illegal ones.

    cases: the layout of each candidate that was legal, by its names.
    """

    task: SearchTask
    case: MultiMeshCase
    prices: dict[Candidate, MultiMeshStep | None] = attrs.field(factory=dict)
    cases: dict[tuple[tuple[str, ...], ...], MultiMeshCase] = attrs.field(factory=dict)
    known_dims: dict[tuple[tuple[str, ...], ...], Sequence[dict[Dim, set[Dim]]]] = attrs.field(factory=dict)

    def best(self) -> tuple[Candidate, Ending]:
        """Return the best candidate, and why the search ended. Raises `KeyboardInterrupt` if nothing was found."""
        try:
            for start in self._starts():
                self._priced(start)
                descend(
                    start,
                    self._priced,
                    lambda now: (*self._of_rules(now), *self._of_names(now)),
                    self.task.until,
                )
        except KeyboardInterrupt:
            if not any(self.prices.values()):
                raise
            return self._least(), "interrupted"
        return self._least(), "time" if process_time() > self.task.until else "complete"

    def _least(self) -> Candidate:
        return min(self.prices, key=self._value)

    @property
    def declared(self) -> Candidate:
        parts = self.case.declared.parts
        return Candidate(self.case.rules, tuple(tuple(path.text for path in part.names) for part in parts))

    @property
    def rest(self) -> int:
        """The number of the part that has what no other part names."""
        return rest_of(self.case.parts)

    def _starts(self) -> Iterator[Candidate]:
        """Yield the declared layout, and the same with one part or all parts without rules."""
        declared = self.declared
        whole = tuple(Layout(each.name) for each in declared.rules)
        yield declared
        if len(whole) > 1:
            for part, layout in enumerate(whole):
                yield declared.with_rules(part, layout)
        yield attrs.evolve(declared, rules=whole)

    def _of_rules(self, now: Candidate) -> Iterator[Callable[[Candidate], Iterator[Candidate]]]:
        """Yield the changes of the rules for each dimension on each mesh."""
        for part, own in enumerate(self._dims(now)):
            for dim in own:
                yield partial(self._with_other_axes, part, dim)

    def _with_other_axes(self, part: int, dim: Dim, now: Candidate) -> Iterator[Candidate]:
        """Yield the candidates in which a dimension on a mesh has other axes."""
        dims = self._dims(now)[part]
        if dim in dims:
            for rules in self._changes(part, dim, now.rules[part].rules, dims[dim]):
                yield now.with_rules(part, attrs.evolve(now.rules[part], rules=rules))

    def _of_names(self, now: Candidate) -> Iterator[Callable[[Candidate], Iterator[Candidate]]]:
        """Yield the moves of each name."""
        names = dict.fromkeys(name for own in now.names for name in own)
        return (partial(self._elsewhere, name) for name in (*names, *self.movable) if name)

    def _elsewhere(self, name: str, now: Candidate) -> Iterator[Candidate]:
        """Yield the candidates with a name in another part. Each part but the rest keeps a name."""
        home = next((part for part, own in enumerate(now.names) if name in own), self.rest)
        if home == self.rest or len(now.names[home]) > 1:
            for target in (part for part in range(len(now.names)) if part != home):
                yield now.moved(name, target, self.rest)

    @cached_property
    def movable(self) -> Sequence[str]:
        """The names of the model's own body whose equations another mesh could compute, but for those that are parts already."""
        program, parts = self.task.selection.program, self.case.declared.parts
        sections = self.task.selection.module.scope.reports.sections
        declared = {path.text for part in parts for path in part.names}
        own = [name for name in sections if "." not in name and name not in declared]
        found = []
        for name in own:
            places = tuple(each.place for each in sections[name] if not each.is_looped)
            alone = MeshPart(self.case.mesh, self.case.layout, places)
            if places and any(part_at(eqn.span, [alone]) == 0 for eqn in program.function("forward").body):
                found.append(name)
        return found

    def _dims(self, now: Candidate) -> Sequence[dict[Dim, set[Dim]]]:
        """Return the dimensions of each part, each with the dimensions that share a tensor with it."""
        if now.names not in self.known_dims:
            program = self.task.selection.program
            case = self.cases.get(now.names, self.case)
            self.known_dims[now.names] = [_beside(each) for each in part_programs(program, case.parts)]
        return self.known_dims[now.names]

    def _changes(self, part: int, dim: Dim, rules: Rules, others: set[Dim]) -> Iterator[Rules]:
        """Yield the rules with any other axes for a dimension; `others`, of the same tensors, lose these axes."""
        mesh = self.case.declared.parts[part].mesh
        names = [name for name, size in mesh.axes if size > 1]
        beside = {each.name for each in others}
        for number in range(len(names) + 1):
            for axes in combinations(names, number):
                if axes == rules.get(dim.name) or dim.size % mesh.size(axes):
                    continue
                kept = {
                    name: tuple(a for a in own if a not in axes) if name in beside else own
                    for name, own in rules.axes
                }
                changed: dict[str, Axes] = {**kept, dim.name: axes}
                yield Rules(tuple((name, own) for name, own in changed.items() if own))

    def _priced(self, candidate: Candidate) -> tuple[bool, float]:
        """Simulate a candidate that was not simulated yet, and return its value: see `_value`."""
        if candidate not in self.prices:
            self.prices[candidate] = self._step(candidate)
            found = self._value(self._least())[1]
            report_progress(f"{len(self.prices)} layouts simulated", found)
        return self._value(candidate)

    def _value(self, candidate: Candidate) -> tuple[bool, float]:
        """Return whether a layout does not fit into memory, and its seconds."""
        step = self.prices[candidate]
        if step is None:
            return True, float("inf")
        return step.memory > self.task.hardware.device.memory, step.seconds

    def _step(self, candidate: Candidate) -> MultiMeshStep | None:
        """Simulate a step; None for an illegal candidate."""
        options = self.task.options
        name, text = self.text(candidate)
        choice = Choice(options.choice.model, name, settings=options.choice.settings)
        try:
            found = choose(
                text, options.file, choice, neighbour=self.task.sources.neighbour, or_multi_mesh=True
            )
        except CompileError:
            return None
        (case,) = found.multi_mesh
        self.cases.setdefault(candidate.names, case)
        return multi_mesh_step(case.program(found.program), self.task.hardware)

    def parts(self, candidate: Candidate) -> list[PartText]:
        """Return the mesh, the rules and the names of each part."""
        every = zip(self.case.declared.parts, candidate.rules, candidate.names, strict=True)
        return [PartText(names, part.mesh, layout) for part, layout, names in every]

    def text(self, candidate: Candidate) -> tuple[str, str]:
        """Return the name of a candidate's layout, and the text of the file with it."""
        text, declared = self.task.text, self.case.declared
        name = declared_name(text, "found")
        parts = sorted(self.parts(candidate), key=lambda each: bool(each.names))
        written = multi_mesh_text(name, declared.models, parts)
        between = "\n" if text.endswith("\n") else "\n\n"
        return name, f"{text}{between}{written}"


def _beside(program: Program) -> dict[Dim, set[Dim]]:
    """Return the dimensions of a program that can be split, each with those that share a tensor with it."""
    forward = program.function("forward")
    columns = space_of(forward).columns
    beside = {each.dim: {columns[i].dim for i in each.beside} for each in columns}
    dims = dict.fromkeys(dim for value in values_of(forward) for dim in value.type.dims)
    return {dim: beside[dim] for dim in dims if dim in beside}


def search_multi_mesh(task: SearchTask) -> SearchAnswer:
    """Search for the rules of a layout of several meshes. Raises `NothingFits`, `CompileError` and `UsageError`."""
    case = task.selection.multi_mesh[0]
    found = MultiMeshSearch(task, case)
    best, ending = found.best()
    step, declared = found.prices[best], found.prices[found.declared]
    assert declared is not None, "the declared layout is legal"
    if step is None or step.memory > task.hardware.device.memory:
        least = min(each.memory for each in found.prices.values() if each is not None)
        raise NothingFits(f"no layout was found that fits: {memory_text(task.hardware.device.memory, least)}")
    name, text = found.text(best)
    result = MultiMeshSearchResult(
        name,
        found.parts(best),
        step,
        case.name,
        declared,
        task.hardware,
        len(found.prices),
        process_time() - task.started,
        ending,
    )
    return SearchAnswer(result, lambda: text)
