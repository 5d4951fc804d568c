"""Compare a plan with the user's own function: `plan.apply` and `plan.step` against one device, the import without rounding.

The check of the import compares the user's jaxpr with the imported program over a finite field. `backends/exact/jaxprs.py`
evaluates the jaxpr by itself, with axes by position. So a wrong link, rename or rule of the import makes other numbers, and there
is no tolerance.

Each road to the results is an exported program that another process runs. A function of the user is a closure, which no other
process can load. `jax.export` makes a text of StableHLO of it, in which shardings are as in the function. XLA partitions and
compiles the text in a child: see `verification/checks.py`.
"""

from __future__ import annotations

import dataclasses
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from math import prod
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from mtfc.backends.common.devices import jax, reserve
from mtfc.backends.exact.check import (
    DRAWS,
    ExactReference,
    ExactResult,
    evaluated,
    measured,
    summed_up,
    without_residues,
)
from mtfc.backends.exact.jaxprs import (
    LONGEST_LOOP,
    ImportedEvaluation,
    JaxprOnField,
    is_key,
    with_key,
    without_key,
)
from mtfc.backends.exact.residues import POISON, ExactArray, NotExact
from mtfc.compiler.ir.attributes import INTEGER_RANGE
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.loops import is_unbounded
from mtfc.compiler.ir.types import ARRAY_DTYPES
from mtfc.driver.verification import checks
from mtfc.driver.verification.exact_cases import elements, exact_case, exact_lowered
from mtfc.driver.verification.results import CheckResult, ExactCase
from mtfc.driver.verification.special_numbers import KINDS, fewest
from mtfc.frontend.jaxpr.flat import all_steps
from mtfc.frontend.jaxpr.importing import Imported, Leaf
from mtfc.frontend.jaxpr.tracing import by_place, value_of

if TYPE_CHECKING:
    from mtfc.driver.jax_functions.plan import Plan

LIMIT = {"f64": 1e-9, "f32": 1e-4, "bf16": 5e-2, "f16": 1e-2, "f8e4m3fn": 0.2, "f8e5m2": 0.4}
LIMIT |= {"c64": LIMIT["f32"], "c128": LIMIT["f64"]}
"""dtype -> the largest difference of an output beyond rounding, as a share of the output's largest number.

A program that computes in a narrower dtype has that dtype's limit.
"""


@attrs.frozen
class OutputDifference:
    """An output of `apply` or of `step`, and its differences to the plain function as shares of the largest number in it.

    difference: the largest one. error: the largest one beyond rounding. unstable: how many of its numbers move by more than the
    limit if the arguments are rounded otherwise, so that they prove nothing, and do not count in `difference`. not_finite: how
    many are NaN or infinite, which hide what they are computed from.
    """

    road: str
    output: str
    difference: float
    error: float
    limit: float
    numbers: int
    unstable: int
    not_finite: int = 0

    @property
    def ok(self) -> bool:
        return self.error <= self.limit


NO_NUMBERS = "NOT COMPARED, as all numbers are NaN or infinite on these arguments:"
OTHERS = "`verify(plan, *args)` takes other arguments"
BUT_IMPORT = "; the exact check does not cover the import"


