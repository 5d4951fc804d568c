"""Memory on one processor during one execution of a function, in bytes.

The model. There are four parts, and `total` is their sum:

- parameters: the arguments of that role, as they are stored.
- optimizer: the optimizer's state and step number, as they are stored.
- gradients: the buffers of values that the backward pass makes and the update reads. All are counted as alive at once, as they
  are before the first update.
- activations_peak: the most bytes that all other values hold at one time, by `liveness`. These are the inputs, which stay, and
  all values between inputs, outputs, gradients and updates, with the temporary values of the update.

So `total` is an upper bound for a program that runs in this order. It is reached if the activations peak when the last gradient
is made. XLA can need less: it fuses elementwise equations, reorders, and puts early gradients where late activations were. It can
need more: it pads arrays to tiles, copies operands of dots into other orders, computes 16-bit floats in f32, and sends through
buffers of its own. `memory_on` counts all but the last of these, on devices that have them.

The formula of the peak is the sum at the equation where the peak is for the file's own sizes. For other sizes the peak may be
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import attrs

from mtfc.compiler.analysis.dimension_names import SINGLE, DimensionNames, Dims, bridge_of, rule_of
from mtfc.compiler.analysis.dot_operand_layout import copied_operands
from mtfc.compiler.analysis.liveness import (
    PLAIN,
    Buffer,
    Inside,
    KernelArrays,
    buffers,
    folded,
    is_elementwise,
    is_view,
    iteration_buffers,
    no_copies,
    nothing_inside,
    peak,
    readers_of,
    storage,
    takes_over,
    unstored,
)
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.lower_bounds import CommonProgram
from mtfc.compiler.cost.sizes import Amount, Scale, bytes_of
from mtfc.compiler.cost.tpu_kernels import Tiles, pixels_of
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.builder import fresh_copy
from mtfc.compiler.ir.core import Equation, Function, Role, Value, walk
from mtfc.compiler.ir.loops import charged_equation, outputs_of, pairs, region_of, unroll_of
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.collectives import kind_of
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.records import frozen, sums


@frozen
class MemoryUse:
    """Bytes on one processor.

    peak: the line at which the activations peak. kept: (line, bytes) of values of the forward pass that the backward pass reads.
    stored: the same of parameters, state and these values. occupied: (line, bytes) of each value that the four parts count; these
    add up to `total`.
    """

    parameters: Amount
    gradients: Amount
    optimizer: Amount
    activations_peak: Amount
    peak: Span | None
    kept: tuple[tuple[Span | None, Amount], ...]
    stored: tuple[tuple[Span | None, Amount], ...]
    occupied: tuple[tuple[Span | None, Amount], ...]

    @property
    def total(self) -> Amount:
        return self.parameters + self.gradients + self.optimizer + self.activations_peak

    def parts(self) -> dict[str, Amount]:
        """Return the four parts and their sum by the names of reports."""
        names = ("parameters", "gradients", "optimizer", "activations_peak", "total")
        return {name: getattr(self, name) for name in names}


ARGUMENTS: Mapping[str, tuple[Role, ...]] = {
    "parameters": ("parameter",),
    "optimizer": ("state", "step"),
    "activations_peak": ("input",),
}
"""The roles of the arguments that belong to each part."""


def memory_of(function: Function, mesh: Mesh, scale: Scale, kernels: KernelArrays = PLAIN) -> MemoryUse:
    """Return the memory of a placed function. The sizes of the file decide where activations peak, also if the amounts are
    formulas. kernels: see `liveness`.
    """
    of_gradients, alive, at = held(function, mesh, kernels)
    kept = tuple(_kept(function, scale, kernels.inside))
    arguments = {role: _arguments(function, *roles) for role, roles in ARGUMENTS.items()}
    everything = [*chain.from_iterable(arguments.values()), *of_gradients, *alive]
    return MemoryUse(
        parameters=_bytes(arguments["parameters"], scale),
        gradients=_bytes(of_gradients, scale),
        optimizer=_bytes(arguments["optimizer"], scale),
        activations_peak=_bytes([*arguments["activations_peak"], *alive], scale),
        peak=function.body[at].span if at < len(function.body) else None,
        kept=kept,
        stored=tuple(chain(_always_stored(function, scale), kept)),
        occupied=tuple(_occupied(function, everything, scale)),
    )


def memory_on(function: Function, mesh: Mesh, device: Device, inside: Inside = nothing_inside) -> MemoryUse:
    """Return the memory of a placed function on a device. inside: see `liveness`.

    On TPUs arrays take whole tiles (`Tiles`). XLA for CPUs copies operands of dots and of all-reduces, and keeps 16-bit
    floats in f32.
    """
    stored = widened(function, device)
    copies = partial(_copied_on_cpus, mesh=mesh) if device.reorders_operands else no_copies
    return memory_of(stored, mesh, padded(stored, mesh, device), KernelArrays(copies, inside))


def padded(function: Function, mesh: Mesh, device: Device) -> Tiles:
    """Return the sizes of a placed function's arrays with the padding of a device."""
    return Tiles(mesh, device, pixels_of(walk(function.body), mesh))


