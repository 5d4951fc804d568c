"""Elaborate calls of built-in functions by a table: the arguments of each function, and the equations that it makes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import attrs

from mtfc.compiler.ir import attributes
from mtfc.compiler.ir.core import Attr, Value
from mtfc.compiler.ir.ops import OPS, elementwise
from mtfc.compiler.ir.types import TensorType
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.bodies.expressions import Expressions, Operand, Result, Results, Site, Variables
from mtfc.frontend.semantics.calls import argument_kinds as kinds
from mtfc.frontend.semantics.calls import builtin_equations as equations
from mtfc.frontend.semantics.calls.argument_kinds import Kind
from mtfc.frontend.semantics.calls.builtin_equations import gradients
from mtfc.frontend.semantics.calls.function_calls import call_function, find_function
from mtfc.frontend.semantics.names.scope import count, unknown_function
from mtfc.frontend.syntax import ast


@frozen
class Builtin:
    """A built-in function.

    usage: an example of a call. arguments: the kinds of its arguments, in order. build: makes the equations from the expressions,
    the site, the arguments, the given keyword arguments, and `dims` if the call states the dimensions of its result. keywords:
    the kinds of keyword arguments, by name. more: the kind of any further arguments. result: says if a last `-> [dims]` is
    required, optional or an error.
    """

    usage: str
    arguments: tuple[Kind, ...]
    build: Callable[..., Result | Results]
    keywords: Mapping[str, Kind] = attrs.field(factory=dict)
    more: Kind | None = None
    result: Literal["required", "optional", "none"] = "none"

    @property
    def name(self) -> str:
        return self.usage.partition("(")[0].rpartition(" ")[2]


def elaborate_call(expressions: Expressions, node: ast.Call, variables: Variables) -> Results:
    """Elaborate a call; a result with an error is None. A function of the file hides a built-in one of the same name."""
    function = find_function(expressions.scope, node.function)
    if function is not None:
        return call_function(expressions, node, function, variables)
    builtin = BUILTINS.get(node.function.text)
    if builtin is None:
        values, scope = expressions.known_values, expressions.scope
        unknown_function(scope, node.function, values, USAGES)
        meant = scope.meant(node.function.text, (*USAGES, *scope.functions))
        if meant and isinstance(node.function, ast.Name) and node.function.text not in values:
            named = node.evolve(function=ast.Name(node.function.span, meant))
            return elaborate_call(expressions, named, variables)
        _check_nested(expressions, node)
        return (None,)
    result = _built(expressions, node, builtin, Site(node.span, variables[0], tuple(variables[1:])))
    return result if isinstance(result, tuple) else (result,)


def _built(expressions: Expressions, node: ast.Call, builtin: Builtin, site: Site) -> Result | Results:
    """Elaborate a call of a built-in function."""
    positional, result = (node.arguments, None) if builtin.result == "none" else node.split_result()
    if not _right_number(expressions, node, builtin, len(positional)):
        _check_nested(expressions, node)
        return None
    found = _read(expressions, builtin, positional)
    checks = (
        _plain(expressions, node),
        _known_keywords(expressions, node, builtin),
        _right_result(expressions, node, builtin, result, found),
    )
    named = {
        keyword.name.text: builtin.keywords[keyword.name.text](expressions, keyword.value)
        for keyword in node.keywords
        if keyword.name.text in builtin.keywords
    }
    if result is not None:
        named["dims"] = kinds.dims(expressions, result)
    if not all(checks) or any(value is None for value in (*found, *named.values())):
        return _stated(expressions, site, found, named) if builtin.name == "einsum" else None
    return builtin.build(expressions, site, *found, **named)


def _stated(
    expressions: Expressions, site: Site, found: list[Operand | None], named: Mapping[str, Any]
) -> Result:
    """Return a placeholder of the type that an `einsum` with a wrong operand has by its other operands and its statement.

    found: the operands, None for a wrong one. named: the keyword arguments.
    """
    dims, dtypes = named.get("dims"), {each.dtype for each in found if each is not None} - {None}
    if dims is None or len(dtypes) != 1:
        return None
    return expressions.placeholder(TensorType(str(dtypes.pop()), dims), site.span)


def _read(expressions: Expressions, builtin: Builtin, positional: tuple[ast.Argument, ...]) -> list[Any]:
    """Read the positional arguments. A loop takes less stack than a comprehension where calls are nested."""
    more = (builtin.more,) * (len(positional) - len(builtin.arguments)) if builtin.more else ()
    found = []
    for kind, node in zip((*builtin.arguments, *more), positional, strict=False):
        found.append(kind(expressions, node))
    return found


def _plain(expressions: Expressions, node: ast.Call) -> bool:
    """Return True if the call has no `[d = ...]` and no `as`, which are for declared functions; report an error otherwise."""
    if node.bindings:
        message = f"`{node.function.text}` has no generic dimensions"
        expressions.scope.error("E116", message, node.bindings[0].span)
    if node.scope:
        message = f"`{node.function.text}` owns no parameters that `as` could name"
        expressions.scope.error("E116", message, node.scope.span)
    if node.shared:
        message = f"`{node.function.text}` owns no parameters to share"
        expressions.scope.error("E123", message, node.shared.span)
    return not node.bindings and not node.scope and not node.shared


def _right_number(expressions: Expressions, node: ast.Call, builtin: Builtin, found: int) -> bool:
    """Return True if a call has as many arguments as its builtin takes; otherwise report it (E203)."""
    expected = len(builtin.arguments)
    if found == expected or (builtin.more and found > expected):
        return True
    name = node.function.text
    at_least = "at least " if builtin.more else ""
    message = f"`{name}` takes {at_least}{count(expected, 'argument')}, found {found}"
    instead = ELEMENTWISE_TWINS.get(name) if found == 2 else None
    instead = instead or (REDUCING_TWINS.get(name) if found == 1 else None)
    help = f"did you mean {instead}?" if instead else f"write `{builtin.usage}`"
    return expressions.scope.error("E203", message, node.span, help=help)


def _known_keywords(expressions: Expressions, node: ast.Call, builtin: Builtin) -> bool:
    """Return True if the builtin has all keyword arguments of a call; report (E111) the others."""
    unknown = [keyword for keyword in node.keywords if keyword.name.text not in builtin.keywords]
    for keyword in unknown:
        message = f"`{node.function.text}` has no argument `{keyword.name.text}`"
        help = f"write `{builtin.usage}`"
        expressions.scope.unknown("E111", message, keyword.name, builtin.keywords, help)
    return not unknown


def _right_result(
    expressions: Expressions, node: ast.Call, builtin: Builtin, result: ast.DimList | None, found: list[Any]
) -> bool:
    """Return True if a call names the dims of its result where it must, and not beside `over`; otherwise report it (E215).

    found: the arguments.
    """
    if any(isinstance(argument, ast.Arrow) for argument in node.arguments) and result is None:
        return True  # reported where it is read
    if builtin.result == "required" and result is None:
        message = f"`{node.function.text}` needs the dimensions of its result"
        kept = _occur_once(found) if node.function.text == "einsum" else []
        example = f"-> [{', '.join(kept)}]" if kept else "-> [dims]"
        return expressions.scope.error(
            "E215", message, node.span, help=f"end it with them, as in `{example}`"
        )
    if result is not None and any(keyword.name.text == "over" for keyword in node.keywords):
        message = "`over` and `-> [dims]` both say what is left; give one of them"
        return expressions.scope.error("E215", message, node.span)
    return True


def _occur_once(found: Sequence[Any]) -> list[str]:
    """Return the dimensions that only one operand has: the result of a matrix product has these."""
    results = [operand.result for operand in found if isinstance(operand, Operand)]
    counts = Counter(name for value in results if isinstance(value, Value) for name in value.type.names)
    return [name for name, times in counts.items() if times == 1]


def _check_nested(expressions: Expressions, node: ast.Call) -> None:
    """Report errors within arguments that are certainly values, of a call that cannot be elaborated."""
    for argument in (*node.arguments, *(keyword.value for keyword in node.keywords)):
        if isinstance(argument, ast.Call | ast.Unary | ast.Binary):
            expressions.value(argument)


ARGUMENTS: Mapping[object, Kind] = {
    attributes.DIM: kinds.dim,
    attributes.DIMS: kinds.dims,
    attributes.DTYPE: kinds.dtype,
    attributes.INT: kinds.integer,
    attributes.FLAG: kinds.boolean,
    attributes.NUMBER: kinds.number,
}
"""The kind of an op's attribute -> the kind of the argument of a call."""