@attrs.frozen
class PlanVerification:
    """The comparison of all outputs, and the exact checks of the import and of the program of `plan.step`.

    The checks are None if they were left out. ended: a sentence about each program that has no results.
    """

    plan: Plan
    outputs: tuple[OutputDifference, ...] = ()
    exact: ExactCase | None = None
    imported: ExactCase | None = None
    ended: tuple[str, ...] = ()

    @property
    def exact_cases(self) -> tuple[ExactCase, ...]:
        """The exact checks, that of the import first."""
        return tuple(case for case in (self.imported, self.exact) if case is not None)

    @property
    def ok(self) -> bool:
        agrees = all(each.ok for each in self.outputs) and all(case.ok for case in self.exact_cases)
        return agrees and not (self.ended or self.proves_nothing or self.without_numbers)

    @property
    def without_numbers(self) -> tuple[str, ...]:
        """The outputs of which NaN and infinities leave no number to compare."""
        names = (each.output for each in self.outputs if each.not_finite and _proves_nothing([each]))
        return tuple(dict.fromkeys(names))

    @property
    def proves_nothing(self) -> bool:
        """True if no number of the outputs says anything about the plan."""
        return _proves_nothing(self.outputs) or (not self.outputs and bool(self.ended))

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        case = self.plan.case
        about = {"model": self.plan.program.name, "layout": case.name, "mesh": case.mesh.sizes}
        return {
            "ok": self.ok,
            **about,
            "outputs": [attrs.asdict(each) | {"ok": each.ok} for each in self.outputs],
            "ended": list(self.ended),
            "exact": [each.record() for each in self.exact_cases],
        }

    def __str__(self) -> str:
        return "\n".join([*(case.text() for case in self.exact_cases), self.verdict()])

    def verdict(self) -> str:
        """Return a line for each road, for what proves nothing, and for each known fault of XLA that `plan.apply` meets."""
        lines = [f"FAILED {each}" for each in self.ended]
        for road in dict.fromkeys(each.road for each in self.outputs):
            own = [each for each in self.outputs if each.road == road]
            worst = max(own, key=lambda each: (not each.ok, each.difference))
            state = "agrees with" if worst.ok else "DIFFERS from"
            state = "CANNOT BE COMPARED with" if _proves_nothing(own) else state
            is_compared = self.imported is not None and self.imported.skipped is None
            but = "" if worst.ok or is_compared or road != STEP or self.exact is None else BUT_IMPORT
            figure = f"at most {worst.difference:.1e} ({worst.output})"
            lines.append(f"{road} {state} the plain function: {figure}{but}")
        lines += _unstable_note(self.outputs)
        if self.without_numbers:
            lines.append(f"{NO_NUMBERS} {', '.join(self.without_numbers)}: {OTHERS}")
        return "\n".join([*lines, *(each.note for each in self.plan.known_faults)])


def _proves_nothing(outputs: Sequence[OutputDifference]) -> bool:
    """Return True if no number is finite, and stays within what counts as a difference if the arguments are rounded."""
    counts = [(each.numbers, each.unstable + each.not_finite) for each in outputs]
    return any(number for number, _ in counts) and all(number == nothing for number, nothing in counts)


def _unstable_note(outputs: Sequence[OutputDifference]) -> Iterator[str]:
    """Yield a line about each kind of numbers that prove nothing, if these are one in a hundred or more."""
    numbers = sum(each.numbers for each in outputs)
    reasons = {
        "unstable": "another rounding of the arguments moves them as far as an error would",
        "not_finite": f"they are NaN or infinite on these arguments; {OTHERS}",
    }
    for kind, reason in reasons.items():
        found = sum(getattr(each, kind) for each in outputs)
        if found and 100 * found >= numbers:
            most = max(outputs, key=lambda each: int(getattr(each, kind)))
            yield f"{found / numbers:.0%} of the numbers prove nothing: {reason} (most in {most.output})"


def exactly_verified(plan: Plan, seed: int) -> ExactCase:
    """Compare the program of `plan.step` with the imported program over a finite field. Calls of JAX are not interpreted."""
    return exact_lowered(plan.imported.program, plan.program, given_constants(plan.imported), seed)


def verified(
    plan: Plan,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seed: int,
    exact: bool = True,
    budget: float | None = None,
    show: Callable[[ExactCase], object] = lambda _: None,
) -> PlanVerification:
    """Compute the function on one device, and by the plan's two roads, on the same arguments. exact: run the exact check, too.

    A function that was imported where a mesh was set is computed on this mesh, too. budget: seconds for the roads. show: receives
    the exact checks as soon as they are known.
    """
    found = PlanVerification(plan)
    if exact:
        found = attrs.evolve(
            found, imported=import_case(plan.imported, seed), exact=exactly_verified(plan, seed)
        )
        for case in found.exact_cases:
            show(case)
    floats = _by_roads(plan, args, kwargs, budget) if args or kwargs else _on_drawn(plan, seed, budget)
    return attrs.evolve(found, outputs=floats.outputs, ended=floats.ended)


