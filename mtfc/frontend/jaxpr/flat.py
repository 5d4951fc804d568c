"""A JAX function as a flat list of steps: its jaxpr, with all calls inlined, and the user's line of each equation.

Tracing computes nothing and takes no memory: arguments may be `jax.ShapeDtypeStruct`s. Derivatives are JAX's own, because a
function made by `jax.grad` has them in its jaxpr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, ClassVar

import attrs

from mtfc.compiler.diagnostics import CompileError, Span, failure
from mtfc.compiler.ir.core import Stage
from mtfc.compiler.ir.types import ARRAY_DTYPES, CARRIED_BYTES, FLOATS
from mtfc.frontend.jaxpr.expansions import (
    INLINED,
    bound,
    expansion,
    has_elements,
    kept_apart,
    makes_step,
    moves_keys,
    runs_never,
    scan_counts,
    stage_of,
    takes_long,
    updates_whole,
)
from mtfc.frontend.jaxpr.factors import Axis
from mtfc.frontend.jaxpr.user_lines import line_of
from mtfc.frontend.jaxpr.while_loops import WhileLoop

DTYPES = {name: dtype for dtype, name in ARRAY_DTYPES.items()}
"""JAX's name of a dtype -> the IR's."""

NUMBERS = frozenset(DTYPES.values()) - {"c64", "c128", "f8e4m3fn", "f8e5m2"}
"""The dtypes of scalars that are written in programs."""


@attrs.define(eq=False)
class Var:
    """An array. number: its space. key: the implementation of random keys, whose data the array has; None for other arrays.

    repeated: the axes along which it repeats its elements. is_backward: True if a step of the backward pass makes it.
    """

    number: int
    shape: tuple[int, ...]
    dtype: str
    key: str | None = None
    axes: tuple[Axis, ...] = ()
    repeated: frozenset[int] = frozenset()
    is_backward: bool = False


@attrs.frozen(eq=False)
class Number:
    """A scalar that is written in the program."""

    shape: ClassVar[tuple[int, ...]] = ()
    axes: ClassVar[tuple[Axis, ...]] = ()
    repeated: ClassVar[frozenset[int]] = frozenset()
    key: ClassVar[None] = None

    value: bool | int | float
    dtype: str


TRUE, FALSE = Number(True, "bool"), Number(False, "bool")


@attrs.frozen
class Empty:
    """An array without elements. No step makes it, and no step of the program reads it."""

    shape: tuple[int, ...]
    dtype: Any


Operand = Var | Number


def data_of(operand: Operand) -> int:
    """Return the number of elements that an array holds apart from copies: along some axes it only repeats them."""
    return prod(size for j, size in enumerate(operand.shape) if j not in operand.repeated)


@attrs.define(eq=False)
class AppliedPrimitive:
    """One application of a primitive. bodies: the jaxprs that it executes, such as a scan's.

    renamed: number of an operand -> its axes at this use, where they are others than those of the array. is_opaque: True if the
    primitive's rule has refused the step. ends: the equation of a jaxpr whose last step this is. is_expansion: True if the
    equation stands for a jaxpr, so that the results are not those of the step.
    """

    primitive: str
    bind: Any
    params: Mapping[str, Any]
    operands: tuple[Operand, ...]
    results: tuple[Var, ...]
    span: Span | None
    stage: Stage
    bodies: tuple[Body, ...] = ()
    renamed: dict[int, tuple[Axis, ...]] = attrs.field(factory=dict)
    is_opaque: bool = False
    ends: Any = None
    is_expansion: bool = False

    @property
    def has_keys(self) -> bool:
        """True if an operand or a result has random keys, whose data has an axis more."""
        return any(x.key is not None for x in (*self.operands, *self.results))

    @property
    def has_carried(self) -> bool:
        """True if an operand or a result has a dtype whose elements ops only move."""
        return any(x.dtype in CARRIED_BYTES for x in (*self.operands, *self.results))

    def axes(self, i: int) -> tuple[Axis, ...]:
        """Return the axes of an operand at this use."""
        return self.renamed.get(i, self.operands[i].axes)


@attrs.define(eq=False)
class Body:
    """Arguments, steps and outputs of a jaxpr. renamed: number of an output -> its axes, as in `AppliedPrimitive`."""

    arguments: tuple[Var, ...]
    steps: list[AppliedPrimitive]
    outputs: tuple[Operand, ...]
    renamed: dict[int, tuple[Axis, ...]] = attrs.field(factory=dict)


def all_steps(steps: Iterable[AppliedPrimitive]) -> Iterator[AppliedPrimitive]:
    """Yield steps, and those of the bodies that they execute."""
    for step in steps:
        yield step
        for body in step.bodies:
            yield from all_steps(body.steps)


@attrs.frozen(eq=False)
class Flat:
    """A traced function. inputs, outputs: the place of each in the pytrees. constants: arrays that it closes over.

    variable_paths: place of an argument that is a variable of Keras -> the variable's own path, such as `dense/kernel`.
    annotations: for each argument the logical names of its axes.
    function: it returns the objects that the user's function changes, and is the user's own if that changes none.
    mesh: the one that was set where the function was imported, or None. The last arguments of the body are the constants.
    `closed` is the jaxpr, and the trees give the function's own signature.
    """

    body: Body
    inputs: tuple[tuple[Any, ...], ...]
    outputs: tuple[tuple[Any, ...], ...]
    constants: tuple[Any, ...]
    closed: Any
    in_tree: Any
    out_tree: Any
    argument_names: tuple[str, ...]
    function: Callable[..., Any]
    variable_paths: Mapping[tuple[Any, ...], str] = attrs.field(factory=dict)
    annotations: tuple[Sequence[str | None], ...] = ()
    mesh: Any = None

    def argument_name(self, path: tuple[Any, ...]) -> str:
        """Return the name of the argument that has a leaf."""
        from jax.tree_util import keystr

        (kind, first), names = path[:2], self.argument_names
        return names[first.idx] if kind.idx == 0 and first.idx < len(names) else keystr((first,), simple=True)

    def parts(self, path: tuple[Any, ...]) -> tuple[str, ...]:
        """Return the parts of the place of a leaf inside of its argument. A variable of Keras is known by its own path."""
        from jax.tree_util import keystr

        if path in self.variable_paths:
            return tuple(self.variable_paths[path].split("/"))
        return tuple(keystr((key,), simple=True) for key in path[2:])


Env = dict[Any, Operand | Empty]
"""Variable of a jaxpr -> what stands for it."""


def chooses(eqn: Any) -> bool:
    """Return True for a conditional that becomes steps.

    If all branches take long, no result is there for a start, and it is one of zeros.
    """
    if eqn.primitive.name != "cond" or len(eqn.params["branches"]) == 1:
        return False
    if not all(map(takes_long, eqn.params["branches"])):
        return True
    return all(DTYPES.get(v.aval.dtype.name) in NUMBERS for v in eqn.outvars)


class _WithEmpty:
    """A primitive with empty operands, which it makes itself, or empty results, which it drops."""

    multiple_results = True

    def __init__(self, eqn: Any, operands: Sequence[Operand | Empty]) -> None:
        self.eqn, self.operands = eqn, operands

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def bind(self, *given: Any) -> list[Any]:
        """Apply the primitive to the given operands, with arrays without elements at their places; return the results with
        elements.
        """
        from jax import numpy as jnp

        rest, eqn = iter(given), self.eqn
        every = [jnp.zeros(x.shape, x.dtype) if isinstance(x, Empty) else next(rest) for x in self.operands]
        found = bound(eqn.primitive, every, eqn.params)
        return [x for x, var in zip(found, eqn.outvars, strict=True) if has_elements(var)]


class Flattener:
    """Inlines calls, and makes variables."""

    def __init__(self, place: Span) -> None:
        """Start before the first equation.

        place: the line of the function. _stage: the stage of new steps. _closures: for the function, and for each loop around
        the present step, the arrays that it closes over and their variables. _steps: those of the present body. _span: the
        line of the present equation.
        """
        self.place = place
        self._closures: list[dict[int, tuple[Any, Var]]] = [{}]
        self._count = 0
        self._stage: Stage = "forward"
        self._place_of_all: Span | None = None
        self._steps: list[AppliedPrimitive] = []
        self._span: Span | None = None

    def var(self, aval: Any, span: Span | None = None) -> Var:
        """Make a variable for an abstract value. Random keys become their data."""
        import jax

        self._count += 1
        shape, dtype = tuple(aval.shape), aval.dtype
        name = DTYPES.get(dtype.name)
        if name is None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
            struct: Any = jax.ShapeDtypeStruct
            data = jax.eval_shape(jax.random.key_data, struct(shape, dtype))
            return Var(self._count, tuple(data.shape), "u32", key=str(dtype._impl.name))
        if name is None:
            message = f"an array has dtype {dtype.name}, which no program has"
            raise failure("E804", message, span or self.place, f"the dtypes are {', '.join(DTYPES)}")
        if 0 in shape:
            raise self._without_elements(shape, span)
        return Var(self._count, shape, name)

    @property
    def constants(self) -> list[Any]:
        """The arrays that the function closes over."""
        return [value for value, _ in self._closures[0].values()]

    def top(self, closed: Any) -> Body:
        """Return the body of the function, whose last arguments are the arrays that it closes over."""
        body = self._body(closed)
        return attrs.evolve(
            body, arguments=(*body.arguments, *(var for _, var in self._closures[0].values()))
        )

    def _body(self, closed: Any) -> Body:
        """Return the body of a loop, which has no step for the arrays of the function around it."""
        arguments = tuple(self.var(v.aval) for v in closed.jaxpr.invars)
        around, self._span = self._span, None
        with self._other_body() as steps:
            found = self._applied(closed, arguments)
        self._span = around
        for x in found:
            if isinstance(x, Empty):
                raise self._without_elements(x.shape, None)
        return Body(arguments, steps, _with_elements(found))

    @contextmanager
    def _other_body(self) -> Iterator[list[AppliedPrimitive]]:
        """Collect the steps of another body."""
        around, self._steps = self._steps, []
        yield self._steps
        self._steps = around

    @contextmanager
    def _closing_loop(self) -> Iterator[None]:
        """Add the arrays that a loop's body closes over to the operands of the loop, which is then the last step."""
        self._closures.append({})
        yield
        own = self._closures.pop().values()
        if own:
            loop = self._steps[-1]
            (body,), (consts, carries) = loop.bodies, scan_counts(loop.params)
            outer = _with_elements(self._constant(value) for value, _ in own)
            loop.operands = (*outer, *loop.operands)
            loop.bodies = (attrs.evolve(body, arguments=(*(var for _, var in own), *body.arguments)),)
            loop.params = {**loop.params, "num_consts": consts + len(outer), "num_carry": carries}

    def _without_elements(self, shape: Sequence[int], span: Span | None) -> CompileError:
        return failure("E804", f"an array has shape {[*shape]}, which no program has", span or self.place)

    def _inline(self, closed: Any, env: Env) -> tuple[Operand | Empty, ...]:
        """Add the steps of a jaxpr, whose arguments `env` has, and return its outputs."""
        jaxpr = getattr(closed, "jaxpr", closed)
        for var, value in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=False):
            env[var] = self._counted(value) or self._constant(value)
        for eqn in jaxpr.eqns:
            around = self._stage, self._span
            self._stage = stage_of(eqn, self._stage)
            self._span = self._place_of_all or line_of(eqn.source_info.traceback) or self._span
            self._equation(eqn, env)
            self._stage, self._span = around
        return tuple(self._operand(v, env) for v in jaxpr.outvars)

    def _applied(self, closed: Any, arguments: Sequence[Operand | Empty]) -> tuple[Operand | Empty, ...]:
        """Add the steps of a jaxpr applied to arguments, and return its outputs."""
        return self._inline(closed, dict(zip(closed.jaxpr.invars, arguments, strict=True)))

    def _equation(self, eqn: Any, env: Env) -> None:
        """Add the steps of an equation of JAX, and put its results into `env`.

        Calls are inlined, branches and `while` become loops, and a primitive with an expansion is expanded; others are one
        step. Refuses side effects and references (E805).
        """
        operands = tuple(self._operand(v, env) for v in eqn.invars)
        name, span = eqn.primitive.name, self._span
        inner = eqn.params.get(INLINED[name]) if name in INLINED else None
        if inner is not None:
            jaxpr = getattr(inner, "jaxpr", inner)
            if any(is_apart := kept_apart(eqn)):
                operands = self._barrier(operands, is_apart)
            offset = len(operands) - len(jaxpr.invars)
            inside: Env = dict(zip(jaxpr.invars, operands[offset:], strict=True))
            found = self._inline(inner, inside)
            env.update(zip(eqn.outvars, found, strict=True))
            return
        effects = [type(effect).__name__ for effect in eqn.effects]
        if any("IO" in each or "Error" in each for each in effects):
            message = f"`{name}` has a side effect, which a program on many processors cannot keep in order"
            raise failure("E805", message, span or self.place, "leave it out of the imported function")
        if not makes_step(eqn):  # debugging prints, too; `plan.apply` keeps them
            found = _with_elements(operands)
            env.update(
                {v: found[0] if has_elements(v) else Empty(v.aval.shape, v.aval.dtype) for v in eqn.outvars}
            )
            return
        if any("Ref" in type(v.aval).__name__ for v in (*eqn.invars, *eqn.outvars)):
            message = f"`{name}` works on a reference to a mutable array, and programs have only values"
            raise failure(
                "E805", message, span or self.place, "write `x = x.at[i].set(y)` in the place of `x[i] = y`"
            )
        env.update({v: Empty(v.aval.shape, v.aval.dtype) for v in eqn.outvars if not has_elements(v)})
        if chooses(eqn):
            self._choice(eqn, operands, env)
            return
        if name == "while" and _becomes_loop(eqn, operands):
            self._while_loop(eqn, operands, env)
            return
        expands = updates_whole(eqn) or runs_never(eqn) or all(map(has_elements, (*eqn.invars, *eqn.outvars)))
        if expands and (simpler := expansion(eqn)) is not None:
            self._expanded(eqn, simpler, operands, env)
            return
        made = [v for v in eqn.outvars if has_elements(v)]
        name, bind, params, given = _without_empty(eqn, operands)
        results = tuple(self.var(v.aval, span) for v in made)
        step = AppliedPrimitive(name, bind, params, given, results, span, self._stage, ends=eqn)
        if name == "scan":
            with self._closing_loop():
                step.bodies = (self._body(eqn.params["jaxpr"]),)
                self._steps.append(step)
        else:
            self._steps.append(step)
        env.update(zip(made, results, strict=True))

    def _expanded(self, eqn: Any, simpler: Any, operands: Sequence[Operand | Empty], env: Env) -> None:
        """Add the steps of a jaxpr that an equation stands for. They have the line of the equation."""
        before, around = len(self._steps), self._place_of_all
        self._place_of_all = around or self._span
        is_of_data = moves_keys(eqn)
        given = [self._as_data(x, None) if is_of_data else x for x in operands]
        found = self._applied(simpler, given)
        self._place_of_all = around
        for x, var in zip(found, eqn.outvars, strict=True):
            env[var] = self._as_data(x, self.var(var.aval).key) if is_of_data else x
        if len(self._steps) == before:
            import jax

            self._step(jax.lax.copy_p, (TRUE,), self._like(TRUE), {})
        self._steps[-1].ends, self._steps[-1].is_expansion = eqn, True

    def _as_data(self, x: Operand | Empty, key: str | None) -> Operand | Empty:
        """Return the data of random keys as an array of numbers, or numbers as the data of keys."""
        if not isinstance(x, Var) or x.key == key:
            return x
        self._count += 1
        result = Var(self._count, x.shape, x.dtype, key)
        self._add("random_wrap" if key else "random_unwrap", None, {}, (x,), (result,))
        return result

    def _choice(self, eqn: Any, operands: tuple[Operand | Empty, ...], env: Env) -> None:
        """Compute all short branches, and choose between their results. Then run the long branch that is taken, if it is one.

        A long branch is a loop of at most one iteration. The number of a branch is bounded to those that there are.
        """
        import jax
        import numpy as np

        lax, branches, (number, *given) = jax.lax, eqn.params["branches"], operands
        assert not isinstance(number, Empty)
        is_long, last = [*map(takes_long, branches)], len(branches) - 1

        def compared(bind: Any, k: int) -> Var:
            limit = number, Number(k, number.dtype)
            return self._step(bind, limit, self._like(TRUE), {})

        def zeros(v: Any) -> Var:
            dtype = self.var(v.aval, self._span).dtype
            return self._spread(Number(_builtin(np.zeros(()), dtype), dtype), v.aval.shape)

        found: list[Operand | Empty] = []
        for k in range(len(branches)):
            if is_long[k]:
                continue
            results = self._applied(branches[k], given)
            if not found:
                found = [*results]
                continue
            is_later = compared(lax.ge_p, k)
            for j, (v, x, y) in enumerate(zip(eqn.outvars, found, results, strict=True)):
                if not isinstance(x, Empty) and not isinstance(y, Empty):
                    result = self.var(v.aval, self._span)
                    found[j] = self._step(lax.select_n_p, (is_later, x, y), result, {})
        if not found:
            found = [zeros(v) if has_elements(v) else Empty(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
        for k in range(len(branches)):
            if is_long[k]:
                bind, limit = (lax.lt_p, 1) if k == 0 else (lax.ge_p, k) if k == last else (lax.eq_p, k)
                is_taken = compared(bind, limit)
                with self._closing_loop():
                    found = self._branch(branches[k], is_taken, given, found)
        env.update(zip(eqn.outvars, found, strict=True))
        self._steps[-1].ends = eqn

    def _branch(
        self,
        branch: Any,
        is_taken: Var,
        given: Sequence[Operand | Empty],
        otherwise: Sequence[Operand | Empty],
    ) -> list[Operand | Empty]:
        """Return the results of a branch if it is taken, and others if not, by a loop of at most one iteration.

        given: the operands of the branch. otherwise: the results if it is not taken.
        """
        consts = {x: self._like(x) for x in given if isinstance(x, Var)}
        starts = _with_elements(otherwise)
        arguments = (self._like(is_taken), *map(self._like, starts))
        own = [consts[x] if isinstance(x, Var) else x for x in given]
        with self._other_body() as inner:
            outputs = self._applied(branch, own)
        results = [x if isinstance(x, Empty) else self._like(x) for x in otherwise]
        made = tuple(x for x in results if isinstance(x, Var))
        body = Body((*consts.values(), *arguments), inner, (FALSE, *_with_elements(outputs)))
        params = {"num_consts": len(consts), "num_carry": len(arguments), "reverse": False}
        params |= {"length": 1, "while": True}
        every, ended = (*consts, is_taken, *starts), self._like(is_taken)
        self._add("scan", None, params, every, (ended, *made)).bodies = (body,)
        return [*results]

    def _goes_on(self, loop: WhileLoop, given: Sequence[Operand | Empty]) -> Operand:
        """Return a loop's condition. Of several truth values, one must be true. given: the operands of the condition."""
        import jax

        (found,) = _with_elements(self._applied(loop.condition, given))
        axes = tuple(range(len(found.shape)))
        if not axes:
            return found
        return self._step(jax.lax.reduce_or_p, (found,), self._like(TRUE), {"axes": axes})

    def _where(self, part: Operand | Empty, x: Operand, y: Operand) -> Operand:
        """Return x where a truth value holds for the first axes, and y elsewhere."""
        import jax

        assert not isinstance(part, Empty)
        whole = self._spread(part, y.shape)
        return self._step(jax.lax.select_n_p, (whole, y, x), self._like(y), {})

    def _add(
        self,
        name: str,
        bind: Any,
        params: Mapping[str, Any],
        given: tuple[Operand, ...],
        results: tuple[Var, ...],
    ) -> AppliedPrimitive:
        """Add a step at the present equation."""
        self._steps.append(AppliedPrimitive(name, bind, params, given, results, self._span, self._stage))
        return self._steps[-1]

    def _step(self, bind: Any, given: tuple[Operand, ...], result: Var, params: Mapping[str, Any]) -> Var:
        """Add a step with one result, and return the result."""
        self._add(bind.name, bind, params, given, (result,))
        return result

    def _spread(self, x: Operand, shape: tuple[int, ...]) -> Var:
        """Return an array with further axes behind its own."""
        import jax

        self._count += 1
        params = {"shape": shape, "broadcast_dimensions": tuple(range(len(x.shape))), "sharding": None}
        result = Var(self._count, shape, x.dtype)
        return self._step(jax.lax.broadcast_in_dim_p, (x,), result, params)

    def _like(self, x: Operand) -> Var:
        """Make a variable of the shape and dtype of another operand."""
        self._count += 1
        return Var(self._count, x.shape, x.dtype, x.key)

    def _while_loop(self, eqn: Any, operands: tuple[Operand | Empty, ...], env: Env) -> None:
        """Make a `scan` of a `while`.

        Unless the loop ends by its counter alone, the first carry is the condition. `jax.vmap` makes conditions with several
        truth values: the loop goes on while one of them is true, and each is for its part of the carries.
        """
        loop = WhileLoop.of(eqn)
        constants, starts = operands[: loop.constants], operands[loop.constants :]
        counter = loop.counter([_whole_number(x) for x in starts])
        results = tuple(self.var(v.aval, self._span) for v in eqn.outvars)
        env.update(zip(eqn.outvars, results, strict=True))
        if not counter.is_exact:
            given = (*constants[: loop.condition_constants], *starts)
            starts, results = (self._goes_on(loop, given), *starts), (self._like(TRUE), *results)
        params = {"num_consts": len(constants), "num_carry": len(starts), "reverse": False}
        params |= {"length": counter.most, "while": not counter.is_exact, "unbounded": not counter.is_bound}
        every = _with_elements((*constants, *starts))
        with self._closing_loop():
            with self._other_body() as steps:
                body = self._while_body(loop, counter.is_exact, steps)
            step = self._add("scan", None, params, every, results)
            step.bodies, step.ends = (body,), eqn

    def _while_body(self, loop: WhileLoop, is_counted: bool, steps: list[AppliedPrimitive]) -> Body:
        """Return the body of a `while`, with the condition as the first carry unless the loop ends by its counter alone."""
        arguments = tuple(self.var(v.aval, self._span) for v in loop.variables)
        found = _with_elements(self._applied(loop.body, arguments[loop.condition_constants :]))
        if is_counted:
            return Body(arguments, steps, found)
        given, before = arguments[: loop.condition_constants], arguments[loop.constants :]
        if loop.is_batched:
            (part,) = self._applied(loop.condition, (*given, *before))
            found = tuple(self._where(part, x, y) for x, y in zip(found, before, strict=True))
        goes_on = self._goes_on(loop, (*given, *found))
        return Body((*arguments[: loop.constants], self._like(TRUE), *before), steps, (goes_on, *found))

    def _barrier(
        self, operands: tuple[Operand | Empty, ...], is_apart: Sequence[bool]
    ) -> tuple[Operand | Empty, ...]:
        """Return the operands of a computation, with new variables for the operands that must be arrays of their own."""
        copies: dict[Operand, Var] = {}
        for x, is_own in zip(operands, is_apart, strict=True):
            if isinstance(x, Var) and is_own:
                copies[x] = self._like(x)
        self._add("optimization_barrier", None, {}, (*copies,), tuple(copies.values()))
        return tuple(x if isinstance(x, Empty) else copies.get(x, x) for x in operands)

    def _operand(self, v: Any, env: Env) -> Operand | Empty:
        """Return the operand for a variable or a literal of a jaxpr."""
        if hasattr(v, "val"):
            return self._counted(v.val) or self._constant(v.val)
        return env[v]

    def _counted(self, value: Any) -> Var | None:
        """Return the result of a new step that counts 0, 1, 2 and so on if a constant array does; None for other arrays."""
        import jax
        import numpy as np

        size = value.shape[0] if len(getattr(value, "shape", ())) == 1 else 0
        if size < 2 or value.dtype != np.int32 or not np.array_equal(value, np.arange(size)):
            return None
        params = {"dtype": value.dtype, "shape": value.shape, "dimension": 0, "sharding": None}
        result = self._step(jax.lax.iota_p, (), self.var(value), params)
        self._steps[-1].span = None
        return result

    def _constant(self, value: Any) -> Operand | Empty:
        """Return a scalar as a number, and an array as a further argument."""
        import numpy as np

        if 0 in getattr(value, "shape", ()):
            return Empty(value.shape, value.dtype)
        if not hasattr(value, "shape") or (value.shape == () and value.dtype.name in DTYPES):
            array = np.asarray(value)
            dtype = DTYPES.get(str(getattr(value, "dtype", array.dtype)))
            if dtype in NUMBERS:
                return Number(_builtin(array, dtype), dtype)
        arrays = self._closures[-1]
        if id(value) not in arrays:
            arrays[id(value)] = value, self.var(value)
        return arrays[id(value)][1]


def _with_elements(operands: Iterable[Operand | Empty]) -> tuple[Operand, ...]:
    return tuple(x for x in operands if not isinstance(x, Empty))


def _becomes_loop(eqn: Any, operands: Sequence[Operand | Empty]) -> bool:
    """Return False for a `while` with empty arrays, or with random keys of examples that end one by one."""
    is_batched = WhileLoop.of(eqn).is_batched
    return not any(
        isinstance(x, Empty) or (is_batched and x.shape and isinstance(x, Var) and x.key) for x in operands
    )


def _whole_number(x: Operand | Empty) -> int | None:
    return x.value if isinstance(x, Number) and type(x.value) is int else None


def _without_empty(
    eqn: Any, operands: Sequence[Operand | Empty]
) -> tuple[str, Any, Mapping[str, Any], tuple[Operand, ...]]:
    """Return the name, the primitive, the parameters and the operands of an equation without its empty arrays.

    Joining and splitting do without them, and an empty array with padding is the padding. Any other equation becomes a call.
    """
    name, given = eqn.primitive.name, _with_elements(operands)
    if len(given) == len(operands) and all(map(has_elements, eqn.outvars)):
        return name, eqn.primitive, eqn.params, given
    if name == "concatenate":
        return name, eqn.primitive, eqn.params, given
    if name == "split":
        sizes = tuple(size for size in eqn.params["sizes"] if size)
        return name, eqn.primitive, {**eqn.params, "sizes": sizes}, given
    if name == "pad":
        return "broadcast_in_dim", eqn.primitive, {"broadcast_dimensions": ()}, given
    return f"{name}_of_nothing", _WithEmpty(eqn, operands), eqn.params, given


def _builtin(array: Any, dtype: str) -> bool | int | float:
    """Return a scalar as a number of Python's own."""
    return bool(array) if dtype == "bool" else float(array) if dtype in FLOATS else int(array)
