"""All ways to take or make parts of an axis, each with a use that links the result to factors of the operand.

A move is a function of arrays of one axis, such as a slice. A link multiplies factors of an operand and of a result by the same
weights, so the import gives both the same dimension, whether the result has the elements of that factor or others.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice, pairwise, product
from math import gcd
from random import Random
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import mtfc
from tests.jax_functions.arguments import interpreted, program_arguments
from tests.jax_functions.numpy_jaxpr import evaluate

MOST = 12
"""The largest size of an operand."""


Shape = tuple[int, ...]
Link = tuple[int, int, int]
"""An axis as factors (major, linked, minor)."""

Links = tuple[Link | None, ...]
"""For each axis of an array its factors; None for an axis that is not linked."""


@attrs.frozen
class Move:
    """A function of arrays that moves elements, with the shapes of the arrays and of the results."""

    text: str
    shapes: tuple[Shape, ...]
    results: tuple[Shape, ...]
    function: Callable[..., Sequence[Any]] = attrs.field(eq=False)


@attrs.frozen
class Case:
    """A move, and the factors of each operand and result that weights multiply."""

    move: Move
    links: tuple[Links, ...]

    @property
    def weights(self) -> int:
        """The number of weights."""
        return next((link[1] for links in self.links for link in links if link is not None), 2)

    def __call__(self, xs: Sequence[Any], w: Any) -> list[Any]:
        """Return the operands and results, multiplied along their linked factors."""
        arrays = (*xs, *self.move.function(*xs))
        return [_multiplied(x, links, w) for x, links in zip(arrays, self.links, strict=True)]


def _multiplied(x: Any, links: Links, w: Any) -> Any:
    shape = [n for size, link in zip(x.shape, links, strict=True) for n in link or (size,)]
    found, place = x.reshape(shape), 0
    for link in links:
        if link is not None:
            found = found * w.reshape([-1 if k == place + 1 else 1 for k in range(len(shape))])
        place += len(link or (0,))
    return found


def factors(size: int, number: int) -> list[Link]:
    """Return the ways to have a factor of some size in an axis."""
    rest = size // number
    return [(a, number, rest // a) for a in range(1, rest + 1) if rest % a == 0]


def cases(move: Move) -> Iterator[Case]:
    """Yield all links of a factor of one result with a factor of one operand, for arrays of one axis, and no link."""
    every = (*move.shapes, *move.results)
    yield Case(move, ((None,),) * len(every))
    pairs = product(range(len(move.shapes)), range(len(move.shapes), len(every)))
    for i, k in pairs:
        (size,), (result,) = every[i], every[k]
        for number in range(2, gcd(size, result) + 1):
            if size % number or result % number:
                continue
            for a, b in product(factors(size, number), factors(result, number)):
                yield Case(move, tuple((a if j == i else b if j == k else None,) for j in range(len(every))))


# moves


def slices(size: int) -> Iterator[Move]:
    for start, stride in product(range(size), range(1, size)):
        for number in range(1, (size - 1 - start) // stride + 2):
            if number == 1 and stride > 1:
                continue
            limit = start + (number - 1) * stride + 1
            limits = (start,), (limit,), (stride,)
            yield Move(
                f"x{size}[{start}:{limit}:{stride}]",
                ((size,),),
                ((number,),),
                lambda x, a=limits: [lax.slice(x, *a)],
            )


def dynamic_slices(size: int) -> Iterator[Move]:
    """Take slices from constant starts and from computed ones, also from starts outside."""
    for number, start in product(range(1, size), range(-1, size + 1)):
        if number == size:
            continue
        text = f"dynamic_slice(x{size}, {start}, {number})"
        yield Move(
            text, ((size,),), ((number,),), partial(_dynamic, number=number, start=np.int32(start), times=0)
        )
        yield Move(
            f"computed {text}",
            ((size,),),
            ((number,),),
            partial(_dynamic, number=number, start=start, times=1),
        )


def _dynamic(x: Any, number: int, start: Any, times: int) -> list[Any]:
    first = start + 0 * x[0].astype("int32") if times else start
    return [lax.dynamic_slice_p.bind(x, first, slice_sizes=(number,))]


def updates(size: int) -> Iterator[Move]:
    for number, start in product(range(1, size + 1), range(-1, size)):
        function = lambda x, y, s=start: [lax.dynamic_update_slice(x, y, (np.int32(s),))]  # noqa: E731
        yield Move(
            f"dynamic_update_slice(x{size}, y{number}, {start})", ((size,), (number,)), ((size,),), function
        )


def pads(size: int, most: int = MOST, gaps: int = 3) -> Iterator[Move]:
    """Pad by low and high, which may be negative, and between elements."""
    for low, high, gap in product(range(-size, most + 1), range(-size, most + 1), range(gaps + 1)):
        result = low + high + size + (size - 1) * gap
        if 0 < result <= 2 * MOST and (size > 1 or gap == 0):
            row = ((low, high, gap),)
            text = f"pad(x{size}, {low}, {high}, {gap})"
            yield Move(text, ((size,),), ((result,),), lambda x, row=row: [lax.pad(x, np.float32(3), row)])


def compositions(size: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a size as a sum of at least two numbers."""
    for number in range(2, min(most, size) + 1):
        for ends in product(range(1, size), repeat=number - 1):
            if all(a < b for a, b in pairwise(ends)):
                yield tuple(b - a for a, b in zip((0, *ends), (*ends, size), strict=True))


