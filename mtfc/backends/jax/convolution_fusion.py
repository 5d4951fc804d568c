"""The JAX text of one convolution and of one pooling, for dimensions in any number and order.

`lax.conv_general_dilated` takes one batch dimension N, one feature dimension C (in a filter: I and O) and spatial dimensions,
each at any position. Several dimensions with the same part are merged; a part without a dimension gets one of size 1. An array is
transposed only if the dimensions to merge are not adjacent.

Convolution fusion: one convolution or pooling for several equations with sliding windows.

An einsum of windows and a filter is one `lax.conv_general_dilated`, and so are both its gradients. A maximum over windows is one
`lax.reduce_window`. `PATTERNS` chooses the text of an equation by the equations that define its operands. An
equation that fits no pattern keeps the text of its op.

There may be a reshape between a window, or its transpose, and the einsum, if on one processor the reshape only adds or removes
dimensions of one element. Such reshapes cut split dimensions into blocks, and merge the blocks again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain
from math import prod
from typing import Any

import attrs

from mtfc.compiler.ir.builder import needed_for
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import map_regions
from mtfc.compiler.ir.opdef import Code, Trait
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import VALUE, literal
from mtfc.compiler.ir.ops.positions import BEFORE, SOURCE, STRIDE, TARGET
from mtfc.compiler.ir.ops.reductions import over
from mtfc.compiler.ir.ops.structure import reshape_groups
from mtfc.compiler.ir.ops.windows import Geometry, geometry
from mtfc.compiler.ir.types import Mesh

SPATIAL = "HWDTUVXYZ"
"""Letters for spatial dimensions, as in `dimension_numbers`."""

Sizes = Mapping[str, int]
"""Dimension -> its size on one device, in storage order."""

Parts = Mapping[str, Sequence[str]]
"""Letter -> the dimensions with that part, most major first."""


@attrs.frozen
class ConvArray:
    """An array of a convolution: its sizes, and the parts of its dimensions. A dimension without a part has size 1."""

    sizes: Sizes
    parts: Parts

    @property
    def spec(self) -> str:
        return letters(self.sizes, self.parts)


@attrs.frozen(kw_only=True)
class ConvAxis:
    """The geometry of a convolution along one spatial dimension.

    Element o of the result is the sum over k of x[o * stride + k * dilation - padding[0]] * filter[k]. There x is lhs with
    `spread` - 1 zeros between its elements and `padding[1]` zeros after them.
    """

    stride: int
    dilation: int
    spread: int
    padding: tuple[int, int]


@attrs.frozen(kw_only=True)
class Convolution:
    """A convolution of `lhs` with the filter `rhs`.

    groups: the number of groups of its features. flipped: True if the filter is reversed.
    """

    lhs: ConvArray
    rhs: ConvArray
    result: ConvArray
    axes: tuple[ConvAxis, ...]
    groups: int
    flipped: bool

    def text(self, code: Code) -> str:
        """Return the call. 16-bit numbers are summed in 32 bits."""
        narrow = code.eqn.result.type.dtype in ("bf16", "f16")
        operands = f"{gathered(code.args[0], self.lhs)}, {gathered(self._filter(code.args[1]), self.rhs)}"
        numbers = f"{self._numbers('stride')}, {self._numbers('padding')}"
        options = list(self._options()) + ["preferred_element_type=jnp.float32"] * narrow
        call = f"lax.conv_general_dilated({operands}, {numbers}, {', '.join(options)})"
        return scattered(call, self.result) + (f".astype({code.dtype})" if narrow else "")

    def _filter(self, text: str) -> str:
        """Return the filter, reversed along its spatial dimensions if the convolution is a transpose."""
        spatial = [name for letter in SPATIAL for name in self.rhs.parts.get(letter, ())]
        turned = tuple(
            i for i, name in enumerate(self.rhs.sizes) if name in spatial and self.rhs.sizes[name] > 1
        )
        return f"jnp.flip({text}, {turned})" if self.flipped and turned else text

    def _numbers(self, field: str) -> tuple[Any, ...]:
        """Return one number for each spatial dimension, in the order of the filter, as `lax` expects."""
        axes = sorted(zip(SPATIAL, self.axes, strict=False), key=lambda pair: self.rhs.spec.index(pair[0]))
        return tuple(getattr(axis, field) for _, axis in axes)

    def _options(self) -> Iterator[str]:
        """Yield the options of the convolution that differ from JAX's defaults."""
        spread, dilation = self._numbers("spread"), self._numbers("dilation")
        yield f'dimension_numbers=("{self.lhs.spec}", "{self.rhs.spec}", "{self.result.spec}")'
        if any(number > 1 for number in spread):
            yield f"lhs_dilation={spread}"
        if any(number > 1 for number in dilation):
            yield f"rhs_dilation={dilation}"
        if self.groups > 1:
            yield f"feature_group_count={self.groups}"


