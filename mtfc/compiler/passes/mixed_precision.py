"""mixed-precision: compute in one dtype while parameters are kept in another.

Asked for by `precision = { params: f32, compute: bf16 }`. Parameters are stored, updated and given their gradients in the first;
every use casts. Float inputs are cast too, and tensors made of nothing are made in the second. Where the model itself casts to
a wider dtype, what follows stays wide: a number literal takes the dtype it meets, and of two tensors the narrower is cast. The
minimized value is handed out in f32.

Input:   %h: f32[batch, io] = mul %x, %w                           with precision = { params: f32, compute: bf16 }
Output:  %w_2: bf16[io] = cast %w; %x_2: bf16[batch, io] = cast %x; %h: bf16[batch, io] = mul %x_2, %w_2
After this pass no equation computes in f32 but where the model says so.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Parameter, Program, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.transform import Pass
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES


@attrs.frozen
class MixedPrecision(Pass):
    name: ClassVar[str] = "mixed-precision"

    def run(self, program: Program) -> Program:
        if program.training is None or program.training.precision is None:
            return program
        stored, computed = program.training.precision
        retyped = Retyping(stored, computed)
        parameters = tuple(_stored_as(parameter, stored) for parameter in program.parameters)
        return attrs.evolve(program.map_functions(retyped.function), parameters=parameters)


def _stored_as(parameter: Parameter, dtype: str) -> Parameter:
    wide = parameter.type.dtype in FLOATS
    return attrs.evolve(parameter, type=parameter.type.with_dtype(dtype)) if wide else parameter


class Retyping:
    """Rebuilds a function with its float arguments cast, each equation typed anew by its op's own rule."""

    def __init__(self, stored: str, computed: str) -> None:
        self.stored, self.computed = stored, computed

    def function(self, function: Function) -> Function:
        self.builder = Builder(Names())
        self.new = Substitution()
        self.literals: dict[Value, Equation] = {}
        arguments = tuple(self._argument(argument) for argument in function.arguments)
        for eqn in function.body:
            self._equation(eqn)
        outputs = tuple(self._output(output) for output in function.outputs)
        return attrs.evolve(function, arguments=arguments, body=tuple(self.builder.body), outputs=outputs)

    def _argument(self, argument: Argument) -> Argument:
        old = argument.value
        dtype = self.stored if argument.role == "parameter" and old.type.dtype in FLOATS else old.type.dtype
        value = Value(self.builder.names.fresh(old.name), old.type.with_dtype(dtype))
        self.builder.span = argument.span
        self.new[old] = self.builder.cast(value, self.computed) if dtype in FLOATS else value
        return attrs.evolve(argument, value=value)

    def _output(self, output: Output) -> Output:
        value = self.new[output.value]
        scalar_loss = not value.type.dims and value.type.dtype in FLOATS
        return attrs.evolve(output, value=self.builder.cast(value, "f32") if scalar_loss else value)

    def _equation(self, eqn: Equation) -> None:
        self.builder.span = eqn.span
        eqn = self._made_as_computed(eqn)
        operands = self._agreeing([self.new[value] for value in eqn.operands])
        types = OPS[eqn.op].infer([value.type for value in operands], eqn.attrs)
        results = tuple(
            Value(self.builder.names.fresh(v.name), t) for v, t in zip(eqn.results, types, strict=True)
        )
        for old, new in zip(eqn.results, results, strict=True):
            self.new[old] = new
            if eqn.op == "constant":
                self.literals[new] = eqn
        self.builder.append(attrs.evolve(eqn, operands=tuple(operands), results=results))

    def _made_as_computed(self, eqn: Equation) -> Equation:
        """An equation that makes floats of nothing (a constant, ones, a one-hot tensor) in the dtype of the computation."""
        if eqn.op == "cast" or eqn.attrs.get("dtype") not in FLOATS:
            return eqn
        return attrs.evolve(eqn, attrs={**eqn.attrs, "dtype": self.computed})

    def _agreeing(self, operands: list[Value]) -> list[Value]:
        """The operands with their float dtypes made one: that of the widest that is not a literal."""
        floats = [v for v in operands if v.type.dtype in FLOATS]
        deciding = [v for v in floats if v not in self.literals] or floats
        if len({v.type.dtype for v in floats}) < 2:
            return operands
        dtype = max((v.type.dtype for v in deciding), key=ITEM_BYTES.__getitem__)
        return [self._as(value, dtype) if value in floats else value for value in operands]

    def _as(self, value: Value, dtype: str) -> Value:
        if value in self.literals:
            return self.builder.constant(self.literals[value].attrs["value"], dtype)  # type: ignore[arg-type]
        return self.builder.cast(value, dtype)
