"""The outputs that are means over a count of the data, such as `sum(nll * mask) / sum(mask)`.

The mean over several batches weighs such an output by the count of each batch. Any other output weighs by the number of rows.
"""

from collections.abc import Mapping

import attrs

from mtfc.compiler.ir.core import Equation, Function, Output, Program, Training, Value
from mtfc.compiler.ir.opdef import Trait
from mtfc.compiler.ir.ops import has_trait

Makers = Mapping[Value, Equation]

TERMS: tuple[Trait, ...] = ("divide", "multiply", "add", "subtract", "cast")
"""The ops between a mean and an output that has its count."""

BOUNDED: tuple[Trait, ...] = ("cast", "maximum", "multiply", "add")
"""The ops between a count and the divisor that it becomes, together with a constant."""


def with_weights(program: Program) -> tuple[Program, dict[str, str]]:
    """Return a program whose `forward` also has an output for each count, and output -> the name of its count."""
    forward = program.function("forward")
    widened, counted = with_counts(forward)
    functions = (widened if each is forward else each for each in program.functions)
    return attrs.evolve(program, functions=tuple(functions)), counted


def weights_of(forward: Function, training: Training | None) -> dict[str, str]:
    """Return output -> the output that weighs it in the mean over micro-batches. `forward` has the counts of `with_counts`."""
    if training is None or training.weigh_by is None:
        return {}
    names = {
        value: name for name, value in ((each.name, each.value) for each in reversed(forward.handed_out))
    }
    counts = {name: names[value] for name, value in counts_of(forward).items() if value in names}
    found = {name: counts[name] for name in training.report if name in counts and name != training.weigh_by}
    return {training.minimize: training.weigh_by, **found}


def unit_of(forward: Function, training: Training) -> float:
    """Return a factor for the cotangents of weighed micro-batches, so that 16 bits hold them: their weights can be large numbers.

    It is one by the number of micro-batches, and by the number of elements that the weight is a sum of.
    """
    makers = {result: eqn for eqn in forward.body for result in eqn.results}
    weights = [each.value for each in forward.handed_out if each.name == training.weigh_by]
    counts = [count for value in weights if (count := _count(value, makers, set()))]
    return 1 / (training.accumulate * (makers[counts[0]].operands[0].type.size if counts else 1))


def with_counts(forward: Function) -> tuple[Function, dict[str, str]]:
    """Return a function that also has an output for each count, and output -> the name of its count."""
    counts = counts_of(forward)
    names = {value: f"count.{i}" for i, value in enumerate(dict.fromkeys(counts.values()))}
    added = tuple(Output(name, value) for value, name in names.items())
    counted = {name: names[value] for name, value in counts.items()}
    return attrs.evolve(forward, outputs=(*forward.outputs, *added)), counted


def counts_of(forward: Function) -> dict[str, Value]:
    """Return the count of each output that is a mean over a count."""
    makers = {result: eqn for eqn in forward.body for result in eqn.results}
    trained = _from_parameters(forward)
    found = {each.name: _counts(each.value, makers, trained) for each in forward.handed_out}
    return {name: next(iter(counts)) for name, counts in found.items() if len(counts) == 1}


def _from_parameters(forward: Function) -> set[Value]:
    """Return the values that depend on parameters."""
    found = {each.value for each in forward.arguments if each.role == "parameter"}
    for eqn in forward.body:
        if not found.isdisjoint(eqn.operands):
            found |= set(eqn.results)
    return found


def _counts(value: Value, makers: Makers, trained: set[Value]) -> set[Value]:
    """Return the counts that a scalar is divided by, through factors and terms that have no count."""
    waiting, seen, found = [value], set[Value](), set[Value]()
    while waiting:
        value = waiting.pop()
        eqn = makers.get(value)
        if eqn is None or value in seen or value.type.dims:
            continue
        seen.add(value)
        if has_trait(eqn, "divide"):
            count = _count(eqn.operands[1], makers, trained)
            found |= set() if count is None else {count}
        if any(has_trait(eqn, trait) for trait in TERMS):
            waiting += eqn.operands
    return found


def _count(value: Value, makers: Makers, trained: set[Value]) -> Value | None:
    """Return the sum over the data that a divisor is, but for a cast, a least value, or a constant factor or term."""
    while (eqn := makers.get(value)) is not None and any(has_trait(eqn, trait) for trait in BOUNDED):
        rest = [
            each for each in eqn.operands if each not in makers or not has_trait(makers[each], "constant")
        ]
        if len(rest) != 1:
            return None
        (value,) = rest
    is_sum = eqn is not None and has_trait(eqn, "sum") and not value.type.dims
    return value if is_sum and value not in trained else None