def letters(sizes: Sizes, parts: Parts) -> str:
    """Return the letters in the storage order of their dimensions. Letters without a dimension, of size 1, come last."""
    place = {name: i for i, name in enumerate(sizes)}
    return "".join(
        sorted(parts, key=lambda letter: min((place[n] for n in parts[letter]), default=len(place)))
    )


def in_order(array: ConvArray) -> list[str]:
    """Return the dimensions that have a part, in the order of the letters."""
    return [name for letter in array.spec for name in array.parts[letter]]


def _one_each(array: ConvArray) -> bool:
    return all(len(part) == 1 for part in array.parts.values()) and len(array.parts) == len(array.sizes)


def gathered(text: str, array: ConvArray) -> str:
    """Return the text of an array with one dimension per letter."""
    sizes, wanted = array.sizes, in_order(array)
    if [name for name in sizes if name in wanted] != wanted:
        order = [*(name for name in sizes if name not in wanted), *wanted]
        text = f"{text}.transpose{tuple(list(sizes).index(name) for name in order)}"
    if _one_each(array):
        return text
    return f"{text}.reshape{tuple(prod(sizes[n] for n in array.parts[letter]) for letter in array.spec)}"


def scattered(text: str, array: ConvArray) -> str:
    """Return the text of an array with its own dimensions, made from one with one dimension per letter."""
    sizes, found = array.sizes, in_order(array)
    wanted = [name for name in sizes if name in found]
    if found != wanted:
        text = f"{text}.reshape{tuple(sizes[name] for name in found)}"
        text = f"{text}.transpose{tuple(found.index(name) for name in wanted)}"
    return text if _one_each(array) else f"{text}.reshape{tuple(sizes.values())}"


@attrs.frozen(kw_only=True)
class PooledDim:
    """The pooling of one dimension of the operand: the size of a window, and the positions of the windows."""

    size: int = 1
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1
    value: object = None


IDENTITY = {
    ("sum", "f"): 0.0, ("max", "f"): float("-inf"), ("min", "f"): float("inf"),
    ("sum", "i"): 0, ("max", "i"): -(2**31), ("min", "i"): 2**31 - 1,
    ("sum", "u"): 0, ("max", "u"): 0, ("min", "u"): 2**32 - 1,
}  # fmt: skip
"""(reduction, kind of dtype) -> the neutral element."""

FUNCTIONS = {"sum": "lax.add", "max": "lax.max", "min": "lax.min"}


