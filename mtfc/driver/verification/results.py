"""Results of the checks of `mtfc verify`: each is a record with its line of text and its JSON.

docs/command.md describes the JSON, and `driver/records.py` has its types.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import attrs

from mtfc.backends.exact.check import ExactResult
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.reports.array_summary import finite
from mtfc.reports.source_lines import listed

Part = Literal["outputs", "gradients", "parameters", "training"]

NOUNS: Mapping[Part, str] = {
    "outputs": "output",
    "gradients": "gradient",
    "parameters": "parameter",
    "training": "training of",
}

NO_NUMBERS = "NOT COMPARED, as all numbers are NaN or infinite, also on other inputs (--data takes yours): "


@attrs.frozen(slots=False)
class CheckResult:
    """The result of a check of a model. skipped, failed: why there is none; failed, if that is a fault."""

    model: str
    skipped: str | None = attrs.field(default=None, kw_only=True)
    failed: str | None = attrs.field(default=None, kw_only=True)

    @property
    def wrong(self) -> Sequence[str]:
        """Names of the wrong parts."""
        return ()

    @property
    def ok(self) -> bool:
        return not (self.wrong or self.failed)

    @property
    def start(self) -> str:
        """The start of the line."""
        return self.model

    def finding(self, every: bool) -> Sequence[str]:
        """Return what the line ends with, and the lines below it. every: with a line for each array."""
        return ["ok"]

    def text(self, every: bool = False) -> str:
        """Return the line of the result, and the lines below it."""
        if self.skipped or self.failed:
            return f"{self.start} " + (
                f"skipped: {self.skipped}" if self.skipped else f"FAILED {self.failed}"
            )
        line, *below = self.finding(every)
        return "\n".join([f"{self.start} {line}", *below])

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        own = {name: getattr(self, name) for name in ("model", "ok", "skipped", "failed")}
        return {**own, "wrong": list(self.wrong)}


# The exact check


@attrs.frozen(slots=False)
class ExactCase(CheckResult):
    """The exact comparison of a layout, or of the gradients of the undistributed program.

    wrong_gradients: the arguments whose gradients differ from forward mode.
    """

    layout: str
    found: ExactResult = attrs.field(factory=ExactResult)
    wrong_gradients: tuple[str, ...] = ()

    @property
    def wrong(self) -> Sequence[str]:
        return (*self.found.wrong, *self.wrong_gradients)

    @property
    def start(self) -> str:
        return f"{self.layout:<20} exact "

    def finding(self, every: bool) -> Sequence[str]:
        """Return `ok     all 15,366 elements are equal`."""
        found = self.found
        if self.wrong_gradients:
            return [f"WRONG  gradients that differ from forward mode: {', '.join(self.wrong_gradients)}"]
        if found.wrong:
            return [f"WRONG  results that differ: {', '.join(found.wrong)}"]
        if not found.elements:
            return ["ok     the gradients agree with forward mode"]
        unsure = "".join(f"; {what}: {n:,} elements are not judged" for what, n in found.unsure.items())
        cut = "; of some loops only the first iterations are compared" if found.cut_loops else ""
        none = f"; no element of {', '.join(found.unjudged)} is judged" if found.unjudged else ""
        return [f"ok     {_judged(found)} elements are equal{unsure}{cut}{none}"]

    def record(self) -> dict[str, Any]:
        own = {"layout": self.layout, "wrong_gradients": list(self.wrong_gradients)}
        return {**super().record(), **_plain(self.found), **own}


def _plain(record: Any) -> dict[str, Any]:
    """Return the fields of a record as JSON has them."""
    fields = attrs.asdict(record).items()
    return {name: list(x) if isinstance(x, tuple) else x for name, x in fields}


def _judged(found: ExactResult) -> str:
    """Return the number of compared elements that are judged: `all 15,366`, or `12 of 15,366`."""
    which = f"{found.elements - found.not_judged:,} of" if found.not_judged else "all"
    return f"{which} {found.elements:,}"


@attrs.frozen
class SizeClaim:
    """The sizes of a dimension or mesh axis that a check speaks for: multiples of `multiple`. small: the checked sizes."""

    size: int
    multiple: int
    small: tuple[int, ...]

    def __str__(self) -> str:
        """Return the sizes in words.

        The check speaks for the size in the program alone where that is larger than the small sizes of others.
        """
        if all(each == self.size for each in self.small):
            return f"only {self.size}"
        return f"multiples of {self.multiple}" if self.multiple > 1 else f"from {min(self.small)} on"


@attrs.frozen(slots=False)
class SizesCase(ExactCase):
    """The exact check of a layout for every size. sizes: dimension or mesh axis -> the sizes that the check speaks for.

    A check that was skipped is a fault, too: the layout is unproven.
    """

    sizes: Mapping[str, SizeClaim] = attrs.field(factory=dict)

    @property
    def ok(self) -> bool:
        return super().ok and not self.skipped and self.found.elements > self.found.not_judged

    @property
    def start(self) -> str:
        return f"{self.layout:<20} all sizes "

    def text(self, every: bool = False) -> str:
        return f"{self.start} UNPROVEN  {self.skipped}" if self.skipped else super().text(every)

    def finding(self, every: bool) -> Sequence[str]:
        """Return the result, and below it the sizes that it speaks for."""
        if self.wrong:
            return [f"WRONG  results that differ at small sizes: {', '.join(self.wrong)}"]
        if not self.ok:
            return ["UNPROVEN  no result has a meaning on residues"]
        names: dict[str, list[str]] = {}
        for name, claim in self.sizes.items():
            names.setdefault(str(claim), []).append(name)
        lines = (f"  {sizes}: {', '.join(each)}" for sizes, each in names.items())
        return [f"ok     {_judged(self.found)} elements are equal at two choices of small sizes", *lines]

    def record(self) -> dict[str, Any]:
        """Return the JSON record. A check that was skipped has proven nothing."""
        kept = ("layout", "model", "ok", "wrong", "elements", "not_judged")
        known = super().record()
        sizes = {name: _plain(each) for name, each in self.sizes.items()}
        return {**{key: known[key] for key in kept}, "unproven": self.skipped, "sizes": sizes}


# Floats


@attrs.frozen
class Comparison:
    """An array of a layout beside the same array of the undistributed program.

    error: the largest absolute difference. scale: the largest absolute value of the undistributed array. bound: the largest
    difference that passes for rounding. fault: the mistake in words, or None.
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

    def text(self, name: str) -> str:
        """Return `  gradient w: error 1.2e-03, scale 4.0e-03, bound 1.1e-08`, or the fault unless the numbers show it."""
        if self.fault and self.fault != "differs":
            return f"  {name}: {self.fault}"
        return f"  {name}: error {self.error:.1e}, scale {self.scale:.1e}, bound {self.bound:.1e}"


