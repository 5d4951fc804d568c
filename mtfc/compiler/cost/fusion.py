"""Which equations a compiler like XLA makes one kernel of, and what it keeps in memory at all.

Each op says what of it is stored (`opdef.Storage`): whoever reads a view reads what it is a view of, at most as many bytes as the
view has; fused equations become one kernel with what uses them, and are stored only where something else than fused equations
and reductions uses them, or where the function, or a loop, gives them away. A product and the `fold` that adds up what it makes
are one kernel, the transpose of a convolution.

On CPUs and GPUs products are kernels of libraries, which take whole arrays: where a product takes a slice of what a loop runs
along, as the weights of one layer, that is copied, and so is what it computes for the loop to keep.

On a TPU arrays are filled up to whole tiles (`tiling.py`), kernels hold some of what they compute (`register_traffic.py`), and more is as
XLA's compiler for TPUs has it (libtpu 0.0.42). Of single kernels it expects:

- What is component-wise and cheap is computed again by each kernel that uses it. Random numbers are: adding, shifting and xor.
- A kernel takes some time even where it has next to nothing to do (`Device.overhead`): a product once where it reads memory, and
  once where it writes. A reduction has a kernel of its own there, though it reads nothing, and what is component-wise is one
  kernel with what it is joined to.

And it makes kernels of several equations:

- What a component-wise equation computes is reduced, or used component-wise in the same stage, by the same kernel, stored or not,
  and so is not read for that. Products that are sums, without rows and columns, are reductions.
- A reduction of windows, as it pools, is a kernel of its own, and reads what is stored.
- A product that is only added to something is added by its own kernel, and so is what is computed of the sum alone: the end of
  that is stored, and nothing before it.
- What a loop keeps of each iteration is written twice where the iteration itself uses it.
- A loop whose iteration fits into the processor's own memory (`Device.scratchpad`) keeps there what all iterations multiply with,
  such as weights, and, where products leave their results there, what they add products to, such as gradients of weights; the
  latter alone where not all of it fits. Where weights stay, products do not wait for memory.
- Features of a convolution that are several dimensions are copied to be one, unless whole tiles lie side by side.
- An input of the program that a convolution sees as windows is rounded to 16 bits before, in a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mtfc.compiler.analysis.buffer_kinds import folded, is_elementwise, readers_of, sources, storage
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.tpu.register_traffic import held, holds, rounding_bytes
from mtfc.compiler.cost.tpu.space_to_batch import striped_bytes
from mtfc.compiler.cost.tpu.tiling import (
    LANES,
    Windows,
    is_dot,
    is_sum,
    pixels_of,
    stored_bytes,
    wholes_of,
)
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import carried, is_loop_body
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, Mesh, TensorType


def users(value: Value, readers: Mapping[Value, Sequence[Equation]]) -> Iterator[Equation]:
    """What computes something of a value, or of what is a view of it, or sends it."""
    for eqn in readers.get(value, ()):
        if storage(eqn) == "view":
            yield from users(eqn.results[0], readers)
        else:
            yield eqn


class Memory:
    """Which values of a function are stored, and what reading each one reads; `mesh` is where they are placed.

    whole: the function, where some of its equations are left out. elsewhere: equations that start no kernel. firsts: of each
    kernel but those of products an equation. following: the products whose kernels compute equations. crosses_stages: whether
    what follows a product is part of its kernel in another stage, too.
    """

    crosses_stages = False

    def __init__(
        self, function: Function, mesh: Mesh, device: Device | None = None, whole: Function | None = None
    ) -> None:
        self.mesh = mesh
        self.makers: dict[Value, Equation] = {v: eqn for eqn in function.body for v in eqn.results}
        self.given = {output.value for output in function.outputs}
        self.readers = readers_of(function)
        self.folded = folded(whole or function)
        self.is_tpu = device is not None and device.matrix is not None
        self.stored = self._stored(function) - self.folded
        self.slices = {argument.value for argument in function.arguments if argument.role == "sliced"}
        self.kept = set(sources(_kept(function), self.makers))
        self.pixels: set[Dim] = set()
        self.wholes: dict[Dim, Dim] = {}
        self.stacked: set[Value] = set()
        self.holders: dict[Value, Equation] = {}
        self.images: dict[Value, Equation] = {}
        self.ends: set[Value] = set()
        self.staying: set[Value] = set()
        self.elsewhere: set[Equation] = set()
        self.is_near = False
        if self.is_tpu:
            self._know_tpu(whole or function)
        if device is not None and device.own and is_loop_body(function):
            if whole is None:
                self._stay(function, device)
            else:
                self.staying, self.is_near = set(_able_to_stay(function)), True
            self.stored -= self.staying
        self.firsts = set(_firsts(function.body, self, device)) if device else set[Equation]()
        self.following = dict(self._following(function.body)) if self.is_tpu else {}

    def _stored(self, function: Function) -> set[Value]:
        """The values that are in memory: see the top."""
        unstored = ("view", "made", "fused")
        found = {value for eqn in function.body if storage(eqn) not in unstored for value in eqn.results}
        reading = (value for eqn in function.body if not self._computes(eqn) for value in eqn.operands)
        return found | set(sources((*self.given, *reading), self.makers))

    def _computes(self, eqn: Equation) -> bool:
        """Whether its kernel computes those operands that are component-wise."""
        return storage(eqn) in ("view", "fused", "reduced") or (self.is_tpu and is_sum(eqn))

    def _know_tpu(self, function: Function) -> None:
        """What counts on TPUs: see the top.

        pixels: dimensions that windows turn into others, or parts of such. wholes: what these are parts of. stacked: what a loop
        keeps. holders: the first to add up an array. images: the first to see an input as windows. ends: what is stored in place
        of products that are added to something.
        """
        self._store_ends(function)
        self.stacked = set(_kept(function))
        self.pixels, self.wholes = pixels_of(function.body, self.mesh), wholes_of(function.body, self.mesh)
        inputs = {argument.value for argument in function.arguments if argument.role == "input"}
        for eqn in function.body:
            for value in eqn.operands:
                source = self.seen(value)[-1]
                if storage(eqn) == "reduced" or is_sum(eqn):
                    self.holders.setdefault(source, eqn)
                elif is_dot(eqn) and source in inputs and self.is_window(value):
                    self.images.setdefault(source, eqn)

    def _store_ends(self, function: Function) -> None:
        """What pools reads what is stored; a product that is only added to something is not, but the end of what follows is."""
        reducing = (eqn for eqn in function.body if storage(eqn) == "reduced")
        pooled = (value for eqn in reducing for value in eqn.operands if self.is_window(value))
        self.stored.update(sources(pooled, self.makers))
        added = {value for value in self.stored if self._is_accumulated(value)}
        sums = {eqn.result for value in added for eqn in self.users(value)}
        self.ends = {self._end(value) for value in sums} - self.stored
        self.stored = self.stored - added | self.ends

    def _is_accumulated(self, value: Value) -> bool:
        """Whether it is a product that is only added to something."""
        found, maker = list(self.users(value)), self.makers.get(value)
        is_alone = value not in self.given and bool(found) and all(has_trait(eqn, "add") for eqn in found)
        return is_alone and maker is not None and is_dot(maker)

    def _end(self, value: Value) -> Value:
        """The last of what is computed component-wise of this value alone."""
        return [value, *(eqn.result for eqn in self._followers(value))][-1]

    def _followers(self, value: Value) -> Iterator[Equation]:
        """What is computed component-wise of this value alone, one after the other."""
        while (follower := self._follower(value)) is not None:
            yield follower
            value = follower.result

    def _following(self, body: Iterable[Equation]) -> Iterator[tuple[Equation, Equation]]:
        """Equations, and the products whose kernels compute them: what folds those, and what is component-wise of that alone."""
        for product in filter(is_dot, body):
            folds = [*self.folds(product.result)]
            followers = self._followers(folds[-1].result if folds else product.result)
            yield from ((eqn, product) for eqn in (product, *folds, *followers))

    def folds(self, value: Value) -> Iterator[Equation]:
        """What adds up the windows that a product makes, one after the other."""
        while value in self.folded and value in self.readers:
            (reader,) = self.readers[value]
            yield reader
            value = reader.result

    def _follower(self, value: Value) -> Equation | None:
        """What is component-wise of a value, if nothing else uses that, and it may be part of the same kernel."""
        found = list(self.users(value))
        is_alone = value not in self.given and len(found) == 1 and is_elementwise(found[0])
        is_part = is_alone and (self.crosses_stages or found[0].stage == self.makers[value].stage)
        return found[0] if is_part else None

    def _stay(self, region: Function, device: Device) -> None:
        """Find what an iteration of a loop finds and leaves in the processor's own memory: see the top."""
        if device.own is None or any(eqn.regions for eqn in region.body):
            return
        invariant = (argument.value for argument in region.arguments if argument.role == "invariant")
        weights = {value for value in invariant if all(map(is_dot, self.users(value)))}
        totals = dict(self._totals(region))
        values = self.stored.union(argument.value for argument in region.arguments)
        others = values.difference(weights, totals, totals.values())
        for stays in (weights.union(totals), set(totals)) if device.keeps_results else (weights,):
            if sum(self.bytes(value.type, device) for value in others | stays) <= device.own.bytes:
                self.staying = stays.union(after for before, after in totals.items() if before in stays)
                self.is_near = weights <= stays
                break

    def _totals(self, region: Function) -> Iterator[tuple[Value, Value]]:
        """What iterations add products to, before and after."""
        for argument, output in zip(carried(region), region.outputs, strict=False):
            sums = [*self.users(argument.value)]
            is_sum_of_products = len(sums) == 1 and any(map(self._is_accumulated, sums[0].operands))
            if is_sum_of_products and sums[0].results == (output.value,) and output.value not in self.stacked:
                yield argument.value, output.value

    def waiting(self, eqn: Equation, device: Device) -> float:
        """Seconds of overhead: of a kernel, or on a TPU of a product for what it reads and for what it writes."""
        if device.matrix is None or not is_dot(eqn):
            return device.overhead * (eqn in self.firsts)
        if self.is_near and device.own:
            return device.own.wait
        return device.overhead * (any(map(self.views, eqn.operands)) + self.is_stored(eqn))

    def moving(self, eqn: Equation, size: int, device: Device) -> float:
        """Seconds of so many bytes."""
        return size / device.bandwidth.at(size)

    def users(self, value: Value) -> Iterator[Equation]:
        return users(value, self.readers)

    def is_kept(self, value: Value) -> bool:
        """Whether a loop keeps it of each iteration, and the iteration uses it, too."""
        return value in self.stacked and any(self.users(value))

    def bytes(self, type: TensorType, device: Device) -> int:
        """What an array of this type takes."""
        return stored_bytes(type, self.mesh, device, self.pixels)

    def is_stored(self, eqn: Equation) -> bool:
        return any(value in self.stored or value in self.staying for value in eqn.results)

    def kernel(self, eqn: Equation) -> str:
        """The op, or what it is together with others (`hardware.KERNELS`)."""
        if has_trait(eqn, "fold"):
            return "fold" if eqn.operands[0] in self.folded else "unpool"
        is_windowed = any(map(self.is_window, eqn.operands))
        if has_trait(eqn, "dot"):
            return "convolution" if is_windowed or eqn.result in self.folded else eqn.op
        return "pool" if is_windowed and storage(eqn) == "reduced" else eqn.op

    def windows(self, eqn: Equation) -> Windows | None:
        """The windows that a product reads, or makes for `fold`, on a TPU."""
        if not has_trait(eqn, "dot") or not self.pixels:
            return None
        folds = [each for each in self.folds(eqn.result) if has_trait(each, "fold")]
        seen = (each for operand in eqn.operands for each in self.seen(operand)[:-1])
        read = [maker for each in seen if has_trait((maker := self.makers[each]), "window")]
        return Windows.of(folds or read, bool(folds), self.wholes) if folds or read else None

    def is_window(self, value: Value) -> bool:
        """Whether it is a view of windows."""
        return any(has_trait(self.makers[each], "window") for each in self.seen(value)[:-1])

    def copies(self, eqn: Equation, device: Device) -> int:
        """How many kernels compute it."""
        if device.matrix is None or storage(eqn) != "fused":
            return 1
        return max(1, sum(map(self._kernels, eqn.results)))

    def _kernels(self, value: Value) -> int:
        """How many read a value, wherever it is sent before."""
        found = int(value in self.given)
        for eqn in self.readers.get(value, ()):
            is_sent = has_trait(eqn, "sends") or storage(eqn) == "view"
            passed = zip(eqn.operands, eqn.results, strict=False) if is_sent else ()
            found += sum(self._kernels(made) for each, made in passed if each == value) if is_sent else 1
        return found

    def moved(self, eqn: Equation, device: Device) -> int:
        """Bytes that an equation reads and writes."""
        values = [value for value in dict.fromkeys(eqn.operands) if not self.is_joined(eqn, value, device)]
        read = [self.read(value, device) for value in values]
        if storage(eqn) == "lookup":
            read[0] = min(read[0], self.bytes(eqn.result.type, device))
        written = [value for value in eqn.results if value in self.stored]
        written += [value for value in written if self.is_kept(value)]
        moved = sum(self.bytes(value.type, device) for value in written) + sum(read)
        if device.matrix is None:
            return moved
        return (
            moved + self._held(eqn, device) + self.rearranged(eqn, eqn, device) + self._rounded(eqn, device)
        )

    def _held(self, eqn: Equation, device: Device) -> int:
        """Bytes that its kernel holds."""
        made = [value.type for value in eqn.results]
        seen = {value: [each.type for each in self.seen(value)] for value in eqn.operands}
        return held(self, eqn, made, seen, device)

    def _rounded(self, eqn: Equation, device: Device) -> int:
        """Bytes of rounding an input for convolutions."""
        inputs = (value for value, first in self.images.items() if first is eqn)
        return sum(rounding_bytes(value.type, self, device) for value in inputs)

    def copied(self, eqn: Equation, device: Device) -> Iterator[Value]:
        """What a product has copied."""
        if device.matrix is not None or not is_dot(eqn):
            return
        for value in (*eqn.operands, eqn.result):
            is_slice = self.seen(value)[-1] in self.slices and not self.is_window(value)
            if is_slice or value in self.kept:
                yield value

    def rearranged(self, eqn: Equation, placed: Equation, device: Device) -> int:
        """Bytes that are copied for a convolution, as it is placed."""
        if device.matrix is None or self.kernel(eqn) != "convolution":
            return 0
        windows = self.windows(eqn)
        cut = striped_bytes(placed, self.mesh, device, windows) if windows else 0
        return self._merged(eqn, placed, device) + cut

    def _merged(self, eqn: Equation, placed: Equation, device: Device) -> int:
        """Bytes that are copied so that the features of a convolution, as it is placed, are one dimension, or several again."""
        is_known = [self.is_window(value) for value in eqn.operands]
        if len(is_known) != 2 or all(is_known) or not any(is_known):
            return 0
        known, other = (placed.operands[is_known.index(each)].type for each in (True, False))
        sizes = dict(zip(other.dims, other.local_shape(self.mesh), strict=True))
        features = [n for dim, n in sizes.items() if n > 1 and dim not in self.pixels.union(known.dims)]
        is_aligned = len(features) < 2 or features[-1] % LANES == 0
        return 0 if is_aligned else 2 * max(self.bytes(each, device) for each in (other, placed.result.type))

    def is_joined(self, eqn: Equation, value: Value, device: Device) -> bool:
        """Whether an equation is part of the kernel that makes its operand, component-wise."""
        maker = self.makers.get(self.seen(value)[-1])
        if device.matrix is None or maker is None or not is_elementwise(maker):
            return False
        if storage(eqn) == "reduced" and self.is_window(value):
            return False
        return holds(eqn, device) or (is_elementwise(eqn) and eqn.stage == maker.stage)

    def read(self, value: Value, device: Device) -> int:
        """Bytes that come from memory where a value is read."""
        return min((self.bytes(each.type, device) for each in self.views(value)), default=0)

    def views(self, value: Value) -> list[Value]:
        """The value, what it is a view of, and so on to what is in memory; nothing where nothing is read."""
        found = self.seen(value)
        maker = self.makers.get(found[-1])
        if found[-1] in self.staying:
            return []
        if maker is not None and (storage(maker) == "made" or found[-1] not in self.stored):
            return []
        return found

    def seen(self, value: Value) -> list[Value]:
        """The value, what it is a view of, and so on."""
        found = [value]
        while (maker := self.makers.get(found[-1])) is not None and storage(maker) == "view":
            found.append(maker.operands[0])
        return found


