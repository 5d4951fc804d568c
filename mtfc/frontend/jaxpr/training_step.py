"""A function that returns its model anew as a training step, with the roles and stages that steps of the language have.

So rules of storage apply to the model and to the optimizer's state, and both are returned as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Operand, Var, all_steps


def training_functions(whole: Function, replaced: Mapping[str, str]) -> tuple[Function, ...]:
    """Return `forward` and `step`, or `forward` alone for a function that returns no model, or computes no gradients and no loss.

    replaced: name of an output -> the argument that it replaces. Arguments that the other outputs need are the model; the others
    that are replaced are the optimizer's state. A step returns all of the model: what it does not replace, too. If no other
    output needs the model, `forward` computes the gradients.
    """
    plain = [output for output in whole.outputs if output.name not in replaced]
    if len(plain) == len(whole.outputs):
        return (whole,)
    model = {a.value for a in whole.arguments if a.value.name in replaced.values()}
    needed = _ancestors(whole.body, (output.value for output in plain))
    computed = plain if model & needed else [*plain, *_gradients(whole.body, plain)]
    needed = _ancestors(whole.body, (output.value for output in computed))
    if not model & needed:
        return (whole,)
    arguments = tuple(_with_role(a, needed, replaced.values()) for a in whole.arguments)
    outputs = tuple(attrs.evolve(output, updates=replaced.get(output.name)) for output in whole.outputs)
    names = Names(output.name for output in whole.outputs)
    kept = tuple(
        Output(names.fresh(a.value.name), a.value, a.value.name)
        for a in arguments
        if a.role == "parameter" and a.value.name not in replaced.values()
    )
    body = tuple(eqn for eqn in whole.body if not needed.isdisjoint(eqn.results))
    forward = Function("forward", _without_state(arguments), body, tuple(computed))
    outputs = _ordered((*outputs, *kept))
    return forward, Function("step", arguments, _by_output([*_staged(whole.body, plain)], outputs), outputs)


def _gradients(body: Iterable[Equation], plain: Iterable[Output]) -> list[Output]:
    """Return the values of the backward pass that other equations need, as outputs beside the plain ones."""
    backward = {value: None for eqn in body if eqn.stage == "backward" for value in eqn.results}
    needed = _ancestors(body, backward)
    used = (value for eqn in body if needed.isdisjoint(eqn.results) for value in eqn.operands)
    names = Names(output.name for output in plain)
    return [Output(names.fresh("gradient"), value) for value in dict.fromkeys(used) if value in backward]


def update_results(steps: Sequence[AppliedPrimitive], outputs: Iterable[Operand]) -> frozenset[Var]:
    """Return the results of the steps of the update: neither gradients nor some outputs need them."""
    needed = set(outputs)
    found: list[AppliedPrimitive] = []
    for step in reversed(steps):
        if step.stage == "backward" or not needed.isdisjoint(step.results):
            needed |= {*step.operands}
        else:
            found.append(step)
    return frozenset(var for step in all_steps(found) for var in step.results)


def _ancestors(body: Iterable[Equation], values: Iterable[Value]) -> set[Value]:
    """Return all values that some values are computed from."""
    needed = set(values)
    for eqn in reversed([*body]):
        if not needed.isdisjoint(eqn.results):
            needed |= {*eqn.operands, *eqn.results}
    return needed


def _with_role(argument: Argument, needed: set[Value], replaced: Iterable[str]) -> Argument:
    is_state = argument.value.name in {*replaced} and argument.value not in needed
    return attrs.evolve(argument, role="state") if is_state else argument


def _without_state(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    return tuple(argument for argument in arguments if argument.role != "state")


def _ordered(outputs: Iterable[Output]) -> tuple[Output, ...]:
    """Return the outputs that replace nothing first."""
    return tuple(sorted(outputs, key=lambda output: output.updates is not None))


def _by_output(body: Sequence[Equation], outputs: Iterable[Output]) -> tuple[Equation, ...]:
    """Return the equations, those of the update last and in groups.

    A group has the equations that an output needs, and after them the last equations whose operands are then there. An optimizer
    of optax computes each of its quantities for all parameters before the next one. In that order all would be in memory at the
    same time.
    """
    place = {eqn: i for i, eqn in enumerate(body)}
    updates = {value: eqn for eqn in body if eqn.stage == "update" for value in eqn.results}
    last = {updates[output.value] for output in outputs if output.value in updates}
    users: dict[Value, list[Equation]] = {}
    for eqn in last:
        for value in eqn.operands:
            users.setdefault(value, []).append(eqn)
    found = {eqn: None for eqn in body if eqn.stage != "update"}
    for output in (*outputs, *(Output("", value) for value in updates)):
        needed, todo = set[Equation](), [output.value]
        while todo:
            made = updates.get(todo.pop())
            if made is not None and made not in found and made not in needed:
                needed.add(made)
                todo += made.operands
        found |= dict.fromkeys(sorted(needed, key=place.__getitem__))
        ends = {end for eqn in needed for value in eqn.results for end in users.get(value, ())}
        ready = (end for end in ends if all(v not in updates or updates[v] in found for v in end.operands))
        found |= dict.fromkeys(sorted(ready, key=place.__getitem__))
    return tuple(found)


def _staged(body: tuple[Equation, ...], plain: Iterable[Output]) -> Iterable[Equation]:
    """Yield the equations; those that neither outputs nor gradients need belong to the update."""
    gradients = [value for eqn in body if eqn.stage == "backward" for value in eqn.results]
    needed = _ancestors(body, [*gradients, *(output.value for output in plain)])
    for eqn in body:
        is_update = eqn.stage == "forward" and needed.isdisjoint(eqn.results)
        yield attrs.evolve(eqn, stage="update") if is_update else eqn
