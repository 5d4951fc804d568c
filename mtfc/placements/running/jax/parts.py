"""The functions of a placed module: parts of operators and updates, each written once.

Parts of one operator differ in the position of their first elements alone, and layers differ in names. Positions are arguments
of a function, and functions with equal texts, up to names and comments, are one. So XLA compiles as many functions as there are
different ones, however many parts and layers there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import attrs

from mtfc.backends.common.emitter import Emitter, all_values, fold, short_names
from mtfc.backends.common.repeats import MARK
from mtfc.backends.jax.backend import RESERVED, dialect
from mtfc.backends.jax.convolution_fusion import fused
from mtfc.backends.jax.equation_texts import guarded
from mtfc.backends.numpy import backend as numpy
from mtfc.compiler.analysis.liveness import storage
from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.opdef import Code
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.passes.dce import live_only
from mtfc.placements.operators.operator_parts import PartFunction

ALONE = Mesh("alone", ())
"""A part runs on one device, so no type of its function is split."""

PREFIX = "part_"
"""The start of the names of functions that run on one device; no variable has it."""

Origin = tuple[Equation, Mapping[str, int]]
"""The equation of the whole operator that an equation of a part comes from, and the first position along each split dimension."""


@attrs.frozen(eq=False)
class WrittenFunction:
    """A function of the module: its name, the positions that follow its operands, and an estimate of its work.

    function: its equations. text: these without names and comments, the same for functions that compute the same.
    """

    function: Function
    name: str
    positions: tuple[int, ...]
    work: int
    text: str


class PartEmitter(Emitter):
    """Writes a function whose operands are positional, with the positions of its part as further arguments."""

    def __init__(
        self, function: Function, origins: Mapping[Value, Origin], file: str | None, backend: str
    ) -> None:
        """Write with the rules of a backend. origins: what each value of a part comes from.

        file: the user's file, for comments.
        """
        if backend == "jax":
            function, texts = fused(function, ALONE)
            super().__init__(dialect(ALONE, function, {**guarded(function), **texts}))
        else:
            super().__init__(numpy.dialect(ALONE, checked=False))
        self.written, self.origins = function, origins
        self.positions: dict[tuple[str, int], str] = {}
        self._file = file
        self._short = short_names(value.name for value in all_values(function))

    def lines(self) -> tuple[str, list[str]]:
        """Return the signature and the statements, with marks in the place of names."""
        given = [self.identifier(argument.value) for argument in self.written.arguments]
        body = list(self.body(self.written))
        found = ", ".join(self.identifier(output.value) for output in self.written.outputs)
        return ", ".join([*given, *self.positions.values()]), [*body, f"return {found}"]

    def _code(self, eqn: Equation, inlined: dict[Value, str]) -> Code:
        """Return the facts for an equation's text. Indices and random numbers count from the part's place in the whole tensor."""
        code, origin = super()._code(eqn, inlined), self.origins.get(eqn.results[0])
        if origin is None:
            return code
        source, first = origin
        whole = source if "stream" in eqn.attrs else eqn  # numbers are drawn by the index in the whole tensor
        return attrs.evolve(code, eqn=whole, offset=lambda dim, rank: self._position(first, dim))

    def _position(self, first: Mapping[str, int], dim: str) -> str:
        """Return the argument with a part's first position along a dimension; an empty text if the dimension is whole."""
        if dim not in first:
            return ""
        key = (dim, first[dim])
        if key not in self.positions:
            self.positions[key] = self._mark(f"first_{dim}")
        return self.positions[key]