def _able_to_stay(region: Function) -> Iterator[Value]:
    """What could stay in the processor's own memory from one iteration of a loop to the next, whatever is left out of it."""
    yield from (argument.value for argument in region.arguments if argument.role in ("carried", "invariant"))
    yield from (output.value for _, output in zip(carried(region), region.outputs, strict=False))


def _kept(region: Function) -> Iterator[Value]:
    """What a loop keeps of each iteration; nothing of what is no loop's."""
    if is_loop_body(region):
        yield from (output.value for output in region.outputs if output.updates is None)


def _firsts(body: Sequence[Equation], memory: Memory, device: Device) -> Iterator[Equation]:
    """Of each kernel the first equation that is stored. A kernel is known by one of its equations."""
    joined: dict[Equation, Equation] = {}

    def kernel(eqn: Equation) -> Equation:
        while eqn in joined:
            eqn = joined[eqn]
        return eqn

    for eqn in body:
        for value in eqn.operands:
            if is_elementwise(eqn) and memory.is_joined(eqn, value, device):
                one, other = kernel(eqn), kernel(memory.makers[memory.seen(value)[-1]])
                joined |= {one: other} if one is not other else {}
    others = {eqn for eqn in body if memory.is_tpu and is_dot(eqn)} | memory.elsewhere
    stored = {kernel(eqn): eqn for eqn in reversed(body) if eqn not in others and memory.is_stored(eqn)}
    yield from stored.values()
