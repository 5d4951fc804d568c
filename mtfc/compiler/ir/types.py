"""Dimensions, meshes, layouts, and the type that says where a tensor's data is.

A `TensorType` has everything about the placement of one value: its element type, its named dimensions in storage order, the mesh
axes that split each, and the axes over which a reduction is pending. At the global level no dimension is split and no reduction
is pending, so one class serves both levels (Mesh-TensorFlow paper, sections 4 and 5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from math import prod
from typing import Any

import attrs

from mtfc.compiler.records import frozen

Axes = tuple[str, ...]
"""Mesh axes that together split one dimension, the most major axis first."""

WRITTEN_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "i32": 4, "u32": 4, "bool": 1}
"""Dtype of the language -> the bytes of an element."""

CARRIED = ("i8", "u8", "f8e4m3fn", "f8e5m2", "i16", "u16", "i64", "u64", "c64", "c128")
CARRIED_BYTES = {dtype: int(re.findall(r"\d+", dtype)[0]) // 8 for dtype in CARRIED}
"""Dtype that functions of JAX may have, too -> the bytes of an element. Ops only move such elements, or cast them to others."""

ITEM_BYTES: dict[str, int] = {**WRITTEN_BYTES, **CARRIED_BYTES}

KINDS = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}
"""The start of a dtype -> that of its name in NumPy."""


def _array_dtype(dtype: str) -> str:
    """Return the name of a dtype in NumPy or ml_dtypes: `float32`, `float8_e4m3fn`."""
    kind, bits, rest = re.findall(r"([a-z]+)(\d*)(\w*)", dtype)[0]
    return f"{KINDS.get(kind, kind)}{bits}{rest and '_'}{rest}"


ARRAY_DTYPES = {dtype: _array_dtype(dtype) for dtype in ITEM_BYTES}
"""Dtype -> its name in NumPy or ml_dtypes, and in JAX."""

OF_ML_DTYPES = ("bf16", "f8e4m3fn", "f8e5m2")
"""The dtypes that NumPy has from ml_dtypes."""
FLOATS = frozenset({"f32", "bf16", "f16", "f64"})


@frozen(cache_hash=True)
class Dim:
    """A named dimension. Two dims of equal size and different name are different dimensions."""

    name: str
    size: int


@frozen
class Mesh:
    """An n-dimensional array of processors with named axes, the first axis most major (paper, section 2)."""

    name: str
    axes: tuple[tuple[str, int], ...]

    @cached_property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @cached_property
    def names(self) -> Axes:
        return tuple(name for name, _ in self.axes)

    @cached_property
    def devices(self) -> int:
        return prod(size for _, size in self.axes)

    @property
    def axes_text(self) -> str:
        """The axes as declarations have them: `rows: 2, cols: 4`."""
        return ", ".join(f"{name}: {size}" for name, size in self.axes)

    def size(self, axes: Iterable[str]) -> int:
        """Return the number of processors in a group over `axes`."""
        sizes = self.sizes
        return prod([sizes[axis] for axis in axes]) if axes else 1

    def ordered(self, axes: Iterable[str]) -> Axes:
        """Return the given axes in the mesh's order, each once."""
        wanted = set(axes)
        return tuple([name for name, _ in self.axes if name in wanted]) if wanted else ()


EVERY = "*"
"""In rules of storage, the dimension of each parameter that can best be split: see `passes/partition/layout_rules.py`."""


@frozen
class Rules:
    """A partial map from dimension names, and `EVERY`, to the mesh axes that split them."""

    axes: tuple[tuple[str, Axes], ...] = ()

    @cached_property
    def by_dim(self) -> dict[str, Axes]:
        return dict(self.axes)

    def get(self, dim: str) -> Axes:
        return self.by_dim.get(dim, ())

    def override(self, other: Rules) -> Rules:
        """Return these rules and those of `other`; where both name a dimension, `other` wins."""
        return Rules(tuple({**self.by_dim, **other.by_dim}.items()))


@frozen
class Pipeline:
    """Loops along the dimension `loop` run as pipelines: the axes that split the dimension are the stages.

    The dimension `batch` is cut into `micro_batches` parts, which go through the stages one after the other. With `checkpoint`,
    a stage keeps only its inputs for the backward pass. With several `chunks`, each micro-batch goes around the stages as many
    times: a stage holds that many chunks of consecutive layers.
    """

    loop: str
    batch: str
    micro_batches: int
    checkpoint: bool = False
    chunks: int = 1

    @property
    def ticks(self) -> str:
        """The name, or the start of the name, of the dimension that the loop runs along then."""
        return f"{self.loop}.ticks"

    @property
    def entries(self) -> dict[str, int]:
        """The entries, as layouts have them: `batch: 8, layers: 2` for 8 micro-batches and 2 chunks."""
        return {self.batch: self.micro_batches, **({self.loop: self.chunks} if self.chunks > 1 else {})}


