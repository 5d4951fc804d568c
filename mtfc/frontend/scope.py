"""What the parts of the elaborator share: the declared dimensions, and how a name that is not found is reported.

An error is reported where it is found and the thing that failed becomes None, which every user of it passes on in silence: one
mistake gives one diagnostic. For the same reason a name that stands in a stretch of text that did not parse is taken to be
declared there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from mtfc.compiler.diagnostics import Diagnostics, Label, Span, nearest
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, TensorType
from mtfc.frontend import ast

MAX_DIMS = 32
"""Dimensions of one tensor or of one einsum: NumPy has no more, and an einsum must find a letter for each."""

MAX_COMPARISONS = 20_000
"""Names that are compared, in all, with names that are not found: about a second."""


class Scope:
    """The declarations of one file, and the diagnostics about it.

    `dims` maps to None where a declaration has failed. `places` says where each dimension is declared. `doubtful` are the
    names in stretches that did not parse.
    """

    def __init__(self, diagnostics: Diagnostics, doubtful: Collection[str] = ()) -> None:
        self.diagnostics = diagnostics
        self.doubtful = doubtful
        self._comparisons = MAX_COMPARISONS
        self.dims: dict[str, Dim | None] = {}
        self.places: dict[str, Span] = {}
        self.models: set[str] = set()
        self.functions: set[str] = set()
        self.modules: set[str] = set()

    def error(
        self, code: str, message: str, span: Span, labels: Iterable[Label] = (), help: str | None = None
    ) -> None:
        self.diagnostics.add(code, message, span, labels, help)

    def unknown(
        self,
        code: str,
        message: str,
        name: ast.Name | ast.Path,
        known: Collection[str],
        help: str | None = None,
    ) -> None:
        """Report that `name` is not among the `known`, with the nearest of them; `help` is for when none is near."""
        if name.text in self.doubtful:
            return
        near = self._nearest(name.text, known)
        advice = f"did you mean `{near}`?" if near else help or listing(known)
        self.error(code, message, name.span, help=advice)

    def _nearest(self, name: str, known: Collection[str]) -> str | None:
        """Nobody reads the suggestions of a thousand errors, and each takes time to find."""
        self._comparisons -= len(known)
        return nearest(name, known) if self._comparisons >= 0 else None

    def declare(self, what: str, name: ast.Name, places: dict[str, Span]) -> bool:
        """Note where `name` is declared; False, and an error, when it was before."""
        if name.text not in places:
            places[name.text] = name.span
            return True
        label = Label(places[name.text], "first declared here")
        self.error("E102", f"{what} `{name.text}` is declared twice", name.span, [label])
        return False

    def dim(self, name: ast.Name, code: str = "E103") -> Dim | None:
        if name.text not in self.dims:
            self.unknown(code, f"unknown dimension `{name.text}`", name, self.dims)
            return None
        return self.dims[name.text]

    def dim_list(self, names: Iterable[ast.Name | ast.Ellipsis], span: Span) -> tuple[Dim, ...] | None:
        """The dimensions of one tensor, each once."""
        plain = [name for name in names if isinstance(name, ast.Name)]
        ellipses = [name for name in names if isinstance(name, ast.Ellipsis)]
        for ellipsis in ellipses:
            self.error("E204", "`...` belongs in the signature of a function", ellipsis.span)
        dims = [self.dim(name) for name in plain]
        found = tuple(dim for dim in dims if dim is not None)
        if ellipses or self._repeats(plain) or len(found) < len(dims):
            return None
        return found if self.few_enough(found, span) else None

    def few_enough(self, dims: Collection[Dim], span: Span) -> bool:
        if len(dims) > MAX_DIMS:
            self.error("E212", f"{len(dims)} dimensions, and at most {MAX_DIMS} are possible", span)
        return len(dims) <= MAX_DIMS

    def _repeats(self, names: Collection[ast.Name]) -> bool:
        repeated = [name for name, count in Counter(name.text for name in names).items() if count > 1]
        for text in repeated:
            first, second, *_ = (name for name in names if name.text == text)
            label = Label(first.span, "it is already here")
            help = "a tensor has each dimension once; give one a name of its own with `dim` and `rename`"
            self.error("E210", f"dimension `{text}` stands twice in one tensor", second.span, [label], help)
        return bool(repeated)

    def dtype(self, name: ast.Name) -> str | None:
        if name.text in ITEM_BYTES:
            return name.text
        self.unknown("E211", f"unknown dtype `{name.text}`", name, ITEM_BYTES)
        return None

    def type(self, type: ast.Type) -> TensorType | None:
        """`[batch, io]` is `f32[batch, io]`."""
        dtype = self.dtype(type.dtype) if type.dtype else "f32"
        dims = self.dim_list(type.dims, type.span)
        return None if dtype is None or dims is None else TensorType(dtype, dims)


def listing(names: Collection[str], most: int = 8) -> str | None:
    """`one of: a, b, c`, where there are few enough to be read."""
    return f"one of: {', '.join(sorted(names))}" if 0 < len(names) <= most else None


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
