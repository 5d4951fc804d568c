"""insert-reshards: put a `reshard` on each edge whose two ends have different placements.

Each operand is resharded from the version of the value that costs least. A view, or a tensor made without operands, is
computed again instead, if its operands are placed as needed. A reshard that does not make a value larger on a processor stands
right after the value's equation; a reshard that makes it larger stands right before the use. So each buffer lives briefly.

Input:   %y: f32[batch{rows}, io] +{cols} = einsum %h, %v ...; %z: f32[batch{rows}, io] = relu %y ...
Output:  %y: f32[batch{rows}, io] +{cols} = einsum %h, %v ...; %y_2: f32[batch{rows}, io] = reshard %y; %z = relu %y_2 ...
After this pass every operand is placed as its equation's layout needs it, and every output as its own layout says.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.liveness import storage
from mtfc.compiler.analysis.reshard_plans import needed_type, plan
from mtfc.compiler.ir.builder import names_of
from mtfc.compiler.ir.core import Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import charged_equation, outputs_of, pairs, region_of
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.sharding_rules import operand_type, operand_types
from mtfc.compiler.ir.types import Axes, Mesh, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class InsertReshards(Pass):
    name: ClassVar[str] = "insert-reshards"
    takes: ClassVar[tuple[Level, ...]] = ("placed", "resharded")
    level: ClassVar[Level | None] = "resharded"

    def run(self, program: Program) -> Program:
        mesh = program.placed_on
        return program.map_functions(lambda function: ReshardInserter(function, mesh).run())


@frozen
class PlacedVersion:
    """A value or a resharded copy of it, with its equation (None for an argument). by: the equation."""

    value: Value
    by: Equation | None


class ReshardInserter:
    """Inserts the reshards of one function or region."""

    def __init__(self, function: Function, mesh: Mesh, pending: Mapping[str, Axes] = {}) -> None:
        """Start with the arguments as they are.

        versions: value -> its copies in different placements. pending: axes over which a sum stays pending in each output of
        a loop's region. body: the equations so far. followers: reshards that stand right after an equation. origins: the
        result of a reshard of the given function -> the value that it reshards; uses take a version of that value.
        """
        self.function, self.mesh, self.pending, self.names = function, mesh, pending, names_of(function)
        self.body: list[Equation] = []
        self.followers: dict[Equation, list[Equation]] = {}
        self.versions = {
            argument.value: [PlacedVersion(argument.value, None)] for argument in function.arguments
        }
        self.origins: dict[Value, Value] = {}
        self.makers = {eqn.result: eqn for eqn in function.body if len(eqn.results) == 1}

    def run(self) -> Function:
        """Return the function with a reshard where a use needs its operand placed otherwise.

        The reshards that it has are dropped and inserted anew.
        """
        for eqn in self.function.body:
            if has_trait(eqn, "reshard"):
                self.origins[eqn.result] = self.origins.get(eqn.operands[0], eqn.operands[0])
                continue
            placed = self._loop(eqn) if eqn.regions else self._equation(eqn)
            self.body.append(placed)
            self.versions.update({value: [PlacedVersion(value, placed)] for value in eqn.results})
        outputs = tuple(self._output(output) for output in self.function.outputs)
        body = tuple(each for eqn in self.body for each in self._with_followers(eqn))
        return attrs.evolve(self.function, body=body, outputs=outputs)

    def _with_followers(self, eqn: Equation) -> Iterator[Equation]:
        """Yield an equation, and the reshards that stand right after it."""
        yield eqn
        for follower in self.followers.get(eqn, ()):
            yield from self._with_followers(follower)

    def _output(self, output: Output) -> Output:
        needed = output.value.type.split_by(output.layout or {}, self.pending.get(output.name, ()))
        return attrs.evolve(output, value=self._version(output.value, needed, None))

    def _loop(self, eqn: Equation) -> Equation:
        """Return a loop with reshards inside, and with operands as its arguments are placed."""
        region = region_of(eqn)
        pending = {o.name: v.type.pending for v, o in outputs_of(eqn)}
        inside = ReshardInserter(region, self.mesh, pending).run()
        operands = tuple(
            self._version(value, needed_type(eqn, i, argument.value.type.pending), eqn)
            for i, (value, argument) in enumerate(pairs(eqn))
        )
        return attrs.evolve(eqn, operands=operands, regions=(inside,))

    def _equation(self, eqn: Equation) -> Equation:
        """Return an equation whose operands are placed as it needs them."""
        types = zip(eqn.operands, operand_types(OPS[eqn.op], eqn), strict=True)
        operands = tuple([self._version(value, type, eqn) for value, type in types])
        return eqn if operands == eqn.operands else attrs.evolve(eqn, operands=operands)

    def _version(self, value: Value, needed: TensorType, user: Equation | None) -> Value:
        """Return a version of the value of the needed type; insert its equation if there is none yet."""
        found = self._existing(value, needed)
        if found is not None:
            return found
        value = self.origins.get(value, value)
        versions = self.versions[value]
        origin = min(versions, key=lambda version: plan(version.value.type, needed, self.mesh)[0])
        is_free = value in self.makers and storage(self.makers[value]) in ("view", "made")
        is_again = is_free or plan(origin.value.type, needed, self.mesh)[0] > 0
        eqn = (self._recomputed(value, needed) if is_again else None) or self._reshard(origin, needed, user)
        versions.append(PlacedVersion(eqn.result, eqn))
        return eqn.result

    def _existing(self, value: Value, needed: TensorType) -> Value | None:
        versions = self.versions[self.origins.get(value, value)]
        return next((each.value for each in versions if each.value.type == needed), None)

    def _recomputed(self, value: Value, needed: TensorType) -> Equation | None:
        """Insert the value's equation again under another layout, if that takes no FLOPs and no communication.

        needed: the type that the use needs.
        """
        eqn = self.makers.get(value)
        if eqn is None or eqn.regions or needed.pending or OPS[eqn.op].flops is not no_flops:
            return None
        rule = OPS[eqn.op].layout_rule(eqn)
        layout = {dim: axes for dim, axes in zip(needed.names, needed.splits, strict=True) if axes}
        again = attrs.evolve(eqn, layout=layout, path=None)
        found = [self._existing(v, operand_type(rule, again, i)) for i, v in enumerate(eqn.operands)]
        operands = tuple(each for each in found if each is not None)
        if rule.reduced or (rule.whole | rule.single) & set(layout) or len(operands) < len(found):
            return None
        result = Value(self.names.fresh(value.name), needed)
        again = attrs.evolve(again, operands=operands, results=(result,))
        self.body.append(again)
        return again

    def _reshard(self, origin: PlacedVersion, needed: TensorType, user: Equation | None) -> Equation:
        """Insert a reshard. Its span is the value's if it completes a sum, and the user's if it only moves data.

        origin: the version to copy. needed: the type that the use needs.
        """
        completes = origin.value.type.pending != needed.pending
        made_by = origin.by and charged_equation(origin.by, origin.value)
        source = made_by if completes or user is None else user
        eqn = Equation(
            "reshard",
            (origin.value,),
            (Value(self.names.fresh(origin.value.name), needed),),
            span=source.span if source else None,
            stage=source.stage if source else "forward",
            layout={},
        )
        grows = needed.local_size(self.mesh) > origin.value.type.local_size(self.mesh)
        if origin.by is None or grows:
            self.body.append(eqn)
        else:
            self.followers.setdefault(origin.by, []).append(eqn)
        return eqn