def _copied_on_cpus(eqn: Equation, mesh: Mesh) -> Sequence[Value]:
    return eqn.operands if has_trait(eqn, "all_reduce") else copied_operands(eqn, mesh)


def widened(function: Function, device: Device) -> Function:
    """Return the function with the dtypes in which a device keeps what it computes; arguments have their own."""
    if not any(device.widens(value.type.dtype) for eqn in walk(function.body) for value in eqn.results):
        return function
    given = {argument.value for argument in function.arguments}

    def type_of(value: Value) -> TensorType:
        is_kept = value in given or not device.widens(value.type.dtype)
        return value.type if is_kept else value.type.with_dtype("f32")

    return fresh_copy(function, type_of)


def held(
    function: Function, mesh: Mesh, kernels: KernelArrays = PLAIN
) -> tuple[list[Value], list[Value], int]:
    """Return the gradients, the other values alive at the peak, and the number of the equation at the peak.

    Each buffer has one value; arguments are left out.
    """
    of_gradients, others = by_gradients(function, mesh, kernels)
    at = peak(others, mesh)
    alive = [buffer.values[0] for buffer in others if buffer.birth <= at <= buffer.death]
    return [buffer.values[0] for buffer in of_gradients], alive, at


def gradients(function: Function) -> list[Value]:
    """Return the values that the backward pass makes and the update reads, without constants.

    Each result of a combined all-reduce belongs to the stage of its operand.
    """
    made: set[Value] = set()
    for eqn in function.body:
        if has_trait(eqn, "all_reduce") and len(eqn.results) > 1:
            made.update(
                after for before, after in zip(eqn.operands, eqn.results, strict=True) if before in made
            )
        elif eqn.stage == "backward" and eqn.operands:
            made.update(eqn.results)
    read = (v for eqn in function.body if eqn.stage == "update" for v in eqn.operands)
    return list(dict.fromkeys(value for value in read if value in made))


def by_gradients(
    function: Function, mesh: Mesh, kernels: KernelArrays = PLAIN
) -> tuple[list[Buffer], list[Buffer]]:
    """Return the buffers that hold a gradient at some time, and all others.

    A gradient that an all-to-all exchanges counts once: no two gradients are exchanged at the same time.
    """
    values = set(gradients(function))
    found = buffers(function, mesh, kernels)
    inside = {id(buffer): buffer for buffer in found if not values.isdisjoint(buffer.values)}
    outside = {id(buffer): buffer for buffer in found if id(buffer) not in inside}
    holders = {value: id(buffer) for buffer in found for value in buffer.values}
    for eqn in function.body:
        if has_trait(eqn, "sends") and kind_of(eqn) == "all_to_all":
            before, after = holders.get(eqn.operands[0], 0), holders.get(eqn.result, 0)
            if before in outside and after in inside:
                inside[before] = outside.pop(before)
                del inside[after]
    return [*inside.values()], [*outside.values()]


def _arguments(function: Function, *roles: Role) -> list[Value]:
    return [argument.value for argument in function.arguments if argument.role in roles]


def _bytes(values: Iterable[Value], scale: Scale) -> Amount:
    return sum((bytes_of(value.type, scale) for value in values), start=0)


