"""Trace a function on arguments of any pytrees. Nothing is computed.

A function that changes objects of Flax NNX which it gets becomes a function that returns the arguments with these anew.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from typing import Any

import attrs

from mtfc.compiler.diagnostics import CompileError, Span, failure
from mtfc.frontend.jaxpr.expansions import all_equations, bound, evaluated
from mtfc.frontend.jaxpr.flat import Flat, Flattener, Operand
from mtfc.frontend.jaxpr.user_lines import definition, line_of, line_of_error


def traced(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Flat:
    """Trace a function on arguments of any pytrees. Raises `CompileError` for what no program can have."""
    import jax

    _check_call(function, args, kwargs)
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
        raise _of_values(error, first, function) from None
    except (TypeError, ValueError) as error:
        shown = _of_signature(str(error), function)
        if shown is None and OF_TRACERS.search(str(error)):
            shown = _of_values(error, OF_TRACERS.sub("traced array", str(error)), function)
        if shown is None:
            raise
        raise shown from None


def _of_values(error: Exception, reason: str, function: Callable[..., Any]) -> CompileError:
    """Return the error (E802) for code that needs the numbers of arrays while it is traced."""
    return failure(
        "E802",
        f"the Python code depends on the values of arrays: {reason}",
        line_of_error(error) or definition(function),
        "use `jnp.where`, `jax.lax.cond` or `jax.lax.scan` in place of `if` and `for`, and `jnp` in place of NumPy and `float`",
    )


OF_TRACERS = re.compile(r"\w*Tracer\b")
"""The type of an array in tracing: Python itself says that it has no hash, or no format."""

NOT_HASHABLE = "Non-hashable static arguments"
NOT_AN_ARRAY = re.compile(r"returned a value of type <class '([^']+)'>")


def _of_signature(message: str, function: Callable[..., Any]) -> CompileError | None:
    """Return the error of a function whose static arguments or results JAX refuses; None for other errors."""
    found = NOT_AN_ARRAY.search(message)
    if found is not None:
        kind = found[1].removeprefix("builtins.")
        return failure(
            "E801",
            f"the function returns a leaf of type {kind}, and must return arrays",
            definition(function),
        )
    if message.startswith(NOT_HASHABLE):
        return failure(
            "E801",
            "an argument is static under `jax.jit`, and all arguments of a program are arrays",
            definition(function),
            BY_CLOSURE,
        )
    return None


def _objects(functional: Callable[..., Any], flat: Flat) -> list[Operand]:
    """Return the arrays of the objects that a function returns anew."""
    number = getattr(functional, "returned", 0)
    pairs = zip(flat.outputs, flat.body.outputs, strict=True)
    return [output for path, output in pairs if path and path[0].idx < number] if number else []


def _flattened(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Flat:
    """Return the flat steps of a traced function, with the paths and trees of its arguments and results."""
    import jax
    from jax.tree_util import tree_flatten_with_path, tree_structure

    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    closed = without_explicit_types(closed)
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
        argument_names(function, len(args)),
        function,
        mesh=_mesh_of_context(),
    )


def _mesh_of_context() -> Any:
    """Return the mesh that is set; None if none is, and inside of `jax.jit`, where JAX knows no devices."""
    import jax

    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return None
    return None if mesh.empty else mesh


def _is_variable(leaf: Any) -> bool:
    """Return True for a variable of Keras."""
    return isinstance(getattr(leaf, "path", None), str) and hasattr(leaf, "shape")


def _as_array(leaf: Any) -> Any:
    """Return shape and dtype in the place of an array; other leaves stay."""
    import jax

    make: Any = jax.ShapeDtypeStruct
    return make(tuple(leaf.shape), leaf.dtype) if _is_variable(leaf) else leaf


def value_of(leaf: Any) -> Any:
    """Return the array of a variable of Keras, and any other leaf as it is."""
    return leaf.value if _is_variable(leaf) else leaf


def by_place(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the same arguments, by keyword only those that have no place in the function's signature, or do not fit it."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return tuple(args), dict(kwargs)
    return bound.args, bound.kwargs


def argument_names(function: Callable[..., Any], number: int) -> tuple[str, ...]:
    """Return names for positional arguments. Those of `*xs` are `xs0`, `xs1` and so on."""
    try:
        kinds = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        kinds = []
    named = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in kinds if p.kind == p.VAR_POSITIONAL), "arg")
    return (*named[:number], *(f"{rest}{i}" for i in range(number - len(named))))


BY_EXAMPLE = "give them as in a call, `from_jax(f, x, y)`, and bind static ones by `functools.partial`"
BY_CLOSURE = "pass other values by `functools.partial`, or by a closure"


def misfit(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why arguments do not fit the signature of a function; empty if they do, or if it has none."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return f"do not fit the function: {error}"
    except ValueError:
        pass
    return ""


def _check_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `CompileError` for arguments that do not fit the function, and for a leaf that is no array."""
    from jax.tree_util import keystr, tree_flatten_with_path

    if reason := misfit(function, args, kwargs):
        raise failure("E801", f"the example arguments {reason}", definition(function), BY_EXAMPLE)
    inner = inspect.unwrap(function)
    if any(
        is_other(inner)
        for is_other in (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction)
    ):
        raise failure(
            "E801", "the function has `yield` or `async`, and must return arrays", definition(function)
        )
    names = argument_names(function, len(args))
    for path, leaf in tree_flatten_with_path((tuple(args), dict(kwargs)))[0]:
        kind = _kind_of_other(leaf)
        if kind is not None:
            first = names[path[1].idx] if path[0].idx == 0 else keystr(path[1:2], simple=True)
            place = "/".join([first, *(keystr((key,), simple=True) for key in path[2:])])
            message = f"argument {place} has a leaf of type {kind}, and must have arrays"
            raise failure("E801", message, definition(function), BY_CLOSURE)


