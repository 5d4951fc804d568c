"""`window`: the sliding windows of one dimension; and `fold`, its transpose.

A convolution is an einsum of windows and a filter; a pooling is a `max` over windows. Windows of several dimensions take one
`window` for each. Element k of window o is element o * stride + k * dilation - before of the source, or a constant if that lies
outside. `fold` adds up all elements of windows at the places where they come from. Each op is the other's gradient.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.attributes import DIM, INT, Attribute, Stated
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.halos import NeededRange, needed_range, take_range
from mtfc.compiler.ir.opdef import (
    Attrs,
    BlockRewriter,
    Bridge,
    Code,
    LayoutRule,
    OpError,
    Shard,
    flops_per_operand,
)
from mtfc.compiler.ir.ops.creation import VALUE, check_value, literal
from mtfc.compiler.ir.ops.elementwise import NUMBERS, check_dtypes
from mtfc.compiler.ir.ops.structure import linear_if_zero, need, structural
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.records import frozen


@frozen(kw_only=True)
class Geometry:
    """The placement of `out` windows of `kernel` elements each on the dimension `source`. stride: the distance of windows.

    dilation: the distance of elements in a window. before, after: the padding at both ends.
    """

    source: Dim
    out: Dim
    kernel: Dim
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def extent(self) -> int:
        """Elements of the source from a window's first element to its last."""
        return self.dilation * (self.kernel.size - 1) + 1

    @property
    def room(self) -> int:
        """The number of windows that fit."""
        return (self.source.size + self.before + self.after - self.extent) // self.stride + 1

    @property
    def share(self) -> float:
        """A lower bound of the part of the source that lies in windows.

        Without gaps, windows cover all elements between their ends. With gaps, this counts one element of each window.
        """
        end = self.stride * (self.out.size - 1) + self.extent - self.before
        if self.dilation == 1 and self.extent >= self.stride:
            return min(end, self.source.size) / self.source.size
        return max(map(self._seen, range(self.kernel.size))) / self.source.size

    def _seen(self, k: int) -> int:
        """Return the number of elements of the source that are element k of a window."""
        first = k * self.dilation - self.before
        return len(
            range(
                first % self.stride if first < 0 else first,
                min(self.source.size, first + self.stride * self.out.size),
                self.stride,
            )
        )

    @property
    def is_local(self) -> bool:
        """True if no window reaches over a border of shards, for any number of shards."""
        is_even = self.before == 0 and self.stride * self.out.size == self.source.size
        return is_even and self.extent <= self.stride


WINDOW_ATTRIBUTES: Stated = (
    *(Attribute(name, DIM) for name in ("source", "out", "kernel")),
    *(Attribute(name, INT) for name in ("stride", "before", "after", "dilation")),
)
"""The attributes of a `fold`, the fields of `Geometry`."""


def geometry(attributes: Attrs) -> Geometry:
    found: dict[str, Any] = {field.name: attributes[field.name] for field in attrs.fields(Geometry)}
    return Geometry(**found)


def window_attrs(g: Geometry, value: float | int | bool) -> dict[str, Any]:
    """Return the attributes of a `window`."""
    return {**attrs.asdict(g, recurse=False), "value": value}


def _check(g: Geometry) -> None:
    """Refuse windows with a wrong stride, dilation or padding, and an output of another size than the number of windows."""
    if g.stride < 1 or g.dilation < 1:
        raise OpError(f"stride = {g.stride}, dilation = {g.dilation}: both count from 1")
    if g.before < 0 or g.after < 0:
        raise OpError(f"padding = ({g.before}, {g.after}): both count from 0", "take a part with `slice`")
    if g.room < 1:
        raise OpError(
            f"a window of `{g.kernel.name}` spans {g.extent} elements, and `{g.source.name}` has"
            f" {g.source.size + g.before + g.after} with its padding"
        )
    if g.out.size != g.room:
        raise OpError(
            f"`{g.source.name}` (size {g.source.size}) has {g.room} windows, and `{g.out.name}` has size"
            f" {g.out.size}",
            f"windows of {g.extent} elements, {g.stride} apart, on {g.source.size} + {g.before} + {g.after}: write"
            f" `dim {g.out.name} = {g.room}`",
        )


