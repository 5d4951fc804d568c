"""Terms: expressions, and facts about their values.

Every expression comes with its dims, its dtype and a bound of its values, so that a generator keeps to the type rules and to
numbers that floating point handles well. A term also says if its values are *exact*: inputs are small multiples of 1/4, and sums
and products of such numbers have no rounding as long as they fit in the significand. Ops that jump (a comparison, the gradient of
relu) are applied to exact values alone, so no order of summation can change on which side of a jump a value is.
"""

from collections.abc import Sequence
from math import ceil, log2, prod

import attrs

from mtfc.compiler.ir.types import Dim

Shape = tuple[Dim, ...]

SIGNIFICAND_BITS = 23


@attrs.frozen
class Term:
    """An expression: its text, type, a bound of its absolute values, and their grain.

    grain: the values are exact multiples of 2**-grain; None if they are rounded.
    """

    text: str
    dims: Shape
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
        return volume(self.dims)

    def rounded(self, text: str, bound: float) -> "Term":
        return attrs.evolve(self, text=text, bound=bound, grain=None)


def _is_call(text: str) -> bool:
    """Return True if the text is one call or one parenthesis: `f(a) + g(b)` is not."""
    if not text.endswith(")"):
        return False
    depth = 0
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and character == ")":
            return i == len(text) - 1 and text[: text.index("(")].replace("_", "").isalnum()
    return False


def volume(dims: Sequence[Dim]) -> int:
    """Return the number of elements of a tensor."""
    return prod(dim.size for dim in dims)


def dims_text(dims: Sequence[Dim]) -> str:
    return "[" + ", ".join(dim.name for dim in dims) + "]"


def tame(term: Term, limit: float) -> Term:
    """Scale the term by a power of two if its bound exceeds `limit`; clamp integers."""
    if term.bound <= limit:
        return term
    if term.dtype == "i32":
        return clamped(term, limit)
    steps = ceil(log2(term.bound / limit))
    grain = None if term.grain is None else term.grain + steps
    return attrs.evolve(
        term, text=f"{2.0**-steps!r} * {term.operand}", bound=term.bound * 2.0**-steps, grain=grain
    )


def clamped(term: Term, limit: float) -> Term:
    """Clamp the term to a whole number; exact values stay exact."""
    k = int(limit)
    if term.bound <= k:
        return term
    sign = "" if term.dtype == "i32" else ".0"
    text = f"minimum(maximum({term.text}, -{k}{sign}), {k}{sign})"
    return attrs.evolve(term, text=text, bound=float(k))


def settled(term: Term, other: Term, like: Term) -> Term:
    """Return the term with values as those of `like`: no larger, and as coarse if `like` is exact.

    A rounded term cannot be made exact: `other` stands in for it.
    """
    if like.grain is None or term.dtype == "i32":
        return tame(term, like.bound)
    if term.grain is None:
        return other
    if term.grain > like.grain:
        term = attrs.evolve(term, text=f"floor({term.text})", bound=term.bound + 1, grain=0)
    return clamped(term, like.bound)
