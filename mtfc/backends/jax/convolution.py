"""The text of one convolution and of one pooling in JAX, for dimensions in any number and order.

`lax.conv_general_dilated` knows one batch dimension N, one feature dimension C (of the filter: I and O) and spatial ones, each
anywhere. Where several of ours play one part they are merged, and where none does, one of size 1 stands for it; an array is
transposed only where dimensions that are to be merged do not lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import attrs

from mtfc.compiler.ir.opdef import Code
from mtfc.compiler.ir.ops.creation import literal

SPATIAL = "HWDTUVXYZ"
"""Letters for spatial dimensions, as `dimension_numbers` wants them."""

Sizes = Mapping[str, int]
"""Dimension -> its size on one device, in storage order."""

Parts = Mapping[str, Sequence[str]]
"""Letter -> the dimensions that play that part, most major first."""


@attrs.frozen
class ConvArray:
    """The sizes of an array, and what its dimensions are to a convolution; those without a part have size 1."""

    sizes: Sizes
    parts: Parts

    @property
    def spec(self) -> str:
        return letters(self.sizes, self.parts)


@attrs.frozen(kw_only=True)
class ConvAxis:
    """How a convolution goes along one spatial dimension.

    Element o of the result is the sum over k of x[o * stride + k * dilation - padding[0]] * filter[k], where x is lhs with
    `spread` - 1 zeros between its elements; `padding[1]` zeros follow.
    """

    stride: int
    dilation: int
    spread: int
    padding: tuple[int, int]


@attrs.frozen(kw_only=True)
class Convolution:
    """A convolution of `lhs` with the filter `rhs`; `groups`: into how many its features fall. flipped: with rhs reversed."""

    lhs: ConvArray
    rhs: ConvArray
    result: ConvArray
    axes: tuple[ConvAxis, ...]
    groups: int
    flipped: bool

    def text(self, code: Code) -> str:
        """Sums of 16-bit numbers are kept in 32 bits."""
        narrow = code.eqn.result.type.dtype in ("bf16", "f16")
        operands = f"{gathered(code.args[0], self.lhs)}, {gathered(self._filter(code.args[1]), self.rhs)}"
        numbers = f"{self._numbers('stride')}, {self._numbers('padding')}"
        options = list(self._options()) + ["preferred_element_type=jnp.float32"] * narrow
        call = f"lax.conv_general_dilated({operands}, {numbers}, {', '.join(options)})"
        return scattered(call, self.result) + (f".astype({code.dtype})" if narrow else "")

    def _filter(self, text: str) -> str:
        """The filter, turned around where the convolution is the transpose of one."""
        spatial = [name for letter in SPATIAL for name in self.rhs.parts.get(letter, ())]
        turned = tuple(
            i for i, name in enumerate(self.rhs.sizes) if name in spatial and self.rhs.sizes[name] > 1
        )
        return f"jnp.flip({text}, {turned})" if self.flipped and turned else text

    def _numbers(self, field: str) -> tuple[Any, ...]:
        """One number of each spatial dimension, in the order in which the filter has them: so they are counted."""
        axes = sorted(zip(SPATIAL, self.axes, strict=False), key=lambda pair: self.rhs.spec.index(pair[0]))
        return tuple(getattr(axis, field) for _, axis in axes)

    def _options(self) -> Iterator[str]:
        spread, dilation = self._numbers("spread"), self._numbers("dilation")
        yield f'dimension_numbers=("{self.lhs.spec}", "{self.rhs.spec}", "{self.result.spec}")'
        if any(number > 1 for number in spread):
            yield f"lhs_dilation={spread}"
        if any(number > 1 for number in dilation):
            yield f"rhs_dilation={dilation}"
        if self.groups > 1:
            yield f"feature_group_count={self.groups}"


def letters(sizes: Sizes, parts: Parts) -> str:
    """The letters in the order in which their dimensions lie; those without dimensions, of size 1, come last."""
    place = {name: i for i, name in enumerate(sizes)}
    return "".join(
        sorted(parts, key=lambda letter: min((place[n] for n in parts[letter]), default=len(place)))
    )


def in_order(array: ConvArray) -> list[str]:
    """The dimensions that play a part, in the order of the letters."""
    return [name for letter in array.spec for name in array.parts[letter]]


def _one_each(array: ConvArray) -> bool:
    return all(len(part) == 1 for part in array.parts.values()) and len(array.parts) == len(array.sizes)


def gathered(text: str, array: ConvArray) -> str:
    """An array as one dimension per letter."""
    sizes, wanted = array.sizes, in_order(array)
    if [name for name in sizes if name in wanted] != wanted:
        order = [*(name for name in sizes if name not in wanted), *wanted]
        text = f"{text}.transpose{tuple(list(sizes).index(name) for name in order)}"
    if _one_each(array):
        return text
    return f"{text}.reshape{tuple(prod(sizes[n] for n in array.parts[letter]) for letter in array.spec)}"


def scattered(text: str, array: ConvArray) -> str:
    """What has one dimension per letter as the array."""
    sizes, found = array.sizes, in_order(array)
    wanted = [name for name in sizes if name in found]
    if found != wanted:
        text = f"{text}.reshape{tuple(sizes[name] for name in found)}"
        text = f"{text}.transpose{tuple(found.index(name) for name in wanted)}"
    return text if _one_each(array) else f"{text}.reshape{tuple(sizes.values())}"


@attrs.frozen(kw_only=True)
class PooledDim:
    """How one dimension of the operand is pooled: the size of a window, and how windows lie."""

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
"""(reduction, kind of dtype) -> the number that changes nothing."""

FUNCTIONS = {"sum": "lax.add", "max": "lax.max", "min": "lax.min"}


@attrs.frozen(kw_only=True)
class Pooling:
    """A reduction over sliding windows of several dimensions of an array.

    order: the dimensions in the order in which they are padded. result: the sizes of what it makes, `reshaped` to be so.
    """

    reduction: str
    dims: tuple[PooledDim, ...]
    order: tuple[int, ...]
    result: tuple[int, ...]
    reshaped: bool

    def text(self, code: Code) -> str:
        """Sums of 16-bit numbers are kept in 32 bits."""
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
        """The gradient of the operand from that of the result, whose axes are to stand in this order."""
        x, cotangent = code.args
        if order != tuple(range(len(order))):
            cotangent = f"{cotangent}.transpose{order}"
        pool = self.text(attrs.evolve(code, args=("x",)))
        return f"jax.vjp(lambda x: {pool}, {x})[1]({cotangent})[0]"

    def _padded(self, code: Code) -> str:
        """The operand with numbers around it: what is padded later stands in the corners."""
        text = code.args[0]
        for i in self.order:
            dim = self.dims[i]
            if any(dim.padding):
                config = tuple((*dim.padding, 0) if i == j else (0, 0, 0) for j in range(len(self.dims)))
                text = f"lax.pad({text}, {code.dtype}({literal(dim.value)}), {config})"
        return text
