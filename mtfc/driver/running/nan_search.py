"""Find the equation that makes the first number that is not finite in a training step.

The reference interpreter runs the step again and looks at every result. An infinite number or NaN that reaches the loss, or else
a new parameter, is followed back to the equation that made it from finite operands. Numbers that the program discards on the way
are not the cause, such as the logarithm of 0 where `where` chooses the other branch. An infinite number that the program itself
writes, such as a mask of minus infinity, is not the cause either, unless it reaches the loss unchanged.

The undistributed program runs first. If its results are finite, the program under its layout runs, which rounds in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from mtfc.compiler.diagnostics import Diagnostic, Label
from mtfc.compiler.ir.core import Argument, Equation, Function, Program, Value, source_file
from mtfc.compiler.ir.loops import dim_of
from mtfc.compiler.ir.types import FLOATS
from mtfc.compiler.passes.pipelines import differentiation
from mtfc.compiler.passes.pipelines import run as run_passes
from mtfc.driver.data.array_files import Arrays
from mtfc.driver.loading.selection import Case, LayoutOnMesh
from mtfc.driver.running.execution import without_warnings

if TYPE_CHECKING:
    from mtfc.backends.interpreter import Shards

Kind = Literal["NaN", "infinite"]
Counts = tuple[Kind, int, int]

CODE = "E701"
STAGES = {"forward": "forward pass", "backward": "backward pass", "update": "update"}
HALF = "f16 holds numbers up to 65504: compute in bf16, or in f32 where numbers grow, with `cast(x, f32)`"
SHOWN = 4
"""Most operands that a help shows."""


@attrs.frozen
class StepInputs:
    """The arguments of a training step: global arrays by name, and the number of the step, counted from 0.

    batch: the inputs, stacked if the step takes several micro-batches.
    """

    parameters: Arrays
    state: Arrays
    batch: Arrays
    number: int


@attrs.frozen(eq=False)
class BadNumbers:
    """Numbers that are not finite, where they come into being.

    source: the equation that made them, or the argument that held them before the step. bad, size: number of such elements, and
    of all elements, on all processors. operands: ranges of the equation's operands, or the argument's first place. iterations:
    dimension and index of each loop around the equation, the outer one first. cause: infinite numbers in the operands from which
    the equation made NaN.
    """

    source: Equation | Argument
    kind: Kind
    bad: int
    size: int
    operands: tuple[str, ...] = ()
    iterations: tuple[tuple[str, int], ...] = ()
    cause: BadNumbers | None = None

    @property
    def is_written(self) -> bool:
        """True for numbers that the program creates without operands, such as a constant."""
        return isinstance(self.source, Equation) and not self.source.operands

    def root(self) -> BadNumbers:
        """Return the first numbers in the chain of causes, except those that the program writes."""
        cause = self.cause
        return self if cause is None or cause.is_written else cause.root()


def cause_in_step(
    program: Program, case: Case, inputs: StepInputs, tell: Callable[[str], None]
) -> Diagnostic | None:
    """Return what `find_not_finite` finds in a step under a case; tell if it finds nothing."""
    cause = find_not_finite(program, inputs, case.lower(program) if isinstance(case, LayoutOnMesh) else None)
    if cause is None:
        tell(f"step {inputs.number + 1} gives finite numbers when it is repeated on the interpreter")
    return cause


def find_not_finite(program: Program, inputs: StepInputs, placed: Program | None = None) -> Diagnostic | None:
    """Return a diagnostic with the place in the source where a training step makes the first number that is not finite.

    program: the model before any pass. placed: the same program under a layout, lowered. Returns None if all results of both are
    finite: then the step cannot be repeated on the interpreter.
    """
    for each in (run_passes(program, differentiation()), placed):
        if each is not None and (found := _search(each, inputs)) is not None:
            return _diagnostic(found.root(), program, inputs.number)
    return None


def _search(program: Program, inputs: StepInputs) -> BadNumbers | None:
    """Return what reaches the loss, or else another result of the step."""
    from mtfc.backends.interpreter import interpret

    step = program.function("step")
    numbers = {a.value.name: inputs.number for a in step.arguments if a.role == "step"}
    arrays = {**inputs.parameters, **inputs.state, **inputs.batch, **numbers}
    origins = Origins.of(step, arrays)
    with without_warnings():
        interpret(step, program, arrays, origins)
    found = (origins.known.get(output.value) for output in step.outputs)
    return next((each for each in found if each is not None), None)


class Origins:
    """An observer of the interpreter that follows numbers which are not finite.

    known: value -> the origin of its numbers, for values that have such numbers. path: the loops that run, with their indices.
    """

    def __init__(self) -> None:
        self.known: dict[Value, BadNumbers] = {}
        self.path: list[tuple[Equation, int]] = []

    @classmethod
    def of(cls, function: Function, arrays: Mapping[str, Any]) -> Origins:
        """Start with the arguments of a function."""
        origins = cls()
        for argument in function.arguments:
            array = arrays[argument.value.name]
            counts = _counted([array], argument.value)
            if counts is not None:
                place = (_first_place(np.asarray(array), argument.value),)
                origins.known[argument.value] = BadNumbers(argument, *counts, place)
        return origins

    def computed(self, eqn: Equation, operands: Sequence[Shards], results: Sequence[Shards]) -> None:
        """Note which results of an equation have numbers that are not finite, and where these come from."""
        for value, result in zip(eqn.results, results, strict=True):
            self.known.pop(value, None)
            counts = _counted(result.arrays, value)
            if counts is not None:
                self.known[value] = self._origin(eqn, counts, operands)

    def _origin(self, eqn: Equation, counts: Counts, operands: Sequence[Shards]) -> BadNumbers:
        """Return the origin of an operand's numbers if the result has the same kind of numbers, else a new one."""
        found = {v: _counted(s.arrays, v) for v, s in zip(eqn.operands, operands, strict=True)}
        bad = [self.known[value] for value in found if found[value] and value in self.known]
        same = [each for each in bad if each.kind == counts[0]]
        if same or (bad and counts[0] == "infinite"):
            return (same or bad)[0]
        ranges = tuple(
            _range(v, s) for v, s in zip(eqn.operands, operands, strict=True) if v.type.dtype in FLOATS
        )
        iterations = tuple((dim_of(loop).name, index) for loop, index in self.path)
        cause = bad[0] if bad else None
        return BadNumbers(eqn, *counts, ranges, iterations, cause)

    def iterates(self, eqn: Equation, index: int) -> None:
        """Note that a loop begins the iteration `index`. A loop that begins anew forgets the results that it had before."""
        if self.path and self.path[-1][0] is eqn:
            self.path[-1] = (eqn, index)
            return
        self.path.append((eqn, index))
        for value in eqn.results:
            self.known.pop(value, None)

    def ended(self, eqn: Equation) -> None:
        self.path.pop()

    def entered(self, source: Value, argument: Value) -> None:
        """Note that an argument of a loop's region has the numbers of a value around the loop."""
        self.known.pop(argument, None)
        if source in self.known:
            self.known[argument] = self.known[source]

    def left(self, source: Value, result: Value) -> None:
        if source in self.known:
            self.known.setdefault(result, self.known[source])


