"""Formulas for a step: what its parts have, need and take, from the degrees alone.

What parts have and need is a `Shape` (`size_shapes.py`). How long a part takes follows from the lengths of its arrays' dimensions.
The part is written as a function with its gradient once, at some degrees; each length in it is then known as that of something
in the step, by the degree of one dimension, and FLOPs and bytes are products of such lengths: a `Template`. Parts whose functions
are not the same but for lengths, as they use less of a value than they have, have a template of their own. There is none where
it is not clear what a length is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from math import prod

import attrs
import numpy as np

from mtfc.compiler.analysis.buffer_kinds import storage
from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import ITEM_BYTES, Axes, Dim, TensorType
from mtfc.compiler.search.placement.operators.cotangent_flow import Flow
from mtfc.compiler.search.placement.operators.operator_graph import Step
from mtfc.compiler.search.placement.operators.operator_parts import Need
from mtfc.compiler.search.placement.operators.regions import Region
from mtfc.compiler.search.placement.operators.strategy import Parts
from mtfc.compiler.search.placement.operators.strategy_space import Choices
from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.placement.parts.part_costs import ONE, middle
from mtfc.compiler.search.placement.parts.size_evaluator import Template
from mtfc.compiler.search.placement.parts.size_shapes import Degree, rows, shape_of

Cuts = frozenset[tuple[int, str]]
"""Uses of values, by number, and dimensions in which they are of less than a part has."""
NONE: Cuts = frozenset()


def has_formulas(device: Device) -> bool:
    """Whether what kernels take follows from products of lengths: no rate depends on sizes, and nothing is filled up."""
    rates = (*device.flops.values(), device.bandwidth)
    return device.matrix is None and not device.ops and all(len(rate.points) == 1 for rate in rates)


class Formulas:
    """Of one step of an operator, and those alike."""

    def __init__(self, flow: Flow, device: Device, choices: Choices, step: Step) -> None:
        self.flow, self.device, self.operator, self.step = flow, device, choices.operator, step
        alone = {key: needs[step] for key, needs in choices.alone.items()}
        self.shape = shape_of(step, self.operator.dims, alone)
        self._cuts = {key: _cuts(step, need, key[1] // 2) for key, need in alone.items()}
        self._lengths = tuple(_lengths(step, self.operator.dims, alone))
        self._templates: dict[tuple[Cuts, ...], Template | None] = {}
        for degrees in ((), *((each,) for each in alone)):
            self.template(degrees)

    def degrees(self, degrees: Sequence[Degree]) -> Array:
        """Of all dimensions of the operator."""
        of = dict(degrees)
        return np.array([of.get(dim.name, 1) for dim in self.operator.dims], np.int64)

    def template(self, degrees: Sequence[Degree]) -> Template | None:
        """For these degrees."""
        cuts = {each[0]: self._cuts[each] for each in degrees}
        key = tuple([cuts.get(dim.name, NONE) for dim in self.operator.dims])
        if key not in self._templates:
            self._templates[key] = self._made(key) if has_formulas(self.device) else None
        return self._templates[key]

    def _made(self, key: Sequence[Cuts]) -> Template | None:
        """For all degrees with these cuts. The function is written at large degrees, at which lengths differ most."""
        alike: dict[str, list[int]] = {}
        for dim, cuts in zip(self.operator.dims, key, strict=True):
            own = [n for (name, n), each in self._cuts.items() if name == dim.name and each == cuts]
            alike[dim.name] = [*([1] if cuts == NONE else []), *own]
        for i in range(max(map(len, alike.values()), default=1)):
            chosen = {name: found[-1 - i % len(found)] for name, found in alike.items()}
            degrees = tuple((name, degree) for name, degree in chosen.items() if degree > 1)
            local = self.flow.local(self.step, Parts(self.operator, degrees), middle(degrees))
            with suppress(Unclear):
                return Writer(self._lengths, alike, chosen).template(local.function(), self.device)
        return None


def _cuts(step: Step, need: Need, index: int) -> Cuts:
    """Of a part at some index along the one dimension that is split."""
    found = set()
    for number, (value, region) in enumerate(_uses(step, need)):
        have = need.values.get(value, {})
        for dim, span in region.items():
            whole = have.get(dim)
            ends = (whole.low[index], whole.high[index]) if whole is not None else None
            if ends != (span.low[index], span.high[index]):
                found.add((number, dim))
    return frozenset(found)


def _uses(step: Step, need: Need) -> Iterator[tuple[Value, Region]]:
    for eqn in step.equations:
        if eqn in need.equations or eqn.results[0] in step.pending:
            yield from zip(eqn.operands, need.used(step, eqn)[1], strict=True)
    yield from ((value, need.owned(value)) for value in step.outputs if value not in step.pending)


@attrs.frozen
class Length:
    """Of a dimension called `name` of something in a part in the middle, by the degree of the operator's dimension `by`."""

    name: str
    by: str | None
    at: tuple[tuple[int, int], ...]

    def among(self, degrees: Sequence[int]) -> Length:
        """For some degrees only."""
        found = tuple((degree, size) for degree, size in self.at if degree in degrees)
        sizes = {size for _, size in found}
        return Length(self.name, self.by, found) if len(sizes) > 1 else _whole(self.name, *sizes)


def _whole(name: str, size: int) -> Length:
    return Length(name, None, ((1, size),))


