"""What is known about a program, and about the place in it that is being written, while it is being generated."""

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
    """What kind of programs to generate.

    reals: dtypes of floating-point inputs. rough: whether some compute in bf16. slopes: whether every gradient must be the
    slope of what is computed, which `stop_gradient` and a cast to fewer bits are made to avoid. constants: whether tensors may
    be made of nothing, so that a compiler can compute with them. jumps: whether there may be ops that jump, for which sums of
    arrays must be exact. spatial: whether ops that work along a dimension are to prevail. structured: whether there are to be
    many loops and functions. counted: whether outer loops are to go along a dim that nothing else depends on. accumulated:
    whether every model trains in several micro-batches, under layouts that may store parameters split otherwise. training:
    whether the flag of this name may be used, by which a step is something else than a forward pass. grouped: whether parameters
    may be updated in groups, which name them. statements, layouts: how many at most.
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
    """A block of statements under construction, and what can be used in it.

    real: the dtype of floating-point inputs. kinks: whether ops that jump may be used. family: number of the family of features
    to draw from. dims: those that may be named. functions, calls: of the whole program. fixed: the dims of the file that a
    function may name. numbers: arguments that are no tensors. has_rest: whether tensors may have dims that `...` stands for.
    own: the variables that this block has bound, and may bind to anything else. carried: those that its loop carries, and so
    keep their type. loops: the dims of the loops around, stacked: of those along which parameters are stacked. inside: how many
    functions the block is in. long: terms with the dim of loops that are counted. depth: how deeply nested the present
    expression is.
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
        """The variables, newest first."""
        return list(reversed(self.variables.values()))

    @property
    def slid(self) -> set[Dim]:
        return self.facts.slid

    def fresh(self, prefix: str) -> str:
        """A name that this body has nowhere else: `h0`, `h1` ..."""
        self.names[prefix] += 1
        return f"{prefix}{self.names[prefix] - 1}"

    def bind(self, name: str, term: Term) -> Term:
        """Make `name` stand for the value of `term`."""
        self.variables.pop(name, None)
        self.variables[name] = attrs.evolve(term, text=name, grain=term.grain if self.kinks else None)
        if name not in self.carried:
            self.own.add(name)
        return self.variables[name]

    def carry(self, name: str, term: Term) -> None:
        """Bind what the loop that this is the body of carries."""
        self.carried.add(name)
        self.bind(name, term)

    def append(self, statement: Statement) -> None:
        self.block.statements.append(statement)

    def assign(self, name: str, term: Term) -> Term:
        """The statement `name = term`, and what can be used from then on."""
        self.append(Assign((Variable(name, term.dims),), term.text))
        return self.bind(name, term)

    def parameter(self, name: str, dims: Shape, init: str = "normal(stddev = 0.5)") -> Term:
        """A parameter that is declared in this block: multiples of 1/4 up to 2."""
        self.block.params.append(Param(name, self.real, dims, init))
        self.facts.owned.update((*self.stacked, *dims))
        return self.bind(name, self.seen(Term(name, dims, self.real, 2.0, 2)))

    def within(self, loop: Dim, stacked: bool) -> Scope:
        """The body of a loop."""
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
        """Remember that the program has a tensor with these dims."""
        self.facts.shapes[term.dims] = None
        return term

    def kept(self, term: Term, *operands: Term) -> Term:
        """Remember a tensor, and the dims of the operands that it was reduced over."""
        self.facts.reduced.update({dim for operand in operands for dim in operand.dims} - set(term.dims))
        return self.seen(term)

    def is_real(self, term: Term) -> bool:
        return term.dtype == self.real

    def is_sharp(self, term: Term) -> bool:
        """Numbers without rounding: what ops that jump may be applied to."""
        return term.dtype in (self.real, "i32") and (term.dtype == "i32" or (self.kinks and term.exact))

    def dim_of_size(self, draw: Draw[T], size: int, unlike: Sequence[Dim]) -> Dim:
        """A dimension of the given size other than those of `unlike`: a declared one, or a new one."""
        known = [dim for dim in self.dims if dim.size == size and dim not in unlike]
        if known and draw(st.integers(0, 3)) < 3:  # type: ignore[arg-type]
            return draw(st.sampled_from(known))  # type: ignore[arg-type,return-value]
        return self.new_dim(size)

    def new_dim(self, size: int) -> Dim:
        """Of the file, or in a function one of its own."""
        self.dims.append(Dim(self.fresh("t" if self.inside else "d"), size))
        return self.dims[-1]
