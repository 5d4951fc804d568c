"""Trace a function on arguments of any pytrees. Nothing is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.frontend.jaxpr.axis_annotations import axis_annotations
from mtfc.frontend.jaxpr.changed_objects import returning_changed
from mtfc.frontend.jaxpr.flat import Flat, Flattener, Operand, refused
from mtfc.frontend.jaxpr.user_lines import definition, line_of_error


def traced(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Flat:
    """Trace a function on arguments of any pytrees. Raises `CompileError` for what no program can have."""
    import jax

    _check_leaves(function, args, kwargs)
    leaves = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]
    variables = {path: leaf.path for path, leaf in leaves if _is_variable(leaf)}
    args, kwargs = jax.tree.map(_as_array, (tuple(args), dict(kwargs)))
    try:
        functional = returning_changed(function, args, kwargs)
        found = _flattened(functional, args, kwargs)
        is_same = all(x in found.body.arguments for x in _objects(functional, found))
        if is_same and functional is not function:
            found = _flattened(function, args, kwargs)
        return attrs.evolve(found, variable_paths=variables, annotations=axis_annotations(args, kwargs))
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
        jax.errors.NonConcreteBooleanIndexError,
    ) as error:
        first = next(iter(str(error).splitlines()), "")
        raise refused(
            "E802",
            f"the Python code depends on the values of arrays: {first}",
            line_of_error(error) or definition(function),
            "use `jnp.where`, `jax.lax.cond` or `jax.lax.scan` in place of Python's own `if` and `for`",
        ) from None


def _objects(functional: Callable[..., Any], flat: Flat) -> list[Operand]:
    """Return the arrays of the objects that a function returns anew."""
    number = getattr(functional, "returned", 0)
    pairs = zip(flat.outputs, flat.body.outputs, strict=True)
    return [output for path, output in pairs if path and path[0].idx < number] if number else []


def _flattened(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Flat:
    import jax
    from jax.tree_util import tree_flatten_with_path, tree_structure

    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    flattener = Flattener(definition(function))
    body = flattener.top(closed)
    return Flat(
        body,
        tuple(path for path, _ in tree_flatten_with_path((tuple(args), dict(kwargs)))[0]),
        tuple(path for path, _ in tree_flatten_with_path(shapes)[0]),
        tuple(flattener.constants),
        closed,
        tree_structure((tuple(args), dict(kwargs))),
        tree_structure(shapes),
        _argument_names(function, len(args)),
        function,
    )


def _is_variable(leaf: Any) -> bool:
    """Return True for a variable of Keras."""
    return isinstance(getattr(leaf, "path", None), str) and hasattr(leaf, "shape")


def _as_array(leaf: Any) -> Any:
    import jax

    make: Any = jax.ShapeDtypeStruct
    return make(tuple(leaf.shape), leaf.dtype) if _is_variable(leaf) else leaf


def value_of(leaf: Any) -> Any:
    """Return the array of a variable of Keras, and any other leaf as it is."""
    return leaf.value if _is_variable(leaf) else leaf


def _argument_names(function: Callable[..., Any], number: int) -> tuple[str, ...]:
    """Return names for positional arguments."""
    try:
        kinds = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        kinds = []
    named = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return tuple(named[i] if i < len(named) else f"arg{i}" for i in range(number))


def _check_leaves(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `CompileError` for a leaf that is no array."""
    from jax.tree_util import keystr, tree_flatten_with_path

    for path, leaf in tree_flatten_with_path((tuple(args), dict(kwargs)))[0]:
        if not hasattr(leaf, "shape") and not isinstance(leaf, bool | int | float | complex):
            place = keystr(path[1:], simple=True, separator=".")
            kind = type(leaf).__name__
            raise refused(
                "E801",
                f"argument {place} has a leaf of type {kind}, and must have arrays",
                definition(function),
                "pass other values by `functools.partial`, or by a closure",
            )