def _occupied(function: Function, values: list[Value], scale: Scale) -> Iterator[tuple[Span | None, Amount]]:
    """Yield (line, bytes) of each value. Slices that a loop copies count for the line of the loop."""
    lines: dict[Value, Span | None] = {each.value: each.span for each in function.arguments}
    wanted = set(values)
    for eqn in walk(function.body):
        for region in eqn.regions:
            lines |= {each.value: eqn.span for each in region.arguments}
        lines |= {value: charged_equation(eqn, value).span for value in eqn.results if value in wanted}
    yield from ((lines[value], bytes_of(value.type, scale)) for value in values)


def _always_stored(function: Function, scale: Scale) -> Iterator[tuple[Span | None, Amount]]:
    """Yield (line, bytes) of each parameter and state."""
    for argument in function.arguments:
        if argument.role in ("parameter", "state"):
            yield argument.span, bytes_of(argument.value.type, scale)


def _kept(function: Function, scale: Scale, inside: Inside) -> Iterator[tuple[Span | None, Amount]]:
    """Yield (line, bytes) of each value that the forward pass keeps for the backward pass.

    inside: finds the values that never leave a kernel.
    """
    needed = {value for eqn in function.body if eqn.stage == "backward" for value in eqn.operands}
    for value, read in reversed(unstored(function, inside).items()):
        if value in needed:
            needed.remove(value)
            needed.update(read)
    for argument in function.arguments:
        if argument.role not in ("parameter", "state") and argument.value in needed:
            yield argument.span, bytes_of(argument.value.type, scale)
    for eqn in function.body:
        if eqn.stage == "forward" and eqn.operands:
            yield from (
                (charged_equation(eqn, v).span, bytes_of(v.type, scale)) for v in eqn.results if v in needed
            )


# The curve of a step


KINDS = ("gradients", "activations", "temporaries")
"""Gradients, values that the forward pass makes, and all other values."""


@frozen
class MemoryMoment:
    """The live bytes by kind while an equation runs, without arguments of the function, which live as long as it."""

    eqn: Equation
    live: Mapping[str, Amount]

    @property
    def peak(self) -> Amount:
        """The bytes that count for the peak of activations: all but gradients."""
        return self.live["activations"] + self.live["temporaries"]


def memory_moments(function: Function, mesh: Mesh, scale: Scale) -> list[MemoryMoment]:
    """Return a moment for each equation of a placed function. The highest peak of any of them is `activations_peak`.

    A loop has a moment for each equation of one iteration, added to what lives around the loop.
    """
    of_gradients, _ = by_gradients(function, mesh)
    gradients = {value for buffer in of_gradients for value in buffer.values}
    return list(_moments(function, buffers(function, mesh), mesh, scale, gradients))


def _moments(
    function: Function,
    found: Iterable[Buffer],
    mesh: Mesh,
    scale: Scale,
    gradients: set[Value],
    around: str = "forward",
) -> Iterator[MemoryMoment]:
    """Yield the moments of a function with these buffers. around: the stage of its arguments."""
    stages: dict[Value, str] = {argument.value: around for argument in function.arguments}
    stages |= {value: eqn.stage for eqn in function.body for value in eqn.results}
    changes: list[list[tuple[str, Amount]]] = [[] for _ in range(len(function.body) + 2)]
    for buffer in found:
        if (
            stage := stages.get(buffer.values[0])
        ) is not None:  # buffers inside a loop have moments of their own
            kind = "activations" if stage == "forward" else "temporaries"
            kind = kind if gradients.isdisjoint(buffer.values) else "gradients"
            size = bytes_of(buffer.values[0].type, scale)
            changes[buffer.birth].append((kind, size))
            changes[buffer.death + 1].append((kind, size * -1))
    live: dict[str, Amount] = dict.fromkeys(KINDS, 0)
    for eqn, changed in zip(function.body, changes, strict=False):
        for kind, amount in changed:
            live[kind] = live[kind] + amount
        if not eqn.regions:
            yield MemoryMoment(eqn, dict(live))
            continue
        region = region_of(eqn)
        for inside in _moments(region, iteration_buffers(region, mesh), mesh, scale, gradients, eqn.stage):
            several = {name: live[name] + inside.live[name] * unroll_of(eqn) for name in KINDS}
            yield MemoryMoment(inside.eqn, several)


# Lower bounds


