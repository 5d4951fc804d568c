"""The known faults of XLA behind `plan.apply`: a record for each, and the equations of a plan that meet one.

XLA's partitioner splits the program of `plan.apply`. Each record has a predicate over an equation and its place in the plan. The
tests have a small program that shows each fault: a fault that is gone fails its test, and leaves the table. `plan.step` never
calls the partitioner.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import FLOATS, Axes, Dim, Mesh
from mtfc.driver.errors import UsageError
from mtfc.driver.jax_functions.shardings import axes_of, one_use
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Number, Operand, Var

if TYPE_CHECKING:
    from mtfc.frontend.jaxpr.importing import Imported


@attrs.frozen(eq=False, slots=False)
class PlacedSteps:
    """The equations of a function, and the mesh axes that split their arrays in `plan.apply`."""

    imported: Imported
    rules: Mapping[str, Axes]
    mesh: Mesh

    def dims(self, x: Operand) -> Sequence[Sequence[Dim]]:
        return self.imported.dims_of(x) if isinstance(x, Var) else ()

    def splits(self, x: Operand) -> list[Axes]:
        """Return the mesh axes of size above one that split each axis of an array."""
        dims = self.dims(x)
        rules = one_use(dims, self.rules)
        found = (axes_of(each, rules, self.mesh)[0] for each in dims)
        return [tuple(axis for axis in axes if self.mesh.size((axis,)) > 1) for axes in found]

    @cached_property
    def maker(self) -> Mapping[Var, AppliedPrimitive]:
        return {var: step for step in self.imported.steps for var in step.results}

    @cached_property
    def steps(self) -> Sequence[AppliedPrimitive]:
        """The equations that results depend on: XLA drops all others, such as derivatives that are zero."""
        flat = self.imported.flat.body
        bodies = (flat, *(body for step in self.imported.steps for body in step.bodies))
        needed = {x for body in bodies for x in body.outputs}
        found = []
        for step in reversed(self.imported.steps):
            if step.bodies or not needed.isdisjoint(step.results):
                needed.update(step.operands)
                found.append(step)
        return found[::-1]

    @cached_property
    def readers(self) -> Mapping[Var, Sequence[AppliedPrimitive]]:
        """Variable -> the steps that read it."""
        found: dict[Var, list[AppliedPrimitive]] = {}
        for step in self.steps:
            for x in step.operands:
                if isinstance(x, Var):
                    found.setdefault(x, []).append(step)
        return found

    @cached_property
    def constants(self) -> frozenset[Var]:
        pairs = zip(self.imported.inputs, self.imported.flat.body.arguments, strict=True)
        return frozenset(var for leaf, var in pairs if leaf.constant is not None)

    @cached_property
    def opaque(self) -> frozenset[Var]:
        return frozenset(var for step in self.imported.calls for var in step.results)


Meets = Callable[[AppliedPrimitive, PlacedSteps], Iterable[Dim]]
"""Returns the split dimensions by which an equation meets a fault: none if it does not."""


@attrs.frozen
class Fault:
    """A fault of XLA. seen: versions of JAX and jaxlib. reference: an issue or a pull request of JAX or XLA.

    primitives: those of equations that may meet the fault. ends_process: True if XLA ends the process. may_fail: True if XLA may
    raise an error.
    """

    name: str
    what: str
    meets: Meets
    primitives: tuple[str, ...]
    reference: str | None = None
    seen: str = "0.10.2"
    ends_process: bool = False
    may_fail: bool = False


@attrs.frozen
class MetFault:
    """A fault that a plan's equation meets. dims: the dimensions whose splits cause it."""

    fault: Fault
    span: Span | None
    dims: tuple[str, ...]

    @property
    def stops(self) -> bool:
        """True if XLA may not get to a result."""
        return self.fault.ends_process or self.fault.may_fail

    @property
    def note(self) -> str:
        """A sentence for `verify`."""
        return f"plan.apply was not run: {self}" if self.stops else f"plan.apply has a known fault: {self}"

    @property
    def place(self) -> str:
        return f"{self.span.file}:{self.span.line}" if self.span else "the function"

    def __str__(self) -> str:
        return f"{self.place}: {self.fault.what} (split: {', '.join(self.dims)}); take `plan.step`, which is right"