def _lengths(step: Step, dims: Sequence[Dim], alone: Mapping[Degree, Need]) -> set[Length]:
    """All that there are of what a step has, computes and uses."""
    values = {v for eqn in step.equations for v in (*eqn.operands, *eqn.results)}.union(step.outputs)
    found = {_whole(dim.name, dim.size) for value in values for dim in value.type.dims}
    for split in dims:
        known: dict[tuple[int, Dim], list[tuple[int, int]]] = {}
        for (name, degree), need in alone.items():
            if name != split.name:
                continue
            for number, (own, region) in enumerate(_regions(step, need)):
                for dim in own:
                    if dim.name in region:
                        span = region[dim.name]
                        length = int(span.high[degree // 2] - span.low[degree // 2])
                        known.setdefault((number, dim), [(1, dim.size)]).append((degree, length))
        found |= {Length(dim.name, split.name, tuple(at)) for (_, dim), at in known.items()}
    return found


def _regions(step: Step, need: Need) -> Iterator[tuple[Sequence[Dim], Region]]:
    """Regions of arrays with some dimensions."""
    for value, region in chain(need.values.items(), _uses(step, need)):
        yield value.type.dims, region
    for eqn, region in need.equations.items():
        yield eqn.results[0].type.dims, region


class Unclear(Exception):
    """A length may be several."""


@attrs.frozen
class Product:
    """Of a number and of lengths, by their numbers."""

    coefficient: int
    lengths: tuple[int, ...] = ()

    def __mul__(self, other: Product | int) -> Product:
        if isinstance(other, int):
            return Product(self.coefficient * other, self.lengths)
        return Product(self.coefficient * other.coefficient, self.lengths + other.lengths)

    __rmul__ = __mul__


class Writer:
    """Writes the template of a function: numbers its lengths, at the degrees `chosen` of those that it is for, and products."""

    def __init__(
        self, lengths: Sequence[Length], alike: Mapping[str, Sequence[int]], chosen: Mapping[str, int]
    ) -> None:
        self.chosen = chosen
        self.known: dict[Dim, set[Length]] = {}
        for each in lengths:
            own = each.among(alike[each.by]) if each.by is not None else each
            size = dict(own.at)[chosen[own.by] if own.by is not None else 1]
            self.known.setdefault(Dim(each.name, size), set()).add(own)
        self.lengths: dict[Length, int] = {}
        self.products: dict[Product, int] = {}

    def dim(self, dim: Dim, axes: Axes) -> Product:
        found = self.known.get(dim, set())
        if len(found) != 1:
            raise Unclear
        (length,) = found
        if length.by is None:
            return Product(dim.size)
        return Product(1, (self.lengths.setdefault(length, len(self.lengths) + 1),))

    def elements(self, type: TensorType) -> Product:
        return prod((self.dim(dim, ()) for dim in type.dims), start=Product(1))

    def bytes(self, type: TensorType) -> int:
        return self.product(self.elements(type) * ITEM_BYTES[type.dtype])

    def product(self, found: Product | int) -> int:
        """Its number."""
        return self.products.setdefault(Product(1) * found, len(self.products))

    def template(self, function: Function, device: Device) -> Template:
        """Kernel by kernel what `roofline.work` adds up."""
        memory = Memory(function, ONE, device)
        kernels, moved, rates, kept = [], list[list[int]](), [], []
        for eqn in function.body:
            is_forward = eqn.stage == "forward"
            made = [self.bytes(value.type) for value in eqn.results if value in memory.stored]
            kept += made if is_forward else []
            if storage(eqn) in ("view", "made"):
                continue
            first = len(moved)
            moved += [*self._read(eqn, memory), *([each] for each in made)]
            flops = self.product(OPS[eqn.op].flops(eqn, self))
            kernels.append([not is_forward, flops, first, len(moved)])
            dtype = (eqn.operands or eqn.results)[0].type.dtype
            rates.append([device.rate(dtype).peak, memory.waiting(eqn, device)])
        by, lengths = self._arrays()
        return Template(
            by,
            lengths,
            self._factors(),
            rows(kernels, 4),
            rows(list(pairwise(np.cumsum([0, *map(len, moved)]))), 2),
            np.array([product for each in moved for product in each], np.int64),
            np.array(rates).reshape(-1, 2),
            np.array(kept, np.int64),
            device.bandwidth.peak,
            1 - device.overlap,
        )

    def _read(self, eqn: Equation, memory: Memory) -> Iterator[list[int]]:
        """What may be read of each operand that is in memory: see `kernels.Memory.moved`."""
        for i, value in enumerate(dict.fromkeys(eqn.operands)):
            types = [each.type for each in memory.views(value)]
            looked_up = [eqn.result.type] if i == 0 and storage(eqn) == "lookup" else []
            if types:
                yield [self.bytes(each) for each in (*types, *looked_up)]

    def _factors(self) -> Array:
        """Of each product: the number, and lengths."""
        found = np.zeros(
            (len(self.products), 1 + max((len(each.lengths) for each in self.products), default=0)), np.int64
        )
        for row, each in zip(found, self.products, strict=True):
            row[: 1 + len(each.lengths)] = each.coefficient, *each.lengths
        return found

    def _arrays(self) -> tuple[Array, Array]:
        """The dimension that each length depends on, and the length for each of its degrees."""
        names = list(self.chosen)
        by = np.zeros(len(self.lengths) + 1, np.int64)
        sizes = np.ones(
            (len(by), 1 + max((n for each in self.lengths for n, _ in each.at), default=1)), np.int64
        )
        for each, number in self.lengths.items():
            assert each.by is not None
            by[number] = names.index(each.by)
            for degree, size in each.at:
                sizes[number, degree] = size
        return by, sizes