FUNCTION = "the function itself"
STEP = "plan.step"
SECONDS, PER_STEP = 20.0, 0.2
"""The time of a road: of each program, and for each of its steps."""


def _by_roads(
    plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any], budget: float | None
) -> PlanVerification:
    """Compare the results of the roads on some arguments. Without those of the plain function, nothing is compared."""
    plan.check_arguments(args, kwargs)
    args, kwargs = jax.tree.map(value_of, by_place(plan.function, args, kwargs))
    own_mesh, narrowest = plan.imported.flat.mesh, narrowest_dtype(plan)
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    keys = [jax.random.key_impl(x) if is_key(x) else None for x in leaves]
    first = [np.asarray(without_key(x)) if hasattr(x, "dtype") else x for x in leaves]
    draws = [first, *perturbed(first, narrowest)]

    def road(name: str, function: Any, mesh: Any, draws: Any = (first,)) -> Road:
        return Road.of(name, function, tree, keys, draws, mesh)

    roads = [road(FUNCTION, plan.function, own_mesh and of_one_device(own_mesh), draws)]
    if not any(each.stops for each in plan.known_faults):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the notes name the faults
            roads.append(road("plan.apply", plan.apply(), plan.mesh))
    roads.append(road(STEP, plan.step, plan.mesh))
    roads += [road(ON_ITS_MESH, plan.function, own_mesh)] if own_mesh is not None else []
    steps = sum(1 for _ in all_steps(plan.imported.steps))
    seconds = SECONDS + PER_STEP * steps + elements(plan.imported.program) / checks.PER_SECOND
    results = computed(roads, seconds, budget)
    plain = next(results)
    if plain.reason:  # the other roads would take as long
        return PlanVerification(plan, ended=(f"{FUNCTION} {plain.reason}: {OTHERS}",))
    others = [*results]
    expected, *moved = [_numbers(each) for each in plain.draws]
    spread, differences = spread_of(expected, moved), list[OutputDifference]()
    for each in (each for each in others if not each.reason):
        outputs, numbers = list(plan.imported.outputs), _numbers(each.draws[0])
        differences += _compared(each.model, outputs, numbers, expected, spread, narrowest)
    ended = tuple(f"{each.model} {each.reason}" for each in others if each.reason)
    return PlanVerification(plan, tuple(differences), ended=ended)


ON_ITS_MESH = "the function on its own mesh"


def of_one_device(mesh: Any) -> Any:
    """Return a mesh of one device with the same axes."""
    first = mesh.devices.ravel()[:1].reshape((1,) * mesh.devices.ndim)
    return jax.sharding.Mesh(first, mesh.axis_names, axis_types=mesh.axis_types)


PERTURBED = 4
"""The number of times that the plain function is computed on arguments that differ by a rounding."""


ROUNDINGS = {8: 0.1, 16: 0.25}
"""Bits of a float dtype -> how many roundings arguments change by; 4 for wider ones, whose limit is far above one rounding."""


def narrowest_dtype(plan: Plan) -> str:
    """Return the float dtype of the fewest bits that a plan's function computes in."""
    dtypes = {result.dtype for step in plan.imported.steps for result in step.results}
    dtypes |= {leaf.dtype for leaf in plan.imported.inputs}
    return max(dtypes & LIMIT.keys(), key=LIMIT.__getitem__, default="f32")


