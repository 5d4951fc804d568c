"""Elaborate expressions into equations.

The result of an expression is a tensor, which an equation defines, or a number: a literal, the size of a dimension, or a result
computed from numbers. A number has no dtype of its own. It takes the dtype of the other operand, and is f32 if there is none. In
optimizers, a result computed from the step number and from numbers is a number too, known only when the program runs. `None`
stands for an expression with a reported error. An equation that defines a user's variable has the variable's name; other
equations are named after their op.
"""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain, repeat
from typing import Any

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Attr, Equation, Value
from mtfc.compiler.ir.opdef import DimsError, DTypeError, OpError
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.training import TRAINING
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.bodies.function_builder import BlockBuilder, FunctionBuilder
from mtfc.frontend.semantics.names.constants import (
    OPERATORS,
    ConstantError,
    Number,
    convert,
    fold,
    plain,
    shown,
    truth,
)
from mtfc.frontend.semantics.names.scope import NamedSection, Scope, count, product_help, unknown_value
from mtfc.frontend.syntax import ast, other_libraries

Result = Value | Number | None

SIGNS = {"-": "neg", "not": "not"}


@frozen
class Operand:
    """An operand of an operator or a call.

    span: the place of the operand. shown: its name in messages. is_number: True for a value that stands for a number which is
    known only when the program runs.
    """

    result: Value | Number
    span: Span
    shown: str = "this"
    is_number: bool = False

    @property
    def type(self) -> TensorType | None:
        """The type of a tensor; None for a known number."""
        return self.result.type if isinstance(self.result, Value) else None

    @property
    def dtype(self) -> str | None:
        """The dtype of a tensor; None for a number."""
        return self.type.dtype if self.type and not self.is_number else None

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.type.dims if self.type else ()

    @property
    def found(self) -> str:
        """The type in messages."""
        return str(self.type or "a number")

    def fits(self, type: TensorType) -> bool:
        """Return True if the operand has this type, but for the order of its dimensions; a number has any dtype."""
        return set(self.dims) == set(type.dims) and (self.dtype or type.dtype) == type.dtype


@frozen
class Site:
    """The place in the source that equations are made for, and the variables that their results are bound to, if any.

    Variables have their full names, such as `layers.ffn.h`. more: the variables of further results.
    """

    span: Span
    variable: str | None = None
    more: tuple[str | None, ...] = ()

    @property
    def variables(self) -> Iterator[str | None]:
        """The variables of all results in order, followed by None without end."""
        return chain((self.variable, *self.more), repeat(None))


Results = tuple[Result, ...]
Variables = Sequence[str | None]
"""The variables that the results of a call are bound to, None for a result without a variable."""

CallRule = Callable[["Expressions", ast.Call, Variables], Results]


