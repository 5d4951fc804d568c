"""Repeated layers: stretches of equations that occur once for each copy of a layer, and programs with fewer copies.

A step with unrolled layers has copies of a layer in its forward pass, in its backward pass and in its update. They follow each
other, so they are found as runs with a period. The parameters of a layer tell which copies belong together. A layer is taken out
with all its copies: what it would hand on to the next one is replaced by what it gets from the one before.

Prices are affine in the number of layers, but for buckets of collectives. So the prices of two short programs give that of the
long one, in a small part of the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.disjoint_sets import DisjointSets
from mtfc.compiler.ir.builder import VerifyError
from mtfc.compiler.ir.core import Attr, Equation, Function, Program, Value
from mtfc.compiler.ir.ops.calls import FUNCTION
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.ir.verifier import verify

FEWEST = 6
"""The fewest copies that are worth taking out."""

SHORT = 1, 2, 3, 4
"""The numbers of layers of the programs that show what a further layer adds to the facts of a step: see `RepeatedFacts`."""

PERIODS = 64
"""The number of periods that are tried, those of the most equations first."""


@attrs.frozen
class Run:
    """Copies of a stretch of equations in a row: copy k has the equations from `start + k * period` on."""

    start: int
    period: int
    copies: int

    def copy_of(self, i: int) -> int:
        return (i - self.start) // self.period

    @property
    def equations(self) -> range:
        return range(self.start, self.start + self.period * self.copies)


@attrs.frozen(slots=False)
class RepeatedLayers:
    """The layers of a function that have a copy in each of some runs, numbered from 0.

    runs: with the layer of each copy, or None for a layer that is not in all runs. owners: the layers of arguments.
    """

    function: Function
    number: int
    runs: tuple[tuple[Run, tuple[int | None, ...]], ...]
    owners: Mapping[Value, int]

    @classmethod
    def of(cls, function: Function) -> RepeatedLayers | None:
        """Return the layers of a function, or None if it repeats none that can be taken out.

        Where a layer adds twice to its input, there are two equally good cuts: between layers, and in their middle. The first run
        decides, and another one may allow one cut alone. So two orders are tried, and that with the most equations is taken.
        """
        found = [run for run in runs(_tokens(function)) if run.copies > FEWEST]
        first = _Members(function)
        orders = (lambda run: bool(_handed_on(function, run)), first.number_of_cuts)
        by_period = sorted(found, key=lambda run: run.period)
        layers = (cls._cut(function, sorted(by_period, key=order)) for order in orders)
        good = [each for each in layers if each is not None and each.shortened(1) is not None]
        return max(good, key=lambda each: each._equations, default=None)

    @property
    def _equations(self) -> int:
        """The number of equations of all layers."""
        return sum(run.period * (len(layers) - layers.count(None)) for run, layers in self.runs)

    @classmethod
    def _cut(cls, function: Function, found: Sequence[Run]) -> RepeatedLayers | None:
        """Return the layers if runs that use arguments are cut in the given order. found: the runs."""
        members = _Members(function)
        with_arguments = [members.aligned(run) for run in found if members.uses_arguments(run)]
        without_arguments = [run for run in found if not members.uses_arguments(run)]
        later_runs = [members.aligned(run) for run in sorted(without_arguments, key=lambda run: run.start)]
        runs = sorted((*with_arguments, *later_runs), key=lambda run: -run.period)
        members.join_users(runs)
        common: list[Hashable] = []
        chosen: list[tuple[Run, list[Hashable]]] = []
        for run in runs:
            roots = [members.root_of((run, k)) for k in range(run.copies)]
            shared = [root for root in common or roots if root in roots]
            if len({*roots}) == len(roots) and len(shared) >= FEWEST:
                common = shared
                chosen.append((run, roots))
        layer_of = {root: i for i, root in enumerate(common)}
        owners = {a.value: members.root_of(a.value) for a in function.arguments}
        return (
            cls(
                function,
                len(common),
                tuple((run, tuple(layer_of.get(root) for root in roots)) for run, roots in chosen),
                {value: layer_of[root] for value, root in owners.items() if root in layer_of},
            )
            if chosen
            else None
        )

    def shortened(self, kept: int) -> Function | None:
        """Return the function without the layers from `kept` on, or None if they are needed elsewhere."""
        instead: dict[Value, Value] = {}
        gone: set[int] = set()
        for run, layers in self.runs:
            handed_on = _handed_on(self.function, run)
            if handed_on is None:
                return None
            for k in (k for k, layer in enumerate(layers) if layer is not None and layer >= kept):
                first = run.start + k * run.period
                gone |= {*range(first, first + run.period)}
                for (i, o), (j, r) in handed_on.items():
                    value = self.function.body[first + i].operands[o]
                    value = instead.get(value, value)
                    if instead.setdefault(self.function.body[first + j].results[r], value) is not value:
                        return None
        return self._without(gone, instead, kept)

    def _without(self, gone: set[int], instead: Mapping[Value, Value], kept: int) -> Function | None:
        """Return the function without some equations and the arguments of layers from `kept` on.

        gone: the numbers of the equations. instead: value -> the value that stands for it.
        """
        arguments = tuple(a for a in self.function.arguments if self.owners.get(a.value, -1) < kept)
        defined = {a.value for a in arguments}
        body = []
        for i, eqn in enumerate(self.function.body):
            if i in gone:
                continue
            operands = tuple(instead.get(v, v) for v in eqn.operands)
            if not defined.issuperset(operands):
                return None
            defined.update(eqn.results)
            body.append(attrs.evolve(eqn, operands=operands))
        names = {a.value.name for a in arguments}
        outputs = [attrs.evolve(o, value=instead.get(o.value, o.value)) for o in self.function.outputs]
        outputs = [o for o in outputs if o.updates in names or (o.updates is None and o.value in defined)]
        if not defined.issuperset(o.value for o in outputs):
            return None
        return attrs.evolve(self.function, arguments=arguments, body=tuple(body), outputs=tuple(outputs))


def shortened_program(program: Program, layers: RepeatedLayers, kept: int) -> Program | None:
    """Return a program of one function with fewer layers, or None if that is no program. kept: the number of layers."""
    function = layers.shortened(kept)
    if function is None:
        return None
    names = {a.value.name for a in function.arguments}
    parameters = tuple(each for each in program.parameters if each.name in names)
    found = attrs.evolve(program, functions=(function,), parameters=parameters)
    try:
        verify(found, "global")
    except VerifyError:
        return None
    return found


class _Members:
    """Copies and arguments that belong together: sets that are joined."""

    def __init__(self, function: Function) -> None:
        """Start with every argument and copy alone.

        _makers: value -> the copy that makes it.
        """
        self._function = function
        self._arguments = {a.value for a in function.arguments}
        self._joined = DisjointSets[Hashable]()
        self._makers: dict[Value, Hashable] = {}

    def uses_arguments(self, run: Run) -> bool:
        return any(not self._arguments.isdisjoint(self._function.body[i].operands) for i in run.equations)

    def aligned(self, run: Run) -> Run:
        """Return the run with its copies cut between layers, and join each copy with the values that it alone uses.

        It uses arguments, and what copies of other runs have made, but for what these hand on themselves. A cut between
        layers is where the fewest values are alive that a copy makes or alone uses.
        """
        own, cuts = self._cuts(run)
        shift = int(np.argmin(cuts))
        found = run if shift == 0 else Run(run.start + shift, run.period, run.copies - 1)
        for root, each in own.items():
            first, last = ((place - shift) // run.period for place in (each[0], each[-1]))
            if first == last and 0 <= first < found.copies:
                self._joined.join(root, (found, first))
        self._makers |= self._made_in(found)
        return found

    def number_of_cuts(self, run: Run) -> int:
        """Return the number of best cuts of a run. Runs with few of them go first: their layers tell how to cut others."""
        cuts = self._cuts(run)[1]
        return int(np.count_nonzero(cuts == cuts.min()))

    def _cuts(self, run: Run) -> tuple[Mapping[Hashable, Sequence[int]], NDArray[np.int64]]:
        """Return the values that single copies of a run use, with their places, and for each place of a period the number of
        values alive.

        A value's places are the distances from the run's start at which the run uses the value.
        """
        nodes = {**{value: value for value in self._arguments}, **self._makers}
        places: dict[Hashable, list[int]] = defaultdict(list)
        for i in run.equations:
            for value in self._function.body[i].operands:
                if value in nodes:
                    places[self.root_of(nodes[value])].append(i - run.start)
        own = {root: each for root, each in places.items() if each[-1] - each[0] < run.period}
        cuts = np.zeros(run.period, np.int64)
        for first, last in (*((each[0], each[-1]) for each in own.values()), *self._alive_in(run)):
            cuts[np.arange(first + 1, last + 1) % run.period] += 1
        return own, cuts

    def _alive_in(self, run: Run) -> Iterable[tuple[int, int]]:
        """Return for each value of a run the place that makes the value and the last place that uses it, counted from the run's
        start.
        """
        made: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for i in run.equations:
            last.update((value, i - run.start) for value in self._function.body[i].operands if value in made)
            made.update((value, i - run.start) for value in self._function.body[i].results)
        return ((made[value], place) for value, place in last.items())

    def _made_in(self, run: Run) -> dict[Value, Hashable]:
        """Return value -> copy, for the values that the copies of a run make and do not hand on to the next copy."""
        made: dict[Value, Hashable] = {
            value: (run, run.copy_of(i)) for i in run.equations for value in self._function.body[i].results
        }
        for j, r in (_handed_on(self._function, run) or {}).values():
            for i in range(run.start + j, run.equations.stop, run.period):
                made.pop(self._function.body[i].results[r], None)
        return made

    def join_users(self, runs: Sequence[Run]) -> None:
        """Join each copy of a layer with the copies in other runs whose results are used by this copy alone."""
        for run in runs:
            users: dict[Value, set[int]] = defaultdict(set)
            for i in run.equations:
                for value in self._function.body[i].operands:
                    if value in self._makers:
                        users[value].add(run.copy_of(i))
            for value, copies_of in users.items():
                if len(copies_of) == 1:
                    self._joined.join(self._makers[value], (run, *copies_of))

    def root_of(self, node: Hashable) -> Hashable:
        return self._joined.first(node)


def _handed_on(function: Function, run: Run) -> dict[tuple[int, int], tuple[int, int]] | None:
    """Return the operands that each copy gets from the copy before: (equation, operand) -> (equation, result).

    None if copies differ in these operands, or if a copy gets an operand from an earlier copy than the one before.
    """
    made = {v: (i, r) for i in run.equations for r, v in enumerate(function.body[i].results)}
    found: dict[tuple[int, int], tuple[int, int]] | None = None
    for k in range(1, run.copies):
        own = {}
        for i in range(run.period):
            for o, value in enumerate(function.body[run.start + k * run.period + i].operands):
                place, result = made.get(value, (-1, 0))
                if place >= 0 and run.copy_of(place) < k - 1:
                    return None
                if place >= 0 and run.copy_of(place) == k - 1:
                    own[i, o] = (place - run.start) % run.period, result
        if found is not None and own != found:
            return None
        found = own
    return found


def runs(tokens: NDArray[np.int64]) -> list[Run]:
    """Return runs that do not overlap, those of the most equations first."""
    found: list[Run] = []
    for period in _periods(tokens):
        same = np.concatenate([[False], tokens[:-period] == tokens[period:], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            if end - start >= period:
                found.append(Run(int(start), period, 1 + int(end - start) // period))
    taken = np.zeros(len(tokens), np.bool_)
    result = []
    for run in sorted(found, key=lambda run: (-run.period * (run.copies - 1), run.period)):
        if not taken[run.equations].any():
            taken[run.equations] = True
            result.append(run)
    return result


def _periods(tokens: NDArray[np.int64]) -> list[int]:
    """Return the distances of equal equations that occur most often."""
    last: dict[int, int] = {}
    counts: Counter[int] = Counter()
    for i, token in enumerate(tokens.tolist()):
        if token in last:
            counts[i - last[token]] += 1
        last[token] = i
    return [period for period, _ in counts.most_common(PERIODS)]


def _tokens(function: Function) -> NDArray[np.int64]:
    """Return a number for each equation, equal for equations that differ in values and in dimensions of no argument alone."""
    known = {dim for a in function.arguments for dim in a.value.type.dims}
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(_token(eqn, known), len(numbers)) for eqn in function.body], np.int64)


def _token(eqn: Equation, known: set[Dim]) -> Hashable:
    """Return a key that is equal for equations of the same form. known: the dimensions of arguments, which count by name."""

    def plain(x: Attr) -> Hashable:
        """Return an attribute in which dimensions of no argument count by size alone."""
        if isinstance(x, Dim):
            return x.name if x in known else x.size
        return tuple(map(plain, x)) if isinstance(x, tuple) else x

    types = [(v.type.dtype, tuple(map(plain, v.type.dims))) for v in (*eqn.operands, *eqn.results)]
    attributes = {name: plain(x) for name, x in eqn.attrs.items()}
    if FUNCTION.name in attributes:  # the name of a function ends with a number of its dimensions
        attributes[FUNCTION.name] = FUNCTION.of(eqn.attrs).rpartition("_")[0]
    return eqn.op, eqn.stage, tuple(sorted(attributes.items())), len(eqn.operands), *types, *_regions(eqn)


def _regions(eqn: Equation) -> Iterator[Hashable]:
    for region in eqn.regions:
        yield tuple(inner.op for inner in region.body)
