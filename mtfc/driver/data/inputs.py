"""Batches of inputs, read from a file or drawn from a seed, and parameters from a file, which fit the types of a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span, did_you_mean, failure, nearest
from mtfc.compiler.ir.core import Equation, Function, Parameter, Program
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.training import average_of
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.driver.data.array_files import (
    Array,
    Arrays,
    StoredArray,
    local_parameters,
    newest_checkpoint,
    stored_arrays,
    unread,
    whole,
)
from mtfc.driver.data.files import is_remote, local_copy
from mtfc.driver.errors import UsageError, say
from mtfc.reports.source_lines import listed


@attrs.frozen
class LazyArrays(Mapping[str, Array]):
    """Arrays that are read from a file each time they are asked for, so that they are not in memory together."""

    readers: Mapping[str, Callable[[], Array]] = attrs.field(factory=dict)

    def __getitem__(self, name: str) -> Array:
        return self.readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)


def shape_text(type: TensorType) -> str:
    """Return `f32[batch: 64, io: 128]`."""
    return f"{type.dtype}[{', '.join(f'{dim.name}: {dim.size}' for dim in type.dims)}]"


class Fitting:
    """The arrays of one file, and diagnostics about arrays that do not fit their types."""

    def __init__(self, path: str, arrays: Mapping[str, StoredArray] | None = None) -> None:
        """Check `arrays`, or those that the file at `path` holds. Raises `CompileError` (E501)."""
        self.path = path
        self.arrays = stored_arrays(path) if arrays is None else arrays
        self.diagnostics = Diagnostics()

    def error(self, code: str, message: str, span: Span | None = None, help: str | None = None) -> None:
        """Add a diagnostic about the file. span: another place, if there is one."""
        self.diagnostics.add(code, message, span or whole(self.path), help=help)

    def missing(
        self,
        what: str,
        name: str,
        span: Span | None,
        taken: Container[str] = (),
        otherwise: str | None = None,
    ) -> None:
        """Report a missing array. The help suggests a similar name that is not `taken`, or else `otherwise`."""
        near = nearest(name, [each for each in self.arrays if each not in taken])
        help = f"did you mean its array `{near}`?" if near else otherwise or f"it has {listed(self.arrays)}"
        self.error("E502", f"{self.path} has no array for {what} `{name}`", span, help)

    def misshaped(
        self, what: str, name: str, type: TensorType, span: Span | None, help: str | None = None
    ) -> None:
        """Report (E503) an array of another shape than its type."""
        shape = list(self.arrays[name].shape)
        self.error(
            "E503",
            f"{what} `{name}` is {shape_text(type)}, and its array in {self.path} has shape {shape}",
            span,
            help,
        )

    def accepts(self, what: str, name: str, type: TensorType, span: Span | None) -> bool:
        """Report (E504) numbers of another kind than the type's; return True if there is nothing to report."""
        dtype = self.arrays[name].dtype
        accepted = "fiu" if type.dtype in FLOATS else "b" if type.dtype == "bool" else "iu"
        if kind_of(dtype) in accepted:
            return True
        self.error("E504", f"{what} `{name}` is {type.dtype}, and its array in {self.path} is {dtype}", span)
        return False

    def takes(
        self,
        input: DataInput,
        fits: Callable[[DataInput, tuple[int, ...]], bool],
        help: str | None = None,
    ) -> bool:
        """Report (E502 to E504) an input whose array is missing, or does not fit; return True if there is nothing to report."""
        if input.name not in self.arrays:
            self.missing("input", input.name, input.span)
        elif not fits(input, self.arrays[input.name].shape):
            self.misshaped("input", input.name, input.type, input.span, help)
        else:
            return self.accepts("input", input.name, input.type, input.span)
        return False


def kind_of(dtype: str) -> str:
    """Return `f`, `i`, `u` or `b` for floats, integers, integers without sign and truth values, else `?`."""
    kinds = {"float": "f", "bfloat": "f", "int": "i", "uint": "u", "bool": "b"}
    return kinds.get(re.split(r"\d", dtype)[0], "?")


