"""Build equations: the builder infers types by the ops' rules, and gives fresh names, the current span and the current stage.

Beside it are helpers for passes that substitute and rename values in a function, and copy functions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Stage, Value
from mtfc.compiler.ir.opdef import form_error
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Axes, Dim, TensorType


class Names:
    """Gives names that are unique within one function: `h`, `h_2`, `h_3` ..."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """Return a name that is not taken: the wanted one, or with a number behind it."""
        name, number = wanted, self._next.get(wanted, 2)
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._next[wanted] = number
        self._taken.add(name)
        return name


class VerifyError(Exception):
    """An invariant does not hold: `reason` says which, `where` and `span` say where."""

    def __init__(self, reason: str, where: str, span: Span | None = None) -> None:
        super().__init__(f"{reason}\n  in {where}" + (f"\n  from {span}" if span else ""))
        self.reason, self.where, self.span = reason, where, span


def is_narrow(type: TensorType, dtype: str = "f32") -> bool:
    """Return True for floats of fewer bits than a dtype has."""
    return type.dtype in FLOATS and ITEM_BYTES[type.dtype] < ITEM_BYTES[dtype]


def wide_type(type: TensorType) -> TensorType:
    """Return the type with f32 in the place of floats of 16 bits."""
    return type.with_dtype("f32") if is_narrow(type) else type


class Builder:
    """Appends equations to `body`; they get the current `span` and `stage`."""

    def __init__(self, names: Names, span: Span | None = None, stage: Stage = "forward") -> None:
        """Start without equations.

        _constants: (text, dtype) -> the constant that later uses share.
        """
        self.names, self.span, self.stage = names, span, stage
        self.body: list[Equation] = []
        self._constants: dict[tuple[str, str], Value] = {}

    def __call__(self, op: str, *operands: Value, name: str = "", **attributes: Attr) -> Value:
        """Append one equation and return its only result.

        Raise `OpError` if the op refuses the operands, and `VerifyError` if the equation is malformed: see `several`.
        """
        (result,) = self.several(op, *operands, names=(name or op,), **attributes)
        return result

    def several(
        self, op: str, *operands: Value, names: Sequence[str], **attributes: Attr
    ) -> tuple[Value, ...]:
        """Append one equation and return its results, called `names`. Raise `OpError` if the op refuses the operands.

        Raise `VerifyError` if there is no such op, or if the op has other operands, attributes or results.
        """
        wrong = form_error(OPS[op], len(operands), attributes) if op in OPS else f"unknown op {op}"
        if wrong is not None:
            raise VerifyError(wrong, f"a new equation called {', '.join(names)}", self.span)
        types = OPS[op].infer([v.type.unsplit() for v in operands], attributes)
        if len(types) != len(names):
            raise VerifyError(f"{op} has {len(types)} results", f"a new equation called {', '.join(names)}")
        results = tuple(Value(self.names.fresh(name), type) for name, type in zip(names, types, strict=True))
        self.append(Equation(op, operands, results, attributes, span=self.span, stage=self.stage))
        return results

    def append(self, eqn: Equation) -> None:
        self.body.append(eqn)

    def replace(self, old: Equation, new: Equation) -> None:
        """Put `new` in the place of `old`."""
        self.body[self.body.index(old)] = new

    def constant(self, value: float | int | bool, dtype: str) -> Value:
        """Return the scalar `value`. Equal constants share one equation. Floats are rounded, too large ones to infinity."""
        value = fitted(value, dtype)
        key = (dtype, repr(value))  # `repr` tells 0.0 from -0.0
        if key not in self._constants:
            self._constants[key] = self("constant", name="c", value=value, dtype=dtype)
        return self._constants[key]

    def like(self, value: float | int | bool, other: Value) -> Value:
        """Return the scalar `value` in the dtype of `other`."""
        return self.constant(value, other.type.dtype)

    def zeros(self, type: TensorType) -> Value:
        """Return zeros of a type; of truth values false."""
        value = False if type.dtype == "bool" else 0.0 if type.dtype in FLOATS else 0
        return self("full", dims=type.dims, value=value, dtype=type.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self("cast", x, dtype=dtype)

    def wide(self, x: Value) -> Value:
        """Cast a float of 16 bits to f32; return any other value as it is."""
        return self.cast(x, wide_type(x.type).dtype)

    def sum_to(self, x: Value, dims: Sequence[Dim]) -> Value:
        """Sum `x` over the dimensions that `dims` lacks: the transpose of a broadcast."""
        over = tuple(dim for dim in x.type.dims if dim not in dims)
        return self("sum", x, over=over) if over else x

    def einsum(self, *operands: Value, dims: Sequence[Dim]) -> Value:
        return self("einsum", *operands, dims=tuple(dims))

    def ordered(self, x: Value, dims: Sequence[Dim]) -> Value:
        """Return `x` with its dimensions in the given order."""
        return x if x.type.dims == tuple(dims) else self("transpose", x, dims=tuple(dims))

    def broadcast(self, x: Value, type: TensorType) -> Value:
        """Return `x` broadcast to the dimensions of `type`."""
        return x if set(type.dims) == set(x.type.dims) else self("broadcast", x, dims=type.dims)


# Functions


def names_of(function: Function) -> Names:
    """Return the names that a function uses."""
    return Names(value.name for value in defined_values(function))


def defined_values(function: Function) -> Iterable[Value]:
    """Yield arguments and results in order of definition; values of regions are in scopes of their own."""
    yield from (argument.value for argument in function.arguments)
    for eqn in function.body:
        yield from eqn.results


class Substitution:
    """A map from old values to new ones that grows while a pass walks a body. A value without an entry maps to itself.

    A new value may be replaced later too: a lookup follows the chain.
    """

    def __init__(self, entries: Mapping[Value, Value] = {}) -> None:
        self._new = dict(entries)

    def __getitem__(self, value: Value) -> Value:
        while (new := self._new.get(value, value)) is not value:
            value = new
        return value

    def __setitem__(self, old: Value, new: Value) -> None:
        self._new[old] = new

    def all(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(values if self._keeps(values) else [self[value] for value in values])

    def _keeps(self, values: Sequence[Value]) -> bool:
        return self._new.keys().isdisjoint(values)

    def equation(self, eqn: Equation) -> Equation:
        """Substitute operands and results; return the same object if none changes. Regions use neither, so they stay."""
        if self._keeps(eqn.operands) and self._keeps(eqn.results):
            return eqn
        return attrs.evolve(eqn, operands=self.all(eqn.operands), results=self.all(eqn.results))

    def function(self, function: Function, body: Iterable[Equation]) -> Function:
        """Return the function with a body that is substituted already, and substitute its outputs."""
        outputs = tuple(
            o if self[o.value] is o.value else attrs.evolve(o, value=self[o.value]) for o in function.outputs
        )
        return attrs.evolve(function, body=tuple(body), outputs=outputs)


def with_layouts(
    function: Function,
    layout: Callable[[Argument | Output], Mapping[str, Axes] | None],
    equation: Callable[[Equation], Equation],
) -> Function:
    """Return the function with the layout of each argument and output, and with changed equations."""
    arguments = tuple(attrs.evolve(each, layout=layout(each)) for each in function.arguments)
    outputs = tuple(attrs.evolve(each, layout=layout(each)) for each in function.outputs)
    return Function(function.name, arguments, tuple(map(equation, function.body)), outputs)


def fresh_copy(
    function: Function,
    type_of: Callable[[Value], TensorType] = lambda value: value.type,
    attributes: Callable[[Equation], Mapping[str, Attr]] = lambda eqn: eqn.attrs,
) -> Function:
    """Return a copy of the function, regions included, with new values under the same names.

    type_of: value -> its type in the copy. attributes: equation -> the attributes in the copy.
    """
    new = Substitution()

    def renewed(value: Value) -> Value:
        new[value] = Value(value.name, type_of(value))
        return new[value]

    arguments = tuple(attrs.evolve(a, value=renewed(a.value)) for a in function.arguments)
    body = []
    for eqn in function.body:
        operands, results = new.all(eqn.operands), tuple(map(renewed, eqn.results))
        regions = tuple(fresh_copy(region, type_of, attributes) for region in eqn.regions)
        own = attributes(eqn)
        body.append(attrs.evolve(eqn, operands=operands, results=results, regions=regions, attrs=own))
    return attrs.evolve(new.function(function, body), arguments=arguments)


def needed_for(
    values: Iterable[Value], body: Sequence[Equation], stays: Callable[[Equation], bool] = lambda eqn: False
) -> tuple[Equation, ...]:
    """Return the equations that some values depend on, in order, and the equations that must stay. Loops stay as they are."""
    needed = set(values)
    kept = []
    for eqn in reversed(body):
        if stays(eqn) or needed.intersection(eqn.results):
            needed.update(eqn.operands)
            kept.append(eqn)
    return tuple(reversed(kept))


def rename_values(function: Function, names: Mapping[Value, str]) -> Function:
    """Rename some results of a function's equations; a name that is taken gets a number."""
    taken = names_of(function)
    renamed = Substitution(
        {value: attrs.evolve(value, name=taken.fresh(name)) for value, name in names.items()}
    )
    return renamed.function(function, [renamed.equation(eqn) for eqn in function.body])


