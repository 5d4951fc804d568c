"""Realizing layouts: types with splits, and `reshard`s on the edges where a use wants a value placed otherwise.

One function serves two passes. Given which pending sums may pass through which equations, it re-types a function in order of
definition: an operand is brought to where the equation's layout needs it, the cheapest way from any version of the value
that exists already, and the result's type follows. A reshard that makes a value smaller on a processor, or no larger, stands
right behind what makes the value, one that makes it larger right before its use: memory is held for as short as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mtfc.compiler.analysis.reshard_plans import plan
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import charged_equation, dim_of, region_of, result_type
from mtfc.compiler.ir.opdef import LayoutRule, no_flops
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.rewrite import names_of
from mtfc.compiler.ir.sharding_rules import operand_type, result_types
from mtfc.compiler.ir.types import Axes, Mesh, TensorType


@attrs.frozen
class Passing:
    """Where pending sums go on instead of being completed.

    through: result of an equation -> operand number -> axes over which a sum passes through. loops: result of a loop -> axes
    over which what is carried or yielded stays pending.
    """

    through: dict[Value, dict[int, Axes]] = attrs.field(factory=dict)
    loops: dict[Value, Axes] = attrs.field(factory=dict)


@attrs.frozen
class Made:
    """One version of a value, with the equation that makes it (None for an argument)."""

    value: Value
    by: Equation | None


class Realization:
    """Re-types one function, or a loop's region; `body` grows as equations and the reshards before them are made.

    `pending`: argument or output of a region -> axes over which it is pending.
    """

    def __init__(
        self, function: Function, mesh: Mesh, passing: Passing, pending: Mapping[str, Axes] = {}
    ) -> None:
        self.mesh, self.passing, self.names = mesh, passing, names_of(function)
        self.pending = pending
        self.body: list[Equation] = []
        self.behind: dict[Equation, list[Equation]] = {}
        self.versions: dict[Value, list[Made]] = {}
        self.defined = {value: eqn for eqn in function.body if len(eqn.results) == 1 for value in eqn.results}
        self.source = function

    def run(self) -> Function:
        arguments = tuple(self._argument(argument) for argument in self.source.arguments)
        for eqn in self.source.body:
            self._equation(eqn)
        outputs = tuple(self._output(output) for output in self.source.outputs)
        body = tuple(each for eqn in self.body for each in self._with_followers(eqn))
        return attrs.evolve(self.source, arguments=arguments, body=body, outputs=outputs)

    def _with_followers(self, eqn: Equation) -> Iterator[Equation]:
        yield eqn
        for follower in self.behind.get(eqn, ()):
            yield from self._with_followers(follower)

    def _argument(self, argument: Argument) -> Argument:
        old = argument.value
        pending = self.pending.get(old.name, ()) if argument.role == "carried" else ()
        value = Value(old.name, old.type.split_by(argument.layout or {}, pending))
        self.versions[old] = [Made(value, None)]
        return attrs.evolve(argument, value=value)

    def _output(self, output: Output) -> Output:
        wanted = output.value.type.split_by(output.layout or {}, self.pending.get(output.name, ()))
        return attrs.evolve(output, value=self._version(output.value, wanted, None))

    def _loop(self, eqn: Equation) -> None:
        region, dim = region_of(eqn), dim_of(eqn)
        pending = {
            output.name: self.passing.loops.get(result, ())
            for result, output in zip(eqn.results, region.outputs, strict=True)
        }
        pending |= {o.updates: pending[o.name] for o in region.outputs if o.updates}
        inside = Realization(region, self.mesh, self.passing, pending).run()
        operands = tuple(
            self._version(old, wanted_type(eqn, i, a.value.type.pending), eqn)
            for i, (old, a) in enumerate(zip(eqn.operands, inside.arguments, strict=True))
        )
        results = tuple(
            Value(v.name, result_type(o, dim)) for v, o in zip(eqn.results, inside.outputs, strict=True)
        )
        placed = attrs.evolve(eqn, operands=operands, results=results, regions=(inside,))
        self._made(eqn, placed)

    def _made(self, eqn: Equation, placed: Equation) -> None:
        self.body.append(placed)
        for old, new in zip(eqn.results, placed.results, strict=True):
            self.versions[old] = [Made(new, placed)]

    def _equation(self, eqn: Equation) -> None:
        if eqn.regions:
            self._loop(eqn)
            return
        rule, layout = OPS[eqn.op].layout_rule(eqn), eqn.layout or {}
        passing = self.passing.through.get(eqn.results[0], {})
        operands = tuple(
            self._version(value, _needed(value, rule, layout, passing.get(i, ())), eqn)
            for i, value in enumerate(eqn.operands)
        )
        passed = self.mesh.ordered(axis for value in operands for axis in value.type.pending)
        types = result_types(eqn, rule, passed, self.mesh)
        results = tuple(Value(v.name, type) for v, type in zip(eqn.results, types, strict=True))
        self._made(eqn, attrs.evolve(eqn, operands=operands, results=results))

    def _version(self, old: Value, wanted: TensorType, user: Equation | None) -> Value:
        """The value placed as `wanted`, resharded from its cheapest version unless there is one."""
        found = self._placed(old, wanted)
        if found is not None:
            return found
        versions = self.versions[old]
        origin = min(versions, key=lambda made: plan(made.value.type, wanted, self.mesh)[0])
        sent = plan(origin.value.type, wanted, self.mesh)[0]
        eqn = (self._again(old, wanted) if sent else None) or self._reshard(origin, wanted, user)
        versions.append(Made(eqn.result, eqn))
        return eqn.result

    def _again(self, old: Value, wanted: TensorType) -> Equation | None:
        """The value made once more, where that needs no data and no work: a broadcast, or a tensor made of nothing."""
        eqn = self.defined.get(old)
        if eqn is None or eqn.regions or wanted.pending or OPS[eqn.op].flops is not no_flops:
            return None
        rule = OPS[eqn.op].layout_rule(eqn)
        layout = {dim: axes for dim, axes in zip(wanted.names, wanted.splits, strict=True) if axes}
        found = [self._placed(value, _needed(value, rule, layout, ())) for value in eqn.operands]
        operands = tuple(value for value in found if value is not None)
        if rule.reduced or (rule.whole | rule.single) & set(layout) or len(operands) < len(found):
            return None
        result = Value(self.names.fresh(old.name), wanted)
        again = attrs.evolve(eqn, operands=operands, results=(result,), layout=layout, path=None)
        self.body.append(again)
        return again

    def _placed(self, old: Value, wanted: TensorType) -> Value | None:
        """The version of a value that is placed so, if there is one."""
        return next((made.value for made in self.versions[old] if made.value.type == wanted), None)

    def _reshard(self, origin: Made, wanted: TensorType, user: Equation | None) -> Equation:
        """A sum is completed on behalf of the line that left it pending; data is moved on behalf of the line that needs it."""
        pending = origin.value.type.pending != wanted.pending
        made_by = origin.by and charged_equation(origin.by, origin.value)
        blamed = made_by if pending or user is None else user
        value = Value(self.names.fresh(origin.value.name), wanted)
        eqn = Equation(
            "reshard",
            (origin.value,),
            (value,),
            span=blamed.span if blamed else None,
            stage=blamed.stage if blamed else "forward",
            layout={},
        )
        grows = wanted.local_size(self.mesh) > origin.value.type.local_size(self.mesh)
        if origin.by is None or grows:
            self.body.append(eqn)
        else:
            self.behind.setdefault(origin.by, []).append(eqn)
        return eqn


def _needed(value: Value, rule: LayoutRule, layout: Mapping[str, Axes], pending: Axes) -> TensorType:
    axes = {dim.name: rule.operand_axes(dim.name, layout) for dim in value.type.dims}
    return value.type.split_by(axes, pending)


def wanted_type(eqn: Equation, operand: int, pending: Axes = ()) -> TensorType:
    """The type that operand number `operand` must have under the equation's layout, or a loop's under its region's."""
    if eqn.regions:
        return eqn.operands[operand].type.split_by(region_of(eqn).arguments[operand].layout or {}, pending)
    return operand_type(OPS[eqn.op].layout_rule(eqn), eqn, operand, pending)


def realize(function: Function, mesh: Mesh, passing: Passing) -> Function:
    """The function with placed types and reshards, for equations that have layouts."""
    return Realization(function, mesh, passing).run()
