"""Helpers for passes: substitute and rename values in a function, and copy functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Value
from mtfc.compiler.ir.types import Axes, TensorType


def names_of(function: Function) -> Names:
    """Return the names that a function uses."""
    return Names(value.name for value in defined_values(function))


def defined_values(function: Function) -> Iterable[Value]:
    """Yield arguments and results in order of definition; values of regions are in scopes of their own."""
    yield from (argument.value for argument in function.arguments)
    for eqn in function.body:
        yield from eqn.results


def needed_for(outputs: Iterable[Output], body: Sequence[Equation]) -> tuple[Equation, ...]:
    """Return the equations that outputs depend on, in order. Loops stay as they are."""
    needed = {output.value for output in outputs}
    kept = []
    for eqn in reversed(body):
        if needed.intersection(eqn.results):
            needed.update(eqn.operands)
            kept.append(eqn)
    return tuple(reversed(kept))


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