@attrs.frozen(kw_only=True)
class Pooling:
    """A reduction over sliding windows of several dimensions of an array.

    order: the dimensions in the order in which the program pads them. result: the sizes of the result. reshaped: True if the
    result of the call has other sizes, and is reshaped.
    """

    reduction: str
    dims: tuple[PooledDim, ...]
    order: tuple[int, ...]
    result: tuple[int, ...]
    reshaped: bool

    def text(self, code: Code) -> str:
        """Return the call. 16-bit numbers are summed in 32 bits."""
        dtype = code.eqn.result.type.dtype
        start = IDENTITY[self.reduction, "f" if "f" in dtype else dtype[0]]
        narrow = self.reduction == "sum" and dtype in ("bf16", "f16")
        neutral = all(dim.value == start for dim in self.dims if any(dim.padding))
        x = (code.args[0] if neutral else self._padded(code)) + (".astype(jnp.float32)" if narrow else "")
        numbers = [tuple(getattr(d, name) for d in self.dims) for name in ("size", "stride")]
        padding = tuple(d.padding if neutral else (0, 0) for d in self.dims)
        dilation = tuple(d.dilation for d in self.dims)
        options = f", window_dilation={dilation}" if any(d > 1 for d in dilation) else ""
        first = literal(start) if "f" in dtype else f"{code.dtype.replace('jnp.', 'np.')}({start})"
        what = f"{x}, {first}, {FUNCTIONS[self.reduction]}, {numbers[0]}, {numbers[1]}, {padding}{options}"
        shape = f".reshape{self.result}" if self.reshaped else ""
        return f"lax.reduce_window({what})" + shape + (f".astype({code.dtype})" if narrow else "")

    def pulled_back(self, code: Code, order: tuple[int, ...]) -> str:
        """Return the text of the operand's gradient, from that of the result.

        order: the axes of the result's gradient, in the order that the pooling gives them.
        """
        x, cotangent = code.args
        if order != tuple(range(len(order))):
            cotangent = f"{cotangent}.transpose{order}"
        pool = self.text(attrs.evolve(code, args=("x",)))
        return f"jax.vjp(lambda x: {pool}, {x})[1]({cotangent})[0]"

    def _padded(self, code: Code) -> str:
        """Return the operand with padding. The dimension that is padded last sets the corners."""
        text = code.args[0]
        for i in self.order:
            dim = self.dims[i]
            if any(dim.padding):
                config = tuple((*dim.padding, 0) if i == j else (0, 0, 0) for j in range(len(self.dims)))
                text = f"lax.pad({text}, {code.dtype}({literal(dim.value)}), {config})"
        return text


Text = Callable[[Code], str]
Names = Mapping[str, str]
Fused = tuple[tuple[Value, ...], Text]
"""The remaining operands of an equation, and its text."""


@attrs.frozen
class SlidingDim:
    """A dimension under sliding windows.

    source: the dimension in the tensor that windows slide over. out, kernel: the number of a window and the place in it, in the
    tensor of windows; None for a dimension of one element that is left out.
    """

    source: str
    out: str | None
    kernel: str | None
    geometry: Geometry
    value: object = 0.0
    spread: int = 1


@attrs.frozen
class WindowTensor:
    """A tensor of windows, and the tensor that the windows slide over. `value` is one of them; the caller knows the other.

    names: the other dimensions, from the tensor of windows to the tensor under them. A dimension that is in neither `names` nor
    `windows` has one element.
    """

    value: Value
    names: Names
    windows: tuple[SlidingDim, ...] = ()

    def covers(self, names: Sequence[str]) -> bool:
        """Return True if each of these dimensions of the tensor of windows is in `names` or `windows`."""
        return {*self.names, *chain(*((w.out, w.kernel) for w in self.windows))}.issuperset(names)


def _alone(value: Value) -> WindowTensor:
    return WindowTensor(value, {name: name for name in value.type.names})


