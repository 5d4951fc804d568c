"""From equations to Python statements, for both backends.

An op's text stands in its `OpDef`; the difference between the backends stands in a `Dialect`. A function's body becomes one
statement per equation, in one pass.

The modules of both backends have the same form, so that code that runs a module need not know its backend:

- `MESH`: axis name -> size, first axis most major.
- `PARAMETERS`, `INPUTS`, `STATE`: argument name -> layout; `OUTPUTS[function]`: output name -> layout. If a step takes several
  micro-batches, `BATCHES` is `INPUTS` with their number as the first dimension. A layout has one entry per dimension: None, the
  name of the mesh axis that splits it, or a tuple of names, most major first. Names are the user's own dotted ones
  (`layers.ffn.wi`).
- `TYPES`: kind of arguments -> name -> dtype and sizes of the whole array, which every function checks.
- `init(seed=0) -> params` and, if there is optimizer state, `init_state() -> state`.
- `forward(params, inputs) -> outputs`, `gradients(params, inputs) -> outputs`, `train_step(params, state, inputs, step) ->
  (outputs, params, state)`. Each argument and result is a dict from name to sharded array; `step` counts from 0. A module has the
  functions that the program has (`train_step` is the IR's `step`).
- `averaged(params, state) -> params`, if the step keeps averages: the params with their averages.
- `value_and_grad(params, inputs, step=0) -> (loss, gradients)`, if the program trains; see `module.value_and_grad`.
- `shard(arrays, layouts) -> arrays` turns a dict of global NumPy arrays into sharded ones: `shard({"x": x}, INPUTS)`.
  `unshard(arrays, layouts) -> arrays` is the reverse: `unshard(outputs, OUTPUTS["forward"])`.
"""

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from textwrap import wrap

import attrs

from mtfc.backends.common.arranging import arranged
from mtfc.backends.common.inlining import inlined
from mtfc.backends.common.loop_codegen import IterationSlice, LoopCode
from mtfc.backends.common.repeats import MARK, TEMPLATE, LoopWriter, Statement, lines_of, long_runs
from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Equation, Function, Output, Value, source_file
from mtfc.compiler.ir.loops import dim_of, has_condition, is_unbounded, pairs, region_of, unroll_of
from mtfc.compiler.ir.opdef import Code, Text
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.sharding_rules import holds_terms, type_with
from mtfc.compiler.ir.types import Axes, Mesh, TensorType
from mtfc.compiler.passes.autodiff.differentiate import gathered_anew

WIDTH = 110
"""Columns of a generated line."""

LOCALS = ("params", "state", "inputs", "step", "outputs", "gradients")
"""The names of arguments and results of generated functions; no value takes them."""

NOT_ASSIGNABLE = (*keyword.kwlist, "__debug__")

_MARKED = re.compile(f"{MARK}(\\d+){MARK}")
_ASIDE = re.compile(r'"[^"\n]*"|#.*')
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w]|=[^=])")
"""A name in a text without strings and comments; keywords of calls, which have `=` right behind them, are no names."""


@attrs.frozen(kw_only=True)
class Dialect:
    """The difference between one backend's Python and the other's.

    column: the text of an equation's op.
    lead: the lengths of the axes that a value's array has in front of its own dimensions (none if the program sees one
        processor's array).
    index: (mesh axes, rank) -> text of this processor's number along the axes, most major first. The text broadcasts against
        arrays with `rank` dimensions of their own.
    dtype: an IR dtype as text.
    literal: (value, dtype) -> text of a number that keeps the dtype of arrays that it is combined with.
    after: a statement to follow a value's definition, or an empty text.
    loop: the statements of a loop. blank: zeros, for the stack of a loop and the value that an iteration yields;
        anything if all of the stack will be written.
    step: the number `step` as the array that equations need.
    reserved: names that the module uses.
    """

    mesh: Mesh
    column: Callable[[Equation], Text]
    lead: Callable[[TensorType], tuple[int, ...]]
    index: Callable[[Axes, int], str]
    dtype: Callable[[str], str]
    literal: Callable[[object, str], str]
    after: Callable[[Value, str], str]
    loop: Callable[[LoopCode], Iterator[str]]
    blank: Callable[[TensorType, TensorType, bool], str]
    step: str
    reserved: frozenset[str]


