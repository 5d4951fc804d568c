"""Rules of primitives, and what visits the steps of a flat function with them: the linker, and then the emitter.

A rule says which axes of arrays are the same, and makes equations. The linker visits the steps in order. A rule gives the
results their axes, and fits the operands to the axes that it wants them to have. Where an array would have a factor twice, such
as queries against keys of one sequence, `fit` renames the axis of an operand at this use. That is the only place where a layout
of the import may have to send data that the user's program does not show, so the rules let small operands be renamed, and
`renames.py` then looks for fewer bytes in all steps together.

Then rules ask the emitter for operands, and make results with its builder. A value of the IR may lack dimensions of the array
that it stands for: then the array repeats it along them. So JAX's broadcasts, transposes and reshapes along factors make no
equations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Dim
from mtfc.frontend.jaxpr.factors import Axis, Factor, alternate, axis, leaves, register, size_of, unite
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Number, Operand, Var

Axes = tuple[Axis, ...]

MIXING = ("gather", "concatenate", "scatter-add")
"""Primitives whose equations put dimensions in an order of their own; later equations keep the order of the function."""

MOVING_GRADIENTS = (*MIXING, "transpose")
"""The same in a backward pass, where gradients of weights are transposed at the line that makes them."""


@attrs.frozen
class PrimitiveRule:
    """A primitive's rule. link: gives the results their axes. emit: makes the results' values from the operands.

    accepts: says if the rule knows a step; a step that no rule knows becomes a call of the primitive itself. takes_keys: True if
    the rule knows random keys. moves: True if the rule moves elements of any dtype, or casts them. otherwise: the rule of steps
    that this one does not know.
    """

    link: Callable[[Linker, AppliedPrimitive], None]
    emit: Callable[[JaxprEmitter, AppliedPrimitive], Sequence[Value]]
    accepts: Callable[[AppliedPrimitive], bool] = lambda step: True
    takes_keys: bool = False
    moves: bool = False
    otherwise: PrimitiveRule | None = None


@attrs.define
class Linker:
    """Gives all arrays their axes. rules: primitive -> rule. other: the rule of all other primitives."""

    rules: Mapping[str, PrimitiveRule]
    other: PrimitiveRule
    spaces: int = 10**9

    def rule(self, step: AppliedPrimitive) -> PrimitiveRule:
        """Return the rule of a step: the first that accepts it, or the rule of calls."""
        rule = self.rules.get(step.primitive)
        if rule is None or step.is_opaque or (step.has_keys and not rule.takes_keys):
            return self.other
        if step.has_carried and not rule.moves:
            return self.other
        while rule is not None and not rule.accepts(step):
            rule = rule.otherwise
        return rule or self.other

    def arguments(self, variables: Iterable[Var]) -> None:
        """Give variables new axes."""
        for var in variables:
            self.give(var, tuple(map(axis, var.shape)))

    def body(self, body: Body) -> None:
        """Link the axes of all steps of a body by the rules of their primitives."""
        for step in body.steps:
            for result in step.results:
                result.is_backward = step.stage == "backward"
            self.rule(step).link(self, step)

    def give(self, var: Var, axes: Axes) -> None:
        """Give a variable its axes."""
        var.axes = axes
        register((f for each in axes for f in each), var.number)

    def keep(self, step: AppliedPrimitive, order: Sequence[int]) -> None:
        """Give the result axes of the first operand, in an order."""
        x, (result,) = step.operands[0], step.results
        self.give(result, tuple(x.axes[j] for j in order))
        result.repeated = frozenset(i for i, j in enumerate(order) if j in x.repeated)

    def fit(
        self,
        step: AppliedPrimitive,
        i: int,
        wanted: Sequence[Axis | None] | Mapping[int, Axis],
        beside: Sequence[Axis] = (),
    ) -> Axes:
        """Let an operand have the wanted axes at this use, and return its axes. wanted: of all axes, or by their numbers.

        An axis that is None may be any, but has no factor of the axes `beside`, now and when other operands are fitted.
        """
        x = step.operands[i]
        if isinstance(wanted, Mapping):
            wanted = [wanted.get(j) for j in range(len(x.shape))]
        found = self.fitted(x.axes, wanted, beside)
        self.space(*beside, *found)
        pairs = zip(found, x.axes, strict=True)
        if any(a != b and leaves(a) != leaves(b) for a, b in pairs):
            step.renamed[i] = found
        return found

    def fitted(self, axes: Axes, wanted: Sequence[Axis | None], beside: Sequence[Axis] = ()) -> Axes:
        """Unite axes with the wanted ones. Where that is refused, the wanted axis takes the place of the axis."""
        pairs = [*zip(axes, wanted, strict=True)]
        found = [a if target is None or unite(a, target) else target for a, target in pairs]
        targets = (*beside, *(target for _, target in pairs if target is not None))
        taken = {f for each in targets for f in leaves(each)}
        for j, (a, target) in enumerate(pairs):
            if target is None:
                if not taken.isdisjoint(leaves(a)):
                    found[j] = self.instead(a, taken)
                taken |= {*leaves(found[j])}
        return tuple(found)

    def instead(self, factors: Axis, taken: set[Factor]) -> Axis:
        """Return an axis for the place of one whose factors are taken."""
        found = alternate(factors)
        if taken.isdisjoint(leaves(found)):
            return found
        return tuple(Factor(f.size) for f in leaves(factors))

    def space(self, *axes: Iterable[Factor]) -> None:
        """Say that factors belong to one iteration space, and so must stay different."""
        self.spaces += 1
        register((f for each in axes for f in each), self.spaces)


@attrs.define(repr=False)
class Rename:
    """A use of an array under other dimensions: see `Linker.fit`. step: the use.

    before, after: the dimensions of the array, and those of the use.
    """

    step: AppliedPrimitive
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]

    def __repr__(self) -> str:
        before, after = (" x ".join(dim.name for dim in dims) for dims in (self.before, self.after))
        place = f"{self.step.span}: " if self.step.span else ""
        return f"<{place}{self.step.primitive} of {before} under {after}>"


@attrs.define
class JaxprEmitter:
    """Makes the equations of a body. dims: factor -> dimension, shared by all bodies.

    calls: name of the function of an opaque call -> its steps.
    is_backward: True for the body of a loop of the backward pass, whose own steps do not say so.
    """

    build: Builder
    dims: Dims
    linker: Linker
    known: dict[Var, Value] = attrs.field(factory=dict)
    renames: list[Rename] = attrs.field(factory=list)
    calls: dict[str, tuple[AppliedPrimitive, ...]] = attrs.field(factory=dict)
    is_backward: bool = False
    _renamed: dict[tuple[Value, Any], Value] = attrs.field(factory=dict)

    def inside(self, build: Builder) -> JaxprEmitter:
        """Return the emitter of a loop's body."""
        return attrs.evolve(self, build=build, known={}, renamed={}, is_backward=build.stage == "backward")

    def run(self, steps: Sequence[AppliedPrimitive]) -> None:
        """Make the equations of steps."""
        for step in steps:
            self.build.span = step.span
            self.build.stage = "backward" if self.is_backward else step.stage
            with self.dims.of_step():
                found = self.linker.rule(step).emit(self, self._at_use(step))
                self.dims.keep(dim for value in found for dim in value.type.dims)
            for var, value in zip(step.results, found, strict=True):
                moving = MOVING_GRADIENTS if self.build.stage == "backward" else MIXING
                own = self.dims_in_order(var, value) if step.primitive in moving else value.type.dims
                self.known[var] = self.build.ordered(value, own)

    def dims_in_order(self, var: Var, *values: Value) -> tuple[Dim, ...]:
        """Return the dimensions of an array in the order of its axes, without those that all given values lack."""
        known = {dim for value in values for dim in value.type.dims}
        return tuple(dim for dim in self.dims.of_axes(var.axes) if dim in known)

    # Operands

    def raw(self, operand: Operand) -> Value:
        """Return the value of an operand as it is: of a number, a constant."""
        if isinstance(operand, Number):
            return self.build.constant(operand.value, operand.dtype)
        return self.known[operand]

    def operand(self, step: AppliedPrimitive, i: int) -> Value:
        """Return an operand with the dimensions that it has at this use. It may lack some."""
        return self.raw(step.operands[i])

    def _at_use(self, step: AppliedPrimitive) -> AppliedPrimitive:
        """Return a step whose operands have the axes of this use."""
        if not step.renamed:
            return step
        operands = [*step.operands]
        for i, axes in step.renamed.items():
            if isinstance(x := operands[i], Var):
                operands[i] = at_use = attrs.evolve(x, axes=axes)
                self.known[at_use] = self.renamed(step, self.raw(x), x.axes, axes)
        return attrs.evolve(step, operands=tuple(operands), renamed={})

    def renamed(self, step: AppliedPrimitive, value: Value, before: Axes, after: Axes) -> Value:
        """Return a value under other axes. before, after: the axes of the value, and the axes that it gets."""
        pairs: list[tuple[Dim, Dim]] = []
        for a, b in zip(before, after, strict=True):
            if [f.size for f in leaves(a)] != [f.size for f in leaves(b)]:
                return self.as_dims(self.whole(value, before), self.dims.of_axes(after))
            pairs += zip(self.dims.of(a), self.dims.of(b), strict=True)
        mapping = tuple((x, y) for x, y in pairs if x is not y and x in value.type.dims)
        if not mapping:
            return value
        key = value, frozenset(mapping)
        if key not in self._renamed:
            self.renames.append(Rename(step, *map(tuple, zip(*mapping, strict=True))))
            self._renamed[key] = self.build("rename", value, mapping=mapping)
        return self._renamed[key]

    def whole(self, value: Value, axes: Axes) -> Value:
        """Return a value with all dimensions of its axes, in order."""
        return self.with_dims(value, self.dims.of_axes(axes))

    def as_dims(self, value: Value, dims: tuple[Dim, ...]) -> Value:
        """Reshape a value to dimensions, in row-major order."""
        return value if value.type.dims == dims else self.build("reshape", value, dims=dims)

    def has(self, value: Value, factors: Iterable[Factor]) -> bool:
        """Return True if a value has one of some factors."""
        return any(dim in value.type.dims for dim in self.dims.of(factors))

    # Axes as single dimensions

    def merged(self, value: Value, axes: Axes, j: int, dim: Dim | None = None) -> tuple[Value, Dim]:
        """Return a value in which one axis is a single dimension, the last one.

        dim: the dimension; else the axis's own if it has one factor, or else a new one.
        """
        own = self.dims.of(axes[j])
        others = tuple(d for d in value.type.dims if d not in own)
        target = dim or self.single(axes[j])
        return self.as_dims(self.with_dims(value, (*others, *own)), (*others, target)), target

    def single(self, factors: Axis, name: str = "axis") -> Dim:
        """Return the dimension of an axis: a new one if it has several factors, or none."""
        own = self.dims.of(factors)
        return own[0] if len(own) == 1 else self.dims.new(name, size_of(leaves(factors)))

    def parted(self, value: Value, dim: Dim, factors: Axis) -> Value:
        """Return a value in which one dimension is replaced by an axis's own ones: undo `merged`."""
        own = self.dims.of(factors)
        if own == (dim,):
            return value
        others = tuple(d for d in value.type.dims if d != dim)
        return self.as_dims(self.with_dims(value, (*others, dim)), (*others, *own))

    def with_dims(self, value: Value, dims: tuple[Dim, ...]) -> Value:
        """Return a value with exactly some dimensions in order: it is repeated along those that it lacks."""
        if set(dims) != set(value.type.dims):
            return self.build("broadcast", value, dims=dims)
        return self.build.ordered(value, dims)

    # Operations

    def elementwise(self, op: str, *values: Value, **attributes: Any) -> Value:
        """Apply an elementwise op to values of which none may have all dimensions; then the largest value is broadcast to all
        of them.
        """
        dims = tuple(dict.fromkeys(dim for value in values for dim in value.type.dims))
        if all(len(value.type.dims) < len(dims) for value in values):
            widest = max(range(len(values)), key=lambda i: values[i].type.size)
            values = tuple(self.with_dims(v, dims) if i == widest else v for i, v in enumerate(values))
        return self.build(op, *values, **attributes)

    def times(self, value: Value, number: int) -> Value:
        """Multiply by a whole number."""
        return value if number == 1 else self.build("mul", value, self.build.like(number, value))