def _with_dims(type: TensorType, dims: Sequence[Dim]) -> tuple[TensorType]:
    """Return the type with other dimensions. Raises `OpError` for a name that comes twice."""
    if len(set(dims)) != len(dims):
        raise OpError(f"the result would have a dimension twice: [{', '.join(dim.name for dim in dims)}]")
    return (TensorType(type.dtype, tuple(dims)),)


def _window_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """The dimensions `out` and `kernel` take the place of the source."""
    g = geometry(attributes)
    need(types[0], g.source)
    check_value(VALUE.of(attributes), types[0].dtype)
    _check(g)
    replaced = ((g.out, g.kernel) if dim == g.source else (dim,) for dim in types[0].dims)
    return _with_dims(types[0], [dim for dims in replaced for dim in dims])


def _fold_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """The source takes the place of `out`, and `kernel` goes."""
    check_dtypes(types, NUMBERS)
    g = geometry(attributes)
    need(types[0], g.out)
    need(types[0], g.kernel)
    _check(g)
    kept = (dim for dim in types[0].dims if dim != g.kernel)
    return _with_dims(types[0], [g.source if dim == g.out else dim for dim in kept])


def _window_rule(eqn: Equation) -> LayoutRule:
    """Gather the source, and keep windows and their elements whole; only the bridge lets source and windows be split."""
    g = geometry(eqn.attrs)
    bridge = Bridge(g.source.name, g.out.name, g.share, g.is_local)
    return LayoutRule({g.source.name: None}, frozenset({g.out.name, g.kernel.name}), bridge=bridge)


def _fold_rule(eqn: Equation) -> LayoutRule:
    """Gather windows and their elements, and keep the result whole, but for the bridge: see `_window_rule`."""
    g = geometry(eqn.attrs)
    bridge = Bridge(g.out.name, g.source.name, g.share, g.is_local)
    return LayoutRule({g.out.name: None, g.kernel.name: None}, frozenset({g.source.name}), bridge=bridge)


def _window(shard: Shard, x: Any) -> Any:
    """Gather the elements of all windows of a shard: [.., window, element of the window, ..]."""
    np, g = shard.np, geometry(shard.eqn.attrs)
    axis = shard.eqn.operands[0].type.names.index(g.source.name)
    padding = [(0, 0)] * axis + [(g.before, g.after)] + [(0, 0)] * (x.ndim - axis - 1)
    padded = np.pad(x, padding, constant_values=np.full((), shard.eqn.attrs["value"], x.dtype))
    first = g.stride * np.arange(g.out.size)
    return padded.take(first[:, None] + g.dilation * np.arange(g.kernel.size), axis)


def _fold(shard: Shard, x: Any) -> Any:
    """Sum 16-bit numbers in 32 bits."""
    np, g, names = shard.np, geometry(shard.eqn.attrs), shard.eqn.operands[0].type.names
    windows = np.moveaxis(x, (names.index(g.out.name), names.index(g.kernel.name)), (0, 1))
    wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
    total = np.zeros((g.before + g.source.size + g.after, *windows.shape[2:]), wide)
    for o in range(g.out.size):
        for k in range(g.kernel.size):
            total[o * g.stride + k * g.dilation] += windows[o, k]
    inside = total[g.before : g.before + g.source.size].astype(x.dtype)
    return np.moveaxis(inside, 0, shard.eqn.result.type.names.index(g.source.name))


def _window_text(code: Code) -> str:
    """Call `window`, a function of both preludes."""
    g, value = geometry(code.eqn.attrs), literal(code.eqn.attrs["value"])
    numbers = f"stride={g.stride}, padding=({g.before}, {g.after}), dilation={g.dilation}, value={value}"
    return f"window({code.args[0]}, {code.axis(0, g.source.name)}, {g.kernel.size}, {numbers})"


def _fold_text(code: Code) -> str:
    """Call `fold`, a function of both preludes."""
    g = geometry(code.eqn.attrs)
    numbers = f"stride={g.stride}, before={g.before}, dilation={g.dilation}"
    axes = f"{code.axis(0, g.out.name)}, {code.axis(0, g.kernel.name)}"
    return f"fold({code.args[0]}, {axes}, {g.source.size}, {numbers})"