FLOPS_PER_BYTE = 170
"""The FLOPs that a device computes while it moves a byte in its memory, if a layout does not say: those of TPU v5p."""

REGIONS = ("never", "time", "memory")
"""The forms of the pass `split-regions`."""

GROUPS = ("cheaper", "rows", "parameters")
"""The forms of the pass `spread-groups`: what travels where a layout splits rows and groups of a grouped dot alike."""

SUMS = ("inside", "after")
"""The forms of the pass `place-reductions`: where large sums that loops stack are completed, if both send as much."""


RECOMPUTED = ("full", "minimal", "selective", "alternate")
"""The words of the pass `recompute`, which say what the backward pass computes again."""


@frozen
class Forms:
    """The choices of a layout that say how equations are computed, and change no results.

    regions: the form of the pass `split-regions`. flops_per_byte: the balance of the pass `join-dots`; 0 if no dots are joined.
    groups: the form of the pass `spread-groups`. unroll: the most iterations of the pass `unroll-loops`; 1 if none is unrolled.
    sums: the form of the pass `place-reductions`. recompute: a word of `RECOMPUTED`; a machine or bytes, for a step that fits
    into this memory by computing values again; empty if all values are kept.
    """

    regions: str = "never"
    flops_per_byte: int = 0
    groups: str = "cheaper"
    unroll: int = 1
    sums: str = "inside"
    recompute: str | int = ""

    @property
    def without_loop_forms(self) -> Forms:
        """The forms without `sums`, `unroll` and `recompute`, which change only when something is sent or computed."""
        return Forms(self.regions, self.flops_per_byte, self.groups)

    @property
    def entries(self) -> dict[str, str | int]:
        """The entries that differ from their defaults, as they are written."""
        joins = (
            {"dots": "joined"} if self.flops_per_byte else {"dots": "apart", "flops_per_byte": FLOPS_PER_BYTE}
        )
        found = {**attrs.asdict(self), **joins}
        return {key: found[key] for key in FORMS if found[key] != DEFAULTS[key]}

    @classmethod
    def of(cls, entries: Mapping[str, str | float]) -> Forms:
        """Return the forms of entries as they are written. Raises `ValueError`, with the entry that is wrong as its argument."""
        for key, value in entries.items():
            if not is_form(key, value) or (key == "flops_per_byte" and entries.get("dots") != "joined"):
                raise ValueError(key)
        known: dict[str, Any] = {**DEFAULTS, **entries}
        if known.pop("dots") == "apart":
            known["flops_per_byte"] = 0
        return cls(**known)


FORMS: Mapping[str, tuple[str, ...]] = {
    "regions": REGIONS,
    "dots": ("apart", "joined"),
    "flops_per_byte": (),
    "groups": GROUPS,
    "unroll": (),
    "sums": SUMS,
    "recompute": RECOMPUTED,
}
"""The words of each entry of a layout's `forms`; without words it is a number of at least 1.

`recompute` takes machines and bytes, too.
"""

DEFAULTS: Mapping[str, str | float] = {
    **{key: words[0] for key, words in FORMS.items() if words},
    "flops_per_byte": FLOPS_PER_BYTE,
    "unroll": 1,
    "recompute": "",
}
"""The value of each entry that is not written."""


MOST_FLOPS_PER_BYTE = 2**31 - 1


def is_form(key: str, value: str | float) -> bool:
    """Return True if an entry of `forms` may have a value."""
    if key not in FORMS:
        return False
    if key == "recompute":
        is_name = isinstance(value, str) and value.isascii() and value.isidentifier()
        return is_name or (type(value) is int and 1 <= value < 2**63)
    return value in FORMS[key] if FORMS[key] else type(value) is int and 1 <= value <= MOST_FLOPS_PER_BYTE