def perturbed(leaves: Sequence[Any], narrowest: str) -> Iterator[list[Any]]:
    """Yield arguments that differ by some roundings of the narrowest dtype."""

    def rounding(dtype: Any) -> float:
        info = jax.numpy.finfo(dtype)
        return float(info.eps) * ROUNDINGS.get(info.bits, 4)

    least = rounding(ARRAY_DTYPES[narrowest])

    def moved(x: Any, random: Any) -> Any:
        """Return an array with noise of the size of its rounding."""
        wide = np.promote_types(x.dtype, np.float32)
        noise = max(rounding(x.dtype), least) * random.standard_normal(x.shape)
        return (x.astype(wide) * (1 + noise.astype(wide))).astype(x.dtype)

    for number in range(PERTURBED):
        random = np.random.default_rng(number)
        yield [moved(x, random) if _is_float(x) else x for x in leaves]


def spread_of(expected: Sequence[Any], others: Sequence[Sequence[Any]]) -> list[Any]:
    """Return how far each number of the results moves where the arguments move by some roundings.

    Where a gradient is zero, as that of a key's bias, a step of Adam makes numbers of order 1 from rounding errors. Such numbers
    say nothing about a layout. A number moves at least as far as half of its array do.
    """
    spread = [np.zeros(x.shape) for x in expected]
    for found in others:
        for i, (x, y) in enumerate(zip(found, expected, strict=True)):
            is_finite = np.isfinite(x) & np.isfinite(y)
            apart = np.subtract(x, y, out=np.zeros(x.shape), where=is_finite)
            spread[i] = np.maximum(spread[i], np.abs(apart))
    return [np.maximum(each, np.median(each)) for each in spread]


def _is_float(x: Any) -> bool:
    return bool(jax.numpy.issubdtype(getattr(x, "dtype", int), jax.numpy.floating))


def _numbers(results: Sequence[Any]) -> list[Any]:
    """Return arrays of NumPy as f64; complex numbers as pairs."""

    def wide(x: Any) -> Any:
        return (np.stack([x.real, x.imag]) if np.iscomplexobj(x) else x).astype(np.float64)

    return [wide(x) for x in results]


def _on_drawn(plan: Plan, seed: int, budget: float | None) -> PlanVerification:
    """Compare the roads on the first kind of drawn arguments on which the function ends and each output has a finite number.

    If there is none, return the comparison with the most such outputs. After two kinds without an end, no other is tried.
    """

    def tried() -> Iterator[PlanVerification]:
        """Yield the comparison for each kind of arguments; stop after two kinds on which the function did not end."""
        endless = 0
        for kind in KINDS:
            args, kwargs = with_far_indices(plan, *drawn_arguments(plan, seed, kind), seed)
            yield (found := _by_roads(plan, args, kwargs, budget))
            endless += not found.outputs
            if endless == 2:
                return

    return fewest(tried(), lambda found: len(found.without_numbers) if found.outputs else float("inf"))


