"""mixed-precision: compute in one dtype while parameters are kept in another.

A file asks for this with `precision = { params: f32, compute: bf16 }`. Parameters, their gradients and their updates have the
first dtype. Each use of a parameter, and each float input, is cast to the second. Tensors made without operands have the second.
If the model casts to a wider dtype, the values that follow stay wide: of two operands the narrower one is cast. Values that
depend only on literals and integers, such as the sine of a position, keep the model's dtype until they meet another operand's.
The minimized value is returned in f32. The state of a model is stored like a parameter, and its update is computed in that dtype:
in 8 bits of a mantissa, a running mean would lose small steps. In any program, sums of 16-bit numbers become f32.

Input:   %h: f32[batch, io] = mul %x, %w                           with precision = { params: f32, compute: bf16 }
Output:  %w_2: bf16[io] = cast %w; %x_2: bf16[batch, io] = cast %x; %h: bf16[batch, io] = mul %x_2, %w_2
After this pass no equation computes in f32 but where the model says so, and around sums.

Wide statistics: sums of 16-bit numbers, and what follows from them element by element, are computed in f32 and rounded once. The
square of 300 is no number of f16, and the sum of 1,024 numbers of size 100 is none either, while their mean is. So a sum of
16-bit numbers is an f32 sum of casts. Three kinds of values around it are f32 too:

- a term: a number of which only f32 equations make use, such as the square under a mean;
- a statistic: a function of sums and of no larger values, such as a mean, or the root of a variance;
- an applied statistic: a larger tensor combined with statistics, and with further smaller tensors: a normalized tensor, its scale
  and its bias.

Where any other equation reads such a value, a cast rounds it. Gradients follow: `differentiate` comes later, so cotangents of f32
values are f32.

A bf16 number has the range of f32. There only squares and products under a sum are f32, and the sum itself until it is multiplied
by a number. The cast to bf16 that follows has the attribute `sums`: processors send terms of 16 bits.

A pipeline adds up the terms of micro-batches. Such a carry is f32, too, and is rounded after the loop.

Input:   %a: f16[batch, d] = square %x; %b: f16[batch] = sum %a; %c: f16[batch] = mul %b, %n; %y: f16[batch, d] = mul %x, %c
Output:  %x_2: f32[batch, d] = cast %x; %a_2 = square %x_2; %b_2: f32[batch] = sum %a_2; ...; %y: f16[batch, d] = cast %y_2
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Literal

import attrs

from mtfc.compiler.analysis.liveness import readers_and_outputs
from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.builder import Builder, Names, Substitution, is_narrow, names_of
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Parameter, Program, Value
from mtfc.compiler.ir.loops import dim_of, make_loop, pairs, region_of, sliced_type
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import ELEMENT_TYPE, VALUE
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Dim
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class MixedPrecision(Pass):
    name: ClassVar[str] = "mixed-precision"
    takes: ClassVar[tuple[Level, ...]] = ("global",)

    def run(self, program: Program) -> Program:
        """Return the program with the dtypes of its training, and with wide statistics."""
        precision = program.training.precision if program.training else None
        if precision is not None and len(program.functions) == 1:  # gradients have their dtypes already
            program = _retyped(program, Retyping(*precision, states=program.states))
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
    """Return the program with other dtypes in its functions and for its stored parameters."""
    parameters = tuple(_stored_as(parameter, retyping.stored) for parameter in program.parameters)
    return attrs.evolve(program.map_functions(retyping.function), parameters=parameters)


def _stored_as(parameter: Parameter, dtype: str) -> Parameter:
    wide = parameter.type.dtype in FLOATS
    return attrs.evolve(parameter, type=parameter.type.with_dtype(dtype)) if wide else parameter


class Retyping:
    """Rebuilds a function with its float arguments cast; each op's type rule gives the new types."""

    def __init__(
        self, stored: str, computed: str, everything: bool = False, states: Collection[str] = ()
    ) -> None:
        """Retype to two dtypes.

        stored: the dtype of parameters. computed: the dtype of the computation. made: float values that depend on no float
        input or parameter. literals: the constants among them. everything: the model's own casts go to the dtype of the
        computation too. states: the names of the model's states. kept: the states as stored, which stand in `new`; an
        equation that updates no state reads them in the dtype of the computation.
        """
        self.stored, self.computed, self.everything, self.states = stored, computed, everything, states

    def function(self, function: Function) -> Function:
        return self._rebuilt(function, self._argument, self._output)

    def _rebuilt(
        self, function: Function, argument: Callable[[Argument], Argument], output: Callable[[Output], Output]
    ) -> Function:
        """Return a function with new types.

        argument, output: rebuild an end of the function; `body` is rebuilt between them.
        """
        self.builder, self.new = Builder(Names()), Substitution()
        self.literals: dict[Value, Equation] = {}
        self.made, self.kept = set[Value](), set[Value]()
        arguments = tuple(map(argument, function.arguments))
        for eqn in function.body:
            self._equation(eqn)
        outputs = tuple(map(output, function.outputs))
        return attrs.evolve(function, arguments=arguments, body=tuple(self.builder.body), outputs=outputs)

    def _argument(self, argument: Argument) -> Argument:
        """Return an argument of the function as stored.

        Equations read floats cast to the dtype of the computation, except states.
        """
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
        """Return an output: an update in the dtype of storage, a scalar loss as f32, and anything else in the dtype of the
        computation.
        """
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
            """Return an argument of the region with the type of the loop's operand."""
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
            """Return an output of the region, cast to the dtype of the variable that it updates."""
            value = self.new[output.value]
            value = self.builder.cast(value, dtypes.get(output.updates or "", value.type.dtype))
            return attrs.evolve(output, value=value)

        return self._rebuilt(region, argument_of, output_of)

    def _loop(self, eqn: Equation) -> None:
        """Append a loop for retyped operands. Its carries have the dtype of the computation."""
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
        """Append an equation for retyped operands: they agree in their dtype, and so does a number that the equation holds."""
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
        """Return a value in a dtype: a literal is written anew, and any other value is cast."""
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
        """Return an argument of an update as a parameter is retyped, if it is one of floats; its role stays."""
        old = argument.value.type.dtype
        role = "parameter" if old in FLOATS else argument.role
        return attrs.evolve(super()._argument(attrs.evolve(argument, role=role)), role=argument.role)

    def _output(self, output: Output) -> Output:
        return attrs.evolve(output, value=self.new[output.value])


