"""Buffers: which values have one of their own, and when each is needed.

Buffer kinds: which equations store an array, and which values are views without a buffer of their own.

Liveness: the buffers of a function, and the equations during which each is needed.

Values are computed in program order. A value has a buffer of its own, from its equation to its last use (an output: to the end).
There are four exceptions:

- A view with more elements than its source, such as windows or a broadcast, has no buffer, and neither has a result of `after`:
  uses read the source.
- The windows that a dot makes for a `fold` have no buffer either: both are one kernel. If a loop, a collective or the caller
  needs a view or windows, they have a buffer.
- A result takes over the buffer of an operand without later uses, if each element depends only on the operand's element at the
  same position (`takes_over`). Elementwise ops, `rename`, reshapes and all-reduces are of this kind, and transposes that move
  only dimensions of which a processor has one element.
- An output that replaces an argument is written into the argument's buffer, which the backends donate. This needs the old value
  to have no use after the new value is computed.

Arguments belong to the caller: their buffers live as long as the function runs, and no other value is written into them.

The final carries of a loop take over the buffers of the initial ones, if these have no later use. While a loop runs, it also
needs the buffers of one iteration at its peak: copies of the slices, and the values of the body.

A device may read an operand from a copy (`Copies`): a dot from one in another order, and an all-reduce because its result has a
buffer of its own. For a dot the copy is made as soon as the operand is, or for windows when the dot runs, of their source. An
operand that no other equation reads is written in that order, if its kernel computes element by element.

A device may compute several equations in one kernel (`Inside`). Values that never leave their kernel have no buffer: the kernels
that read them read what they are computed from, which is needed until then.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import carried, region_of, unroll_of
from mtfc.compiler.ir.opdef import Storage
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.records import define, frozen


def storage(eqn: Equation) -> Storage:
    """Return how an equation stores its results; a loop stores them as a kernel does."""
    return "kernel" if eqn.regions else OPS[eqn.op].storage


def is_view(eqn: Equation) -> bool:
    return storage(eqn) == "view"


def is_elementwise(eqn: Equation) -> bool:
    return storage(eqn) == "fused"


def sources(values: Iterable[Value], makers: Mapping[Value, Equation]) -> Iterator[Value]:
    """Yield for each value the value that it is a view of, or the value itself if it is no view."""
    for value in values:
        while (maker := makers.get(value)) is not None and is_view(maker):
            (value, *_) = maker.operands
        yield value


def readers_of(body: Iterable[Equation]) -> dict[Value, list[Equation]]:
    """Return for each value the equations that have it as an operand; no equations for any other value."""
    found: dict[Value, list[Equation]] = defaultdict(list)
    for eqn in body:
        for value in dict.fromkeys(eqn.operands):
            found[value].append(eqn)
    return found


def readers_and_outputs(function: Function) -> dict[Value, list[Equation | None]]:
    """Return for each value the equations that have it as an operand, and None for each output."""
    found: dict[Value, list[Equation | None]] = {v: [*eqns] for v, eqns in readers_of(function.body).items()}
    for output in function.outputs:
        found.setdefault(output.value, []).append(None)
    return found


def enlarged(body: Iterable[Equation]) -> dict[Value, Value]:
    """Return the views with more elements than their source, such as windows: view -> source."""
    sources: dict[Value, Value] = {}
    for eqn in body:
        if is_view(eqn):
            (operand, *_) = eqn.operands
            sources[eqn.result] = sources.get(operand, operand)
    return {value: source for value, source in sources.items() if value.type.size > source.type.size}


def folded(function: Function) -> set[Value]:
    """Return the windows that a dot makes only for `fold`, and the values between the dot and the fold.

    Dot and fold are one kernel, a transposed convolution, which stores only the folded result.
    """
    readers = readers_of(function.body)
    given = {output.value for output in function.outputs}
    leading: set[Value] = set()
    for eqn in reversed(function.body):
        if has_trait(eqn, "fold") or (is_view(eqn) and eqn.result in leading):
            leading.update(value for value in {*eqn.operands} - given if readers[value] == [eqn])
    found: set[Value] = set()
    for eqn in function.body:
        if leading.intersection(eqn.results) and (has_trait(eqn, "dot") or found.intersection(eqn.operands)):
            found.update(eqn.results)
    return found


Copies = Callable[[Equation], Sequence[Value]]
"""Gives the operands that a device copies for an equation."""


Inside = Callable[[Function], Collection[Value]]
"""Gives the results of a function's equations, without those in its loops, that never leave a kernel."""


