"""spread-attention: choose how the devices along an axis share attention whose queries the axis splits.

Where a layout splits the queries along their sequence, and the keys and values come from that sequence too, each device needs all
keys. There are three forms:

- `gather`: keys and values are gathered, and each device has all of them.
- `ring`: blocks of keys and values travel around the devices, while each device attends to the block that it has (Liu et al.,
  "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023): see `attention_rings.py`.
- `heads`: all-to-alls split a dimension that queries, keys and values share, such as heads, in the place of the sequence (Jacobs
  et al., "DeepSpeed Ulysses", 2023).

With `form=auto` the pass takes the form that takes the least time, and of equally fast ones the form with the least memory. Its
times are those of a device that computes `balance` FLOPs while it sends a byte: of the bytes that each form sends, and of its
FLOPs. A ring sends while it computes, so the longer of both counts. Under a causal mask a ring leaves out half of the products,
and so do the kernels for whole sequences of some heads.
Blocks with less than `least` keys are too short for a ring. The gradients take the form of their attention.

Input:   %y, .. = attention %q, %k, %v ..  layout {length: a}                  with %k, %v renamed from [length{a}, ..]
Output:  %q_2 = reshape %q; %k_2 = reshape %k; .. = attention %q_2, %k_2, %v_2 ..; %k_3 = shift %k_2 ..; .. = loop ..
After this pass no attention gathers what the chosen form does not; types are still global.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.equation_names import LayoutTarget
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.builder import Builder, Names, Substitution, names_of, with_layouts
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import map_regions
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.attention import (
    COLUMNS,
    DEPTH,
    HIGH,
    LOW,
    MEMORY,
    OPERAND,
    PART,
    ROWS,
    limits_of,
    roles_of,
    row_dims,
)
from mtfc.compiler.ir.types import Axes, Dim, Mesh
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.partition.attention_rings import PlainSums, Ring, RingBuilder, WeightedMeans
from mtfc.compiler.passes.partition.propagate_layouts import fixed
from mtfc.compiler.passes.pass_base import Pass, one_of
from mtfc.compiler.passes.spatial.position_blocks import NewDims
from mtfc.compiler.records import frozen

FORMS = ("auto", "gather", "ring", "heads")


@frozen
class SpreadAttention(Pass):
    """The pass. form: how keys are shared, see above. balance: FLOPs for a byte sent.

    least: the fewest keys of a ring's block.
    """

    name: ClassVar[str] = "spread-attention"
    takes: ClassVar[tuple[Level, ...]] = ("assigned",)
    form: str = attrs.field(default="auto", validator=one_of(FORMS))
    balance: int = 4096
    least: int = 128

    def run(self, program: Program) -> Program:
        """Return the program in which devices share the keys of attention."""
        dims = NewDims(program.dims)
        each = AttentionSpreader(program.placed_on, self, dims, program.named_values, {})
        return dims.declared_in(program.map_functions(each.function))


@frozen
class SharedKeys:
    """Attention in which the devices along `axes` have different queries, and different keys before these are gathered.

    row, column: the dimensions of queries and of keys that the axes split. heads: the dimension that they may split instead.
    can_travel: True if a ring can compute it. low: the least row - column under a causal mask, None without a mask.
    """

    row: Dim
    column: Dim
    axes: Axes
    heads: Dim | None
    can_travel: bool
    low: int | None

    def by_heads(self, layout: Mapping[str, Axes]) -> dict[str, Axes]:
        """Return the layout that splits heads instead of rows."""
        assert self.heads is not None
        rest = {name: axes for name, axes in layout.items() if name != self.row.name}
        return {**rest, self.heads.name: (*rest.get(self.heads.name, ()), *self.axes)}


@frozen
class FormCost:
    """The cost of one form for a device: time in FLOPs that take as long, and bytes of keys and values."""

    time: float
    memory: float


def form_costs(eqn: Equation, case: SharedKeys, mesh: Mesh, balance: int) -> dict[str, FormCost]:
    """Return the costs of the possible forms of attention in the forward pass."""
    splits = {**(eqn.layout or {}), case.column.name: case.axes}
    shards, is_causal = mesh.size(case.axes), case.low is not None

    def size(*values: Value) -> int:
        """Return the bytes of values on a device, under the splits of the form."""
        types = (
            value.type.split_by({name: splits.get(name, ()) for name in value.type.names}) for value in values
        )
        return sum(type.local_bytes(mesh) for type in types)

    q, k, v = eqn.operands[:3]
    keys, everything = size(k, v), size(q, k, v, eqn.results[0])
    flops = float(OPS[eqn.op].flops(eqn, Numbers(mesh)))
    costs = {"gather": FormCost(balance * (shards - 1) * keys + flops, shards * keys)}
    if case.can_travel:
        computing = flops * (shards + 1) / (2 * shards) if is_causal else flops
        sending = balance * (shards - 1) * keys
        exchanging = balance * everything / 2 if is_causal else 0.0
        costs["ring"] = FormCost(max(sending, computing) + exchanging, 2 * keys)
    if case.heads is not None:
        seen = 0.5 if is_causal else 1.0
        costs["heads"] = FormCost(balance * everything * (shards - 1) / shards + seen * flops, everything)
    return costs


@frozen
class AttentionSpreader:
    """Gives the attention of one program its forms.

    chosen: what is decided for attention of the forward pass, by `_key`; its gradients find it there.
    """

    mesh: Mesh
    options: SpreadAttention
    dims: NewDims
    named: set[str]
    chosen: dict[Hashable, tuple[SharedKeys, str]]

    def function(self, function: Function) -> Function:
        """Rewrite a function, or the region of a loop."""
        names, finder = names_of(function), _CaseFinder(function, self.mesh, fixed(function, self.named))
        body: list[Equation] = []
        done: set[Equation] = set()
        for eqn in function.body:
            if eqn in done:
                continue
            found = self._found(eqn, finder) if has_trait(eqn, "attention", "attention_gradient") else None
            if found is None:
                body.append(map_regions(eqn, self.function))
                continue
            case, form = found
            if form == "heads":
                body.append(attrs.evolve(eqn, layout=case.by_heads(eqn.layout or {})))
            else:
                eqns = [each for each in function.body if _are_siblings(eqn, each)]
                done.update(eqns)
                body += self._ring(eqns, case, names)
        return attrs.evolve(function, body=tuple(body))

    def _found(self, eqn: Equation, finder: _CaseFinder) -> tuple[SharedKeys, str] | None:
        """Return the case and form of attention or a gradient; None where keys are gathered or are on each device anyway."""
        if has_trait(eqn, "attention"):
            case = finder.case(eqn)
            if case is not None:
                self.chosen[_key(eqn)] = case, self._form(eqn, case)
        found = self.chosen.get(_key(eqn))
        if (
            found is None
            or found[1] == "gather"
            or (eqn.layout or {}).get(found[0].row.name) != found[0].axes
        ):
            return None
        return found

    def _form(self, eqn: Equation, case: SharedKeys) -> str:
        """Return the form in which an attention shares its keys: the option, or the cheapest one in time and then in memory."""
        costs = form_costs(eqn, case, self.mesh, self.options.balance)
        if self.options.form != "auto":
            return self.options.form if self.options.form in costs else "gather"
        if case.column.size // self.mesh.size(case.axes) < self.options.least:
            costs.pop("ring", None)
        return min(costs, key=lambda form: (costs[form].time, costs[form].memory))

    def _ring(self, eqns: list[Equation], case: SharedKeys, names: Names) -> Iterator[Equation]:
        """Yield the equations of a ring, with layouts."""
        first, shards = eqns[0], self.mesh.size(case.axes)
        blocks = self.dims.get(f"{case.row.name}.ring", shards, case.axes)
        ring = Ring(case.row, case.column, shards, case.low, blocks, self.dims)
        build = Builder(names, first.span, first.stage)
        sums = PlainSums() if len(first.results) < 3 else WeightedMeans(PART.name in first.attrs)
        results = RingBuilder(ring, eqns, build, sums).results()
        old = Substitution()
        for eqn, made in zip(eqns, results, strict=True):
            for value, new in zip(eqn.results, made, strict=True):
                old[new] = value
        splits = {name: axes for eqn in eqns for name, axes in (eqn.layout or {}).items()}
        splits |= dict.fromkeys((case.row.name, case.column.name, blocks.name), case.axes)
        paths = {eqn.results[0]: eqn.path for eqn in eqns}
        for each in map(old.equation, build.body):
            yield attrs.evolve(self._placed(each, splits), path=paths.get(each.results[0]))

    def _placed(self, eqn: Equation, splits: Mapping[str, Axes]) -> Equation:
        """Return an equation of a ring with its layout."""

        def layout(value: Value) -> dict[str, Axes]:
            return {name: splits[name] for name in value.type.names if name in splits}

        def placed(region: Function) -> Function:
            return with_layouts(region, lambda each: layout(each.value), lambda x: self._placed(x, splits))

        if eqn.regions:
            return attrs.evolve(map_regions(eqn, placed), layout={})
        rule = OPS[eqn.op].layout_rule(eqn)
        dims = {dim for value in eqn.results for dim in value.type.dims}
        allowed = [dim for dim in dims if rule.allows(dim, splits.get(dim.name, ()), self.mesh)]
        split = sorted({dim.name for dim in (*allowed, *rule.reduced)} & splits.keys())
        return attrs.evolve(eqn, layout={name: splits[name] for name in split})


def _key(eqn: Equation) -> Hashable:
    """Return a key that attention and its gradients share."""
    own = {name: value for name, value in eqn.attrs.items() if name not in (PART.name, OPERAND.name)}
    return eqn.span, tuple(sorted(own.items())), tuple(value.type for value in eqn.operands[:3])


def _are_siblings(eqn: Equation, other: Equation) -> bool:
    """Return True for two gradients of one attention for rows and columns, and for an equation itself."""
    if eqn is other:
        return True
    both = all(
        has_trait(each, "attention_gradient") and OPERAND.name not in each.attrs for each in (eqn, other)
    )
    return both and eqn.operands == other.operands and eqn.attrs == other.attrs


@frozen
class _CaseFinder:
    """Finds the cases among the equations of a function whose equations have layouts. fixed: those that `value` rules name."""

    function: Function
    mesh: Mesh
    fixed: set[LayoutTarget]

    def case(self, eqn: Equation) -> SharedKeys | None:
        """Return how an attention may share its keys: the first split dimension of rows, with a dimension of keys that is split
        alike.

        A ring is possible if blocks are even, and if no mask, bias or other operand has both dimensions.
        """
        layout = eqn.layout or {}
        _, k, v, *others = eqn.operands
        for row in (dim for dim in row_dims(eqn) if dim.name in layout):
            axes = layout[row.name]
            for column in MEMORY.of(eqn.attrs):
                if self._arrives(k, column, axes) and self._arrives(v, column, axes):
                    is_causal = _is_causal(eqn, row, column)
                    low = limits_of(eqn)[0] if is_causal else None
                    can_travel = is_causal or not (LOW.name in eqn.attrs or HIGH.name in eqn.attrs)
                    shards = self.mesh.size(axes) * (2 if is_causal else 1)
                    can_travel &= row.size % shards == column.size % shards == 0
                    can_travel &= {"bias", "keep"}.isdisjoint(roles_of(eqn.attrs))
                    can_travel &= not any({row, column} <= {*x.type.dims} for x in others)
                    heads = None if eqn in self.fixed else self._heads(eqn, row, axes)
                    return SharedKeys(row, column, axes, heads, can_travel, low)
        return None

    def _heads(self, eqn: Equation, row: Dim, axes: Axes) -> Dim | None:
        """Return a dimension of queries, keys and values that the axes of the rows can split."""
        layout, everywhere = eqn.layout or {}, [{*x.type.dims} for x in eqn.operands[:3]]
        for dim in eqn.operands[0].type.dims:
            split = (*layout.get(dim.name, ()), *axes)
            if (
                all(dim in dims for dims in everywhere)
                and dim not in DEPTH.of(eqn.attrs)
                and dim.size % self.mesh.size(split) == 0
            ):
                return dim
        return None

    def _arrives(self, value: Value, dim: Dim, axes: Axes) -> bool:
        """Return True if axes split a dimension of a value where it is computed, before it gets its present name."""
        makers = {result: eqn for eqn in self.function.body for result in eqn.results}
        arguments = {argument.value: argument for argument in self.function.arguments}
        for each, name in _travelled(value, dim.name, makers):
            place = makers.get(each) or arguments.get(each)
            if place is not None and (place.layout or {}).get(name) == axes:
                return True
        return False


def shared_splits(eqn: Equation, makers: Mapping[Value, Equation]) -> Iterator[frozenset[str]]:
    """Yield pairs of dimensions that the same axes have to split for attention to be spread.

    A pair is a dimension of the queries, and a name that a dimension of the keys had before its present one. Both names may be
    the same. makers: as for `_travelled`.
    """
    q, k = eqn.operands[:2]
    columns = {dim.name for dim in MEMORY.of(eqn.attrs)}
    names = {name for column in columns for _, name in _travelled(k, column, makers)} - columns
    for row in row_dims(eqn):
        yield from (
            frozenset((row.name, name)) for name in names if name == row.name or name not in q.type.names
        )


def _travelled(value: Value, name: str, makers: Mapping[Value, Equation]) -> Iterator[tuple[Value, str]]:
    """Yield a value with the name of a dimension, and the values before it that have the dimension under some name.

    makers: value -> the equation of the same function that makes it.
    """
    found: tuple[Value, str] | None = (value, name)
    while found is not None:
        yield found
        value, name = found
        eqn = makers.get(value)
        rule = OPS[eqn.op].layout_rule(eqn) if eqn is not None and not eqn.regions else None
        if eqn is None or rule is None or rule.reduced or rule.whole:
            return
        sources = ((x, each) for x in eqn.operands for each in x.type.names)
        found = next(((x, each) for x, each in sources if rule.index.get(each, each) == name), None)


def _is_causal(eqn: Equation, row: Dim, column: Dim) -> bool:
    """Return True if each row sees the columns up to its own, or before its own."""
    is_band = ROWS.of(eqn.attrs) == (row,) and COLUMNS.of(eqn.attrs) == (column,) and row.size == column.size
    return is_band and HIGH.name not in eqn.attrs and eqn.attrs.get(LOW.name) in (0, 1)