def _kind_of_other(leaf: Any) -> str | None:
    """Return the type of a leaf that is no array of numbers; None for an array."""
    import numpy as np

    if not hasattr(leaf, "shape") and not isinstance(leaf, bool | int | float | complex):
        return type(leaf).__name__
    dtype = getattr(leaf, "dtype", None)
    is_other = isinstance(dtype, np.dtype) and (dtype.kind in "OSUTMm" or dtype.names is not None)
    return f"{type(leaf).__name__} of {dtype}" if is_other else None


# Objects of Flax NNX


def returning_changed(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function that returns the arguments whose objects `function` changes, in order, and then its result.

    Its attribute `returned` is their number. A function that changes no object stays as it is.
    """
    import jax

    places = [key for key, arg in _by_place(args, kwargs).items() if _may_change(arg)]
    if not places:
        return function
    changed: list[int | str] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        """Call the function, and note which of its arguments it has changed in place."""
        given = _by_place(args, kwargs)
        before = [jax.tree.leaves(given[key]) for key in places]
        result = function(*args, **kwargs)
        after = [jax.tree.leaves(given[key]) for key in places]
        for key, old, new in zip(places, before, after, strict=True):
            if len(old) != len(new) or any(a is not b for a, b in zip(old, new, strict=True)):
                changed.append(key)
        return result

    jax.eval_shape(watched, *args, **kwargs)
    chosen = tuple(dict.fromkeys(changed))
    if not chosen:
        return function

    @wraps(function)
    def functional(*args: Any, **kwargs: Any) -> Any:
        """Call the function on copies; return the changed arguments and the result."""
        copies = jax.tree.map(lambda x: x, (args, kwargs))  # the caller's own objects stay as they are
        result = function(*copies[0], **copies[1])
        new = _by_place(*copies)
        return (*(new[key] for key in chosen), result)

    vars(functional)["returned"] = len(chosen)
    return functional


def _by_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    """Return arguments by their numbers and names."""
    found: dict[int | str, Any] = dict(enumerate(args))
    return found | dict(kwargs)


def _may_change(arg: Any) -> bool:
    """Return True for an argument with an object of NNX, such as a module or a metric, whose methods may change its arrays."""
    import jax

    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False

    kind = getattr(nnx, "Pytree", None) or nnx.Object  # the name in Flax before 0.12

    def is_object(x: Any) -> bool:
        return isinstance(x, kind)

    return any(map(is_object, jax.tree.leaves(arg, is_leaf=is_object)))


# Names that arguments carry for their axes
#
# Flax keeps the names in a box around an array. A box is a node of the pytree, and no mesh is needed to read it.


NNX_KEYS = ("out_sharding", "sharding_names", "sharding")
"""The keys of NNX's metadata that have the names, the newest first."""

MESH_AXES = frozenset({
    "cp", "data", "ddp", "dp", "ep", "fsdp", "hsdp", "mdl", "model", "mp", "pipe", "pipeline", "pp", "replica", "sp", "stage",
    "tensor", "tp", "x", "y", "z", "zero",
})  # fmt: skip
"""Usual names of mesh axes. Flax's metadata have them where logical names could stand."""


def axis_annotations(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[str | None], ...]:
    """Return the logical names of each leaf's axes. Names of mesh axes are none: they say how an array is split."""
    import jax

    found: list[Sequence[str | None]] = []
    for x in jax.tree.leaves((tuple(args), dict(kwargs)), is_leaf=lambda x: bool(_of_box(x))):
        names = _of_box(x)
        found += [
            names if len(names) <= len(getattr(leaf, "shape", ())) else () for leaf in jax.tree.leaves(x)
        ]
    return tuple(found)


def _of_box(x: Any) -> Sequence[str | None]:
    """Return the names in a box of Flax: `nn.LogicallyPartitioned` has `names`, and a variable of NNX has metadata.

    Those of `nn.Partitioned` and of a `PartitionSpec` are mesh axes.
    """
    import jax

    is_box = hasattr(x, "get_metadata") or (hasattr(x, "unbox") and hasattr(x, "rules"))
    if not is_box:
        return ()
    metadata = x.get_metadata() if hasattr(x, "get_metadata") else vars(x)
    names = next((metadata[key] for key in (*NNX_KEYS, "names") if metadata.get(key)), ())
    meshes = metadata.get("mesh"), jax.sharding.get_abstract_mesh()
    axes = {*MESH_AXES, *(axis for mesh in meshes if mesh is not None for axis in mesh.axis_names)}
    is_spec = not isinstance(names, tuple | list) or isinstance(names, jax.sharding.PartitionSpec)
    return () if is_spec else [each if isinstance(each, str) and each not in axes else None for each in names]


# Functions that are written for a mesh: for JAX's explicit sharding, or with `jax.shard_map` inside
#
# A plan replaces shardings in types and parameters, so the import works on a jaxpr without them. There a call of
# `jax.shard_map` is a batch: the program of one device, mapped by `jax.vmap` over the axes of the call's own mesh. The parts of
# an array are the examples of the batch, and collectives are reductions and moves along the batch. So the call means the same
# on any mesh, and layouts may split its batches.


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
        has_shard_map = any(eqn.primitive.name == "shard_map" for eqn in all_equations(closed))
        return _converted(closed) if has_shard_map else closed
    auto = jax.sharding.AbstractMesh(
        mesh.axis_sizes, mesh.axis_names, axis_types=(kinds.Auto,) * len(mesh.axis_names)
    )
    with jax.sharding.use_abstract_mesh(auto):
        return _converted(closed)


def _converted(closed: Any) -> Any:
    """Return a jaxpr traced anew, without shardings, and with batches in the place of `shard_map`."""
    import jax

    def function(*arrays: Any) -> list[Any]:
        return evaluated(closed, arrays, _applied, _number)

    struct: Any = jax.ShapeDtypeStruct
    return jax.make_jaxpr(function)(
        *(
            struct(v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False))
            for v in closed.jaxpr.invars
        )
    )


