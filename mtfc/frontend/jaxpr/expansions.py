"""Facts about equations of jaxprs: what they call, what they make, and how they are applied.

Find the simpler jaxpr that an equation stands for.

Some primitives are evaluated by a function of JAX: `custom_linear_solve`, and most primitives of other libraries. Their steps are
those of this function. Dots and moves of complex numbers are those of their real and imaginary parts, and moves of random keys
are those of the keys' data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
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


OWN = frozenset({"composite", "custom_linear_solve", "custom_vmap_call", "linear_call"})
"""Primitives of JAX itself that are evaluated by a function of JAX, for any operands."""

IN_JAX = {
    "regularized_incomplete_beta": ("jax._src.lax.special", "regularized_incomplete_beta_impl"),
    "bcoo_dot_general": ("jax.experimental.sparse.bcoo", "_bcoo_dot_general_impl"),
    "bcsr_dot_general": ("jax.experimental.sparse.bcsr", "_bcsr_dot_general_impl"),
}
"""Primitive that JAX lowers by a function of its own -> module and name of the function."""

BY_PARTS = frozenset({
    "cumsum", "dynamic_slice", "dynamic_update_slice", "gather", "pad", "reduce_sum", "reduce_window_sum", "scatter",
    "scatter-add",
})  # fmt: skip
"""Primitives that do with a complex number what they do with its real and its imaginary part."""

MOVING = frozenset({
    "broadcast_in_dim", "concatenate", "copy", "dynamic_slice", "dynamic_update_slice", "gather", "reshape", "rev", "select_n",
    "slice", "split", "squeeze", "stack", "transpose", "unstack",
})  # fmt: skip
"""Primitives that move random keys."""

OVER_AXES = {"psum": "sum", "pmax": "max", "pmin": "min"}
"""Collective along axes that `jax.vmap` maps -> the reduction of these axes."""

Evaluate = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""(equation, operands) -> results."""


def expansion(eqn: Any) -> Any | None:
    """Return a jaxpr that computes the results of an equation from its operands; None if no simpler one is known.

    The data of random keys, with one axis more, take the keys' place.
    """
    name = eqn.primitive.name
    if moves_keys(eqn):
        return _of_data(eqn)
    if any(map(_is_complex, eqn.outvars)):
        if name == "dot_general":
            return _traced(eqn, _complex_dot)
        if name in BY_PARTS:
            return _traced(eqn, _by_parts)
    if updates_whole(eqn):
        return _traced(eqn, _updated_whole)
    if runs_never(eqn):
        return _traced(eqn, _carried)
    if name in OVER_AXES and all(isinstance(axis, int) for axis in eqn.params["axes"]):
        return _traced(eqn, _reduced)
    if eqn.effects or not (name in OWN or name in IN_JAX or _is_foreign(eqn.primitive)):
        return None
    try:
        found = _traced(eqn, _by_jax)
    except Exception:  # a library may evaluate its primitive by anything
        return None
    return None if any(inner.primitive is eqn.primitive for inner in all_equations(found)) else found


def updates_whole(eqn: Any) -> bool:
    """Return True for a gather or scatter of the whole array, or of nothing: its indices have no elements."""
    name = eqn.primitive.name
    if not name.startswith(("gather", "scatter")) or 0 not in eqn.invars[1].aval.shape:
        return False
    if name == "gather":
        return bool(eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape)
    table, updates = eqn.invars[0].aval.shape, eqn.invars[2].aval.shape
    return bool(table == updates or 0 in updates)


def runs_never(eqn: Any) -> bool:
    """Return True for a scan of no iterations."""
    return bool(eqn.primitive.name == "scan" and eqn.params["length"] == 0)


def _carried(eqn: Any, operands: Sequence[Any]) -> Any:
    """Return the carries as they are, and results without elements."""
    from jax import numpy as jnp

    constants, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    empty = [jnp.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars[carries:]]
    return [*operands[constants : constants + carries], *empty]


def _is_complex(var: Any) -> bool:
    """Return True for an array of complex numbers."""
    import numpy as np

    return isinstance(var.aval.dtype, np.dtype) and var.aval.dtype.kind == "c"


def moves_keys(eqn: Any) -> bool:
    """Return True for an equation that only moves random keys."""
    return eqn.primitive.name in MOVING and any(map(_has_keys, eqn.outvars))


