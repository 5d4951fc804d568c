"""Statements to equations, the same for models, functions and optimizers.

A `Body` is one such list of statements with the variables that are bound in it. To elaborate statements of another kind, derive a
class: bind what is given with `bind`, call `run`, and read `expressions.values`; `STATEMENTS` says which method elaborates which
statement, and what a kind of body does not have it reports with `misplaced`. All equations go to the `Trace` that it is made
with, to where that stands: `trace.block.body` is what has been made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.frontend.semantics.calls.expressions import CallRule, Expressions, Result
from mtfc.frontend.semantics.calls.initial import initializer
from mtfc.frontend.semantics.declarations import valid_size
from mtfc.frontend.semantics.loops import Loop, elaborate_loop
from mtfc.frontend.semantics.scope import Scope, count
from mtfc.frontend.semantics.trace import Trace
from mtfc.frontend.semantics.unused import NOTHING, Unused
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.bound_names import bound, variables


@attrs.frozen
class Kind:
    """The kind of a body: the word and the name in messages, and `local_dims`, True if the body may declare dimensions.

    `unused` has the dead statements of the body.
    """

    word: str
    name: ast.Name
    local_dims: bool = False
    unused: Unused = NOTHING


class Body(ABC):
    """The elaborated part of one list of statements.

    `places` says where inputs, arguments and parameters are declared, `dim_places` where dimensions of its own are, and `loops`
    which loops the current statement is in. `is_dropping` is True inside of a dead statement.
    """

    def __init__(
        self,
        kind: Kind,
        statements: Sequence[ast.Statement],
        scope: Scope,
        trace: Trace,
        call: CallRule,
        given: Iterable[ast.Name] = (),
        prefix: str = "",
        stack: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.kind, self.statements = kind, statements
        self.scope = scope
        self.later = variables(given, statements)
        self.expressions = Expressions(scope, trace, self.later, call, prefix, stack)
        self.places: dict[str, Span] = {}
        self.dim_places: dict[str, Span] = {}
        self.loops: list[Loop] = []
        self.is_dropping = False
        self.returned = 0

    @property
    def trace(self) -> Trace:
        return self.expressions.trace

    @property
    def dead(self) -> frozenset[Span]:
        """The places of dead statements; none while a dead loop is elaborated."""
        return frozenset() if self.is_dropping else self.kind.unused.dead

    def run(self) -> None:
        """Elaborate the statements up to the first `return`; errors where there is none, or where more follow."""
        for i, statement in enumerate(self.statements):
            self.statement(statement)
            if isinstance(statement, ast.Return):
                self._nothing_after(statement, self.statements[i + 1 :])
                return
        self.ends_without_return()

    def ends_without_return(self) -> None:
        if not any(isinstance(statement, ast.Broken) for statement in self.statements):
            name = self.kind.name
            help = "end it with `return` and the values that it computes"
            self.scope.error("E108", f"{self.kind.word} `{name.text}` returns nothing", name.span, help=help)

    def _nothing_after(self, end: ast.Return, rest: Sequence[ast.Statement]) -> None:
        is_broken = any(isinstance(statement, ast.Broken) for statement in self.statements)
        if rest and not is_broken:
            label = Label(end.span, f"the {self.kind.word} ends here")
            self.scope.error("E107", "this comes after `return`", rest[0].span, [label])

    def statement(self, node: ast.Statement) -> None:
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
        """Report errors in a dead statement. Its equations go to their own trace, and only dead statements see its values."""
        expressions, trace, values = self.expressions, self.trace, self.expressions.values
        expressions.trace, expressions.values = trace.aside(), ChainMap(expressions.dropped, values)
        self.is_dropping = True
        elaborate(node)
        names, found = [name.text for name in bound(node)], expressions.values
        expressions.dropped.update({name: found[name] for name in names if name in found})
        self.is_dropping = False
        self.scope.reports.dropped |= expressions.trace.seen
        self.scope.reports.dropped_dims |= expressions.trace.dims
        trace.size = expressions.trace.size
        expressions.trace, expressions.values = trace, values

    def bind(self, name: ast.Name, value: Result) -> bool:
        """Bind what is given before the statements run; False, and an error, where the name is taken."""
        if not self.scope.declare("value", name, self.places):
            return False
        self.expressions.values[name.text] = value
        self.expressions.places[name.text] = name.span
        return True

    # Statements

    def assign(self, node: ast.Assign) -> None:
        names = [self.expressions.prefix + target.text for target in node.targets]
        results = self.expressions.results(node.value, names)
        if len(results) != len(names):
            self._wrong_number(node, len(results), failed=None in results)
            results = (None,) * len(names)
        for target, result in zip(node.targets, results, strict=True):
            self.places.setdefault(target.text, target.span)
            self.expressions.places[target.text] = target.span
            self.expressions.values[target.text] = result

    def _wrong_number(self, node: ast.Assign, results: int, failed: bool) -> None:
        if failed:
            return
        first, last = node.targets[0].span, node.targets[-1].span
        span = attrs.evolve(first, end_line=last.end_line, end_column=last.end_column)
        found = "one value" if results == 1 else count(results, "value")
        self.scope.error("E218", f"{count(len(node.targets), 'name')} for {found}", span)

    def param(self, node: ast.Param) -> None:
        type = self._parameter_type(node)
        init = initializer(node.init, self.expressions)
        if not self.bind(node.name, None) or type is None or init is None:
            return
        name = self.expressions.prefix + node.name.text
        if self.scope.declare("parameter", ast.Name(node.name.span, name), self.trace.places):
            value = self.trace.parameter(name, type, init, node.name.span)
            self.expressions.values[node.name.text] = value

    def _parameter_type(self, node: ast.Param) -> TensorType | None:
        type = self.scope.type(node.type)
        if type is None:
            return None
        if type.dtype not in FLOATS:
            message = f"a parameter is trained and so must be floating-point, found {type.dtype}"
            help = "what is given and not trained is an input"
            self.scope.error("E216", message, node.type.span, help=help)
            return None
        return type if self._may_be_stacked(node, type) else None

    def _may_be_stacked(self, node: ast.Param, type: TensorType) -> bool:
        """Whether the dimensions of the loops around are others than those of the type."""
        dims: set[Dim] = set(type.dims)
        for loop in self.trace.block.loops():
            if loop.stacked and loop.dim in dims:
                message = f"`{node.name.text}` would have dimension `{loop.dim.name}` twice"
                help = f"each iteration of `repeat {loop.dim.name}` has a slice of its own"
                self.scope.error("E210", message, node.type.span, help=help)
                return False
            dims |= {loop.dim} if loop.stacked else set()
        return True

    def dim(self, node: ast.DimDecl) -> None:
        """A dimension of the function's own: `function.dim`."""
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
            self.scope.dims[name] = self.trace.local_dim(full, size, node.name.span)

    @abstractmethod
    def return_(self, node: ast.Return) -> None:
        """The end of the body."""

    def loop(self, node: ast.Repeat | ast.Scan) -> None:
        elaborate_loop(self, node)

    def yield_(self, node: ast.Yield) -> None:
        if self.loops:
            self.loops[-1].yields(node)
            return
        self.misplaced(node, "yield", "a loop")
        self.expressions.values[node.name.text] = None

    def state(self, node: ast.State) -> None:
        self.misplaced(node, "state", "an optimizer")
        self.expressions.values[node.name.text] = None

    def misplaced(self, node: ast.Node, keyword: str, where: str) -> None:
        self.scope.error("E114", f"`{keyword}` belongs in {where}", node.span)

    STATEMENTS: ClassVar[Mapping[type[ast.Node], str]] = {
        ast.Assign: "assign",
        ast.Param: "param",
        ast.DimDecl: "dim",
        ast.Return: "return_",
        ast.Repeat: "loop",
        ast.Scan: "loop",
        ast.Yield: "yield_",
        ast.State: "state",
    }