def _number(literal: Any) -> Any:
    """Return the number of a literal without its type, which has a mesh."""
    import numpy as np

    number = np.asarray(literal.val)
    return number.item() if getattr(literal.aval, "weak_type", False) else number


def _applied(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the results of an equation in the new trace: without shardings, and without casts of varying axes."""
    name = eqn.primitive.name
    if name in CALLS:
        return evaluated(eqn.params[CALLS[name]], operands, _applied, _number)
    if name in RESHARDING:
        return operands
    if name == "shard_map":
        return _of_shard_map(eqn, operands)
    if (found := without_variation(eqn, operands)) is not None:
        return found
    params = {key: _without_shardings(value) for key, value in eqn.params.items()}
    return bound(eqn.primitive, operands, params)


def _of_shard_map(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a `shard_map`, computed as a batch over the devices of its mesh.

    Refuses what JAX cannot map (E807).
    """
    try:
        return as_batches(eqn, operands, lambda *xs: evaluated(eqn.params["jaxpr"], xs, _applied, _number))
    except CompileError:
        raise
    except Exception as error:  # what JAX cannot map
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"this `shard_map` cannot be computed as a batch of the parts of its mesh: {reason}"
        place = line_of(eqn.source_info.traceback) or Span("", 1, 1, 1, 1)
        help = "import the function without it: a plan splits the arrays of the whole program"
        raise failure("E807", message, place, help) from None


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
