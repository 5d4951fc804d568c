"""Functions that are written for a mesh: for JAX's explicit sharding, or with `jax.shard_map` inside.

A plan replaces shardings in types and parameters, so the import works on a jaxpr without them. There a call of `jax.shard_map`
is a batch: the program of one device, mapped by `jax.vmap` over the axes of the call's own mesh. The parts of an array are the
examples of the batch, and collectives are reductions and moves along the batch. So the call means the same on any mesh, and
layouts may split its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from mtfc.compiler.diagnostics import CompileError, Span
from mtfc.frontend.jaxpr.equations import bound
from mtfc.frontend.jaxpr.flat import refused
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


Spec = Sequence[tuple[str, ...]]
"""For each axis of an array, the mesh axes that split it, the outermost first."""

Body = Callable[..., Sequence[Any]]


def as_batches(eqn: Any, operands: Sequence[Any], body: Body) -> list[Any]:
    """Return the results of a `shard_map`. body: evaluates the program of one device. Raises errors of JAX."""
    mesh = eqn.params["mesh"]
    manual = eqn.params["newly_manual_axes"]
    axes = tuple(axis for axis in mesh.axis_names if axis in manual)
    sizes = {axis: mesh.shape[axis] for axis in axes}
    specs = [_spec(spec, v.aval.ndim) for spec, v in zip(eqn.params["in_specs"], eqn.invars, strict=True)]
    given = [_parts(x, spec, sizes) for x, spec in zip(operands, specs, strict=True)]
    results = _mapped(body, specs, sizes)(*given)
    ends = [_spec(spec, v.aval.ndim) for spec, v in zip(eqn.params["out_specs"], eqn.outvars, strict=True)]
    return [_whole(x, spec, sizes) for x, spec in zip(results, ends, strict=True)]


def without_variation(eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
    """Return the results of an equation that says along which mesh axes arrays vary, or of a permutation that `jax.vmap` refuses.

    None for another equation.
    """
    import jax

    name, params = eqn.primitive.name, eqn.params
    if name in ("pvary", "pcast"):
        return [*operands]
    if name == "psum_invariant":
        reduced: Any = jax.lax.psum
        return [reduced(x, params["axes"]) for x in operands]
    if name == "ppermute":
        return [_permuted(x, params["axis_name"], params["perm"]) for x in operands]
    if name == "all_gather_invariant":
        gathered: Any = jax.lax.all_gather
        options = {"axis": params["all_gather_dimension"], "tiled": params["tiled"]}
        return [gathered(x, params["axis_name"], **options) for x in operands]
    return None


def _permuted(x: Any, axes: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Send parts from device to device: a device that gets none has zeros."""
    import jax

    size: int = jax.lax.axis_size(axes)
    sources = [size] * size
    for source, target in pairs:
        sources[target] = source
    place = jax.numpy.asarray(sources)[jax.lax.axis_index(axes)]
    return jax.lax.all_gather(x, axes).at[place].get(mode="fill", fill_value=0)


def has_shard_map(closed: Any) -> bool:
    """Return True if a jaxpr has a `shard_map`, or one that it calls."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    for eqn in getattr(closed, "jaxpr", closed).eqns:
        values = [y for x in eqn.params.values() for y in (x if isinstance(x, tuple) else (x,))]
        inside = any(has_shard_map(x) for x in values if isinstance(x, ClosedJaxpr | Jaxpr))
        if inside or eqn.primitive.name == "shard_map":
            return True
    return False


def _mapped(body: Body, specs: Sequence[Spec], sizes: dict[str, int]) -> Body:
    """Return the body under a `jax.vmap` for each mesh axis. Operands and results have these axes in front."""
    import jax

    found: Any = body
    for axis, size in reversed(sizes.items()):
        places = tuple(0 if any(axis in each for each in spec) else None for spec in specs)
        found = jax.vmap(found, places, 0, axis_name=axis, axis_size=size)
    mapped: Body = found
    return mapped


def _spec(spec: Any, rank: int) -> Spec:
    """Return the mesh axes of each axis of an array."""
    if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        raise ValueError(f"pending sums in {spec}")
    entries = [() if each is None else (each,) if isinstance(each, str) else tuple(each) for each in spec]
    return [*entries, *[()] * (rank - len(entries))]


def _parts(x: Any, spec: Spec, sizes: dict[str, int]) -> Any:
    """Return an array with an axis in front for each mesh axis that splits it."""
    order = [axis for each in spec for axis in each]
    shape = [
        n
        for size, each in zip(x.shape, spec, strict=True)
        for n in (*(sizes[a] for a in each), size // prod(sizes[a] for a in each))
    ]
    places: dict[str, int] = {}
    ends: list[int] = []
    for each in spec:
        for axis in each:
            places[axis] = len(places) + len(ends)
        ends.append(len(places) + len(ends))
    front = [places[axis] for axis in sizes if axis in order]
    return x.reshape(shape).transpose(*front, *ends)


def _whole(x: Any, spec: Spec, sizes: dict[str, int]) -> Any:
    """Return a result without the axes in front: undo `_parts`. A mesh axis that does not split it holds copies."""
    split = [axis for axis in sizes if any(axis in each for each in spec)]
    x = x[tuple(slice(None) if axis in split else 0 for axis in sizes)]
    order, shape = [], []
    for j, each in enumerate(spec):
        order += [*map(split.index, each), len(split) + j]
        shape.append(prod(sizes[axis] for axis in each) * x.shape[len(split) + j])
    return x.transpose(order).reshape(shape)
