"""Compare a plan with the user's own function: `plan.apply` and `plan.step` against one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from mtfc.driver.jax_functions.plan import Plan
    from mtfc.frontend.jaxpr.importing import Leaf

LIMIT = {"f64": 1e-9, "f32": 1e-4, "bf16": 5e-2, "f16": 1e-2}
"""dtype -> the largest difference of an output, as a share of the largest number of its kind among all outputs."""


@attrs.frozen
class OutputDifference:
    """An output of `apply` or of `step` and its largest difference to the plain function, as a share of the largest output."""

    road: str
    output: str
    error: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.error <= self.limit


@attrs.frozen
class PlanVerification:
    """The comparison of all outputs."""

    outputs: tuple[OutputDifference, ...]

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self.outputs)

    def __str__(self) -> str:
        lines = []
        for road in dict.fromkeys(each.road for each in self.outputs):
            own = [each for each in self.outputs if each.road == road]
            worst = max(own, key=lambda each: (not each.ok, each.error))
            state = "agrees with" if all(each.ok for each in own) else "DIFFERS from"
            lines.append(f"{road} {state} the plain function: at most {worst.error:.1e} ({worst.output})")
        return "\n".join(lines)


def verified(plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> PlanVerification:
    """Compute the function on one device, and by the plan's two roads, on the same arguments."""
    import jax

    if not args and not kwargs:
        args, kwargs = drawn_arguments(plan, seed)
    leaves = list(plan.imported.outputs)
    plain = jax.tree.leaves(jax.jit(plan.function)(*args, **kwargs))
    with jax.sharding.set_mesh(plan.mesh):
        applied = jax.tree.leaves(jax.jit(plan.apply())(*args, **kwargs))
        own = jax.tree.leaves(jax.jit(plan.step)(*args, **kwargs))
    found = [*_compared("plan.apply", leaves, applied, plain), *_compared("plan.step", leaves, own, plain)]
    return PlanVerification(tuple(found))


def drawn_arguments(plan: Plan, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw arguments: small floats with ties and zeros, small integers, and keys."""
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
    if leaf.dtype in ("i32", "u32"):
        return random.integers(0, 2, leaf.shape).astype("int32" if leaf.dtype == "i32" else "uint32")
    numbers = abs(random.standard_normal(leaf.shape)) * 0.3
    ties = np.round(numbers * 4) / 4
    mixed = np.where(random.random(leaf.shape) < 0.1, ties, numbers)
    return jax.numpy.asarray(
        mixed, {"bf16": "bfloat16", "f16": "float16", "f64": "float64"}.get(leaf.dtype, "float32")
    )


def _compared(
    road: str, leaves: Sequence[Leaf], found: Sequence[Any], plain: Sequence[Any]
) -> list[OutputDifference]:
    """Compare outputs. Errors are shares of the largest number among the outputs of one dtype: see `LIMIT`."""
    import jax
    import numpy as np

    def numbers(x: Any, leaf: Leaf) -> Any:
        return np.asarray(jax.random.key_data(x) if leaf.key is not None else x).astype(np.float64)

    pairs = [(numbers(a, leaf), numbers(b, leaf)) for a, b, leaf in zip(found, plain, leaves, strict=True)]
    largest: dict[str, float] = {}
    for (_, right), leaf in zip(pairs, leaves, strict=True):
        finite = np.abs(right[np.isfinite(right)])
        largest[leaf.dtype] = max(largest.get(leaf.dtype, 0.0), float(finite.max(initial=0.0)))
    result = []
    for (left, right), leaf in zip(pairs, leaves, strict=True):
        same_kind = np.array_equal(np.isfinite(left), np.isfinite(right))
        finite = np.isfinite(left) & np.isfinite(right)
        apart = float(np.abs(left[finite] - right[finite]).max(initial=0.0))
        error = apart / (largest[leaf.dtype] or 1.0) if same_kind else float("inf")
        result.append(OutputDifference(road, leaf.name, error, LIMIT.get(leaf.dtype, 0.0)))
    return result
