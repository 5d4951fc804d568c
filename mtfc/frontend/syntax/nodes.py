"""The nodes of expressions, and what all nodes have in common: `ast.py` has the others, and names these too."""

from __future__ import annotations

from typing import Literal

import attrs

from mtfc.compiler.diagnostics import Span

UnaryOp = Literal["-", "not"]
BinaryOp = Literal["+", "-", "*", "/", "//", "@", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or"]


@attrs.frozen
class Node:
    """Anything that stands somewhere in the source."""

    span: Span = attrs.field(eq=False)


OPTION = "<--set>"
"""The file of nodes that come from `--set`: see `overrides.py`."""


def is_override(node: Node) -> bool:
    """True if `--set` put this node into the tree."""
    return node.span.file == OPTION


# Expressions


@attrs.frozen
class Int(Node):
    """`64`"""

    value: int


@attrs.frozen
class Float(Node):
    """`0.1`, `1e-3`: finite."""

    value: float


@attrs.frozen
class Bool(Node):
    """`true`, `false`"""

    value: bool


@attrs.frozen
class Name(Node):
    """A plain name, whether declared here or used."""

    text: str


@attrs.frozen
class Path(Node):
    """A name dotted through modules or scopes: `nn.softmax` is `("nn", "softmax")`."""

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return ".".join(self.parts)


DimName = Name | Path
"""A dimension of this file, or of a module or function: `common.batch`."""


@attrs.frozen
class Unary(Node):
    op: UnaryOp
    operand: Expr


@attrs.frozen
class Binary(Node):
    """Arithmetic, comparison or logic. Comparisons do not chain."""

    op: BinaryOp
    left: Expr
    right: Expr


@attrs.frozen
class Ellipsis(Node):
    """`...` among dims: any further dims, the same ones wherever it appears in one signature."""


@attrs.frozen
class DimList(Node):
    """`[batch, io]` or `[..., d_out]` as an argument."""

    dims: tuple[DimName | Ellipsis, ...]


@attrs.frozen
class Tuple(Node):
    """`(1, 1)` as an argument."""

    items: tuple[Expr, ...]


@attrs.frozen
class Arrow(Node):
    """`source -> target` as an argument: `length -> memory`, `height -> [out_h, k_h]`, or `x * w -> [batch]`.

    The first two map a dimension, the last states the result's dims: `f(a -> [b])` can be either, depending on `f`.
    """

    source: Expr
    target: DimName | DimList


@attrs.frozen
class Keyword(Node):
    """`over = [hidden]`"""

    name: Name
    value: Expr | DimList | Tuple


@attrs.frozen
class DimBinding(Node):
    """`d_out = d_ff` between a call's square brackets."""

    generic: Name
    dim: DimName


@attrs.frozen
class Call(Node):
    """`function[bindings](arguments, keywords) as scope`"""

    function: Name | Path
    bindings: tuple[DimBinding, ...]
    arguments: tuple[Argument, ...]
    keywords: tuple[Keyword, ...]
    scope: Name | None

    def split_result(self) -> tuple[tuple[Argument, ...], DimList | None]:
        """The arguments and the result's dims, reading a last `x -> [dims]` as argument `x` and result `[dims]`."""
        last = self.arguments[-1] if self.arguments else None
        if isinstance(last, Arrow) and isinstance(last.target, DimList):
            return (*self.arguments[:-1], last.source), last.target
        return self.arguments, None


Expr = Int | Float | Bool | Name | Path | Unary | Binary | Call
Argument = Expr | DimList | Tuple | Arrow
