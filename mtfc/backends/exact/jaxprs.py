# mypy: allow-untyped-calls
"""An interpreter of jaxprs over a finite field: the independent side of the check of an import.

It takes the user's jaxpr as it is, with residues for floats, and with axes by position. It knows nothing of dimensions, factors
and layouts. Integers, truth values and random keys are computed by JAX's own primitives, floats by `jax_rules.py`.

Whatever has no rule is a function of JAX that is interpreted in its place, or else a pseudo-random function of its operands.
`ImportedNumpy` gives the calls of an imported program the same meaning: it traces a call, and interprets the jaxpr.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.backends.exact.check import Evaluation, measured
from mtfc.backends.exact.jax_rules import ON_FLOATS, RULES, Evaluator, Operands, Rule, bind, plain
from mtfc.backends.exact.namespace import ExactNumpy, digest, pseudo_random
from mtfc.backends.exact.prime_field import PrimeField
from mtfc.backends.exact.residues import POISON, ExactArray, applied, exact
from mtfc.compiler.ir.ops.calls import applied_call

LONGEST_LOOP = 128
"""The number of iterations after which a loop that does not end is left."""


@attrs.define(eq=False)
class JaxprOnField(Evaluator):
    """The evaluation of jaxprs over a field.

    constants: arrays that the function closes over, and the values that stand for them. longest: the number of iterations after
    which a `while` is left. cut_loops: the number of loops that were left.
    """

    constants: Sequence[tuple[Any, Any]] = ()
    longest: int = LONGEST_LOOP
    cut_loops: int = 0

    def run(self, closed: Any, operands: Operands) -> list[Any]:
        """Return the results of a jaxpr."""
        jaxpr = getattr(closed, "jaxpr", closed)
        env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
        env |= {
            v: self.constant(x) for v, x in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True)
        }

        def read(v: Any) -> Any:
            return self.constant(v.val, v.aval.dtype) if hasattr(v, "val") else env[v]

        for eqn in jaxpr.eqns:
            found = self.results(eqn, [read(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, map(_of_type, eqn.outvars, found), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def constant(self, x: Any, dtype: Any = None) -> Any:
        """Return a number that is written in a jaxpr, or an array that the function closes over."""
        if is_key(x) or np.ndim(x):
            for array, value in self.constants:
                if array is x or _is_same(array, x):
                    return value
            return x if is_key(x) else measured(self.field, np.asarray(x))
        number = np.asarray(x, dtype or getattr(x, "dtype", None))
        return exact(self.field, number, number.dtype)

    def results(self, eqn: Any, operands: Operands) -> Sequence[Any]:
        """Return the results of one equation."""
        name = eqn.primitive.name
        has_floats = any(map(_is_float, operands))
        if name in CALLS:
            inner = eqn.params[CALLS[name]]
            number = len(getattr(inner, "jaxpr", inner).invars)
            return self.run(inner, operands[len(operands) - number :])
        rule = CONTROL.get(name) or (RULES.get(name) if not any(map(is_key, operands)) else None)
        if rule is None and has_floats:
            rule = ON_FLOATS.get(name)
        if rule is not None:
            found = rule(self, eqn, *operands)
            return found if isinstance(found, list) else [found]
        is_real = not any(x.is_residue for x in operands if isinstance(x, ExactArray))
        if not has_floats or (is_real and name in OF_REAL_NUMBERS):
            return self.by_jax(eqn, operands)
        inner = own_function(eqn)
        return self.hashed(eqn, operands) if inner is None else self.run(inner, operands)

    def by_jax(self, eqn: Any, operands: Operands, **params: Any) -> list[Any]:
        """Return the results that JAX computes of plain numbers."""
        given = [plain(x) if isinstance(x, ExactArray) else x for x in operands]
        return [x if is_key(x) else measured(self.field, np.asarray(x)) for x in bind(eqn, given, **params)]

    def hashed(self, eqn: Any, operands: Operands) -> list[Any]:
        """Return pseudo-random results of a primitive: of each element, each matrix, or of whole operands."""
        avals = [v.aval for v in eqn.outvars]
        arrays = [
            x if isinstance(x, ExactArray) else measured(self.field, np.asarray(without_key(x)))
            for x in operands
        ]
        core = _core(eqn, max((x.ndim for x in arrays), default=0))
        text = repr([eqn.primitive.name, sorted(filter(_is_plain, eqn.params.items()))])
        digests = [digest(self.field, x, min(core, x.ndim)) for x in arrays]
        whole = self.field.hashed(text, np.zeros((), np.uint64), *digests)
        self.field.count("results of primitives of JAX", sum(prod(each.shape) for each in avals))
        found = [
            pseudo_random(self.field, f"result {i}", whole, aval.shape[whole.ndim :], aval.dtype)
            for i, aval in enumerate(avals)
        ]
        for x in (x for x in arrays if x.has_special):
            is_poison = (x.values == POISON).any(tuple(range(x.ndim))[max(x.ndim - core, 0) :])
            for result in filter(_is_float, found):
                lead = is_poison.reshape(*is_poison.shape, *(1,) * (result.ndim - whole.ndim))
                result.values = np.where(lead, POISON, result.values)
        return found


class ImportedNumpy(ExactNumpy):
    """NumPy for an imported program, whose calls are interpreted. jaxprs: (call, shapes) -> jaxpr."""

    def __init__(self, field: PrimeField) -> None:
        """Start without jaxprs. Calls are evaluated over the field."""
        super().__init__(field)
        self.evaluation = JaxprOnField(field)
        self.jaxprs: dict[Any, Any] = {}

    def mapped_call(
        self,
        name: str,
        sizes: Sequence[int],
        places: Sequence[tuple[int, ...]],
        ranks: Sequence[int],
        *arrays: Any,
    ) -> tuple[ExactArray, ...]:
        """Return what `ir/ops/calls.py: mapped_call` returns, over the field."""
        import jax

        given = [exact(self.field, x) for x in arrays]
        call = name, tuple(sizes), tuple(places), tuple(ranks)
        key = call, tuple((x.shape, x.dtype) for x in given)
        if key not in self.jaxprs:
            structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given]
            self.jaxprs[key] = jax.make_jaxpr(partial(applied_call, *call))(*structs)
        return tuple(self.evaluation.run(self.jaxprs[key], given))


class ImportedEvaluation(Evaluation):
    """The evaluation of an imported program, op by op, with its calls interpreted."""

    longest = LONGEST_LOOP
    numpy = ImportedNumpy


# Facts


def is_key(x: Any) -> bool:
    """Return True for an array of random keys."""
    import jax

    dtype = getattr(x, "dtype", np.dtype(int))
    return not isinstance(dtype, np.dtype) and bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def without_key(x: Any) -> Any:
    """Return the data of random keys; other values as they are."""
    import jax

    return jax.random.key_data(x) if is_key(x) else x


def with_key(x: Any, key: Any) -> Any:
    """Return random keys of an implementation from their data; for None, the value as it is."""
    import jax

    return x if key is None else jax.random.wrap_key_data(jax.numpy.asarray(x), impl=key)


def _is_float(x: Any) -> bool:
    return isinstance(x, ExactArray) and x.is_float


def _is_same(array: Any, x: Any) -> bool:
    """Return True if two arrays have the same shape, dtype and bits."""
    if array.shape != x.shape or array.dtype != x.dtype:
        return False
    a, b = (np.asarray(without_key(each)).tobytes() for each in (array, x))
    return a == b


def _is_plain(item: tuple[str, Any]) -> bool:
    """Return True for a parameter whose text says what it is."""
    is_number = isinstance(item[1], bool | int | float | str)
    return is_number or (isinstance(item[1], tuple) and all(isinstance(x, int) for x in item[1]))


def _of_type(var: Any, x: Any) -> Any:
    """Return a value with the dtype of a variable."""
    if isinstance(x, ExactArray):
        assert x.shape == var.aval.shape, f"{x.shape}, and not {var.aval.shape}"
        return x if x.dtype == var.aval.dtype else x.astype(var.aval.dtype)
    return x


# Calls, branches and loops

CALLS = {
    **dict.fromkeys(("jit", "pjit", "remat2", "checkpoint", "composite"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_lin"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}  # fmt: skip
"""Primitive that is computed by a jaxpr -> the parameter that has it."""


def _cond(run: JaxprOnField, eqn: Any, number: ExactArray, *operands: Any) -> list[Any]:
    branches = eqn.params["branches"]
    return run.run(branches[min(max(int(number.values), 0), len(branches) - 1)], operands)


def _scan(run: JaxprOnField, eqn: Any, *operands: Any) -> list[Any]:
    """Iterate over the first axis of the stacks."""
    params = eqn.params
    body, length = params["jaxpr"], params["length"]
    if "num_consts" in params:
        consts, carries = params["num_consts"], params["num_carry"]
    else:
        consts, carries = (len(each.vals) for each in params["ft_in"].unpack()[:2])
    fixed, carry, stacks = (
        operands[:consts],
        operands[consts : consts + carries],
        operands[consts + carries :],
    )
    order = range(length)[::-1] if params["reverse"] else range(length)
    found: list[Any] = [None] * length
    for i in order:
        results = run.run(body, [*fixed, *carry, *(x[i] for x in stacks)])
        carry, found[i] = tuple(results[:carries]), results[carries:]
    outputs = [_stacked(run, [each[j] for each in found], v) for j, v in enumerate(eqn.outvars[carries:])]
    return [*carry, *outputs]


def _stacked(run: JaxprOnField, parts: Operands, var: Any) -> Any:
    """Return the results of all iterations as one array; without iterations, zeros of the result's type."""
    import jax

    if parts and not isinstance(parts[0], ExactArray):
        return jax.numpy.stack(parts)
    return run.np.stack(parts) if parts else run.np.zeros(var.aval.shape, var.aval.dtype)


