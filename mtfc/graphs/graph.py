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

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.ir.types import WRITTEN_BYTES, Dim, Mesh, TensorType
from mtfc.driver.errors import public
from mtfc.driver.values import LayoutOption, layout_option
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.syntax.lexer import RESERVED
from mtfc.graphs.graph_writer import (
    NAME,
    Argument,
    GraphBody,
    GraphLoop,
    GraphModule,
    GraphTensor,
    GraphWriter,
    arguments_text,
    check_declaration,
    check_statements,
    comment,
    dtype_of_arrays,
    flat,
    type_text,
)

if TYPE_CHECKING:
    from mtfc.api import Compiled


def graph(name: str) -> Graph:
    """Return an empty graph, a model to build in Python: `with mtfc.graph("net") as g:`."""
    return Graph(name)


class Graph(GraphWriter):
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
        """Start an empty model. The fields hold the statements of the file by kind.

        _minimized: the loss.
        """
        super().__init__(name)
        self._inputs: list[GraphTensor] = []
        self._declarations: list[str] = []
        self._functions: dict[str, tuple[str, list[str]]] = {}
        self._outputs: list[str] = []
        self._training: list[str] = []
        self._minimized = ""
        self._folder: str | None = None

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_open = False

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self._body.lines)} statements>"

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
    def input(self, name: str, *dims: Dim | str, dtype: Any = "f32", **sizes: int) -> GraphTensor:
        """Add an input: `g.input("x", batch, io)`, or with new dimensions `g.input("x", batch=64, io=128)`.

        dtype: the name of a dtype, or a dtype of NumPy or JAX, such as `numpy.int32`.
        """
        if self._body.around is not None:
            self.refuse("a function has no inputs: give it arguments")
        made = attrs.evolve(self._declared(name, dims, dtype, sizes), loop=None)
        self._raise_errors(check_statements(self._head(), [], {name: made.type}, returned=name))
        self._body.names.add(name)
        self._inputs.append(made)
        return made

    @public
    def param(
        self, name: str, *dims: Dim | str, init: str = "zeros()", dtype: Any = "f32", **sizes: int
    ) -> GraphTensor:
        """Declare a parameter. init: its initial values as in the language, such as `"normal(stddev = 0.05)"`."""
        made = self._declared(name, dims, dtype, sizes)
        text = f"param {name}: {type_text(made.type)} = {self._one_line(init)}"
        return self._written(made, text)

    @public
    def state(
        self, name: str, *dims: Dim | str, init: float = 0, dtype: Any = "f32", **sizes: int
    ) -> GraphTensor:
        """Declare a state, which training keeps beside the parameters. init: the number of all elements before the first step."""
        made = self._declared(name, dims, dtype, sizes)
        text = f"state {name}: {type_text(made.type)} = {self.text_of(init)}"
        self._written(made, text, [init] if isinstance(init, GraphTensor) else (), in_loops=True)
        self._body.states[name] = text, self.loop
        return made

    def _written(
        self, made: GraphTensor, text: str, given: Sequence[GraphTensor] = (), in_loops: bool = False
    ) -> GraphTensor:
        """Append the declaration of a variable, after it is checked. Return the variable. made: the variable.

        given: the tensors that the text reads.
        """
        self._check([text], given, in_loops)
        self._body.names.add(made.name)
        self.write(text)
        return made

    @public
    def update(self, state: GraphTensor, value: Argument) -> None:
        """Give the value of a state after a training step. The variable stays the value before the step."""
        self._check_own(state)
        name = self.text_of(state)
        text = f"update {name} = {self.text_of(value)}"
        before, loop = self._body.states.get(name, ("", self.loop))
        if not before:
            self.refuse(f"`{name}` is no state: `g.state` declares one", about=state)
        given = [each for each in flat((value,)) if isinstance(each, GraphTensor)]
        key = f"update {name} = {name}"
        self._check([before, *self._body.once & {key}, text], given, in_loops=loop is not self.loop)
        self._body.once.add(key)
        self.write(text)

    @public
    def watch(self, *tensors: GraphTensor) -> None:
        """Hand out values beside the outputs, from `forward` and from each training step."""
        for each in tensors:
            self._check_tensor(each, "a watched value is a tensor")
            text = f"watch {self.text_of(each)}"
            self._check([*self._body.once & {text}, text], [each], in_loops=True)
            self._body.once.add(text)
            self.write(text)

    def _check_tensor(self, value: object, expected: str) -> None:
        if not isinstance(value, GraphTensor):
            self.refuse(f"{expected} of the graph, found {value!r}")

    def _check_own(self, x: GraphTensor) -> None:
        """Raise an error for a variable that a function cannot change."""
        self._check_tensor(x, "expected a variable")
        if x.graph is self and x.body is not self._body:
            help = "return the new value from the function"
            self.refuse(f"`{x.name}` is made around this function, which cannot change it", help, x)

    def _declared(
        self, name: str, dims: Sequence[Dim | str], dtype: Any, sizes: Mapping[str, int]
    ) -> GraphTensor:
        """Return a new tensor with a name, dims and a dtype; refuse a name that is taken, and an unknown dtype.

        sizes: further dims by name, which are declared here.
        """
        self._check_open()
        self._identifier(name, "a variable")
        if name in self._body.names:
            self.refuse(f"another value is called `{name}`")
        found = tuple(map(self._dim, dims)) + tuple(self.dim(*item) for item in sizes.items())
        written = dtype_of_arrays(dtype) or dtype
        if not isinstance(written, str):
            self.refuse(
                f"a dtype is {', '.join(WRITTEN_BYTES)}, or one of these of NumPy or JAX; found {dtype!r}"
            )
        return self.tensor(name, TensorType(written, found))

    @public
    def mesh(self, name: str, **axes: int) -> None:
        """Declare a mesh of processors: `g.mesh("grid", rows=2, cols=4)`."""
        self._declare(f"mesh {self._identifier(name, 'a mesh')} = [{Mesh(name, (*axes.items(),)).axes_text}]")

    @public
    def layout(self, name: str, rules: LayoutOption, on: str | None = None) -> None:
        """Declare a layout: rules as `mtfc.compile(layout=...)` takes them, `{"batch": "rows"}` or text."""
        text = (layout_option(rules) or "").strip()
        body = text if text.startswith("{") else f"{{ {text} }}"
        where = f" on {self._identifier(on, 'a mesh')}" if on else ""
        self._declare(f"layout {self._identifier(name, 'a layout')}{where} = {' '.join(body.split())}")

    def _declare(self, text: str) -> None:
        """Add a declaration to the file, with the place of the call in a comment."""
        self._check_open()
        self._parsed(text)
        self._declarations.append(text + comment(self.place()))

    def _parsed(self, text: str) -> None:
        """Raise an error unless the text is one declaration."""
        found = check_declaration(text)
        if found is None:
            self.refuse(f"expected the text of one declaration, found `{text}`")
        self._raise_errors(found)

    def _one_line(self, text: object) -> str:
        """Return text of the language for a part of a line."""
        line = " ".join(str(text).split())
        if {*line} & {*"#;"}:
            self.refuse(f"expected an expression of the language, found `{line}`")
        return line

    @public
    def output(self, *tensors: GraphTensor, **named: GraphTensor) -> None:
        """Return values, under their own names or others: `g.output(h, loss=error)`."""
        if self._body.around is not None:
            self.refuse("the outputs are those of the model: return the values of a function")
        for each in (*tensors, *named.values()):
            self._check_tensor(each, "an output is a tensor")
        for name, each in (*((each.name, each) for each in tensors), *named.items()):
            text = self.text_of(each)
            if name != text:
                self._identifier(name, "an output")
                if name in self._body.names:
                    self.refuse(f"another value is called `{name}`")
                self._body.names.add(name)
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
        self._training, self._minimized = [line + comment(place) for line in lines], name

    # Loops

    @contextmanager
    def repeat(
        self, dim: Dim | str, checkpoint: bool = False, while_: Callable[[], GraphTensor] | None = None
    ) -> Iterator[GraphLoop]:
        """Run the statements of the block once for each index of a dimension; parameters have a slice for each iteration.

        `g.assign(x, value)` hands a value on to the next iteration, and `loop.stack(x)` collects the values of all. while_: a
        function that computes a truth value of variables before the loop; the loop ends as soon as it is false:
        `while_=lambda: g.any(x > 1)`.
        """
        found, ends = self._dim(dim), self._condition(while_)
        head = f"repeat {found.name}{' checkpoint' * bool(checkpoint)}{ends}"
        with self._looped(head, found, f"repeat {found.name}{' while true' * bool(ends)}") as loop:
            yield loop

    @contextmanager
    def scan(
        self, dim: Dim | str, *tensors: GraphTensor, while_: Callable[[], GraphTensor] | None = None
    ) -> Iterator[GraphLoop]:
        """Run the statements of the block once for each slice of tensors along a dimension: see `loop.slices`, and `repeat`."""
        found, slices = self._dim(dim), list[GraphTensor]()
        heads = []
        for each in tensors:
            text = self.text_of(each)
            if found not in each.dims:
                self.refuse(f"{each} has no dimension `{found.name}` to go along")
            name = self.fresh(f"{each.name}_t")
            heads.append(f"{name} = {text}")
            kept = tuple(dim for dim in each.dims if dim != found)
            slices.append(self.tensor(name, TensorType(each.dtype, kept)))
        if not heads:
            self.refuse(
                "`g.scan` needs a tensor to go along: `g.scan(time, x)`, or `g.scan(time, g.range(time))`"
            )
        head = f"scan {', '.join(heads)} along {found.name}{self._condition(while_)}"
        checked = f"scan {found.name}__ = range({found.name}) along {found.name}"
        with self._looped(head, found, checked, slices) as loop:
            yield loop

    @contextmanager
    def _looped(
        self, head: str, dim: Dim, checked: str, slices: Sequence[GraphTensor] = ()
    ) -> Iterator[GraphLoop]:
        """Write a loop around the statements of a `with` block, and yield the loop.

        slices: tensors with a slice for each iteration.
        """
        body, around = self._body, self.loop
        loop = GraphLoop(self, dim, around, checked)
        loop.slices.extend(attrs.evolve(each, loop=loop) for each in slices)
        self.write(f"{head} {{")
        body.loop = loop
        try:
            yield loop
        finally:
            body.loop = around
            self.write("}", _indent=self._depth())

    def _condition(self, made: Callable[[], GraphTensor] | None) -> str:
        """Return the condition of a loop as text: a call of a function of the variables that it reads.

        made: the user's function, which is called once.
        """
        if made is None:
            return ""
        if not callable(made):
            self.refuse("`while_` is a function of Python: `while_=lambda: g.any(x > 1)`")

        def condition() -> GraphTensor:
            found = made()
            if not isinstance(found, GraphTensor):
                self.refuse(f"`while_` returns one truth value, found {repr(found)[:60]}")
            return found

        call, types = self._traced(condition, "goes_on", (), {})
        loop = "repeat d__ while c__ { x__ = x__ + 1 }"
        self._raise_errors(
            check_statements([*self._head(), "dim d__ = 1"], ["x__ = 0.0", loop], {"c__": types[0]})
        )
        return f" while {call}"

    # Functions

    @public
    def function(self, made: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function of the model from a function of Python: each call has a scope for its parameters and values.

        The function takes tensors and any other values of Python, may read tensors around it, and returns a tensor or several.
        `name=` names a call, and `sharing=` shares the parameters of another call. Calls that write the same statements are calls
        of one function.
        """
        if not callable(made):
            self.refuse(f"`g.function` takes a function of Python, found {made!r}")

        @wraps(made)
        @public
        def call(
            *arguments: Any, name: str | None = None, sharing: str | None = None, **keywords: Any
        ) -> Any:
            return self._call(made, arguments, keywords, name, sharing)

        return call

    def _call(
        self,
        made: Callable[..., Any],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        name: str | None,
        sharing: str | None,
    ) -> Any:
        """Append a call of a function of the model. Return its results. made: the function of Python."""
        self._check_open()
        text, types = self._traced(made, getattr(made, "__name__", "function"), arguments, keywords)
        results = self._bound(f"{text}{self._named('as', name)}{self._named('sharing', sharing)}", types)
        return results[0] if len(results) == 1 else results

    def _traced(
        self, made: Callable[..., Any], name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[str, Sequence[TensorType]]:
        """Write the statements of a function of Python as a function of the model. Return a call of it, and its types.

        made: the function of Python.
        """
        outer_body, body = self._body, GraphBody(made, self._body)
        if any(each.made is made for each in outer_body.outwards()):
            self.refuse(f"`{name}` calls itself: the statements of a function are written once")
        bound = signature(made).bind(*arguments, **keywords)
        for key, value in bound.arguments.items():
            bound.arguments[key] = self._given(value, key, body)
        self._body = body
        try:
            returned_value = made(*bound.args, **bound.kwargs)
            results = list(returned_value) if isinstance(returned_value, list | tuple) else [returned_value]
            if not results or not all(isinstance(each, GraphTensor) for each in results):
                shown = "nothing" if returned_value is None else repr(returned_value)[:60]
                self.refuse(f"`{name}` returns tensors, found {shown}")
            returned = ", ".join(map(self.text_of, results))
        finally:
            self._body = outer_body
        types = [each.type for each in results]
        of_results = ", ".join(map(type_text, types))
        head = f"({arguments_text({key: each.type for key, each in body.given.items()})}) -> "
        head += f"{f'({of_results})' if len(types) > 1 else of_results} {{"
        written = self._function(
            name, [head, *(text for text, *_ in body.lines), returned], body.text(head, f"return {returned}")
        )
        return f"{written}({', '.join(map(self.text_of, body.given.values()))})", types

    def _function(self, wanted: str, key: Sequence[str], lines: list[str]) -> str:
        """Return the name of the function with these statements, which is made if there is none. key: them without comments.

        wanted: the name, if it is free.
        """
        wanted = wanted if NAME.fullmatch(wanted) and wanted not in RESERVED else "function"
        text, name, number = "\n".join(key), wanted, 2
        while name in BUILTINS or self._functions.get(name, (text,))[0] != text:
            name, number = f"{wanted}_{number}", number + 1
        self._functions.setdefault(name, (text, [f"fn {name}{lines[0]}", *lines[1:]]))
        return name

    def _given(self, value: Any, name: str, body: GraphBody) -> Any:
        """Return an argument as a function gets it: a tensor is a variable of the function."""
        match value:
            case GraphTensor():
                self.text_of(value)
                return self._argument(value, name, body)
            case list():
                return [self._given(each, name, body) for each in value]
            case tuple():
                return tuple(self._given(each, name, body) for each in value)
            case dict():
                return {key: self._given(each, str(key), body) for key, each in value.items()}
        return value

    @public
    def assign(self, x: GraphTensor, value: Argument) -> None:
        """Bind the variable of x again. In a loop, the next iteration begins with the value; after the loop it is the last."""
        self._check_own(x)
        name, text = self.text_of(x), self.text_of(value)
        if name in self._body.states:
            self._check([self._body.states[name][0], f"{name} = {name}"], ())
        made = self._types(text, [each for each in (x, value) if isinstance(each, GraphTensor)])[0]
        if made.dtype != x.dtype or set(made.dims) != set(x.dims):
            self.refuse(f"`{name}` is {x.type}, and would become {made}")
        self.write(f"{name} = {text}")

    @public
    def source(self) -> str:
        """Return the program in the language. Comments name the lines of Python."""
        if not self._outputs:
            self.refuse("the graph has no output: `g.output(loss)`")
        if self._minimized and self._minimized not in self._outputs:
            self.refuse(f"`{self._minimized}` is minimized, and is no output: `g.output({self._minimized})`")
        inputs = arguments_text({each.name: each.type for each in self._inputs})
        returned = f"return {', '.join(self._outputs)}"
        lines = [
            *self._head(),
            *self._declarations,
            *(line for _, lines in self._functions.values() for line in lines),
            *self._body.text(f"model {self.name}({inputs}) {{", returned),
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
        from mtfc import api

        return api.compile(self, **options)
