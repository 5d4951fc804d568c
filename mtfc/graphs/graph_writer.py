"""Texts of graphs: the statements of a body, their checks by the front end, and the line of Python of each.

A body is that of the model, or of a function. The checks elaborate one statement alone, as a model whose inputs have the types of
the operands, so types and errors are those of the language.

Writing the statements of a graph: values, calls with their checks, and errors that name the line of Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics, Label, Span
from mtfc.compiler.ir.types import ARRAY_DTYPES, WRITTEN_BYTES, Dim, TensorType
from mtfc.driver.errors import public
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.lexer import RESERVED
from mtfc.frontend.syntax.parser import parse
from mtfc.python_places import caller, place_of, shown_in_python, targets

CHECKED = "<graph>"
RESULTS = re.compile(r"1 name for (?:the )?(\d+) values")
"""The message of E218 for a call with several results."""


@attrs.define(eq=False)
class GraphBody:
    """The body of the model, or of a function.

    made: the Python function that was traced to write this body. around: the body that calls this one. loop: the loop whose
    statements are being written. lines: the statements, each with its text, place and depth. names: the names in use. given:
    the arguments by name, each with the value that the call passes. captured: the arguments that the function reads from around
    it. states: the declaration and the loop of each state. once: the written statements
    that a body may have only once.
    """

    made: object = None
    around: GraphBody | None = None
    loop: Any = None
    lines: list[tuple[str, Span, int]] = attrs.field(factory=list)
    names: set[str] = attrs.field(factory=set)
    given: dict[str, Any] = attrs.field(factory=dict)
    captured: dict[str, Any] = attrs.field(factory=dict)
    states: dict[str, tuple[str, Any]] = attrs.field(factory=dict)
    once: set[str] = attrs.field(factory=set)

    def text(self, first: str, last: str) -> list[str]:
        """Return the lines of the body between a first and a last line."""
        own = (f"{'  ' * depth}{text}{comment(place)}" for text, place, depth in self.lines)
        return [first, *own, f"  {last}", "}"]

    def outwards(self) -> Iterator[GraphBody]:
        """Yield the body, and the bodies around it that its call is in."""
        yield self
        if self.around is not None:
            yield from self.around.outwards()


@attrs.frozen
class StatementCheck:
    """The errors of a statement, and the text that they point into. types: the types of the results, if there are no errors."""

    errors: Sequence[Diagnostic]
    text: str
    types: Sequence[TensorType] = ()

    def shown(self, place: Span, made: Mapping[str, Span]) -> list[Diagnostic]:
        """Return the errors at a line of Python, with labels where their operands are made."""
        lines = self.text.splitlines()
        found = []
        for each in self.errors:
            labels = []
            for label in each.labels:
                line = lines[label.span.line - 1] if label.span.line <= len(lines) else ""
                name = line[label.span.column - 1 : label.span.end_column - 1]
                if name in made and made[name] != place:
                    labels.append(Label(made[name], label.message))
            found.append(Diagnostic(each.code, each.message, place, tuple(labels), each.help))
        return found


def check_statements(
    head: Iterable[str],
    lines: Sequence[str],
    given: Mapping[str, TensorType] = {},
    loops: Sequence[str] = (),
    returned: str = "checked__",
) -> StatementCheck:
    """Check statements of a model. head: declarations before it. loops: the first lines of the loops around the last
    statement.

    returned: the names of the values whose types are wanted. given: the types of the values that are read.
    """
    body = [*lines[:-1], *(f"{each} {{" for each in loops), *lines[-1:], *("}" for _ in loops)]
    body += ["checked__ = zeros([])"] if returned == "checked__" else []
    source = "\n".join([f"model m({arguments_text(given)}) {{", *body, f"return {returned}", "}"])
    found = Diagnostics()
    tree = parse("; ".join([*head, ""]) + source, CHECKED, found)
    programs = () if found.errors else elaborate(tree, found).programs
    if found.errors:
        return StatementCheck(found.errors, source)
    outputs = {output.name: output.value.type for output in programs[0].function("forward").outputs}
    return StatementCheck((), source, [outputs[name] for name in returned.split(", ")])


def check_expression(head: Sequence[str], text: str, given: Mapping[str, TensorType]) -> StatementCheck:
    """Check an expression, which may have several results. given: its variables."""
    found = check_statements(head, [f"r0__ = {text}"], given, returned="r0__")
    count = next((int(m[1]) for each in found.errors if (m := RESULTS.match(each.message))), 0)
    if count < 2:
        return found
    names = ", ".join(f"r{i}__" for i in range(count))
    return check_statements(head, [f"{names} = {text}"], given, returned=names)


def check_declaration(text: str) -> StatementCheck | None:
    """Check the text of one declaration; None for several declarations."""
    found = Diagnostics()
    tree = parse(text, CHECKED, found)
    return StatementCheck(found.errors, text) if found.errors or len(tree.declarations) == 1 else None


def arguments_text(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{name}: {type_text(type)}" for name, type in types.items())


def type_text(type: TensorType) -> str:
    return f"{type.dtype}[{', '.join(dim.name for dim in type.dims)}]"


def comment(place: Span) -> str:
    name = " ".join(Path(place.file).name.split())
    return f"  # {name}:{place.line}"


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

WRONG = "E806"
"""The code of errors in the use of a graph, which a program in the language could not have."""

OF_ARRAYS = {name: dtype for dtype, name in ARRAY_DTYPES.items() if dtype in WRITTEN_BYTES}
"""The name of a dtype in NumPy and JAX -> its name in the language."""


def dtype_of_arrays(value: object) -> str | None:
    """Return the name of a dtype of NumPy or JAX, such as `numpy.float32`; None for anything else."""
    name = getattr(value, "__name__", getattr(value, "name", None))
    return OF_ARRAYS.get(name) if isinstance(name, str) else None


Argument = Any
"""A tensor, a number, a dimension or its name, a dtype, `{old: new}` for a mapping, or a list or tuple of these."""


@attrs.frozen(eq=False)
class GraphTensor:
    """A value of a graph: a variable of its program. Arithmetic and comparisons make further values.

    place: the line of Python that made it. loop: the loop that it belongs to, None outside of loops. body: the body of the
    model, or of the function that it belongs to.
    """

    graph: GraphWriter
    name: str
    type: TensorType
    place: Span
    loop: GraphLoop | None = None
    body: GraphBody | None = None

    __array_ufunc__ = None
    """NumPy leaves operators with arrays to this class, which refuses them."""

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions, in the order in which they are stored."""
        return self.type.dims

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type}>"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self} has no truth value while the graph is built: write g.where(condition, x, y)")

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self} has no elements while the graph is built: g.unstack(x, dim) takes it apart")

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError(f"{self} has no numbers while the graph is built")

    def __hash__(self) -> int:
        return id(self)

    @public
    def __matmul__(self, other: Argument) -> GraphTensor:
        """Sum over the one dimension that both operands have. `g.einsum(x, w, dims=[...])` states the result."""
        if not isinstance(other, GraphTensor):
            self.graph.refuse(f"`@` takes tensors, found {other!r}")
        shared = [dim for dim in self.dims if dim in other.dims]
        if len(shared) != 1:
            found = ", ".join(dim.name for dim in shared) or "none"
            help = "`g.einsum(x, w, dims=[...])` states the dimensions of the result"
            self.graph.refuse(f"`@` sums over the one dimension that both operands have, found {found}", help)
        dims = [dim for dim in (*self.dims, *other.dims) if dim not in shared]
        return cast("GraphTensor", self.graph.called("einsum", (self, other), {"dims": dims}))

    @public
    def __neg__(self) -> GraphTensor:
        return self.graph.operation("-{}", self)

    @public
    def __invert__(self) -> GraphTensor:
        return self.graph.operation("not {}", self)


