"""`mtfc verify`: every layout on every backend against the undistributed program.

The reference is the interpreter, on the program as it is before anything is split. Each case starts from the same inputs and
parameters and is compared in its outputs, in the gradients of all floating-point inputs and parameters, and in the parameters
that it draws itself. Placements are cases too, on NumPy: of these, outputs and the parameters' gradients.

Through some networks rounding grows: where two pixels are nearly alike, layouts may disagree which one is the largest, and then
on whole gradients; and batch normalization over few numbers multiplies what they differ by. So a case that differs in f32 by more
than rounding mostly does is run again in f64. If it agrees there, the difference was rounding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from mtfc.cli.errors import ERRORS, OK, UsageError
from mtfc.cli.execution import BACKENDS, Session, load
from mtfc.cli.inputs import add_parameters, draw_batch, given_parameters, read_batches
from mtfc.cli.npz import Arrays
from mtfc.cli.options import add_format, add_selection, add_source, seed
from mtfc.cli.selection import ONE_DEVICE, UNDISTRIBUTED, Case, Selection, select
from mtfc.cli.sources import Sources
from mtfc.cli.summary import difference, finite, magnitude
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.differentiate import Differentiate
from mtfc.compiler.passes.mixed_precision import MixedPrecision, everything_in
from mtfc.compiler.pipelines import run as run_passes

if TYPE_CHECKING:
    from mtfc.frontend.placements import DeclaredPlacement

EXAMPLES = """\
examples:
  mtfc verify model.mtf
  mtfc verify model.mtf --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4" --backend numpy
  mtfc verify model.mtf --dim batch=8 --data batch.npz --format json