def _has_keys(var: Any) -> bool:
    """Return True for an array of keys of random numbers."""
    import jax

    return bool(jax.numpy.issubdtype(var.aval.dtype, jax.dtypes.prng_key))


def _of_data(eqn: Any) -> Any:
    """Return a jaxpr that applies the primitive of random keys to the keys' data: mapped over the numbers of a key, the last
    axis.
    """
    import jax

    struct: Any = jax.ShapeDtypeStruct
    avals = [struct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    axes = [-1 if _has_keys(v) else None for v in eqn.invars]
    data = [
        x if i is None else jax.eval_shape(jax.random.key_data, x) for x, i in zip(avals, axes, strict=True)
    ]
    function = jax.vmap(lambda *xs: eqn.primitive.bind(*xs, **eqn.params), axes, -1)
    return jax.make_jaxpr(function)(*data)


def _is_foreign(primitive: Any) -> bool:
    """Return True for a primitive of another library, or of one that JAX has as an experiment, such as sparse matrices."""
    impl = getattr(primitive, "impl", None)
    module = getattr(getattr(impl, "func", impl), "__module__", None) or "jax"
    return module.split(".")[0] not in ("jax", "jaxlib") or module.startswith("jax.experimental.sparse")


def _traced(eqn: Any, evaluate: Evaluate) -> Any:
    """Return the jaxpr that computes an equation by a function of Python."""
    import jax

    def function(*operands: Any) -> Any:
        found = evaluate(eqn, operands)
        return list(found) if eqn.primitive.multiple_results else [found]

    struct: Any = jax.ShapeDtypeStruct
    return jax.make_jaxpr(function)(*(struct(v.aval.shape, v.aval.dtype) for v in eqn.invars))


def _reduced(eqn: Any, operands: Sequence[Any]) -> Any:
    """Return the reductions of the operands by NumPy's functions."""
    import jax

    reduce = getattr(jax.numpy, OVER_AXES[eqn.primitive.name])
    found = [reduce(x, axis=eqn.params["axes"]).astype(x.dtype) for x in operands]
    return found if eqn.primitive.multiple_results else found[0]


def _updated_whole(eqn: Any, operands: Sequence[Any]) -> Any:
    """Read or update a whole array. All its axes are those of the updates, in order."""
    from jax import lax

    name, (x, _, *updates) = eqn.primitive.name, operands
    if not updates or 0 in updates[0].shape:
        return x
    return updates[0] if name == "scatter" else getattr(lax, name.removeprefix("scatter-"))(x, *updates)


def _by_jax(eqn: Any, operands: Sequence[Any]) -> Any:
    """Return the results by the function of JAX that evaluates the primitive."""
    if eqn.primitive.name in IN_JAX:
        module, name = IN_JAX[eqn.primitive.name]
        function = getattr(import_module(module), name)
        if not eqn.params:  # the function for special numbers takes whole arrays, and their dtype
            import jax

            return function(*jax.numpy.broadcast_arrays(*operands), dtype=operands[0].dtype)
        return function(*operands, **eqn.params)
    return eqn.primitive.impl(*operands, **eqn.params)


def _parts(x: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part of complex numbers; other numbers twice."""
    import jax

    return (jax.lax.real(x), jax.lax.imag(x)) if x.dtype.kind == "c" else (x, x)


def _by_parts(eqn: Any, operands: Sequence[Any]) -> Any:
    """Return a linear primitive of complex numbers, applied to the real and the imaginary parts."""
    import jax

    parts = zip(*map(_parts, operands), strict=True)
    return jax.lax.complex(*(eqn.primitive.bind(*each, **eqn.params) for each in parts))


def _complex_dot(eqn: Any, operands: Sequence[Any]) -> Any:
    """Return a dot of complex numbers as four dots of their parts: (a + bi)(c + di) == ac - bd + (ad + bc)i."""
    import jax

    (a, b), (c, d) = map(_parts, operands)
    params = {**eqn.params, "preferred_element_type": a.dtype}

    def dot(x: Any, y: Any) -> Any:
        return eqn.primitive.bind(x, y, **params)

    return jax.lax.complex(dot(a, c) - dot(b, d), dot(a, d) + dot(b, c))
