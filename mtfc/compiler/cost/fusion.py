"""Which equations XLA compiles to one kernel, and which values it keeps in memory.

The storage of each op (`opdef.Storage`) decides:

- A reader of a view reads the value behind the view, but at most the bytes of the view.
- An elementwise equation is fused with its readers. Its result is stored only if the function or a loop returns it, or if it has
  a reader that is neither elementwise nor a reduction.
- A lookup with one index for each part of a table is a slice, which is fused with its readers, too. An op in place reads and
  writes only the elements that its indices point at, and reads them only if it computes with them.
- A dot and the `fold` that sums its windows are one kernel: the transpose of a convolution.

On CPUs and GPUs dots are library kernels, which take whole arrays. XLA therefore copies each slice of a loop that a dot reads,
such as the weights of a layer, and each result of a dot that the loop stacks.

`FusionModel` is the model of CPUs and GPUs. Its subclasses for TPUs are in `tpu/`; `device_models.py` chooses the class for a
device.
"""

from collections.abc import Iterator, Mapping, Sequence

from mtfc.compiler.analysis.attention_forms import computed_share, is_attention
from mtfc.compiler.analysis.dot_operand_layout import is_dot
from mtfc.compiler.analysis.liveness import folded, readers_of, sources, storage
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, is_loop_body
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import ITEM_BYTES, Mesh, TensorType


def users(value: Value, readers: Mapping[Value, Sequence[Equation]]) -> Iterator[Equation]:
    """Yield the equations that compute something from a value or from a view of it, or that send it."""
    for eqn in readers.get(value, ()):
        if storage(eqn) == "view":
            yield from users(eqn.results[0], readers)
        else:
            yield eqn


