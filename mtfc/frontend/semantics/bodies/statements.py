"""Elaborate statements into equations, in models, functions and optimizers.

An `ElaboratedBody` is a list of statements with the variables bound in it. A class derived from it elaborates one kind of body:
bind the inputs with `bind`, call `run`, and read `expressions.values`. `STATEMENTS` maps each statement to the method that
elaborates it. A kind of body that cannot have a statement reports it with `misplaced`. Equations go to the current block of a
`FunctionBuilder`.

`repeat` and `scan` become the `loop` equation of `ir/loops.py`. A loop carries the outer variables that it binds again. A
parameter declared in a `repeat` is stacked along the loop's dimension. The condition of a loop is elaborated twice: before the
loop, and at the end of its body for the next iteration.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import ClassVar, Literal

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Attr, Equation, Function, Initializer, Output, Value
from mtfc.compiler.ir.loops import LOOP, WHILE, make_loop, result_type, stacked_type
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.bodies import parameters_and_states as declared
from mtfc.frontend.semantics.bodies.expressions import CallRule, Expressions, Operand, Result
from mtfc.frontend.semantics.bodies.function_builder import FunctionBuilder, LoopBuilder
from mtfc.frontend.semantics.bodies.parameters_and_states import initializer, shared_parameter
from mtfc.frontend.semantics.names.constants import valid_size
from mtfc.frontend.semantics.names.scope import Scope, count
from mtfc.frontend.semantics.names.unused_values import NOTHING, Unused
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import bound, bound_inside, variables, yielded


@frozen
class BodyKind:
    """The kind of a body.

    word, name: the kind and the name in messages. local_dims: True if the body may declare dimensions. unused: the dead
    statements of the body.
    """

    word: str
    name: ast.Name
    local_dims: bool = False
    unused: Unused = NOTHING


class ElaboratedBody:
    """A list of statements during elaboration.

    places: the declarations of inputs, arguments and parameters. dim_places: the declarations of local dimensions. states: the
    states by name, None for a state with an error. watches: the places of watched values by full name. loops: the loops around
    the current statement. is_dropping: True inside of a dead statement.
    """

    def __init__(
        self,
        kind: BodyKind,
        statements: Sequence[ast.Statement],
        scope: Scope,
        builder: FunctionBuilder,
        call: CallRule,
        given: Iterable[ast.Name] = (),
        prefix: str = "",
        stack: tuple[tuple[str, str], ...] = (),
        shared: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Start a body. given: the names of its arguments. prefix, stack, shared: as in `Expressions`."""
        self.kind, self.statements = kind, statements
        self.scope = scope
        self.later = variables(given, statements)
        self.expressions = Expressions(scope, builder, self.later, call, prefix, stack, shared)
        self.places: dict[str, Span] = {}
        self.dim_places: dict[str, Span] = {}
        self.states: dict[str, declared.DeclaredState | None] = {}
        self.watches: dict[str, Span] = {}
        self.loops: list[Loop] = []
        self.is_dropping = False
        self.returned = 0

    @property
    def builder(self) -> FunctionBuilder:
        return self.expressions.builder

    @property
    def dead(self) -> frozenset[Span]:
        """The places of dead statements; none while a dead loop is elaborated."""
        return frozenset() if self.is_dropping else self.kind.unused.dead

    def run(self) -> None:
        """Elaborate the statements up to the first `return`; report a missing `return`, and statements after it."""
        for i, statement in enumerate(self.statements):
            self.statement(statement)
            if isinstance(statement, ast.Return):
                self._nothing_after(statement, self.statements[i + 1 :])
                return
        self.ends_without_return()

    def ends_without_return(self) -> None:
        """Report (E108) a body without `return`, unless it has errors of syntax."""
        if not any(isinstance(statement, ast.Broken) for statement in self.statements):
            name = self.kind.name
            help = "end it with `return` and the values that it computes"
            self.scope.error("E108", f"{self.kind.word} `{name.text}` returns nothing", name.span, help=help)

    def _nothing_after(self, end: ast.Return, rest: Sequence[ast.Statement]) -> None:
        """Report (E107) the first statement after `return`, unless the body has errors of syntax."""
        is_broken = any(isinstance(statement, ast.Broken) for statement in self.statements)
        if rest and not is_broken:
            label = Label(end.span, f"the {self.kind.word} ends here")
            self.scope.error("E107", "this comes after `return`", rest[0].span, [label])

    def statement(self, node: ast.Statement) -> None:
        """Elaborate a statement. A statement without use is checked only, and its names are dropped."""
        if isinstance(node, ast.Broken):  # the error has been reported, and the names are doubtful
            self.expressions.values.update(dict.fromkeys(node.targets))
            return
        elaborate = getattr(self, self.STATEMENTS[type(node)])
        if node.span in self.dead:
            self._drop(node, elaborate)
            return
        elaborate(node)
        if not self.is_dropping and not isinstance(node, ast.Repeat | ast.Scan):
            for name in bound(node) if self.expressions.dropped else ():
                self.expressions.dropped.pop(name.text, None)

    def _drop(self, node: ast.Statement, elaborate: Callable[[ast.Statement], None]) -> None:
        """Elaborate a dead statement for its errors, with a builder of its own; only dead statements see its values."""
        expressions, builder, values = self.expressions, self.builder, self.expressions.values
        expressions.builder, expressions.values = builder.aside(), ChainMap(expressions.dropped, values)
        self.is_dropping = True
        elaborate(node)
        names, found = [name.text for name in bound(node)], expressions.values
        expressions.dropped.update({name: found[name] for name in names if name in found})
        self.is_dropping = False
        self.scope.reports.dropped |= expressions.builder.seen
        self.scope.reports.dropped_dims |= expressions.builder.dims
        expressions.builder, expressions.values = builder, values

    def bind(self, name: ast.Name, value: Result) -> bool:
        """Bind an input before the statements are elaborated; return False, and report an error, if the name is taken."""
        if not self.scope.declare("value", name, self.places):
            return False
        self.expressions.values[name.text] = value
        self.expressions.places[name.text] = name.span
        return True

    # Statements

    def assign(self, node: ast.Assign) -> None:
        """Bind the targets to the results of an expression; a wrong number of results makes all of them unknown."""
        names = [self.expressions.prefix + target.text for target in node.targets]
        for name in names:
            self.expressions.note_section(name, node.value.span)
        results = self.expressions.results(node.value, names)
        if len(results) != len(names):
            self._wrong_number(node, len(results), failed=None in results)
            results = (None,) * len(names)
        for target, result in zip(node.targets, results, strict=True):
            if target.text in self.states:
                declared.report_assigned(target, self.states[target.text], self.expressions)
                continue
            self.places.setdefault(target.text, target.span)
            self.expressions.places[target.text] = target.span
            self.expressions.values[target.text] = result

    def _wrong_number(self, node: ast.Assign, results: int, failed: bool) -> None:
        """Report (E218) that an assignment has another number of names than of values."""
        if failed:
            return
        span = node.targets[0].span.to(node.targets[-1].span)
        found = "one value" if results == 1 else count(results, "value")
        self.scope.error("E218", f"{count(len(node.targets), 'name')} for {found}", span)

    def param(self, node: ast.Param) -> None:
        """Elaborate a parameter, and bind its name."""
        type = self._parameter_type(node)
        init = initializer(node.init, self.expressions)
        if self.bind(node.name, None) and type is not None and init is not None:
            self._declare(node, type, init)

    def _declare(self, node: ast.Param | ast.State, type: TensorType, init: Initializer) -> bool:
        """Declare a parameter or a state under its full name; return False if the name is taken, or another call has it."""
        name = self.expressions.prefix + node.name.text
        there = self.expressions.parameter_name(node.name.text)
        if there != name:
            value = shared_parameter(node, there, type, init, self.expressions)
            self.expressions.values[node.name.text] = value
            return False
        if not self.scope.declare("parameter", ast.Name(node.name.span, name), self.builder.places):
            return False
        value = self.builder.parameter(name, type, init, node.name.span, isinstance(node, ast.State))
        self.expressions.values[node.name.text] = value
        return True

    def state(self, node: ast.State) -> None:
        """Declare a state of the model. After an error the name stays bound, so that its uses report nothing."""
        is_typed = declared.typed(node, self.expressions)
        type = self.scope.type(node.type) if is_typed and node.type is not None else None
        init = None
        if type is not None and self._may_be_stacked(node, type):
            init = declared.initial_value(node, type, self.expressions)
        if not self.bind(node.name, None):
            return
        self.states[node.name.text] = None
        if type is not None and init is not None and self._declare(node, type, init):
            name, block = self.expressions.prefix + node.name.text, self.builder.block
            self.states[node.name.text] = declared.DeclaredState(name, type, node.name.span, block)

    def update(self, node: ast.StateUpdate) -> None:
        declared.update(node, self.states, self.expressions)

    def _parameter_type(self, node: ast.Param) -> TensorType | None:
        """Return the type of a parameter; None, with a diagnostic, for a type that cannot be trained or stacked."""
        type = self.scope.type(node.type)
        if type is None:
            return None
        if type.dtype not in FLOATS:
            message = f"a parameter is trained and so must be floating-point, found {type.dtype}"
            help = "a value that is not trained is an input of the model"
            return self.scope.refuse("E216", message, node.type.span, help=help)
        return type if self._may_be_stacked(node, type) else None

    def _may_be_stacked(self, node: ast.Param | ast.State, type: TensorType) -> bool:
        """Return True if no `repeat` around has a dimension of the type; report an error otherwise."""
        assert node.type is not None, "the type is known"
        dim = _twice(type, (loop for loop in self.builder.block.loops() if loop.stacked))
        if dim is None:
            return True
        message = f"`{node.name.text}` would have dimension `{dim.name}` twice"
        help = f"each iteration of `repeat {dim.name}` has a slice of its own"
        return self.scope.error("E210", message, node.type.span, help=help)

    def dim(self, node: ast.DimDecl) -> None:
        """Declare a dimension of a function, called `function.dim`."""
        if not self.kind.local_dims:
            help = f"declare it outside of the {self.kind.word}"
            self.scope.error("E114", "`dim` belongs in a function or in the file", node.span, help=help)
            return
        name = node.name.text
        if not self.scope.declare("dimension", node.name, self.dim_places):
            return
        size = self.expressions.integer(node.size)
        self.scope.places[name] = node.name.span
        self.scope.dims[name] = None
        if size is not None and valid_size(name, size, node.size.span, self.scope):
            full = f"{self.kind.name.text}.{name}"
            self.scope.dims[name] = self.builder.local_dim(full, size, node.name.span)

    def watch(self, node: ast.Watch) -> None:
        """Hand values out beside the outputs; in a loop, the values of all iterations."""
        for each in node.values:
            full = self.expressions.prefix + each.text if isinstance(each, ast.Name) else ""
            if not isinstance(each, ast.Name):
                help = "a watched value has the name of a variable: assign it to one, and watch that"
                self.scope.error("E109", "only variables can be watched", each.span, help=help)
            elif (first := self.watches.setdefault(full, each.span)) != each.span:
                label, help = Label(first, "first watched here"), "give the second value a name of its own"
                self.scope.error("E112", f"`{each.text}` is watched twice", each.span, [label], help)
            else:
                value = self.expressions.output(each)
                if value is not None and self._may_be_watched(each, value):
                    self.builder.watch(full, value)

    def _may_be_watched(self, name: ast.Name, value: Value) -> bool:
        """Return True if no loop around has a dimension of the value; report an error otherwise."""
        dim = _twice(value.type, self.builder.block.loops())
        return dim is None or _report_stacked("watched", value.type, dim, name.span, self.scope)

    def repeat(self, node: ast.Repeat | ast.Scan) -> None:
        elaborate_loop(self, node)

    scan = repeat

    def yield_(self, node: ast.Yield) -> None:
        """Elaborate a `yield`, which belongs to the innermost loop; report one outside of loops."""
        if self.loops:
            self.loops[-1].yields(node)
            return
        self.misplaced(node, "a loop")
        self.expressions.values[node.name.text] = None

    def misplaced(self, node: ast.Node, where: str) -> None:
        keyword = self.STATEMENTS[type(node)].rstrip("_")
        self.scope.error("E114", f"`{keyword}` belongs in {where}", node.span)

    STATEMENTS: ClassVar[Mapping[type[ast.Node], str]] = {
        ast.Assign: "assign",
        ast.Param: "param",
        ast.DimDecl: "dim",
        ast.Return: "return_",
        ast.Repeat: "repeat",
        ast.Scan: "scan",
        ast.Yield: "yield_",
        ast.State: "state",
        ast.StateUpdate: "update",
        ast.Watch: "watch",
    }