# Wide statistics


WIDE = "f32"

Kind = Literal["term", "statistic", "applied"]


def with_wide_statistics(function: Function, stored: Collection[Value] = ()) -> Function:
    """Return the function with wide statistics. stored: arguments that are read in their own dtype, not rounded to f16."""
    body = list[Equation]()
    for eqn in function.body:
        body.append(_loop_widened(eqn, stored) if eqn.regions else eqn)
    function = attrs.evolve(function, body=tuple(body))
    return attrs.evolve(function, body=StatisticsWidener(function, stored).rewritten())


def _loop_widened(eqn: Equation, stored: Collection[Value]) -> Equation:
    inside = {a.value for v, a in pairs(eqn) if v in stored and a.role != "carried"}
    return attrs.evolve(eqn, regions=(with_wide_statistics(region_of(eqn), inside),))


def _is_elementwise(eqn: Equation) -> bool:
    """Return True for an equation that makes 16-bit floats of floats of that dtype element by element, or is a view of them."""
    if eqn.regions or len(eqn.results) != 1 or not eqn.operands or not is_narrow(eqn.result.type):
        return False
    is_plain = OPS[eqn.op].storage in ("fused", "view") and not has_trait(eqn, "cast", "indexes", "random")
    return is_plain and all(v.type.dtype == eqn.result.type.dtype for v in _floats(eqn))


def _floats(eqn: Equation) -> list[Value]:
    return [value for value in eqn.operands if value.type.dtype in FLOATS]