@attrs.frozen
class FusionContext:
    """The context of a pattern: the equation of each value, local sizes, and the values that `jax.grad` may differentiate."""

    defined: Mapping[Value, Equation]
    mesh: Mesh
    differentiated: Set[Value] = frozenset()

    def sizes(self, value: Value) -> Sizes:
        return dict(zip(value.type.names, value.type.local_shape(self.mesh), strict=True))

    def has_trait(self, value: Value, *traits: Trait) -> bool:
        """Return True if an op with one of the traits gives the value."""
        return value in self.defined and has_trait(self.defined[value], *traits)

    def renaming(self, eqn: Equation) -> Names | None:
        """Return operand dimension -> result dimension, if on one processor the equation only renames and reorders dimensions.

        The equation may also add and remove dimensions of one element, which have no entry. Return None for any other equation.
        """
        x, y = eqn.operands[0], eqn.result
        here, there = self.sizes(x), self.sizes(y)
        if has_trait(eqn, "transpose"):
            return {name: name for name in here}
        found = {name: name for name in here if here[name] == there.get(name) == 1}
        for group in reshape_groups(x.type.dims, y.type.dims):
            *outer, old = (dim.name for dim in group.sources)
            *added, new = (dim.name for dim in group.targets)
            if here[old] != there[new] or any(here[d] > 1 for d in outer) or any(there[d] > 1 for d in added):
                return None
            found = {a: b for a, b in found.items() if a not in outer and b not in added} | {old: new}
        return found

    def base(self, value: Value) -> WindowTensor:
        """Return the tensor that the value holds windows of; the value itself if it holds no windows."""
        if not self.has_trait(value, "window", "reshape", "transpose"):
            return _alone(value)
        eqn = self.defined[value]
        inner = self.base(eqn.operands[0])
        if has_trait(eqn, "window"):
            return _slid(inner, eqn) or _slid(_alone(eqn.operands[0]), eqn) or _alone(value)
        new = self.renaming(eqn)
        if new is None:
            return _alone(value)
        return WindowTensor(
            inner.value, {new[a]: b for a, b in inner.names.items() if a in new}, _called(inner, new)
        )

    def unpadded(self, found: WindowTensor) -> WindowTensor:
        """Return windows of an array with zeros around or between its elements as windows of the array without them."""
        for w in found.windows if self.has_trait(found.value, "pad") else ():
            eqn = self.defined[found.value]
            given, source = eqn.attrs, SOURCE.of(eqn.attrs)
            if VALUE.of(given) == 0 and w.spread == 1 and w.source == TARGET.of(given).name:
                g = attrs.evolve(w.geometry, source=source, before=w.geometry.before + BEFORE.of(given))
                new = attrs.evolve(w, source=source.name, geometry=g, spread=STRIDE.of(given))
                windows = tuple(new if each is w else each for each in found.windows)
                return self.unpadded(WindowTensor(eqn.operands[0], found.names, windows))
        return found

    def folded(self, value: Value) -> WindowTensor | None:
        """Return the windows that the value adds up; None if the value is no such sum."""
        found = _alone(value)
        while self.has_trait(found.value, "fold", "reshape", "transpose"):
            eqn = self.defined[found.value]
            before = _slid(found, eqn) if has_trait(eqn, "fold") else self._before(found, eqn)
            if before is None:
                return None
            found = before
        return found if found.windows else None

    def _before(self, found: WindowTensor, eqn: Equation) -> WindowTensor | None:
        """Return the same windows before a renaming."""
        new = self.renaming(eqn)
        if new is None:
            return None
        old = {b: a for a, b in new.items()}
        names = {old[a]: b for a, b in found.names.items() if a in old}
        return WindowTensor(eqn.operands[0], names, _called(found, old))


def _called(found: WindowTensor, new: Names) -> tuple[SlidingDim, ...]:
    """Return the windows under new names. A dimension without a new name has one element."""
    return tuple(
        attrs.evolve(w, out=new.get(w.out or ""), kernel=new.get(w.kernel or "")) for w in found.windows
    )


