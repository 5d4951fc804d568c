"""Expressions to equations.

An expression is a tensor, which an equation defines, or a number: a literal, or an operator of literals. A number has no dtype
of its own; it takes that of the tensor it meets, and is f32 where it meets none. `None` stands for an expression that has been
reported as wrong. The equation that defines a user's variable has the variable's name, all others are named by their op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Attr, Equation, Value
from mtfc.compiler.ir.opdef import DimsError, DTypeError, OpError
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.frontend import ast
from mtfc.frontend.constants import ConstantError, Number, convert, fold, plain, truth
from mtfc.frontend.scope import Scope

Result = Value | Number | None

OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "**": "pow",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "and": "and",
    "or": "or",
}
SIGNS = {"-": "neg", "not": "not"}


@attrs.frozen
class Operand:
    """What an operator or a call is applied to, where it is written, and how to speak of it."""

    result: Value | Number
    span: Span
    shown: str = "this"

    @property
    def type(self) -> TensorType | None:
        """None for a number."""
        return self.result.type if isinstance(self.result, Value) else None

    @property
    def dtype(self) -> str | None:
        return self.type.dtype if self.type else None

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.type.dims if self.type else ()


@attrs.frozen
class Site:
    """Where equations are being made: the place in the source, and the variable, if any, that the result is bound to."""

    span: Span
    variable: str | None = None


CallRule = Callable[["Expressions", ast.Call, Site], Result]


class VariableNames:
    """Names of values: a variable's first value has its name, and nothing else ever has it."""

    def __init__(self, variables: Sequence[str]) -> None:
        self.others = Names(variables)
        self._unused = set(variables)

    def of_variable(self, variable: str) -> str:
        """`h`, then for the next value bound to the same name `h_2`."""
        if variable in self._unused:
            self._unused.remove(variable)
            return variable
        return self.others.fresh(variable)