Status 1 says that something differs by more than rounding.
"""

MOST_VIRTUAL_DEVICES = 64
"""JAX runs on real devices or on this many virtual ones; a larger mesh is passed over, and the result says so."""

TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 1e-1}
"""The largest difference that passes for rounding, relative to the largest number of the array (or to 1)."""

DOUBTFUL = 1e-2
"""Up to this, relative to the same, a difference in f32 is rounding if f64 has next to none."""

GROWTH = 1000 * 2.0**29
"""Up to so many times the difference in f64 it is, too: f64 rounds 2 ** 29 times less, and not everything grows alike."""

HANDED_OUT = 1e-6
"""The same for what is computed in f64, and handed in and out in f32."""

Part = Literal["outputs", "gradients", "parameters"]


@attrs.frozen
class Result:
    """What a case differs in: part -> name -> largest absolute difference; or why it did not run.

    largest, largest_wide: the largest relative difference, and that of what is handed out in f64. is_doubtful: whether what is
    wrong may be rounding. in_f64: the largest difference there, where it showed that it was.
    """

    case: Case
    backend: str
    errors: Mapping[Part, Mapping[str, float]]
    wrong: tuple[str, ...] = ()
    skipped: str | None = None
    placement: DeclaredPlacement | None = None
    largest: float = 0.0
    largest_wide: float = 0.0
    is_doubtful: bool = False
    in_f64: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--backend", choices=BACKENDS, help="only this one (default: both)")
    parser.add_argument(
        "--dtype",
        choices=("f32", "f64"),
        help="compute everything in it, whatever the file says; in f64, differences are not hidden by rounding",
    )
    parser.add_argument("--data", metavar="FILE.npz", help="inputs; the first batch is used (default: drawn)")
    add_parameters(parser)
    parser.add_argument("--seed", metavar="N", type=seed, default=0, help="for what is drawn (default: 0)")
    add_selection(parser, "all", or_placement=True)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    selection = select(options, sources, every_layout=True, or_placement=True)
    backends = _backends(options, selection)
    if "jax" in backends:
        _start_jax(selection.cases)
    program = everything_in(selection.program, options.dtype) if options.dtype else selection.program
    reference = Reference.of(program, options)
    exact = Exact(selection.program, options)
    results = []
    compared = chain.from_iterable(reference.compared(case, backends) for case in selection.cases)
    are_asked = options.layout is None or not selection.cases
    placements = selection.placements if are_asked and "numpy" in backends else ()
    placed = (reference.placed(placement) for placement in placements)
    for result in map(exact.settled, chain(compared, placed)):
        results.append(result)
        if options.format == "text":
            print(_line(result), flush=True)
    ok = not any(result.wrong for result in results)
    print(
        json.dumps(_json(results, ok, reference.tolerance), indent=2)
        if options.format == "json"
        else _verdict(results)
    )
    return OK if ok else ERRORS


def _backends(options: argparse.Namespace, selection: Selection) -> Sequence[str]:
    """Raises `UsageError` where a placement was chosen, and JAX."""
    if selection.cases:
        return (options.backend,) if options.backend else BACKENDS
    if options.backend == "jax":
        raise UsageError("placements run on NumPy: no --backend jax")
    return ("numpy",)


def _start_jax(cases: Sequence[Case]) -> None:
    """JAX makes its devices once, so the largest mesh asks for them. GPUs and TPUs are to multiply numbers as they are, and not
    as rounded to 10 or 7 binary digits, which JAX lets them by default. Raises `Unavailable`.
    """
    from mtfc.backends.devices import import_jax, reserve

    import_jax().config.update("jax_default_matmul_precision", "highest")
    reserve(
        max((case.mesh.devices for case in cases if case.mesh.devices <= MOST_VIRTUAL_DEVICES), default=1)
    )


@attrs.frozen
class Reference:
    """What the undistributed program gives from some inputs and from the parameters that it is given or draws."""

    program: Program
    inputs: Arrays
    given: Arrays
    seed: int
    expected: Mapping[Part, Arrays]
    tolerance: float

    @classmethod
    def of(cls, program: Program, options: argparse.Namespace) -> Reference:
        from mtfc.backends.interpreter import interpret

        forward = program.function("forward")
        batches = read_batches(options.data, forward) if options.data else draw_batch(forward, options.seed)
        given = given_parameters(options, program)
        alone = Case(ONE_DEVICE, UNDISTRIBUTED)
        parameters = Session.start(load(alone.lower(program), "numpy"), options.seed, given).parameters()
        differentiated = run_passes(program, (MixedPrecision(), Differentiate("gradients")))
        results = interpret(
            differentiated.function("gradients"), differentiated, {**batches[0], **parameters}
        )
        expected = {**_parts(results, program), "parameters": parameters}
        tolerance = _tolerance(differentiated, options.dtype)
        return cls(program, batches[0], given, options.seed, expected, tolerance)

    def compared(self, case: Case, backends: Iterable[str]) -> Iterator[Result]:
        """What each backend makes of the program under a layout."""
        lowered = case.lower(self.program, of="gradients")
        for backend in backends:
            if backend == "jax" and case.mesh.devices > MOST_VIRTUAL_DEVICES:
                most = f"more than the {MOST_VIRTUAL_DEVICES} devices that JAX is asked for"
                yield Result(case, backend, {}, skipped=f"{case.mesh.devices} processors are {most}")
            else:
                yield self._compared(case, lowered, backend)

    def placed(self, placement: DeclaredPlacement) -> Result:
        """What the operators of the program give where a placement says, on NumPy. Raises `CompileError`."""
        from mtfc.cli.placed import run_placed

        outputs, gradients = run_placed(
            placement, self.program, {**self.inputs, **self.expected["parameters"]}
        )
        actual: dict[Part, Arrays] = {"outputs": outputs, "gradients": gradients}
        errors = {
            part: {name: difference(array, self.expected[part][name]) for name, array in arrays.items()}
            for part, arrays in actual.items()
        }
        case = Case(Mesh("devices", (("all", placement.devices),)), Layout(placement.name))
        return attrs.evolve(self._result(case, "numpy", errors), placement=placement)

    def _compared(self, case: Case, lowered: Program, backend: str) -> Result:
        module = load(lowered, backend)
        drawn = Session.start(module, self.seed, self.given).parameters()
        session = Session.start(module, self.seed, self.expected["parameters"])
        actual = {**_parts(session.evaluate("gradients", self.inputs), self.program), "parameters": drawn}
        errors = {
            part: {name: difference(actual[part][name], array) for name, array in arrays.items()}
            for part, arrays in self.expected.items()
        }
        return self._result(case, backend, errors)

    def _result(self, case: Case, backend: str, errors: Mapping[Part, Mapping[str, float]]) -> Result:
        """What differs by more than rounding is wrong. Parameters are drawn, and not computed: no rounding grows there."""
        relative = {
            (part, name): error / magnitude(self.expected[part][name])
            for part, arrays in errors.items()
            for name, error in arrays.items()
        }
        wrong = [key for key, error in relative.items() if not error <= self.tolerance]
        wide = (e for (part, name), e in relative.items() if self.expected[part][name].dtype.itemsize == 8)
        return Result(
            case,
            backend,
            errors,
            wrong=tuple(f"{part[:-1]} {name}" for part, name in wrong),
            largest=max(relative.values(), default=0.0),
            largest_wide=max(wide, default=0.0),
            is_doubtful=bool(wrong) and all(part != "parameters" for part, _ in wrong),
        )


@attrs.frozen
class Exact:
    """The same program in f64, and what it gives undistributed once that is asked for."""

    program: Program
    options: argparse.Namespace

    @cached_property
    def reference(self) -> Reference:
        options = argparse.Namespace(**{**vars(self.options), "dtype": "f64"})
        return Reference.of(everything_in(self.program, "f64"), options)

    def settled(self, result: Result) -> Result:
        """A doubtful result as f64 has it: see the top."""
        if self.options.dtype or not result.is_doubtful:
            return result
        with _width_kept(result.backend):
            if result.placement:
                again = self.reference.placed(result.placement)
            else:
                (again,) = self.reference.compared(result.case, (result.backend,))
        if again.wrong or result.largest > max(DOUBTFUL, GROWTH * again.largest_wide):
            return result
        return attrs.evolve(result, wrong=(), in_f64=max(_largest(again.errors).values()))


@contextmanager
def _width_kept(backend: str) -> Iterator[None]:
    """A module in f64 turns on JAX's 64-bit numbers for the whole process: turns them off again for those that follow."""
    if backend != "jax":
        yield
        return
    from mtfc.backends.devices import import_jax

    config = import_jax().config
    before = config.jax_enable_x64
    try:
        yield
    finally:
        config.update("jax_enable_x64", before)