def _twice(type: TensorType, loops: Iterable[LoopBuilder]) -> Dim | None:
    """Return the first dimension that a type would have twice, if it is stacked along the dimensions of loops."""
    dims = set(type.dims)
    for loop in loops:
        if loop.dim in dims:
            return loop.dim
        dims.add(loop.dim)
    return None


def _report_stacked(kind: str, type: TensorType, dim: Dim, span: Span, scope: Scope) -> Literal[False]:
    """Report (E210) a value that has the loop's dimension before it is stacked along it."""
    label = Label(span, f"it is {type}")
    message = f"a {kind} value is stacked along `{dim.name}`, and this value has that dimension already"
    return scope.error("E210", message, span, [label])


MOST_LOOPS = 16
"""Most loops inside of each other."""


def elaborate_loop(body: ElaboratedBody, node: ast.Repeat | ast.Scan) -> None:
    """Elaborate a `repeat` or a `scan`. If its head is wrong, the names that it binds become unknown values."""
    dim, condition = body.scope.dim(node.dim), None
    if node.condition is not None:
        condition = _first_condition(node.condition, body)
    sources = {each.name.text: _source(body, each, dim) for each in node.slices}
    found = {name: source for name, source in sources.items() if source is not None}
    if dim is None or len(found) < len(sources) or not _may_nest(body, node):
        for name in (*bound_inside(node.body), *yielded(node)):
            body.expressions.values[name.text] = None
        return
    Loop(body, node, dim, condition).run(found)


