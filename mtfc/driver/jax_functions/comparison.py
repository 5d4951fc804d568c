"""Compare a plan with the user's own function: `plan.apply` and `plan.step` against one device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.activity import doing
from mtfc.compiler.ir.attributes import INTEGER_RANGE
from mtfc.compiler.ir.types import ARRAY_DTYPES
from mtfc.frontend.jaxpr.tracing import by_place, value_of
from mtfc.reports.exact_report import ExactCase, exact_text

if TYPE_CHECKING:
    from mtfc.driver.jax_functions.plan import Plan
    from mtfc.frontend.jaxpr.importing import Leaf

LIMIT = {
    "f64": 1e-9,
    "f32": 1e-4,
    "bf16": 5e-2,
    "f16": 1e-2,
    "c64": 1e-4,
    "c128": 1e-9,
    "f8e4m3fn": 0.2,
    "f8e5m2": 0.4,
}
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


@attrs.frozen
class PlanVerification:
    """The comparison of all outputs, and the exact check of the program of `plan.step`, or None if it was left out.

    notes: sentences about known faults of XLA that `plan.apply` meets.
    """

    outputs: tuple[OutputDifference, ...]
    exact: ExactCase | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        agrees = all(each.ok for each in self.outputs) and (self.exact is None or self.exact.ok)
        return agrees and not self.proves_nothing

    @property
    def proves_nothing(self) -> bool:
        """True if no number of the outputs says anything about the plan."""
        return _proves_nothing(self.outputs)

    def __str__(self) -> str:
        lines = []
        for road in dict.fromkeys(each.road for each in self.outputs):
            own = [each for each in self.outputs if each.road == road]
            worst = max(own, key=lambda each: (not each.ok, each.difference))
            state = "agrees with" if all(each.ok for each in own) else "DIFFERS from"
            state = "CANNOT BE COMPARED with" if _proves_nothing(own) else state
            lines.append(
                f"{road} {state} the plain function: at most {worst.difference:.1e} ({worst.output})"
            )
        lines += _unstable_note(self.outputs)
        if self.exact is not None:
            lines.append(exact_text(self.exact))
        lines += self.notes
        return "\n".join(lines)


def _proves_nothing(outputs: Sequence[OutputDifference]) -> bool:
    """Return True if no number is finite, and stays within what counts as a difference if the arguments are rounded."""
    counts = [(each.numbers, each.unstable + each.not_finite) for each in outputs]
    return any(number for number, _ in counts) and all(number == nothing for number, nothing in counts)


def _unstable_note(outputs: Sequence[OutputDifference]) -> Iterator[str]:
    """Yield a line about each kind of numbers that prove nothing, if these are one in a hundred or more."""
    numbers = sum(each.numbers for each in outputs)
    reasons = {
        "unstable": "another rounding of the arguments moves them as far as an error would",
        "not_finite": "they are NaN or infinite on these arguments; `verify(plan, *args)` takes others",
    }
    for kind, reason in reasons.items():
        found = sum(getattr(each, kind) for each in outputs)
        if found and 100 * found >= numbers:
            most = max(outputs, key=lambda each: int(getattr(each, kind)))
            yield f"{found / numbers:.0%} of the numbers prove nothing: {reason} (most in {most.output})"


def exactly_verified(plan: Plan, seed: int) -> ExactCase:
    """Compare the program of `plan.step` with the imported program over a finite field. Calls of JAX are not interpreted."""
    import numpy as np

    from mtfc.driver.running.execution import without_warnings
    from mtfc.driver.verification.exact_cases import exact_lowered

    given = {
        leaf.name: np.asarray(leaf.constant).reshape([dim.size for dim in leaf.flat_dims])
        for leaf in plan.imported.inputs
        if leaf.constant is not None and leaf.key is None
    }
    with doing("exact check"), without_warnings():
        return exact_lowered(plan.imported.program, plan.program, given, seed)


def verified(
    plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int, exact: bool = True
) -> PlanVerification:
    """Compute the function on one device, and by the plan's two roads, on the same arguments. exact: run the exact check, too.

    A function that was imported where a mesh was set is computed on this mesh, too.
    """
    import jax

    if not args and not kwargs:
        args, kwargs = drawn_arguments(plan, seed)
    plan.check_arguments(args, kwargs)
    args, kwargs = jax.tree.map(value_of, by_place(plan.function, args, kwargs))
    leaves, plain = list(plan.imported.outputs), jax.jit(plan.function)
    own_mesh = plan.imported.flat.mesh
    if own_mesh is not None:
        args, kwargs = jax.tree.map(_unplaced, (args, kwargs))
    with doing("the function on one device"), on_mesh(own_mesh and of_one_device(own_mesh)):
        expected = _numbers(plain(*args, **kwargs))
        narrowest = narrowest_dtype(plan)
        spread = rounding_spread(plain, args, kwargs, expected, narrowest)
    roads = {}
    with jax.sharding.set_mesh(plan.mesh), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notes name the faults
        if not any(each.stops for each in plan.known_faults):
            with doing("plan.apply"):
                roads["plan.apply"] = _numbers(_run_once(plan.apply())(*args, **kwargs))
        with doing("plan.step"):
            roads["plan.step"] = _numbers(_run_once(plan.step)(*args, **kwargs))
    if own_mesh is not None:
        with doing("the function on its own mesh"), on_mesh(own_mesh):
            roads[ON_ITS_MESH] = _numbers(plain(*args, **kwargs))
    found = [_compared(road, leaves, each, expected, spread, narrowest) for road, each in roads.items()]
    differences = tuple(difference for each in found for difference in each)
    notes = tuple(each.note for each in plan.known_faults)
    return PlanVerification(differences, exactly_verified(plan, seed) if exact else None, notes)


QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options under which XLA for CPUs partitions a program as ever, and LLVM optimizes nothing."""