def as_type(array: Array, type: TensorType) -> Array:
    """Return numbers of a fitting kind in the dtype of a type."""
    import numpy as np

    with np.errstate(over="ignore"):
        return array.astype(numpy_dtype(np, type.dtype), copy=False)


# Inputs


@attrs.frozen
class DataInput:
    """An input of the model. bound: the size of the smallest dimension that its numbers are indices into, if there is one."""

    name: str
    type: TensorType
    span: Span | None
    bound: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the global batch."""
        return tuple(dim.size for dim in self.type.dims)

    @property
    def rows(self) -> int:
        """Number of rows in the global batch; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    def converted(self, array: Array, place: Callable[[int], str]) -> Array:
        """Return an array in the dtype of the input. Raises `CompileError` (E504) for integers that the input cannot take.

        place: names the row with a given position in the array, for the message.
        """
        import numpy as np

        if self.type.dtype not in FLOATS and array.dtype.kind in "iu" and array.size:
            self._check_range(array, place)
        with np.errstate(over="ignore"):
            return np.asarray(array, numpy_dtype(np, self.type.dtype), order="C")

    def _check_range(self, array: Array, place: Callable[[int], str]) -> None:
        """Raise `CompileError` if an integer is out of range. Dtypes whose integers are all in range cost nothing."""
        import numpy as np

        limits, held = np.iinfo(numpy_dtype(np, self.type.dtype)), np.iinfo(array.dtype)
        least, most = (limits.min, limits.max) if self.bound is None else (0, self.bound - 1)
        if (held.min >= least or array.min() >= least) and (held.max <= most or array.max() <= most):
            return
        outside = (array < least) | (array > most)
        row = int(np.argwhere(outside)[0][0]) if array.ndim else 0
        takes = f"takes numbers from {least} to {most}"
        found = f"{place(row)} has {array[outside].flat[0]}"
        raise failure("E504", f"input `{self.name}` {takes}, and {found}", self.span or whole(self.name))


def data_inputs(function: Function) -> tuple[DataInput, ...]:
    """Return the inputs of a function, each as the whole array has it, in the order of the file."""
    return tuple(
        DataInput(
            each.value.name, each.value.type.unsplit(), each.span, index_bound(each.value.name, function.body)
        )
        for each in function.arguments
        if each.role == "input"
    )


# Batches

Refusal = Callable[[Dim, Sequence[str]], str | None]
"""Returns the reason why a dimension cannot have that size in these inputs, or None: see `selection.Resizing.refusal`."""


@attrs.frozen
class Batches:
    """`count` batches of inputs, kept as whole arrays.

    An input in `several` has its own part in each batch; any other input has the same array in all batches. `rest` is the
    number of rows of the last batch if the last batch is smaller, else 0.
    """

    types: Mapping[str, TensorType]
    arrays: Arrays
    count: int
    several: frozenset[str] = frozenset()
    rest: int = 0

    def __getitem__(self, number: int) -> dict[str, Array]:
        """Batch `number` from 0; after the last one comes the first."""
        return {name: self._part(name, type, number % self.count) for name, type in self.types.items()}

    def smaller(self, number: int) -> Dim | None:
        """Return the first dimension at the size of batch `number`, if that batch is smaller than the others."""
        return self._rest if self.rest and number % self.count == self.count - 1 else None

    @property
    def _rest(self) -> Dim:
        return attrs.evolve(next(self.types[name].dims[0] for name in self.several), size=self.rest)

    @property
    def dims(self) -> frozenset[str]:
        """The dimensions whose positions are the rows of all batches."""
        return frozenset(self.types[name].names[0] for name in self.several)

    @property
    def size(self) -> int:
        """Number of rows of every batch but a smaller last one."""
        return min((self.types[name].dims[0].size for name in self.several), default=1)

    def rows(self, number: int) -> int:
        """Return the number of rows of batch `number`."""
        return self.rest if self.smaller(number) else self.size

    def whole(self) -> Batches:
        """The batches without a smaller last one."""
        return attrs.evolve(self, count=self.count - 1, rest=0) if self.rest else self

    def step(self, number: int, accumulate: int) -> dict[str, Array]:
        """Return the data of training step `number`: one batch, or `accumulate` consecutive batches, stacked."""
        return stacked([self[number * accumulate + i] for i in range(accumulate)])

    def _part(self, name: str, type: TensorType, number: int) -> Array:
        """Return the array of an input in batch `number`: its own part, or the whole array that all batches share."""
        array = self.arrays[name]
        if name not in self.several:
            return array
        size = type.dims[0].size
        return array[number * size : (number + 1) * size]