class Expressions:
    """Elaborates the expressions of one model; `values` has the variables bound so far.

    `later` says where variables are defined, further down in the model too. `call` elaborates calls of functions.
    """

    def __init__(self, scope: Scope, later: Mapping[str, Span], call: CallRule) -> None:
        self.scope = scope
        self.later = later
        self._call = call
        self.names = VariableNames(tuple(later))
        self.builder = Builder(self.names.others)
        self.values: dict[str, Result] = {}

    def value(self, node: ast.Node, variable: str | None = None) -> Result:
        """What an expression stands for; where an equation defines it, `variable` is that equation's name."""
        return _ELABORATE[type(node)](self, node, variable)

    def operand(self, node: ast.Node) -> Operand | None:
        result = self.value(node)
        shown = f"`{node.text}`" if isinstance(node, ast.Name) else "this"
        return None if result is None else Operand(result, node.span, shown)

    def name(self, node: ast.Name, variable: str | None) -> Result:
        """A variable bound to another gets an equation, which changes nothing, so that a `value` rule can name it."""
        if node.text not in self.values:
            self._unknown(node)
            return None
        value = self.values[node.text]
        if variable is None or not isinstance(value, Value):
            return value
        return self.emit(
            Site(node.span, variable), "transpose", Operand(value, node.span), dims=value.type.dims
        )

    def _unknown(self, node: ast.Name) -> None:
        if node.text in self.later:
            label = Label(self.later[node.text], "it is defined here")
            self.scope.error("E105", f"`{node.text}` is used before it is defined", node.span, [label])
            return
        help = "it is a dimension, not a value" if node.text in self.scope.dims else None
        known = () if help else self.values
        self.scope.unknown("E101", f"unknown value `{node.text}`", node, known, help)

    def path(self, node: ast.Path, variable: str | None) -> Result:
        self.scope.unknown("E101", f"unknown value `{node.text}`", node, self.values)
        return None

    def literal(self, node: ast.Int | ast.Float | ast.Bool, variable: str | None) -> Number:
        return node.value

    def call(self, node: ast.Call, variable: str | None) -> Result:
        return self._call(self, node, Site(node.span, variable))

    def not_a_value(self, node: ast.Node, variable: str | None) -> None:
        self.scope.error("E204", "expected a value", node.span)

    # Operators

    def unary(self, node: ast.Unary, variable: str | None) -> Result:
        operand = self.operand(node.operand)
        if operand is None:
            return None
        if isinstance(operand.result, Value):
            return self.emit(Site(node.span, variable), SIGNS[node.op], operand)
        negated = {"-": lambda x: -plain(x), "not": lambda x: not truth(x)}[node.op]
        return self.folded(node.span, negated, operand.result)

    def binary(self, node: ast.Binary, variable: str | None) -> Result:
        left, right = self.operand(node.left), self.operand(node.right)
        if node.op == "//":
            help = "`//` is for the sizes of dimensions; `floor(x / y)` rounds a quotient down"
            self.scope.error("E214", "values have no operator `//`", node.span, help=help)
            return None
        if left is None or right is None:
            return None
        if isinstance(left.result, Value) or isinstance(right.result, Value):
            return self.emit(Site(node.span, variable), OPERATORS[node.op], left, right)
        return self.folded(node.span, lambda a, b: fold(node.op, a, b), left.result, right.result)

    def folded(self, span: Span, function: Callable[..., Number], *numbers: Number) -> Number | None:
        try:
            return function(*numbers)
        except ConstantError as error:
            self.scope.error("E209", str(error), span)
            return None

    # Equations

    def emit(self, site: Site, op: str, *operands: Operand, **attributes: Attr) -> Value | None:
        """One equation for the site's result; numbers take the dtype of the tensors, or f32."""
        dtype = next((operand.dtype for operand in operands if operand.dtype), None)
        values = [self.tensor(operand, dtype) for operand in operands]
        found = [value for value in values if value is not None]
        return self.equation(site, op, operands, found, attributes) if len(found) == len(values) else None

    def equation(
        self,
        site: Site,
        op: str,
        operands: Sequence[Operand],
        values: Sequence[Value],
        attributes: Mapping[str, Attr],
    ) -> Value | None:
        try:
            (type,) = OPS[op].infer([value.type for value in values], attributes)
        except OpError as error:
            self._refused(error, site.span, operands, values)
            return None
        dims = {dim for value in values for dim in value.type.dims} if op == "einsum" else type.dims
        if not self.scope.few_enough(dims, site.span):
            return None
        variable = site.variable
        name = self.builder.names.fresh(op) if variable is None else self.names.of_variable(variable)
        result = Value(name, type)
        self.builder.append(
            Equation(op, tuple(values), (result,), attributes, span=site.span, path=site.variable)
        )
        return result

    def _refused(
        self, error: OpError, span: Span, operands: Sequence[Operand], values: Sequence[Value]
    ) -> None:
        """The op's own words, and what each operand is."""
        code = "E201" if isinstance(error, DimsError) else "E202" if isinstance(error, DTypeError) else "E205"
        help = _broadcast_help(values) if code == "E201" else error.help
        pairs = zip(operands, values, strict=True)
        labels = [Label(operand.span, f"{operand.shown} is {value.type}") for operand, value in pairs]
        self.scope.error(code, error.message, span, labels, help)

    def tensor(self, operand: Operand, dtype: str | None = None) -> Value | None:
        """The operand as a tensor: a number becomes a scalar of `dtype`, or of what it is by itself."""
        number = operand.result
        if isinstance(number, Value):
            return number
        dtype = dtype or ("bool" if isinstance(number, bool) else "f32")
        converted = self.number_as(operand, dtype)
        if converted is None:
            return None
        self.builder.span = operand.span
        return self.builder.constant(converted, dtype)

    def number_as(self, operand: Operand, dtype: str) -> Number | None:
        """A number as an element of `dtype`."""
        assert not isinstance(operand.result, Value)
        try:
            return convert(operand.result, dtype)
        except ConstantError as error:
            help = (
                "convert the other operand with `cast(x, dtype)`"
                if _is_misfit(operand.result, dtype)
                else None
            )
            self.scope.error("E206", str(error), operand.span, help=help)
            return None

    def output(self, variable: str, span: Span) -> Value | None:
        """The value of a variable that is returned: a number becomes a scalar of that name."""
        result = self.values[variable]
        if result is None or isinstance(result, Value):
            return result
        dtype = "bool" if isinstance(result, bool) else "f32"
        number = self.number_as(Operand(result, span), dtype)
        if number is None:
            return None
        return self.emit(Site(span, variable), "constant", value=number, dtype=dtype)


def _is_misfit(number: Number, dtype: str) -> bool:
    """Whether no number like this one is a value of `dtype`."""
    return isinstance(number, float) and dtype in ("i32", "u32")


def _broadcast_help(values: Sequence[Value]) -> str:
    dims: dict[Dim, None] = dict.fromkeys(dim for value in values for dim in value.type.dims)
    names = ", ".join(dim.name for dim in dims)
    return f"give one operand all dimensions: `broadcast(x -> [{names}])`"


_ELABORATE: dict[type[ast.Node], Callable[[Expressions, Any, str | None], Result]] = {
    ast.Int: Expressions.literal,
    ast.Float: Expressions.literal,
    ast.Bool: Expressions.literal,
    ast.Name: Expressions.name,
    ast.Path: Expressions.path,
    ast.Unary: Expressions.unary,
    ast.Binary: Expressions.binary,
    ast.Call: Expressions.call,
    ast.DimList: Expressions.not_a_value,
    ast.Tuple: Expressions.not_a_value,
    ast.Arrow: Expressions.not_a_value,
}