def drawn_arguments(plan: Plan, seed: int, kind: str = "mixed") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw arguments: floats of a kind with ties and zeros, small integers, and keys.

    The state of an optimizer, an argument that is returned anew beside the first, gets positive numbers, as second moments are.
    """
    random = np.random.default_rng(seed)
    leaves = [_drawn(leaf, random, KINDS[kind]) for leaf in plan.imported.inputs if leaf.constant is None]
    found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.unflatten(plan.imported.flat.in_tree, leaves)
    return found


MOST_FAR = 4
"""The most arguments that `with_far_indices` changes: each takes a run of the function."""


def with_far_indices(
    plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int
) -> tuple[Any, Any]:
    """Replace integers of inputs by numbers around both ends of axes, where all results stay finite.

    So indices out of range are compared, too. A `while` may run as often as an integer says: its program keeps small numbers.
    """
    random = np.random.default_rng(seed)
    sizes = [1, *(dim.size for dim in plan.imported.program.dims.values())]
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    own = [leaf for leaf in plan.imported.inputs if leaf.constant is None]
    inputs = [i for i, x in enumerate(own) if x.role == "input" and x.key is None]
    places = [i for i in inputs if own[i].dtype in INTEGER_RANGE]
    if any(step.primitive == "while" for step in plan.imported.steps):
        return args, kwargs
    for i in places[:MOST_FAR]:
        numbers = random.choice(sizes, own[i].shape) + random.integers(-1, 2, own[i].shape)
        numbers = np.asarray(numbers * random.choice([-1, 1], own[i].shape))
        numbers.flat[:1] = max(sizes) + 1  # beyond the end, also if this is a single place
        limits = np.iinfo(ARRAY_DTYPES[own[i].dtype])
        numbers = numbers.clip(limits.min, limits.max)
        changed = [*leaves[:i], numbers.astype(limits.dtype), *leaves[i + 1 :]]
        far_args, far_kwargs = jax.tree.unflatten(tree, changed)
        if _is_finite(plan, far_args, far_kwargs):
            leaves = changed
    found: tuple[Any, Any] = jax.tree.unflatten(tree, leaves)
    return found


def _is_finite(plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if all results of the function are finite numbers, on one device."""
    own_mesh = plan.imported.flat.mesh
    with on_mesh(own_mesh and of_one_device(own_mesh)):
        found = jax.tree.leaves(jax.jit(plan.function)(*args, **kwargs))
    return all(is_key(x) or bool(jax.numpy.isfinite(x).all()) for x in found)