Rewrite = Callable[[Builder, Equation], Sequence[Value] | None]
"""Appends equations to a builder, and returns values for the results of an equation; None keeps the equation."""


def rewritten(function: Function, rule_of: Callable[[Function], Rewrite]) -> Function:
    """Rewrite the equations of a function, also in loops. rule_of: returns the rule for a function, or for a region."""
    names, rule, body = names_of(function), rule_of(function), list[Equation]()
    for eqn in function.body:
        build = Builder(names, eqn.span, eqn.stage)
        found = None if eqn.regions else rule(build, eqn)
        if found is not None:
            body += _with_results(eqn, build, found)
        else:
            regions = tuple(rewritten(region, rule_of) for region in eqn.regions)
            body.append(attrs.evolve(eqn, regions=regions) if regions else eqn)
    return attrs.evolve(function, body=tuple(body))


def _with_results(eqn: Equation, build: Builder, results: Sequence[Value]) -> list[Equation]:
    """Return the equations that a rule has built, and give their results the names of the results that they replace."""
    old = Substitution()
    for value, result in zip(eqn.results, results, strict=True):
        made = build.ordered(result, value.type.dims)
        assert made.type == value.type, f"{eqn.op} is rewritten as {made.type}, not {value.type}"
        is_new = any(made in each.results for each in build.body)
        old[made if is_new else build("transpose", made, dims=made.type.dims)] = value
    body = [old.equation(each) for each in build.body]
    return [attrs.evolve(e, path=eqn.path) if eqn.results[0] in e.results else e for e in body]
