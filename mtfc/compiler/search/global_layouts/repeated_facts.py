"""The facts of a step with repeated layers, from steps with fewer layers.

The facts of all layers are the same, but for the values that they are about and for names of dimensions that no layout splits. So
facts are put into a form without both, and counted. Sums that share a value are one fact together, and so is moved data. If a
second and a third layer add the same facts, each further layer adds them, too; or a third and a fourth one, where the last layer
lies too near the first. Else the facts are those of the long step itself.

The bound of a layout is that of the long step, but for sums of few bytes that join all layers, and takes as long as that of a
short one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import attrs

from mtfc.compiler.analysis.dimension_names import OPTIMIZER, PARAMS, Dims
from mtfc.compiler.cost.effects.moved_data import Halo, MovedData
from mtfc.compiler.cost.effects.pending_sums import SumRoute
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.lower_bounds import Term, Total
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.search.global_layouts.step_facts import Facts, StepFacts, sharing

FEW = 1e-3
"""The share of all bytes that facts which join all layers may have."""

WHOLE = ""
"""The name of all dimensions that no layout splits."""

PLAIN = ("kernels", "arithmetic", "stored")
"""The fields of `Facts` whose facts are about no values."""


Form = TypeVar("Form")
Found = TypeVar("Found")


@attrs.frozen(slots=False, kw_only=True)
class RepeatedFacts(StepFacts):
    """The facts of a long step. short: steps with 1, 2, … of its `number` layers. split: dimensions that may be split."""

    short: tuple[StepFacts, ...]
    number: int
    split: Dims

    @classmethod
    def of_layers(
        cls, whole: StepFacts, short: Iterable[Function], number: int, split: Dims
    ) -> RepeatedFacts:
        """Return the facts of a step with a number of layers, from steps with 1, 2, … of them.

        Sums are followed on short routes: those of a layer have stops in few layers, so that each further layer adds the same.
        """
        steps = tuple(
            StepFacts.of(each, whole.device, whole.recomputes, has_short_routes=True) for each in short
        )
        return cls(
            function=whole.function,
            device=whole.device,
            positions=whole.positions,
            recomputes=whole.recomputes,
            short=steps,
            number=number,
            split=split,
        )

    def on(self, device: Device) -> StepFacts:
        """Return the same step on another device."""
        if device == self.device:
            return self
        short = tuple(each.on(device) for each in self.short)
        return attrs.evolve(self, device=device, short=short, found={}, sent={})

    @cached_property
    def mixed(self) -> Dims:
        """All dimensions of `positions` that may be split."""
        return super().mixed & self.split

    def facts(self, split: Dims) -> Facts:
        """Return the facts under layouts that split no dimensions of `mixed` but some of `split`."""
        if split not in self.found:
            found = self._extended(
                lambda each: _CanonicalFacts.of(each.facts(split), self._plain), _extrapolated
            )
            if found is None:
                return super().facts(split)
            self.found[split] = found
        return self.found[split]

    def halos(self, shards: int) -> Mapping[Halo, int]:
        """Return the halos where a dimension is split over a number of shards."""
        if shards not in self.sent:
            found = self._extended(lambda each: _counted(each.halos(shards), self._plain), _further)
            if found is None:
                return super().halos(shards)
            self.sent[shards] = found
        return self.sent[shards]

    def _extended(
        self, form: Callable[[StepFacts], Form], further: Callable[[Sequence[Form], int], Found | None]
    ) -> Found | None:
        """Return what all layers have by the first three short steps in a row that differ by the same; None if there are none."""
        for first in range(len(self.short) - 2):
            forms = [form(each) for each in self.short[first : first + 3]]
            if (found := further(forms, self.number - first)) is not None:
                return found
        return None

    def _plain(self, name: str) -> str:
        own = name.removeprefix(PARAMS).removeprefix(OPTIMIZER)
        return name if own in self.split else WHOLE


Rename = Callable[[str], str]


@attrs.frozen
class _CanonicalFacts:
    """Facts in canonical form, with the number of each, by the field of `Facts` that holds them.

    examples: form -> facts of this form that share values.
    """

    counts: Mapping[str, Counter[Any]]
    examples: Mapping[Hashable, Sequence[Any]]
    completing: Mapping[Value, Sequence[tuple[Term, Term]]]

    @classmethod
    def of(cls, facts: Facts, rename: Rename) -> _CanonicalFacts:
        """Return the facts in canonical form. Sums and moved data that share values have one form together.

        rename: the name of a dimension -> its name in the form.
        """

        def longer(group: Sequence[SumRoute]) -> Hashable:
            stops = (stop for route in group for stop in route.stops)
            return tuple(tuple(facts.completing.get(stop.value, ())) for stop in stops)

        routes = (attrs.evolve(route, needing=()) for route in facts.routes)  # of use to `preceding` alone
        groups: Mapping[str, Mapping[Hashable, Sequence[Any]]] = {
            "routes": {(group, longer(group)): group for group in sharing(routes)},
            "moved": {(group, ()): group for group in sharing(facts.moved)},
        }
        counts = {name: _counted(getattr(facts, name), rename) for name in PLAIN}
        examples: dict[Hashable, Sequence[Any]] = {}
        for name, every in groups.items():
            forms = [canonical_form(each, rename, {}) for each in every]
            counts[name] = Counter(forms)
            examples.update(zip(forms, every.values(), strict=True))
        return cls(counts, examples, facts.completing)


def _extrapolated(forms: Sequence[_CanonicalFacts], number: int) -> Facts | None:
    """Return the facts of a step with a number of layers, or None if the short steps do not differ by the same."""
    last, found = forms[-1], dict[str, Counter[Any]]()
    for name in last.counts:
        counts: Sequence[Counter[Any]] = [each.counts[name] for each in forms]
        every = _further(counts if name in PLAIN else _regular(counts, last.examples), number)
        if every is None:
            return None
        found[name] = every
    routes = {route: n for form, n in found["routes"].items() for route in last.examples[form]}
    moved = [(each, n) for form, n in found["moved"].items() for each in last.examples[form]]
    plain: dict[str, Any] = {name: found[name] for name in PLAIN}
    times = {stop.value: n for route, n in routes.items() for stop in route.stops}
    completing = {
        value: [(Total((a,), n), Total((b,), n)) for a, b in last.completing.get(value, ())]
        for value, n in times.items()
    }
    return Facts(
        **plain,
        completing=completing,
        routes=tuple(_repeated(route, n) for route, n in routes.items()),
        moved=tuple(attrs.evolve(each, trips=each.trips * n) for each, n in moved),
    )


def _further(counts: Sequence[Counter[Any]], number: int) -> Counter[Any] | None:
    """Return what a step with a number of layers has, or None if a second and a third layer do not add the same."""
    first, second, third = counts
    added = second - first
    if first - second or added != third - second or second - third:
        return None
    return Counter({key: first[key] + (number - 1) * added[key] for key in second})


def _regular(
    counts: Sequence[Counter[Any]], examples: Mapping[Hashable, Sequence[SumRoute | MovedData]]
) -> Sequence[Counter[Any]]:
    """Return the counts without facts that join all layers, if these are about few bytes: a bound may leave out sums.

    The norm of all gradients is such a sum: each layer adds a number.
    """
    first, second, third = counts
    irregular = {
        form for form in first | second | third if third[form] - second[form] != second[form] - first[form]
    }
    bytes = {form: third[form] * sum(map(_bytes, examples[form])) for form in third}
    if sum(bytes.get(form, 0) for form in irregular) > FEW * sum(bytes.values()):
        return counts
    return [Counter({form: n for form, n in each.items() if form not in irregular}) for each in counts]


def _bytes(fact: SumRoute | MovedData) -> int:
    """Return the fewest bytes that are sent."""
    if isinstance(fact, SumRoute):
        return min(stop.array.bytes * stop.array.trips for stop in fact.stops)
    return fact.trips * min(path.bytes for path in fact.paths)


def _repeated(route: SumRoute, number: int) -> SumRoute:
    """Return a route whose sums are completed more often."""
    arrays = (attrs.evolve(stop.array, trips=stop.array.trips * number) for stop in route.stops)
    stops = (attrs.evolve(stop, array=array) for stop, array in zip(route.stops, arrays, strict=True))
    return attrs.evolve(route, stops=tuple(stops))


# Forms


def _counted(counts: Mapping[Any, int], rename: Rename) -> Counter[Any]:
    """Return how often each canonical form occurs."""
    found: Counter[Any] = Counter()
    for fact, number in counts.items():
        found[canonical_form(fact, rename, {})] += number
    return found


def canonical_form(x: Any, rename: Rename, numbers: dict[Value, int]) -> Any:
    """Return facts with other names of dimensions, numbers in the place of values, and no equations.

    Values are numbered in the order of their first use.
    """
    if isinstance(x, str):
        return rename(x)
    if isinstance(x, Value):
        return numbers.setdefault(x, len(numbers))
    if isinstance(x, Equation):
        return None
    if isinstance(x, tuple | frozenset):
        return type(x)(canonical_form(each, rename, numbers) for each in x)
    if attrs.has(type(x)):
        fields = (each.name for each in attrs.fields(type(x)) if each.init)
        return type(x)(*(canonical_form(getattr(x, name), rename, numbers) for name in fields))
    return x