class ModuleFunctions:
    """The functions that a placed module needs so far."""

    def __init__(self, file: str | None, backend: str = "jax") -> None:
        """Start without functions.

        file: the user's file, whose name comments leave out. backend: `jax` or `numpy`. texts: the definitions. _known: text
        without names -> the name of the function that has it.
        """
        self.file, self.backend = file, backend
        self.texts: list[str] = []
        self._names = Names(RESERVED)
        self._known: dict[str, str] = {}

    def add(
        self, function: Function, wanted: str, doc: str, origins: Mapping[Value, Origin] | None = None
    ) -> WrittenFunction:
        """Return the function with these equations, written if there is none with the same text."""
        emitter = PartEmitter(function, origins or {}, self.file, self.backend)
        signature, lines = emitter.lines()
        key = "\n".join([signature, *(line for line in lines if not line.lstrip().startswith("#"))])
        if key not in self._known:
            self._known[key] = self._names.fresh(_identifier(wanted))
            self.texts.append(self._text(emitter, self._known[key], doc, signature, lines))
        positions = tuple(n for _, n in emitter.positions)
        return WrittenFunction(function, self._known[key], positions, _work(function.body), key)

    def _text(self, emitter: PartEmitter, name: str, doc: str, signature: str, lines: Sequence[str]) -> str:
        """Return the definition of a function, with names in the place of marks and long lines folded."""
        named = emitter.named("\n".join([signature, *lines]))
        body = [line for each in lines for line in fold(named(each))]
        head = ["@jax.jit"] * (self.backend == "jax")
        head += [f"def {name}({named(signature)}):", f'    """{doc}"""']
        return "\n".join([*head, *(f"    {line}" if line else "" for line in body)]) + "\n"


def _identifier(wanted: str) -> str:
    """Return a name of Python from any text: other characters become `_`."""
    found = "".join(each if each.isalnum() and each.isascii() else "_" for each in wanted.replace(MARK, "_"))
    return f"{PREFIX}{found}"


def _work(body: Iterable[Equation]) -> int:
    """Return a rough number of operations, which orders tasks."""
    found = 1
    for eqn in body:
        reduced = prod(dim.size for dim in OPS[eqn.op].layout_rule(eqn).reduced) if not eqn.regions else 1
        found += prod(dim.size for dim in eqn.results[0].type.dims) * reduced
    return found


def passes_of(
    local: PartFunction, given: Sequence[Value], made: Sequence[Value], name: str
) -> tuple[Function, Function | None]:
    """Cut a part into its passes. given, made: the part's operands and results, as values of the part's function.

    The forward pass also returns the values that the backward pass reads. The backward pass computes views and constants anew,
    and reads everything else from memory.
    """
    makers = {value: eqn for eqn in local.forward for value in eqn.results}
    results = tuple(local.gradients.values())
    backward_body = live_only(_function(name, (), local.backward, results)).body
    again, needed = _read_again(local, backward_body, makers)
    stored = tuple(value for value in needed if value in makers and value not in made)
    used = {value for eqn in local.forward for value in eqn.operands} | {*made}
    forward = _function(name, [v for v in given if v in used], local.forward, (*made, *stored))
    if not local.gradients:
        return forward, None
    read = (value for value in needed if value not in stored)
    arguments = (*read, *stored, *local.cotangents.values())
    return forward, _function(name, arguments, (*again, *backward_body), results)


def _read_again(
    local: PartFunction, after: Sequence[Equation], makers: Mapping[Value, Equation]
) -> tuple[list[Equation], list[Value]]:
    """Return the equations that the backward pass repeats, in order, and the other values that it reads."""
    backward_values = {value for eqn in after for value in eqn.results} | {*local.cotangents.values()}
    todo = [v for eqn in after for v in eqn.operands if v not in backward_values]
    todo += [value for value in local.gradients.values() if value not in backward_values]
    again: set[Equation] = set()
    needed: dict[Value, None] = {}
    while todo:
        value = todo.pop()
        eqn = makers.get(value)
        if eqn is None or storage(eqn) not in ("view", "made"):
            needed[value] = None
        elif eqn not in again:
            again.add(eqn)
            todo += eqn.operands
    part_arguments = (value for value in local.values.values() if value not in makers)
    ordered = [value for value in (*part_arguments, *makers) if value in needed]
    return [eqn for eqn in local.forward if eqn in again], ordered


def _function(
    name: str, arguments: Iterable[Value], body: tuple[Equation, ...], results: Sequence[Value]
) -> Function:
    outputs = tuple(Output(value.name, value) for value in results)
    return Function(name, tuple(Argument(value, "input") for value in arguments), body, outputs)