class Expressions:
    """Elaborates the expressions of one body: of a model, or of a function at one call."""

    def __init__(
        self,
        scope: Scope,
        builder: FunctionBuilder,
        later: Mapping[str, Span],
        call: CallRule,
        prefix: str = "",
        stack: tuple[tuple[str, str], ...] = (),
        shared: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Start without values.

        values: the variables bound so far. places: the last binding of each variable. gone: the places of variables that were
        known in a loop only. later: the first definition of each variable of the body, also further down. dropped: the values
        that only dead statements see. prefix: the scope at the start of full names, empty or ending in a dot. stack: the
        functions that are being inlined, each with the name of its module. call_rule: elaborates calls. shared: pairs of
        scopes, the innermost first: parameters of the first scope are those of the second.
        """
        self.shared = shared
        self.scope, self.builder, self.later, self.prefix, self.stack = scope, builder, later, prefix, stack
        self.call_rule = call
        self.values: MutableMapping[str, Result] = {}
        self.places: dict[str, Span] = {}
        self.gone: dict[str, Span] = {}
        self.dropped: dict[str, Result] = {}

    @property
    def block(self) -> BlockBuilder:
        return self.builder.block

    def note_section(self, name: str, span: Span) -> None:
        """Note the place of a call, a variable or a loop, so that a part of a layout may name it."""
        section = NamedSection(self.block.located(span) or span, self.builder.is_looped())
        self.scope.reports.sections.setdefault(name, []).append(section)

    def parameter_name(self, name: str) -> str:
        """Return the full name of a parameter of this body; in a call that shares parameters, the name in the other call."""
        name = self.prefix + name
        for own, other in self.shared:
            name = other + name.removeprefix(own) if name.startswith(own) else name
        return name

    def value(self, node: ast.Node, variable: str | None = None) -> Result:
        """Elaborate an expression; `variable` is the variable that the result is bound to, if any."""
        return _ELABORATE.get(type(node), Expressions.not_a_value)(self, node, variable)

    def operand(self, node: ast.Node) -> Operand | None:
        """Return the operand that an expression gives; None, with a diagnostic, if it has an error."""
        result = self.value(node)
        shown = f"`{node.text}`" if isinstance(node, ast.Name) else "this"
        return None if result is None else self.as_operand(result, node.span, shown)

    def as_operand(self, result: Value | Number, span: Span, shown: str = "this") -> Operand:
        return Operand(result, span, shown, result in self.builder.numbers)

    def name(self, node: ast.Name, variable: str | None) -> Result:
        """Return the value of a variable, or the size of a dimension of that name, or else `training`."""
        if node.text in self.values:
            return self.named(self.values[node.text], node.span, variable)
        if node.text in self.scope.dims and node.text not in self.later:
            dim = self.scope.dims[node.text]
            return dim.size if dim else None
        if node.text == TRAINING and not self._is_own(node.text):
            return self.emit(Site(node.span, variable), TRAINING)
        self._unknown(node)
        meant = self.scope.meant(node.text, self.known_values) if node.text not in self.later else None
        return self.values.get(meant) if meant and node.text not in self.gone else None

    def _is_own(self, name: str) -> bool:
        """Return True if the file has a value of this name that is not visible here."""
        return name in self.later or name in self.gone or name in self.scope.doubtful

    def named(self, value: Result, span: Span, variable: str | None) -> Result:
        """Give a variable that is bound to another one an equation that changes nothing, so that a `value` rule can name it."""
        if variable is None or not isinstance(value, Value):
            return value
        operand = self.as_operand(value, span)
        return self.emit(Site(span, variable), "transpose", operand, dims=value.type.dims)

    def _unknown(self, node: ast.Name) -> None:
        """Report a name without a value: bound in a loop that has ended, bound later, or unknown."""
        name = node.text
        if name in self.gone:
            label = Label(self.gone[name], "each iteration binds it anew here")
            help = f"bind it before the loop too, or collect the values of all iterations: `yield {name}_all = {name}`"
            self.scope.error("E121", f"`{name}` is known inside of the loop only", node.span, [label], help)
        elif name in self.later:
            label = Label(self.later[name], "it is defined here")
            self.scope.error("E105", f"`{name}` is used before it is defined", node.span, [label])
        else:
            unknown_value(self.scope, node, self.known_values)

    @property
    def known_values(self) -> Mapping[str, Result]:
        """All values that a name may mean. Nothing is copied, since a body may have many unknown names."""
        return ChainMap(self.dropped, self.values)

    def dotted(self, node: ast.Path, variable: str | None) -> Result:
        """Return the size of a dimension of a module."""
        dim = self.scope.find_dim(node)
        if dim is not None:
            return dim.size
        unknown_value(self.scope, node, self.known_values)
        return None

    def literal(self, node: ast.Int | ast.Float | ast.Bool, variable: str | None) -> Number:
        return node.value

    def call(self, node: ast.Call, variable: str | None) -> Result:
        """Return the only result of a call; report (E218) a call with several."""
        results = self.call_rule(self, node, (variable,))
        if len(results) == 1:
            return results[0]
        help = f"give each a name: `{', '.join('abcdefgh'[: len(results)])} = {node.function.text}(...)`"
        message = (
            f"`{node.function.text}` has {count(len(results), 'result')}, and one value is expected here"
        )
        return self.scope.refuse("E218", message, node.span, help=help)

    def results(self, node: ast.Node, variables: Sequence[str]) -> Results:
        """Elaborate an expression whose results are bound to several variables."""
        if isinstance(node, ast.Call):
            return self.call_rule(self, node, variables)
        return (self.value(node, variables[0]),)

    def number(self, node: ast.Node) -> float | None:
        """Return the value of an expression that must be a number, neither a tensor nor a truth value."""
        result = self.value(node)
        if isinstance(result, Value | bool):
            return self.scope.refuse("E213", "expected a number, such as `0.1` or `1e-3`", node.span)
        return result

    def integer(self, node: ast.Node) -> int | None:
        """Return the value of an expression that must be a whole number."""
        result = self.value(node)
        if result is None or (isinstance(result, int) and not isinstance(result, bool)):
            return result
        found = str(result.type) if isinstance(result, Value) else shown(result)
        return self.scope.refuse("E208", f"expected a whole number, found {found}", node.span)

    def not_a_value(self, node: ast.Node, variable: str | None) -> None:
        self.scope.error("E204", "expected a value", node.span)

    # Operators

    def unary(self, node: ast.Unary, variable: str | None) -> Result:
        """Return the value of `-x` or `not x`: an equation if x is a tensor, or else a number."""
        operand = self.operand(node.operand)
        if operand is None:
            return None
        if isinstance(operand.result, Value):
            return self.emit(Site(node.span, variable), SIGNS[node.op], operand)
        negated = {"-": lambda x: -plain(x), "not": lambda x: not truth(x)}[node.op]
        return self.folded(node.span, negated, operand.result)

    def binary(self, node: ast.Binary, variable: str | None) -> Result:
        """Return the value of `left op right`: an equation if a tensor takes part, or else a number."""
        left, right = self.operand(node.left), self.operand(node.right)
        if left is None or right is None:
            return None
        if node.op == "@":
            return self.scope.refuse(
                "E004", other_libraries.NO_PRODUCT, node.span, help=product_help(node, left.dims, right.dims)
            )
        if node.op == "//" and not (isinstance(left.result, int) and isinstance(right.result, int)):
            help = "`//` is for whole numbers, such as sizes; `floor(x / y)` rounds a quotient down"
            return self.scope.refuse("E214", "values have no operator `//`", node.span, help=help)
        if isinstance(left.result, Value) or isinstance(right.result, Value):
            return self.emit(Site(node.span, variable), OPERATORS[node.op], left, right)
        return self.folded(node.span, lambda a, b: fold(node.op, a, b), left.result, right.result)

    def folded(self, span: Span, function: Callable[..., Number], *numbers: Value | Number) -> Number | None:
        """Return the value of a function of numbers; None, and an error, if the function has no value there."""
        try:
            return function(*numbers)
        except ConstantError as error:
            return self.scope.refuse("E209", str(error), span)

    # Equations

    def emit(
        self,
        site: Site,
        op: str,
        *operands: Operand,
        apart: Mapping[int, str | None] | None = None,
        **attributes: Attr,
    ) -> Value | None:
        """Make one equation; numbers among its operands take the dtype of the tensors, or f32.

        apart: number of an operand that is no such tensor -> the dtype that a number takes there.
        """
        apart = apart or {}
        dtype = common_dtype([operand for i, operand in enumerate(operands) if i not in apart])
        values = [self.tensor(operand, apart.get(i, dtype)) for i, operand in enumerate(operands)]
        found = [value for value in values if value is not None]
        return self.equation(site, op, operands, found, attributes) if len(found) == len(values) else None

    def placeholder(self, type: TensorType | None, span: Span) -> Value | None:
        """Return a value of a known type for an expression with a reported error, so that the check goes on."""
        if type is None:
            return None
        value = convert(False if type.dtype == "bool" else 0, type.dtype)
        made = self.emit(Site(span), "full", dims=type.dims, value=value, dtype=type.dtype)
        self.scope.reports.placeholders.add(made)
        return made

    def equation(
        self,
        site: Site,
        op: str,
        operands: Sequence[Operand],
        values: Sequence[Value],
        attributes: Mapping[str, Attr],
    ) -> Value | None:
        """Make one equation with one result."""
        results = self.equations(site, op, operands, values, attributes)
        return results[0] if results else None

    def equations(
        self,
        site: Site,
        op: str,
        operands: Sequence[Operand],
        values: Sequence[Value],
        attributes: Mapping[str, Attr],
    ) -> tuple[Value, ...]:
        """Make one equation and return its results; report an error, and return nothing, if the op rejects the operands."""
        try:
            types = OPS[op].infer([value.type for value in values], attributes)
        except OpError as error:
            self._refused(error, site.span, operands, values)
            return ()
        dims = (
            {dim for value in values for dim in value.type.dims} if "dot" in OPS[op].traits else types[0].dims
        )
        if not self.scope.few_enough(dims, site.span):
            return ()
        results = tuple(
            Value(self._name(op, path), type) for path, type in zip(site.variables, types, strict=False)
        )
        path = site.variable if len(results) == 1 else None
        place, stage = self.block.located(site.span), self.block.stage
        self.block.append(Equation(op, tuple(values), results, attributes, (), place, stage, path))
        self.builder.grown.size += 1
        if _is_of_numbers(op, operands) and not results[0].type.dims:
            self.builder.numbers.update(results)
        return results

    def _name(self, op: str, path: str | None) -> str:
        """Return a new name for a result: after its variable, or after the op if it has none."""
        return self.block.names.fresh(op) if path is None else self.block.variables.of_variable(path)

    def _refused(
        self, error: OpError, span: Span, operands: Sequence[Operand], values: Sequence[Value]
    ) -> None:
        """Report the op's message, with a label at each operand that the user has written."""
        code = "E201" if isinstance(error, DimsError) else "E202" if isinstance(error, DTypeError) else "E205"
        help = _broadcast_help(values) if code == "E201" else error.help
        pairs = zip(operands, values, strict=False)
        labels = [Label(operand.span, f"{operand.shown} is {value.type}") for operand, value in pairs]
        self.scope.error(code, error.message, span, labels, help)

    def tensor(self, operand: Operand, dtype: str | None = None) -> Value | None:
        """Return an operand as a tensor: a number becomes a scalar of `dtype`, or else of f32 or bool."""
        number = operand.result
        if isinstance(number, Value):
            return self._number_of_dtype(self.block.here(number), operand, dtype)
        dtype = dtype or ("bool" if isinstance(number, bool) else "f32")
        converted = self.number_as(operand, dtype)
        if converted is None:
            return None
        self.block.span = operand.span
        return self.block.constant(converted, dtype)

    def as_type(self, operand: Operand, type: TensorType, variable: str | None = None) -> Value | None:
        """Return an operand that fits a type as a tensor of the type, with its dimensions in order."""
        value = self.tensor(operand, type.dtype)
        if value is None or value.type.dims == type.dims:
            return value
        site = Site(operand.span, variable)
        return self.emit(site, "transpose", Operand(value, operand.span), dims=type.dims)

    def report_change(self, name: ast.Name, operand: Operand, type: TensorType, declared: Span) -> None:
        """Report a new value of a state or a parameter that does not fit its type."""
        label = Label(declared, f"`{name.text}` is {type}")
        message = f"`{name.text}` is {type}, and would become {operand.found}"
        self.scope.error("E415", message, name.span, [label])

    def _number_of_dtype(self, value: Value, operand: Operand, dtype: str | None) -> Value:
        """Cast a value that stands for a number to the floating-point dtype of the other operands."""
        if not operand.is_number or dtype not in FLOATS or value.type.dtype not in FLOATS:
            return value
        self.block.span = operand.span
        return self.block.cast(value, str(dtype))

    def number_as(self, operand: Operand, dtype: str) -> Number | None:
        """Return a number as an element of `dtype`; None, and an error, if the dtype cannot hold it."""
        assert not isinstance(operand.result, Value)
        try:
            return convert(operand.result, dtype)
        except ConstantError as error:
            is_fraction = isinstance(operand.result, float) and dtype in ("i32", "u32")
            help = "convert the other operand with `cast(x, dtype)`" if is_fraction else None
            return self.scope.refuse("E206", str(error), operand.span, help=help)

    def output(self, node: ast.Name) -> Value | None:
        """Return the value of a variable that a model returns: a number becomes a scalar of that name."""
        result = self.value(node)
        if result is None or isinstance(result, Value):
            return result
        return self.scalar(result, Site(node.span, self.prefix + node.text))

    def scalar(self, number: Number, site: Site) -> Value | None:
        """Make a scalar tensor of a number."""
        dtype = "bool" if isinstance(number, bool) else "f32"
        converted = self.number_as(Operand(number, site.span), dtype)
        return None if converted is None else self.emit(site, "constant", value=converted, dtype=dtype)


def common_dtype(operands: Sequence[Operand]) -> str | None:
    """Return the dtype that numbers take among these operands: of a tensor, else of a value that stands for a number."""
    own = [operand.dtype for operand in operands] + [each.type.dtype for each in operands if each.type]
    return next((dtype for dtype in own if dtype), None)


def _is_of_numbers(op: str, operands: Sequence[Operand]) -> bool:
    """Return True if a result stands for a number: some operand does, no operand is a tensor, and the op is not a cast."""
    unknown = any(operand.is_number for operand in operands)
    return unknown and "cast" not in OPS[op].traits and all(operand.dtype is None for operand in operands)


def _broadcast_help(values: Sequence[Value]) -> str:
    """Return help to give one operand the dimensions of all operands."""
    dims: dict[Dim, None] = dict.fromkeys(dim for value in values for dim in value.type.dims)
    names = ", ".join(dim.name for dim in dims)
    return f"give one operand all dimensions: `broadcast(x -> [{names}])`"


_ELABORATE: dict[type[ast.Node], Callable[[Expressions, Any, str | None], Result]] = {
    ast.Int: Expressions.literal,
    ast.Float: Expressions.literal,
    ast.Bool: Expressions.literal,
    ast.Name: Expressions.name,
    ast.Path: Expressions.dotted,
    ast.Unary: Expressions.unary,
    ast.Binary: Expressions.binary,
    ast.Call: Expressions.call,
}