class _Kinds:
    """Decides which values of a function are f32: see the module's docstring."""

    def __init__(self, function: Function) -> None:
        """Start with no value found.

        numbers: the results that are filled with one number. uses: value -> the equations that read it, and None for each use
        by an output.
        """
        self.body, self.uses = function.body, readers_and_outputs(function)
        self.found: dict[Value, Kind] = {}
        self.numbers = {eqn.result for eqn in self.body if has_trait(eqn, "filled")}

    def run(self) -> dict[Value, Kind]:
        """Find the statistics, then the terms that they sum; drop the values for which f32 changes nothing."""
        for eqn in self.body:
            kind = self._statistic(eqn)
            if kind is not None:
                self.found[eqn.result] = kind
        for eqn in reversed(self.body):
            if self._is_term(eqn):
                self.found[eqn.result] = "term"
        for eqn in self.body:
            if len(eqn.results) == 1 and eqn.result in self.found and not self._changes(eqn):
                del self.found[eqn.result]
        return self.found

    def _changes(self, eqn: Equation) -> bool:
        """Return False where f32 would round nothing less: for views, and for bf16 sums that are not scaled.

        Windows are f32, so that a sum of windows stays one op of the backend.
        """
        if any(value in self.found for value in eqn.operands):
            return True
        if has_trait(eqn, "sum") and eqn.result.type.dtype == "bf16":
            return any(user and user.results[0] in self.found for user in self.uses.get(eqn.result, ()))
        return has_trait(eqn, "window") or not _only_moves(eqn)

    def _statistic(self, eqn: Equation) -> Kind | None:
        """Return why a value becomes f32: it is a sum, or follows from one elementwise; None if it does not."""
        if has_trait(eqn, "sum") and is_narrow(eqn.result.type):
            return "statistic"
        if not _is_elementwise(eqn) or not any(value in self.found for value in eqn.operands):
            return None
        rule = self._f16_statistic if eqn.result.type.dtype == "f16" else self._scaled_sum
        return rule(eqn)

    def _f16_statistic(self, eqn: Equation) -> Kind | None:
        """Follow statistics through all equations.

        A statistic that meets a larger tensor is applied to it; applied values go on only through equations with smaller
        tensors.
        """
        wide = [value for value in eqn.operands if value in self.found]
        narrow = [value for value in _floats(eqn) if value not in self.found]
        rank = len(eqn.result.type.dims)
        if any(self.found[value] == "applied" for value in wide):
            smaller = all(len(value.type.dims) < rank for value in narrow)
            return "applied" if smaller and len(_floats(eqn)) > 1 else None
        is_small = _only_moves(eqn) or any(len(value.type.dims) == rank for value in wide)
        return "statistic" if is_small else "applied"

    def _scaled_sum(self, eqn: Equation) -> Kind | None:
        """Follow a bf16 sum, if nothing else reads it, to where it is multiplied by a number."""
        (wide, *_) = [value for value in eqn.operands if value in self.found]
        others = [value for value in eqn.operands if value is not wide]
        scales = has_trait(eqn, "multiply") and bool(others) and self.numbers.issuperset(others)
        alone = len(self.uses[wide]) == 1
        return "statistic" if alone and (scales or has_trait(eqn, "transpose")) else None

    def _is_term(self, eqn: Equation) -> bool:
        """Return True if only f32 equations read the result, and the equation can make it in f32."""
        if len(eqn.results) != 1 or eqn.result in self.found:
            return False
        users = self.uses.get(eqn.result, [])
        if not users or not all(user and user.results[0] in self.found for user in users):
            return False
        if eqn.result.type.dtype == "f16":
            return _is_elementwise(eqn) or has_trait(eqn, "window")
        sums = all(user and has_trait(user, "sum") for user in users)
        whole = all(v in self.numbers or v.type.dims == eqn.result.type.dims for v in eqn.operands)
        return sums and whole and _is_elementwise(eqn) and has_trait(eqn, "square", "multiply")