def _parts(results: Arrays, program: Program) -> dict[Part, Arrays]:
    """The results of `gradients`, those of the forward pass apart from the gradients, which go by what they are of."""
    outputs = [output.name for output in program.function("forward").outputs]
    gradients = {name.removeprefix("d_"): array for name, array in results.items() if name not in outputs}
    return {"outputs": {name: results[name] for name in outputs}, "gradients": gradients}


def _tolerance(program: Program, dtype: str | None) -> float:
    """That of the coarsest dtype that the program computes in, where everything is in `dtype` if one is given."""
    bodies = (function.body for function in program.functions)
    dtypes = {value.type.dtype for body in bodies for eqn in walk(body) for value in eqn.results}
    if dtype == "f64":
        dtypes.discard("f32")
    found = max((TOLERANCE[dtype] for dtype in dtypes & TOLERANCE.keys()), default=TOLERANCE["f32"])
    return max(found, HANDED_OUT) if dtype else found


# Output


def _largest(errors: Mapping[Part, Mapping[str, float]]) -> dict[Part, float]:
    return {part: max(each.values(), default=0.0) for part, each in errors.items()}


def _line(result: Result) -> str:
    """`hybrid      numpy  ok      outputs 1.2e-07  gradients 3.0e-07  parameters 0.0e+00`"""
    start = f"{result.case.name:<20} {result.backend:<6}"
    if result.skipped:
        return f"{start} skipped: {result.skipped}"
    parts = "  ".join(f"{part} {error:.1e}" for part, error in _largest(result.errors).items())
    wrong = f"  in {', '.join(result.wrong)}" if result.wrong else ""
    rounded = f"  which is rounding: {result.in_f64:.1e} in f64" if result.in_f64 is not None else ""
    return f"{start} {'WRONG' if wrong else 'ok':<6} {parts}{wrong}{rounded}"


def _verdict(results: Sequence[Result]) -> str:
    ran = [result for result in results if result.skipped is None]
    wrong = sum(bool(result.wrong) for result in ran)
    skipped = f", {len(results) - len(ran)} skipped" if len(ran) < len(results) else ""
    return f"{len(ran) - wrong} of {len(ran)} cases agree with the undistributed program{skipped}"


def _json(results: Sequence[Result], ok: bool, tolerance: float) -> dict[str, Any]:
    return {"ok": ok, "tolerance": tolerance, "cases": [_case_json(result) for result in results]}


def _case_json(result: Result) -> dict[str, Any]:
    errors = {
        part: {name: finite(error) for name, error in result.errors.get(part, {}).items()}
        for part in get_args(Part)
    }
    return {
        "layout": result.case.name,
        "mesh": dict(result.case.mesh.axes),
        "backend": result.backend,
        "ok": not result.wrong,
        "skipped": result.skipped,
        "wrong": list(result.wrong),
        "in_f64": result.in_f64,
        **errors,
    }
