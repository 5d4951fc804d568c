"""Results of `mtfc verify` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.reports.array_summary import finite
from mtfc.reports.table import listed

if TYPE_CHECKING:
    from mtfc.placements.declarations import DeclaredPlacement

Part = Literal["outputs", "gradients", "parameters", "training"]

NOUNS: Mapping[Part, str] = {
    "outputs": "output",
    "gradients": "gradient",
    "parameters": "parameter",
    "training": "training of",
}


@attrs.frozen
class Comparison:
    """An array of a layout beside that of the undistributed program.

    error: the largest absolute difference. scale: the largest absolute value of the undistributed array. bound: the largest
    difference that passes for rounding. fault: what is wrong, or None.
    """

    error: float
    scale: float
    bound: float
    fault: str | None = None

    @property
    def used(self) -> float:
        """The error as a part of the bound, by which comparisons are ranked."""
        return self.error / self.bound if self.bound else self.error and float("inf")

    @property
    def is_rounding(self) -> bool:
        """True if rounding may make all numbers of the array, as of a gradient that is zero over the reals."""
        return 0 < self.scale <= self.bound and not self.fault

    @property
    def relative(self) -> float:
        """The error relative to the scale."""
        return self.error / self.scale if self.scale else self.error and float("inf")


Compared = Mapping[Part, Mapping[str, Comparison]]
"""Part -> name -> comparison."""


@attrs.frozen
class CaseResult:
    """The comparison of a layout on a backend with the undistributed program, or the reason why the layout did not run.

    compared: comparisons in the dtypes of the file, or in the dtype that was asked for. wide: the same in f64, if that is another
    dtype. special: comparisons with special numbers in an argument, by a text that says which. draws: the number of inputs with
    special numbers. sums: pending sums that are completed in a wrong dtype. not_finite: the results with a NaN or an infinity in
    the undistributed program. without_numbers: those that have no finite number. failed: why the check did not end, if that is a
    fault. placement: the placement that ran instead of a layout, if any.
    """

    mesh: Mesh
    layout: Layout
    backend: str
    model: str
    compared: Compared = attrs.field(factory=dict)
    wide: Compared = attrs.field(factory=dict)
    special: Mapping[str, Compared] = attrs.field(factory=dict)
    draws: int = 0
    sums: tuple[str, ...] = ()
    skipped: str | None = None
    failed: str | None = None
    placement: DeclaredPlacement | None = None
    not_finite: tuple[str, ...] = ()
    without_numbers: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[str, ...]:
        """The names of all wrong results, each once."""
        found = [name for compared in (self.compared, self.wide) for name in _faulty(compared)]
        special = (f"{name} where {what}" for what, each in self.special.items() for name in _faulty(each))
        return tuple(dict.fromkeys((*found, *special, *self.sums)))


@attrs.frozen
class StepCase:
    """The comparison of a model's training step, in f64, with its declaration.

    unchecked: what nothing is known of. skipped, failed: why there is no comparison; failed, if that is a fault.
    """

    model: str
    compared: Mapping[str, Comparison]
    unchecked: tuple[str, ...] = ()
    skipped: str | None = None
    failed: str | None = None

    @property
    def ok(self) -> bool:
        return not (self.wrong or self.failed)

    @property
    def wrong(self) -> tuple[str, ...]:
        return tuple(name for name, each in self.compared.items() if each.fault)

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return {
            "model": self.model,
            "ok": self.ok,
            "wrong": list(self.wrong),
            "skipped": self.skipped,
            "failed": self.failed,
            "not_checked": list(self.unchecked),
            "arrays": _arrays_json(self.compared),
        }


def step_text(case: StepCase) -> str:
    """Return `training step        f64    ok     as declared 1.2e-16`, and a line for each wrong array."""
    start, lines = f"{'training step':<20} f64   ", [array_text(n, case.compared[n]) for n in case.wrong]
    if case.skipped or case.failed:
        return f"{start} skipped: {case.skipped}" if case.skipped else f"{start} FAILED {case.failed}"
    if lines:
        return "\n".join([f"{start} WRONG  not as declared in {', '.join(case.wrong)}", *lines])
    unchecked = f"; not checked: {', '.join(case.unchecked)}" if case.unchecked else ""
    return f"{start} ok     as declared {worst([*case.compared.values()]).relative:.1e}{unchecked}"


def _faulty(compared: Compared) -> Iterator[str]:
    for part, arrays in compared.items():
        yield from (f"{NOUNS[part]} {name}" for name, each in arrays.items() if each.fault)


def worst(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the comparison with a fault, or else the one that comes nearest to its bound."""
    return max(comparisons, key=lambda each: (each.fault is not None, each.used))