def _while(run: JaxprOnField, eqn: Any, *operands: Any) -> list[Any]:
    """Iterate while the condition holds. `jax.vmap` makes conditions with a truth value for each example."""
    params = eqn.params
    n, m = params["cond_nconsts"], params["body_nconsts"]
    asked, fixed, carry = operands[:n], operands[n : n + m], list(operands[n + m :])
    for _ in range(run.longest):
        (goes_on,) = run.run(params["cond_jaxpr"], [*asked, *carry])
        if not goes_on.values.any():
            return carry
        found = run.run(params["body_jaxpr"], [*fixed, *carry])
        carry = [_where(run, goes_on, x, y) for x, y in zip(found, carry, strict=True)]
    run.cut_loops += 1
    return carry


def _where(run: JaxprOnField, condition: ExactArray, x: Any, y: Any) -> Any:
    """Return x where a condition holds for the first axes, and y elsewhere."""
    import jax

    if condition.values.all():
        return x
    shape = (*condition.shape, *(1,) * (x.ndim - condition.ndim))
    if not isinstance(x, ExactArray):
        return jax.numpy.where(condition.values.reshape(shape), x, y)
    return applied("where", condition.reshape(shape), x, y)


CONTROL: Mapping[str, Rule] = {"cond": _cond, "scan": _scan, "while": _while}