def _first_condition(node: ast.Expr, body: ElaboratedBody) -> Value | None:
    """Return the condition before the first iteration; None, and an error, for a wrong one."""
    parameters = len(body.builder.parameters)
    value = _truth(node, body.expressions)
    if len(body.builder.parameters) == parameters:
        return value
    help = "compute what needs parameters in the loop, and let the condition read a variable"
    return body.scope.refuse("E223", "a condition declares no parameters", node.span, help=help)


def _truth(node: ast.Expr, expressions: Expressions) -> Value | None:
    """Return a condition's truth value in the current block; None, and an error, for anything else."""
    operand = expressions.operand(node)
    if operand is None:
        return None
    if operand.dims or (operand.dtype != "bool" and not isinstance(operand.result, bool)):
        help = "compare numbers, such as `x > 0`"
        if operand.dtype == "bool":
            help = "make one truth value of it: `any(x)` or `all(x)`"
        message = f"the condition of a loop is one truth value, bool[], found {operand.found}"
        return expressions.scope.refuse("E223", message, node.span, help=help)
    value = expressions.tensor(operand, "bool")
    return None if value is None else expressions.block.here(value)


def _source(body: ElaboratedBody, node: ast.SliceBinding, dim: Dim | None) -> Value | None:
    """Return the tensor that a loop takes slices of; None, and an error, if it lacks the loop's dimension."""
    operand = body.expressions.operand(node.source)
    if operand is None or dim is None:
        return None
    if dim in operand.dims:
        return body.expressions.tensor(operand)
    label = Label(node.source.span, f"{operand.shown} is {operand.found}")
    message = f"there is no dimension `{dim.name}` to go along"
    return body.scope.refuse("E205", message, node.source.span, [label])


