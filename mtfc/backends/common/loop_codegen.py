"""The Python statements of loops: a `for` over NumPy arrays, and `lax.scan` in JAX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs


@attrs.frozen
class IterationSlice:
    """A slice of an array in one iteration.

    name: the slice's name inside the loop. whole: the array's name. axis: the array's axis that is indexed. rank: the array's
    dimensions, without axes that the backend puts in front.
    """

    name: str
    whole: str
    axis: int
    rank: int


@attrs.frozen(kw_only=True)
class LoopCode:
    """The parts of a loop's text; all values have names.

    name: the function of one iteration. index: a free name.
    carried: the carries inside the loop; `starts`, `updates` and `results` are their initial values, their values after an
        iteration, and their final values.
    stacks: the stacked results; `yields` are the values to stack.
    held: outer arrays that each iteration uses anew. body: the statements of one iteration.
    """

    name: str
    index: str
    trips: int
    reverse: bool
    carried: Sequence[str]
    starts: Sequence[str]
    updates: Sequence[str]
    results: Sequence[str]
    sliced: Sequence[IterationSlice]
    stacks: Sequence[str]
    yields: Sequence[str]
    held: Sequence[str]
    body: Sequence[str]


def group(names: Sequence[str]) -> str:
    """Return the text of several names: `None` for no name, one name as it is, else a tuple."""
    return "None" if not names else names[0] if len(names) == 1 else f"({', '.join(names)})"


def _assign(targets: Sequence[str], values: Sequence[str]) -> Iterator[str]:
    """Yield one assignment to the names that differ from their values; nothing if all are equal."""
    changed = [(target, value) for target, value in zip(targets, values, strict=True) if target != value]
    if changed:
        yield f"{', '.join(t for t, _ in changed)} = {', '.join(v for _, v in changed)}"


def _indented(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"    {line}" if line else "" for line in lines)


def numpy_loop(loop: LoopCode, lead: int) -> Iterator[str]:
    """Yield a `for` statement. `lead` is the number of axes that every array has in front of its own."""
    yield from _assign(loop.carried, loop.starts)
    yield from (f"{stack} = []" for stack in loop.stacks)
    numbers = f"range({loop.trips})"
    yield f"for {loop.index} in {f'reversed({numbers})' if loop.reverse else numbers}:"
    for part in loop.sliced:
        yield f"    {part.name} = {part.whole}[..., {loop.index}{', :' * (part.rank - part.axis - 1)}]"
    yield from _indented(loop.body)
    yield from (f"    {stack}.append({value})" for stack, value in zip(loop.stacks, loop.yields, strict=True))
    yield from _indented(list(_assign(loop.carried, loop.updates)))
    if not (loop.sliced or loop.body or loop.stacks):
        yield "    pass"
    yield from _assign(loop.results, loop.carried)
    order = "[::-1]" if loop.reverse else ""
    yield from (f"{stack} = np.stack({stack}{order}, axis={lead})" for stack in loop.stacks)


def jax_loop(loop: LoopCode) -> Iterator[str]:
    """Yield the function of one iteration, and `lax.scan` over it.

    A held array is bound to the number of the iteration. Otherwise XLA would gather the array before the loop, and keep it whole.
    """
    numbers = [loop.index] if loop.held else []
    parts = [*(part.name for part in loop.sliced), *numbers]
    carry = loop.carried[0] if len(loop.carried) == 1 else "carry"
    slices = parts[0] if len(parts) == 1 else "slices"
    yield f"def {loop.name}({', '.join([carry, slices, *(f'{name}={name}' for name in loop.held)])}):"
    if len(loop.carried) > 1:
        yield f"    {', '.join(loop.carried)} = carry"
    if len(parts) > 1:
        yield f"    {', '.join(parts)} = slices"
    if loop.held:
        yield f"    {', '.join(loop.held)} = bound({', '.join([loop.index, *loop.held])})"
    yield from _indented(loop.body)
    yield f"    return {group(loop.updates)}, {group(loop.yields)}"
    yield ""
    wholes = [*map(_slices_first, loop.sliced), *(f"jnp.arange({loop.trips})" for _ in numbers)]
    extent = "" if wholes else f", length={loop.trips}"
    reverse = ", reverse=True" if loop.reverse else ""
    targets = [group(names) if names else "_" for names in (loop.results, loop.stacks)]
    arguments = f"{loop.name}, {group(loop.starts)}, {group(wholes)}{extent}{reverse}"
    yield f"{', '.join(targets)} = lax.scan({arguments})"


def _slices_first(part: IterationSlice) -> str:
    return part.whole if part.axis == 0 else f"jnp.moveaxis({part.whole}, {part.axis}, 0)"