@frozen(cache_hash=True)
class Splitting:
    """Arrays that may be split over `dims`, and that count only where the dimensions `unless` are whole."""

    dims: Dims
    unless: Dims


@frozen
class MemoryBound:
    """A lower bound on the bytes of a step under every layout: the bytes of `always` and the bytes of any one of the `points`."""

    always: Mapping[Dims, int]
    points: tuple[Mapping[Splitting, int], ...]


@frozen
class _Lifetime:
    """The time of a value from the equation `birth` to the equation `death` of one function."""

    splitting: Splitting
    bytes: int
    birth: int
    death: int


def memory_bound(program: CommonProgram, on_device: bool = False) -> MemoryBound:
    """Return a lower bound, for every layout, of the bytes of arguments and gradients, and of other values at each point of a
    function.

    program: an undistributed function. on_device: True for the memory of the program's device. Values that kernels of TPUs may
    keep to themselves do not count there.

    While an equation runs, each value made before it and read by it or later is alive in some placement, in a buffer of its own.
    The buffer has at least the bytes that remain if all axes split the value that may (`analysis/dimension_names.py`). For under
    every layout the same equations run in the same order. Only reshards stand between them, and a placement is dropped after its
    last use. These exceptions count less, or nothing:

    - An equation that mixes positions of a split dimension, and a dot of several operands, is replaced by others. These may read
      an array that was made of a value before. The results of the first kind, and values that only that kind reads, count where
      the dimensions are whole. A value that the second kind reads counts for its other uses.
    - The last reader of a value may overwrite it, wherever both have the same dimensions. A slice of a parameter must not be
      overwritten, but its gathered copy may. So a value counts up to the equation before (`_may_take_over`). Values that may
      share a buffer with a gradient do not count.
    - A value that replaces an argument, of the step or of a loop, may be written into the argument.
    - A view, such as windows or a broadcast, may be stored if it is sent, and then the array that it shows is dropped. So the
      array counts as if split like all of its views (`_LastUse`).
    - Values without FLOPs may be computed again: filled arrays, slices, concatenations. Casts and renames are taken to be kept.
    - Two scalings of a value may become one (`merging_in`).
    - A dot of several operands may compute on its way what another equation computes later of its operands
      (`_LastUses.multiplied`).
    - Values that differ here may become equal (`equal_in`).
    """
    function, names, replaced = program.function, program.names, program.replaced
    has_kernels = on_device and program.device.mxu_size is not None
    inside = {*may_stay_inside(function, replaced)} if has_kernels else set[Value]()
    unsure = equal_in(function, replaced) | inside
    without = _shared_with_gradients(function) | unsure | merging_in(function)
    always = sums(
        (frozenset[str]().union(*(names.names[v] for v in values)), values[0].type.local_bytes(SINGLE))
        for values in _always_alive(function)
        if unsure.isdisjoint(values)
    )
    return MemoryBound(always, tuple(_LiveValues(names, replaced, without).points(function)))


def _always_alive(function: Function) -> Iterator[Sequence[Value]]:
    """Yield arguments, and gradients with the earlier values of their buffers. A buffer may be split like any of its values."""
    yield from ([argument.value] for argument in function.arguments)
    yield from (buffer.values for buffer in by_gradients(function, SINGLE)[0])


def _shared_with_gradients(function: Function) -> set[Value]:
    """Return the values that may share the buffer of a gradient, before the gradient or after it."""
    before, after = set(gradients(function)), set(gradients(function))
    for eqn in reversed(function.body):
        for result in before.intersection(eqn.results):
            before.update(value for value in eqn.operands if _are_alike(value, result))
    for eqn in function.body:
        for operand in after.intersection(eqn.operands):
            after.update(value for value in eqn.results if _are_alike(value, operand))
    return before | after


def _are_alike(one: Value, other: Value) -> bool:
    return one.type.local_bytes(SINGLE) == other.type.local_bytes(SINGLE)


