"""`repeat` and `scan`: statements to the `loop` equation, which `ir/loops.py` describes.

What a loop carries are the variables of the body around it that it binds again. A parameter that is declared inside of a `repeat`
is stacked along its dimension. All other values of the outside arrive as they are used: see `trace.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import LOOP, result_type, stacked_type
from mtfc.compiler.ir.types import Dim
from mtfc.frontend.semantics.calls.expressions import Operand, Result, Site
from mtfc.frontend.semantics.trace import LoopBlock
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.bound_names import bound_inside, yielded

if TYPE_CHECKING:
    from mtfc.frontend.semantics.body import Body

MOST_LOOPS = 16
"""Loops inside of each other."""


def elaborate_loop(body: Body, node: ast.Repeat | ast.Scan) -> None:
    dim = body.scope.dim(node.dim)
    sources = {each.name.text: _source(body, each, dim) for each in node.slices}
    found = {name: source for name, source in sources.items() if source is not None}
    if dim is None or len(found) < len(sources) or not _may_nest(body, node):
        for name in (*bound_inside(node.body), *yielded(node)):
            body.expressions.values[name.text] = None
        return
    Loop(body, node, dim).run(found)


def _source(body: Body, node: ast.Slice, dim: Dim | None) -> Value | None:
    """What a loop takes slices of."""
    operand = body.expressions.operand(node.source)
    if operand is None or dim is None:
        return None
    if dim in operand.dims:
        return body.expressions.tensor(operand)
    found = str(operand.type) if operand.type else "a number"
    label = Label(node.source.span, f"{operand.shown} is {found}")
    message = f"there is no dimension `{dim.name}` to go along"
    body.scope.error("E205", message, node.source.span, [label])
    return None


def _may_nest(body: Body, node: ast.Repeat | ast.Scan) -> bool:
    depth = len(tuple(body.trace.block.loops()))
    if depth >= MOST_LOOPS:
        body.scope.error("E122", f"more than {MOST_LOOPS} loops are inside of each other", node.dim.span)
    return depth < MOST_LOOPS


@attrs.frozen
class Carried:
    """A variable that each iteration hands to the next: its argument, where the loop binds it, and where it was bound before."""

    argument: Value
    span: Span
    before: Span | None


class Loop:
    """A loop of a body during elaboration.

    `yielded` are the values of `yield` statements by name, `unused` the names among them that nothing reads. `rebound` are the
    outer variables that the loop binds again; those that something reads are `carried`.
    """

    def __init__(self, body: Body, node: ast.Repeat | ast.Scan, dim: Dim) -> None:
        self.body, self.node, self.dim = body, node, dim
        self.expressions, self.trace = body.expressions, body.trace
        self.outside = body.trace.block
        self.block = LoopBlock(self.outside, dim, stacked=isinstance(node, ast.Repeat))
        self.prefix, self.region = self.expressions.prefix, dim.name
        self.carried: dict[str, Carried] = {}
        self.yielded: dict[str, tuple[ast.Name, Value | None]] = {}
        self.unused: set[str] = set()
        self.rebound: dict[str, Span] = {}
        self.is_dropped = body.is_dropping

    def run(self, sources: Mapping[str, Value]) -> None:
        """Elaborate the body in a block of its own, and make the loop of it."""
        before, dropped = dict(self.expressions.values), dict(self.expressions.dropped)
        bound = self._bound(sources)
        self.rebound = {name: span for name, span in bound.items() if name in before or name in dropped}
        needed = self._bound(sources, self.body.dead)
        self._carry({name: span for name, span in needed.items() if name in before})
        unused = self._unused(before | dropped)
        self._enter(sources)
        for statement in self.node.body:
            self._statement(statement)
        after, self.expressions.values = self.expressions.values, before
        outputs = self._outputs(after)
        self._check_unused(unused)
        self._leave()
        results = self._equation(outputs)
        self.expressions.values |= {
            **{name: results.get(name) if after[name] is not None else None for name in self.carried},
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
        """From here on statements are of the loop's body."""
        if isinstance(self.node, ast.Repeat):
            self.region = self.trace.scope(self.prefix, self.node.dim.text, owns_parameters=True)
            self.expressions.prefix = f"{self.prefix}{self.region}."
        for name, each in self.carried.items():
            self.expressions.values[name] = each.argument
        for node in self.node.slices:
            name = node.name.text
            own = self.block.slice(sources[name], self.expressions.prefix + name, node.name.span)
            self.expressions.values[name] = own
        self.trace.block = self.block
        self.body.loops.append(self)

    def _leave(self) -> None:
        self.body.loops.pop()
        self.trace.block = self.outside
        self.expressions.prefix = self.prefix

    def _statement(self, node: ast.Statement) -> None:
        if isinstance(node, ast.Return):
            self.body.misplaced(node, "return", f"the {self.body.kind.word}, after its loops")
        else:
            self.body.statement(node)

    def yields(self, node: ast.Yield) -> None:
        """`yield name = value`: the values of all iterations are called `name` after the loop."""
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
        result = self.expressions.value(node.value, self.prefix + node.name.text)
        if result is None:
            return None
        value = self.expressions.tensor(Operand(result, node.value.span))
        if value is not None and self.dim in value.type.dims:
            label = Label(node.value.span, f"it is {value.type}")
            message = (
                f"what is yielded is stacked along `{self.dim.name}`, and this has that dimension already"
            )
            self.body.scope.error("E210", message, node.value.span, [label])
            return None
        return value

    # The equation

    def _outputs(self, after: MutableMapping[str, Result]) -> list[Output]:
        """What the region hands out. A variable that has failed stays what it was, so that the loop is one all the same."""
        outputs = []
        for name, each in self.carried.items():
            after[name] = self._next(name, each, after[name])
            value = after[name]
            last = value if isinstance(value, Value) else each.argument
            outputs.append(Output(self.prefix + name, last, updates=each.argument.name))
        for name, (_, each_value) in self.yielded.items():
            if each_value is not None and name not in self.unused:
                outputs.append(Output(self.prefix + name, self.block.here(each_value)))
        return outputs

    def _next(self, name: str, carried: Carried, result: Result) -> Value | None:
        """The value that a carried variable has after the body, with the type that it had before."""
        if result is None:
            return None
        type = carried.argument.type
        operand = Operand(result, carried.span, f"`{name}`")
        value = self.expressions.tensor(operand, type.dtype)
        if value is None or value.type == type:
            return value
        if value.type.dtype == type.dtype and set(value.type.dims) == set(type.dims):
            return self.expressions.emit(
                Site(carried.span), "transpose", Operand(value, carried.span), dims=type.dims
            )
        self._changes(name, carried, value)
        return None

    def _unused(self, before: Mapping[str, Result]) -> dict[str, Carried]:
        """Return the variables that the loop would carry if something read them."""
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
        """Append the loop, and give its results by variable; nothing, where it has none."""
        if not outputs:
            return {}
        operands = list(self.block.operands())
        arguments: tuple[Argument, ...] = tuple(argument for _, argument in operands)
        region = Function(self.region, arguments, tuple(self.block.body), tuple(outputs))
        variables = self.outside.variables
        results = tuple(
            Value(variables.of_variable(each.name), result_type(each, self.dim)) for each in outputs
        )
        checkpoint = isinstance(self.node, ast.Repeat) and self.node.checkpoint
        self.outside.append(
            Equation(
                LOOP,
                tuple(value for value, _ in operands),
                results,
                {"dim": self.dim, "reverse": False, "checkpoint": checkpoint},
                (region,),
                span=self._head(),
            )
        )
        return {
            each.name.removeprefix(self.prefix): value for each, value in zip(outputs, results, strict=True)
        }

    def _head(self) -> Span:
        """Where the loop begins, up to its dimension."""
        end = self.node.dim.span
        return attrs.evolve(self.node.span, end_line=end.end_line, end_column=end.end_column)
