"""Functions that are written for a mesh: for JAX's explicit sharding, or with `jax.shard_map` inside.

A plan replaces shardings in types and parameters, so the import works on a jaxpr without them. There a `shard_map` is a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtfc.compiler.diagnostics import CompileError, Span
from mtfc.frontend.jaxpr.equations import bound
from mtfc.frontend.jaxpr.flat import refused
from mtfc.frontend.jaxpr.shard_maps import as_batches, has_shard_map, without_variation
from mtfc.frontend.jaxpr.user_lines import at_line_of, line_of

CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
"""Primitive that only calls a jaxpr -> the parameter that has the jaxpr."""

RESHARDING = ("reshard", "mesh_cast")


def without_explicit_types(closed: Any) -> Any:
    """Return a jaxpr without shardings in types, if the mesh of this context has Explicit axes, and without `shard_map`.

    Raises `CompileError` (E807) for a `shard_map` that is no batch.
    """
    import jax

    mesh, kinds = jax.sharding.get_abstract_mesh(), jax.sharding.AxisType
    if mesh.empty or kinds.Explicit not in mesh.axis_types:
        return _converted(closed) if has_shard_map(closed) else closed
    auto = jax.sharding.AbstractMesh(
        mesh.axis_sizes, mesh.axis_names, axis_types=(kinds.Auto,) * len(mesh.axis_names)
    )
    with jax.sharding.use_abstract_mesh(auto):
        return _converted(closed)


def _converted(closed: Any) -> Any:
    import jax

    def function(*arrays: Any) -> list[Any]:
        return _evaluated(closed.jaxpr, closed.consts, arrays)

    struct: Any = jax.ShapeDtypeStruct
    return jax.make_jaxpr(function)(
        *(
            struct(v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False))
            for v in closed.jaxpr.invars
        )
    )


def _evaluated(jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, arrays, strict=True))

    def read(v: Any) -> Any:
        return _number(v) if hasattr(v, "val") else env[v]

    for eqn in jaxpr.eqns:
        with at_line_of(eqn):
            found = _applied(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _number(literal: Any) -> Any:
    """Return the number of a literal without its type, which has a mesh."""
    import numpy as np

    number = np.asarray(literal.val)
    return number.item() if getattr(literal.aval, "weak_type", False) else number


def _applied(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    if name in CALLS:
        inner = eqn.params[CALLS[name]]
        return _evaluated(inner.jaxpr, inner.consts, operands)
    if name in RESHARDING:
        return operands
    if name == "shard_map":
        return _of_shard_map(eqn, operands)
    if (found := without_variation(eqn, operands)) is not None:
        return found
    params = {key: _without_shardings(value) for key, value in eqn.params.items()}
    return bound(eqn.primitive, operands, params)


def _of_shard_map(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    try:
        return as_batches(eqn, operands, lambda *xs: _evaluated(eqn.params["jaxpr"], (), xs))
    except CompileError:
        raise
    except Exception as error:  # what JAX cannot map
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"this `shard_map` cannot be computed as a batch of the parts of its mesh: {reason}"
        place = line_of(eqn.source_info.traceback) or Span("", 1, 1, 1, 1)
        help = "import the function without it: a plan splits the arrays of the whole program"
        raise refused("E807", message, place, help) from None


def _without_shardings(value: Any) -> Any:
    """Return a parameter without shardings on Explicit axes, also in its jaxprs."""
    import jax
    from jax.extend.core import ClosedJaxpr, Jaxpr

    if isinstance(value, ClosedJaxpr):
        return _converted(value)
    if isinstance(value, Jaxpr):
        return _converted(ClosedJaxpr(value, ())).jaxpr
    if isinstance(value, tuple) and any(isinstance(x, ClosedJaxpr) for x in value):
        return tuple(map(_without_shardings, value))
    return None if isinstance(value, jax.sharding.NamedSharding) else value