def _operator(symbol: str, turned: bool = False) -> Callable[[GraphTensor, Argument], GraphTensor]:
    """Return a method of tensors for an operator. turned: the tensor is the right operand."""
    text = f"{{}} {symbol} {{}}"

    def method(self: GraphTensor, other: Argument) -> GraphTensor:
        return self.graph.operation(text, *((other, self) if turned else (self, other)))

    return public(method)


for _name, _symbol in {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**", "and": "and", "or": "or",
}.items():  # fmt: skip
    setattr(GraphTensor, f"__{_name}__", _operator(_symbol))
    setattr(GraphTensor, f"__r{_name}__", _operator(_symbol, turned=True))
for _name, _symbol in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(GraphTensor, f"__{_name}__", _operator(_symbol))


@attrs.frozen(eq=False)
class GraphLoop:
    """A `repeat` or `scan` of a graph. slices: for `scan`, the slice of each tensor, in order.

    head: a first line of the same kind, for checks of statements. around: the loop around it.
    """

    graph: GraphWriter
    dim: Dim
    around: GraphLoop | None
    head: str
    slices: list[GraphTensor] = attrs.field(factory=list)
    stacked: list[GraphTensor] = attrs.field(factory=list)

    @public
    def stack(self, x: GraphTensor) -> GraphTensor:
        """Return the values of x in all iterations, along the loop's dimension, for use after the loop."""
        graph = self.graph
        text = graph.text_of(x)
        if graph.loop is not self:
            graph.refuse("a loop collects values while its statements are written")
        name = graph.fresh(next(iter(targets(1)), f"{x.name}_all"))
        graph.write(f"yield {name} = {text}")
        type = TensorType(x.type.dtype, (self.dim, *x.dims))
        made = attrs.evolve(graph.tensor(name, type), loop=self.around)
        self.stacked.append(made)
        return made


