"""Gathering parameters that are stored, or updated, under other rules than they are used under (ZeRO, FSDP)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.analysis.buffer_kinds import readers_of
from mtfc.compiler.analysis.dimension_names import (
    OPTIMIZER,
    PARAMS,
    SINGLE,
    Dims,
    IsCommon,
    computed,
    rule_of,
)
from mtfc.compiler.cost.lower_bounds import CommonProgram, WholeArray
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import dim_of, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME


@attrs.frozen
class StoredParameter:
    """A parameter that is stored under the dimensions `array.dims` and used under the dimensions `used`.

    pairs: the name of each dimension in storage and at the use, if one collective for each dimension gathers the parameter.
    """

    array: WholeArray
    used: Dims
    pairs: tuple[tuple[str, str], ...]


def stored_parameters(program: CommonProgram) -> Iterator[StoredParameter]:
    """Yield the uses of stored parameters, and the updated parameters that leave the function."""
    function, names = program.function, program.names
    uses = readers_of(walk(function.body))
    needing = _needing(function, program.is_common, uses)
    for argument in (each for each in function.arguments if each.role == "parameter"):
        for use in _uses_of_parameter(argument.value, uses, needing, 1):
            used, dims = computed(names.names[use.value]), use.value.type.names
            stored = [name for name in dims if name in argument.value.type.names]
            pairs = tuple((f"{PARAMS}{name}", name) for name in stored) if used == frozenset(dims) else ()
            trips = use.trips if pairs else 1
            array = WholeArray(use.bytes // trips, names.own[argument.value] | used, trips)
            yield StoredParameter(array, used, pairs)
    for output in (each for each in function.outputs if each.updates is not None):
        value, own = output.value, names.own[output.value]
        wanted = names.stored[output.updates or ""]
        pairs = tuple((f"{OPTIMIZER}{name}", f"{PARAMS}{name}") for name in value.type.names)
        if own != {name for name, _ in pairs} or wanted != {name for _, name in pairs}:
            pairs = ()
        array = WholeArray(value.type.local_bytes(SINGLE), own | wanted)
        yield StoredParameter(array, wanted, pairs)


@attrs.frozen
class _ParameterUse:
    """A use of a parameter in the computation: bytes of all executions, the value used, executions."""

    bytes: int
    value: Value
    trips: int


def _needing(function: Function, is_common: IsCommon, uses: Mapping[Value, list[Equation]]) -> set[Equation]:
    """Return the equations that need their operands split by the rules of the computation.

    These are equations that reduce or whose results leave, and those before them that keep names. Others may follow an update.
    """
    found: set[Equation] = set()
    for body in (function, *(region_of(eqn) for eqn in walk(function.body) if eqn.regions)):
        outputs = {out.value for out in body.outputs if (out.updates is None) == (body is function)}
        for eqn in reversed(body.body):
            if eqn.stage != "update" and not eqn.regions and is_common(eqn):
                users = ((user, value) for value in eqn.results for user in uses.get(value, ()))
                stays = rule_of(eqn).reduced or not outputs.isdisjoint(eqn.results)
                if stays or any(u.regions or (u in found and _keeps_names(u, v)) for u, v in users):
                    found.add(eqn)
    return found


def _uses_of_parameter(
    value: Value, uses: Mapping[Value, list[Equation]], needing: set[Equation], trips: int
) -> list[_ParameterUse]:
    """Return the uses of a parameter, at the fewest bytes on the way: one use for each loop that slices the parameter, and one
    use outside of loops. A value that is computed from the parameter and used outside of loops is not stored like the parameter.
    """
    loops: list[_ParameterUse] = []
    outside: list[_ParameterUse] = []
    size = value.type.local_bytes(SINGLE) * trips
    for eqn in uses.get(value, ()):
        if eqn.regions:
            loops += _uses_in_loop(eqn, value, uses, needing, trips)
        elif rule_of(eqn) is BY_NAME and len(eqn.operands) == 1 and eqn.stage != "update":
            found = _uses_of_parameter(eqn.result, uses, needing, trips)
            if all(_slices(user, eqn.result) for user in uses.get(eqn.result, ())):
                loops += found
            else:
                outside += [attrs.evolve(each, trips=trips) for each in found]
        elif eqn in needing and _keeps_names(eqn, value):
            outside.append(_ParameterUse(size, value, trips))
    found = [*loops, *sorted(outside, key=lambda each: each.bytes)[:1]]
    return [attrs.evolve(each, bytes=min(size, each.bytes)) for each in found]


def _slices(eqn: Equation, value: Value) -> bool:
    return bool(eqn.regions) and all(a.role == "sliced" for v, a in pairs(eqn) if v is value)


def _keeps_names(eqn: Equation, value: Value) -> bool:
    rule = rule_of(eqn)
    return all(rule.index.get(name, name) == name for name in value.type.names)


def _uses_in_loop(
    eqn: Equation, value: Value, uses: Mapping[Value, list[Equation]], needing: set[Equation], trips: int
) -> list[_ParameterUse]:
    inside = next(argument for operand, argument in pairs(eqn) if operand is value)
    if inside.role != "sliced":
        return []
    return _uses_of_parameter(inside.value, uses, needing, trips * dim_of(eqn).size)[:1]
