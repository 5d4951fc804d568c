"""Models built in Python: a graph writes a program of the language, a statement for each call, and knows the types of its values.

    with mtfc.graph("two_layer") as g:
        batch, io, hidden = g.dims(batch=64, io=128, hidden=512)
        x, target = g.input("x", batch, io), g.input("target", batch, io)
        w = g.param("w", io, hidden, init="normal(stddev = 0.05)")
        h = g.relu(g.einsum(x, w, dims=[batch, hidden]))
        ...

Every function of the language and of its library is a method. A call is checked when it is made, by the front end itself: the
statement alone, as a model whose inputs have the types of the operands. So types and errors are those of the language, and an
error names the line of Python. The whole program is text, so each function and command that takes a file takes a graph.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics, Label, Span
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.driver.errors import public
from mtfc.driver.values import LayoutOption, layout_option
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.lexer import RESERVED
from mtfc.frontend.syntax.parser import parse
from mtfc.python_places import caller, place_of, shown_in_python, targets

if TYPE_CHECKING:
    from mtfc.api import Compiled

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

WRONG = "E806"
"""The code of errors in the use of a graph, which a program in the language could not have."""

Argument = Any
"""A tensor, a number, a dimension or its name, a dtype, `{old: new}` for a mapping, or a list or tuple of these."""


@attrs.frozen(eq=False)
class GraphTensor:
    """A value of a graph: a variable of its program. Arithmetic and comparisons make further values.

    place: the line of Python that made it. loop: the loop that it belongs to, None outside of loops.
    """

    graph: Graph
    name: str
    type: TensorType
    place: Span
    loop: GraphLoop | None = None

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
    """A `repeat` or `scan` of a graph. slices: for `scan`, the slice of each tensor, in order."""

    graph: Graph
    dim: Dim
    around: GraphLoop | None
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
        made = GraphTensor(graph, name, type, graph.place(), self.around)
        self.stacked.append(made)
        return made


class GraphModule:
    """A module of the library, or one of a module's functions, such as `g.nn` and `g.nn.dense`."""

    def __init__(self, graph: Graph, name: str) -> None:
        self._graph, self._name = graph, name

    def __getattr__(self, name: str) -> GraphModule:
        if name.startswith("__"):
            raise AttributeError(name)
        return GraphModule(self._graph, f"{self._name}.{name}")

    @public
    def __call__(self, *arguments: Argument, **keywords: Argument) -> Any:
        """Call the function: see `Graph.called`."""
        return self._graph.called(self._name, arguments, keywords)