def _slid(inner: WindowTensor, eqn: Equation) -> WindowTensor | None:
    """Return the windows with those of one more dimension: of a `window`, or those before a `fold`.

    Returns None if that dimension has windows already, or if another fold already adds it up.
    """
    g = geometry(eqn.attrs)
    if g.source.name not in inner.names:
        return None
    rest = {a: b for a, b in inner.names.items() if a != g.source.name}
    value = eqn.attrs.get("value", 0.0)
    sliding = SlidingDim(inner.names[g.source.name], g.out.name, g.kernel.name, g, value)
    made = eqn.operands[0] if has_trait(eqn, "fold") else inner.value
    return WindowTensor(made, rest, (*inner.windows, sliding))


# Convolutions

LETTERS: Mapping[tuple[bool, ...], tuple[str, str, str]] = {
    (True, False, True): ("N", "", "N"),
    (True, True, False): ("C", "I", ""),
    (False, True, True): ("", "O", "C"),
    (True, True, True): ("C", "O", "C"),  # groups of features are the major part of all three
}
"""(lhs has the dimension, rhs has it, result has it) -> its letter in each of them."""

Spatial = tuple[tuple[str | None, str | None, str | None], ConvAxis]
"""A spatial dimension: its names in lhs, rhs and result, and its geometry."""


def _planned(
    c: FusionContext,
    values: Sequence[Value],
    names: Sequence[Names],
    spatial: Sequence[Spatial],
    flipped: bool = False,
) -> Convolution | None:
    """Return the convolution of lhs and rhs to the result; None if a dimension fits none of the parts.

    names: for each of the three, the einsum's dimensions that are not spatial -> their names there.
    """
    parts: list[dict[str, list[str]]] = [{"N": [], "C": []}, {"I": [], "O": []}, {"N": [], "C": []}]
    shared = set.intersection(*map(set, names))
    for name in sorted(dict.fromkeys(chain(*names)), key=lambda name: name not in shared):
        letters = LETTERS.get(tuple(name in each for each in names))
        if letters is None:
            return None
        for part, letter, each in zip(parts, letters, names, strict=True):
            if letter:
                part[letter].append(each[name])
    for letter, (called, _) in zip(SPATIAL, spatial, strict=False):
        for part, own in zip(parts, called, strict=True):
            part[letter] = [own] if own is not None else []
    lhs, rhs, result = (ConvArray(c.sizes(value), part) for value, part in zip(values, parts, strict=True))
    groups = prod(lhs.sizes[names[0][name]] for name in shared)
    axes = tuple(axis for _, axis in spatial)
    return Convolution(lhs=lhs, rhs=rhs, result=result, axes=axes, groups=groups, flipped=flipped)


def _own(value: Value, spatial: set[str | None]) -> Names:
    """Return the dimensions that are not spatial, under their own names."""
    return {name: name for name in value.type.names if name not in spatial}


def _convolved(c: FusionContext, eqn: Equation) -> Fused | None:
    """Match einsum(windows of x, filter), a convolution of x. The gradient of the filter has the same form."""
    if len(eqn.operands) != 2:
        return None
    for windows, filter in (eqn.operands, eqn.operands[::-1]):
        found = c.unpadded(c.base(windows))
        spatial = [axis for w in found.windows if (axis := _correlated(w, filter, eqn.result))]
        if not spatial or len(spatial) < len(found.windows) or not found.covers(windows.type.names):
            continue
        gone = {name for w in found.windows for name in (w.out, w.kernel)}
        names = (found.names, _own(filter, gone), _own(eqn.result, gone))
        plan = _planned(c, (found.value, filter, eqn.result), names, spatial)
        if plan is not None:
            return (found.value, filter), plan.text
    return None


def _correlated(w: SlidingDim, filter: Value, result: Value) -> Spatial | None:
    """Return the geometry of a window, if the filter has one of its two dimensions and the einsum sums over it.

    The other of the two dimensions stays. They can be either way round.
    """
    g = w.geometry
    if (g.before or g.after) and w.value != 0:
        return None
    out, kernel = (w.out, g.out.size, g.stride), (w.kernel, g.kernel.size, g.dilation)
    for (stays, count, stride), (goes, size, dilation) in ((out, kernel), (kernel, out)):
        if _is_in(stays, result, filter) and _is_in(goes, filter, result):
            reach = stride * (count - 1) + dilation * (size - 1)
            padding = (g.before, reach - g.before - w.spread * (g.source.size - 1))
            axis = ConvAxis(stride=stride, dilation=dilation, spread=w.spread, padding=padding)
            return (w.source, goes, stays), axis
    return None