def _run_once(function: Callable[..., Any]) -> Any:
    """Compile a function that runs once, which takes a CPU less time than to compile the function well."""
    import jax

    is_cpu = jax.default_backend() == "cpu"
    options: Any = QUICK_TO_COMPILE if is_cpu else None
    return jax.jit(function, compiler_options=options)


ON_ITS_MESH = "the function on its own mesh"


def on_mesh(mesh: Any) -> AbstractContextManager[Any]:
    """Return a context with a mesh, or with none."""
    import jax

    return nullcontext() if mesh is None else jax.sharding.set_mesh(mesh)


def of_one_device(mesh: Any) -> Any:
    """Return a mesh of one device with the same axes."""
    import jax

    first = mesh.devices.ravel()[:1].reshape((1,) * mesh.devices.ndim)
    return jax.sharding.Mesh(first, mesh.axis_names, axis_types=mesh.axis_types)


def _unplaced(x: Any) -> Any:
    """Return an array that is on no devices yet."""
    import jax
    import numpy as np

    if not isinstance(x, jax.Array):
        return x
    if not jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(x)
    implementation: Any = jax.random.key_impl(x)
    return jax.random.wrap_key_data(
        jax.numpy.asarray(np.asarray(jax.random.key_data(x))), impl=implementation
    )


PERTURBED = 4
"""The number of times that the plain function is computed on arguments that differ by a rounding."""


ROUNDINGS = {8: 0.1, 16: 0.25}
"""Bits of a float dtype -> how many roundings arguments change by; 4 for wider ones, whose limit is far above one rounding."""


def narrowest_dtype(plan: Plan) -> str:
    """Return the float dtype of the fewest bits that a plan's function computes in."""
    dtypes = {result.dtype for step in plan.imported.steps for result in step.results}
    dtypes |= {leaf.dtype for leaf in plan.imported.inputs}
    return max(dtypes & LIMIT.keys(), key=LIMIT.__getitem__, default="f32")