def _may_nest(body: ElaboratedBody, node: ast.Repeat | ast.Scan) -> bool:
    """Return True unless too many loops are around a loop, which is reported (E122)."""
    depth = len(tuple(body.builder.block.loops()))
    message = f"more than {MOST_LOOPS} loops are inside of each other"
    return depth < MOST_LOOPS or body.scope.error("E122", message, node.dim.span)


@frozen
class Carried:
    """A variable that each iteration hands to the next.

    span: the place where the loop binds it. before: the place where it was bound before the loop.
    """

    argument: Value
    span: Span
    before: Span | None


class Loop:
    """A loop of a body during elaboration."""

    def __init__(
        self, body: ElaboratedBody, node: ast.Repeat | ast.Scan, dim: Dim, condition: Value | None
    ) -> None:
        """Start an empty loop.

        condition: the condition before the first iteration; None for a loop without one. goes_on: the carry of the condition,
        if the loop has one. yielded: the values of `yield` statements by name. unused: the yielded names that nothing reads.
        rebound: the outer variables that the loop binds again. carried: those of them that are read. watched: the names of
        the loop's outputs for watched values.
        """
        self.body, self.node, self.dim = body, node, dim
        self.expressions, self.builder = body.expressions, body.builder
        self.outside = body.builder.block
        self.block = LoopBuilder(self.outside, dim, isinstance(node, ast.Repeat), condition is not None)
        self.goes_on: Value | None = None
        if condition is not None and node.condition is not None:
            self.goes_on = self.block.carry(condition, None, node.condition.span)
        self.prefix, self.region = self.expressions.prefix, dim.name
        self.carried: dict[str, Carried] = {}
        self.yielded: dict[str, tuple[ast.Name, Value | None]] = {}
        self.unused: set[str] = set()
        self.rebound: dict[str, Span] = {}
        self.watched: dict[str, str] = {}
        self.is_dropped = body.is_dropping

    def run(self, sources: Mapping[str, Value]) -> None:
        """Elaborate the body in a block of its own, and append the `loop` equation."""
        before, dropped = dict(self.expressions.values), dict(self.expressions.dropped)
        bound = self._bound(sources)
        self.rebound = {name: span for name, span in bound.items() if name in before or name in dropped}
        live_bound = self._bound(sources, self.body.dead)
        self._carry({name: span for name, span in live_bound.items() if name in before})
        unused = self._unused(before | dropped)
        self._enter(sources)
        for statement in self.node.body:
            self._statement(statement)
        values_after, self.expressions.values = self.expressions.values, before
        outputs = self._outputs(values_after)
        outputs = [*self._condition(before, values_after, outputs), *outputs]
        self._check_unused(unused)
        self._leave()
        results = self._equation(outputs)
        self.expressions.values |= {
            **{name: results.get(name) if values_after[name] is not None else None for name in self.carried},
            **{name: results.get(name) for name in self.yielded if name not in self.unused},
        }
        kept = {name: value for name, value in dropped.items() if name not in self.carried | self.yielded}
        self.expressions.dropped = kept | {name: self._stacked(name) for name in self.unused}
        self.expressions.gone |= {name: span for name, span in bound.items() if name not in before}

    def _bound(self, sources: Mapping[str, Value], dead: Collection[Span] = ()) -> dict[str, Span]:
        """Return the variables that statements of the loop bind, each with the last place."""
        names = bound_inside(self.node.body, dead)
        return {name.text: name.span for name in names if name.text not in sources}

    def _stacked(self, name: str) -> Value | None:
        """Return the stack of a yielded value that only dead statements read."""
        value = self.yielded[name][1]
        return value and Value(name, stacked_type(value.type, self.dim))

    def _carry(self, rebound: Mapping[str, Span]) -> None:
        """Make arguments of the variables that the loop binds again."""
        for name, span in rebound.items():
            result = self.expressions.values[name]
            start = None if result is None else self.expressions.tensor(Operand(result, span, f"`{name}`"))
            if start is not None:
                argument = self.block.carry(start, self.prefix + name, span)
                self.carried[name] = Carried(argument, span, self.expressions.places.get(name))
            self.expressions.values[name] = None

    def _enter(self, sources: Mapping[str, Value]) -> None:
        """Enter the loop's body: bind carries and slices, and make its block the current one."""
        if isinstance(self.node, ast.Repeat):
            self.region = self.builder.scope(self.prefix, self.node.dim.text, owns_parameters=True)
            self.expressions.note_section(self.prefix + self.region, self.node.span)
            self.expressions.prefix = f"{self.prefix}{self.region}."
        else:
            self.expressions.note_section(self.prefix + self.node.dim.text, self.node.span)
        for name, each in self.carried.items():
            self.expressions.values[name] = each.argument
        for node in self.node.slices:
            name = node.name.text
            own = self.block.slice(sources[name], self.expressions.prefix + name, node.name.span)
            self.expressions.values[name] = own
        self.builder.block = self.block
        self.body.loops.append(self)

    def _leave(self) -> None:
        """Go on outside of the loop."""
        self.body.loops.pop()
        self.builder.block = self.outside
        self.expressions.prefix = self.prefix

    def _statement(self, node: ast.Statement) -> None:
        """Elaborate a statement of the loop's body; report a `return`."""
        if isinstance(node, ast.Return):
            self.body.misplaced(node, f"the {self.body.kind.word}, after its loops")
        else:
            self.body.statement(node)

    def yields(self, node: ast.Yield) -> None:
        """Elaborate `yield name = value`: after the loop, `name` has the values of all iterations."""
        name = node.name
        value = self._yielded_value(node)
        if name.text in self.yielded:
            label = Label(self.yielded[name.text][0].span, "first yielded here")
            self.body.scope.error("E112", f"`{name.text}` is yielded twice", name.span, [label])
        elif name.text in self.rebound:
            label = Label(self.rebound[name.text], "here it is bound, and so handed to the next iteration")
            message = f"`{name.text}` is yielded, and also carried from one iteration to the next"
            help = f"yield it under another name: `yield {name.text}_all = ...`"
            self.body.scope.error("E112", message, name.span, [label], help)
        else:
            self.yielded[name.text] = name, value
            if self.body.is_dropping and not self.is_dropped:
                self.unused.add(name.text)

    def _yielded_value(self, node: ast.Yield) -> Value | None:
        """Return the value of a `yield`; None, with a diagnostic, for one that has the dimension of the loop already."""
        result = self.expressions.value(node.value, self.prefix + node.name.text)
        if result is None:
            return None
        value = self.expressions.tensor(Operand(result, node.value.span))
        if value is not None and self.dim in value.type.dims:
            _report_stacked("yielded", value.type, self.dim, node.value.span, self.body.scope)
            return None
        return value

    # The equation

    def _outputs(self, after: MutableMapping[str, Result]) -> list[Output]:
        """Return the outputs of the region. A carry with an error keeps its old value, so that the loop is still complete.

        after: the values of variables at the end of the body.
        """
        outputs = []
        for name, each in self.carried.items():
            after[name] = self._next(name, each, after[name])
            value = after[name]
            last = value if isinstance(value, Value) else each.argument
            outputs.append(Output(self.prefix + name, last, updates=each.argument.name))
        for name, (_, each_value) in self.yielded.items():
            if each_value is not None and name not in self.unused:
                outputs.append(Output(self.prefix + name, self.block.here(each_value)))
        outputs += [Output(name, self.block.here(value)) for name, value in self.block.updates.items()]
        names = Names(output.name for output in outputs)
        self.watched = {name: names.fresh(name) for name in self.block.watched}
        watched = zip(self.watched.values(), self.block.watched.values(), strict=True)
        return [*outputs, *(Output(name, self.block.here(value)) for name, value in watched)]

    def _next(self, name: str, carried: Carried, result: Result) -> Value | None:
        """Return the value of a carried variable after the body, with the dimensions in the order of the carry."""
        if result is None:
            return None
        type = carried.argument.type
        value = self.expressions.tensor(Operand(result, carried.span, f"`{name}`"), type.dtype)
        if value is None:
            return None
        operand = Operand(value, carried.span)
        if operand.fits(type):
            return self.expressions.as_type(operand, type)
        self._changes(name, carried, value)
        return None

    def _condition(
        self, before: MutableMapping[str, Result], after: Mapping[str, Result], others: Sequence[Output]
    ) -> Iterator[Output]:
        """Yield the output for the condition of the next iteration, which sees the carried variables, if there is one.

        before, after: the values of variables before the loop, and at the end of its body. others: the outputs so far.
        """
        if self.goes_on is None or self.node.condition is None:
            return
        self.expressions.values = {**before, **{name: after[name] for name in self.carried}}
        value = _truth(self.node.condition, self.expressions)
        self.expressions.values = before
        names, carry_name = Names(output.name for output in others), self.goes_on.name
        yield Output(names.fresh(carry_name), self.goes_on if value is None else value, updates=carry_name)

    def _unused(self, before: Mapping[str, Result]) -> dict[str, Carried]:
        """Return the variables that the loop would carry if something read them.

        before: the values of variables before the loop.
        """
        places = self.expressions.places
        values = {name: before[name] for name in self.rebound if name not in self.carried}
        return {
            name: Carried(value, self.rebound[name], places.get(name))
            for name, value in values.items()
            if isinstance(value, Value)
        }

    def _check_unused(self, unused: Mapping[str, Carried]) -> None:
        """Report an error for an unread variable that changes its type."""
        for name, each in unused.items():
            start, end = each.argument.type, self.expressions.dropped.get(name)
            if isinstance(end, Value) and (start.dtype, set(start.dims)) != (
                end.type.dtype,
                set(end.type.dims),
            ):
                self._changes(name, each, end)

    def _changes(self, name: str, carried: Carried, value: Value) -> None:
        """Report (E222) that a variable has another type after an iteration than before the loop."""
        before, after = carried.argument.type, value.type
        labels = [Label(carried.span, f"after an iteration it is {after}")]
        if carried.before is not None:
            labels.insert(0, Label(carried.before, f"before the loop it is {before}"))
        message = f"`{name}` is carried from one iteration to the next, and changes its type"
        help = "if this is another variable, give it a name of its own"
        if set(before.dims) < set(after.dims):
            help = "give it all dimensions before the loop: `broadcast(x -> [dims])`"
        elif set(before.dims) == set(after.dims):
            help = f"convert it back at the end of the loop: `cast({name}, {before.dtype})`"
        self.body.scope.error("E222", message, carried.span, labels, help)

    def _equation(self, outputs: list[Output]) -> dict[str, Value]:
        """Append the `loop` equation and return its results by variable; append nothing if it has no results."""
        if len(outputs) == (self.goes_on is not None):
            return {}
        pairs = list(self.block.operands())
        arguments = tuple(argument for _, argument in pairs)
        region = Function(self.region, arguments, tuple(self.block.body), tuple(outputs))
        results = tuple(Value(self._result_name(each), result_type(each, self.dim)) for each in outputs)
        checkpoint = isinstance(self.node, ast.Repeat) and self.node.checkpoint
        attributes: dict[str, Attr] = {"dim": self.dim, "reverse": False, "checkpoint": checkpoint}
        attributes |= {} if self.goes_on is None else {WHILE.name: True}
        like = Equation(LOOP, (), (), attributes, span=self.node.span.to(self.node.dim.span))
        self.outside.append(
            make_loop(self.outside.names, region, [value for value, _ in pairs], like, results)
        )
        made = {each.name: value for each, value in zip(outputs, results, strict=True)}
        self.outside.updates |= {name: made[name] for name in self.block.updates}
        self.outside.watched |= {name: made[own] for name, own in self.watched.items()}
        return {name.removeprefix(self.prefix): value for name, value in made.items()}

    def _result_name(self, output: Output) -> str:
        """Return the name of a result outside of the loop: that of its variable, or a fresh one for the condition."""
        is_condition = self.goes_on is not None and output.updates == self.goes_on.name
        named = self.outside.names.fresh if is_condition else self.outside.variables.of_variable
        return named(output.name)