@attrs.define
class Dims:
    """The dimensions of factors. They are made on demand, when all axes are linked and named.

    free: (name, size) -> dimensions that rules have made for the equations of one step. Later steps use them again, so equal
    steps make equal equations. used: the names and sizes of those that are in use. known: factor -> its dimension.
    """

    known: dict[Factor, Dim] = attrs.field(factory=dict)
    names: dict[str, int] = attrs.field(factory=dict)
    sizes: dict[str, Dim] = attrs.field(factory=dict)
    free: dict[tuple[str, int], list[Dim]] = attrs.field(factory=dict)
    used: list[tuple[str, int]] = attrs.field(factory=list)

    def of(self, factors: Iterable[Factor]) -> tuple[Dim, ...]:
        """Return the dimensions of factors."""
        return tuple(self._of(factor) for factor in leaves(factors))

    def of_axes(self, axes: Axes) -> tuple[Dim, ...]:
        """Return the dimensions of several axes, in order."""
        return self.of(factor for axis in axes for factor in axis)

    def _of(self, factor: Factor) -> Dim:
        """Return the dimension of a factor, made at its first use: by a wanted name, by the name of its alternate, or `d`."""
        if factor not in self.known:
            other = factor.alternate.root() if factor.alternate is not None else None
            wanted = min(factor.wanted, default=None)
            if wanted is not None:
                name = wanted[1]
            elif other in self.known and not other.parts:
                name = f"{self.known[other].name}_other"
            else:
                name = "d"
            self.known[factor] = self._made(name, factor.size)
        return self.known[factor]

    def new(self, name: str, size: int) -> Dim:
        """Return a dimension that no other equation of this step has, but for those around it."""
        key = name, int(size)
        free, used = self.free.setdefault(key, []), self.used.count(key)
        if used == len(free):
            free.append(self._made(name, size))
        self.used.append(key)
        return free[used]

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Free the new dimensions of a step at its end."""
        before = len(self.used)
        yield
        del self.used[before:]

    def keep(self, dims: Iterable[Dim]) -> None:
        """Let no later step use dimensions of the results of a step."""
        kept = {*dims}
        for key, free in self.free.items():
            if not kept.isdisjoint(free):
                self.free[key] = [dim for dim in free if dim not in kept]

    def _made(self, name: str, size: int) -> Dim:
        """Make a dimension with a new name."""
        number = self.names.get(name, 0) + 1
        self.names[name] = number
        found = f"d{number}" if name == "d" else name if number == 1 else f"{name}_{number}"
        if found in self.sizes:
            return self._made(name, size)
        return self.sizes.setdefault(found, Dim(found, int(size)))

    @property
    def by_name(self) -> Mapping[str, Dim]:
        return self.sizes
