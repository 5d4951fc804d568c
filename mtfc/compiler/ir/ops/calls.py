"""`call`: a function from outside of the language, such as a primitive of JAX that no op stands for.

`FUNCTIONS` has the functions, so a program with calls runs in the process that made it. A namespace that `evaluate` gets instead
of NumPy may have a `mapped_call` of its own. A function is *mapped* along the dimensions of the attribute `mapped`: it does the
same for each element of them, so a layout may split them. Along all other dimensions it gets whole operands, and makes whole
results. `flops` are those of one element along all mapped dimensions.

Operands and results have their mapped dimensions in front, in the order of the attribute. An operand may lack some.
"""

from ast import literal_eval
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any

from mtfc.compiler.ir.attributes import DIM_LIST, DIMS, REAL, TEXT, Attribute
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    LayoutRule,
    OpBuilder,
    OpDef,
    OpError,
    Shard,
    Sizes,
)
from mtfc.compiler.ir.ops.elementwise import dims_text
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, TensorType
from mtfc.compiler.records import frozen

FUNCTION, DTYPES, RANKS = (Attribute(name, TEXT) for name in ("function", "dtypes", "ranks"))
MAPPED, RESULTS = Attribute("mapped", DIMS), Attribute("results", DIM_LIST)
FLOPS = Attribute("flops", REAL)


@frozen
class OnShards:
    """A function of all elements of a processor along the mapped dimensions: (their sizes, *arrays) -> a list of arrays.

    Arrays have an axis for each mapped dimension in front, of size 1 if an array lacks the dimension. mapped: the number of these
    dimensions. keys: the number of operands by which all of them are sorted along their other axes; 0 for another function.
    """

    function: Callable[..., list[Any]]
    mapped: int
    keys: int = 0

    def __call__(self, *arrays: Any) -> list[Any]:
        """Apply the function to one element."""
        one = (1,) * self.mapped
        found = self.function(one, *(x.reshape(*one, *x.shape) for x in arrays))
        return [x.reshape(x.shape[self.mapped :]) for x in found]


FUNCTIONS: dict[str, OnShards] = {}
"""Name -> function of JAX arrays."""


def _infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the types of the results: mapped dimensions first, then each result's own ones, which `RESULTS` lists in a row."""
    mapped = MAPPED.of(attributes)
    for type in types:
        own = tuple(dim for dim in mapped if dim in type.dims)
        if type.dims[: len(own)] != own:
            raise OpError(f"a call mapped along {dims_text(mapped)} has an operand {type}")
    dims, results = list(RESULTS.of(attributes)), []
    for dtype, rank in zip(DTYPES.of(attributes).split(), RANKS.of(attributes).split(), strict=True):
        if dtype not in ITEM_BYTES:
            raise OpError(f"unknown dtype {dtype}")
        found = (*mapped, *dims[: int(rank)])
        del dims[: int(rank)]
        if len(set(found)) != len(found):
            raise OpError(f"the result would have a dimension twice: {dims_text(found)}")
        results.append(TensorType(dtype, found))
    return tuple(results)


def _rule(eqn: Equation) -> LayoutRule:
    """Split the mapped dimensions only: the function needs all others whole."""
    mapped = {dim.name for dim in MAPPED.of(eqn.attrs)}
    whole = {dim.name for value in eqn.results for dim in value.type.dims} - mapped
    index = {dim.name: None for value in eqn.operands for dim in value.type.dims if dim.name not in mapped}
    return LayoutRule(index=index, whole=frozenset(whole))


def _gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    raise OpError(f"the function {FUNCTION.of(e.attrs)} has no gradient here")


def _flops(eqn: Equation, sizes: Sizes) -> Any:
    """Return the FLOPs of one element, which the attribute says, for all elements along the mapped dimensions."""
    type, number = eqn.results[0].type, len(MAPPED.of(eqn.attrs))
    return FLOPS.of(eqn.attrs) * sizes.elements(
        TensorType(type.dtype, type.dims[:number], type.splits[:number])
    )


def _places(eqn: Equation) -> list[tuple[int, ...]]:
    """Return for each operand the places that its dimensions have among the mapped ones."""
    mapped: tuple[Dim, ...] = MAPPED.of(eqn.attrs)
    return [tuple(i for i, dim in enumerate(mapped) if dim in value.type.dims) for value in eqn.operands]


def _ranks(eqn: Equation) -> list[int]:
    """Return the number of dimensions of each operand that are not mapped."""
    own = zip(eqn.operands, _places(eqn), strict=True)
    return [len(value.type.dims) - len(places) for value, places in own]


def _evaluate(shard: Shard, *arrays: Any) -> Any:
    """Call the function for each element along the mapped dimensions of a shard."""
    eqn = shard.eqn
    number = len(MAPPED.of(eqn.attrs))
    call = getattr(shard.np, "mapped_call", mapped_call)
    found = call(FUNCTION.of(eqn.attrs), shard.shape[:number], _places(eqn), _ranks(eqn), *arrays)
    results = tuple(shard.np.asarray(x) for x in found)
    return results if len(results) > 1 else results[0]