def _is_in(name: str | None, one: Value, other: Value) -> bool:
    """Return True if `one` has the dimension and `other` lacks it. A dimension of one element, None, is always right."""
    return name is None or (name in one.type.names and name not in other.type.names)


def _transposed(c: FusionContext, eqn: Equation) -> Fused | None:
    """Match fold(einsum(y, filter)), the transpose of a convolution.

    It is a convolution of y, with zeros between its elements, and the reversed filter.
    """
    found = c.folded(eqn.result)
    if found is None or not c.has_trait(found.value, "dot") or len(c.defined[found.value].operands) != 2:
        return None
    outs, kernels = {w.out for w in found.windows}, {w.kernel for w in found.windows}
    operands = c.defined[found.value].operands
    for y, filter in (operands, operands[::-1]):
        apart = all(_is_in(w.out, y, filter) and _is_in(w.kernel, filter, y) for w in found.windows)
        if apart and found.covers(found.value.type.names):
            names = (_own(y, outs), _own(filter, kernels), found.names)
            plan = _planned(
                c, (y, filter, eqn.result), names, [_spread(w) for w in found.windows], flipped=True
            )
            return ((y, filter), plan.text) if plan else None
    return None


def _spread(w: SlidingDim) -> Spatial:
    """Return the geometry of a transpose: the elements of y are as far apart as the windows."""
    g = w.geometry
    before = g.extent - 1 - g.before
    reach = g.stride * (g.out.size - 1) + 1
    padding = (before, g.source.size - reach - before + g.extent - 1)
    return (w.out, w.kernel, w.source), ConvAxis(
        stride=1, dilation=g.dilation, spread=g.stride, padding=padding
    )


# Pooling


def _pooled(c: FusionContext, eqn: Equation) -> Fused | None:
    """Match a reduction over all elements of each window, and over nothing else: a pooling of the array under the windows."""
    found = c.base(eqn.operands[0])
    if not has_trait(eqn, "sum") and eqn.result in c.differentiated and _is_dilated(found):
        return None
    plan = _pooling(c, eqn, found)
    return ((found.value,), plan.text) if plan else None


def _is_dilated(found: WindowTensor) -> bool:
    """Return True if a window is dilated: JAX has no derivative of a maximum over dilated windows."""
    return any(w.geometry.dilation > 1 for w in found.windows)


def _pooling(c: FusionContext, eqn: Equation, found: WindowTensor) -> Pooling | None:
    """Return a reduction of windows, or `is_argmax` of them, as a pooling of the array under the windows."""
    gone, kernels = {dim.name for dim in over(eqn)}, {w.kernel for w in found.windows}
    if not found.windows or kernels != gone or not found.covers(eqn.operands[0].type.names):
        return None
    base, sizes = {**found.names, **{w.out: w.source for w in found.windows if w.out}}, c.sizes(found.value)
    kept = [name for name in eqn.result.type.names if name not in gone]
    made = [base[name] for name in kept]
    if made != [name for name in sizes if name in made]:
        return None
    by_dim, result = {w.source: _pooled_dim(w) for w in found.windows}, c.sizes(eqn.result)
    return Pooling(
        reduction="max" if has_trait(eqn, "is_argmax") else OPS[eqn.op].layout_rule(eqn).reduction,
        dims=tuple(by_dim.get(name, PooledDim()) for name in sizes),
        order=tuple(list(sizes).index(w.source) for w in found.windows),
        result=tuple(result[name] for name in kept),
        reshaped=len(made) < len(sizes),
    )


