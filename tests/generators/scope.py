"""What is known about a program while it is being generated.

Every expression comes with its dims, its dtype and a bound on its values, so that a generator can stay inside the type rules and
inside numbers that floating point handles well. It also knows whether the values are *exact*: inputs are small multiples of 1/4,
and sums and products of such numbers carry no rounding as long as they fit in the significand. Ops that jump (a comparison, the
gradient of relu) are applied to exact values alone: there no order of summation can tip them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2, prod
from typing import TypeVar

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim, Mesh

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

SIGNIFICAND_BITS = 23
MAX_ELEMENTS = 1500
MAX_DEPTH = 2


@attrs.frozen
class Term:
    """An expression: its text, type, a bound on its absolute values, and their grain.

    grain: the values are multiples of 2**-grain, exactly; None once they are rounded.
    """

    text: str
    dims: tuple[Dim, ...]
    dtype: str
    bound: float = 1.0
    grain: int | None = 0

    def __attrs_post_init__(self) -> None:
        if (
            self.dtype != "i32"
            and self.grain is not None
            and self.bound * 2.0**self.grain >= 2.0**SIGNIFICAND_BITS
        ):
            object.__setattr__(self, "grain", None)

    @property
    def operand(self) -> str:
        """The text as an operand of an operator."""
        atom = self.text.isidentifier() or self.text.replace(".", "").isdigit() or _is_call(self.text)
        return self.text if atom else f"({self.text})"

    @property
    def exact(self) -> bool:
        return self.grain is not None

    @property
    def size(self) -> int:
        return prod(dim.size for dim in self.dims)

    def rounded(self, text: str, bound: float) -> Term:
        return attrs.evolve(self, text=text, bound=bound, grain=None)


def _is_call(text: str) -> bool:
    """Whether the text is one call or parenthesis: `f(a) + g(b)` is not."""
    if not text.endswith(")"):
        return False
    depth = 0
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and character == ")":
            return i == len(text) - 1 and text[: text.index("(")].replace("_", "").isalnum()
    return False


def dims_text(dims: Sequence[Dim]) -> str:
    return "[" + ", ".join(dim.name for dim in dims) + "]"


@attrs.frozen
class Options:
    """What kind of programs to generate.

    reals: dtypes of floating-point inputs. rough: whether some compute in bf16. slopes: whether every gradient must be the
    slope of what is computed, which `stop_gradient` and a cast to fewer bits are made to avoid. constants: whether tensors may
    be made of nothing, so that a compiler can compute with them. statements, layouts: how many at most.
    """

    reals: tuple[str, ...] = ("f32", "f64")
    rough: bool = True
    slopes: bool = False
    constants: bool = True
    statements: int = 10
    layouts: int = 3


@attrs.define
class Scope:
    """A program under construction.

    real: the dtype of floating-point inputs. shapes: the dims of every tensor so far. reduced: dims that
    something was summed over. history: the dims of every value that a
    name was ever bound to. kinks: whether ops that jump may be used. depth: how deeply nested the present expression is.
    """

    mesh: Mesh
    real: str
    kinks: bool
    options: Options
    dims: list[Dim]
    variables: dict[str, Term] = attrs.field(factory=dict)
    shapes: dict[tuple[Dim, ...], None] = attrs.field(factory=dict)
    reduced: set[Dim] = attrs.field(factory=set)
    history: dict[str, list[tuple[Dim, ...]]] = attrs.field(factory=dict)
    depth: int = 0

    @property
    def terms(self) -> list[Term]:
        """The variables, newest first."""
        return list(reversed(self.variables.values()))

    def bind(self, name: str, term: Term) -> Term:
        """Make `name` stand for the value of `term`."""
        self.variables.pop(name, None)
        self.history.setdefault(name, []).append(term.dims)
        self.variables[name] = attrs.evolve(term, text=name, grain=term.grain if self.kinks else None)
        return self.variables[name]

    def seen(self, term: Term) -> Term:
        """Remember that the program has a tensor with these dims."""
        self.shapes[term.dims] = None
        return term

    def kept(self, term: Term, *operands: Term) -> Term:
        """Remember a tensor, and the dims of the operands that it was reduced over."""
        self.reduced.update({dim for operand in operands for dim in operand.dims} - set(term.dims))
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
        self.dims.append(Dim(f"d{len(self.dims)}", size))
        return self.dims[-1]


def tame(term: Term, limit: float) -> Term:
    """The term, scaled by a power of two (integers: clamped) where its bound exceeds `limit`."""
    if term.bound <= limit:
        return term
    if term.dtype == "i32":
        k = int(limit)
        return attrs.evolve(term, text=f"minimum(maximum({term.text}, -{k}), {k})", bound=float(k))
    steps = ceil(log2(term.bound / limit))
    grain = None if term.grain is None else term.grain + steps
    return attrs.evolve(
        term, text=f"{2.0**-steps!r} * {term.operand}", bound=term.bound * 2.0**-steps, grain=grain
    )