def _only_moves(eqn: Equation) -> bool:
    """Return True if an equation moves or repeats elements, and computes no new ones."""
    return has_trait(eqn, "window") or (not eqn.regions and OPS[eqn.op].storage == "view")


class StatisticsWidener:
    """Writes the equations of a body again, with some of its values in f32."""

    def __init__(self, function: Function, stored: Collection[Value]) -> None:
        """Find the values that become f32.

        stored: parameters that are states. kinds: value -> why it becomes f32. wide: value of the body -> the same in f32.
        numbers, casts: the equations that define numbers, and casts of stored values.
        """
        self.body, self.stored = function.body, stored
        kinds = _Kinds(function)
        self.kinds, self.uses = kinds.run(), kinds.uses
        self.builder = Builder(names_of(function))
        self.wide: dict[Value, Value] = {}
        self.defined = {value: eqn for eqn in self.body for value in eqn.results}

    def rewritten(self) -> tuple[Equation, ...]:
        """Return the body in which statistics and terms are f32, and in which casts of them to f32 are copies of the wide
        value.
        """
        for eqn in self.body:
            self.builder.span, self.builder.stage = eqn.span, eqn.stage
            if eqn.results and eqn.results[0] in self.kinds:
                self._widen(eqn)
            elif self._casts_wide(eqn):
                self.builder.append(attrs.evolve(eqn, operands=(self.wide[eqn.operands[0]],)))
            else:
                self.builder.append(eqn)
        return tuple(self.builder.body)

    def _widen(self, eqn: Equation) -> None:
        """Append an equation with an f32 result, and a cast for the uses that read 16 bits."""
        old = eqn.result
        operands = tuple(self._read(value) if is_narrow(value.type) else value for value in eqn.operands)
        rounds = any(self._rounds(user) for user in self.uses.get(old, ()))
        name, path = (self.builder.names.fresh(old.name), None) if rounds else (old.name, eqn.path)
        self.wide[old] = new = Value(name, old.type.with_dtype(WIDE))
        self.builder.append(attrs.evolve(eqn, operands=operands, results=(new,), path=path))
        if rounds:
            attributes: dict[str, Attr] = {"dtype": old.type.dtype}
            attributes |= {"sums": True} if old.type.dtype == "bf16" else {}
            cast = Equation("cast", (new,), (old,), attributes, span=eqn.span, stage=eqn.stage, path=eqn.path)
            self.builder.append(cast)

    def _rounds(self, user: Equation | None) -> bool:
        """Return True if a use reads the value in 16 bits."""
        return user is None or not (user.results[0] in self.kinds or self._casts_wide(user))

    def _casts_wide(self, eqn: Equation) -> bool:
        """Return True for a cast of a wide value to floats. It needs no rounding to f16 before."""
        if not has_trait(eqn, "cast") or eqn.result.type.dtype not in FLOATS:
            return False
        return eqn.operands[0] in self.kinds and eqn.operands[0].type.dtype == "f16"

    def _read(self, value: Value) -> Value:
        """Return an operand in f32."""
        if value not in self.wide:
            self.wide[value] = self._cast(value)
        return self.wide[value]

    def _cast(self, value: Value) -> Value:
        """Return a value in f32: a constant anew, a cast of a stored f32 value as that value, and any other value by a cast."""
        eqn = self.defined.get(value)
        if eqn is not None and has_trait(eqn, "constant"):
            return self.builder.constant(VALUE.of(eqn.attrs), WIDE)
        if eqn is not None and has_trait(eqn, "cast") and self._is_stored(eqn):
            return eqn.operands[0]
        return self.builder.cast(value, WIDE)

    def _is_stored(self, eqn: Equation) -> bool:
        """Return True for the cast to f16 of a state, which may be larger than an f16."""
        (value,) = eqn.operands
        return value in self.stored and (value.type.dtype, eqn.result.type.dtype) == (WIDE, "f16")
