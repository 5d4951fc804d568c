"""Facts about equations of jaxprs: what they call, what they make, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mtfc.compiler.ir.core import Stage
from mtfc.frontend.jaxpr.user_lines import at_line_of

INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Primitive that calls a jaxpr -> the parameter that has the jaxpr."""

RECOMPUTING = ("remat2", "checkpoint")


def kept_apart(eqn: Any) -> tuple[bool, ...]:
    """Return for each operand of an equation, True if a barrier keeps a second computation from it apart from the first.

    Only the backward pass of `jax.checkpoint` has such operands.
    """
    apart = eqn.primitive.name in RECOMPUTING and eqn.params.get("differentiated", True)
    prevented = eqn.params.get("prevent_cse", True)
    each = prevented if isinstance(prevented, tuple) else (bool(prevented),) * len(eqn.invars)
    return tuple(apart and is_prevented for is_prevented in each)


def makes_step(eqn: Any) -> bool:
    """Return False for an equation that makes no elements, or joins one array with empty ones."""
    if eqn.primitive.name == "concatenate" and sum(map(has_elements, eqn.invars)) == 1:
        return False
    return any(map(has_elements, eqn.outvars))


def has_elements(var: Any) -> bool:
    """Return False for a variable of a jaxpr whose array has no elements."""
    return 0 not in getattr(var.aval, "shape", ())


LONG = frozenset({
    "cholesky", "cond", "conv_general_dilated", "custom_linear_solve", "dot_general", "eig", "eigh", "fft",
    "householder_product", "lu", "pallas_call", "pure_callback", "qr", "ragged_dot_general", "scan", "schur", "svd",
    "triangular_solve", "while",
})  # fmt: skip
"""Primitives that may take long, or that do more than to compute."""


def all_equations(closed: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, and those of the jaxprs in their parameters."""
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from all_equations(inner)


def takes_long(closed: Any) -> bool:
    """Return True for a jaxpr with a primitive that may take long, or with effects."""
    return any(eqn.primitive.name in LONG or eqn.effects for eqn in all_equations(closed))


def evaluated(
    closed: Any,
    values: Sequence[Any],
    apply: Callable[[Any, list[Any]], Sequence[Any]],
    number: Callable[[Any], Any] = lambda literal: literal.val,
) -> list[Any]:
    """Return the results of a jaxpr for the values of its arguments.

    apply: returns the results of an equation for its operands. number: returns the value of a literal.
    """
    jaxpr = getattr(closed, "jaxpr", closed)
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=False))
    env.update(zip(jaxpr.invars, values, strict=True))

    def read(v: Any) -> Any:
        return number(v) if hasattr(v, "val") else env[v]

    for eqn in jaxpr.eqns:
        with at_line_of(eqn):
            found = apply(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


def bound(primitive: Any, operands: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """Apply a primitive, and return its results."""
    found = primitive.bind(*operands, **primitive.get_bind_params(dict(params)))
    return list(found) if primitive.multiple_results else [found]


def stage_of(eqn: Any, around: Stage) -> Stage:
    """Return the stage of an equation; around: that of the equation whose jaxpr has it."""
    return "backward" if "transpose(" in str(eqn.source_info.name_stack) else around


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of constants and of carries of a `scan`, from its parameters; JAX 0.12 states them as trees."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carries, _ = params["ft_in"].unpack()
    return len(consts.vals), len(carries.vals)