def met_faults(imported: Imported, rules: Mapping[str, Axes], mesh: Mesh) -> tuple[MetFault, ...]:
    """Return the faults that `plan.apply` meets under some rules on a mesh, each once for a line."""
    placed = PlacedSteps(imported, rules, mesh)
    found: dict[tuple[str, str], MetFault] = {}
    for step in placed.steps:
        for fault in (each for each in FAULTS if step.primitive in each.primitives):
            dims = tuple(dict.fromkeys(dim.name for dim in fault.meets(step, placed)))
            if dims:
                met = MetFault(fault, step.span, dims)
                found.setdefault((fault.name, met.place), met)
    return tuple(found.values())


def warn_of(faults: Sequence[MetFault]) -> None:
    """Warn of faults. Raise `UsageError` for one that ends the process."""
    for each in faults:
        if each.fault.ends_process:
            raise UsageError(str(each))
        warnings.warn(str(each), stacklevel=4)


def _split_dims(x: Operand, axis: int, placed: PlacedSteps) -> list[Dim]:
    """Return the split dimensions of an axis of an array, if mesh axes split the array's axis."""
    if not isinstance(x, Var) or not placed.splits(x)[axis]:
        return []
    return [dim for dim in placed.dims(x)[axis] if placed.rules.get(dim.name)]


# Starts out of range


def _is_in_range(start: Operand, most: int) -> bool:
    return isinstance(start, Number) and 0 <= start.value <= most