def may_stay_inside(function: Function, replaced: Mapping[Equation, Dims | None]) -> Iterator[Value]:
    """Yield the values, also those in loops, that some layout keeps inside a kernel of a TPU (`tpu_kernels.py`).

    An elementwise value is surely stored if the function returns it, or if a loop or a dot of two arrays reads it. The result of
    a dot is surely stored unless something is added to it.
    """
    readers, fused = readers_of(function.body), folded(function)
    returned = {output.value for output in function.outputs}
    for eqn in function.body:
        yield from chain.from_iterable(may_stay_inside(region, replaced) for region in eqn.regions)
        if is_elementwise(eqn):
            stored = returned.intersection(eqn.results) or _is_read_whole(eqn.result, readers, replaced)
        elif has_trait(eqn, "dot"):
            users = () if eqn.result in returned else _behind_views(eqn.result, readers)
            is_one_kernel = eqn.result in fused or any(has_trait(user, "add") for user in users)
            stored = _multiplies_arrays(eqn, replaced) and not is_one_kernel
        else:
            stored = storage(eqn) not in ("view", "made")
        yield from eqn.results if not stored else ()


def _behind_views(value: Value, readers: Mapping[Value, Sequence[Equation]]) -> Iterator[Equation]:
    """Yield the equations that read a value or a view of it."""
    for eqn in readers.get(value, ()):
        yield from _behind_views(eqn.results[0], readers) if is_view(eqn) else (eqn,)


def _is_read_whole(
    value: Value, readers: Mapping[Value, Sequence[Equation]], replaced: Mapping[Equation, Dims | None]
) -> bool:
    """Return True if under every layout a dot, a loop or a collective reads a value, or a view of it."""
    return any(
        _is_read_whole(eqn.results[0], readers, replaced)
        if is_view(eqn)
        else bool(eqn.regions) or (has_trait(eqn, "dot") and _multiplies_arrays(eqn, replaced))
        for eqn in readers.get(value, ())
        if eqn not in replaced
    )


def _multiplies_arrays(eqn: Equation, replaced: Mapping[Equation, Dims | None]) -> bool:
    """Return True for a dot that is a dot under every layout: one by a scalar may become a `mul`."""
    return replaced.get(eqn, frozenset()) is not None and all(value.type.dims for value in eqn.operands)


def equal_in(function: Function, replaced: Mapping[Equation, Dims | None]) -> set[Value]:
    """Return the values, also those in loops, that a layout may make equal to earlier values.

    These are dots of several operands with the same dimensions, as their order of contraction depends on the layout; equations
    that mix positions of the same value; and equal functions of both.
    """
    return set(_equal(function, replaced, {}, ()))


def _equal(
    function: Function,
    replaced: Mapping[Equation, Dims | None],
    known: dict[Value, object],
    arguments: Iterable[tuple[Value, object]],
) -> Iterator[Value]:
    """Yield the values of `equal_in`. known: a number for each value, the same for values that may be equal. arguments: the key
    outside of the loop for each argument.
    """
    numbers: dict[object, int] = {}

    def is_new(value: Value, key: object) -> bool:
        """Number a value by its key, and return True if no earlier value has the key."""
        count = len(numbers)
        known[value] = numbers.setdefault(key, count)
        return len(numbers) == count

    yield from (value for value, key in arguments if is_new(value, key))
    for eqn in function.body:
        if eqn.regions:
            inside = ((a.value, (a.role, known.get(v, v))) for v, a in pairs(eqn) if a.role != "carried")
            yield from _equal(region_of(eqn), replaced, known, inside)
        yield from (value for value, key in _keys(eqn, replaced, known) if is_new(value, key))


def _keys(
    eqn: Equation, replaced: Mapping[Equation, Dims | None], known: Mapping[Value, object]
) -> Iterator[tuple[Value, object]]:
    """Yield each result with a key; results of equal keys may be equal. known: the keys of earlier values."""
    if eqn.regions:
        for result, output in outputs_of(eqn):
            yield result, result if output.updates else (eqn, known.get(output.value, output.value))
        return
    operands, mixed = [known.get(value, value) for value in eqn.operands], replaced.get(eqn, frozenset())
    attributes = [(name, repr(value)) for name, value in sorted(eqn.attrs.items()) if name != "over"]
    of: object = (eqn.op, *attributes, *operands) if mixed is not None else eqn.op
    for i, result in enumerate(eqn.results):
        yield result, (i, frozenset(operands) if mixed else of, frozenset(result.type.dims))