class Graph:
    """A model that is built in Python.

    Use it as a context: after the block it is complete, and takes no further calls. Attributes that are not listed here are
    functions of the language, `g.relu(x)`, and of its library, `g.nn.dense(x, d_out=hidden, name="head")`:

    - A dimension is the value that `dim` returns, or its name.
    - `dims=[...]` states the dimensions of a result: `-> [batch, hidden]`.
    - A mapping `old -> new` is a dict: `g.rename(x, {"batch": "memory"})`.
    - `name=` names the call, and `sharing=` shares the parameters of another call.
    - A function with several results returns a tuple.
    """

    def __init__(self, name: str) -> None:
        self.name = self._identifier(name, "a graph")
        self.loop: GraphLoop | None = None
        self._is_open = True
        self._dims: dict[str, Dim] = {}
        self._inputs: list[GraphTensor] = []
        self._imports: dict[str, None] = {}
        self._declarations: list[str] = []
        self._lines: list[tuple[str, Span, int]] = []
        self._outputs: list[str] = []
        self._training: list[str] = []
        self._minimized = ""
        self._names: set[str] = set()
        self._folder: str | None = None

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_open = False

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self._lines)} statements>"

    def __getattr__(self, name: str) -> GraphModule:
        if name.startswith("_"):
            raise AttributeError(name)
        return GraphModule(self, name)

    # Declarations

    @public
    def dim(self, name: str, size: int) -> Dim:
        """Declare a dimension. The same name with another size is an error."""
        self._check_open()
        self._identifier(name, "a dimension")
        if (
            isinstance(size, bool)
            or not hasattr(size, "__index__")
            or not 0 < (number := size.__index__()) < 2**63
        ):
            self.refuse(f"the size of `{name}` is a whole number from 1 to 2**63 - 1, found {size!r}")
        dim = self._dims.setdefault(name, Dim(name, number))
        if dim.size != number:
            self.refuse(f"dimension `{name}` has size {dim.size}, and not {number}")
        return dim

    @public
    def dims(self, **sizes: int) -> tuple[Dim, ...]:
        """Declare dimensions: `batch, io = g.dims(batch=64, io=128)`."""
        return tuple(self.dim(name, size) for name, size in sizes.items())

    @public
    def input(self, name: str, *dims: Dim | str, dtype: str = "f32", **sizes: int) -> GraphTensor:
        """Add an input: `g.input("x", batch, io)`, or with new dimensions `g.input("x", batch=64, io=128)`."""
        made = attrs.evolve(self._declared(name, dims, dtype, sizes), loop=None)
        self._checked(f"model m({name}: {_type_text(made.type)}) {{ return {name} }}", ())
        self._names.add(name)
        self._inputs.append(made)
        return made

    @public
    def param(
        self, name: str, *dims: Dim | str, init: str = "zeros()", dtype: str = "f32", **sizes: int
    ) -> GraphTensor:
        """Declare a parameter. init: its initial values as in the language, such as `"normal(stddev = 0.05)"`."""
        made = self._declared(name, dims, dtype, sizes)
        text = f"param {name}: {_type_text(made.type)} = {self._one_line(init)}"
        self._checked(f"model m() {{ {text}; return {name} }}", ())
        self._names.add(name)
        self.write(text)
        return made

    def _declared(
        self, name: str, dims: Sequence[Dim | str], dtype: str, sizes: Mapping[str, int]
    ) -> GraphTensor:
        self._check_open()
        self._identifier(name, "a variable")
        if name in self._names:
            self.refuse(f"another value is called `{name}`")
        found = tuple(map(self._dim, dims)) + tuple(self.dim(*item) for item in sizes.items())
        return GraphTensor(self, name, TensorType(dtype, found), self.place(), self.loop)

    @public
    def mesh(self, name: str, **axes: int) -> None:
        """Declare a mesh of processors: `g.mesh("grid", rows=2, cols=4)`."""
        self._declare(f"mesh {self._identifier(name, 'a mesh')} = [{_pairs(axes)}]")

    @public
    def layout(self, name: str, rules: LayoutOption, on: str | None = None) -> None:
        """Declare a layout: rules as `mtfc.compile(layout=...)` takes them, `{"batch": "rows"}` or text."""
        text = (layout_option(rules) or "").strip()
        body = text if text.startswith("{") else f"{{ {text} }}"
        where = f" on {self._identifier(on, 'a mesh')}" if on else ""
        self._declare(f"layout {self._identifier(name, 'a layout')}{where} = {' '.join(body.split())}")

    def _declare(self, text: str) -> None:
        self._check_open()
        self._parsed(text)
        self._declarations.append(text + _comment(self.place()))

    def _parsed(self, text: str) -> None:
        """Raise an error unless the text is one declaration."""
        found = Diagnostics()
        tree = parse(text, CHECKED, found)
        if found.errors:
            self._raise(found.errors, text, self.place(), ())
        if len(tree.declarations) != 1:
            self.refuse(f"expected the text of one declaration, found `{text}`")

    def _one_line(self, text: object) -> str:
        """Return text of the language for a part of a line."""
        line = " ".join(str(text).split())
        if {*line} & {*"#;"}:
            self.refuse(f"expected an expression of the language, found `{line}`")
        return line

    @public
    def output(self, *tensors: GraphTensor, **named: GraphTensor) -> None:
        """Return values, under their own names or others: `g.output(h, loss=error)`."""
        for each in (*tensors, *named.values()):
            if not isinstance(each, GraphTensor):
                self.refuse(f"an output is a tensor of the graph, found {each!r}")
        for name, each in (*((each.name, each) for each in tensors), *named.items()):
            text = self.text_of(each)
            if name != text:
                self._identifier(name, "an output")
                if name in self._names:
                    self.refuse(f"another value is called `{name}`")
                self._names.add(name)
                self.write(f"{name} = {text}")
            if name in self._outputs:
                self.refuse(f"`{name}` is an output already")
            self._outputs.append(name)

    @public
    def train(self, minimize: GraphTensor | str, optimizer: str = "", **entries: object) -> None:
        """Train the model: `g.train(loss, optimizer="adam(learning_rate = 1e-3)")`, with the entries of a `train` block.

        minimize: an output. `report` takes text such as `"grad_norm, accuracy"`.
        """
        name = self.text_of(minimize) if isinstance(minimize, GraphTensor) else minimize
        lines = [f"minimize {name}", *([f"optimizer = {self._one_line(optimizer)}"] if optimizer else [])]
        for key, value in entries.items():
            lines.append(f"report {value}" if key == "report" else f"{key} = {self._one_line(str(value))}")
        place = self.place()
        self._check_open()
        self._parsed(f"train {self.name} {{ {'; '.join(lines)} }}")
        self._training, self._minimized = [line + _comment(place) for line in lines], name

    # Loops

    @contextmanager
    def repeat(self, dim: Dim | str, checkpoint: bool = False) -> Iterator[GraphLoop]:
        """Run the statements of the block once for each index of a dimension; parameters have a slice for each iteration.

        `g.assign(x, value)` hands a value on to the next iteration, and `loop.stack(x)` collects the values of all.
        """
        found = self._dim(dim)
        with self._looped(f"repeat {found.name}{' checkpoint' * bool(checkpoint)}", found) as loop:
            yield loop

    @contextmanager
    def scan(self, dim: Dim | str, *tensors: GraphTensor) -> Iterator[GraphLoop]:
        """Run the statements of the block once for each slice of tensors along a dimension: see `loop.slices`."""
        found, slices = self._dim(dim), list[GraphTensor]()
        heads = []
        for each in tensors:
            text = self.text_of(each)
            if found not in each.dims:
                self.refuse(f"{each} has no dimension `{found.name}` to go along")
            name = self.fresh(f"{each.name}_t")
            heads.append(f"{name} = {text}")
            kept = tuple(dim for dim in each.dims if dim != found)
            slices.append(GraphTensor(self, name, TensorType(each.dtype, kept), self.place()))
        if not heads:
            self.refuse(
                "`g.scan` needs a tensor to go along: `g.scan(time, x)`, or `g.scan(time, g.range(time))`"
            )
        with self._looped(f"scan {', '.join(heads)} along {found.name}", found, slices) as loop:
            yield loop

    @contextmanager
    def _looped(self, head: str, dim: Dim, slices: Sequence[GraphTensor] = ()) -> Iterator[GraphLoop]:
        around = self.loop
        loop = GraphLoop(self, dim, around)
        loop.slices.extend(attrs.evolve(each, loop=loop) for each in slices)
        self.write(f"{head} {{")
        self.loop = loop
        try:
            yield loop
        finally:
            self.loop = around
            self.write("}", _indent=self._depth())

    @public
    def assign(self, x: GraphTensor, value: Argument) -> None:
        """Bind the variable of x again. In a loop, the next iteration begins with the value; after the loop it is the last."""
        name, text = self.text_of(x), self.text_of(value)
        made = self._types(text, [each for each in (x, value) if isinstance(each, GraphTensor)], 1)[0]
        if made.dtype != x.dtype or set(made.dims) != set(x.dims):
            self.refuse(f"`{name}` is {x.type}, and would become {made}")
        self.write(f"{name} = {text}")

    # Calls

    def operation(self, form: str, *operands: Argument) -> GraphTensor:
        """Append a statement with an operator."""
        return self._made(form.format(*map(self.text_of, operands)), operands, 1)[0]

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
        bound = {key: value for key, value in given.items() if key in generics}
        brackets = (
            f"[{', '.join(f'{key} = {self._dim(value).name}' for key, value in bound.items())}]"
            if bound
            else ""
        )
        written = [self.text_of(each) for each in arguments]
        if dims is not None:
            if not written:
                self.refuse(f"`{function}` needs an operand")
            written[-1] += f" -> [{', '.join(self._dim(each).name for each in dims)}]"
        written += [f"{key} = {self.text_of(value)}" for key, value in given.items() if key not in generics]
        text = f"{function}{brackets}({', '.join(written)})"
        text += f" as {self._identifier(name, 'a call')}" if name is not None else ""
        sharing = f" sharing {self._identifier(shared, 'a call')}" if shared is not None else ""
        operands = [*arguments, *given.values()]
        if function == "gradients":
            return self._gradients(text, arguments)
        made = self._made(text, operands, 0, sharing)
        return made[0] if len(made) == 1 else made

    def _gradients(self, text: str, arguments: Sequence[Argument]) -> Any:
        """Append a call of `gradients`, whose loss must be computed in the graph: it is checked with the whole program."""
        values = [each for each in _flat(arguments[1:]) if isinstance(each, GraphTensor)]
        if len(arguments) != 2 or not values:
            self.refuse("`gradients` takes a loss and tensors: `g.gradients(loss, [w, x])`")
        wanted = targets(len(values))
        names = [
            self.fresh(wanted[i] if i < len(wanted) else f"d_{each.name}") for i, each in enumerate(values)
        ]
        self.write(f"{', '.join(names)} = {text}")
        made = tuple(
            GraphTensor(self, name, each.type, self.place(), self.loop)
            for name, each in zip(names, values, strict=True)
        )
        return made[0] if len(made) == 1 else made

    def _made(
        self, text: str, operands: Iterable[Argument], number: int, end: str = ""
    ) -> tuple[GraphTensor, ...]:
        """Append a statement that binds the results of an expression, after it is checked.

        end: a part of the call that has a meaning in the whole program only.
        """
        self._check_open()
        tensors = [each for each in _flat(operands) if isinstance(each, GraphTensor)]
        types = self._types(text, tensors, number)
        wanted = targets(len(types))
        names = [self.fresh(wanted[i] if i < len(wanted) else "t") for i in range(len(types))]
        self.write(f"{', '.join(names)} = {text}{end}")
        return tuple(
            GraphTensor(self, name, type, self.place(), self.loop)
            for name, type in zip(names, types, strict=True)
        )

    def _types(self, text: str, tensors: Iterable[GraphTensor], number: int) -> list[TensorType]:
        """Return the types of an expression's results. number: of results, 0 to find it out."""
        given = {each.name: each for each in tensors}
        inputs = ", ".join(f"{name}: {_type_text(each.type)}" for name, each in given.items())
        names = "r0__"
        for _ in range(2):
            found = Diagnostics()
            source = f"model m({inputs}) {{\n  {names} = {text}\n  return {names}\n}}"
            program = self._elaborated(source, found)
            count = next((int(m[1]) for each in found.errors if (m := RESULTS.match(each.message))), 0)
            if number or count < 2:
                break
            names = ", ".join(f"r{i}__" for i in range(count))
        if found.errors or program is None:
            self._raise(found.errors, source, self.place(), given.values())
        outputs = {output.name: output.value.type for output in program.function("forward").outputs}
        return [outputs[name] for name in names.split(", ")]

    def _checked(self, text: str, tensors: Iterable[GraphTensor]) -> None:
        found = Diagnostics()
        self._elaborated(text, found)
        if found.errors:
            self._raise(found.errors, text, self.place(), tensors)

    def _elaborated(self, model: str, found: Diagnostics) -> Any:
        head = [
            *(f"import {name}" for name in self._imports),
            *(f"dim {d.name} = {d.size}" for d in self._dims.values()),
        ]
        tree = parse("; ".join([*head, ""]) + model, CHECKED, found)
        if found.errors:
            return None
        programs = elaborate(tree, found).programs
        return programs[0] if programs and not found.errors else None

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
            case list():
                return f"[{', '.join(map(self.text_of, value))}]"
            case tuple() if len(value) > 1:
                return f"({', '.join(map(self.text_of, value))})"
        return self._number(value)

    def _variable(self, value: GraphTensor) -> str:
        if value.graph is not self:
            self.refuse(f"`{value.name}` is a value of another graph, `{value.graph.name}`", None, value)
        loop = self.loop
        while loop is not None and loop is not value.loop:
            loop = loop.around
        if value.loop is not loop:
            help = "bind it before the loop and `g.assign` it, or collect the values of all iterations: `loop.stack(x)`"
            self.refuse(f"`{value.name}` is known inside of its loop only", help, value)
        if any(value is each for around in self._loops() for each in around.stacked):
            self.refuse(f"`{value.name}` has the values of all iterations, which are known after the loop")
        return value.name

    def _loops(self) -> Iterator[GraphLoop]:
        loop = self.loop
        while loop is not None:
            yield loop
            loop = loop.around

    def _target(self, value: Argument) -> str:
        return self.text_of(value) if isinstance(value, list | tuple) else self._dim(value).name

    def _number(self, value: Argument) -> str:
        number = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
        if isinstance(number, bool):
            return "true" if number else "false"
        if not isinstance(number, int | float) or not math.isfinite(number):
            self._no_argument(value)
        return f"({number!r})" if number < 0 else repr(number)

    def _no_argument(self, value: Argument) -> NoReturn:
        help = None
        if hasattr(value, "__array__") or hasattr(value, "shape"):
            help = "an array is given when the program runs: declare it with `g.input`, or `g.param`"
        shown = f"an array of {type(value).__name__}" if help else repr(value)[:60]
        self.refuse(f"expected a tensor of the graph, a number or a dimension, found {shown}", help)

    def _dim(self, value: Dim | str) -> Dim:
        known = self._dims.get(value.name if isinstance(value, Dim) else str(value))
        if known is None or (isinstance(value, Dim) and value != known):
            shown = f"{value.name} of size {value.size}" if isinstance(value, Dim) else repr(value)
            help = f"the graph has {', '.join(f'{d.name} ({d.size})' for d in self._dims.values()) or 'no dimensions'}"
            self.refuse(f"the graph has no dimension {shown}", help)
        return known

    def fresh(self, wanted: str) -> str:
        """Return a new name for a variable: the wanted one if it is free."""
        name, number = wanted, 2
        while name in self._names or name in RESERVED or name in self._dims:
            name, number = f"{wanted}_{number}", number + 1
        self._names.add(name)
        return name

    def _identifier(self, name: object, what: str) -> str:
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
        self._lines.append((text, self.place(), _indent or self._depth()))

    @public
    def source(self) -> str:
        """Return the program in the language. Comments name the lines of Python."""
        if not self._outputs:
            self.refuse("the graph has no output: `g.output(loss)`")
        if self._minimized and self._minimized not in self._outputs:
            self.refuse(f"`{self._minimized}` is minimized, and is no output: `g.output({self._minimized})`")
        inputs = ", ".join(f"{each.name}: {_type_text(each.type)}" for each in self._inputs)
        lines = [
            *(f"import {name}" for name in self._imports),
            *(f"dim {dim.name} = {dim.size}" for dim in self._dims.values()),
            *self._declarations,
            f"model {self.name}({inputs}) {{",
            *(f"{'  ' * depth}{text}{_comment(place)}" for text, place, depth in self._lines),
            f"  return {', '.join(self._outputs)}",
            "}",
        ]
        if self._training:
            lines += [f"train {self.name} {{", *(f"  {line}" for line in self._training), "}"]
        return "\n".join(lines) + "\n"

    def __fspath__(self) -> str:
        """Return the path of a file with the program, for functions that take a file. It is removed with the graph."""
        text = self.source()
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="mtfc-graph-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = Path(self._folder) / f"{self.name}.mtf"
        path.write_text(text, "utf-8")
        return str(path)

    @public
    def compile(self, **options: Any) -> Compiled:
        """Compile the graph: `mtfc.compile` with its options."""
        import mtfc

        return mtfc.compile(self, **options)

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

    def _raise(
        self, errors: Sequence[Diagnostic], text: str, place: Span, tensors: Iterable[GraphTensor]
    ) -> NoReturn:
        """Raise errors of a checked statement at a line of Python, with labels where its operands are made."""
        known = {each.name: each for each in tensors}
        lines = text.splitlines()
        found = []
        for each in errors:
            labels = []
            for label in each.labels:
                line = lines[label.span.line - 1] if label.span.line <= len(lines) else ""
                name = line[label.span.column - 1 : label.span.end_column - 1]
                if name in known and known[name].place != place:
                    labels.append(Label(known[name].place, label.message))
            found.append(Diagnostic(each.code, each.message, place, tuple(labels), each.help))
        raise shown_in_python(found)


CHECKED = "<graph>"
RESULTS = re.compile(r"1 name for (?:the )?(\d+) values")
"""The message of E218 for a call with several results."""


def _generics(function: str) -> tuple[str, ...]:
    """Return the generic dimensions of a function of the library."""
    from mtfc.frontend.semantics.names import standard_library

    module, _, name = function.rpartition(".")
    known = standard_library.functions(module) if module in standard_library.modules() else {}
    return tuple(each.text for each in known[name].generics) if name in known else ()


def _flat(values: Iterable[Argument]) -> Iterator[Argument]:
    for each in values:
        yield from _flat(each) if isinstance(each, list | tuple) else (each,)


def _type_text(type: TensorType) -> str:
    return f"{type.dtype}[{', '.join(dim.name for dim in type.dims)}]"


def _pairs(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {size}" for name, size in sizes.items())


def _comment(place: Span) -> str:
    name = " ".join(Path(place.file).name.split())
    return f"  # {name}:{place.line}"
