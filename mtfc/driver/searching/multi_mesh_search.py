"""The search for a layout of several meshes: the rules of each part, with the meshes and the parts of a declared layout.

A candidate is the text of the file with other rules, so the checks of the language say whether it is legal, and its price is the
simulated step: computation on each mesh, and what travels in between. The rules of one dimension on one mesh change at a time, as
long as the step gets shorter. The search starts from the declared rules, and from each part without rules. It proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations
from time import monotonic
from typing import Any

import attrs

from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Rules
from mtfc.compiler.search.found import NothingFits
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.selection import Selection, choose
from mtfc.driver.loading.sources import known_as
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.space import SearchAnswer, SearchTask, WhyNotAnswer
from mtfc.driver.searching.written import declared_name, resized
from mtfc.frontend.layouts.layout_text import PartText, multi_mesh_text
from mtfc.meshes.multi_mesh_step import MultiMeshStep, multi_mesh_step
from mtfc.meshes.part_programs import part_programs
from mtfc.reports.meshes_report import Ending, MultiMeshSearchResult


def declared_meshes(options: SearchOptions, selection: Selection) -> tuple[Mesh, ...]:
    """Return the devices of all meshes of the layout that is searched. Raises `UsageError` for options about meshes."""
    given = {
        "--devices": options.devices,
        "--mesh": options.choice.mesh,
        "--axes": options.axes,
        "--axes-names": options.axes_names,
        "--why-not": options.why_not,
    }
    for name in (name for name, value in given.items() if value is not None):
        raise UsageError(f"`--space meshes` takes the meshes of a declared layout: no {name}")
    if not selection.multi_mesh:
        raise UsageError(
            "`--space meshes` takes a file with a layout of several meshes, such as `part embed on front: {}`"
        )
    return (selection.multi_mesh[0].mesh,)


@attrs.frozen
class MultiMeshAnswer:
    """The best layout of several meshes that a search found."""

    task: SearchTask
    result: MultiMeshSearchResult
    text: str

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return self.result.record()

    def report(self) -> str:
        """Return the layout, and its step beside that of the declared one."""
        return self.result.report()

    def written(self) -> str:
        """Return the text of the file with the found layout at its end."""
        return self.text

    def exported(self) -> str:
        """Raise `UsageError`: the solver searches one mesh."""
        raise UsageError("--export takes --space tiling")

    def why_not(self) -> WhyNotAnswer | None:
        return None


PartRules = tuple[Layout, ...]
"""The rules of each part."""


@attrs.define
class MultiMeshSearch:
    """A search from a declared layout. prices: the steps of the layouts that were simulated, None for illegal ones."""

    task: SearchTask
    case: MultiMeshCase
    prices: dict[PartRules, MultiMeshStep | None] = attrs.field(factory=dict)

    def best(self) -> tuple[PartRules, Ending]:
        """Return the best rules, and why the search ended. Raises `KeyboardInterrupt` if nothing was found."""
        try:
            for start in self._starts():
                self._descend(start)
        except KeyboardInterrupt:
            if not any(self.prices.values()):
                raise
            return self._least(), "interrupted"
        return self._least(), "time" if monotonic() > self.task.until else "complete"

    def _least(self) -> PartRules:
        return min(self.prices, key=self._value)

    def _starts(self) -> Iterator[PartRules]:
        """Yield the declared rules, and these with one part or all parts without rules."""
        declared, whole = self.case.rules, tuple(Layout(each.name) for each in self.case.rules)
        yield declared
        if len(declared) > 1:
            for i in range(len(declared)):
                yield (*declared[:i], whole[i], *declared[i + 1 :])
        yield whole

    def _descend(self, now: PartRules) -> None:
        """Change one rule at a time, as long as a pass over all dimensions makes the step shorter."""
        value, before = self._priced(now), None
        while value != before and monotonic() < self.task.until:
            before = value
            for part, dim in [(part, dim) for part, own in enumerate(self.dims) for dim in own]:
                for rules in self._changes(part, dim, now[part].rules):
                    changed = attrs.evolve(now[part], rules=rules)
                    candidate = (*now[:part], changed, *now[part + 1 :])
                    found = self._priced(candidate)
                    if found < value:
                        value, now = found, candidate
                    if monotonic() > self.task.until:
                        return

    @cached_property
    def dims(self) -> Sequence[dict[Dim, set[Dim]]]:
        """The dimensions of each part, each with those that share a tensor with it."""
        return [_beside(each) for each in part_programs(self.task.selection.program, self.case.parts)]

    def _changes(self, part: int, dim: Dim, rules: Rules) -> Iterator[Rules]:
        """Yield the rules with any other axes for a dimension; dimensions of the same tensors lose these axes."""
        mesh = self.case.declared.parts[part].mesh
        names = [name for name, size in mesh.axes if size > 1]
        beside = {each.name for each in self.dims[part][dim]}
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

    def _priced(self, rules: PartRules) -> tuple[bool, float]:
        if rules not in self.prices:
            self.prices[rules] = self._step(rules)
            found = self._value(self._least())[1]
            self.task.progress(f"{len(self.prices)} layouts simulated", found, None)
        return self._value(rules)

    def _value(self, rules: PartRules) -> tuple[bool, float]:
        """Return whether a layout does not fit into memory, and its seconds."""
        step = self.prices[rules]
        if step is None:
            return True, float("inf")
        return memory_of(step) > self.task.hardware.device.memory, step.seconds

    def _step(self, rules: PartRules) -> MultiMeshStep | None:
        """Simulate a step; None for illegal rules."""
        options = self.task.options
        name, text = self.text(rules)
        choice = Choice(options.choice.model, name, settings=options.choice.settings)
        try:
            found = choose(
                text, options.file, choice, neighbour=self.task.sources.neighbour, or_multi_mesh=True
            )
        except CompileError:
            return None
        (case,) = found.multi_mesh
        return multi_mesh_step(case.program(found.program), self.task.hardware)

    def text(self, rules: PartRules) -> tuple[str, str]:
        """Return the name of a layout with these rules, and the text of the file with it."""
        options, declared = self.task.options, self.case.declared
        text = resized(self.task.sources.texts[known_as(options.file)], options.choice.dims)
        name = declared_name(text, "found")
        parts = [
            PartText(tuple(path.text for path in part.names), part.mesh, layout)
            for part, layout in zip(declared.parts, rules, strict=True)
        ]
        parts.sort(key=lambda each: bool(each.names))
        written = multi_mesh_text(name, declared.models, parts)
        between = "\n" if text.endswith("\n") else "\n\n"
        return name, f"{text}{between}{written}"


def _beside(program: Program) -> dict[Dim, set[Dim]]:
    """Return the dimensions of a program that can be split, each with those that share a tensor with it."""
    found: dict[Dim, set[Dim]] = {}
    forward = program.function("forward")
    values = [each.value for each in forward.arguments]
    values += [value for eqn in walk(forward.body) for value in eqn.results]
    for value in values:
        for dim in value.type.dims:
            if dim.size > 1:
                found.setdefault(dim, set()).update(each for each in value.type.dims if each != dim)
    return found


def memory_of(step: MultiMeshStep) -> int:
    """Return the bytes of the device that needs most."""
    return max(whole(each.memory.total) for each in step.cost.meshes)


def search_multi_mesh(task: SearchTask) -> SearchAnswer:
    """Search for the rules of a layout of several meshes. Raises `NothingFits`, `CompileError` and `UsageError`."""
    case = task.selection.multi_mesh[0]
    found = MultiMeshSearch(task, case)
    best, ending = found.best()
    step, declared = found.prices[best], found.prices[case.rules]
    assert declared is not None, "the declared layout is legal"
    if step is None or memory_of(step) > task.hardware.device.memory:
        least = min(memory_of(each) for each in found.prices.values() if each is not None)
        room = bytes_text(int(task.hardware.device.memory))
        raise NothingFits(
            f"no layout was found that fits: a device has {room}, and the least that was seen is {bytes_text(least)}"
        )
    name, text = found.text(best)
    result = MultiMeshSearchResult(
        name,
        tuple(part.mesh for part in case.declared.parts),
        best,
        step,
        case.name,
        declared,
        task.hardware,
        len(found.prices),
        monotonic() - task.started,
        ending,
    )
    return MultiMeshAnswer(task, result, text)