def mapped_call(
    name: str, sizes: Sequence[int], places: Sequence[tuple[int, ...]], ranks: Sequence[int], *arrays: Any
) -> tuple[Any, ...]:
    """Call a function for each element along mapped axes.

    sizes: of the mapped axes on this processor. places, ranks: for each array the mapped axes that it has, and the number of its
    other axes. In front of the mapped axes, arrays may have further ones, which are mapped too.

    A call on arrays of NumPy is compiled as a whole: JAX would compile it step by step.
    """
    import jax

    given = name, tuple(sizes), tuple(places), tuple(ranks)
    is_numpy = not any(isinstance(x, jax.Array) for x in arrays)
    return _compiled(*given)(*arrays) if arrays and is_numpy else applied_call(*given, *arrays)


@cache
def _compiled(*given: Any) -> Callable[..., Any]:
    """Return a compiled call of an imported function."""
    import jax

    return jax.jit(partial(applied_call, *given))


def applied_call(
    name: str, sizes: tuple[int, ...], places: Sequence[tuple[int, ...]], ranks: Sequence[int], *arrays: Any
) -> tuple[Any, ...]:
    """Call a function for each element along mapped axes, of arrays of JAX."""
    import jax
    from jax import numpy as jnp

    each = zip(arrays, fronts_of(arrays, sizes, places, ranks), ranks, strict=True)
    spread = [jnp.asarray(x).reshape(*front, *x.shape[x.ndim - rank :]) for x, front, rank in each]
    spread = _varying_alike(spread)
    function, ranks = partial(FUNCTIONS[name].function, sizes), [rank + len(sizes) for rank in ranks]
    shape = jnp.broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in zip(spread, ranks, strict=True)))
    count = prod(shape)
    cores = [x.shape[x.ndim - rank :] for x, rank in zip(spread, ranks, strict=True)]
    if count == 1:
        found = function(*(x.reshape(core) for x, core in zip(spread, cores, strict=True)))
    else:
        flat = [
            jnp.broadcast_to(x, (*shape, *core)).reshape(count, *core)
            for x, core in zip(spread, cores, strict=True)
        ]
        found = jax.vmap(function, axis_size=count)(*flat)
    first = 0 if count == 1 else 1
    marked = _varying_alike([*spread, *found])[len(spread) :]  # some primitives lose the mark
    return tuple(x.reshape(*shape, *x.shape[first:]) for x in marked)


def fronts_of(
    arrays: Sequence[Any], sizes: Sequence[int], places: Sequence[tuple[int, ...]], ranks: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the shape of each array without its own axes, and with all mapped axes: of size 1 where it lacks them."""
    return [
        (
            *x.shape[: x.ndim - len(own) - rank],
            *(size if i in own else 1 for i, size in enumerate(sizes)),
        )
        for x, own, rank in zip(arrays, places, ranks, strict=True)
    ]


def _varying_alike(arrays: Sequence[Any]) -> list[Any]:
    """Mark arrays as varying along the same mesh axes, which JAX's primitives ask for."""
    import jax

    own = [_varying(jax.typeof(x)) for x in arrays]
    every = frozenset[str]().union(*own)
    return [
        jax.lax.pcast(x, tuple(sorted(every - has)), to="varying") if every - has else x
        for x, has in zip(arrays, own, strict=True)
    ]


def _varying(type: Any) -> frozenset[str]:
    """Return the mesh axes along which an array varies."""
    return frozenset(type.vma if hasattr(type, "vma") else type.mat.varying)


def _numpy_text(code: Code) -> str:
    """Return the call. Without operands, its results lack the axes of the mesh in front."""
    call = _text(code)
    if not code.args:
        lead = (None,) * (len(literal_eval(code.shape)) - len(code.sizes))
        one, several = f"np.asarray({call})[{lead}]", f"(np.asarray(x)[{lead}] for x in {call})"
        return one if len(code.eqn.results) == 1 else several
    return f"np.asarray({call})" if len(code.eqn.results) == 1 else f"map(np.asarray, {call})"


def _text(code: Code) -> str:
    """Return the call of `mapped_call`, a function of the prelude; a single result is its first."""
    eqn = code.eqn
    name, mapped = FUNCTION.of(eqn.attrs), len(MAPPED.of(eqn.attrs))
    operands = ", ".join(code.args)
    places = tuple(_places(eqn))
    call = f'mapped_call("{name}", {code.sizes[:mapped]}, {places}, {tuple(_ranks(eqn))}, {operands})'
    return call if len(eqn.results) > 1 else f"{call}[0]"


PLAIN = frozenset(
    ("atan2", "ceil", "clz", "erf_inv", "erfc", "is_finite", "nextafter", "population_count", "rem")
)
"""Primitives without parameters, which functions of `jax.lax` with their names apply."""


def _jax_text(code: Code) -> str:
    """Return the function of `jax.lax` that a primitive is, so that the text runs without mtfc; else the call."""
    eqn, primitive = code.eqn, FUNCTION.of(code.eqn.attrs).rpartition("_")[0]
    is_whole = {*map(len, _places(eqn))} == {len(MAPPED.of(eqn.attrs))} and not any(_ranks(eqn))
    return f"lax.{primitive}({', '.join(code.args)})" if primitive in PLAIN and is_whole else _text(code)


CALL = OpDef(
    name="call",
    arity=(0, None),
    attributes=(FUNCTION, MAPPED, RESULTS, RANKS, DTYPES, FLOPS),
    infer=_infer,
    layout_rule=_rule,
    gradient=_gradient,
    flops=_flops,
    storage="kernel",
    evaluate=_evaluate,
    numpy=_numpy_text,
    jax=_jax_text,
    doc="A function of JAX, for each element along the mapped dimensions.",
)

OPS = (CALL,)
