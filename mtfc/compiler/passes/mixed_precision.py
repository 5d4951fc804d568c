"""mixed-precision: compute in one dtype while parameters are kept in another.

A file asks for this with `precision = { params: f32, compute: bf16 }`. Parameters, their gradients and their updates have the
first dtype. Each use of a parameter, and each float input, is cast to the second. Tensors made without operands have the second.
If the model casts to a wider dtype, the values that follow stay wide: of two operands the narrower one is cast. Values that
depend only on literals and integers, such as the sine of a position, keep the model's dtype until they meet another operand's.
The minimized value is returned in f32. The state of a model is stored like a parameter, and its update is computed in that dtype:
in 8 bits of a mantissa, a running mean would lose small steps. In any program, sums of 16-bit numbers become f32: see
`wide_statistics.py`.

Input:   %h: f32[batch, io] = mul %x, %w                           with precision = { params: f32, compute: bf16 }
Output:  %w_2: bf16[io] = cast %w; %x_2: bf16[batch, io] = cast %x; %h: bf16[batch, io] = mul %x_2, %w_2
After this pass no equation computes in f32 but where the model says so, and around sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.builder import Builder, Names, is_narrow
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Parameter, Program, Value
from mtfc.compiler.ir.loops import dim_of, make_loop, region_of, sliced_type
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import ELEMENT_TYPE, VALUE
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Dim
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.wide_statistics import with_wide_statistics
from mtfc.compiler.records import frozen


@frozen
class MixedPrecision(Pass):
    name: ClassVar[str] = "mixed-precision"
    takes: ClassVar[tuple[Level, ...]] = ("global",)

    def run(self, program: Program) -> Program:
        training = program.training
        if training is not None and training.precision is not None:
            program = _retyped(program, Retyping(*training.precision, states=program.states))
        return program.map_functions(lambda function: _with_wide_statistics(function, program.states))


def _with_wide_statistics(function: Function, states: Collection[str]) -> Function:
    stored = {a.value for a in function.arguments if a.role == "parameter" and a.value.name in states}
    return with_wide_statistics(function, stored)


def everything_in(program: Program, dtype: str) -> Program:
    """Return the model with parameters, inputs and computation in `dtype`, overriding `precision` and the model's own casts.

    The updates and the optimizer's state have this dtype too.
    """
    retyping = RetypingUpdate(dtype, dtype, everything=True)
    training = program.training
    if training is not None:
        updates = tuple(
            attrs.evolve(update, function=retyping.function(update.function)) for update in training.updates
        )
        training = attrs.evolve(training, precision=None, updates=updates)
    return attrs.evolve(_retyped(program, Retyping(dtype, dtype, everything=True)), training=training)


def _retyped(program: Program, retyping: Retyping) -> Program:
    parameters = tuple(_stored_as(parameter, retyping.stored) for parameter in program.parameters)
    return attrs.evolve(program.map_functions(retyping.function), parameters=parameters)


def _stored_as(parameter: Parameter, dtype: str) -> Parameter:
    wide = parameter.type.dtype in FLOATS
    return attrs.evolve(parameter, type=parameter.type.with_dtype(dtype)) if wide else parameter


class Retyping:
    """Rebuilds a function with its float arguments cast; each op's type rule gives the new types.

    made: float values that depend on no float input or parameter.
    literals: the constants among them.
    everything: the model's own casts go to the dtype of the computation too.
    states: the names of the model's states. kept: the states as stored, which stand in `new`; an equation that updates no state
    reads them in the dtype of the computation.
    """

    def __init__(
        self, stored: str, computed: str, everything: bool = False, states: Collection[str] = ()
    ) -> None:
        self.stored, self.computed, self.everything, self.states = stored, computed, everything, states

    def function(self, function: Function) -> Function:
        return self._rebuilt(function, self._argument, self._output)

    def _rebuilt(
        self, function: Function, argument: Callable[[Argument], Argument], output: Callable[[Output], Output]
    ) -> Function:
        self.builder, self.new = Builder(Names()), Substitution()
        self.literals: dict[Value, Equation] = {}
        self.made, self.kept = set[Value](), set[Value]()
        arguments = tuple(map(argument, function.arguments))
        for eqn in function.body:
            self._equation(eqn)
        outputs = tuple(map(output, function.outputs))
        return attrs.evolve(function, arguments=arguments, body=tuple(self.builder.body), outputs=outputs)

    def _argument(self, argument: Argument) -> Argument:
        old = argument.value
        dtype = self.stored if argument.role == "parameter" and old.type.dtype in FLOATS else old.type.dtype
        value = Value(self.builder.names.fresh(old.name), old.type.with_dtype(dtype))
        self.builder.span = argument.span
        is_kept = old.name in self.states and argument.role == "parameter"
        if is_kept and dtype in FLOATS:
            self.kept.add(value)
        is_cast = dtype in FLOATS and not is_kept
        self.new[old] = self.builder.cast(value, self.computed) if is_cast else value
        return attrs.evolve(argument, value=value)

    def _output(self, output: Output) -> Output:
        value = self.new[output.value]
        if output.updates is not None and output.value.type.dtype in FLOATS:
            return attrs.evolve(output, value=self.builder.cast(value, self.stored))
        value = self._as_computed(value)
        scalar_loss = not value.type.dims and value.type.dtype in FLOATS and not self.everything
        return attrs.evolve(output, value=self.builder.cast(value, "f32") if scalar_loss else value)

    def region(self, region: Function, operands: Sequence[Value], dim: Dim, outside: Retyping) -> Function:
        """Return a loop's region for retyped operands, of which some are `made` or `kept`; carries keep their dtype."""
        given, dtypes = dict(zip(region.arguments, operands, strict=True)), dict[str, str]()

        def argument_of(argument: Argument) -> Argument:
            operand = given[argument]
            type = sliced_type(operand.type, dim) if argument.role == "sliced" else operand.type
            value = Value(self.builder.names.fresh(argument.value.name), type)
            self.new[argument.value], dtypes[value.name] = value, type.dtype
            if operand in outside.made and argument.role != "carried":
                self.made.add(value)
            if operand in outside.kept and argument.role != "carried":
                self.kept.add(value)
            return attrs.evolve(argument, value=value)

        def output_of(output: Output) -> Output:
            value = self.new[output.value]
            value = self.builder.cast(value, dtypes.get(output.updates or "", value.type.dtype))
            return attrs.evolve(output, value=value)

        return self._rebuilt(region, argument_of, output_of)

    def _loop(self, eqn: Equation) -> None:
        roles = [argument.role for argument in region_of(eqn).arguments]
        given = [self.new[value] for value in eqn.operands]
        operands = [
            self._as_computed(v) if role == "carried" else v for v, role in zip(given, roles, strict=True)
        ]
        inner = Retyping(self.stored, self.computed, self.everything)
        region = inner.region(region_of(eqn), operands, dim_of(eqn), self)
        loop = make_loop(self.builder.names, region, operands, eqn)
        self.builder.append(loop)
        for old, new in zip(eqn.results, loop.results, strict=True):
            self.new[old] = new

    def _equation(self, eqn: Equation) -> None:
        self.builder.span, self.builder.stage = eqn.span, eqn.stage
        if eqn.regions:
            self._loop(eqn)
            return
        eqn = self._made_as_computed(eqn)
        given = [self._read(self.new[value], eqn) for value in eqn.operands]
        operands = self._agreeing(given)
        if VALUE.name in eqn.attrs:  # a constant, or what stands beside the elements of an operand
            dtype = operands[0].type.dtype if operands else ELEMENT_TYPE.of(eqn.attrs)
            eqn = attrs.evolve(eqn, attrs={**eqn.attrs, VALUE.name: fitted(VALUE.of(eqn.attrs), dtype)})
        types = OPS[eqn.op].infer([value.type for value in operands], eqn.attrs)
        results = tuple(
            Value(self.builder.names.fresh(v.name), t) for v, t in zip(eqn.results, types, strict=True)
        )
        for old, new in zip(eqn.results, results, strict=True):
            self.new[old] = new
            if has_trait(eqn, "constant"):
                self.literals[new] = eqn
        if all(value in self.made for value in given if value.type.dtype in FLOATS):
            self.made.update(results)
        self.builder.append(attrs.evolve(eqn, operands=tuple(operands), results=results))

    def _read(self, value: Value, eqn: Equation) -> Value:
        """Return a value as an equation reads it: the update of a state reads no float narrower than the stored dtype."""
        if eqn.stage != "update":
            return self._as_computed(value)
        is_wider = is_narrow(value.type, self.stored) and not has_trait(eqn, "cast")
        return self._as(value, self.stored) if is_wider else value

    def _as_computed(self, value: Value) -> Value:
        """Return a state in the dtype of the computation, and any other value as it is."""
        return self.builder.cast(value, self.computed) if value in self.kept else value

    def _made_as_computed(self, eqn: Equation) -> Equation:
        """Return an equation that creates floats (a constant, ones, a one-hot tensor) in the dtype of the computation.

        In the update of a state, this is the stored dtype.
        """
        is_kept = has_trait(eqn, "cast") and not self.everything
        if is_kept or eqn.attrs.get("dtype") not in FLOATS:
            return eqn
        dtype = self.stored if eqn.stage == "update" else self.computed
        return attrs.evolve(eqn, attrs={**eqn.attrs, "dtype": dtype})

    def _agreeing(self, operands: list[Value]) -> list[Value]:
        """Cast float operands to one dtype: the widest of those not in `made`, else the widest that are no literals."""
        floats = [v for v in operands if v.type.dtype in FLOATS]
        deciding = (
            [v for v in floats if v not in self.made]
            or [v for v in floats if v not in self.literals]
            or floats
        )
        if len({v.type.dtype for v in floats}) < 2:
            return operands
        dtype = max((v.type.dtype for v in deciding), key=ITEM_BYTES.__getitem__)
        return [self._as(value, dtype) if value in floats else value for value in operands]

    def _as(self, value: Value, dtype: str) -> Value:
        if value in self.literals and self.builder.stage == "update":
            return self.builder(
                "constant", name="c", value=fitted(VALUE.of(self.literals[value].attrs), dtype), dtype=dtype
            )
        if value in self.literals:
            return self.builder.constant(VALUE.of(self.literals[value].attrs), dtype)
        return self.builder.cast(value, dtype)


class RetypingUpdate(Retyping):
    """Retypes an optimizer's function: parameter, gradient and states have one stored dtype, and so have the outputs."""

    def _argument(self, argument: Argument) -> Argument:
        old = argument.value.type.dtype
        role = "parameter" if old in FLOATS else argument.role
        return attrs.evolve(super()._argument(attrs.evolve(argument, role=role)), role=argument.role)

    def _output(self, output: Output) -> Output:
        return attrs.evolve(output, value=self.new[output.value])