class GraphModule:
    """A module of the library, or one of a module's functions, such as `g.nn` and `g.nn.dense`."""

    def __init__(self, graph: GraphWriter, name: str) -> None:
        self._graph, self._name = graph, name

    def __getattr__(self, name: str) -> GraphModule:
        if name.startswith("__"):
            raise AttributeError(name)
        return GraphModule(self._graph, f"{self._name}.{name}")

    @public
    def __call__(self, *arguments: Argument, **keywords: Argument) -> Any:
        """Call the function: see `Graph.called`."""
        return self._graph.called(self._name, arguments, keywords)


class GraphWriter:
    """The statements of a graph: the base of `Graph`, which adds declarations, loops and functions."""

    def __init__(self, name: str) -> None:
        """Start an empty body.

        _is_open: statements may be added. _imports: the imported modules.
        """
        self.name = self._identifier(name, "a graph")
        self._body = GraphBody()
        self._is_open = True
        self._dims: dict[str, Dim] = {}
        self._imports: dict[str, None] = {}

    @property
    def loop(self) -> GraphLoop | None:
        """The loop whose statements are written now."""
        loop: GraphLoop | None = self._body.loop
        return loop

    def tensor(self, name: str, type: TensorType) -> GraphTensor:
        """Return a variable of the present body and loop."""
        return GraphTensor(self, name, type, self.place(), self.loop, self._body)

    def _argument(self, value: GraphTensor, wanted: str, body: GraphBody) -> GraphTensor:
        """Return the variable of a function that stands for a value around it."""
        name = self.fresh(wanted if NAME.fullmatch(wanted) else "x", body)
        body.given[name] = value
        return attrs.evolve(value, name=name, loop=None, body=body)

    # Calls

    def operation(self, form: str, *operands: Argument) -> GraphTensor:
        """Append a statement with an operator."""
        for each in operands:
            if isinstance(each, list | tuple | dict):
                self._no_argument(each)
        return self._made(form.format(*map(self.text_of, operands)), operands)[0]

    def called(self, function: str, arguments: Sequence[Argument], keywords: Mapping[str, Argument]) -> Any:
        """Append a call of a function of the language or of its library. Return its results."""
        self._check_open()
        module = function.rpartition(".")[0]
        if module and module != "random" and module not in self._imports:
            self._imports[module] = None
            try:
                return self.called(function, arguments, keywords)
            except CompileError:
                del self._imports[module]
                raise
        given = dict(keywords)
        dims, name, shared = (given.pop(key, None) for key in ("dims", "name", "sharing"))
        generics = _generics(function)
        bound = [f"{key} = {self._dim(value).name}" for key, value in given.items() if key in generics]
        brackets = f"[{', '.join(bound)}]" if bound else ""
        written = [self.text_of(each) for each in arguments]
        if dims is not None:
            if not written:
                self.refuse(f"`{function}` needs an operand")
            written[-1] += f" -> [{', '.join(self._dim(each).name for each in dims)}]"
        written += [
            f"{key} = {self._option(key, value)}" for key, value in given.items() if key not in generics
        ]
        text = f"{function}{brackets}({', '.join(written)}){self._named('as', name)}"
        sharing = self._named("sharing", shared)
        operands = [*arguments, *given.values()]
        if function == "gradients":
            return self._gradients(text, arguments)
        made = self._made(text, operands, sharing)
        return made[0] if len(made) == 1 and function != "unstack" else made

    def _named(self, word: str, name: object) -> str:
        """Return the end of a call: `as NAME` or `sharing NAME`, if there is a name."""
        return f" {word} {self._identifier(name, 'a call')}" if name is not None else ""

    def _gradients(self, text: str, arguments: Sequence[Argument]) -> Any:
        """Append a call of `gradients`, whose loss must be computed in the graph: it is checked with the whole program.

        Return a gradient for one tensor, and a tuple for a list, also for one of a single tensor.
        """
        values = [each for each in flat(arguments[1:]) if isinstance(each, GraphTensor)]
        if len(arguments) != 2 or not values:
            self.refuse("`gradients` takes a loss and tensors: `g.gradients(loss, [w, x])`")
        wanted = targets(len(values))
        names = [
            self.fresh(wanted[i] if i < len(wanted) else f"d_{each.name}") for i, each in enumerate(values)
        ]
        self.write(f"{', '.join(names)} = {text}")
        made = tuple(self.tensor(name, each.type) for name, each in zip(names, values, strict=True))
        return made[0] if isinstance(arguments[1], GraphTensor) else made

    def _made(self, text: str, operands: Iterable[Argument], end: str = "") -> tuple[GraphTensor, ...]:
        """Append a statement that binds the results of an expression, after it is checked.

        end: a part of the call that has a meaning in the whole program only.
        """
        self._check_open()
        tensors = [each for each in flat(operands) if isinstance(each, GraphTensor)]
        return self._bound(text, self._types(text, tensors), end)

    def _bound(self, text: str, types: Sequence[TensorType], end: str = "") -> tuple[GraphTensor, ...]:
        """Append a statement that binds the results of an expression."""
        wanted = targets(len(types))
        names = [self.fresh(wanted[i] if i < len(wanted) else "t") for i in range(len(types))]
        self.write(f"{', '.join(names)} = {text}{end}")
        return tuple(self.tensor(name, type) for name, type in zip(names, types, strict=True))

    def _types(self, text: str, tensors: Iterable[GraphTensor]) -> Sequence[TensorType]:
        """Return the types of an expression's results."""
        given = {self.text_of(each): each for each in tensors}
        types = {name: each.type for name, each in given.items()}
        found = check_expression(self._head(), text, types)
        self._raise_errors(found, given)
        return found.types

    def _check(self, lines: Sequence[str], tensors: Iterable[GraphTensor], in_loops: bool = False) -> None:
        """Raise an error unless statements are legal. tensors: their variables, but for states. in_loops: the last one is."""
        given = {self.text_of(each): each for each in tensors}
        types = {name: each.type for name, each in given.items() if name not in self._body.states}
        loops = [each.head for each in reversed(list(self._loops()))] if in_loops else ()
        self._raise_errors(check_statements(self._head(), lines, types, loops), given)

    def _head(self) -> list[str]:
        """Return the declarations before a checked statement."""
        imports = (f"import {name}" for name in self._imports)
        return [*imports, *(f"dim {d.name} = {d.size}" for d in self._dims.values())]

    def _raise_errors(self, found: StatementCheck, given: Mapping[str, GraphTensor] | None = None) -> None:
        """Raise the errors of a statement at the line of Python. given: its operands by name."""
        if found.errors:
            made = {name: each.place for name, each in (given or {}).items()}
            raise shown_in_python(found.shown(self.place(), made))

    # Texts

    def text_of(self, value: Argument) -> str:
        """Return an argument as it is written in the language."""
        self._check_open()
        match value:
            case GraphTensor():
                return self._variable(value)
            case Dim():
                return self._dim(value).name
            case bool():
                return "true" if value else "false"
            case str() if DOTTED.fullmatch(value):
                return value
            case dict():
                items = [(self._dim(old).name, self._target(new)) for old, new in value.items()]
                return ", ".join(f"{old} -> {new}" for old, new in items)
            case list() | tuple():
                return f"[{', '.join(map(self.text_of, value))}]"
        return dtype_of_arrays(value) or self._number(value)

    def _option(self, key: str, value: Argument) -> str:
        """Return the value of a keyword argument as text. `padding` is the one pair of numbers; other tuples are lists."""
        text = self.text_of(value)
        return f"({text[1:-1]})" if key == "padding" and isinstance(value, list | tuple) else text

    def _variable(self, value: GraphTensor) -> str:
        """Return the name of a value in the body that is being written; refuse a value of another graph, or of a loop that has
        ended.

        A value of a body around this one is captured.
        """
        if value.graph is not self:
            self.refuse(f"`{value.name}` is a value of another graph, `{value.graph.name}`", None, value)
        if value.body is not self._body:
            return self._captured(value)
        if not any(value.loop is each for each in (*self._loops(), None)):
            help = "bind it before the loop and `g.assign` it, or collect the values of all iterations: `loop.stack(x)`"
            self.refuse(f"`{value.name}` is known inside of its loop only", help, value)
        if any(value is each for around in self._loops() for each in around.stacked):
            self.refuse(f"`{value.name}` has the values of all iterations, which are known after the loop")
        return value.name

    def _captured(self, value: GraphTensor) -> str:
        """Return the argument of a function for a value around it, which the call passes."""
        body, around = self._body, self._body.around
        known = next((name for name, each in body.captured.items() if each is value), None)
        if known is not None:
            return known
        if around is None or not any(each is value.body for each in body.outwards()):
            self.refuse(
                f"`{value.name}` is known inside of its function only", "return it from the function", value
            )
        self._body = around
        try:
            self.text_of(value)
        finally:
            self._body = body
        name = self._argument(value, value.name, body).name
        body.captured[name] = value
        return name

    def _loops(self) -> Iterator[GraphLoop]:
        """Yield the loops around this place, the innermost first."""
        loop = self.loop
        while loop is not None:
            yield loop
            loop = loop.around

    def _target(self, value: Argument) -> str:
        return self.text_of(value) if isinstance(value, list | tuple) else self._dim(value).name

    def _number(self, value: Argument) -> str:
        """Return the text of a number, also of a scalar of NumPy or JAX; refuse anything else."""
        number = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
        if isinstance(number, bool):
            return "true" if number else "false"
        if not isinstance(number, int | float) or not math.isfinite(number):
            self._no_argument(value)
        return f"({number!r})" if number < 0 else repr(number)

    def _no_argument(self, value: Argument) -> NoReturn:
        """Refuse a value that is no argument of an operation; help about an array says how to declare it."""
        help = None
        if hasattr(value, "__array__") or hasattr(value, "shape"):
            help = "an array is given when the program runs: declare it with `g.input`, or `g.param`"
        shown = f"an array of {type(value).__name__}" if help else repr(value)[:60]
        self.refuse(f"expected a tensor of the graph, a number or a dimension, found {shown}", help)

    def _dim(self, value: Dim | str) -> Dim:
        """Return a dimension of the graph by its name, or the same dimension; refuse any other."""
        known = self._dims.get(value.name if isinstance(value, Dim) else str(value))
        if known is None or (isinstance(value, Dim) and value != known):
            shown = f"{value.name} of size {value.size}" if isinstance(value, Dim) else repr(value)
            help = f"the graph has {', '.join(f'{d.name} ({d.size})' for d in self._dims.values()) or 'no dimensions'}"
            self.refuse(f"the graph has no dimension {shown}", help)
        return known

    def fresh(self, wanted: str, body: GraphBody | None = None) -> str:
        """Return a new name for a variable of a body, by default of the present one: the wanted one if it is free."""
        names, name, number = (body or self._body).names, wanted, 2
        while name in names or name in RESERVED or name in self._dims:
            name, number = f"{wanted}_{number}", number + 1
        names.add(name)
        return name

    def _identifier(self, name: object, what: str) -> str:
        """Return a name that the language allows; refuse any other. what: the thing with this name."""
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
            self.refuse(
                f"{name!r} cannot name {what}: a name has letters, digits and `_`, and is no reserved word"
            )
        return name

    def _depth(self) -> int:
        return 1 + len(list(self._loops()))

    def write(self, text: str, _indent: int | None = None) -> None:
        """Append a statement."""
        self._check_open()
        self._body.lines.append((text, self.place(), _indent or self._depth()))

    # Errors

    def _check_open(self) -> None:
        if not self._is_open:
            self.refuse(f"graph `{self.name}` is complete: its block has ended")

    def place(self) -> Span:
        """Return the place in the user's Python file that calls the graph."""
        return place_of(*caller())

    def refuse(self, message: str, help: str | None = None, about: GraphTensor | None = None) -> NoReturn:
        """Raise an error at the line of Python that calls the graph."""
        labels = (Label(about.place, f"{about.name} is made here"),) if about is not None else ()
        raise shown_in_python([Diagnostic(WRONG, message, self.place(), labels, help)])


def _generics(function: str) -> tuple[str, ...]:
    """Return the generic dimensions of a function of the library."""
    from mtfc.frontend.semantics.names import standard_library

    module, _, name = function.rpartition(".")
    known = standard_library.functions(module) if module in standard_library.modules() else {}
    return tuple(each.text for each in known[name].generics) if name in known else ()


def flat(values: Iterable[Argument]) -> Iterator[Argument]:
    for each in values:
        yield from flat(each) if isinstance(each, list | tuple) else (each,)
