"""The options of a program, and the scope of the block that is being generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim, Mesh
from tests.generators.statements import Assign, Block, Call, Param, Seen, Statement, Variable
from tests.generators.terms import Shape, Term

if TYPE_CHECKING:
    from tests.generators.functions import Known

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

MAX_ELEMENTS = 1500
MAX_DEPTH = 2


@attrs.frozen
class Options:
    """The kind of programs to generate.

    reals: dtypes of floating-point inputs.
    rough: some programs compute in bf16.
    slopes: every gradient is the slope of the computed function, so there is no `stop_gradient` and no cast to fewer bits.
    constants: tensors may be made of constants, with which a compiler can compute.
    jumps: there may be ops that jump, for which sums of arrays must be exact.
    spatial: most ops work along a dimension.
    structured: there are many loops and functions.
    counted: outer loops go along a dim that nothing else depends on.
    accumulated: every model trains in several micro-batches, under layouts that may store parameters split otherwise.
    training: the flag `training`, which is true in training steps only, may be used.
    grouped: parameters may be updated in groups, which name them.
    statements, layouts: the largest numbers of each.
    """

    reals: tuple[str, ...] = ("f32", "f64")
    rough: bool = True
    slopes: bool = False
    constants: bool = True
    jumps: bool = True
    spatial: bool = False
    structured: bool = False
    counted: bool = False
    training: bool = True
    accumulated: bool = False
    grouped: bool = True
    statements: int = 8
    layouts: int = 2


@attrs.define
class Scope:
    """A block of statements under construction, and everything that it may use.

    real: the dtype of floating-point inputs.
    kinks: ops that jump may be used.
    family: number of the family of features to draw from.
    dims: the dims that may be named.
    functions, calls: those of the whole program.
    fixed: the dims of the file that a function may name.
    numbers: arguments that are no tensors.
    has_rest: tensors may have dims that `...` stands for.
    own: the variables that this block has bound, and may bind to anything else.
    carried: the carries of the block's loop, which keep their type.
    loops: the dims of the loops around. stacked: those along which parameters are stacked.
    inside: the number of functions around the block.
    long: terms with the dim of counted loops.
    depth: the nesting depth of the present expression.
    """

    mesh: Mesh
    real: str
    kinks: bool
    family: int
    options: Options
    dims: list[Dim]
    functions: list[Known] = attrs.field(factory=list)
    calls: dict[str, Call] = attrs.field(factory=dict)
    fixed: Shape = ()
    numbers: tuple[Term, ...] = ()
    has_rest: bool = False
    variables: dict[str, Term] = attrs.field(factory=dict)
    own: set[str] = attrs.field(factory=set)
    carried: set[str] = attrs.field(factory=set)
    block: Block = attrs.field(factory=Block)
    facts: Seen = attrs.field(factory=Seen)
    names: Counter[str] = attrs.field(factory=Counter)
    loops: Shape = ()
    stacked: Shape = ()
    inside: int = 0
    long: list[Term] = attrs.field(factory=list)
    depth: int = 0

    @property
    def terms(self) -> list[Term]:
        """Return the variables, newest first."""
        return list(reversed(self.variables.values()))

    @property
    def slid(self) -> set[Dim]:
        return self.facts.slid

    def fresh(self, prefix: str) -> str:
        """Return a name that this body does not have yet: `h0`, `h1` ..."""
        self.names[prefix] += 1
        return f"{prefix}{self.names[prefix] - 1}"

    def bind(self, name: str, term: Term) -> Term:
        """Bind `name` to the value of `term`."""
        self.variables.pop(name, None)
        self.variables[name] = attrs.evolve(term, text=name, grain=term.grain if self.kinks else None)
        if name not in self.carried:
            self.own.add(name)
        return self.variables[name]

    def carry(self, name: str, term: Term) -> None:
        """Bind the carries of the loop whose body this is."""
        self.carried.add(name)
        self.bind(name, term)

    def append(self, statement: Statement) -> None:
        self.block.statements.append(statement)

    def assign(self, name: str, term: Term) -> Term:
        """Append the statement `name = term`, and bind the name."""
        self.append(Assign((Variable(name, term.dims),), term.text))
        return self.bind(name, term)

    def parameter(self, name: str, dims: Shape, init: str = "normal(stddev = 0.5)") -> Term:
        """Declare a parameter in this block: multiples of 1/4 up to 2."""
        self.block.params.append(Param(name, self.real, dims, init))
        self.facts.owned.update((*self.stacked, *dims))
        return self.bind(name, self.seen(Term(name, dims, self.real, 2.0, 2)))

    def within(self, loop: Dim, stacked: bool) -> Scope:
        """Return the scope for the body of a loop."""
        return attrs.evolve(
            self,
            variables=dict(self.variables),
            own=set(),
            carried=set(),
            block=Block(),
            loops=(*self.loops, loop),
            stacked=(*self.stacked, loop) if stacked else self.stacked,
        )

    def seen(self, term: Term) -> Term:
        """Record that the program has a tensor with these dims."""
        self.facts.shapes[term.dims] = None
        return term

    def kept(self, term: Term, *operands: Term) -> Term:
        """Record a tensor, and the dims of the operands that it was reduced over."""
        self.facts.reduced.update({dim for operand in operands for dim in operand.dims} - set(term.dims))
        return self.seen(term)

    def is_real(self, term: Term) -> bool:
        return term.dtype == self.real

    def is_sharp(self, term: Term) -> bool:
        """Return True for numbers without rounding, to which ops that jump may be applied."""
        return term.dtype in (self.real, "i32") and (term.dtype == "i32" or (self.kinks and term.exact))

    def dim_of_size(self, draw: Draw[T], size: int, unlike: Sequence[Dim]) -> Dim:
        """Draw a dimension of the given size other than those of `unlike`: a declared one, or a new one."""
        known = [dim for dim in self.dims if dim.size == size and dim not in unlike]
        if known and draw(st.integers(0, 3)) < 3:  # type: ignore[arg-type]
            return draw(st.sampled_from(known))  # type: ignore[arg-type,return-value]
        return self.new_dim(size)

    def new_dim(self, size: int) -> Dim:
        """Declare a dim of the file, or in a function a local dim."""
        self.dims.append(Dim(self.fresh("t" if self.inside else "d"), size))
        return self.dims[-1]
