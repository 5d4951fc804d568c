"""Parse IR text into a program.

The text names values and dimensions; a program has objects. `_ProgramParser` keeps the dimensions of the program, and `_Scope`
the values of one function. Each method turns the tree of one rule of the grammar (`mtfc/grammar/ir.lark`) into an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import (
    Argument,
    Attr,
    Equation,
    Function,
    Initializer,
    LossScale,
    Output,
    Parameter,
    Program,
    Role,
    Stage,
    Training,
    Update,
    Value,
)
from mtfc.compiler.ir.loops import malformed
from mtfc.compiler.ir.printer import implied_layout, shown_layout
from mtfc.compiler.ir.types import Axes, Dim, Forms, Layout, Mesh, Pipeline, Rules, TensorType

Node = Tree[Token]


class ReadError(Exception):
    """The text is not IR: `line` is the line of the mistake."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


def read_program(text: str) -> Program:
    """Return the program that `text` describes. Raise `ReadError`."""
    try:
        tree = _parser().parse(text if text.endswith("\n") else text + "\n")
    except UnexpectedInput as error:
        lines = text.splitlines()
        found = f"`{lines[error.line - 1].strip()}`" if 0 < error.line <= len(lines) else "the end"
        raise ReadError(f"cannot read {found} from column {error.column} on", error.line) from None
    return _ProgramParser(tree).program()


@cache
def _parser() -> Lark:
    grammar = Path(__file__).parents[2] / "grammar" / "ir.lark"
    return Lark(grammar.read_text(encoding="utf-8"), parser="lalr", start="program", maybe_placeholders=False)


def _children(node: Node, rule: str) -> Iterator[Node]:
    return (child for child in node.children if isinstance(child, Tree) and child.data == rule)


def _child(node: Node, rule: str) -> Node | None:
    return next(_children(node, rule), None)


def _tokens(node: Node, kind: str) -> list[Token]:
    return [child for child in node.children if isinstance(child, Token) and child.type == kind]


def _token(node: Node, kind: str) -> Token | None:
    return next(iter(_tokens(node, kind)), None)


def _string(token: Token) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        raise ReadError(f"{token} is no text in quotes", token.line or 1) from None


def _name(node: Node) -> str:
    (token,) = node.children
    return str(token).strip("`")


def _names(node: Node) -> list[str]:
    return [_name(child) for child in _children(node, "name")]


def _first_name(node: Node) -> str:
    return _names(node)[0]


def _number(token: Token) -> int | float:
    return int(token) if token.lstrip("-").isdigit() else float(token)


def _settings(call: Node) -> tuple[tuple[str, float], ...]:
    return tuple((_first_name(s), _number(_tokens(s, "NUMBER")[0])) for s in _children(call, "setting"))


def _rules(node: Node) -> Rules:
    return Rules(tuple(_rule(rule) for rule in _children(node, "rule")))


def _rule(node: Node) -> tuple[str, Axes]:
    dim, axes = cast("list[Node]", node.children)
    return _name(dim), tuple(_names(axes))


def _section(node: Node | None) -> Rules:
    rules = _child(node, "rules") if node else None
    return _rules(rules) if rules else Rules()


def _forms(node: Node | None) -> Forms:
    entries: dict[str, str | float] = {}
    if node is None:
        return Forms()
    for each in _children(node, "form"):
        key, *words = _names(each)
        entries[key] = words[0] if words else _number(_tokens(each, "NUMBER")[0])
    try:
        return Forms.of(entries)
    except ValueError as error:
        tokens = node.scan_values(lambda each: isinstance(each, Token))
        line = next((each.line for each in tokens if isinstance(each, Token)), None)
        raise ReadError(f"`{error}` is no entry of `forms`, or has a wrong value", line or 1) from None


def _line(equation: Node) -> int:
    """Return the line on which an equation starts."""
    return _tokens(next(_children(equation, "defined")), "VALUE")[0].line or 0


class _Scope:
    """The values of one function by name."""

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}

    def define(self, name: str, type: TensorType) -> Value:
        value = self._values[name] = Value(name, type)
        return value

    def use(self, token: Token) -> Value:
        name = token[1:]
        if name not in self._values:
            raise ReadError(f"%{name} is not defined", token.line or 0)
        return self._values[name]


