"""Parse IR text into a program.

The text names values and dimensions; a program has objects. `_ProgramParser` keeps the dimensions of the program. Each of its
methods turns the parts of one rule of the grammar (`mtfc/grammar/ir.lark`) into an object. `_Scope` keeps the values of one
function, and makes it once all of its parts are known: they depend on its header.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from attrs import evolve
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

Defined = tuple[Token, TensorType]
"""The name and the type of a value."""
Contents = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]
"""The parts of the arguments, the equations and the outputs of a function. Before some equations stands their stage."""
Under = Rules | Token | None
"""A written layout; a token for the word `none`, and None if nothing is written."""


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
        is_second = found.startswith("`program ")
        more = (
            ": segments of several meshes are only for reading; compile their .mtf file" if is_second else ""
        )
        raise ReadError(f"cannot read {found} from column {error.column} on{more}", error.line) from None
    return cast("Program", _ProgramParser().parsed(tree))


@cache
def _parser() -> Lark:
    grammar = Path(__file__).parents[2] / "grammar" / "ir.lark"
    return Lark(grammar.read_text(encoding="utf-8"), parser="lalr", start="program")


class _Scope:
    """Turns the parts of one function or region into the function. A region sees only its own arguments."""

    def __init__(self, placed: bool) -> None:
        self.placed = placed
        self._values: dict[str, Value] = {}

    def define(self, token: Token, type: TensorType) -> Value:
        """Make the value that a token such as `%x` defines."""
        name = token[1:]
        value = self._values[name] = Value(name, type)
        return value

    def use(self, token: Token) -> Value:
        """Return the value that an operand names; refuse a name that is not defined."""
        name = token[1:]
        if name not in self._values:
            raise ReadError(f"%{name} is not defined", token.line or 0)
        return self._values[name]

    def function(self, name: str, contents: Contents, stage: Stage) -> Function:
        """Make a function of its parsed contents. An entry of the body that is a word begins another stage."""
        arguments, body, outputs = contents
        given, equations = tuple(self.argument(*each) for each in arguments), []
        for each in body:
            if isinstance(each, str):
                stage = cast("Stage", str(each))
            else:
                equations.append(self.equation(stage, *each))
        return Function(name, given, tuple(equations), tuple(self.output(*each) for each in outputs))

    def argument(
        self, role: Token, defined: Defined, start: Token | None, under: Under, at: Span | None
    ) -> Argument:
        value = self.define(*defined)
        layout = self.layout(under, shown_layout(value.type))
        return Argument(value, cast("Role", str(role)), at, layout, float(start or 0))

    def output(self, name: str, used: Token, updates: str | None, under: Under) -> Output:
        value = self.use(used)
        return Output(name, value, updates, self.layout(under, shown_layout(value.type)))

    def equation(
        self,
        stage: Stage,
        results: Sequence[Defined],
        op: str,
        operands: Sequence[Token],
        attributes: Sequence[tuple[str, Attr]],
        under: Under,
        path: str | None,
        at: Span | None,
        regions: Sequence[tuple[str, Contents]],
    ) -> Equation:
        """Return an equation from its parts. under: the layout as written; without one, the op may imply a layout."""
        used, given = tuple(map(self.use, operands)), dict(attributes)
        inner = tuple(_Scope(self.placed).function(*each, stage) for each in regions)
        made = tuple(self.define(*each) for each in results)
        wrong = malformed(op, len(used), given)
        if wrong is not None:
            raise ReadError(wrong, results[0][0].line or 0)
        layout = self.layout(under, implied_layout(op, made[0].type))
        return Equation(op, used, made, given, inner, at, stage, path, layout)

    def layout(self, written: Under, implied: Mapping[str, Axes]) -> Mapping[str, Axes] | None:
        """Return the layout that is written, or else the implied one."""
        if written is None:
            return implied if self.placed else None
        return written.by_dim if isinstance(written, Rules) else None


class _ProgramParser:
    """Turns the syntax tree of one program into a program, from the leaves up."""

    def __init__(self) -> None:
        self._dims: dict[str, Dim] = {}
        self._file = ""

    def parsed(self, node: Tree[Token]) -> Any:
        """Return the object of a rule; its name and parts, if no method makes one."""
        parts = [self.parsed(each) if isinstance(each, Tree) else each for each in node.children]
        make = getattr(self, node.data, None)
        return make(*parts) if make else (str(node.data), *parts)

    def _items(self, *items: Any) -> tuple[Any, ...]:
        return items

    dim_sizes = variables = updates = functions = names = two_names = contents = arguments = outputs = _items
    body = equation = results = defined = operands = attrs = regions = region = argument = output = _items
    value_rules = setting = form = axes = dims = mesh_axis = axis_names = attr = mapping = pair = type_dim = (
        _items
    )

    def program(
        self,
        name: str,
        source: None,
        mesh: Mesh | None,
        layout: Layout | None,
        sizes: object,
        variables: tuple[Parameter, ...],
        train: Training | None,
        rate: Function | None,
        updates: tuple[Update, ...],
        functions: tuple[Function, ...],
    ) -> Program:
        """Return a program from its parts. Dims and layout were read with them."""
        training = train and evolve(train, updates=updates, learning_rate=rate)
        return Program(name, self._dims, variables, functions, training, mesh, layout)

    def name(self, token: Token) -> str:
        return str(token).strip("`")

    def number(self, token: Token) -> int | float:
        return int(token) if token.lstrip("-").isdigit() else float(token)

    def whole(self, token: Token) -> int:
        return int(token)

    def truth(self, token: Token) -> bool:
        return str(token) == "true"

    def string(self, token: Token) -> str:
        try:
            return str(json.loads(token))
        except ValueError:
            raise ReadError(f"{token} is no text in quotes", token.line or 1) from None

    def source(self, file: str) -> None:
        self._file = file

    def place(self, file: str | None, position: Token) -> Span:
        line, column, end_line, end_column = map(int, position.replace("-", ":").split(":"))
        return Span(self._file if file is None else file, line, column, end_line, end_column)

    def at(self, *places: Span) -> Span:
        """Join the places of a call chain, the innermost first, into one span."""
        *inner, span = places
        for place in reversed(inner):
            span = evolve(place, call=span)
        return span

    # Dimensions, types and layouts

    def dim_size(self, name: str, size: int) -> None:
        self._dims[name] = Dim(name, size)

    def dim(self, token: Token) -> Dim:
        name = str(token).strip("`")
        if name not in self._dims:
            raise ReadError(f"dimension `{name}` is not declared", token.line or 0)
        return self._dims[name]

    def type(self, dtype: str, *parts: Any) -> TensorType:
        *dims, pending = parts
        splits = tuple(axes or () for _, axes in dims)
        return TensorType(dtype, tuple(dim for dim, _ in dims), splits, *(pending or ()))

    def pending(self, reduction: Token, axes: Axes) -> tuple[Axes, str]:
        return axes, str(reduction).replace("+", "sum")

    def mesh(self, name: str, *axes: tuple[str, int]) -> Mesh:
        return Mesh(name, axes)

    def rule(self, dim: str, axes: Axes) -> tuple[str, Axes]:
        return str(dim), axes

    def rules(self, *rules: tuple[str, Axes]) -> Rules:
        return Rules(rules)

    def layout(self, name: str, *parts: Any) -> Layout:
        """Make a layout of its parsed entries, which come in any order. The last part holds the rules of blocks."""
        *entries, blocks = parts
        own, params, optimizer, values, pipelines, forms = (
            tuple(value for name, value in entries if name == kind)
            for kind in ("own_rule", "params", "optimizer", "values", "pipelines", "forms_entry")
        )
        first, second = (next(iter(section), Rules()) for section in (params, optimizer))
        chosen = next(iter(forms), Forms())
        return Layout(name, Rules(own), first, second, values, blocks or Rules(), pipelines, chosen)

    def pipeline(
        self,
        word: Token,
        loop: str,
        checkpoint: Token | None,
        batch: str,
        micro_batches: int,
        again: str | None,
        chunks: int | None,
    ) -> Pipeline:
        if again not in (None, loop):
            raise ReadError(f"the pipeline of `{loop}` names `{again}`", word.line or 1)
        chunks = 1 if chunks is None else chunks
        return Pipeline(loop, batch, micro_batches, checkpoint is not None, chunks)

    def forms(self, word: Token, *entries: tuple[str, str | float]) -> Forms:
        """Make the section `forms` of a layout. Raises `ReadError` for an unknown entry or a wrong value."""
        try:
            return Forms.of(dict(entries))
        except ValueError as error:
            raise ReadError(
                f"`{error}` is no entry of `forms`, or has a wrong value", word.line or 1
            ) from None

    # Parameters, training and functions

    def call(self, name: str, *settings: tuple[str, float]) -> Initializer:
        return Initializer(name, settings)

    param = Parameter
    state = partial(Parameter, is_state=True)

    def train(self, at: Span | None, minimize: str, *entries: tuple[str, Any] | None) -> Training:
        return Training(minimize, span=at, **dict(entry for entry in entries if entry))

    def scale(self, dynamic: Token | None, number: float) -> LossScale:
        return LossScale(number, dynamic is not None)

    def function(self, name: str, placed: Token | None, contents: Contents) -> Function:
        return _Scope(placed is not None).function(name, contents, "forward")

    rate = function

    def update(
        self, parameters: tuple[str, ...], name: str, placed: Token | None, contents: Contents
    ) -> Update:
        return Update(parameters, self.function(name, placed, contents))