TOGETHER = {"source target": kinds.mapping, "source out kernel": kinds.windows, "padding": kinds.two_integers}
"""Attributes that one argument gives -> the kind of this argument."""


def _of_op(
    usage: str,
    *names: str,
    operands: int = 1,
    indices: int | None = None,
    result: Literal["required", "optional", "none"] = "none",
    fixed: Mapping[str, Attr] = MappingProxyType({}),
    **defaults: Any,
) -> Builtin:
    """Return the function that applies an op, whose record says which kinds its attributes have.

    names: the attributes that the arguments behind the operands give. defaults: the attributes that keywords may give.
    fixed: all other attributes. indices: the number of an operand for which a number is i32.
    """
    op = usage.partition("(")[0]
    known = TOGETHER | {
        each.name: ARGUMENTS[each.kind] for each in OPS[op].attributes if each.kind in ARGUMENTS
    }
    arguments = (*(kinds.tensor,) * operands, *(known[name] for name in names))
    build = partial(equations.applied, op, operands, names, indices, {**fixed, **defaults})
    return Builtin(usage, arguments, build, {name: known[name] for name in defaults}, result=result)


X = (kinds.tensor,)
DRAWN: Mapping[str, Kind] = {"dtype": kinds.dtype, "seed": kinds.tensor}
SUMMED: Mapping[str, Kind] = {"over": kinds.dim, "exclusive": kinds.boolean, "reverse": kinds.boolean}

