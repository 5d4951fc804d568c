"""The Python statements of loops: a `for` over NumPy arrays; in JAX `lax.scan`, or `lax.while_loop` if data may end the loop."""

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
    blanks: the zeros for each stack of a loop that data may end, or that is unrolled: of one iteration in NumPy, of all
        iterations in JAX.
    has_condition: True if the first carry may end the loop. is_unbounded: True if nothing else ends the loop.
    unroll: the iterations that one iteration of a JAX loop runs.
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
    blanks: Sequence[str] = ()
    has_condition: bool = False
    is_unbounded: bool = False
    unroll: int = 1

    @property
    def is_branch(self) -> bool:
        """True for a loop of at most one iteration whose condition decides if it runs."""
        is_once = self.trips == 1 and not self.is_unbounded
        return self.has_condition and is_once and not self.sliced and not self.stacks


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
    order = f"reversed({numbers})" if loop.reverse else numbers
    yield f"for {loop.index} in {'iterations()' if loop.is_unbounded else order}:"
    if loop.has_condition:
        yield f"    if not {loop.carried[0]}.all():"
        yield "        break"
    for part in loop.sliced:
        yield f"    {part.name} = {part.whole}[..., {loop.index}{', :' * (part.rank - part.axis - 1)}]"
    yield from _indented(loop.body)
    yield from (f"    {stack}.append({value})" for stack, value in zip(loop.stacks, loop.yields, strict=True))
    yield from _indented(list(_assign(loop.carried, loop.updates)))
    if not (loop.sliced or loop.body or loop.stacks):
        yield "    pass"
    yield from _assign(loop.results, loop.carried)
    for stack, blank in zip(loop.stacks, loop.blanks, strict=True) if loop.has_condition else ():
        yield f"{stack} += [{blank}] * ({loop.trips} - len({stack}))"
    order = "[::-1]" if loop.reverse else ""
    yield from (f"{stack} = np.stack({stack}{order}, axis={lead})" for stack in loop.stacks)


def jax_loop(loop: LoopCode) -> Iterator[str]:
    """Return the statements of a loop: `lax.scan`, or `lax.cond` or `lax.while_loop` if it has a condition."""
    if not loop.has_condition:
        return _scan(loop)
    return _branch(loop) if loop.is_branch else _while_loop(loop)


def _branch(loop: LoopCode) -> Iterator[str]:
    """Yield `lax.cond` for a loop of at most one iteration: XLA would compute before a `while` what never changes in it."""
    yield f"def {loop.name}({', '.join([*loop.carried, *(f'{name}={name}' for name in loop.held)])}):"
    yield from _indented(loop.body)
    yield f"    return {', '.join(loop.updates)}{',' * (len(loop.updates) == 1)}"
    yield ""
    targets = f"{', '.join(loop.results)}{',' * (len(loop.results) == 1)}"
    yield f"{targets} = lax.cond({loop.starts[0]}, {loop.name}, lambda *carry: carry, {', '.join(loop.starts)})"


def _while_loop(loop: LoopCode) -> Iterator[str]:
    """Yield the function of one iteration, and `lax.while_loop` over it, which also carries the number of the iteration."""
    first, step, bound = (loop.trips - 1, "- 1", ">= 0") if loop.reverse else (0, "+ 1", f"< {loop.trips}")
    stacks = zip(loop.stacks, loop.blanks, strict=True)
    yield from (f"{stack} = {blank}" for stack, blank in stacks)
    yield f"def {loop.name}({', '.join(['carry', *(f'{name}={name}' for name in loop.held)])}):"
    yield f"    {', '.join([loop.index, *loop.carried, *loop.stacks])} = carry"
    yield from _held(loop)
    for part in loop.sliced:
        yield f"    {part.name} = lax.dynamic_index_in_dim({part.whole}, {loop.index}, {part.axis}, False)"
    yield from _indented(loop.body)
    for stack, value in zip(loop.stacks, loop.yields, strict=True):
        yield f"    {stack} = lax.dynamic_update_index_in_dim({stack}, {value}, {loop.index}, 0)"
    yield f"    return {', '.join([f'{loop.index} {step}', *loop.updates, *loop.stacks])}"
    yield ""
    condition = f"lambda carry: {'' if loop.is_unbounded else f'(carry[0] {bound}) & '}carry[1]"
    starts = ", ".join([str(first), *loop.starts, *loop.stacks])
    yield f"_, {', '.join([*loop.results, *loop.stacks])} = lax.while_loop({condition}, {loop.name}, ({starts}))"


def _scan(loop: LoopCode) -> Iterator[str]:
    """Yield the function of one iteration, and `lax.scan` over it, or `unrolled_scan`."""
    numbers = [loop.index] if loop.held else []
    parts = [*(part.name for part in loop.sliced), *numbers]
    carry = loop.carried[0] if len(loop.carried) == 1 else "carry"
    slices = parts[0] if len(parts) == 1 else "slices"
    yield f"def {loop.name}({', '.join([carry, slices, *(f'{name}={name}' for name in loop.held)])}):"
    if len(loop.carried) > 1:
        yield f"    {', '.join(loop.carried)} = carry"
    if len(parts) > 1:
        yield f"    {', '.join(parts)} = slices"
    yield from _held(loop)
    yield from _indented(loop.body)
    yield f"    return {group(loop.updates)}, {group(loop.yields)}"
    yield ""
    wholes = [*map(_slices_first, loop.sliced), *(f"jnp.arange({loop.trips})" for _ in numbers)]
    extent = "" if wholes else f", length={loop.trips}"
    reverse = ", reverse=True" if loop.reverse else ""
    targets = [group(names) if names else "_" for names in (loop.results, loop.stacks)]
    arguments = f"{loop.name}, {group(loop.starts)}, {group(wholes)}"
    if loop.unroll == 1:
        yield f"{', '.join(targets)} = lax.scan({arguments}{extent}{reverse})"
    else:
        yield from (f"{stack} = {blank}" for stack, blank in zip(loop.stacks, loop.blanks, strict=True))
        arguments = f"{arguments}, {group(loop.stacks)}, {loop.trips}, {loop.unroll}"
        yield f"{', '.join(targets)} = unrolled_scan({arguments}{reverse})"


def _held(loop: LoopCode) -> Iterator[str]:
    """Bind held arrays to the number of the iteration. Otherwise XLA would gather them before the loop, and keep them whole.

    Where arrays are held, what the loop carries is bound, too: libtpu would try to scatter sums after the loop, and fail.
    """
    if loop.held:
        names = [*loop.carried, *loop.held]
        yield f"    {', '.join(names)} = bound({', '.join([loop.index, *names])})"


def _slices_first(part: IterationSlice) -> str:
    return part.whole if part.axis == 0 else f"jnp.moveaxis({part.whole}, {part.axis}, 0)"
