"""Import a JAX function: trace it, link its axes, name its dimensions, and make a program with the function `forward`.

A function that returns its model anew becomes a training step as well, with the roles and stages that steps of the language have.
So rules of storage apply to the model and to the optimizer's state, and both are returned as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from typing import Any

import attrs

from mtfc.compiler.activity import doing
from mtfc.compiler.cost.sizes import UNDISTRIBUTED, bytes_of, whole
from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.compiler.ir.builder import Builder, Names, needed_for
from mtfc.compiler.ir.core import (
    Argument,
    Equation,
    Function,
    Initializer,
    Output,
    Parameter,
    Program,
    Role,
    Value,
)
from mtfc.compiler.ir.loops import executed
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.calls import FUNCTION
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, TensorType
from mtfc.compiler.ir.verifier import verify
from mtfc.compiler.search.repeated_layers import RepeatedLayers
from mtfc.frontend.jaxpr.counted_indices import batch_counted_rows, find_shifts
from mtfc.frontend.jaxpr.dimension_names import (
    GivenNames,
    ascii_name,
    merge_copies,
    propose,
)
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Flat, Operand, Var, all_steps
from mtfc.frontend.jaxpr.primitive_rules import Dims, JaxprEmitter, Linker, Rename
from mtfc.frontend.jaxpr.renames import place_renames
from mtfc.frontend.jaxpr.rules import RULES
from mtfc.frontend.jaxpr.rules.calls import OTHER
from mtfc.frontend.jaxpr.tracing import traced
from mtfc.frontend.jaxpr.user_lines import definition


@attrs.frozen
class Leaf:
    """An array of the user's pytrees and its value in the program. dims: for each of the user's axes its dimensions.

    key: the implementation of random keys, whose data the program has. constant: the array, if the function closes over it.
    """

    name: str
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str
    dims: tuple[tuple[Dim, ...], ...]
    role: Role
    key: str | None = None
    constant: Any = None

    @property
    def user_shape(self) -> tuple[int, ...]:
        """The shape of the user's array: the data of random keys have an axis more."""
        return self.shape if self.key is None else self.shape[:-1]

    @property
    def flat_dims(self) -> tuple[Dim, ...]:
        return tuple(dim for dims in self.dims for dim in dims)


LARGE_CONSTANT = 2**24
"""The bytes from which on an array that a function closes over is reported."""


def _bytes(leaf: Leaf) -> int:
    return prod(leaf.shape) * ITEM_BYTES[leaf.dtype]