def no_copies(eqn: Equation) -> tuple[Value, ...]:
    """Say that a device copies no operands: the `Copies` of a program whose kernels are not known."""
    return ()


def nothing_inside(function: Function) -> tuple[Value, ...]:
    """Say that every result leaves its kernel: the `Inside` of a program whose kernels are not known."""
    return ()


@frozen
class KernelArrays:
    """Kernels of a device: what they read from copies, and what they do not store."""

    copies: Copies = no_copies
    inside: Inside = nothing_inside


PLAIN = KernelArrays()
"""Each equation reads its operands, and stores its results."""


@define(eq=False)
class Buffer:
    """A buffer, the values that occupy it one after the other, and the equations `birth` to `death` (inclusive) that need it."""

    values: list[Value]
    birth: int
    death: int


def unstored(function: Function, inside: Inside = nothing_inside) -> dict[Value, tuple[Value, ...]]:
    """Return the values without a buffer, such as views, in order of definition, with the values that are read instead.

    inside: finds the values that never leave a kernel.
    """
    arrays = {output.value for output in function.outputs}
    for eqn in function.body:
        if eqn.regions or has_trait(eqn, "sends"):
            arrays.update(eqn.operands)
    views = {*enlarged(function.body), *folded(function)} - arrays | {*inside(function)}
    return {
        eqn.results[0]: eqn.operands[:1] if has_trait(eqn, "after") else eqn.operands
        for eqn in function.body
        if has_trait(eqn, "after") or (len(eqn.results) == 1 and eqn.result in views)
    }


def last_uses(function: Function, inside: Inside = nothing_inside) -> dict[Value, int]:
    """Return the number of the last equation that uses each value or a view of it; for outputs, the number of equations.

    inside: finds the values that never leave a kernel.
    """
    last = {value: i for i, eqn in enumerate(function.body) for value in (*eqn.results, *eqn.operands)}
    last |= {output.value: len(function.body) for output in function.outputs}
    for value, read in reversed(unstored(function, inside).items()):
        last |= {source: max(last[value], last[source]) for source in read}
    return last


def takes_over(eqn: Equation, operand: Value, result: Value, mesh: Mesh) -> bool:
    """Return True if operand and result have the same dimensions, order, splits and size, so that they can share a buffer."""
    if eqn.regions:  # a final carry takes over the buffer of the same initial carry
        count = len(carried(region_of(eqn)))
        return (operand, result) in zip(eqn.operands[:count], eqn.results[:count], strict=True)
    index, before, after = OPS[eqn.op].layout_rule(eqn).index, operand.type, result.type
    along = tuple(index.get(name, name) for name in before.names)
    alike = along == after.names and before.splits == after.splits
    if has_trait(eqn, "reshape", "transpose"):
        alike = has_trait(eqn, "reshape") or _long_dims(before, mesh) == _long_dims(after, mesh)
    return alike and before.local_bytes(mesh) == after.local_bytes(mesh)


def _long_dims(type: TensorType, mesh: Mesh) -> list[str]:
    """Return the dimensions of which a processor has several elements, in storage order."""
    return [name for name, size in zip(type.names, type.local_shape(mesh), strict=True) if size > 1]