class Emitter:
    """Writes the statements of one function.

    Most constants never become statements, as the statements that use them contain the number. `_literals` holds the constants
    that are not written yet.

    The text is written with marks in the place of names. So all other names in the text, those of helpers, of modules and of
    Python itself, are known when values get theirs, and no value takes one of them. `_wanted` holds the name that each mark
    stands for, if it is free.
    """

    def __init__(self, dialect: Dialect, inlines: bool = False) -> None:
        """Start without names.

        inlines: True to write expressions that are read once where they are read. _kept: names that keep their line.
        _identifiers: value -> its mark. _file: the user's file. _short: full name -> its short form.
        """
        self.dialect, self.inlines = dialect, inlines
        self._kept: list[str] = []
        self._wanted: list[str] = []
        self._identifiers: dict[Value, str] = {}
        self._literals: dict[Value, Equation] = {}
        self._file: str | None = None
        self._short: dict[str, str] = {}

    def identifier(self, value: Value) -> str:
        """Return the mark of a value, whose name in Python will be short: `layers.ffn.wi` is `wi`, or `ffn_wi` if another name
        ends in `wi`.
        """
        if value not in self._identifiers:
            wanted = re.sub(r"\W", "_", self._short.get(value.name, value.name))
            self._identifiers[value] = self._mark(f"_{wanted}" if wanted[0].isdigit() else wanted)
        return self._identifiers[value]

    def _mark(self, wanted: str) -> str:
        self._wanted.append(wanted)
        return f"{MARK}{len(self._wanted) - 1}{MARK}"

    def named(self, text: str) -> Callable[[str], str]:
        """Return a function that puts names in the place of marks. `text` has all names that values must not take."""
        taken = {*NOT_ASSIGNABLE, *LOCALS, *self.dialect.reserved, *_NAME.findall(_ASIDE.sub("", text))}
        names = Names(taken)
        found = [names.fresh(f"{wanted}_1" if wanted in taken else wanted) for wanted in self._wanted]
        return lambda line: _MARKED.sub(lambda match: found[int(match[1])], line)

    def function(self, function: Function, name: str, doc: str, first: Iterable[str] = ()) -> str:
        """Return the definition of a function, with a docstring. The body begins with the statements `first`."""
        self._file = source_file([function])
        self._short = short_names(value.name for value in all_values(function))
        head = f"def {name}({FORMS[function.name].signature}):"
        marked = [*first, *self._lines(function)]
        named = self.named("\n".join([head, *marked]))
        lines = [*_docstring(doc), *(line for each in marked for line in fold(named(each)))]
        return f"{head}\n" + "".join(f"    {line}\n" if line else "\n" for line in lines)

    def _lines(self, function: Function) -> list[str]:
        """Return the statements from the arguments to the results. Repeated ones are loops."""
        reads, statements = self._arguments(function)
        statements += self.statements(function)
        groups = FORMS[function.name].groups(function)
        results = [
            (group, key, self.identifier(output.value))
            for group, outputs in groups.items()
            for key, output in outputs.items()
        ]
        scalars = [x for v, x in self._identifiers.items() if x in reads and not v.type.dims]
        stored, texts = [*_with_stores(statements, results)], dict(reads)
        if long_runs(stored, TEMPLATE):
            stored = arranged(stored, self._mark, texts, scalars)
        writer = LoopWriter(stored, self._mark, reads, texts)
        lines = writer.lines()
        in_loops = []
        for group in groups:
            values = {
                key: writer.stores.get(_store(into, key, value), value if value in reads else "")
                for into, key, value in results
                if into == group
            }
            entries = [f'"{key}": {value}' for key, value in values.items() if value]
            if len(entries) < len(values):  # loops store the others
                in_loops.append(f"new_{group} = {{}}")
                entries.insert(0, f"**new_{group}")
            lines.append(f"{group} = {{{', '.join(entries)}}}")
        lines.append(f"return {', '.join(groups)}")
        if self.inlines:
            lines = [*inlined(lines, reads, self._kept, self._wanted, WIDTH - 4)]
        text = "\n".join(lines)
        needed = (f"{name} = {read}" for name, read in reads.items() if name in text)
        return [*needed, *in_loops, *lines]

    def _arguments(self, function: Function) -> tuple[dict[str, str], list[Statement]]:
        """Return the text that reads each argument, and the statements that follow."""
        used = {value for eqn in function.body for value in eqn.operands}
        used |= {output.value for output in function.outputs}
        reads, given = dict[str, str](), list[Statement]()
        for argument in function.arguments:
            if argument.value not in used:
                continue
            if argument.role == "step":
                self._identifiers[argument.value] = "step"
                given.append(Statement(f"step = {self.dialect.step}"))
            else:
                source = FORMS[function.name].takes[argument.role]
                name = self.identifier(argument.value)
                reads[name] = f'{source}["{argument.value.name}"]'
                given += map(Statement, filter(None, [self.dialect.after(argument.value, name)]))
        return reads, given

    def body(self, function: Function) -> Iterator[str]:
        """Yield the lines of the body, not indented, up to the definitions of its outputs."""
        return lines_of(self.statements(function))

    def statements(self, function: Function) -> Iterator[Statement]:
        """Yield the statements of the body, up to the definitions of its outputs."""
        for eqn in function.body:
            if has_trait(eqn, "constant"):
                self._literals[eqn.result] = eqn
                continue
            place = self._place_comment(eqn)
            if eqn.path or has_trait(eqn, "placement"):
                self._kept += map(self.identifier, eqn.results)
            for text in self.loop(eqn) if eqn.regions else self.equation(eqn):
                yield Statement(text, place, not any(value.type.dims for value in eqn.results))
        for output in function.outputs:
            yield from map(Statement, self._materialize((output.value,)))

    def _place_comment(self, eqn: Equation) -> str:
        """Return `# line 12`, with the stage if it is not the forward pass."""
        if eqn.span is None:
            return ""
        return f"# {eqn.span.seen_from(self._file)}" + ("" if eqn.stage == "forward" else f", {eqn.stage}")

    def loop(self, eqn: Equation) -> Iterator[str]:
        """Yield constants, and a loop as one text. Invariants keep the names that they have outside."""
        given = list(pairs(eqn))
        yield from self._materialize(v for v, a in given if a.role != "invariant")
        for operand, argument in given:
            if argument.role == "invariant" and operand in self._literals:
                literal = attrs.evolve(self._literals[operand], results=(argument.value,))
                self._literals[argument.value] = literal
            elif argument.role == "invariant":
                self._identifiers[argument.value] = self.identifier(operand)
        yield "\n".join(["", *self.dialect.loop(self._loop_code(eqn))])

    def _loop_code(self, eqn: Equation) -> LoopCode:
        """Return the names and the body of a loop, from which a dialect writes its statements."""
        region, dim = region_of(eqn), dim_of(eqn)
        carries = [(v, a.value) for v, a in pairs(eqn) if a.role == "carried"]
        slices = [(v, a.value) for v, a in pairs(eqn) if a.role == "sliced"]
        names = [self.identifier(value) for value in eqn.results]
        inside = [self.identifier(value) for _, value in (*carries, *slices)]
        body = list(self.body(region))
        leaving = [self.identifier(output.value) for output in region.outputs]
        count = len(carries)
        return LoopCode(
            name=self._mark(re.sub(r"\W", "_", f"{region.name}_body")),
            index=self._mark("i"),
            trips=dim.size,
            reverse=bool(eqn.attrs["reverse"]),
            carried=inside[:count],
            starts=[self.identifier(value) for value, _ in carries],
            updates=leaving[:count],
            results=names[:count],
            sliced=[
                IterationSlice(name, self.identifier(whole), whole.type.dims.index(dim), len(whole.type.dims))
                for name, (whole, _) in zip(inside[count:], slices, strict=True)
            ],
            stacks=names[count:],
            yields=leaving[count:],
            held=[self.identifier(value) for value in gathered_anew(eqn)],
            body=body,
            blanks=self._blanks(eqn) if has_condition(eqn) or unroll_of(eqn) > 1 else (),
            has_condition=has_condition(eqn),
            is_unbounded=is_unbounded(eqn),
            unroll=unroll_of(eqn),
        )

    def _blanks(self, eqn: Equation) -> list[str]:
        """Return the empty stacks into which a loop writes the results that are no carries."""
        outputs = zip(eqn.results, region_of(eqn).outputs, strict=True)
        is_written = not has_condition(eqn)
        return [self.dialect.blank(v.type, o.value.type, is_written) for v, o in outputs if not o.updates]

    def equation(self, eqn: Equation) -> Iterator[str]:
        """Yield the statements of an equation, after those of constants that are not written inline."""
        text = self.dialect.column(eqn)
        inlined = self._inlined(eqn) if isinstance(text, str) else {}
        yield from self._materialize(v for v in eqn.operands if v not in inlined)
        yield from self._assign(eqn, inlined)

    def _inlined(self, eqn: Equation) -> dict[Value, str]:
        """Return the operands of an elementwise equation that can be written as numbers.

        Another operand, an array, must carry the dtype.
        """
        carried = {v.type.dtype for v in eqn.operands if v not in self._literals}
        return {
            v: self.dialect.literal(self._literals[v].attrs["value"], v.type.dtype)
            for v in eqn.operands
            if v in self._literals and v.type.dtype in carried
        }

    def _materialize(self, values: Iterable[Value]) -> Iterator[str]:
        """Yield the assignments of constants that were kept back to be written inline."""
        for value in values:
            if value in self._literals:
                yield from self._assign(self._literals.pop(value), {})

    def _assign(self, eqn: Equation, inlined: dict[Value, str]) -> Iterator[str]:
        """Yield the statement that computes an equation; none if the result is an operand, which the user does not name anew.

        inlined: values whose text stands in the place of their name.
        """
        text = self.dialect.column(eqn)
        code = self._code(eqn, inlined)
        expression = text.format(*code.aligned) if isinstance(text, str) else text(code)
        results = [self.identifier(value) for value in eqn.results]
        lines = [f"{', '.join(results)} = {expression}"]
        rounds = holds_terms(eqn)
        for value, name in zip(eqn.results, results, strict=True):
            if rounds and value.type.local_dtype == value.type.dtype == "f16":
                lines.append(f"{name} = {name}.astype({self.dialect.dtype(value.type.dtype)})")
        lines += filter(None, map(self.dialect.after, eqn.results, results))
        if len(lines) > 1 or eqn.path or not _MARKED.fullmatch(expression):
            yield "\n".join(lines)
        else:
            self._identifiers[eqn.result] = expression

    def _code(self, eqn: Equation, inlined: dict[Value, str]) -> Code:
        """Return what the text of an op is written from: the equation, the texts of its operands, and the sizes of a shard."""
        dialect, type = self.dialect, eqn.results[0].type
        args = tuple(inlined.get(v) or self._operand(eqn, v) for v in eqn.operands)
        sizes = type.local_shape(dialect.mesh)
        return Code(
            eqn=eqn,
            args=args,
            aligned=tuple(
                arg if v in inlined else _aligned(arg, v.type.names, type.names, dialect.lead(v.type))
                for arg, v in zip(args, eqn.operands, strict=True)
            ),
            sizes=sizes,
            shape=str((*dialect.lead(type), *sizes)),
            axis=lambda i, dim: eqn.operands[i].type.names.index(dim) - len(eqn.operands[i].type.dims),
            offset=lambda dim, rank: self._offset(eqn, dim, rank),
            dtype=dialect.dtype(type.local_dtype),
        )

    def _operand(self, eqn: Equation, value: Value) -> str:
        """Return an operand as text. Terms of an f16 sum are computed from f32 arrays; a dot says so itself."""
        name, wide = self.identifier(value), eqn.results[0].type.local_dtype
        widens = wide != eqn.results[0].type.dtype == value.type.local_dtype
        return f"{name}.astype({self.dialect.dtype(wide)})" if widens and not has_trait(eqn, "dot") else name

    def _offset(self, eqn: Equation, dim: str, rank: int) -> str:
        """Return the text of the shard's first index along a dimension of an equation; empty if the dimension is whole."""
        type = type_with(eqn, dim)
        axes = type.axes_of(dim)
        if not axes:
            return ""
        size = type.dim(dim).size // self.dialect.mesh.size(axes)
        return f"{self.dialect.index(axes, rank)} * {size}"