def _chain(b: BlockRewriter, eqn: Equation) -> list[Equation]:
    """Return the chain of equations of the same op that ends with `eqn`, each along dimensions of its own.

    All halos, which include padding, are made before any windows. A `window` whose dimension is not split pads later, when it
    makes its windows. So the chain ends before such a `window` if the others pad with another value.
    """
    chain, own = [eqn], _made_of(eqn)
    while (inner := b.defined(chain[0].operands[0])) and inner.op == eqn.op:
        value = None if _needed(b, inner) else _padding(inner)
        if own & _makes(inner) or (value is not None and {*map(_padding, chain)} - {None, value}):
            break
        chain.insert(0, inner)
        own |= _made_of(inner)
    return chain


def _padding(eqn: Equation) -> Any:
    """Return the value that pads the windows; None if nothing does."""
    g = geometry(eqn.attrs)
    return eqn.attrs["value"] if eqn.op == "window" and (g.before or g.after) else None


def _made_of(eqn: Equation) -> set[Dim]:
    g = geometry(eqn.attrs)
    return {g.source} if eqn.op == "window" else {g.out, g.kernel}


def _makes(eqn: Equation) -> set[Dim]:
    g = geometry(eqn.attrs)
    return {g.out, g.kernel} if eqn.op == "window" else {g.source}


def _needed(b: BlockRewriter, eqn: Equation) -> NeededRange | None:
    g = geometry(eqn.attrs)
    return needed_range(b, eqn, g.source, g.out, -g.before, g.stride, g.extent)


def _windows(b: BlockRewriter, chain: Sequence[Equation], x: Value, fill: float | None = None) -> Value:
    """Make all windows of `x`. Halos come first, along every dimension, so that elements are sent and not windows."""
    found: list[tuple[Geometry, Any, NeededRange | None]] = []
    for eqn in chain:
        g = geometry(eqn.attrs)
        value: Any = eqn.attrs["value"] if fill is None else fill
        needed = _needed(b, eqn)
        if needed is not None:
            x, dim = take_range(b, x, needed, value)
            out = b.part(g.out, g.out.size // needed.split.blocks.size)
            g = attrs.evolve(g, source=dim, out=out, before=0, after=0)
        found.append((g, value, needed))
    for (g, value, needed), eqn in zip(found, chain, strict=True):
        x = b.build("window", x, **window_attrs(g, value))
        if needed is not None:
            x = b.merged(x, needed.split.blocks, g.out, geometry(eqn.attrs).out)
    return x


def _distribute_window(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    chain = _chain(b, eqn)
    return (_windows(b, chain, chain[0].operands[0]),) if _needed(b, eqn) else None


def _distribute_fold(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """The transpose of windows: sums beyond a block's ends go to the neighbouring blocks, which add them."""
    chain = _chain(b, eqn)
    if not any(_needed(b, each) for each in chain):
        return None

    def windows(b: BlockRewriter, x: Value) -> Value:
        return _windows(b, chain[::-1], x, fill=0)

    return (b.transposed(windows, eqn.result.type, chain[0].operands[0]),)


WINDOW = structural(
    name="window", attributes=(*WINDOW_ATTRIBUTES, VALUE), infer=_window_infer, layout_rule=_window_rule,
    # padding is constant, so `fold` drops its cotangents
    gradient=lambda b, e, g: (b("fold", g[0], **attrs.asdict(geometry(e.attrs), recurse=False)),),
    evaluate=_window, numpy=_window_text,
    doc="The sliding windows of a dimension: element k of window o is element o * stride + k * dilation of the padded x.",
    linear=linear_if_zero, distribute=_distribute_window, traits=frozenset({"window"}),
)  # fmt: skip

FOLD = structural(
    name="fold", attributes=WINDOW_ATTRIBUTES, infer=_fold_infer, layout_rule=_fold_rule,
    gradient=lambda b, e, g: (b("window", g[0], **window_attrs(geometry(e.attrs), 0.0)),),
    evaluate=_fold, numpy=_fold_text, flops=flops_per_operand, storage="kernel", distribute=_distribute_fold,
    doc="The elements of sliding windows added up where they came from: the gradient of `window`.",
    traits=frozenset({"fold"}),
)  # fmt: skip

OPS = (WINDOW, FOLD)
