"""The JAX text of one convolution and of one pooling, for dimensions in any number and order.

`lax.conv_general_dilated` takes one batch dimension N, one feature dimension C (in a filter: I and O) and spatial dimensions,
each at any position. Several dimensions with the same part are merged; a part without a dimension gets one of size 1. An array is
transposed only if the dimensions to merge are not adjacent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import attrs

from mtfc.compiler.ir.opdef import Code
from mtfc.compiler.ir.ops.creation import literal

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

    order: the dimensions in the order of their padding. result: the sizes of the result. reshaped: True if the call gives other
        sizes.
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