Compared = Mapping[Part, Mapping[str, Comparison]]
"""Part -> name -> comparison."""


def worst(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the comparison with a fault, or else the one that comes nearest to its bound."""
    return max(comparisons, key=lambda each: (each.fault is not None, each.used))


@attrs.frozen(slots=False)
class CaseResult(CheckResult):
    """The comparison of a layout on a backend with the undistributed program.

    compared: comparisons in the dtypes of the file, or in the dtype that was asked for. wide: the same in f64, if that is another
    dtype. special: comparisons with special numbers in an argument, by a text that says which. sums: pending sums that are
    completed in a wrong dtype. not_finite: the results with a NaN or an infinity in the undistributed program. without_numbers:
    those that have no finite number.
    """

    mesh: Mesh
    layout: Layout
    backend: str
    compared: Compared = attrs.field(factory=dict)
    wide: Compared = attrs.field(factory=dict)
    special: Mapping[str, Compared] = attrs.field(factory=dict)
    sums: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()
    without_numbers: tuple[str, ...] = ()

    @property
    def wrong(self) -> Sequence[str]:
        """The names of all wrong results, each once."""
        found = [name for compared in (self.compared, self.wide) for name in _faulty(compared)]
        special = (f"{name} where {what}" for what, each in self.special.items() for name in _faulty(each))
        return tuple(dict.fromkeys((*found, *special, *self.sums)))

    @property
    def start(self) -> str:
        return f"{self.layout.name:<20} {self.backend:<6}"

    def finding(self, every: bool) -> Sequence[str]:
        """Return `ok     outputs 1.2e-07  gradients 3.0e-07  parameters 0.0e+00  in f64 1.2e-16`, and lines of arrays.

        The numbers are the errors, relative to their scale, of the arrays that come nearest to their bounds. Below there are the
        arrays that are rounding alone, and each wrong array or every array.
        """
        parts = [
            f"{part} {worst([*arrays.values()]).relative:.1e}"
            for part, arrays in self.compared.items()
            if arrays
        ]
        wide = [each for arrays in self.wide.values() for each in arrays.values()]
        parts += [f"in f64 {worst(wide).relative:.1e}"] if wide else []
        wrong = f"  in {', '.join(self.wrong)}" if self.wrong else ""
        line = f"{'WRONG' if wrong else 'ok':<6} {'  '.join(parts)}{wrong}"
        return [line, *self._rounding_line(), *self._array_lines(every)]

    def _rounding_line(self) -> Iterator[str]:
        """Yield `  rounding alone: gradient b`, if there are such arrays: their errors may be as large as their scales."""
        names = dict.fromkeys(
            f"{NOUNS[part]} {name}"
            for compared in (self.compared, self.wide)
            for part, name, each in _arrays(compared)
            if each.is_rounding
        )
        if names:
            yield f"  rounding alone: {listed(names)}"

    def _array_lines(self, every: bool) -> Iterator[str]:
        """Yield a line for each wrong array, or for every array of drawn numbers."""
        special = {f" where {what}": compared for what, compared in self.special.items()}
        for where, compared in {"": self.compared, " in f64": self.wide, **special}.items():
            for part, name, each in _arrays(compared):
                if each.fault or (every and where not in special):
                    yield each.text(f"{NOUNS[part]} {name}{where}")

    def record(self) -> dict[str, Any]:
        """Return the JSON record; of draws with special numbers only those with a fault."""
        wrong = {what: _compared_json(each) for what, each in self.special.items() if any(_faulty(each))}
        case = {"layout": self.layout.name, "mesh": dict(self.mesh.axes), "backend": self.backend}
        own = {**super().record(), **case, "not_finite": list(self.not_finite)}
        compared = {**_compared_json(self.compared), "f64": _compared_json(self.wide)}
        return {**own, **compared, "special": {"draws": len(self.special), "wrong": wrong}}


def _arrays(compared: Compared) -> Iterator[tuple[Part, str, Comparison]]:
    for part, arrays in compared.items():
        yield from ((part, name, each) for name, each in arrays.items())


def _faulty(compared: Compared) -> Iterator[str]:
    return (f"{NOUNS[part]} {name}" for part, name, each in _arrays(compared) if each.fault)


def _compared_json(compared: Compared) -> dict[str, Any]:
    return {part: _arrays_json(compared.get(part, {})) for part in get_args(Part)}


def _arrays_json(arrays: Mapping[str, Comparison]) -> dict[str, Any]:
    return {name: finite(attrs.asdict(each)) for name, each in arrays.items()}


@attrs.frozen(slots=False)
class ArraysCase(CheckResult):
    """Comparisons of arrays in f64, by name."""

    compared: Mapping[str, Comparison] = attrs.field(factory=dict)

    @property
    def wrong(self) -> Sequence[str]:
        return tuple(name for name, each in self.compared.items() if each.fault)


class JaxGradients(ArraysCase):
    """The comparison of a model's gradients with those of `jax.grad`. It has no line of its own, but for faults."""

    def faults(self) -> Iterator[str]:
        """Yield a line for each fault."""
        if self.failed:
            yield f"WRONG: jax.grad of the undistributed program {self.failed}"
        for name in self.wrong:
            line = self.compared[name].text(f"gradient {name}")
            yield f"WRONG: jax.grad of the undistributed program differs\n{line}"


@attrs.frozen(slots=False)
class StepCase(ArraysCase):
    """The comparison of a model's training step with its declaration. unchecked: what nothing is known of."""

    unchecked: tuple[str, ...] = ()

    @property
    def start(self) -> str:
        return f"{'training step':<20} f64   "

    def finding(self, every: bool) -> Sequence[str]:
        """Return `ok     as declared 1.2e-16`, or a line for each wrong array."""
        if self.wrong:
            lines = (self.compared[name].text(name) for name in self.wrong)
            return [f"WRONG  not as declared in {', '.join(self.wrong)}", *lines]
        unchecked = f"; not checked: {', '.join(self.unchecked)}" if self.unchecked else ""
        return [f"ok     as declared {worst([*self.compared.values()]).relative:.1e}{unchecked}"]

    def record(self) -> dict[str, Any]:
        own = {"not_checked": list(self.unchecked), "arrays": _arrays_json(self.compared)}
        return {**super().record(), **own}


# All results

Kind = TypeVar("Kind", bound=CheckResult)


@attrs.frozen
class Verified:
    """The results of all checks of a file."""

    found: Sequence[CheckResult]

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the results of a kind."""
        return [each for each in self.found if isinstance(each, kind)]

    @property
    def ok(self) -> bool:
        """True if no result is wrong, all checks have ended, and at least one was not skipped."""
        skipped = [each.skipped for each in self.found if not isinstance(each, JaxGradients)]
        if skipped and all(skipped):
            return False
        return all(each.ok for each in self.found) and not self.without_numbers

    @property
    def without_numbers(self) -> Sequence[str]:
        """The results that are NaN or infinite wholly on all drawn inputs."""
        cases = self.of(CaseResult)
        return [*dict.fromkeys(f"{name} of {each.model}" for each in cases for name in each.without_numbers)]

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        sizes = [each.record() for each in self.of(SizesCase)]
        return {
            "ok": self.ok,
            "jax_gradients": {each.model: _arrays_json(each.compared) for each in self.of(JaxGradients)},
            "cases": [each.record() for each in self.of(CaseResult)],
            "exact": [each.record() for each in self.of(ExactCase) if not isinstance(each, SizesCase)],
            "steps": [each.record() for each in self.of(StepCase)],
            "without_numbers": list(self.without_numbers),
            **({"all_sizes": sizes} if sizes else {}),
        }

    def verdict(self) -> str:
        """Return a line with the number of cases that agree, after the gradients that differ from those of JAX."""
        cases, steps, sizes = self.of(CaseResult), self.of(StepCase), self.of(SizesCase)
        if sizes:
            proven = sum(case.ok for case in sizes)
            which = "at all sizes above at which the compiler makes the same equations"
            return f"{proven} of {len(sizes)} layouts agree with the undistributed program, {which}"
        lines = [line for each in self.of(JaxGradients) for line in each.faults()]
        lines += _failing("exact checks fail", self.of(ExactCase))
        lines += _failing("training steps are not as declared", steps)
        if steps and not cases:
            return lines[-1] if lines else f"all {len(steps)} training steps are as declared"
        lines += [NO_NUMBERS + ", ".join(self.without_numbers)] if self.without_numbers else []
        return "\n".join([*lines, _agreeing(cases)])


def _failing(what: str, results: Sequence[CheckResult]) -> list[str]:
    """Return a line with the number of results that are wrong, if there are any."""
    wrong = sum(not each.ok for each in results)
    return [f"{wrong} of {len(results)} {what}"] if wrong else []


def _agreeing(results: Sequence[CaseResult]) -> str:
    """Return the number of cases that agree, and the names of results that are not finite."""
    ran = [result for result in results if result.skipped is None]
    skipped = f", {len(results) - len(ran)} skipped" if len(ran) < len(results) else ""
    right = sum(each.ok for each in ran)
    agree = f"{right} of {len(ran)} cases agree with the undistributed program{skipped}"
    names = dict.fromkeys(name for result in results for name in result.not_finite)
    if not names:
        return agree
    plural = "results are" if len(names) > 1 else "result is"
    return f"{agree}; {len(names)} {plural} not finite there: {listed(names)}"