def _pooled_back(c: FusionContext, eqn: Equation) -> Fused | None:
    """Match fold(mask(is_argmax(windows of x), g)), the gradient of a maximum over windows, which JAX has itself."""
    folded = c.folded(eqn.result)
    if folded is None or not c.has_trait(folded.value, "mask"):
        return None
    hit, g = c.defined[folded.value].operands
    if not c.has_trait(hit, "is_argmax"):
        return None
    windows, gone = c.defined[hit].operands[0], [dim.name for dim in over(c.defined[hit])]
    found = c.base(windows)
    x, plan = found.value, _pooling(c, c.defined[hit], found)
    if plan is None or not _same_windows(found, folded) or x.type.names != eqn.result.type.names:
        return None
    if _is_dilated(found):
        return None
    sources = [w.source for kernel in gone for w in found.windows if w.kernel == kernel]
    if sources != [name for name in x.type.names if name in sources]:
        return None  # `is_argmax` would look for the first in another order
    kept = [name for name in windows.type.names if name not in gone]
    if sorted(kept) != sorted(g.type.names) or x.type.varying(c.mesh) != g.type.varying(c.mesh):
        return None
    order = tuple(g.type.names.index(name) for name in kept)
    return (x, g), lambda code: plan.pulled_back(code, order)


def _same_windows(one: WindowTensor, other: WindowTensor) -> bool:
    """Return True if dimensions and windows are equal, apart from the padding's value."""
    known = {(w.source, w.out, w.kernel, w.geometry) for w in one.windows}
    return one.names == other.names and known == {
        (w.source, w.out, w.kernel, w.geometry) for w in other.windows
    }


def _pooled_dim(w: SlidingDim) -> PooledDim:
    """Elements after the last window need no negative padding, with which JAX's derivative of a maximum fails."""
    g = w.geometry
    padding = (g.before, max(0, g.stride * (g.out.size - 1) + g.extent - g.before - g.source.size))
    return PooledDim(size=g.kernel.size, stride=g.stride, padding=padding, dilation=g.dilation, value=w.value)


PATTERNS: Mapping[Trait, Callable[[FusionContext, Equation], Fused | None]] = {
    "dot": _convolved,
    "fold": lambda c, eqn: _transposed(c, eqn) or _pooled_back(c, eqn),
    "sum": _pooled,
    "extremum": _pooled,
}
"""Trait of an equation's op -> the pattern that may fit it."""

MADE_FOR_OTHERS: tuple[Trait, ...] = (
    "window", "fold", "pad", "dot", "reshape", "transpose", "mask", "is_argmax",
)  # fmt: skip
"""The ops that patterns look through, by trait. They are removed if nothing uses their results any more."""


def fused(
    function: Function, mesh: Mesh, differentiated: Set[Value] = frozenset()
) -> tuple[Function, Mapping[Value, Text]]:
    """Fuse windows into convolutions and poolings.

    Return the function without the windows that lost their use, and result -> text of each fused equation. differentiated: the
    values whose derivative `jax.grad` may need.
    """
    texts: dict[Value, Text] = {}

    def rewritten(function: Function) -> Function:
        """Return a function, or a loop's region, in which patterns read other operands; `texts` gets their texts."""
        context = FusionContext(
            {value: eqn for eqn in function.body for value in eqn.results}, mesh, differentiated
        )
        body = []
        for eqn in function.body:
            pattern = next((PATTERNS[trait] for trait in PATTERNS if has_trait(eqn, trait)), None)
            found = pattern(context, eqn) if pattern else None
            if found is not None:
                operands, texts[eqn.result] = found
                eqn = attrs.evolve(eqn, operands=operands)
            body.append(map_regions(eqn, rewritten))
        used = (output.value for output in function.outputs)
        kept = needed_for(used, body, lambda eqn: not has_trait(eqn, *MADE_FOR_OTHERS))
        return attrs.evolve(function, body=kept)

    return rewritten(function), texts