def _counted(arrays: Iterable[Any], value: Value) -> Counts | None:
    """Return the kind and the number of the elements that are not finite, and the number of all; None if all are finite."""
    if value.type.dtype not in FLOATS:
        return None
    parts = [np.asarray(array) for array in arrays]
    wrong = [part for part in parts if not np.isfinite(part).all()]
    if not wrong:
        return None
    nan, infinite = (sum(int(test(part).sum()) for part in wrong) for test in (np.isnan, np.isinf))
    return ("NaN" if nan else "infinite"), nan or infinite, sum(part.size for part in parts)


def _first_place(array: Any, value: Value) -> str:
    """Return the place of the first number that is not finite; the first axis may be that of micro-batches."""
    index = np.argwhere(~np.isfinite(array))[0].tolist()
    names = ["micro-batch"] * (len(index) - len(value.type.names)) + [*value.type.names]
    return (
        f"the first is at {', '.join(f'{name} = {i}' for name, i in zip(names, index, strict=True)) or 'it'}"
    )


def _range(value: Value, shards: Shards) -> str:
    """Return an operand with its smallest and its largest finite element."""
    name = f"{value.name}: {value.type.unsplit()}"
    wide = [np.asarray(array).astype(np.float64) for array in shards.arrays]
    finite = [part for part in (array[np.isfinite(array)] for array in wide) if part.size]
    if not finite:
        return f"{name} has no finite number"
    low, high = min(float(part.min()) for part in finite), max(float(part.max()) for part in finite)
    return f"{name} is from {low:.4g} to {high:.4g}"


# The diagnostic


def _diagnostic(found: BadNumbers, program: Program, number: int) -> Diagnostic:
    """Return the diagnostic about the equation that made the first number which is not finite, in step `number`."""
    file = source_file(program.functions)
    span = found.source.span or (program.training.span if program.training else None)
    assert span is not None, "a program from a file has spans"
    place = span.inside(file)
    labels = [Label(span, "computed here")] if place is not span else []
    if place.call is not None:
        labels.append(Label(place.call, "called here"))
    return Diagnostic(CODE, _message(found, number), place, tuple(labels), _help(found))


def _message(found: BadNumbers, number: int) -> str:
    """Return the sentence about the first bad numbers: how many, of which value, and in which step and iteration."""
    what = f"{found.bad} of {found.size} numbers" if found.size > 1 else "the number"
    are = f"{'are' if found.size > 1 else 'is'} {found.kind}"
    source = found.source
    if isinstance(source, Argument):
        return f"{what} in {source.role} `{source.value.name}` {are} before step {number + 1}"
    inside = "".join(f", at {dim} = {index}" for dim, index in found.iterations)
    return (
        f"{what} that `{source.op}` makes {are}, in the {STAGES[source.stage]} of step {number + 1}{inside}"
    )


def _help(found: BadNumbers) -> str | None:
    """Return the operands of the equation as help, or the advice to look into the data; None without any."""
    source = found.source
    if isinstance(source, Argument):
        return f"{found.operands[0]}{': look for such numbers in the data' * (source.role == 'input')}"
    shown = "; ".join(found.operands[:SHOWN])
    is_half = any(value.type.dtype == "f16" for value in source.results)
    return "; ".join(filter(None, (shown, HALF if is_half and found.kind == "infinite" else ""))) or None