@attrs.frozen(eq=False, slots=False)
class Imported:
    """A JAX function as a program. inputs: the arguments' leaves, then the constants. renames: uses under other dimensions.

    opaque: name of a function that every processor evaluates as a whole -> its steps. again: imports the function on arguments
    of other sizes.
    """

    program: Program
    flat: Flat
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    renames: tuple[Rename, ...]
    opaque: Mapping[str, tuple[AppliedPrimitive, ...]]
    _dims: Dims
    again: Callable[[Sequence[Any], Mapping[str, Any]], Imported] | None = None

    def dims_of(self, var: Var) -> tuple[tuple[Dim, ...], ...]:
        """Return the dimensions of each axis of an array."""
        return tuple(self._dims.of(each) for each in var.axes)

    @property
    def main(self) -> Function:
        """The function that computes all outputs: `step` if it returns the model anew, else `forward`."""
        return self.program.functions[-1]

    @cached_property
    def replaced(self) -> Mapping[str, str]:
        """Name of an output -> name of the argument that it replaces, for arguments that the function returns anew."""
        return replaced_arguments(self.flat, self.inputs, self.outputs)

    @property
    def calls(self) -> tuple[AppliedPrimitive, ...]:
        """The steps that every processor evaluates as a whole."""
        return tuple(step for steps in self.opaque.values() for step in steps)

    def opaque_share(self, primitive: str | None = None) -> Work:
        """Return the share of an opaque primitive, or of all, in the work of the function."""
        found = {name for name, (first, *_) in self.opaque.items() if primitive in (None, first.primitive)}
        some, total = Work(), Work()
        for eqn, work in work_of(self.main.body):
            total += work
            some += work if eqn.attrs.get(FUNCTION.name) in found else Work()
        return some / total

    def warnings(self) -> list[Diagnostic]:
        """Return a warning for each primitive that every processor computes whole, at its first line, one for layers that a loop
        could run, and one for each large constant.
        """
        by_name: dict[str, list[AppliedPrimitive]] = {}
        for step in self.calls:
            by_name.setdefault(step.primitive, []).append(step)
        large = [leaf for leaf in self.inputs if leaf.constant is not None and _bytes(leaf) >= LARGE_CONSTANT]
        opaque = (self._warning(name, steps) for name, steps in by_name.items())
        return [*opaque, *self._unrolled(), *map(self._large_constant, large)]

    def _large_constant(self, leaf: Leaf) -> Diagnostic:
        """Return the warning (W803) about a large array that the function closes over."""
        text = f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
        return Diagnostic(
            "W803",
            f"the function closes over an array of {_bytes(leaf) / 2**20:.0f} MiB, {text}",
            definition(self.flat.function),
            (),
            "make it an argument: a plan has no sharding for a constant, and `jax.jit` compiles it into the program",
        )

    def _unrolled(self) -> Iterator[Diagnostic]:
        """Yield a warning for layers in a row that are equal but for their parameters."""
        function = self.program.functions[0]
        layers = RepeatedLayers.of(function)
        if layers is None or len({*layers.owners.values()}) < layers.number:
            return
        first = min(run.start for run, _ in layers.runs)
        if any(function.body[i].regions for run, _ in layers.runs for i in run.equations):
            return
        yield Diagnostic(
            "W802",
            f"at least {layers.number} copies of a layer in a row",
            function.body[first].span or definition(self.flat.function),
            (),
            "stack their parameters, and run one layer with `jax.lax.scan`: it compiles faster",
        )

    def _warning(self, name: str, steps: Sequence[AppliedPrimitive]) -> Diagnostic:
        """Return the warning (W801) about a primitive that every processor computes whole. steps: its uses."""
        place = definition(self.flat.function)
        spans = [*dict.fromkeys(step.span or place for step in steps)]
        more = f", and at {len(spans) - 1} further lines" if len(spans) > 2 else ""
        return Diagnostic(
            "W801",
            f"every processor computes `{name}` whole: {self.opaque_share(name)}",
            spans[0],
            tuple(Label(span, f"and here{more if i == 0 else ''}") for i, span in enumerate(spans[1:2])),
            "no layout splits its operands; docs/jax.md lists the primitives that layouts split",
        )

    @cached_property
    def steps(self) -> tuple[AppliedPrimitive, ...]:
        return tuple(all_steps(self.flat.body.steps))

    @cached_property
    def updates(self) -> frozenset[Var]:
        """The arrays that only update the model and the optimizer's state."""
        if self.main.name != "step":
            return frozenset()
        outputs = zip(self.outputs, self.flat.body.outputs, strict=True)
        plain = [var for leaf, var in outputs if leaf.name not in self.replaced]
        return update_results(self.flat.body.steps, plain)


def imported(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: GivenNames,
    parameters: Sequence[int] | None,
    merge: bool = True,
) -> Imported:
    """Import a function on example arguments.

    parameters: the numbers of the arguments that hold the model's arrays; None for the first of several, and all that the
    function returns anew, such as an optimizer's state. merge: True to give the copies of a layer the same dimensions.

    Raises `CompileError`.
    """
    with doing("tracing"):
        flat = traced(function, args, kwargs)
        batch_counted_rows(flat)
        find_shifts(flat.body)
    linker = Linker(RULES, OTHER)
    linker.arguments(flat.body.arguments)
    with doing("linking the dimensions of arrays"):
        if merge:
            merge_copies(flat, are_linked=False)
        linker.body(flat.body)
        _fit_returned(linker, flat)
        if merge:
            merge_copies(flat, are_linked=True)
        place_renames(linker, flat)
    model = _model_arguments(flat, len(args)) if parameters is None else set[int | str](parameters)
    roles: list[Role] = ["parameter" if argument_of(path) in model else "input" for path in flat.inputs]
    propose(flat, roles, names, function)
    with doing("making equations"):
        title = ascii_name(getattr(function, "__name__", type(function).__name__))
        found = _Import(flat, linker, roles, definition(function)).run(title or "program")
    again = partial(imported, function, names=names, parameters=parameters, merge=merge)
    return attrs.evolve(found, again=again)