def _store(group: str, key: str, value: str) -> str:
    return f'new_{group}["{key}"] = {value}'


def _with_stores(
    statements: Iterable[Statement], results: Sequence[tuple[str, str, str]]
) -> Iterator[Statement]:
    """Yield statements, and behind each the stores of results that it defines."""
    texts: dict[str, list[str]] = {}
    for result in results:
        texts.setdefault(result[2], []).append(_store(*result))
    for statement in statements:
        yield statement
        for name in statement.holes:
            yield from (Statement(text, is_scalar=True, is_store=True) for text in texts.pop(name, ()))


def all_values(function: Function) -> Iterator[Value]:
    """Yield the values that a function and the bodies of its loops define."""
    yield from (argument.value for argument in function.arguments)
    for eqn in function.body:
        yield from eqn.results
        for region in eqn.regions:
            yield from all_values(region)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Shorten each dotted name to the fewest of its last parts that no other name ends in.

    A prefix `d_` stays in front.
    """
    paths = {name: name.removeprefix("d_") if "." in name else name for name in names}
    owners: dict[str, set[str]] = {}
    for path in paths.values():
        for suffix in _suffixes(path):
            owners.setdefault(suffix, set()).add(path)
    short = {path: next((s for s in _suffixes(path) if len(owners[s]) == 1), path) for path in paths.values()}
    return {name: name[: len(name) - len(path)] + short[path] for name, path in paths.items()}


def _suffixes(path: str) -> Iterator[str]:
    """Return the ends of `a.b.c`, the shortest first: `c`, `b.c`, `a.b.c`."""
    parts = path.split(".")
    return (".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1))


def layout_text(type: TensorType) -> str:
    """Return the entry of a layout table in a generated module: `(None, "rows", ("cols", "planes"))`."""
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in type.splits]
    return repr(tuple(entries)).replace("'", '"')


def _docstring(text: str) -> list[str]:
    lines = wrap(f'"""{text}', WIDTH - 8)
    return [f'{lines[0]}"""'] if len(lines) == 1 else [*lines, '"""']