def _of_iteration(eqn: Equation, number: int, mesh: Mesh, kernels: KernelArrays) -> list[Buffer]:
    """Return the buffers of one iteration at its peak, needed while equation `number`, the loop, runs.

    Of iterations that run in one, each has these buffers: XLA may begin one before another has ended.
    """
    found = iteration_buffers(region_of(eqn), mesh, kernels)
    at = peak(found, mesh)
    alive = [b.values for b in found if b.birth <= at <= b.death]
    return [Buffer(values, number, number) for _ in range(unroll_of(eqn)) for values in alive]


def iteration_buffers(region: Function, mesh: Mesh, kernels: KernelArrays = PLAIN) -> list[Buffer]:
    """Return the buffers of one iteration of a loop: of its slices and of what its region computes."""
    last = last_uses(region, kernels.inside)
    slices = [Buffer([a.value], 0, last.get(a.value, 0)) for a in region.arguments if a.role == "sliced"]
    return [*slices, *buffers(region, mesh, kernels)]


def donated(function: Function, last: dict[Value, int]) -> set[Value]:
    """Return the outputs that are written into the buffers of the arguments that they replace.

    Where a loop carries on what an earlier loop has carried, both are written there.

    last: see `last_uses`.
    """
    arguments = {argument.value.name: argument.value for argument in function.arguments}
    birth = {value: i for i, eqn in enumerate(function.body) for value in eqn.results}
    found = set()
    for output in function.outputs:
        value, used = output.value, last.get(arguments[output.updates], -1) if output.updates else len(birth)
        while used <= birth.get(value, -1) and value not in found:
            found.add(value)
            eqn = function.body[birth[value]]
            place = eqn.results.index(value)
            if not eqn.regions or place >= len(carried(region_of(eqn))):
                break
            start = eqn.operands[place]
            value = start if last[start] == birth[value] else value
    return found


def _copied(function: Function, copies: Copies) -> Iterator[Buffer]:
    """Yield the buffers of operands that are copied for an equation."""
    made = {value: (i, eqn) for i, eqn in enumerate(function.body) for value in eqn.results}
    readers = readers_of(function.body)
    for i, eqn in enumerate(function.body):
        for value in copies(eqn):
            birth, maker = made.get(value, (i, None))
            if has_trait(eqn, "all_reduce"):
                yield Buffer([value], i, i)
            elif maker is not None and has_trait(maker, "window"):
                yield Buffer([maker.operands[0]], i, i)
            elif maker is None or len(readers[value]) > 1 or not is_elementwise(maker):
                yield Buffer([value], birth, i)


def buffers(function: Function, mesh: Mesh, kernels: KernelArrays = PLAIN) -> list[Buffer]:
    """Return all buffers except those of the arguments."""
    last = last_uses(function, kernels.inside)
    in_arguments = donated(function, last)
    without = unstored(function, kernels.inside)
    found: list[Buffer] = []
    holder: dict[Value, Buffer] = {}
    for i, eqn in enumerate(function.body):
        found += _of_iteration(eqn, i, mesh, kernels) if eqn.regions else []
        free = [value for value in dict.fromkeys(eqn.operands) if value in holder and last[value] == i]
        for result in eqn.results:
            if result in in_arguments or result in without:
                continue
            donor = next((value for value in free if takes_over(eqn, value, result, mesh)), None)
            if donor is None:
                holder[result] = Buffer([result], i, last[result])
                found.append(holder[result])
                continue
            free.remove(donor)
            holder[result] = holder[donor]
            holder[result].values.append(result)
            holder[result].death = last[result]
    return found if kernels.copies is no_copies else [*found, *_copied(function, kernels.copies)]


def peak(buffers: list[Buffer], mesh: Mesh) -> int:
    """Return the number of the first equation during which live buffers hold the most bytes."""
    changes = [0] * (max((buffer.death for buffer in buffers), default=0) + 2)
    for buffer in buffers:
        size = buffer.values[0].type.local_bytes(mesh)
        changes[buffer.birth] += size
        changes[buffer.death + 1] -= size
    alive = list(accumulate(changes))
    return alive.index(max(alive))
