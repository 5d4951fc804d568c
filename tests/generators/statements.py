"""The parts of a program that is being generated: statements in blocks, and functions.

An expression is text. A call of a declared function stands in it as a name, `call7_`, until the program is written: by `Writing`
in the language, or by `flat.py` with all functions inlined and all loops unrolled.
"""

import re
from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.ir.types import Dim
from tests.generators.terms import Shape, dims_text

CALL = re.compile(r"\bcall\d+_\b")
REST = "..."
MODULE = "library"
"""The name of the file of imported functions."""


@attrs.frozen
class Variable:
    """A name that a statement binds, and the dims of its value."""

    name: str
    dims: Shape


@attrs.frozen
class Assign:
    targets: tuple[Variable, ...]
    text: str


@attrs.frozen
class Param:
    """A parameter; in a loop, its dims are those of one slice."""

    name: str
    dtype: str
    dims: Shape
    init: str


@attrs.frozen
class Yield:
    name: str
    text: str
    dims: Shape


@attrs.frozen
class Slice:
    """`name = text` in the head of a loop; `dims` are those of the whole operand."""

    name: str
    text: str
    dims: Shape


@attrs.frozen
class Loop:
    """A `repeat` or `scan`; `stacked` says that parameters inside have a slice for each iteration."""

    dim: Dim
    stacked: bool
    checkpoint: bool
    slices: tuple[Slice, ...]
    block: "Block"


Statement = Assign | Yield | Loop


@attrs.frozen
class Block:
    """Statements in order, after the parameters that are declared among them."""

    params: list[Param] = attrs.field(factory=list)
    statements: list[Statement] = attrs.field(factory=list)


@attrs.frozen
class Seen:
    """Facts about the tensors of a body, a function's or the model's.

    shapes: the dims of every tensor. reduced: dims that an op sums over. slid: dims that windows slide along, and those that
    count windows. owned: dims of parameters.
    """

    shapes: dict[Shape, None] = attrs.field(factory=dict)
    reduced: set[Dim] = attrs.field(factory=set)
    slid: set[Dim] = attrs.field(factory=set)
    owned: set[Dim] = attrs.field(factory=set)


@attrs.frozen
class Argument:
    """An argument of a function. `dims` is None for a number, whose text may be left to the default."""

    name: str
    dtype: str
    dims: Shape | None
    default: str | None = None


@attrs.frozen(eq=False)
class Function:
    """A function of the file.

    `generics` are dims by the names that they have inside; `locals` are the dims that it declares, with their sizes as written.
    `by_name` are the generic dims that are given as arguments. `any_dtype` says that the signature leaves the floating-point
    dtype open. `facts` are those of its body.
    """

    name: str
    generics: Shape
    by_name: Shape
    arguments: tuple[Argument, ...]
    results: tuple[tuple[str, Variable], ...]
    block: Block
    locals: tuple[tuple[Dim, str], ...]
    any_dtype: bool
    facts: Seen


@attrs.frozen
class Given:
    """An argument of a call, by position or by keyword."""

    name: str
    text: str
    keyword: bool


@attrs.frozen
class Call:
    """`function[generic = dim](given) as alias`; the generic dims are written only if `explicit`.

    bound: the dims that the function's generic dims stand for. rest: the dims that `...` stands for.
    """

    function: Function
    given: tuple[Given, ...]
    bound: Mapping[Dim, Dim]
    rest: Shape
    explicit: bool
    alias: str | None

    def seen_from(self, outer: "Call | None") -> "Call":
        """Return the call in the function's body with the dims of the function's caller."""
        if outer is None:
            return self
        bound = {dim: outer.dim(value) for dim, value in self.bound.items()}
        return attrs.evolve(self, bound=bound, rest=outer.dims(self.rest))

    def dims(self, dims: Shape) -> Shape:
        """Return dims of the function's body as the caller knows them."""
        return tuple(dim for each in dims for dim in (self.rest if each.name == REST else (self.dim(each),)))

    def dim(self, dim: Dim) -> Dim:
        local = any(own == dim for own, _ in self.function.locals)
        return self.bound.get(dim, Dim(f"{self.function.name}.{dim.name}", dim.size) if local else dim)


@attrs.frozen
class Writing:
    """Writes a program in the language; `calls` by their names, `imported` functions as those of a module."""

    calls: Mapping[str, Call]
    imported: frozenset[Function] = frozenset()

    def text(self, text: str) -> str:
        return CALL.sub(lambda match: self._call(self.calls[match[0]]), text)

    def _call(self, call: Call) -> str:
        generics = [dim for dim in call.function.generics if dim not in call.function.by_name]
        dims = ", ".join(f"{dim.name} = {call.bound[dim].name}" for dim in generics)
        names = [call.bound[dim].name for dim in call.function.by_name]
        values = [f"{f'{each.name} = ' * each.keyword}{self.text(each.text)}" for each in call.given]
        alias = f" as {call.alias}" if call.alias else ""
        brackets = f"[{dims}]" if call.explicit and dims else ""
        module = f"{MODULE}." if call.function in self.imported else ""
        return f"{module}{call.function.name}{brackets}({', '.join([*names, *values])}){alias}"

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for param in block.params:
            yield f"{indent}param {param.name}: {param.dtype}{dims_text(param.dims)} = {param.init}"
        for statement in block.statements:
            yield from self._statement(statement, indent)

    def _statement(self, statement: Statement, indent: str) -> Iterator[str]:
        if isinstance(statement, Assign):
            targets = ", ".join(target.name for target in statement.targets)
            yield f"{indent}{targets} = {self.text(statement.text)}"
        elif isinstance(statement, Yield):
            yield f"{indent}yield {statement.name} = {self.text(statement.text)}"
        else:
            yield f"{indent}{self._head(statement)} {{"
            yield from self.block(statement.block, indent + "  ")
            yield indent + "}"

    def _head(self, loop: Loop) -> str:
        slices = ", ".join(f"{each.name} = {self.text(each.text)}" for each in loop.slices)
        if not loop.stacked:
            return f"scan {slices} along {loop.dim.name}"
        with_slices = f" with {slices}" if slices else ""
        return f"repeat {loop.dim.name}{' checkpoint' * loop.checkpoint}{with_slices}"

    def function(self, function: Function) -> Iterator[str]:
        generics = dims_text(function.generics) if function.generics else ""
        arguments = [dim.name for dim in function.by_name]
        arguments += [_argument(each, function.any_dtype) for each in function.arguments]
        results = [_type(dtype, value.dims, function.any_dtype) for dtype, value in function.results]
        shown = results[0] if len(results) == 1 else f"({', '.join(results)})"
        yield f"fn {function.name}{generics}({', '.join(arguments)}) -> {shown} {{"
        yield from (f"  dim {dim.name} = {size}" for dim, size in function.locals)
        yield from self.block(function.block, "  ")
        yield f"  return {', '.join(value.name for _, value in function.results)}"
        yield "}"


def _type(dtype: str, dims: Shape, any_dtype: bool) -> str:
    shown = "any" if any_dtype and dtype in ("f32", "f64") else dtype
    return f"{'' if shown == 'f32' else shown}{dims_text(dims)}"


def _argument(argument: Argument, any_dtype: bool) -> str:
    default = f" = {argument.default}" if argument.default else ""
    if argument.dims is None:
        return f"{argument.name}{default}"
    return f"{argument.name}: {_type(argument.dtype, argument.dims, any_dtype)}{default}"