def rounding_spread(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    expected: Sequence[Any],
    narrowest: str = "f32",
) -> list[Any]:
    """Return how far each number of the results moves if the arguments change by some roundings of the narrowest dtype.

    Where a gradient is zero, as that of a key's bias, a step of Adam makes numbers of order 1 from rounding errors. Such numbers
    say nothing about a layout. A number moves at least as far as half of its array do.
    """
    import jax
    import numpy as np

    def rounding(dtype: Any) -> float:
        finfo: Any = jax.numpy.finfo
        info = finfo(dtype)
        return float(info.eps) * ROUNDINGS.get(info.bits, 4)

    spread, least = [np.zeros(x.shape) for x in expected], rounding(ARRAY_DTYPES[narrowest])
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    floats = {i: x for i, x in enumerate(leaves) if _is_float(x)}
    moves = {i: max(rounding(x.dtype), least) for i, x in floats.items()}

    @jax.jit
    def moved(arrays: dict[int, Any], noise: dict[int, Any]) -> dict[int, Any]:
        wide = {i: x if x.dtype.itemsize > 4 else x.astype("float32") for i, x in arrays.items()}
        return {i: (wide[i] * (1 + noise[i])).astype(x.dtype) for i, x in arrays.items()}

    for number in range(PERTURBED):
        random = np.random.default_rng(number)
        noise = {
            i: (moves[i] * random.standard_normal(x.shape)).astype(np.promote_types(x.dtype, np.float32))
            for i, x in floats.items()
        }
        changed = {**dict(enumerate(leaves)), **moved(floats, noise)}
        changed_args, changed_kwargs = jax.tree.unflatten(tree, [changed[i] for i in range(len(leaves))])
        found = _numbers(function(*changed_args, **changed_kwargs))
        for i, (x, y) in enumerate(zip(found, expected, strict=True)):
            is_finite = np.isfinite(x) & np.isfinite(y)
            apart = np.subtract(x, y, out=np.zeros(x.shape), where=is_finite)
            spread[i] = np.maximum(spread[i], np.abs(apart))
    return [np.maximum(each, np.median(each)) for each in spread]


def _is_float(x: Any) -> bool:
    import jax

    return bool(jax.numpy.issubdtype(getattr(x, "dtype", int), jax.numpy.floating))


def _numbers(results: Any) -> list[Any]:
    """Return all results as f64 arrays; keys as their data, and complex numbers as pairs."""
    import jax
    import numpy as np

    def wide(x: Any) -> Any:
        is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(x) if is_key else x)
        parts = np.stack([array.real, array.imag]) if np.iscomplexobj(array) else array
        return parts.astype(np.float64)

    return [wide(x) for x in jax.tree.leaves(results)]


def drawn_arguments(plan: Plan, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw arguments: small floats with ties and zeros, small integers, and keys.

    The state of an optimizer, an argument that is returned anew beside the first, gets positive numbers, as second moments are.
    """
    import jax
    import numpy as np

    random = np.random.default_rng(seed)
    leaves = [_drawn(leaf, random) for leaf in plan.imported.inputs if leaf.constant is None]
    found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.unflatten(plan.imported.flat.in_tree, leaves)
    return found


def _drawn(leaf: Leaf, random: Any) -> Any:
    import jax
    import numpy as np

    if leaf.key is not None:
        data = random.integers(0, 2**32, leaf.shape, np.uint32)
        return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=leaf.key)
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
    mixed = 0.05 + abs(numbers) if is_state else mixed
    return np.asarray(mixed, jax.numpy.dtype(ARRAY_DTYPES[leaf.dtype]))


def _compared(
    road: str,
    leaves: Sequence[Leaf],
    found: Sequence[Any],
    expected: Sequence[Any],
    spread: Sequence[Any],
    narrowest: str,
) -> list[OutputDifference]:
    """Compare outputs. Errors are shares of the largest number of an output: see `LIMIT`."""
    import numpy as np

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