def _drawn(leaf: Leaf, random: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a drawn value of an argument. changed: makes floats of another kind.

    A tenth of the floats are rounded to quarters, so that some are equal. States are positive.
    """
    if leaf.key is not None:
        return with_key(random.integers(0, 2**32, leaf.shape, np.uint32), leaf.key)
    if leaf.dtype == "bool":
        return random.integers(0, 2, leaf.shape).astype(bool)
    if leaf.dtype in INTEGER_RANGE and not leaf.shape:
        return jax.numpy.asarray(3, ARRAY_DTYPES[leaf.dtype])  # a number of steps, or a place
    if leaf.dtype in INTEGER_RANGE:
        return random.integers(0, 2, leaf.shape).astype(ARRAY_DTYPES[leaf.dtype])
    numbers = random.standard_normal(leaf.shape) * 0.3
    is_later = leaf.path[0].idx == 0 and leaf.path[1].idx > 0
    is_state = leaf.role == "state" or (leaf.role == "parameter" and is_later)
    ties = np.round(numbers * 4) / 4
    mixed = np.where(random.random(leaf.shape) < 0.1, ties, numbers)
    mixed = 0.05 + abs(numbers) if is_state else changed(mixed)
    return np.asarray(mixed, jax.numpy.dtype(ARRAY_DTYPES[leaf.dtype]))


def _compared(
    road: str, leaves: Sequence[Leaf], found: Arrays, expected: Arrays, spread: Arrays, narrowest: str
) -> list[OutputDifference]:
    """Compare outputs. Errors are shares of the largest number of an output: see `LIMIT`."""
    result = []
    for left, right, moves, leaf in zip(found, expected, spread, leaves, strict=True):
        finite = np.isfinite(left) & np.isfinite(right)
        same_kind = np.array_equal(left[~finite], right[~finite], equal_nan=True)
        most = float(np.abs(right[np.isfinite(right)]).max(initial=0.0)) or 1.0
        limit = max(LIMIT[leaf.dtype], LIMIT[narrowest]) if leaf.dtype in LIMIT else 0.0
        apart, rounding = np.abs(left[finite] - right[finite]), 10 * moves[finite]
        error = _share(apart - rounding, most) if same_kind else float("inf")
        difference = max(error, _share(apart[rounding <= limit * most], most))
        unstable = int((10 * moves > limit * most).sum())
        nothing = int((~np.isfinite(right)).sum())
        result.append(
            OutputDifference(road, leaf.name, difference, error, limit, right.size, unstable, nothing)
        )
    return result


def _share(differences: Any, most: float) -> float:
    """Return the largest of some differences as a share of a number."""
    return float(differences.max(initial=0.0)) / most


# The import

NAME = "import"
"""The name of the check beside those of layouts."""

MOST = 2**20
"""The most iterations of a loop."""


def import_case(imported: Imported, seed: int) -> ExactCase:
    """Compare the imported program with the jaxpr that it is made of."""
    name = imported.program.name
    try:
        case = exact_case(imported.program, NAME, lambda: _import_compared(imported, seed))
    except Exception as error:  # a primitive of the user's own may do anything on other numbers
        line = str(error).partition("\n")[0]
        return ExactCase(name, NAME, skipped=f"JAX raises {type(error).__name__} on residues: {line}")
    if case.wrong and case.found.cut_loops:
        return ExactCase(name, NAME, skipped="a loop does not end on residues")
    return case


def given_constants(imported: Imported) -> Mapping[str, Any]:
    """Return the arrays that the function closes over, by the names of arguments."""
    return {
        leaf.name: np.asarray(leaf.constant).reshape([dim.size for dim in leaf.flat_dims])
        for leaf in imported.inputs
        if leaf.constant is not None and leaf.key is None
    }


def _import_compared(imported: Imported, seed: int) -> ExactResult:
    """Compare an imported program with the jaxpr that it stands for, both on residues."""
    if strange := without_residues(imported.main):
        raise NotExact(strange)
    reference = ExactReference(imported.program, given_constants(imported), seed, derives=False)
    main, closed = imported.main, imported.flat.closed
    number = len(closed.jaxpr.invars)
    counts, unsure, cut_loops = list[tuple[str, int, int, int]](), Counter[str](), 0
    for draw in DRAWS:
        field = reference.field(draw)
        arguments = {a.value.name: reference.drawn(a, field, draw, main.name) for a in main.arguments}
        shaped = ((leaf.key, arguments[leaf.name].reshape(leaf.shape)) for leaf in imported.inputs)
        given = [x if key is None else with_key(x.values, key) for key, x in shaped]
        constants = [(leaf.constant, x) for leaf, x in zip(imported.inputs, given, strict=True)][number:]
        actual = evaluated(main, arguments, ImportedEvaluation(field))
        unsure.update(field.counts)
        jaxprs = JaxprOnField(field, constants, _longest(imported))
        for leaf, x in zip(imported.outputs, jaxprs.run(closed, given[:number]), strict=True):
            output = actual[leaf.name]
            counts.append((f"{leaf.name} of {main.name}", output.size, *_differences(output, x)))
        cut_loops += jaxprs.cut_loops
    return summed_up(counts, unsure, len(DRAWS) * elements(imported.program), cut_loops)


def _longest(imported: Imported) -> int:
    """Return the number of iterations to follow a `while` for: the imported program leaves some loops there."""
    is_cut = any(eqn.regions and is_unbounded(eqn) for eqn in walk(imported.main.body))
    return LONGEST_LOOP if is_cut else MOST


def _differences(actual: ExactArray, expected: Any) -> tuple[int, int]:
    """Return the number of elements that differ, and the number of elements without a meaning over the field, which are not
    judged.
    """
    if not isinstance(expected, ExactArray):
        expected = measured(actual.field, np.asarray(without_key(expected)))
    if not expected.is_float:
        return int((actual.values.ravel() != expected.values.ravel()).sum()), 0
    a, b = actual.residues().values.ravel(), expected.residues().values.ravel()
    is_unknown = b == POISON
    return int(((a != b) & ~is_unknown).sum()), int(is_unknown.sum())


# The roads

Arrays = Sequence[Any]


@attrs.frozen(eq=False)
class Road:
    """A program and the arguments that it is computed on.

    draws: the leaves of each call's arguments, of NumPy. function: the program in this process. text: the program as `jax.export`
    gives it, for a mesh of the shape `axes`; it is empty if JAX exports no such program.
    """

    name: str
    draws: Sequence[Arrays]
    function: Callable[..., Any] | None
    text: bytes = b""
    axes: Mapping[str, int] = attrs.field(factory=lambda: {"all": 1})

    @property
    def devices(self) -> int:
        return prod(self.axes.values())

    @classmethod
    def of(cls, name: str, function: Any, tree: Any, keys: Sequence[Any], draws: Any, mesh: Any) -> Road:
        """Return the road of a function of pytrees. keys: for each leaf the implementation of its random keys, or None.

        mesh: the mesh of the function, or None.
        """
        from jax import export

        def flat(*leaves: Any) -> list[Any]:
            given = [with_key(x, key) for x, key in zip(leaves, keys, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, given)
            return [without_key(x) for x in jax.tree.leaves(function(*args, **kwargs))]

        is_cpu = jax.default_backend() == "cpu"
        options: Any = checks.QUICK_TO_COMPILE if is_cpu else None

        def here(*leaves: Any) -> Any:
            with on_mesh(mesh):
                return jax.jit(flat, compiler_options=options)(*leaves)

        if is_cpu and checks.uses_children():
            with on_mesh(mesh), suppress(Exception):  # effects, callbacks: JAX raises many kinds of errors
                exported = export.export(jax.jit(flat))(*draws[0])
                sent = dataclasses.replace(exported, _get_vjp=None)
                axes = dict(mesh.shape) if mesh is not None else {"all": exported.nr_devices}
                return cls(name, draws, here, pickle.dumps(sent), axes)
        return cls(name, draws, here)

    def results(self) -> list[RoadResults]:
        """Return the result of a check: the leaves of the results for each draw, of NumPy."""
        function = self.function or self._loaded()
        found = [[np.asarray(x) for x in jax.tree.leaves(function(*draw))] for draw in self.draws]
        return [RoadResults(self.name, draws=found)]

    def _loaded(self) -> Any:
        """Return the exported program as a function of whole arrays, on the first devices of this process."""
        exported = pickle.loads(self.text)
        devices = np.array(jax.devices()[: self.devices]).reshape([*self.axes.values()])
        mesh = jax.sharding.Mesh(devices, tuple(self.axes))
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.jit(exported.call, in_shardings=whole)


@attrs.frozen(slots=False)
class RoadResults(CheckResult):
    """The leaves of the results of a road, which `model` names, for each draw."""

    draws: Sequence[Arrays] = ()

    @property
    def reason(self) -> str | None:
        """Why there are no results, as the end of a sentence."""
        return f"was skipped: {self.skipped}" if self.skipped else self.failed


def checks_of(roads: Sequence[Road], seconds: float) -> Sequence[checks.Check]:
    """Return the computation of each road as a check."""
    return [checks.Check(road.name, road.results, RoadResults(road.name), seconds) for road in roads]


def _sent(roads: Sequence[Road], seconds: float, is_wide: bool) -> Sequence[checks.Check]:
    """Return the checks in a child, where JAX starts with as many devices as they need."""
    reserve(max(road.devices for road in roads))
    jax.config.update("jax_enable_x64", is_wide)
    return checks_of(roads, seconds)


def computed(roads: Sequence[Road], seconds: float, budget: float | None) -> Iterator[RoadResults]:
    """Yield the results of each road. seconds: the time of a road.

    Programs that JAX does not export run in this process, where no time can be kept.
    """
    known = checks_of(roads, seconds)
    if not all(road.text for road in roads):
        yield from checks.results_here(known)
        return
    sent = [attrs.evolve(road, function=None) for road in roads]
    arguments = (sent, seconds, bool(jax.config.jax_enable_x64))
    yield from checks.results(
        known, checks.Remade("mtfc.driver.jax_functions.comparison:_sent", arguments), budget
    )


def on_mesh(mesh: Any) -> AbstractContextManager[Any]:
    """Return a context with a mesh, or with none."""
    return nullcontext() if mesh is None else jax.sharding.set_mesh(mesh)