def _lines(sizes: Sequence[int]) -> tuple[Shape, ...]:
    return tuple((size,) for size in sizes)


def splits(size: int) -> Iterator[Move]:
    for sizes in compositions(size, 4):
        yield Move(
            f"split(x{size}, {sizes})", ((size,),), _lines(sizes), lambda x, sizes=sizes: lax.split(x, sizes)
        )


def concatenations(size: int) -> Iterator[Move]:
    for sizes in compositions(size, 4):
        yield Move(f"concatenate{sizes}", _lines(sizes), ((size,),), lambda *xs: [lax.concatenate(xs, 0)])


def rows_and_columns(size: int) -> Iterator[Move]:
    """Reshape an axis to two and other two, change their order, stack and unstack them."""
    for (a, _, b), (c, _, d) in product(factors(size, 1), factors(size, 1)):
        name = f"x{size} as {a}, {b} as {c}, {d}"
        yield Move(
            name,
            ((size,),),
            ((size,),),
            lambda x, s=(a, b), t=(c, d): [x.reshape(s).reshape(t).T.reshape(-1)],
        )
        yield Move(
            f"{name} moved",
            ((size,),),
            ((size,),),
            lambda x, s=(a, b), t=(c, d): [x.reshape(s).T.reshape(t).reshape(-1)],
        )
        yield Move(f"tile(x{size}, {a})", ((size,),), ((size * a,),), lambda x, a=a: [jnp.tile(x, a)])
        yield Move(
            f"stack of x{size} as {a}, {b}",
            ((size,),),
            ((size,),),
            lambda x, s=(a, b): [jnp.stack([*x.reshape(s)], 1).reshape(-1)],
        )
    yield Move(f"reversed x{size}", ((size,),), ((size,),), lambda x: [lax.rev(x, (0,))])
    for shift in range(1, size):
        yield Move(
            f"roll(x{size}, {shift})", ((size,),), ((size,),), lambda x, shift=shift: [jnp.roll(x, shift)]
        )