def stacked(parts: Sequence[Arrays]) -> dict[str, Array]:
    """Return the data of a step: those of its only micro-batch, or the arrays of several ones, stacked."""
    import numpy as np

    if len(parts) == 1:
        return dict(parts[0])
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def joined_axis(type: TensorType, dims: Collection[str]) -> int:
    """Return the axis along which an output of all batches is joined: that of one of the batches' `dims`, or else the first."""
    return next((i for i, name in enumerate(type.names) if name in dims), 0)


def input_types(function: Function) -> dict[str, TensorType]:
    """Return the type of each input as the whole array has it."""
    return {each.name: each.type for each in data_inputs(function)}


def read_batches(path: str, function: Function, refusal: Refusal | None = None) -> Batches:
    """Read the inputs of `function` from a file. Raises `CompileError` (E501 to E504, E506).

    A last batch with fewer rows is taken unless there is a `refusal`. A remote file is copied first.
    """
    fitting = Fitting(str(local_copy(path)) if is_remote(path) else path)
    inputs, arrays, fits = data_inputs(function), {}, {}
    for each in inputs:
        help = MULTIPLE if each.shape else None
        if fitting.takes(each, lambda input, shape: any(_fit(shape, input.shape)), help):
            array, unbounded = fitting.arrays[each.name], attrs.evolve(each, bound=None)
            fits[each.name] = _fit(array.shape, each.shape)
            arrays[each.name] = unbounded.converted(array.read(), lambda _: f"its array in {fitting.path}")
    several = {name: fit for name, fit in fits.items() if fit != ONE}
    if len(set(several.values())) > 1:
        numbers = ", ".join(f"{_number(fit)} of `{name}`" for name, fit in several.items())
        fitting.error("E506", f"the inputs have different numbers of batches: {numbers}")
    elif not fitting.diagnostics.errors:
        _check_rest(several, inputs, refusal, fitting)
    fitting.diagnostics.raise_if_errors()
    full, rest = max(several.values(), default=ONE)
    types = {each.name: each.type for each in inputs}
    return Batches(types, arrays, full + bool(rest), frozenset(several), rest)


MULTIPLE = "its first dimension may be a multiple, for several batches"

Fit = tuple[int, int]
"""Number of full batches, and number of rows left."""

ONE: Fit = (1, 0)