def _may_take_over(eqn: Equation, operand: Value) -> bool:
    """Return True if a result may overwrite the operand; a layout may give the result another order of dimensions."""
    if eqn.regions:
        return any(takes_over(eqn, operand, result, SINGLE) for result in eqn.results)
    index = rule_of(eqn).index
    along = {index.get(name, name) for name in operand.type.names}
    return any(
        _are_alike(operand, result) and (along == set(result.type.names) or has_trait(eqn, "reshape"))
        for result in eqn.results
    )


def _can_be_recomputed(eqn: Equation) -> bool:
    return not eqn.regions and not has_trait(eqn, "cast", "rename") and OPS[eqn.op].flops is no_flops


def merging_in(function: Function) -> set[Value]:
    """Return the results of two scalings in a row, also in loops, if one of the scalings is an einsum.

    An einsum by a scalar becomes a `mul` where its operand has the order of its dimensions. Then the two scalings become one.
    """
    made = {eqn.results[0]: eqn for eqn in walk(function.body) if _is_scaling(eqn)}
    found: set[Value] = set()
    for eqn in made.values():
        for value in (v for v in eqn.operands if v in made):
            if has_trait(eqn, "dot") or has_trait(made[value], "dot"):
                found |= {value, *eqn.results}
    return found


def _is_scaling(eqn: Equation) -> bool:
    """Return True if an equation multiplies one operand by a scalar."""
    dims = [frozenset(value.type.dims) for value in eqn.operands]
    is_multiplied = has_trait(eqn, "multiply", "dot") and len(dims) == 2
    return is_multiplied and set(dims) == {frozenset(), frozenset(eqn.result.type.dims)}


@frozen
class _LiveValues:
    """The values that are alive at each point of a function. without: values that do not count."""

    names: DimensionNames
    replaced: Mapping[Equation, Dims | None]
    without: set[Value]

    def points(self, function: Function) -> Iterator[dict[Splitting, int]]:
        """Yield the bytes that are alive while each equation runs; while a loop runs, at each point of an iteration."""
        changes: list[list[tuple[Splitting, int]]] = [[] for _ in range(len(function.body) + 2)]
        for life in self._lives(function):
            changes[life.birth].append((life.splitting, life.bytes))
            changes[life.death + 1].append((life.splitting, -life.bytes))
        now: dict[Splitting, int] = {}
        for i, eqn in enumerate(function.body):
            for splitting, bytes in changes[i]:
                now[splitting] = now.get(splitting, 0) + bytes
            if eqn.regions:
                for inside in self.points(region_of(eqn)):
                    yield {each: now.get(each, 0) + inside.get(each, 0) for each in {*now, *inside}}
            elif any(bytes > 0 for _, bytes in changes[i]):
                yield dict(now)
        yield {}

    def _lives(self, function: Function) -> Iterator[_Lifetime]:
        """Yield the lifetimes of slices of a loop's stacks, and of the values that the function computes.

        Views, results that replace an argument, scalars and values that can be recomputed have no lifetime.
        """
        uses, none = _LastUses.of(function, self.replaced), frozenset[str]()
        births = {value: (i, eqn) for i, eqn in enumerate(function.body) for value in eqn.results}
        replacing = (output.value for output in function.outputs if output.updates)
        without = self.without.union(replacing, uses.views)
        for value in (a.value for a in function.arguments if a.role == "sliced"):
            if value not in without:
                yield from self._life(value, 0, none, uses)
        for value, (birth, eqn) in births.items():
            if value not in without and value.type.dims and not _can_be_recomputed(eqn):
                yield from self._life(value, birth, self.replaced.get(eqn, none) or none, uses)

    def _life(self, value: Value, birth: int, mixed: Dims, uses: _LastUses) -> Iterator[_Lifetime]:
        """Yield the time until the last sure use, then the time that a part is used, then the uses where dimensions are whole."""
        dims, bytes = self.names.names[value], value.type.local_bytes(SINGLE)
        for use in uses.of_value(value):
            further = frozenset[str]().union(*(self.names.names[view] for view in use.views))
            if birth <= use.last:
                splitting = Splitting(dims | further, mixed | use.mixed)
                yield _Lifetime(splitting, int(bytes * use.share), birth, use.last)
                birth = use.last + 1