def _model_arguments(flat: Flat, number: int) -> set[int | str]:
    """Return the first of several arguments, all that the function returns anew, and all with variables of Keras."""
    variables = map(argument_of, flat.variable_paths)
    return {*returned_arguments(flat), *variables, *([0] if number > 1 else [])}


def argument_of(path: tuple[Any, ...]) -> int | str:
    """Return the number of the argument that has a leaf, or the name of one that is given by keyword alone."""
    found: int | str = path[1].idx if path[0].idx == 0 else path[1].key
    return found


def returned_arguments(flat: Flat) -> dict[int | str, tuple[Any, ...]]:
    """Return the arguments whose trees and shapes a result, or a part of it, has: the argument -> place of the result.

    Gradients have the tree of the model, and are no new model: the backward pass makes them. Places near the root come first.
    An argument of one array must be the first of a function with gradients, as a result of its shape may be another thing.
    """
    backward = {var for step in flat.body.steps if step.stage == "backward" for var in step.results}
    results: dict[Any, list[Any]] = {}
    for path, output in zip(flat.outputs, flat.body.outputs, strict=True):
        is_gradient = output in backward
        for i in range(len(path) + 1):
            leaf = (path[i:], output.shape, output.dtype, *[None] * is_gradient)
            results.setdefault(path[:i], []).append(leaf)
    given: dict[int | str, list[Any]] = {}
    for path, var in zip(flat.inputs, flat.body.arguments, strict=False):
        given.setdefault(argument_of(path), []).append((path[2:], var.shape, var.dtype))
    found: dict[int | str, tuple[Any, ...]] = {}
    for argument, leaves in given.items():
        places = [
            place
            for place, other in sorted(results.items(), key=lambda item: len(item[0]))
            if other == leaves and all(place[: len(at)] != at[: len(place)] for at in found.values())
        ]
        if places and (len(leaves) > 1 or (argument == 0 and backward)):
            found[argument] = places[0]
    return found


def _returned(flat: Flat) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the number of each output that is a part of an argument returned anew, and the argument with the part's place."""
    places = {place: argument for argument, place in returned_arguments(flat).items()}
    for i, path in enumerate(flat.outputs):
        place = next((place for place in places if path[: len(place)] == place), None)
        if place is not None:
            yield i, (places[place], *path[len(place) :])


def _fit_returned(linker: Linker, flat: Flat) -> None:
    """Let arrays that are returned anew have the axes of the arguments that they replace."""
    pairs = zip(flat.inputs, flat.body.arguments, strict=False)
    arguments = {(argument_of(path), *path[2:]): var for path, var in pairs}
    for i, part in _returned(flat):
        wanted, output = arguments[part].axes, flat.body.outputs[i]
        if isinstance(output, Var):
            linker.fitted(output.axes, wanted)
        flat.body.renamed[i] = wanted


def returned_leaves(flat: Flat, inputs: Sequence[Leaf]) -> dict[tuple[Any, ...], Leaf]:
    """Return place of a result -> the array that it replaces, for arguments that a function returns anew."""
    given = {(argument_of(leaf.path), *leaf.path[2:]): leaf for leaf in inputs if leaf.path}
    return {flat.outputs[i]: given[part] for i, part in _returned(flat)}