def case_text(result: CaseResult, every: bool = False) -> str:
    """Return a line for the case, one for the arrays that are rounding alone, and one for each wrong array, or for every array.

    The line is `hybrid    numpy  ok      outputs 1.2e-07  gradients 3.0e-07  parameters 0.0e+00  in f64 1.2e-16`. Its numbers are
    the errors, relative to their scale, of the arrays that come nearest to their bounds.
    """
    start = f"{result.layout.name:<20} {result.backend:<6}"
    if result.skipped or result.failed:
        return f"{start} skipped: {result.skipped}" if result.skipped else f"{start} FAILED {result.failed}"
    parts = [
        f"{part} {worst(list(arrays.values())).relative:.1e}"
        for part, arrays in result.compared.items()
        if arrays
    ]
    wide = [each for arrays in result.wide.values() for each in arrays.values()]
    parts += [f"in f64 {worst(wide).relative:.1e}"] if wide else []
    wrong = f"  in {', '.join(result.wrong)}" if result.wrong else ""
    line = f"{start} {'WRONG' if wrong else 'ok':<6} {'  '.join(parts)}{wrong}"
    return "\n".join([line, *_rounding_line(result), *_array_lines(result, every)])


def _rounding_line(result: CaseResult) -> Iterator[str]:
    """Yield `  rounding alone: gradient b`, if there are such arrays: their errors may be as large as their scales."""
    names = dict.fromkeys(
        f"{NOUNS[part]} {name}"
        for compared in (result.compared, result.wide)
        for part, arrays in compared.items()
        for name, each in arrays.items()
        if each.is_rounding
    )
    if names:
        yield f"  rounding alone: {listed(names)}"


def _array_lines(result: CaseResult, every: bool) -> Iterator[str]:
    """Yield a line for each wrong array, or for every array of drawn numbers."""
    special = {f" where {what}": compared for what, compared in result.special.items()}
    for where, compared in {"": result.compared, " in f64": result.wide, **special}.items():
        for part, arrays in compared.items():
            for name, each in arrays.items():
                if each.fault or (every and where not in special):
                    yield array_text(f"{NOUNS[part]} {name}{where}", each)


def array_text(name: str, comparison: Comparison) -> str:
    """Return `  gradient w: error 1.2e-03, scale 4.0e-03, bound 1.1e-08`, and the fault unless the numbers show it."""
    numbers = f"error {comparison.error:.1e}, scale {comparison.scale:.1e}, bound {comparison.bound:.1e}"
    fault = comparison.fault
    return f"  {name}: {fault}" if fault and fault != "differs" else f"  {name}: {numbers}"


def verdict_text(results: Sequence[CaseResult]) -> str:
    """Return the number of cases that agree, and the names of results that are not finite."""
    ran = [result for result in results if result.skipped is None]
    wrong = sum(bool(result.wrong or result.failed) for result in ran)
    skipped = f", {len(results) - len(ran)} skipped" if len(ran) < len(results) else ""
    agree = f"{len(ran) - wrong} of {len(ran)} cases agree with the undistributed program{skipped}"
    names = dict.fromkeys(name for result in results for name in result.not_finite)
    if not names:
        return agree
    plural = "results are" if len(names) > 1 else "result is"
    return f"{agree}; {len(names)} {plural} not finite there: {listed(names)}"


def verification_json(
    results: Sequence[CaseResult], ok: bool, jax_gradients: Mapping[str, Mapping[str, Comparison]]
) -> dict[str, Any]:
    """Return the JSON record. jax_gradients: model -> name -> comparison of the reference's gradient with `jax.grad`."""
    return {
        "ok": ok,
        "jax_gradients": {model: _arrays_json(arrays) for model, arrays in jax_gradients.items()},
        "cases": [_case_json(result) for result in results],
    }


def _case_json(result: CaseResult) -> dict[str, Any]:
    return {
        "model": result.model,
        "layout": result.layout.name,
        "mesh": dict(result.mesh.axes),
        "backend": result.backend,
        "ok": not (result.wrong or result.failed),
        "skipped": result.skipped,
        "failed": result.failed,
        "wrong": list(result.wrong),
        "not_finite": list(result.not_finite),
        **_compared_json(result.compared),
        "f64": _compared_json(result.wide),
        "special": {
            "draws": result.draws,
            "wrong": {
                what: _compared_json(each) for what, each in result.special.items() if any(_faulty(each))
            },
        },
    }


def _compared_json(compared: Compared) -> dict[str, Any]:
    return {part: _arrays_json(compared.get(part, {})) for part in get_args(Part)}


def _arrays_json(arrays: Mapping[str, Comparison]) -> dict[str, Any]:
    return {
        name: {
            "error": finite(each.error),
            "scale": each.scale,
            "bound": finite(each.bound),
            "fault": each.fault,
        }
        for name, each in arrays.items()
    }