@frozen
class _LastUse:
    """A use of a value: the number of the equation, the share that is used, the views it is read as.

    mixed: dimensions that must be whole for the use to be sure. last: the number of the equation.
    """

    last: int
    share: float = 1.0
    views: tuple[Value, ...] = ()
    mixed: Dims = frozenset()


@frozen
class _LastUses:
    """The uses of values in a function, by numbers of equations. A use of a view is a use of the array that it shows.

    multiplied: the operands of dots of several operands, and the arrays that these show, by the numbers of the dots.
    """

    uses: Mapping[Value, list[tuple[int, Equation]]]
    outputs: frozenset[Value]
    views: Mapping[Value, tuple[Value, ...]]
    replaced: Mapping[Equation, Dims | None]
    length: int
    multiplied: Mapping[int, set[Value]]

    @classmethod
    def of(cls, function: Function, replaced: Mapping[Equation, Dims | None]) -> _LastUses:
        """Collect the uses of values in a function.

        replaced: equations of which a layout may compute parts, as in `_LiveValues`.
        """
        uses: dict[Value, list[tuple[int, Equation]]] = {}
        for i, eqn in enumerate(function.body):
            for value in dict.fromkeys(eqn.operands):
                uses.setdefault(value, []).append((i, eqn))
        outputs = frozenset(output.value for output in function.outputs)
        views = unstored(function)
        dots = {i: eqn for i, eqn in enumerate(function.body) if replaced.get(eqn, eqn) is None}
        multiplied = {i: set(_seen(eqn.operands, views)) for i, eqn in dots.items()}
        return cls(uses, outputs, views, replaced, len(function.body), multiplied)

    def of_value(self, value: Value) -> list[_LastUse]:
        """Return all uses, the surest first: the fewer dimensions must be whole, and the fewer views, the surer."""
        found = list(self._of(value))
        return sorted(found, key=lambda use: (len(use.mixed), len(use.views), use.last))

    def _of(self, value: Value) -> Iterator[_LastUse]:
        """Yield the uses of a value; a use of a view of the value counts with the share that the view shows.

        An equation that may write its result into the value's buffer uses the value only until the equation before it.
        """
        if value in self.outputs:
            yield _LastUse(self.length)
        for i, eqn in self.uses.get(value, ()):
            is_view = len(eqn.results) == 1 and eqn.results[0] in self.views
            reuses_buffer = not is_view and _may_take_over(eqn, value)
            last_uses = list(self._of(eqn.result)) if is_view else [_LastUse(i - reuses_buffer)]
            bridge, mixed = bridge_of(eqn), self.replaced.get(eqn, frozenset())
            if mixed is None or self._may_be_made_before(i, eqn, value):
                continue
            for use in last_uses:
                if bridge is not None and is_view:
                    views, share = (*use.views, eqn.result), use.share * bridge.share
                    yield attrs.evolve(use, views=views, share=share)
                elif is_view and not has_trait(eqn, "broadcast"):  # a broadcast adds dimensions
                    views, share = (*use.views, eqn.result), use.share * _share_read(eqn)
                    yield attrs.evolve(use, views=views, share=share, mixed=use.mixed | mixed)
                else:
                    yield attrs.evolve(use, mixed=use.mixed | mixed)

    def _may_be_made_before(self, number: int, eqn: Equation, value: Value) -> bool:
        """Return True if a dot of several operands may compute on its way what the equation computes of the value."""
        if not self.multiplied or not has_trait(eqn, "dot", "multiply", "sum"):
            return False
        seen = set(_seen((value,), self.views))
        return any(i < number and not seen.isdisjoint(values) for i, values in self.multiplied.items())


def _seen(values: Iterable[Value], views: Mapping[Value, tuple[Value, ...]]) -> Iterator[Value]:
    """Yield values, and the arrays that they are views of."""
    for value in values:
        yield value
        yield from _seen(views.get(value, ()), views)


def _share_read(eqn: Equation) -> float:
    """Return the largest share of its operands' bytes that a view or dot can read."""
    before, after = (
        [value.type.local_bytes(SINGLE) for value in each] for each in ({*eqn.operands}, eqn.results)
    )
    return min(1.0, sum(after) / sum(before))