OF_REAL_NUMBERS = frozenset({"bitcast_convert_type", "ceil", "nextafter", "rem", "round"})
"""Primitives that JAX computes also of floats that are made of constants, indices and random bits alone."""

ELEMENTWISE = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e", "bessel_i1e", "bitcast_convert_type",
    "cbrt", "ceil", "copysign", "cosh", "digamma", "erf_inv", "exp2", "igamma", "igamma_grad_a", "igammac", "lgamma",
    "nextafter", "polygamma", "random_gamma_grad", "rem", "round", "sinh", "zeta",
})  # fmt: skip
"""Primitives without a rule that work element by element."""

OF_MATRICES = frozenset({
    "cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur", "svd", "triangular_solve",
    "tridiagonal", "tridiagonal_solve",
})  # fmt: skip


def _core(eqn: Any, rank: int) -> int:
    """Return the number of last axes along which a primitive without a rule needs whole operands."""
    name = eqn.primitive.name
    if name in ELEMENTWISE:
        return 0
    if name == "fft":
        return len(eqn.params["fft_lengths"])
    return 2 if name in OF_MATRICES else rank


FUNCTIONS_OF_JAX = {
    "ragged_dot_general": ("jax._src.lax.lax", "_ragged_dot_general_impl"),
    "regularized_incomplete_beta": ("jax._src.lax.special", "regularized_incomplete_beta_impl"),
    "bcoo_dot_general": ("jax.experimental.sparse.bcoo", "_bcoo_dot_general_impl"),
    "bcsr_dot_general": ("jax.experimental.sparse.bcsr", "_bcsr_dot_general_impl"),
}
"""Primitive -> module and name of the function by which JAX computes it."""


def own_function(eqn: Any) -> Any:
    """Return the jaxpr of the function that computes a primitive, if it is made of other primitives; else None."""
    import jax

    function, params = getattr(eqn.primitive, "impl", None), dict(eqn.params)
    spread: Callable[[Operands], Any] = list
    if eqn.primitive.name in FUNCTIONS_OF_JAX:
        module, name = FUNCTIONS_OF_JAX[eqn.primitive.name]
        function = getattr(import_module(module), name)
    if eqn.primitive.name == "regularized_incomplete_beta":
        params["dtype"], spread = eqn.outvars[0].aval.dtype, lambda xs: jax.numpy.broadcast_arrays(*xs)
    if function is None or getattr(function, "func", function).__name__ == "apply_primitive":
        return None

    def results(*operands: Any) -> Any:
        return jax.tree.leaves(function(*spread(operands), **params))

    try:
        found = jax.make_jaxpr(results)(
            *(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
        )
    except Exception:  # a library may compute its primitive by anything
        return None
    return None if f" {eqn.primitive.name}" in str(found) else found