TABLE = (
    *(
        Builtin(
            f"{op.name}({', '.join('xy'[: op.arity[0]])})",
            X * op.arity[0],
            partial(equations.without_attributes, op.name),
        )
        for op in (*elementwise.UNARY, *elementwise.BINARY)
        if op.number is not None
    ),
    Builtin("where(condition, x, y)", X * 3, equations.where),
    _of_op("cast(x, bf16)", "dtype"),
    Builtin("einsum(a, b -> [dims])", X, equations.einsum, more=kinds.tensor, result="required"),
    _of_op("grouped_dot(x, w, numbers, groups -> [dims])", "group", operands=3, indices=2, result="required"),
    *(
        Builtin(
            f"{op}(x, over = {'d' if op == 'argmax' else '[dims]'})",
            X,
            partial(equations.reduction, op),
            {"over": kinds.dims},
            result="optional",
        )
        for op in ("sum", "mean", "max", "min", "prod", "any", "all", "argmax")
    ),
    *(_of_op(f"{op}(x -> [dims])", result="required") for op in ("broadcast", "transpose", "reshape")),
    *(
        Builtin(f"{op}([dims])", (kinds.dims,), partial(equations.filled, number), {"dtype": kinds.dtype})
        for op, number in (("zeros", 0), ("ones", 1))
    ),
    Builtin("zeros_like(x)", X, equations.zeros_like),
    Builtin("full([dims], value)", (kinds.dims, kinds.number), equations.full, {"dtype": kinds.dtype}),
    Builtin("rename(x, old -> new)", (*X, kinds.mapping), equations.rename, more=kinds.mapping),
    _of_op("slice(x, length -> short, start = 0, stride = 1)", "source target", start=0, stride=1),
    _of_op(
        "pad(x, length -> longer, before = 0, value = 0.0)",
        "source target",
        fixed={"stride": 1},
        before=0,
        value=None,
    ),
    Builtin(
        "concat(a, b, left -> both, right -> both)",
        (kinds.tensor_or_mapping,),
        equations.concat,
        more=kinds.tensor_or_mapping,
    ),
    Builtin("stack([a, b], d)", (kinds.variables, kinds.dim), equations.stack),
    Builtin("a, b = unstack(x, d)", (*X, kinds.dim), equations.unstack),
    _of_op("shift(x, length, by = 1, wrap = false)", "dim", by=1, wrap=False),
    _of_op(
        "window(x, length -> [windows, kernel], stride = 1, padding = (0, 0), value = 0.0, dilation = 1)",
        "source out kernel",
        stride=1,
        padding=(0, 0),
        value=None,
        dilation=1,
    ),
    _of_op("gather(table, ids, d)", "dim", operands=2, indices=1),
    Builtin("scatter_add(updates, ids, d, [dims])", (*X * 2, kinds.dim, kinds.dims), equations.scatter_add),
    Builtin("cumsum(x, over = d, exclusive = false, reverse = false)", X, equations.cumsum, SUMMED),
    Builtin("values, indices = top_k(x, d -> k)", (*X, kinds.mapping), equations.top_k),
    Builtin("gradients(loss, [w, x])", (*X, kinds.variables), gradients),
    Builtin("random.uniform([dims])", (kinds.dims,), partial(equations.random, "uniform"), DRAWN),
    Builtin("random.normal([dims])", (kinds.dims,), partial(equations.random, "normal"), DRAWN),
    Builtin(
        "random.bernoulli([dims], p)",
        (kinds.dims, kinds.number),
        equations.bernoulli,
        {"seed": kinds.tensor},
    ),
    _of_op("range(d)", "dim", operands=0),
    _of_op("one_hot(ids, d)", "dim", dtype="f32"),
)

BUILTINS: dict[str, Builtin] = {each.name: each for each in TABLE}
USAGES = {name: each.usage for name, each in BUILTINS.items()}

ELEMENTWISE_TWINS = {
    "max": "`maximum(x, y)`, which is elementwise",
    "min": "`minimum(x, y)`, which is elementwise",
}
REDUCING_TWINS = {
    "maximum": "`max(x)`, which reduces",
    "minimum": "`min(x)`, which reduces",
}