def gathers(size: int) -> Iterator[Move]:
    """Gather by indices that count in steps, as the function computes them and as arrays that it closes over."""
    for start, stride in product(range(size), range(-2, 4)):
        last = start if stride == 0 else size - 1 if stride > 0 else 0
        most = size if stride == 0 else (last - start) // stride + 1
        for number in {2, 3, 4, most // 2 * 2, most, size} & {*range(2, most + 1)}:
            ids = np.arange(number, dtype="int32") * stride + start
            yield Move(f"x{size}[{ids.tolist()}]", ((size,),), ((number,),), lambda x, ids=ids: [x[ids]])
            counted = partial(_counted, number=number, start=start, stride=stride)
            yield Move(f"x{size}[arange({number}) * {stride} + {start}]", ((size,),), ((number,),), counted)


def _counted(x: Any, number: int, start: int, stride: int) -> list[Any]:
    return [x[lax.iota("int32", number) * stride + start]]


MOVES: dict[str, Callable[[int], Iterator[Move]]] = {
    "slice": slices, "dynamic_slice": dynamic_slices, "dynamic_update_slice": updates, "pad": pads, "split": splits,
    "concatenate": concatenations, "reshape": rows_and_columns, "gather": gathers,
}  # fmt: skip


# drawn cases


def plain_moves(size: int) -> list[Move]:
    """Return the moves from one axis to one, with pads by small numbers."""
    small = partial(pads, most=2, gaps=1)
    every = (slices, dynamic_slices, small, rows_and_columns, gathers)
    return [move for moves in every for move in moves(size)]


@lru_cache
def _moves(size: int) -> list[Move]:
    return plain_moves(size)


def then(first: Move, second: Move) -> Move:
    """Return a move of the result of another one. The results are those of both."""

    def function(x: Any) -> list[Any]:
        y = first.function(x)
        return [*y, *second.function(*y)]

    return Move(f"{second.text} of {first.text}", first.shapes, (*first.results, *second.results), function)


def beside(first: Move, second: Move) -> Move:
    """Return two moves of one array, and the sum of their results where these are of one size."""
    is_equal = first.results == second.results

    def function(x: Any) -> list[Any]:
        found = [*first.function(x), *second.function(x)]
        return [*found, found[0] + found[1]] if is_equal else found

    results = (*first.results, *second.results) + first.results * is_equal
    return Move(f"{first.text}, {second.text}", first.shapes, results, function)


def plane(random: Random, most: int) -> Move:
    """Draw a move of both axes of a plane at once."""
    shape = random.randint(2, most), random.randint(2, most)
    starts = [random.randint(0, n - 1) for n in shape]
    strides = [random.choice((1, 1, 2)) for _ in shape]
    parts = [random.randint(1, (n - 1 - s) // t + 1) for n, s, t in zip(shape, starts, strides, strict=True)]
    limits = [s + (n - 1) * t + 1 for s, n, t in zip(starts, parts, strides, strict=True)]
    rows = [
        (random.randint(-1 if n > 1 else 0, 3), random.randint(0, 3), random.choice((0, 0, 1))) for n in parts
    ]
    rows = [(low, high, 0 if n == 1 else gap) for (low, high, gap), n in zip(rows, shape, strict=True)]
    firsts = [min(s, n - p) for s, n, p in zip(starts, shape, parts, strict=True)]

    def padded(x: Any) -> Any:
        return lax.pad(x, np.float32(3), rows)

    def dynamic(x: Any) -> Any:
        first = [firsts[0] + 0 * x[0, 0].astype("int32"), np.int32(firsts[1])]
        return lax.dynamic_slice(x, first, parts)

    functions: dict[str, Callable[[Any], Any]] = {
        f"slice{shape, starts, limits, strides}": lambda x: lax.slice(x, starts, limits, strides),
        f"pad{shape, rows}": padded,
        f"dynamic_slice{shape, firsts, parts}": dynamic,
        f"pad of dynamic_slice{shape, firsts, parts, rows}": lambda x: padded(dynamic(x)),
        f"x[ids, ids]{shape, parts}": lambda x: x[jnp.arange(parts[0])[:, None], jnp.arange(parts[1])],
        f"x[ids.T, ids.T]{shape, parts}": lambda x: x[jnp.arange(parts[0]), jnp.arange(parts[1])[:, None]],
        f"x reversed {shape}": lambda x: x[::-1, ::-1],
        f"x as {shape[::-1]}": lambda x: x.reshape(shape[::-1]),
        f"x.T{shape}": lambda x: x.T,
        f"outer sums of slices {shape, starts, parts}": lambda x: (
            lax.slice(x, starts, limits, strides) + lax.slice(x, [0, 0], parts)
        ),
    }
    text, function = random.choice([*functions.items()])
    result = jax.eval_shape(function, jax.ShapeDtypeStruct(shape, "float32")).shape
    return Move(text, (shape,), (result,), lambda x: [function(x)])


def drawn(random: Random, most: int) -> Case:
    """Draw one or two moves, and weights that link all arrays which have a factor of their number."""
    kind = random.random()
    if kind < 0.35:
        return drawn_links(random, plane(random, most))
    first = random.choice(_moves(random.randint(2, most)))
    ((size,),) = first.results
    if kind < 0.7 and 2 <= size <= MOST:
        return drawn_links(random, then(first, random.choice(_moves(size))))
    return drawn_links(random, beside(first, random.choice(_moves(*first.shapes[0]))))


def drawn_links(random: Random, move: Move) -> Case:
    """Draw the factors that weights multiply, those of two axes of an array, too."""
    every = (*move.shapes, *move.results)
    sizes = [size for shape in every for size in shape]
    numbers = [n for n in range(2, MOST + 1) if sum(size % n == 0 for size in sizes) > 1]
    number = random.choice(numbers or [1])

    def link(size: int) -> Link | None:
        is_linked = size % number == 0 and random.random() < 0.8
        return random.choice(factors(size, number)) if is_linked else None

    return Case(move, tuple(tuple(map(link, shape)) for shape in every))


# judging


def arguments(batch: Sequence[Case]) -> tuple[list[list[Any]], list[Any]]:
    """Return operands and weights of small whole numbers: all results are exact in 32 bits."""
    random = np.random.default_rng(len(batch))

    def numbers(shape: Sequence[int], most: int) -> Any:
        return random.integers(1, most + 1, shape).astype("float32")

    xs = [[numbers(shape, 9) for shape in case.move.shapes] for case in batch]
    return xs, [numbers((case.weights,), 3) for case in batch]


def with_gradients(batch: Sequence[Case]) -> Callable[..., Any]:
    """Return the function of all cases, with the gradients of the sum of squares of what weights multiply."""

    def results(xs: Any, ws: Any) -> list[list[Any]]:
        return [case(x, w) for case, x, w in zip(batch, xs, ws, strict=True)]

    def loss(xs: Any, ws: Any) -> Any:
        return sum((y * y).sum() for ys in results(xs, ws) for y in ys)

    return lambda xs, ws: (results(xs, ws), jax.grad(loss, (0, 1))(xs, ws))


def wrong(batch: Sequence[Case]) -> list[Case]:
    """Return the cases for which the import computes other numbers than NumPy computes from the jaxpr."""
    given = arguments(batch)
    program = mtfc.from_jax(with_gradients(batch), *given, parameters=(), merge=False)
    expected = evaluate(program.imported.flat.closed, jax.tree.leaves(given))
    found = interpreted(program, program_arguments(program, given))
    owners = jax.tree.leaves(
        (
            [[i] * len(case.links) for i, case in enumerate(batch)],
            ([[i] * len(case.move.shapes) for i, case in enumerate(batch)], [*range(len(batch))]),
        )
    )
    rows = zip(owners, found, expected, strict=True)
    return [batch[i] for i in dict.fromkeys(i for i, x, y in rows if not np.array_equal(x, y))]


def batches(every: Iterator[Case], number: int = 64) -> Iterator[list[Case]]:
    """Yield cases in groups that one import takes together."""
    while batch := [*islice(every, number)]:
        yield batch