def replaced_arguments(flat: Flat, inputs: Sequence[Leaf], outputs: Sequence[Leaf]) -> dict[str, str]:
    """Return name of an output -> name of the parameter or state that it replaces."""
    returned = returned_leaves(flat, inputs)
    pairs = ((leaf.name, returned[leaf.path]) for leaf in outputs if leaf.path in returned)
    return {name: argument.name for name, argument in pairs if argument.role != "input"}


class _Import:
    """Makes the program of a linked function."""

    def __init__(self, flat: Flat, linker: Linker, roles: Sequence[Role], place: Span) -> None:
        """Start a program.

        flat: the steps. linker: knows the axes. roles: the role of each argument. place: the line of the function.
        """
        self.flat, self.roles, self.place = flat, roles, place
        self.build = Builder(Names())
        self.emitter = JaxprEmitter(self.build, Dims(), linker)

    def run(self, title: str) -> Imported:
        """Return the imported program: arguments, equations and outputs, and functions that train if outputs replace inputs."""
        inputs = [*self._inputs()]
        arguments = [
            self._argument(leaf, var) for leaf, var in zip(inputs, self.flat.body.arguments, strict=True)
        ]
        self.emitter.run(self.flat.body.steps)
        outputs = [*self._outputs(inputs)]
        replaced = replaced_arguments(self.flat, inputs, [leaf for _, leaf in outputs])
        arguments.sort(key=lambda argument: argument.role != "input")
        whole = Function(
            "forward", tuple(arguments), tuple(self.build.body), tuple(output for output, _ in outputs)
        )
        functions = training_functions(whole, replaced)
        roles = {a.value.name: a.role for function in functions for a in function.arguments}
        parameters = tuple(
            Parameter(a.value.name, a.value.type, Initializer("zeros"), a.span)
            for a in functions[-1].arguments
            if a.role == "parameter"
        )
        program = Program(title, dict(self.emitter.dims.by_name), parameters, functions)
        verify(program, "global")
        emitter = self.emitter
        return Imported(
            program,
            self.flat,
            tuple(attrs.evolve(leaf, role=roles[leaf.name]) for leaf in inputs),
            tuple(leaf for _, leaf in outputs),
            tuple(emitter.renames),
            emitter.calls,
            emitter.dims,
        )

    def _inputs(self) -> Iterable[Leaf]:
        """Yield the leaf of each argument, named by its path, and then those of constants."""
        variables, paths = self.flat.body.arguments, self.flat.inputs
        for var, path, role in zip(variables, paths, self.roles, strict=False):
            # (positional or named, number or name, the path inside of the argument)
            inner = "_".join(self.flat.parts(path))
            is_enough = role == "parameter" and inner and not inner[0].isdigit()
            named = inner if is_enough else "_".join([self.flat.argument_name(path), *self.flat.parts(path)])
            yield self._leaf(named, path, var, role)
        for i, var in enumerate(variables[len(paths) :]):
            yield self._leaf("constant", (), var, "input", self.flat.constants[i])

    def _leaf(
        self, wanted: str, path: tuple[Any, ...], var: Operand, role: Role, constant: Any = None
    ) -> Leaf:
        """Return a leaf with a free name that is like the wanted one."""
        name = self.build.names.fresh(identifier(wanted))
        dims = tuple(self.emitter.dims.of(each) for each in var.axes)
        return Leaf(name, path, var.shape, var.dtype, dims, role, var.key, constant)

    def _argument(self, leaf: Leaf, var: Var) -> Argument:
        """Return the argument of the program for an array that the function takes."""
        value = Value(leaf.name, TensorType(leaf.dtype, leaf.flat_dims))
        self.emitter.known[var] = value
        inner = frozenset(dim for dims in leaf.dims for dim in [each for each in dims if each.size > 1][1:])
        return Argument(value, leaf.role, self.place, inner=inner)

    def _outputs(self, inputs: Sequence[Leaf]) -> Iterable[tuple[Output, Leaf]]:
        """Yield the outputs. One that replaces an argument has its name, and an element of a tuple is `result_1`."""
        from jax.tree_util import keystr

        names = Names()
        body, arguments = self.flat.body, returned_leaves(self.flat, inputs)
        for i, (path, var) in enumerate(zip(self.flat.outputs, body.outputs, strict=True)):
            own = str(keystr(path, simple=True, separator="_"))
            own = f"result_{own}".rstrip("_") if not own or own[0].isdigit() else own
            name = names.fresh(arguments[path].name if path in arguments else identifier(own))
            value, axes = self.emitter.raw(var), body.renamed.get(i, var.axes)
            if isinstance(var, Var) and i in body.renamed and body.steps:
                value = self.emitter.renamed(body.steps[-1], value, var.axes, axes)
            value = self.emitter.whole(value, axes)
            dims = tuple(self.emitter.dims.of(each) for each in axes)
            yield Output(name, value), Leaf(name, path, var.shape, var.dtype, dims, "input", var.key)