class _ProgramParser:
    """Turns the syntax tree of one program into a program."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        sizes = {_first_name(d): int(_tokens(d, "NUMBER")[0]) for d in _children(tree, "dim")}
        self.dims = {name: Dim(name, size) for name, size in sizes.items()}
        source = _child(tree, "source")
        self.file = _string(_tokens(source, "STRING")[0]) if source else None
        self._types: dict[str, TensorType] = {}

    def program(self) -> Program:
        mesh, layout, train = (_child(self.tree, rule) for rule in ("mesh", "layout", "train"))
        return Program(
            name=_first_name(self.tree),
            dims=self.dims,
            parameters=tuple(self.parameter(node) for node in self._declared()),
            functions=tuple(self.function(node) for node in _children(self.tree, "function")),
            training=self.training(train) if train else None,
            mesh=self.mesh(mesh) if mesh else None,
            layout=self.program_layout(layout) if layout else None,
        )

    def _declared(self) -> Iterator[Node]:
        """Yield the nodes of parameters and states, in order."""
        return (n for n in self.tree.children if isinstance(n, Tree) and n.data in ("param", "state"))

    def mesh(self, node: Node) -> Mesh:
        axes = ((_first_name(a), int(_tokens(a, "NUMBER")[0])) for a in _children(node, "mesh_axis"))
        return Mesh(_first_name(node), tuple(axes))

    def program_layout(self, node: Node) -> Layout:
        values = tuple((_first_name(v), _section(v)) for v in _children(node, "value_rules"))
        params, optimizer, blocks = (
            _section(_child(node, section)) for section in ("params", "optimizer", "blocks")
        )
        pipelines = tuple(self.pipeline(each) for each in _children(node, "pipeline"))
        forms = _forms(_child(node, "forms"))
        return Layout(_first_name(node), _rules(node), params, optimizer, values, blocks, pipelines, forms)

    def pipeline(self, node: Node) -> Pipeline:
        loop, batch, *more = _names(node)
        micro_batches, *chunks = (int(number) for number in _tokens(node, "NUMBER"))
        if more not in ([], [loop]):
            raise ReadError(
                f"the pipeline of `{loop}` names `{more[0]}`", _tokens(node, "NUMBER")[1].line or 1
            )
        checkpoint = _token(node, "CHECKPOINT") is not None
        return Pipeline(loop, batch, micro_batches, checkpoint, *chunks)

    def parameter(self, node: Node) -> Parameter:
        (call,) = _children(node, "call")
        init = Initializer(_first_name(call), _settings(call))
        is_state = node.data == "state"
        return Parameter(_first_name(node), self.type_of(node), init, self.span(node), is_state)

    def training(self, node: Node) -> Training:
        precision, clip, accumulate = (_child(node, rule) for rule in ("precision", "clip", "accumulate"))
        report, rate = _child(node, "report"), _child(self.tree, "rate")
        reduce, scale, average = (_child(node, rule) for rule in ("reduce", "loss_scale", "average"))
        weigh_by = _child(node, "weigh_by")
        return Training(
            minimize=_first_name(node),
            updates=tuple(self.update(update) for update in _children(self.tree, "update")),
            precision=cast("tuple[str, str]", tuple(_names(precision))) if precision else None,
            clip=_number(_tokens(clip, "NUMBER")[0]) if clip else None,
            accumulate=int(_tokens(accumulate, "NUMBER")[0]) if accumulate else 1,
            span=self.span(node),
            report=tuple(_names(report)) if report else (),
            learning_rate=self.function(rate) if rate else None,
            reduce=_first_name(reduce) if reduce else None,
            loss_scale=self.loss_scale(scale) if scale else None,
            average=_number(_tokens(average, "NUMBER")[0]) if average else None,
            weigh_by=_first_name(weigh_by) if weigh_by else None,
        )

    def loss_scale(self, node: Node) -> LossScale:
        return LossScale(_number(_tokens(node, "NUMBER")[0]), _token(node, "DYNAMIC") is not None)

    def update(self, node: Node) -> Update:
        *parameters, _ = _names(node)
        return Update(tuple(parameters), self.function(node))

    def function(self, node: Node) -> Function:
        return self.contents(node, _token(node, "PLACED") is not None, "forward")

    def contents(self, node: Node, placed: bool, stage: Stage) -> Function:
        """Return a function or region, which sees only its own arguments."""
        scope = _Scope()
        arguments = tuple(self.argument(a, scope, placed) for a in _children(node, "argument"))
        (body,) = _children(node, "body")
        equations = self.body(body, scope, placed, stage)
        outputs = tuple(self.output(o, scope, placed) for o in _children(node, "output"))
        return Function(_names(node)[-1], arguments, equations, outputs)

    def argument(self, node: Node, scope: _Scope, placed: bool) -> Argument:
        value = self.defined(node, scope)[0]
        role = cast("Role", str(_tokens(node, "ROLE")[0]))
        layout, start = self.under(node, shown_layout(value.type), placed), _token(node, "NUMBER")
        return Argument(value, role, self.span(node), layout, float(start or 0))

    def output(self, node: Node, scope: _Scope, placed: bool) -> Output:
        value = scope.use(_tokens(node, "VALUE")[0])
        updates = _child(node, "updates")
        under = self.under(node, shown_layout(value.type), placed)
        return Output(_first_name(node), value, _first_name(updates) if updates else None, under)

    def body(self, node: Node, scope: _Scope, placed: bool, stage: Stage) -> tuple[Equation, ...]:
        equations = []
        for child in cast("list[Node]", node.children):
            if child.data == "stage":
                stage = cast("Stage", str(child.children[0]))
            else:
                equations.append(self.equation(child, scope, placed, stage))
        return tuple(equations)

    def equation(self, node: Node, scope: _Scope, placed: bool, stage: Stage) -> Equation:
        (operands,) = _children(node, "operands")
        used = tuple(scope.use(token) for token in _tokens(operands, "VALUE"))
        regions = tuple(self.contents(r, placed, stage) for r in _children(node, "region"))
        results = self.defined(node, scope)
        op, path = _first_name(node), _child(node, "path")
        attributes = dict(self.attr(attr) for attr in _children(node, "attr"))
        wrong = malformed(op, len(used), attributes)
        if wrong is not None:
            raise ReadError(wrong, _line(node))
        return Equation(
            op,
            used,
            results,
            attributes,
            regions,
            self.span(node),
            stage,
            _first_name(path) if path else None,
            self.under(node, implied_layout(op, results[0].type), placed),
        )

    def under(self, node: Node, implied: Mapping[str, Axes], placed: bool) -> Mapping[str, Axes] | None:
        """Return the layout that is written, or else the implied one."""
        written = _child(node, "under")
        if written is None:
            return implied if placed else None
        return None if _token(written, "NONE") else _section(written).by_dim

    def defined(self, node: Node, scope: _Scope) -> tuple[Value, ...]:
        nodes = _children(node, "defined")
        return tuple(scope.define(_tokens(n, "VALUE")[0][1:], self.type_of(n)) for n in nodes)

    def type_of(self, node: Node) -> TensorType:
        (type,) = _children(node, "type")
        dims = list(_children(type, "type_dim"))
        splits = [_child(dim, "axis_names") for dim in dims]
        pending = _child(type, "pending")
        reduction = str(pending.children[0]).replace("+", "sum") if pending else "sum"
        return TensorType(
            _first_name(type),
            tuple(self.dim(next(_children(dim, "name"))) for dim in dims),
            tuple(tuple(_names(axes)) if axes else () for axes in splits),
            tuple(_names(next(_children(pending, "axis_names")))) if pending else (),
            reduction,
        )

    def dim(self, node: Node) -> Dim:
        name = _name(node)
        if name not in self.dims:
            raise ReadError(f"dimension `{name}` is not declared", cast(Token, node.children[0]).line or 0)
        return self.dims[name]

    def attr(self, node: Node) -> tuple[str, Attr]:
        name, value = cast("list[Node]", node.children)
        return _name(name), self.attr_value(value)

    def attr_value(self, node: Node) -> Attr:
        first = node.children[0] if node.children else ""
        match node.data:
            case "number":
                return _number(cast(Token, first))
            case "truth":
                return first == "true"
            case "string":
                return _string(cast(Token, first))
            case "dim_ref":
                return self.dim(next(_children(node, "name")))
            case "axis_names":
                return tuple(_names(node))
            case "mapping":
                return tuple(self.pair(pair) for pair in _children(node, "pair"))
        return tuple(self.dim(name) for name in _children(node, "name"))

    def pair(self, node: Node) -> tuple[Dim, Dim]:
        old, new = (self.dim(name) for name in _children(node, "name"))
        return old, new

    def span(self, node: Node) -> Span | None:
        at = _child(node, "at")
        if at is None:
            return None
        span = None
        for place in reversed(list(_children(at, "place"))):
            span = self.place(place, span)
        return span

    def place(self, node: Node, call: Span | None) -> Span:
        file, (position,) = _token(node, "STRING"), _tokens(node, "POSITION")
        line, column, end_line, end_column = map(int, position.replace("-", ":").split(":"))
        name = _string(file) if file else self.file or ""
        return Span(name, line, column, end_line, end_column, call)