@frozen
class Layout:
    """A computation layout, and the rules of storage that differ from it.

    `params` and `optimizer` override `rules` for the storage of parameters and optimizer state, and may have a rule for `EVERY`.
    `values` gives single values, by dotted path, rules of their own in place of `rules`. `blocks` are rules for dimensions that
    the compiler has added: see `passes/spatial/position_blocks.py`. `pipelines` are the loops that run as pipelines. `forms` say
    how equations are computed.
    """

    name: str
    rules: Rules = Rules()
    params: Rules = Rules()
    optimizer: Rules = Rules()
    values: tuple[tuple[str, Rules], ...] = ()
    blocks: Rules = Rules()
    pipelines: tuple[Pipeline, ...] = ()
    forms: Forms = Forms()

    @cached_property
    def value_rules(self) -> dict[str, Rules]:
        return dict(self.values)

    @cached_property
    def compute(self) -> Rules:
        """The rules of the computation, for every dimension of the program."""
        return self.rules.override(self.blocks)


@frozen(cache_hash=True)
class TensorType:
    """`dtype[dim{axes}, ...]` and the axes over which a reduction is pending, in mesh order.

    `splits` runs parallel to `dims`: the axes that split each dimension, most major first. `local_shape` gives the sizes of a
    processor's array.
    """

    dtype: str
    dims: tuple[Dim, ...]
    splits: tuple[Axes, ...] = attrs.field()
    pending: Axes = ()
    reduction: str = "sum"

    @splits.default
    def _unsplit(self) -> tuple[Axes, ...]:
        return ((),) * len(self.dims)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dim.name for dim in self.dims)

    @property
    def size(self) -> int:
        """The number of elements of the whole tensor."""
        return prod(dim.size for dim in self.dims)

    @property
    def is_global(self) -> bool:
        return not self.pending and not any(self.splits)

    @property
    def split_axes(self) -> Axes:
        return tuple(axis for axes in self.splits for axis in axes)

    def dim(self, name: str) -> Dim:
        return self.dims[self.names.index(name)]

    def axes_of(self, name: str) -> Axes:
        """Return the axes that split dimension `name`."""
        return self.splits[self.names.index(name)]

    @property
    def local_dtype(self) -> str:
        """Return the dtype of one processor's array: f32 for terms of a pending f16 sum, which may be out of the range of f16."""
        is_term = bool(self.pending) and self.reduction == "sum"
        return "f32" if is_term and self.dtype == "f16" else self.dtype

    def local_shape(self, mesh: Mesh) -> tuple[int, ...]:
        """Return the sizes of one processor's array."""
        return tuple(
            [
                d.size // mesh.size(axes) if axes else d.size
                for d, axes in zip(self.dims, self.splits, strict=True)
            ]
        )

    def local_size(self, mesh: Mesh) -> int:
        """Return the number of elements of one processor's array."""
        return prod(self.local_shape(mesh))

    def local_bytes(self, mesh: Mesh) -> int:
        """Return the bytes of one processor's array."""
        return self.local_size(mesh) * ITEM_BYTES[self.local_dtype]

    def varying(self, mesh: Mesh) -> Axes:
        """Return the axes along which processors hold different data, in mesh order."""
        return mesh.ordered((*self.split_axes, *self.pending))

    def split_by(self, axes: Mapping[str, Axes], pending: Axes = (), reduction: str = "sum") -> TensorType:
        """Return the type of the same tensor split as `axes` says; dims that `axes` does not name are whole."""
        return self.split_into(tuple([axes.get(dim.name, ()) for dim in self.dims]), pending, reduction)

    def split_into(self, splits: tuple[Axes, ...], pending: Axes = (), reduction: str = "sum") -> TensorType:
        """Return the type of the same tensor with a split of each dimension: the same object if it is split so already."""
        reduction = reduction if pending else "sum"
        if splits == self.splits and pending == self.pending and reduction == self.reduction:
            return self
        return TensorType(self.dtype, self.dims, splits, pending, reduction)

    def unsplit(self) -> TensorType:
        """Return the tensor's global type."""
        return self if self.is_global else TensorType(self.dtype, self.dims)

    def with_dtype(self, dtype: str) -> TensorType:
        return attrs.evolve(self, dtype=dtype)

    def __str__(self) -> str:
        """Return such as `f32[batch{rows}, io] +{cols}`: split dimensions have axes, and a sum is pending over `cols`."""
        shape = ", ".join(
            f"{dim.name}{{{', '.join(axes)}}}" if axes else dim.name
            for dim, axes in zip(self.dims, self.splits, strict=True)
        )
        sign = "+" if self.reduction == "sum" else self.reduction
        return f"{self.dtype}[{shape}]" + (f" {sign}{{{', '.join(self.pending)}}}" if self.pending else "")


def scalar(dtype: str) -> TensorType:
    return TensorType(dtype, ())
