"""The flat form of a program: every function inlined, every loop unrolled, the parameters of each iteration sliced from the
stack.

The compiler must give a program with functions and loops the same meaning as this text without any. Writing it also finds the
full names of parameters and values, which layouts use, and their dims.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.ir.types import Dim
from tests.generators.statements import (
    CALL,
    REST,
    Argument,
    Assign,
    Block,
    Call,
    Function,
    Loop,
    Param,
    Slice,
    Yield,
)
from tests.generators.terms import Shape, dims_text

ONE = "one_"
NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
WITH_REST = re.compile(r"\[([^\[\]]*\.\.\.[^\[\]]*)\]")


@attrs.frozen
class Place:
    """The context of the statements that are being written.

    path: the scope, with a dot at its end.
    names: variables and dims inside of a function -> their names in the flat text.
    call: the call that a function's body is inlined for.
    picks: the loops around and the number of the iteration, for loops along which parameters are stacked.
    iteration: the number of the innermost loop's iteration.
    """

    path: str = ""
    names: Mapping[str, str] = attrs.field(factory=dict)
    call: Call | None = None
    picks: tuple[tuple[Dim, int], ...] = ()
    iteration: int = 0

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def dims(self, dims: Shape) -> Shape:
        return self.call.dims(dims) if self.call else dims

    def renamed(self, text: str) -> str:
        """Rewrite an expression of this place in the names of the flat text."""
        text = WITH_REST.sub(self._with_rest, text)
        return NAME.sub(lambda match: self.names.get(match[0], match[0]), text)

    def _with_rest(self, match: re.Match[str]) -> str:
        rest = [flat_name(dim.name) for dim in self.call.rest] if self.call else []
        items = [item.strip() for item in match[1].split(",")]
        return "[" + ", ".join(name for item in items for name in (rest if item == REST else [item])) + "]"


def flat_name(name: str) -> str:
    """Return the name in the flat text of the dim with this full name."""
    return name.replace(".", "__")


def flat_parameter(name: str) -> str:
    """Return the name of a parameter, which no variable has."""
    return f"p__{flat_name(name)}"


def flat_dims(dims: Iterable[Dim]) -> str:
    return dims_text([Dim(flat_name(dim.name), dim.size) for dim in dims])


@attrs.define
class Flat:
    """The lines of the flat text, and facts by full name.

    params: the dims of parameters. declared: their lines. values: the dims of everything that a `value` rule may name, which
    excludes the results of an op with several. shapes, reduced: facts of functions. locals: dims that functions declare.
    """

    calls: Mapping[str, Call]
    lines: list[str] = attrs.field(factory=list)
    declared: dict[str, str] = attrs.field(factory=dict)
    params: dict[str, Shape] = attrs.field(factory=dict)
    values: dict[str, list[Shape]] = attrs.field(factory=dict)
    shapes: dict[Shape, None] = attrs.field(factory=dict)
    reduced: set[Dim] = attrs.field(factory=set)
    locals: dict[Dim, None] = attrs.field(factory=dict)
    _scopes: Counter[tuple[str, bool, str]] = attrs.field(factory=Counter)
    _made: int = 0

    def block(self, block: Block, place: Place) -> None:
        for param in block.params:
            self._param(param, place)
        for statement in block.statements:
            if isinstance(statement, Assign):
                self._assign(statement, place)
            elif isinstance(statement, Yield):
                text = self._text(statement.text, place)
                self.lines.append(f"  {_yielded(statement, place.iteration, place)} = {text}")
            else:
                self._loop(statement, place)

    def value(self, path: str, dims: Shape) -> None:
        """Record that a value with these dims has this name."""
        found = self.values.setdefault(path, [])
        if dims not in found:
            found.append(dims)

    def _bind(self, name: str, text: str, place: Place) -> None:
        self.lines.append(f"  {place.name(name)} = {text}")

    def _assign(self, statement: Assign, place: Place) -> None:
        several = len(statement.targets) > 1
        if not several or statement.text in self.calls:
            for target in statement.targets:
                self.value(place.path + target.name, place.dims(target.dims))
        if several and statement.text in self.calls:
            for target, result in zip(statement.targets, self._inline(statement.text, place), strict=True):
                self._bind(target.name, result, place)
        else:
            names = ", ".join(place.name(target.name) for target in statement.targets)
            self.lines.append(f"  {names} = {self._text(statement.text, place)}")

    def _param(self, param: Param, place: Place) -> None:
        full, dims = place.path + param.name, place.dims(param.dims)
        whole = (*(dim for dim, _ in place.picks), *dims)
        self.params[full] = whole
        self.values.setdefault(full, [whole])
        self.declared[full] = (
            f"  param {flat_parameter(full)}: {param.dtype}{flat_dims(whole)} = {param.init}"
        )
        text = flat_parameter(full)
        for dim, i in place.picks:
            whole = whole[1:]
            text = _picked(text, dim, i, whole)
        self._bind(param.name, text, place)

    # Calls

    def _text(self, text: str, place: Place) -> str:
        """Write out an expression in which variables stand for calls."""
        return CALL.sub(lambda match: self._inline(match[0], place)[0], place.renamed(text))

    def _inline(self, name: str, place: Place) -> list[str]:
        """Write the body of a call, and return the names that hold its results."""
        call = self.calls[name]
        given = {each.name: self._text(each.text, place) for each in call.given}
        call, function, scope = call.seen_from(place.call), call.function, self._scope(place, call)
        self._made += 1
        inside = Place(scope, _names(call, f"i{self._made}_"), call, place.picks, place.iteration)
        for argument in function.arguments:
            default = argument.default and inside.renamed(argument.default)
            self._argument(argument, given.get(argument.name, default or ""), inside)
        self.locals.update((call.dim(dim), None) for dim, _ in function.locals)
        self._note(function, call)
        self.block(function.block, inside)
        results = []
        for i, (_, value) in enumerate(function.results):
            results.append(f"i{self._made}_r{i}_")
            self.lines.append(
                f"  {results[-1]} = {_ordered(inside.name(value.name), inside.dims(value.dims))}"
            )
        return results

    def _scope(self, place: Place, call: Call) -> str:
        return f"{place.path}{self._numbered(place.path, owns(call.function, self.calls), call.alias or call.function.name)}."

    def _numbered(self, path: str, owner: bool, name: str) -> str:
        self._scopes[path, owner, name] += 1
        number = self._scopes[path, owner, name]
        return name if number == 1 else f"{name}_{number}"

    def _argument(self, argument: Argument, text: str, inside: Place) -> None:
        if argument.dims is None:
            self._bind(argument.name, text, inside)
        elif not argument.dims:
            self._bind(argument.name, f"cast({text}, {argument.dtype})", inside)
        else:
            self._bind(argument.name, _ordered(text, inside.dims(argument.dims)), inside)

    def _note(self, function: Function, call: Call) -> None:
        self.shapes.update((call.dims(shape), None) for shape in function.facts.shapes)
        self.reduced.update(dim for dims in function.facts.reduced for dim in call.dims((dims,)))

    # Loops

    def _loop(self, loop: Loop, place: Place) -> None:
        (dim,) = place.dims((loop.dim,))
        sources = [self._source(each, place) for each in loop.slices]
        path = place.path
        if loop.stacked:
            path += self._numbered(path, True, loop.dim.name) + "."
        before = Counter(self._scopes)
        for i in range(dim.size):
            self._scopes = Counter(before)
            picks = (*place.picks, (dim, i)) if loop.stacked else place.picks
            for each, source in zip(loop.slices, sources, strict=True):
                dims = place.dims(each.dims)
                self._bind(each.name, _picked(source, dim, i, tuple(d for d in dims if d != dim)), place)
            self.block(loop.block, attrs.evolve(place, path=path, picks=picks, iteration=i))
        for each in yields(loop.block):
            self._stack(each, dim, place)

    def _source(self, slice: Slice, place: Place) -> str:
        """Return a name for the operand that is sliced, because the body may bind its variables again."""
        self._made += 1
        name, text = f"i{self._made}_whole_", self._text(slice.text, place)
        self.lines.append(f"  {name} = {text}")
        return name

    def _stack(self, each: Yield, dim: Dim, place: Place) -> None:
        dims = place.dims(each.dims)
        self.value(place.path + each.name, (dim, *dims))
        shape = flat_dims((Dim(ONE, 1), *dims))
        parts = [f"reshape({_yielded(each, i, place)} -> {shape})" for i in range(dim.size)]
        name = flat_name(dim.name)
        joined = (
            f"concat({', '.join(parts)}, {ONE} -> {name})"
            if len(parts) > 1
            else f"rename({parts[0]}, {ONE} -> {name})"
        )
        self._bind(each.name, joined, place)


def _yielded(each: Yield, iteration: int, place: Place) -> str:
    """Return the variable for a yield of one iteration."""
    return f"{place.name(each.name)}_at{iteration}"


def _ordered(text: str, dims: Shape) -> str:
    return f"transpose({text} -> {flat_dims(dims)})" if dims else text


def _picked(text: str, dim: Dim, i: int, rest: Shape) -> str:
    """Write slice `i` along `dim`; `rest` are the other dims."""
    return f"reshape(slice({text}, {flat_name(dim.name)} -> {ONE}, start = {i}) -> {flat_dims(rest)})"


def yields(block: Block) -> list[Yield]:
    return [statement for statement in block.statements if isinstance(statement, Yield)]


def blocks(block: Block) -> Iterator[Block]:
    """Yield the block and those of the loops in it."""
    yield block
    for statement in block.statements:
        if isinstance(statement, Loop):
            yield from blocks(statement.block)


def texts(block: Block) -> Iterator[str]:
    """Yield the expressions of a block, and those in its loops."""
    for each in blocks(block):
        for statement in each.statements:
            if isinstance(statement, Loop):
                yield from (slice.text for slice in statement.slices)
            else:
                yield statement.text


def called(function: Function, calls: Mapping[str, Call]) -> Iterator[Function]:
    """Yield the functions that the body of a function calls, also in arguments of calls."""
    waiting = list(texts(function.block))
    while waiting:
        for match in CALL.finditer(waiting.pop()):
            call = calls[match[0]]
            yield call.function
            waiting += [given.text for given in call.given]


def owns(function: Function, calls: Mapping[str, Call]) -> bool:
    """Return True if a function, or one that it calls, declares parameters."""
    own = any(block.params for block in blocks(function.block))
    return own or any(owns(each, calls) for each in called(function, calls))


def _names(call: Call, prefix: str) -> dict[str, str]:
    """Map the names in a function's body to their names in the flat text."""
    function = call.function
    variables = {argument.name for argument in function.arguments}
    for block in blocks(function.block):
        variables |= {param.name for param in block.params}
        for statement in block.statements:
            if isinstance(statement, Assign):
                variables |= {target.name for target in statement.targets}
            elif isinstance(statement, Yield):
                variables.add(statement.name)
            else:
                variables |= {each.name for each in statement.slices}
    names = {name: prefix + name for name in variables}
    for each in (*function.generics, *(dim for dim, _ in function.locals)):
        names[each.name] = flat_name(call.dim(each).name)
    return names
