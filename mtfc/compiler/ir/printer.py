"""Print the IR as text that people can read and `parser.py` can parse.

One line holds one thing. The layout of an equation in a `placed` function is omitted where it follows from the rest of the line:
it is the layout that the type shows, or for a loop, reshard or collective, which has no iteration space, the empty one. The
grammar is `mtfc/grammar/ir.lark`. Printing takes time linear in the size of the program.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import (
    Argument,
    Attr,
    Equation,
    Function,
    Output,
    Program,
    Stage,
    Training,
    Update,
    Value,
    source_file,
)
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import EVERY, Axes, Dim, Layout, Mesh, Rules, TensorType

FEW = 6
"""The number of rules for single values that a summary still shows one by one."""

_WORDS = frozenset({"true", "false", "params", "optimizer", "value"})
_SUFFIXES = frozenset({"layout", "as", "at"})
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def print_program(program: Program, locations: bool = False) -> str:
    """Return the text of a program. With `locations` it has every span; otherwise comments show source lines."""
    return "\n".join(_Printer(program, locations).program(program)) + "\n"


def equation_text(eqn: Equation) -> str:
    """Return one equation on one line, without its regions, for messages."""
    return _Printer(None, locations=False).head(eqn, placed=eqn.layout is not None)


def shown_layout(type: TensorType) -> dict[str, Axes]:
    """Return the layout that a type shows by itself: the dims that are split."""
    return {dim.name: axes for dim, axes in zip(type.dims, type.splits, strict=True) if axes}


def implied_layout(op: str, first: TensorType) -> dict[str, Axes]:
    """Return the layout of an equation whose text omits it, in a placed function; `first` is the type of its first result."""
    opdef = OPS.get(op)  # a loop has none
    return {} if opdef is None or "placement" in opdef.traits else shown_layout(first)


def is_placed(function: Function) -> bool:
    """Return True if anything in a function has a layout."""
    nodes: Iterable[Argument | Output | Equation] = chain(function.arguments, function.outputs, function.body)
    regions = (region for eqn in function.body for region in eqn.regions)
    return any(node.layout is not None for node in nodes) or any(map(is_placed, regions))


def name_text(name: str, reserved: frozenset[str] = _WORDS) -> str:
    """Return a name, in backquotes if the parser would take it for something else."""
    return name if _PLAIN.fullmatch(name) and name not in reserved else f"`{name}`"


def number_text(number: float) -> str:
    """Return the `repr` of a number; infinities and NaN have a sign, which tells them from names."""
    return repr(number) if math.isfinite(number) else f"{number:+}"


def bytes_text(count: int) -> str:
    """Return a number of bytes for people: `512 B`, `32 KiB`, `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    exponent = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**exponent:.4g} {' KMGTPE'[exponent]}iB"


def axes_text(axes: Axes, named: Callable[[str], str] = name_text) -> str:
    """Return axes as a layout rule writes them: `rows` or `(rows, cols)`."""
    return named(axes[0]) if len(axes) == 1 else f"({', '.join(map(named, axes))})"


def layout_text(layout: Mapping[str, Axes]) -> str:
    return "{" + ", ".join(f"{name_text(dim)}: {axes_text(axes)}" for dim, axes in layout.items()) + "}"


def attr_text(value: Attr) -> str:
    """Return the text of an attribute."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number_text(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Dim):
        return name_text(value.name)
    return _tuple_text(value) if _is_tuple_of_names(value) else repr(value)


def _is_tuple_of_names(value: object) -> bool:
    """Return True for dims, axes, or pairs of dims. Messages show other values too, which no op takes."""
    if not isinstance(value, tuple):
        return False
    pairs = all(isinstance(each, tuple) and len(each) == 2 for each in value)
    named = [name for each in value for name in each] if pairs else value
    return all(isinstance(each, Dim) for each in named) or all(isinstance(each, str) for each in value)


def _tuple_text(value: tuple[Dim, ...] | tuple[str, ...] | tuple[tuple[Dim, Dim], ...]) -> str:
    """Return dims in square brackets, axes in braces, or `old -> new` in parentheses."""
    dims = [name_text(item.name) for item in value if isinstance(item, Dim)]
    axes = [name_text(item) for item in value if isinstance(item, str)]
    pairs = [
        f"{name_text(a.name)} -> {name_text(b.name)}" for a, b in (i for i in value if isinstance(i, tuple))
    ]
    if axes:
        return "{" + ", ".join(axes) + "}"
    return f"({', '.join(pairs)})" if pairs else f"[{', '.join(dims)}]"


def _rules_text(rules: Rules, named: Callable[[str], str] = name_text) -> str:
    pairs = ((dim if dim == EVERY else named(dim), axes) for dim, axes in rules.axes)
    return ", ".join(f"{dim}: {axes_text(axes, named)}" for dim, axes in pairs)


def layout_summary(layout: Layout) -> str:
    """Return the user's layout between braces. If a search wrote many rules for single values, give only their number."""
    if len(layout.values) <= FEW:
        return program_layout_text(layout)
    shown = program_layout_text(attrs.evolve(layout, values=()))[1:-1]
    return f"{{{shown}{', and ' if shown else ''}{len(layout.values)} rules for single values}}"


def program_layout_text(layout: Layout) -> str:
    """Return the user's layout between braces, as in a .mtf file."""
    return "{" + ", ".join(layout_entries(layout)) + "}"


def layout_entries(layout: Layout, gap: str = "", named: Callable[[str], str] = name_text) -> Iterator[str]:
    """Yield the entries of a layout, with a gap inside of braces."""

    def braced(entries: str) -> str:
        return f"{{{gap}{entries}{gap}}}" if entries else "{}"

    if layout.rules.axes:
        yield _rules_text(layout.rules, named)
    for section, rules in (("params", layout.params), ("optimizer", layout.optimizer)):
        if rules.axes:
            yield f"{section}: {braced(_rules_text(rules, named))}"
    for path, rules in layout.values:
        yield f"value {named(path)}: {braced(_rules_text(rules, named))}"
    for each in layout.pipelines:
        checkpoint = " checkpoint" if each.checkpoint else ""
        cuts = ", ".join(f"{named(name)}: {number}" for name, number in each.entries.items())
        yield f"pipeline {named(each.loop)}{checkpoint}: {braced(cuts)}"
    if forms := layout.forms.entries:
        yield f"forms: {braced(', '.join(f'{key}: {value}' for key, value in forms.items()))}"


def _call_text(name: str, settings: tuple[tuple[str, float], ...]) -> str:
    return f"{name_text(name)}({', '.join(f'{name_text(k)} = {number_text(v)}' for k, v in settings)})"


class _Printer:
    """Prints one program. It keeps the mesh, the form of spans, and the texts of types."""

    def __init__(self, program: Program | None, locations: bool) -> None:
        """Start a text.

        locations: print the source line of everything. _types: type -> its text.
        """
        self.file = source_file(program.functions) if program else None
        self.mesh: Mesh | None = program.mesh if program else None
        self.locations = locations
        self._types: dict[TensorType, str] = {}

    def program(self, program: Program) -> Iterator[str]:
        """Yield the lines of a program: mesh, layout, dims, parameters, training, and functions."""
        yield f"program {name_text(program.name)}"
        if self.locations and self.file is not None:
            yield f"source {json.dumps(self.file)}"
        if program.mesh:
            axes = ", ".join(f"{name_text(name)}: {size}" for name, size in program.mesh.axes)
            yield f"mesh {name_text(program.mesh.name)} = [{axes}]"
        if program.layout:
            blocks = _rules_text(program.layout.blocks)
            more = f" blocks {{{blocks}}}" if blocks else ""
            yield f"layout {name_text(program.layout.name)} = {program_layout_text(program.layout)}{more}"
        yield from (f"dim {name_text(dim.name)} = {dim.size}" for dim in program.dims.values())
        for p in program.parameters:
            init = _call_text(p.init.name, p.init.args)
            keyword = "state" if p.is_state else "param"
            yield f"{keyword} {name_text(p.name)}: {self.type(p.type)} = {init}{self.at(p.span)}"
        if program.training:
            yield self.training(program.training)
            if program.training.learning_rate:
                yield from self.function(program.training.learning_rate, "rate")
            for update in program.training.updates:
                yield from self.update(update)
        for function in program.functions:
            yield ""
            yield from self.function(function)

    def training(self, training: Training) -> str:
        """Return the line of the training: what is minimized, then the options that differ from their defaults."""
        text = f"train{self.at(training.span)} minimize {name_text(training.minimize)}"
        if training.report:
            text += f" report ({', '.join(map(name_text, training.report))})"
        if training.precision:
            text += f" precision ({', '.join(training.precision)})"
        if training.reduce:
            text += f" reduce {training.reduce}"
        if training.loss_scale:
            dynamic = "dynamic " if training.loss_scale.is_dynamic else ""
            text += f" loss_scale {dynamic}{number_text(training.loss_scale.start)}"
        if training.clip is not None:
            text += f" clip {number_text(training.clip)}"
        if training.average is not None:
            text += f" average {number_text(training.average)}"
        if training.accumulate != 1:
            text += f" accumulate {training.accumulate}"
        return text if training.weigh_by is None else f"{text} weigh_by {name_text(training.weigh_by)}"

    def update(self, update: Update) -> Iterator[str]:
        yield from self.function(
            update.function, f"update {', '.join(map(name_text, update.parameters))} with"
        )

    def function(self, function: Function, head: str = "function") -> Iterator[str]:
        placed = is_placed(function)
        yield f"{head} {name_text(function.name)}{' placed' if placed else ''} {{"
        yield from self.contents(function, "forward", placed, "  ")
        yield "}"

    def contents(self, function: Function, stage: Stage, placed: bool, indent: str) -> Iterator[str]:
        yield from (f"{indent}{self.argument(argument, placed)}" for argument in function.arguments)
        yield from self.body(function.body, stage, placed, indent)
        yield from (f"{indent}{self.output(output, placed)}" for output in function.outputs)

    def argument(self, argument: Argument, placed: bool) -> str:
        under = self.under(argument.layout, shown_layout(argument.value.type), placed)
        start = f" = {number_text(argument.initial)}" if argument.initial != 0 else ""
        return f"{argument.role} {self.defined(argument.value)}{start}{under}{self.at(argument.span)}"

    def output(self, output: Output, placed: bool) -> str:
        updates = f" updates {name_text(output.updates)}" if output.updates is not None else ""
        under = self.under(output.layout, shown_layout(output.value.type), placed)
        return f"output {name_text(output.name)} = {output.value}{updates}{under}"

    def body(self, body: tuple[Equation, ...], stage: Stage, placed: bool, indent: str) -> Iterator[str]:
        """Yield the lines of equations, and a line for the stage wherever it changes."""
        for eqn in body:
            if eqn.stage != stage:
                stage = eqn.stage
                yield f"{indent}{stage}:"
            if eqn.regions:
                yield from self.with_regions(eqn, placed, indent)
            else:
                yield f"{indent}{self.head(eqn, placed)}{self.comment(eqn)}"

    def with_regions(self, eqn: Equation, placed: bool, indent: str) -> Iterator[str]:
        """Yield the lines of an equation with regions: its head, and each region with its contents indented."""
        start = f"{indent}{self.head(eqn, placed)} "
        for region in eqn.regions:
            yield f"{start}region {name_text(region.name)} {{{self.comment(eqn)}"
            yield from self.contents(region, eqn.stage, placed, indent + "  ")
            start = f"{indent}}} "
        yield f"{indent}}}"

    def head(self, eqn: Equation, placed: bool) -> str:
        """Return an equation without its regions: results, op, operands, attributes, layout, name and source place."""
        results = ", ".join([self.defined(value) for value in eqn.results])
        operands = ", ".join([f"%{value.name}" for value in eqn.operands])
        parts = [eqn.op, operands] if operands else [eqn.op]
        parts += [f"{name_text(key, _SUFFIXES)}={attr_text(value)}" for key, value in eqn.attrs.items()]
        path = f" as {name_text(eqn.path)}" if eqn.path is not None else ""
        implied = implied_layout(eqn.op, eqn.results[0].type) if eqn.results else {}
        under = self.under(eqn.layout, implied, placed)
        return f"{results} = {' '.join(parts)}{under}{path}{self.at(eqn.span)}"

    def under(self, layout: Mapping[str, Axes] | None, implied: Mapping[str, Axes], placed: bool) -> str:
        """Return the text of a layout; it is empty for the implied one."""
        if layout is None:
            return " layout none" if placed else ""
        split = {dim: axes for dim, axes in layout.items() if axes}
        return "" if split == implied else f" layout {layout_text(split)}"

    def defined(self, value: Value) -> str:
        return f"%{value.name}: {self.type(value.type)}"

    def type(self, type: TensorType) -> str:
        """Return a type as text, which is made once."""
        if type not in self._types:
            self._types[type] = str(type)
        return self._types[type]

    def at(self, span: Span | None) -> str:
        """Return ` at PLACE in CALLER in ...` for a source place, if the text has places."""
        if span is None or not self.locations:
            return ""
        places = [self.place(span)]
        while span.call is not None:
            span = span.call
            places.append(self.place(span))
        return f" at {' in '.join(places)}"

    def place(self, span: Span) -> str:
        file = "" if span.file == self.file else f"{json.dumps(span.file)} "
        return f"{file}{span.line}:{span.column}-{span.end_line}:{span.end_column}"

    def comment(self, eqn: Equation) -> str:
        """Return a comment: the bytes that the equation sends, and its source line."""
        facts = []
        if self.mesh and has_trait(eqn, "sends"):
            facts.append(bytes_text(sum(value.type.local_bytes(self.mesh) for value in eqn.operands)))
        if eqn.span and not self.locations:
            facts.append(eqn.span.seen_from(self.file))
        return f"  // {', '.join(facts)}" if facts else ""