class FusionModel:
    """The kernels of a function whose values are placed on `mesh`, and the bytes that each kernel moves.

    whole: the complete function, if `function` has only some of its equations. stored: values in memory. near: values that stay
    in the scratchpad of a TPU. returned: outputs of the function. slices: slices of stacks that a loop body takes. stacked:
    sources of the values that a loop stacks. ends: stored values that another layout may keep inside a kernel.
    """

    has_register_traffic = False

    def __init__(self, function: Function, mesh: Mesh, device: Device, whole: Function | None = None) -> None:
        """Decide which values the kernels store."""
        self.mesh = mesh
        self.device = device
        self.is_bound = whole is not None
        self.makers: dict[Value, Equation] = {v: eqn for eqn in function.body for v in eqn.results}
        self.returned = {output.value for output in function.outputs}
        self.readers = readers_of(function.body)
        self.folded = folded(whole or function)
        self.stored = self._stored(function) - self.folded
        self.near: set[Value] = set()
        self.ends: set[Value] = set()
        self.slices = {argument.value for argument in function.arguments if argument.role == "sliced"}
        self.stacked = set(sources(stacked_outputs(function), self.makers))

    def _stored(self, function: Function) -> set[Value]:
        """Return the values in memory: results of kernels, and what the function returns or an equation reads from memory."""
        unstored = ("view", "made", "fused")
        kernels = (eqn for eqn in function.body if storage(eqn) not in unstored and not self._is_slice(eqn))
        found = {value for eqn in kernels for value in eqn.results}
        reading = (value for eqn in function.body if not self._fuses_operands(eqn) for value in eqn.operands)
        return found | set(sources((*self.returned, *reading), self.makers))

    def _is_slice(self, eqn: Equation) -> bool:
        """True for a lookup with one index for each part of a table, such as a stage's; for a bound, under some layout."""
        if storage(eqn) != "lookup":
            return False
        table, ids = (value.type for value in eqn.operands)
        return {*ids.dims} <= {*table.dims} and (self.is_bound or ids.local_size(self.mesh) == 1)

    def _fuses_operands(self, eqn: Equation) -> bool:
        """True if the kernel of an equation also computes its elementwise operands."""
        return storage(eqn) in ("view", "fused", "reduced")

    # Values

    def users(self, value: Value) -> Iterator[Equation]:
        return users(value, self.readers)

    def seen(self, value: Value) -> list[Value]:
        """Return the value, the value that it is a view of, and further sources down to an array that is no view."""
        found = [value]
        while (maker := self.makers.get(found[-1])) is not None and storage(maker) == "view":
            found.append(maker.operands[0])
        return found

    def views(self, value: Value) -> list[Value]:
        """Return the list of `seen` down to the value in memory; an empty list if nothing is read from memory."""
        found = self.seen(value)
        maker = self.makers.get(found[-1])
        if found[-1] in self.near:
            return []
        if maker is not None and (storage(maker) == "made" or found[-1] not in self.stored):
            return []
        return found

    def is_window(self, value: Value) -> bool:
        """True if the value is a view of sliding windows."""
        return any(has_trait(self.makers[each], "window") for each in self.seen(value)[:-1])

    # Kernels

    def kernel(self, eqn: Equation) -> str:
        """Return the op, or the name of the kernel that the op is a part of (`hardware.KERNELS`)."""
        if has_trait(eqn, "fold"):
            return "fold" if eqn.operands[0] in self.folded else "unpool"
        reads_windows = any(map(self.is_window, eqn.operands))
        if has_trait(eqn, "dot"):
            return "convolution" if reads_windows or eqn.result in self.folded else eqn.op
        return "pool" if reads_windows and storage(eqn) == "reduced" else eqn.op

    def is_stored(self, eqn: Equation) -> bool:
        return any(value in self.stored or value in self.near for value in eqn.results)

    def is_kernel(self, eqn: Equation) -> bool:
        """True if a kernel starts for the equation."""
        return self.is_stored(eqn)

    def is_joined(self, eqn: Equation, value: Value) -> bool:
        """True if the kernel of an equation also computes and stores this operand, and therefore does not read it."""
        return False

    # Bytes

    def bytes(self, type: TensorType) -> int:
        """Return the bytes of one processor's array in memory."""
        return type.local_bytes(self.mesh)

    def read(self, value: Value) -> int:
        """Return the bytes that come from memory where a value is read."""
        return min((self.bytes(each.type) for each in self.views(value)), default=0)

    def moved(self, eqn: Equation) -> int:
        """Return the bytes that an equation reads and writes, with its register traffic."""
        seen = {value: [each.type for each in self.seen(value)] for value in eqn.operands}
        return self.moved_as(eqn, [value.type for value in eqn.results], seen)

    def moved_as(
        self, eqn: Equation, made: Sequence[TensorType], seen: Mapping[Value, Sequence[TensorType]]
    ) -> int:
        """Return the bytes of `moved` for other placements.

        made: types of the results. seen: types of each operand and of the values that it is a view of.
        """
        read = [
            0 if self.is_joined(eqn, value) or not self.views(value) else min(map(self.bytes, types))
            for value, types in seen.items()
        ]
        if storage(eqn) == "lookup":
            read[0] = min(read[0], self.bytes(made[0]))
        if has_trait(eqn, "in_place"):
            part = self.bytes(seen[eqn.operands[1]][0].with_dtype(made[0].dtype))
            return part * (1 if OPS[eqn.op].flops is no_flops else 2) + sum(read[1:])
        results = zip(eqn.results, made, strict=True)
        written = sum(self.bytes(type) for value, type in results if value in self.stored)
        return sum(read) + written + self.register_traffic(eqn, made, seen)

    def register_traffic(
        self, eqn: Equation, made: Sequence[TensorType], seen: Mapping[Value, Sequence[TensorType]]
    ) -> int:
        """Return the bytes in registers that take as long as bytes in memory, for types as in `moved_as`."""
        return 0

    def copied(self, eqn: Equation) -> Iterator[Value]:
        """Yield the operands and results of a dot that are copied."""
        if is_dot(eqn):
            for value in (*eqn.operands, eqn.result):
                is_slice = self.seen(value)[-1] in self.slices and not self.is_window(value)
                if is_slice or value in self.stacked:
                    yield value

    # Seconds

    def mxu_schedules(self, eqn: Equation) -> list[tuple[float, float]]:
        """Return the ways to compute an equation: its time and the time to load a factor, over the time of its FLOPs."""
        return [(self.attended(eqn) or 1.0, 0.0)]

    def attended(self, eqn: Equation) -> float | None:
        """Return the share of attention's FLOPs that a kernel computes; None where there is no kernel."""
        platform = self.device.attending
        return computed_share(eqn, self.mesh, platform) if platform and is_attention(eqn) else None

    def mxu_padding(self, eqn: Equation) -> float:
        """Return the time of an equation in its best schedule over the time of its FLOPs."""
        return min(map(sum, self.mxu_schedules(eqn)))

    def latency(self, eqn: Equation) -> float:
        """Return the seconds to start the kernel of an equation, if one starts."""
        return self.device.overhead * self.is_kernel(eqn)

    def memory_seconds(self, eqn: Equation, size: int) -> float:
        """Return the seconds to move the bytes of an equation."""
        return size / self.device.bandwidth.at(size)

    def loop_costs(self, function: Function) -> Mapping[Equation, tuple[int, float]]:
        """Return the bytes and seconds of each loop besides the kernels of its iterations."""
        return {eqn: (0, dim_of(eqn).size * self.device.loop) for eqn in function.body if eqn.regions}

    # Lower bounds under all layouts

    def least_bytes(self, type: TensorType) -> int:
        """Return a lower bound on the bytes of all shards of a tensor together, under any layout."""
        return type.size * ITEM_BYTES[type.dtype]

    def upcasts(self, eqn: Equation) -> bool:
        """True if the equation is computed in a wider dtype than the dtype of its result."""
        return False

    def clears(self, loop: Equation) -> bool:
        """True if the stacks of a loop are cleared before the loop runs."""
        return False


def stacked_outputs(function: Function) -> Iterator[Value]:
    """Yield the values that a loop body stacks; nothing for other functions."""
    if is_loop_body(function):
        yield from (output.value for output in function.outputs if output.updates is None)