def _slice_start(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield dimensions of a slice that is split along an axis with a start that may be out of range."""
    whole, *starts = step.operands
    (result,) = step.results
    for axis, (size, most, start) in enumerate(zip(result.shape, whole.shape, starts, strict=True)):
        if size < most and not _is_in_range(start, most - size):
            yield from _split_dims(result, axis, placed)


def _update_start(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield split dimensions of an updated array whose start may be out of range.

    XLA gathers the array for an update of two or more elements at a start that is data, and so does no wrong.
    """
    whole, update, *starts = step.operands
    for axis, (size, most, start) in enumerate(zip(update.shape, whole.shape, starts, strict=True)):
        is_partitioned = size == 1 or isinstance(start, Number)
        if size < most and is_partitioned and not _is_in_range(start, most - size):
            yield from _split_dims(whole, axis, placed)


# NaN


def _nan_of_reduction(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield split dimensions that a maximum is taken over, if its NaN reaches a result."""
    (x,) = step.operands
    if x.dtype in FLOATS and not _is_of_softmax(step, placed):
        for axis in step.params["axes"]:
            yield from _split_dims(x, axis, placed)


def _nan_of_scatter(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield split dimensions of updates that go to one place."""
    updates = step.operands[2]
    windows = step.params["dimension_numbers"].update_window_dims
    if updates.dtype in FLOATS:
        for axis in range(len(updates.shape)):
            if axis not in windows:
                yield from _split_dims(updates, axis, placed)


SHIFTING = frozenset({
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "stop_gradient", "select_n", "is_finite", "max", "copy",
    "convert_element_type", "transpose", "optimization_barrier",
})  # fmt: skip
"""Primitives between a maximum and the subtraction of a softmax."""

SCALING = frozenset({"sub", "mul", "div", "convert_element_type", "select_n", "copy"})


def _reached(start: Var, through: frozenset[str], placed: PlacedSteps) -> list[AppliedPrimitive]:
    """Return the first equations of other primitives that an array reaches through some primitives."""
    found, seen, todo = [], {start}, [start]
    while todo:
        for step in placed.readers.get(todo.pop(), ()):
            if step.primitive not in through:
                found.append(step)
                continue
            todo += [var for var in step.results if var not in seen]
            seen.update(step.results)
    return found


def _is_of_softmax(step: AppliedPrimitive, placed: PlacedSteps) -> bool:
    """Return True for a maximum that only shifts a softmax or a logsumexp: a NaN is in the sum of exponentials, too."""
    users = _reached(step.results[0], SHIFTING, placed)
    if not users or any(user.primitive not in ("sub", "add") for user in users):
        return False
    shifted = [user for user in users if user.primitive == "sub"]
    return bool(shifted) and all(
        any(
            total.primitive == "reduce_sum"
            for exp in _reached(user.results[0], SCALING, placed)
            if exp.primitive == "exp"
            for total in _reached(exp.results[0], SCALING, placed)
        )
        for user in shifted
    )


# A row of an array that is on every device


def _row_of_whole(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield split dimensions into which a scatter writes at one place, if XLA has the whole array on every device before."""
    x, indices, _ = step.operands
    (result,) = step.results
    if prod(indices.shape[:-1]) != 1:
        return
    for axis in step.params["dimension_numbers"].scatter_dims_to_operand_dims:
        if _is_whole(x, axis, result.shape[axis], placed):
            yield from _split_dims(result, axis, placed)


def _is_whole(x: Operand, axis: int, size: int, placed: PlacedSteps) -> bool:
    """Return True for an array that XLA computes whole on every device, and then splits."""
    step = placed.maker.get(x) if isinstance(x, Var) else None
    while step is not None and step.primitive in ("reshape", "transpose", "copy", "squeeze", "expand_dims"):
        x = step.operands[0]
        step = placed.maker.get(x) if isinstance(x, Var) else None
    if step is None:
        return x in placed.constants
    if step.primitive == "sort":
        return step.results[0] in placed.opaque
    return any(1 < window < whole for window, whole in _windows(step, placed))


def _windows(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[tuple[int, int]]:
    """Yield the size of an update and of the array along each split axis that an equation writes a part of."""
    if step.primitive == "dynamic_update_slice":
        sizes = dict(enumerate(step.operands[1].shape))
    elif step.primitive.startswith("scatter") and len(step.operands) == 3:
        numbers, rank = step.params["dimension_numbers"], len(step.operands[0].shape)
        left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        axes = [axis for axis in range(rank) if axis not in left_out]
        windows = [step.operands[2].shape[axis] for axis in numbers.update_window_dims]
        sizes = dict(zip(axes, windows, strict=True))
    else:
        return
    for axis, size in sizes.items():
        if _split_dims(step.results[0], axis, placed):
            yield size, step.results[0].shape[axis]


# Fourier transforms


def _fft_axes(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[tuple[int, list[Dim]]]:
    """Yield the split axes but the first that are transformed, with their dimensions."""
    x = step.operands[0]
    rank = len(x.shape)
    for axis in range(max(1, rank - len(step.params["fft_lengths"])), rank):
        if dims := _split_dims(x, axis, placed):
            yield axis, dims


def _is_complex(step: AppliedPrimitive) -> bool:
    kind = step.params["fft_type"]
    return getattr(kind, "name", str(kind)) in ("FFT", "IFFT")


def _parts(step: AppliedPrimitive, axis: int, placed: PlacedSteps) -> tuple[int, int] | None:
    """Return devices and elements of each, for an axis whose transform XLA distributes; None for other axes."""
    x = step.operands[0]
    if not _is_complex(step) or len(x.shape) < 3 or axis != len(x.shape) - 1:
        return None
    devices = placed.mesh.size(placed.splits(x)[axis])
    return (devices, x.shape[axis] // devices) if devices == placed.mesh.devices else None


def _ending_fft(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield the last dimension of a transform whose parts are too small for XLA to pad them from neighbors."""
    for axis, dims in _fft_axes(step, placed):
        parts = _parts(step, axis, placed)
        if parts and 2 * parts[1] <= parts[0]:
            yield from dims


def _refused_fft(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield the dimensions of a transform of several axes that XLA gathers into an order that its kernel may refuse."""
    if len(step.params["fft_lengths"]) == 1 or not _is_complex(step):
        return
    for axis, dims in _fft_axes(step, placed):
        if _parts(step, axis, placed) is None:
            yield from dims


# Windows and convolutions


def _pairs_of_windows(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield split dimensions of windows over pairs whose result is not split."""
    if len(step.operands) < 4 and step.primitive == "reduce_window":
        return
    x, (result, *_) = step.operands[0], step.results
    for axis, size in enumerate(step.params["window_dimensions"]):
        if size > 1 and not placed.splits(result)[axis]:
            yield from _split_dims(x, axis, placed)


def _ending_convolution(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield split dimensions of a convolution with groups of batches whose result's batch is split."""
    if step.params["batch_group_count"] == 1:
        return
    (result,) = step.results
    batch, feature, *_ = step.params["dimension_numbers"].out_spec
    yield from _split_dims(result, batch, placed)
    features = [dim for dim in placed.dims(result)[feature] if placed.rules.get(dim.name)]
    if len(features) > 1:
        yield from features


def _gradient_of_filters(step: AppliedPrimitive, placed: PlacedSteps) -> Iterator[Dim]:
    """Yield the dimensions that a convolution with groups of batches sums over, if they have not all axes of the mesh."""
    groups = step.params["batch_group_count"]
    if groups == 1:
        return
    (x, filters), (result,) = step.operands, step.results
    numbers = step.params["dimension_numbers"]
    others = {axis for each in (x, filters, result) for axes in placed.splits(each) for axis in axes}
    summed = {*placed.splits(x)[numbers.lhs_spec[1]]}
    is_depthwise = result.shape[numbers.out_spec[1]] == groups
    used = others if is_depthwise else summed
    if placed.mesh.size(tuple(used)) < placed.mesh.devices:
        yield from _split_dims(x, numbers.lhs_spec[1], placed)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "start of a slice",
        "XLA clamps the start of a split `dynamic_slice` in each part, so a start out of range gives other elements",
        _slice_start,
        ("dynamic_slice",),
        "openxla/xla#49122",
    ),
    Fault(
        "start of an update",
        "XLA drops a `dynamic_update_slice` of a split array whose start is out of range, in place of clamping it",
        _update_start,
        ("dynamic_update_slice",),
        "openxla/xla#49118",
    ),
    Fault(
        "NaN in a maximum",
        "the all-reduce of a maximum or minimum on CPU devices loses NaN",
        _nan_of_reduction,
        ("reduce_max", "reduce_min"),
    ),
    Fault(
        "NaN in the maximum of updates",
        "the all-reduce of a scattered maximum or minimum on CPU devices loses NaN",
        _nan_of_scatter,
        ("scatter_max", "scatter_min", "scatter-max", "scatter-min"),
    ),
    Fault(
        "row of a whole array",
        "XLA has the array whole on every device before this update of one row, and writes a wrong row into each other part",
        _row_of_whole,
        ("scatter", "scatter-add", "scatter_add", "scatter_mul", "scatter-mul"),
        "jax-ml/jax#18434, jax-ml/jax#40849",
    ),
    Fault(
        "FFT over small parts",
        "XLA ends the process at a Fourier transform of a split axis",
        _ending_fft,
        ("fft",),
        "openxla/xla#45402, jax-ml/jax#16909",
        ends_process=True,
    ),
    Fault(
        "FFT of a gathered axis",
        "XLA for CPU devices may refuse a Fourier transform of several axes, one of them split",
        _refused_fft,
        ("fft",),
        may_fail=True,
    ),
    Fault(
        "windows over pairs",
        "XLA ends the process at windows over several arrays along a split axis",
        _pairs_of_windows,
        ("reduce_window", "select_and_gather_add"),
        ends_process=True,
    ),
    Fault(
        "gradient of grouped filters",
        "XLA computes the gradient of a grouped convolution's filters wrongly if the batch is split over some axes of the mesh",
        _gradient_of_filters,
        ("conv_general_dilated",),
        seen="0.10.2, 0.11.2, 0.12.0",
    ),
    Fault(
        "split groups of batches",
        "XLA ends the process at a convolution with groups of batches whose batch is split",
        _ending_convolution,
        ("conv_general_dilated",),
        ends_process=True,
    ),
)