def identifier(text: str) -> str:
    """Return text as a name of the program."""
    found = ascii_name(text)
    return found if found and not found[0].isdigit() else f"a{found}"


@attrs.frozen
class Work:
    """FLOPs, and bytes that are read and written; or shares of both."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __truediv__(self, other: Work) -> Work:
        """Return shares; those of nothing are zero."""
        return Work(self.flops / (other.flops or 1.0), self.bytes / (other.bytes or 1.0))

    def __str__(self) -> str:
        return f"{100 * self.flops:.1f} % of all FLOPs, and {100 * self.bytes:.1f} % of all bytes that are read and written"


def work_of(body: Iterable[Equation]) -> Iterator[tuple[Equation, Work]]:
    """Yield equations with their work. Equations in loops count for all iterations."""
    for eqn, times in executed(body):
        if not eqn.regions:
            flops = OPS[eqn.op].flops(eqn, UNDISTRIBUTED)
            moved = sum(whole(bytes_of(value.type, UNDISTRIBUTED)) for value in (*eqn.operands, *eqn.results))
            yield eqn, Work(times * flops, times * moved)


def training_functions(whole: Function, replaced: Mapping[str, str]) -> tuple[Function, ...]:
    """Return `forward` and `step`, or `forward` alone for a function that returns no model, or computes no gradients and no loss.

    replaced: name of an output -> the argument that it replaces. Arguments that the other outputs need are the model; the others
    that are replaced are the optimizer's state. A step returns all of the model: what it does not replace, too. If no other
    output needs the model, `forward` computes the gradients.
    """
    plain = [output for output in whole.outputs if output.name not in replaced]
    if len(plain) == len(whole.outputs):
        return (whole,)
    early = before_gradients(whole.body, [output.value for output in plain])
    plain = [output for output in plain if output.value in early]
    model = {a.value for a in whole.arguments if a.value.name in replaced.values()}
    needed = _ancestors(whole.body, (output.value for output in plain))
    computed = plain if model & needed else [*plain, *_gradients(whole.body, plain)]
    needed = _ancestors(whole.body, (output.value for output in computed))
    if not model & needed:
        return (whole,)
    arguments = tuple(_with_role(a, needed, replaced.values()) for a in whole.arguments)
    outputs = tuple(attrs.evolve(output, updates=replaced.get(output.name)) for output in whole.outputs)
    names = Names(output.name for output in whole.outputs)
    kept = tuple(
        Output(names.fresh(a.value.name), a.value, a.value.name)
        for a in arguments
        if a.role == "parameter" and a.value.name not in replaced.values()
    )
    body = tuple(eqn for eqn in whole.body if not needed.isdisjoint(eqn.results))
    forward = Function("forward", tuple(a for a in arguments if a.role != "state"), body, tuple(computed))
    outputs = tuple(sorted((*outputs, *kept), key=lambda output: output.updates is not None))
    return forward, Function("step", arguments, _by_output([*_staged(whole.body, plain)], outputs), outputs)


def _gradients(body: Sequence[Equation], plain: Iterable[Output]) -> list[Output]:
    """Return the values of the backward pass that other equations need, as outputs beside the plain ones."""
    backward = {value: None for eqn in body if eqn.stage == "backward" for value in eqn.results}
    needed = _ancestors(body, backward)
    used = (value for eqn in body if needed.isdisjoint(eqn.results) for value in eqn.operands)
    names = Names(output.name for output in plain)
    return [Output(names.fresh("gradient"), value) for value in dict.fromkeys(used) if value in backward]


def before_gradients(body: Sequence[Any], outputs: Sequence[Any]) -> set[Any]:
    """Return the outputs that need no gradient.

    The others, such as a norm of the gradients, are computed with the update: on gradients as they are stored. body: equations,
    or steps of a jaxpr.
    """
    late = set[Any]()
    for step in body:
        if step.stage == "backward" or not late.isdisjoint(step.operands):
            late |= {*step.results}
    return {*outputs} - late


def update_results(steps: Sequence[AppliedPrimitive], outputs: Sequence[Operand]) -> frozenset[Var]:
    """Return the results of the steps of the update: neither gradients nor some outputs need them."""
    needed = before_gradients(steps, outputs)
    found: list[AppliedPrimitive] = []
    for step in reversed(steps):
        if step.stage == "backward" or not needed.isdisjoint(step.results):
            needed |= {*step.operands}
        else:
            found.append(step)
    return frozenset(var for step in all_steps(found) for var in step.results)


def _ancestors(body: Sequence[Equation], values: Iterable[Value]) -> set[Value]:
    """Return some values, and all values that they are computed from."""
    wanted = set(values)
    return wanted.union(*((*eqn.operands, *eqn.results) for eqn in needed_for(wanted, body)))


def _with_role(argument: Argument, needed: set[Value], replaced: Iterable[str]) -> Argument:
    is_state = argument.value.name in {*replaced} and argument.value not in needed
    return attrs.evolve(argument, role="state") if is_state else argument


def _by_output(body: Sequence[Equation], outputs: Iterable[Output]) -> tuple[Equation, ...]:
    """Return the equations in order; the equations of the update come last and in groups.

    A group has the equations that an output needs, and after them the last equations whose operands are then there. An
    optimizer of optax computes each of its quantities for all parameters before the next one. In that order all would be in
    memory at the same time.
    """
    place = {eqn: i for i, eqn in enumerate(body)}
    updates = {value: eqn for eqn in body if eqn.stage == "update" for value in eqn.results}
    last = {updates[output.value] for output in outputs if output.value in updates}
    users: dict[Value, list[Equation]] = {}
    for eqn in last:
        for value in eqn.operands:
            users.setdefault(value, []).append(eqn)
    found = {eqn: None for eqn in body if eqn.stage != "update"}
    for output in (*outputs, *(Output("", value) for value in updates)):
        needed, todo = set[Equation](), [output.value]
        while todo:
            made = updates.get(todo.pop())
            if made is not None and made not in found and made not in needed:
                needed.add(made)
                todo += made.operands
        found |= dict.fromkeys(sorted(needed, key=place.__getitem__))
        ends = {end for eqn in needed for value in eqn.results for end in users.get(value, ())}
        ready = (end for end in ends if all(v not in updates or updates[v] in found for v in end.operands))
        found |= dict.fromkeys(sorted(ready, key=place.__getitem__))
    return tuple(found)


def _staged(body: tuple[Equation, ...], plain: Iterable[Output]) -> Iterable[Equation]:
    """Yield the equations. Equations that neither outputs nor gradients need belong to the update."""
    gradients = [value for eqn in body if eqn.stage == "backward" for value in eqn.results]
    needed = _ancestors(body, [*gradients, *(output.value for output in plain)])
    for eqn in body:
        is_update = eqn.stage == "forward" and needed.isdisjoint(eqn.results)
        yield attrs.evolve(eqn, stage="update") if is_update else eqn