def _fit(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Fit:
    """Return the number of full batches in an array of a shape, and the rows left; (0, 0) if the shape does not fit."""
    if shape == wanted:
        return ONE
    if not wanted or len(shape) != len(wanted) or shape[1:] != wanted[1:]:
        return 0, 0
    return divmod(shape[0], wanted[0])


def _number(fit: Fit) -> str:
    full, rest = fit
    return f"{full} and {rest} row{'s'[: rest - 1]}" if rest else str(full)


def _check_rest(
    several: Mapping[str, Fit], inputs: Iterable[DataInput], refusal: Refusal | None, fitting: Fitting
) -> None:
    """Report (E503) the inputs with a smaller last batch that the model cannot take."""
    for each in inputs:
        rest = several.get(each.name, ONE)[1]
        if not rest:
            continue
        reason = refusal(attrs.evolve(each.type.dims[0], size=rest), tuple(several)) if refusal else ""
        if reason is not None:
            why = f"; a last batch with fewer rows cannot be: {reason}" if reason else ""
            fitting.misshaped("input", each.name, each.type, each.span, MULTIPLE + why)


def draw_batch(
    function: Function, seed: int, number: int = 1, change: Callable[[Any], Any] = lambda x: x
) -> Batches:
    """Draw batches from a seed: standard normal numbers, indices in range, truth values. All batches share the scalars.

    change: makes floats of another kind. The first batch is the same for any number of batches.
    """
    import numpy as np

    types = input_types(function)
    several = frozenset(name for name, type in types.items() if type.dims and number > 1)

    def drawn(name: str, type: TensorType) -> Array:
        """Return the numbers of an input; those of several micro-batches one after the other."""
        entropy, bound = [seed, crc32(name.encode())], index_bound(name, function.body) or 2
        others = range(1, number) if name in several else ()
        first, *rest = (
            _drawn(each, type, bound, change) for each in (entropy, *([*entropy, i] for i in others))
        )
        return np.concatenate([first, *rest]) if rest else first

    return Batches(types, {name: drawn(name, type) for name, type in types.items()}, number, several)


def _drawn(entropy: list[int], type: TensorType, bound: int, change: Callable[[Any], Any]) -> Array:
    """Return a drawn array of a type: normal numbers passed through `change`, or integers below `bound`."""
    import numpy as np

    generator = np.random.default_rng(entropy)
    shape = tuple(dim.size for dim in type.dims)
    is_float = type.dtype in FLOATS
    numbers = change(generator.standard_normal(shape)) if is_float else generator.integers(0, bound, shape)
    return np.asarray(numbers).astype(numpy_dtype(np, type.dtype))


def index_bound(name: str, body: Iterable[Equation]) -> int | None:
    """Return the size of the smallest dimension that an input indexes; None if the input indexes no dimension."""
    uses = (
        eqn.attrs["dim"]
        for eqn in body
        if has_trait(eqn, "indexes") and any(v.name == name for v in eqn.operands)
    )
    return min((dim.size for dim in uses if isinstance(dim, Dim)), default=None)


def given_parameters(
    path: str | None, partial: bool, seed: int, program: Program, averages: bool = False
) -> LazyArrays:
    """Return the parameters of a file, or none without a file; print the names of parameters that the file lacks.

    Each is read when it is asked for. partial: the file may lack parameters, which are drawn from the seed. averages: take the
    averages of parameters that the file has averages of. Raises `UsageError`, and the errors of `stored_parameters`.
    """
    if path is None:
        if averages:
            raise UsageError("--averages goes with --params: it takes averages from that file")
        if partial:
            raise UsageError("--params-partial goes with --params: without a file all parameters are drawn")
        return LazyArrays()
    stored = stored_parameters(local_parameters(path), program, partial, averages)
    missing = [parameter.name for parameter in program.parameters if parameter.name not in stored]
    if missing:
        number = f"{len(missing)} of {len(program.parameters)} parameters"
        say(f"{path} lacks {number}, drawn from seed {seed}: {', '.join(missing)}")
    return LazyArrays(
        {p.name: _reader(stored[p.name], p.type) for p in program.parameters if p.name in stored}
    )


def _reader(array: StoredArray, type: TensorType) -> Callable[[], Array]:
    return lambda: as_type(array.read(), type)


def stored_parameters(
    path: str, program: Program, partial: bool = False, averages: bool = False
) -> dict[str, StoredArray]:
    """Return the arrays of all parameters by full name, or of some if `partial`, in the dtypes of the file.

    averages: take the averages of parameters that the file has averages of. Raises `CompileError` (E501 to E505), `UsageError`
    for a file without averages, and `Unavailable`. A file of `--save` also holds the losses as `loss`, which is ignored unless
    a parameter is called `loss`, and perhaps averages. A checkpoint may belong to another model of the file: with `partial` its
    other parameters are left out, and named.
    """
    may_have_unknown = partial and newest_checkpoint(Path(path)) is not None
    declared = {parameter.name: parameter for parameter in program.parameters}
    fitting = Fitting(path, _of_parameters(path, declared, averages))
    unknown_names = unread(fitting.arrays, declared)
    renamed = _other_prefix(fitting, declared, unknown_names)
    for name, array in fitting.arrays.items():
        if name not in declared:
            continue
        type, span = declared[name].type, declared[name].span
        if array.shape != tuple(dim.size for dim in type.dims):
            fitting.misshaped("parameter", name, type, span)
        else:
            fitting.accepts("parameter", name, type, span)
    for name in unknown_names if not may_have_unknown else ():
        if name not in renamed.values():
            _unknown(name, declared, fitting)
    if unknown_names and may_have_unknown:
        say(f"{path}: parameters of another model are left out: {', '.join(unknown_names)}")
    for name in declared:
        if name not in fitting.arrays and not partial and name not in renamed:
            fitting.missing("parameter", name, declared[name].span, taken=declared, otherwise=PARTIAL)
    if renamed and not (partial and declared.keys() & fitting.arrays.keys()):
        _report_prefix(renamed, declared, fitting)
    fitting.diagnostics.raise_if_errors()
    return {name: fitting.arrays[name] for name in declared if name in fitting.arrays}


MOST_STARTS = 8
"""Missing parameters whose names are compared with those of the file, for another prefix."""


def _other_prefix(
    fitting: Fitting, declared: Mapping[str, Parameter], others: Iterable[str]
) -> dict[str, str]:
    """Return parameter -> its name in the file, for parameters that the file has under another prefix.

    The prefix is the one that most parameters share, and at least two. others: the names in the file that no parameter has.
    """
    shapes = {name: fitting.arrays[name].shape for name in others}
    missing = {
        name: tuple(dim.size for dim in each.type.dims)
        for name, each in declared.items()
        if name not in fitting.arrays
    }
    most_renamed: dict[str, str] = {}
    starts = [*missing][:MOST_STARTS]
    for wanted, found in dict.fromkeys(_heads(name, other) for name in starts for other in shapes):
        names = {name: f"{found}{name.removeprefix(wanted)}" for name in missing if name.startswith(wanted)}
        renamed = {name: other for name, other in names.items() if shapes.get(other) == missing[name]}
        if len(renamed) > max(1, len(most_renamed)):
            most_renamed = renamed
    return most_renamed


def _report_prefix(moved: Mapping[str, str], declared: Mapping[str, Parameter], fitting: Fitting) -> None:
    """Report (E502) that a file has parameters by another prefix, at the call that gives the prefix."""
    name, other = next(iter(moved.items()))
    wanted, found = _heads(name, other)
    span = declared[name].span
    for _ in range(1 + name.removeprefix(wanted).count(".")):
        span = span.call if span is not None and span.call is not None else span
    old, new = (f"under `{head[:-1]}`" if head else "outside of functions" for head in (wanted, found))
    message = f"{fitting.path} has {len(moved)} parameters {new}, and the model has them {old}"
    help = f"end this call with `as {found[:-1].rpartition('.')[2]}`" if wanted and found else None
    fitting.error("E502", message, span, help)


def _heads(name: str, other: str) -> tuple[str, str]:
    """Return the beginnings of two names, before the components that both have at their ends. Each ends with a dot."""
    left, right = name.split("."), other.split(".")
    while left and right and left[-1] == right[-1]:
        del left[-1], right[-1]
    return "".join(f"{each}." for each in left), "".join(f"{each}." for each in right)


def _of_parameters(path: str, declared: Collection[str], averages: bool) -> dict[str, StoredArray]:
    """Return the arrays of a file without averages; if `averages`, the averages under the names of their parameters."""
    arrays = stored_arrays(path)
    names = {average_of(name): name for name in declared if average_of(name) not in declared}
    found = {names[name]: array for name, array in arrays.items() if name in names}
    if averages and not found:
        raise UsageError(
            f"{path} has no averages of parameters: `average = 0.999` in a `train` block makes some"
        )
    kept = {name: array for name, array in arrays.items() if name not in names}
    return {**kept, **found} if averages else kept


PARTIAL = "`--params-partial` draws what the file lacks from --seed"


def _unknown(name: str, declared: Iterable[str], fitting: Fitting) -> None:
    """Report (E505) an array that is no parameter. The losses of a file of `--save` are none either, and count as known."""
    if name != "loss":
        help = did_you_mean(name, declared, f"the model has {listed(declared)}")
        if newest_checkpoint(Path(fitting.path)) is not None:
            help = f"{help}; for a model with fewer parameters, `--params-partial` leaves the others out"
        fitting.error(
            "E505", f"{fitting.path} has an array `{name}`, which is no parameter", whole(fitting.path), help
        )