def _aligned(arg: str, names: tuple[str, ...], target: tuple[str, ...], lead: tuple[int, ...]) -> str:
    """Return `arg`, with dimensions `names`, as text that broadcasts against the dimensions `target`.

    `lead` holds the lengths of the axes in front. Dimensions missing at the front need no mention, unless the axes in front of
    them vary.
    """
    order = [names.index(name) for name in target if name in names]
    if order != sorted(order):
        axes = (*range(len(lead)), *(len(lead) + i for i in order))
        arg = f"{arg}.transpose({', '.join(map(str, axes))})"
    missing = [name not in names for name in target]
    first = missing.index(False) if False in missing else len(missing)
    if not any(missing[first:]) and prod(lead) == 1:
        return arg
    if missing == sorted(missing) and any(missing):
        return f"{arg}[..., {', '.join(['None'] * sum(missing))}]"
    entries = [":"] * len(lead) + ["None" if gone else ":" for gone in missing]
    while entries and entries[-1] == ":":
        entries.pop()
    return f"{arg}[{', '.join(entries)}]" if entries else arg


def fold(statement: str, width: int = WIDTH - 4) -> list[str]:
    """Break a statement into lines of at most `width` columns, where possible, for a body indented by four.

    Lines break at spaces. Outside of brackets, a side of the assignment is put in parentheses first. No string in a generated
    statement contains a space.
    """
    plain = statement.lstrip()
    indent = " " * (len(statement) - len(plain))
    mark = next((each for each in (" = ", " += ") if each in plain), "return ")
    if len(statement) <= width or mark not in plain:
        return [statement]
    if indent:
        return [indent + line for line in fold(plain, width - len(indent))]
    target, expression = statement.split(mark, 1)
    if _breaks_outside(expression):
        expression = f"({expression})"
    if "," in target and len(f"{target} = {expression.split()[0]}") > width:
        target = f"({target})"
    kept = re.sub(r"(?<=[=:]) | (?== )", "\0", f"{target}{mark}{expression}")
    lines = wrap(kept, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _breaks_outside(expression: str) -> bool:
    """Return True if a space stands outside all brackets."""
    depth = 0
    for character in expression:
        depth += (character in "([{") - (character in ")]}")
        if character == " " and depth == 0:
            return True
    return False


# The names, arguments and results of a program's functions in a module


@attrs.frozen
class Form:
    """The form of a program's function in a generated module.

    takes: role of arguments -> the dict that has them, in the order of the signature.
    counts: True if the step's number comes last.
    outputs: True if the function returns a dict of outputs.
    gives: role of arguments -> the returned dict with their new values or gradients.
    """

    name: str
    takes: Mapping[str, str]
    counts: bool = False
    outputs: bool = True
    gives: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def signature(self) -> str:
        return ", ".join([*self.takes.values(), *(["step"] if self.counts else [])])

    def groups(self, function: Function) -> dict[str, dict[str, Output]]:
        """Return the outputs of a function by the dict that returns them, and by their keys there."""
        roles = {argument.value.name: argument.role for argument in function.arguments}
        found: dict[str, dict[str, Output]] = {"outputs": {}} if self.outputs else {}
        found |= {group: {} for group in self.gives.values()}
        for output in function.outputs:
            group = self.gives[roles[output.updates]] if output.updates else "outputs"
            found[group][output.updates or output.name] = output
        return found


_MODEL = {"parameter": "params", "input": "inputs"}
_GRADIENTS = {"parameter": "gradients"}
_TRAINED = {"parameter": "params", "state": "state"}
_STEP = {**_TRAINED, "input": "inputs"}

FORMS: Mapping[str, Form] = {
    "forward": Form("forward", _MODEL),
    "gradients": Form("gradients", _MODEL),
    "step": Form("train_step", _STEP, counts=True, gives=_TRAINED),
    "batch_gradients": Form("batch_gradients", _MODEL, counts=True, gives=_GRADIENTS),
    "step_gradients": Form("step_gradients", _MODEL, counts=True, gives=_GRADIENTS),
    "averaged": Form("averaged", _TRAINED, outputs=False, gives={"parameter": "params"}),
    "segment": Form("segment", _STEP, counts=True, gives=_TRAINED),
    "clip_gradients": Form("clip_gradients", _GRADIENTS, outputs=False, gives=_GRADIENTS),
}
"""Name of a function in the program -> its form."""

NAMES = {function: form.name for function, form in FORMS.items()}
"""Name of a function in the program -> its name in a module."""
