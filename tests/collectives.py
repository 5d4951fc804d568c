"""Every collective of the paper-size Transformer under its two-dimensional layout, with the reason for it: `docs/collectives.md`.

A collective without a reason here fails the test of that document.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.ops.collectives import KIND_OF, axes_of
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "transformer_lm.mtf"

REASONS = {
    ("layer", "forward", "return einsum(a, wo -> [..., length, d_model])"): (
        "sums over heads, which are split: each processor has the sum over its own. The residual stream needs all, as the "
        "normalization after it is not linear"
    ),
    ("layer", "forward", "return einsum(h, wo -> [..., d_model])"): "the same for the sum over `d_ff`",
    ("layer", "backward", "h = relu(einsum(x, wi -> [..., d_ff]))"): (
        "the gradient of what goes into the feed-forward layer sums over `d_ff`; attention's backward pass, split over heads, "
        "needs all of it"
    ),
    (
        "layer",
        "backward",
        "return centred * rsqrt(mean(square(centred), over = d) + epsilon) * scale + bias",
    ): (
        "the gradients of queries, keys and values each sum over heads. They are added up before one all-reduce"
    ),
    ("once", "forward", "return gather(table, ids, vocab)"): (
        "a processor finds the rows of its own part of the vocabulary, and 0 for others"
    ),
    ("once", "forward", "largest = stop_gradient(max(x, over = d))"): (
        "the largest logit, so that exponentials do not overflow"
    ),
    ("once", "forward", "total = sum(exp(shifted), over = vocab)"): (
        "sums over the vocabulary: of exponentials, and the logit of the right token"
    ),
    ("once", "backward", "return einsum(x, w -> [..., d_out])"): (
        "the gradient of what the logits are made from sums over the vocabulary"
    ),
    ("once", "forward", "return mean(nn.cross_entropy(logits, targets, smoothing = smoothing))"): (
        "the loss is a mean over the batch"
    ),
}
"""The reason for each collective, by its place, stage and source line."""


@attrs.frozen
class Collective:
    """A collective. `where` is `layer` or `once`; elements and bytes count one processor's operands."""

    where: str
    stage: str
    kind: str
    axes: tuple[str, ...]
    elements: int
    bytes: int
    line: str
    place: str

    @property
    def is_gradient(self) -> bool:
        """Return True if the collective sums gradients of parameters over the batch."""
        return self.stage == "backward" and "rows" in self.axes


@cache
def program() -> Program:
    """Return one processor's training step at the size of the paper, on 16 x 32 processors."""
    selection = choose(EXAMPLE.read_text("utf-8"), str(EXAMPLE), Choice(None, "hybrid", None, {}))
    return selection.cases[0].lower(selection.program)


@cache
def collectives() -> tuple[Collective, ...]:
    return tuple(_found(program().function("step").body, "once"))


def _found(body: tuple[Equation, ...], where: str) -> Iterator[Collective]:
    for eqn in body:
        if eqn.op in KIND_OF:
            yield _described(eqn, where)
        for region in eqn.regions:
            yield from _found(region.body, "layer")


def _described(eqn: Equation, where: str) -> Collective:
    mesh, span = program().placed_on, eqn.span
    assert span is not None, "every equation of the example has a place"
    size = sum(value.type.local_size(mesh) for value in eqn.operands)
    bytes = sum(value.type.local_bytes(mesh) for value in eqn.operands)
    line = Path(span.file).read_text("utf-8").splitlines()[span.line - 1].strip()
    place = span.seen_from(str(EXAMPLE))
    return Collective(where, eqn.stage, KIND_OF[eqn.op], axes_of(eqn), size, bytes, line, place)


def amount(bytes: int) -> str:
    """Return an amount of bytes as `mtfc cost` prints it."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if bytes >= size:
            return f"{bytes / size:.4g} {unit}"
    return f"{bytes} B"


def _rows(header: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def _reasoned(where: str) -> str:
    chosen = (c for c in collectives() if c.where == where and c.stage != "update" and not c.is_gradient)
    rows = (
        (c.stage, f"{c.kind} {{{', '.join(c.axes)}}}", amount(c.bytes), f"`{c.line}`<br>{c.place}", _why(c))
        for c in chosen
    )
    return _rows(("pass", "collective", "one processor's", "line", "why"), rows)


def _why(collective: Collective) -> str:
    return REASONS[collective.where, collective.stage, collective.line]


def layer_table() -> str:
    return _reasoned("layer")


def once_table() -> str:
    return _reasoned("once")


def gradient_table() -> str:
    rows = (
        (f"{c.kind} {{{', '.join(c.axes)}}}", amount(c.bytes), f"`{c.line}`<br>{c.place}")
        for c in collectives()
        if c.is_gradient
    )
    return _rows(("collective", "one processor's", "line"), rows)


def update_table() -> str:
    counts = Counter((c.kind, c.axes, c.bytes) for c in collectives() if c.stage == "update")
    rows = (
        (count, f"{kind} {{{', '.join(axes)}}}", amount(bytes))
        for (kind, axes, bytes), count in sorted(counts.items(), key=lambda item: -item[0][2])
    )
    return _rows(("how many", "collective", "one processor's"), rows)


PARTS = {"layer": layer_table, "once": once_table, "gradients": gradient_table, "update": update_table}
"""The generated parts of the document."""
