"""The equations of each part of a model as a program, for checks of the part's layout."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.passes.dce import needed_for
from mtfc.meshes.mesh_labels import MeshLabels, MeshPart, mesh_labels


def part_programs(program: Program, parts: Sequence[MeshPart]) -> tuple[Program, ...]:
    """Return a program for each part: its equations of `forward`, and the parameters that are stored on its mesh."""
    labels = mesh_labels(program.function("forward"), parts)
    return tuple(_of_part(program, labels, number) for number in range(len(parts)))


def _of_part(program: Program, labels: MeshLabels, part: int) -> Program:
    forward = program.function("forward")
    body = [eqn for eqn in forward.body if labels.of.get(eqn, part) == part]
    read = {value for eqn in body for value in eqn.operands}
    made = {value for eqn in body for value in eqn.results}
    own = [_arriving(a, labels, part) for a in forward.arguments if _is_there(a, read, labels, part)]
    known = {argument.value for argument in own}
    others = [eqn for eqn in forward.body if eqn not in body]
    own += [Argument(v, "input", eqn.span) for eqn in others for v in eqn.results if v in read - known]
    sent = {value for eqn in others for value in eqn.operands} & made
    returned = [o for o in forward.outputs if o.updates is None and o.value in made]
    outputs = [Output(v.name, v) for v in sorted(sent, key=lambda v: v.name)]
    outputs += [o for o in returned if o.value not in sent]
    stored = {argument.value.name for argument in own if argument.role == "parameter"}
    return attrs.evolve(
        program,
        parameters=tuple(each for each in program.parameters if each.name in stored),
        functions=(Function("forward", tuple(own), needed_for(outputs, body), tuple(outputs)),),
        training=None,
    )


def _is_there(argument: Argument, read: set[Value], labels: MeshLabels, part: int) -> bool:
    return argument.value in read or (argument.role == "parameter" and labels.homes[argument.value] == part)


def _arriving(argument: Argument, labels: MeshLabels, part: int) -> Argument:
    is_stored = labels.homes[argument.value] == part
    return argument if is_stored or argument.role == "input" else attrs.evolve(argument, role="input")
