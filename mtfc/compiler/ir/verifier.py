"""The invariants of a program between any two passes, and the verifier that checks them.

A pass that breaks an invariant has a bug; `verify` names the equation and the source line. The invariants:

Names and scopes
 1. Functions have unique names. So have the arguments, outputs and values of each function or region.
 2. A value is defined once, before its uses, and is not used outside the function or region that defines it.
 3. The program declares the argument of each parameter, with the argument's global type. Training minimizes an output of
    `forward` that is a floating-point scalar; it reports other outputs, or the built-in reports of `training.py`.
 4. An output that updates an argument is the only one that does, and has the argument's type. `forward` updates states alone,
    and only before layouts are assigned: `bind-training` drops these outputs. Training has at most one update
    for a parameter, whose function is as `training.py` describes it. `differentiate` moves the updates into `step`.

Dimensions and types
 5. The program declares every dimension, with the size that it has there.
 6. A type has no dimension twice, and uses a mesh axis at most once: to split a dimension, or for a pending reduction. Its axes
    belong to the mesh, split sizes divide evenly, and pending axes stand in mesh order.
 7. An equation has a result, and the operands and attributes that the op's record states (`OpDef.arity`, `OpDef.attributes`). The
    mesh has the axes that attributes name. The results' global types are the ones that the op's type rule infers from the
    operands' global types and the attributes.
 8. No reduction is pending in an argument or an output, except in those of a loop's region.

Placement (`LEVELS` says which of these apply at a level)
 9. Either no argument, equation or output has a layout, or each has one.
10. An equation's layout uses a mesh axis once, divides evenly, and splits only dimensions of its iteration space that the op can
    compute in parts.
11. Types are global; or the type of an argument or output is split as its layout says, and the types of results are the ones that
    the op's place rule gives for the operands' types. At level `placed` operands and outputs do not have to fit: the place rule
    is asked with the operand types that the equation needs (`sharding_rules.operand_types`), and outputs have any placement.
12. Only ops that are legal at the level occur. The only equations with regions are loops, as `loops.py` describes them.
    `training` occurs only in `forward`, and only before layouts are assigned: `bind-training` leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import attrs

from mtfc.compiler.ir.builder import VerifyError
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Training, Value
from mtfc.compiler.ir.loops import LOOP, loop_error, malformed
from mtfc.compiler.ir.opdef import LayoutRule, OpDef, OpError
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.printer import equation_text
from mtfc.compiler.ir.sharding_rules import PlacementError, operand_types, placed_types
from mtfc.compiler.ir.training import report_error, updates_error
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Axes, Dim, Mesh, TensorType
from mtfc.compiler.records import frozen

__all__ = ["LEVELS", "Level", "LevelRule", "Verifier", "VerifyError", "layout_error", "type_error", "verify"]

Level = Literal["global", "assigned", "placed", "resharded", "lowered"]


@frozen
class LevelRule:
    """The forms of a program that a level allows.

    layouts: arguments, equations and outputs have layouts. placed: types say where data is. moves: the ops that may change
    placements, if any. fitting: operands and outputs have the placements that their uses need.
    """

    layouts: bool
    placed: bool
    moves: Literal["reshards", "collectives"] | None
    fitting: bool = True

    def allows(self, eqn: Equation) -> bool:
        """Return True unless an op between placements is of another level: reshards come before collectives."""
        if not has_trait(eqn, "placement"):
            return True
        return self.moves == ("reshards" if has_trait(eqn, "reshard") else "collectives")


LEVELS: Mapping[Level, LevelRule] = {
    "global": LevelRule(layouts=False, placed=False, moves=None),
    "assigned": LevelRule(layouts=True, placed=False, moves=None),
    "placed": LevelRule(layouts=True, placed=True, moves="reshards", fitting=False),
    "resharded": LevelRule(layouts=True, placed=True, moves="reshards"),
    "lowered": LevelRule(layouts=True, placed=True, moves="collectives"),
}


def verify(program: Program, level: Level) -> None:
    """Check every invariant once. Raise `VerifyError`."""
    Verifier().check(program, level)


class Verifier:
    """Checks the programs of one compilation. It remembers sound equations and functions, and does not check them again."""

    def __init__(self) -> None:
        """Start with nothing known to be sound.

        _context: dims and mesh, under which the remembered things are sound.
        """
        self._context: tuple[Mapping[str, Dim], Mesh | None] = ({}, None)
        self._seen: dict[Level, set[Equation | Argument | Output]] = {}
        self._alike: dict[Level, set[tuple[object, ...]]] = {}
        self._types: set[TensorType] = set()
        self._functions: dict[tuple[Level, str], tuple[object, ...]] = {}

    def check(self, program: Program, level: Level) -> None:
        """Check every invariant. Raise `VerifyError`."""
        if self._context != (program.dims, program.mesh):
            self._context, self._seen, self._alike = (program.dims, program.mesh), {}, {}
            self._types, self._functions = set(), {}
        if LEVELS[level].placed and program.mesh is None:
            raise VerifyError("a placed program has a mesh", f"program {program.name}")
        _check_program(program)
        equations = self._equations(program, level)
        for function in program.functions:
            place, found = (level, function.name), _contents(function, program)
            if self._functions.get(place) != found:
                _FunctionCheck(program, function, LEVELS[level], equations).run()
                self._functions[place] = found
        if program.training is not None:
            self._check_updates(program, program.training)

    def _equations(self, program: Program, level: Level) -> _Equations:
        seen, alike = self._seen.setdefault(level, set()), self._alike.setdefault(level, set())
        return _Equations(program, level, seen, alike, self._types)

    def _check_updates(self, program: Program, training: Training) -> None:
        """Check the functions of updates, which are global at every level because only `differentiate` reads them."""
        wrong = updates_error(training, program) or report_error(training, program)
        if wrong is not None:
            raise VerifyError(wrong, f"program {program.name}")
        equations = self._equations(program, "global")
        rates = (training.learning_rate,) if training.learning_rate else ()
        for function in (*rates, *(update.function for update in training.updates)):
            _FunctionCheck(program, function, LEVELS["global"], equations, "training").run()


def _contents(function: Function, program: Program) -> tuple[object, ...]:
    """Return everything that the soundness of a function depends on, beside its level, the dimensions and the mesh."""
    return (function.arguments, function.body, function.outputs, program.parameters)


def _unique(names: Iterable[str], what: str, where: str) -> None:
    """Raise `VerifyError` if a name occurs twice. what: the things that have names."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise VerifyError(f"two {what} are called {name}", where)
        seen.add(name)


def _check_program(program: Program) -> None:
    """Refuse a program with two things of one name, wrong dimensions, or a training without a loss."""
    where = f"program {program.name}"
    _unique((function.name for function in program.functions), "functions", where)
    _unique((parameter.name for parameter in program.parameters), "parameters", where)
    for name, dim in program.dims.items():
        if dim.name != name or dim.size < 1:
            raise VerifyError(f"dimension {name} is declared as {dim.name} of size {dim.size}", where)
    if program.training is not None:
        if not program.has_function("forward"):
            raise VerifyError("it trains, and has no function forward", where)
        _check_minimized(program, program.training.minimize)


def _check_minimized(program: Program, name: str) -> None:
    """Raise `VerifyError` unless the minimized output is a floating-point scalar of `forward`."""
    outputs = {output.name: output.value.type for output in program.function("forward").handed_out}
    type = outputs.get(name)
    if type is None or type.dims or type.dtype not in FLOATS:
        found = "no output" if type is None else f"a {type}"
        raise VerifyError(
            f"{name} is minimized, and is {found} of forward: it must be a floating-point scalar",
            program.name,
        )


def type_error(type: TensorType, dims: Mapping[str, Dim], mesh: Mesh | None) -> str | None:
    """Return the first mistake in a type by itself (invariants 5 and 6), or None."""
    axes = (*type.split_axes, *type.pending)
    sizes = mesh.sizes if mesh else {}
    if type.dtype not in ITEM_BYTES:
        return f"unknown dtype {type.dtype}"
    if any(dims.get(dim.name) != dim for dim in type.dims):
        return "it has a dimension that the program does not declare with that size"
    if len(type.splits) != len(type.dims):
        return "splits and dims differ in number"
    if len(set(type.names)) != len(type.names):
        return "a dimension occurs twice"
    if len(set(axes)) != len(axes):
        return "a mesh axis is used twice"
    if not set(axes) <= set(sizes):
        return "the mesh lacks one of its axes"
    if mesh and any(d.size % mesh.size(a) for d, a in zip(type.dims, type.splits, strict=True)):
        return "a split does not divide its dimension evenly"
    if mesh and type.pending != mesh.ordered(type.pending):
        return "pending axes are not in mesh order"
    known = type.reduction in ("sum", "max", "min") if type.pending else type.reduction == "sum"
    return None if known else f"reduction {type.reduction} with pending {type.pending}"


def layout_error(layout: Mapping[str, Axes], dims: Iterable[Dim], rule: LayoutRule, mesh: Mesh) -> str | None:
    """Return the first mistake in an equation's layout (invariant 10), or None."""
    sizes = {dim.name: dim.size for dim in dims}
    used = [axis for axes in layout.values() for axis in axes]
    for name, axes in layout.items():
        if name not in sizes:
            return f"its layout names {name}, which is no dimension of its iteration space"
        if axes and name in rule.whole:
            return f"its layout splits {name}, which the op needs whole"
        if not set(axes) <= set(mesh.names) or sizes[name] % mesh.size(axes):
            return f"{name} (size {sizes[name]}) cannot be split over {', '.join(axes)}"
        if not rule.allows(Dim(name, sizes[name]), axes, mesh):
            return f"its layout splits {name}, which the op needs whole or in single elements"
    return "its layout puts two dimensions on one mesh axis" if len(set(used)) != len(used) else None


class _Equations:
    """Checks equations by themselves, without regard to scopes."""

    def __init__(
        self,
        program: Program,
        level: Level,
        seen: set[Equation | Argument | Output],
        alike: set[tuple[object, ...]],
        types: set[TensorType],
    ) -> None:
        """Check at a level.

        seen: what has been checked. alike: keys of equations that were found legal, so that equal ones need no check. types:
        types that were found legal.
        """
        self.dims, self.mesh, self.rule, self.level = program.dims, program.mesh, LEVELS[level], level
        self.seen, self.alike, self.types = seen, alike, types

    def check(self, eqn: Equation) -> None:
        """Raise `VerifyError` unless the equation, or an equal one, is sound."""
        if eqn in self.seen:
            return
        wrong = self.malformed(eqn)
        if wrong is not None:
            raise VerifyError(wrong, equation_text(eqn), eqn.span)
        key = _signature(eqn)
        if key not in self.alike or eqn.regions:
            reason = self.error(eqn)
            if reason is not None:
                raise VerifyError(reason, equation_text(eqn), eqn.span)
            self.alike.add(key)
        self.seen.add(eqn)

    def malformed(self, eqn: Equation) -> str | None:
        """Return a mistake that keeps the op's rules from reading the equation, or None."""
        if not eqn.results:
            return f"{eqn.op} has no result"
        return malformed(eqn.op, len(eqn.operands), eqn.attrs)

    def type_error(self, value: Value) -> str | None:
        """Return the first mistake in a value's type, or None. Sound types are remembered."""
        if value.type in self.types:
            return None
        wrong = type_error(value.type, self.dims, self.mesh)
        if wrong:
            return f"{value} is {value.type}: {wrong}"
        self.types.add(value.type)
        return None

    def error(self, eqn: Equation) -> str | None:
        """Return the first mistake in an equation, or None."""
        if not self.rule.allows(eqn):
            return f"op {eqn.op} is not legal at level {self.level}"
        if has_trait(eqn, "training") and self.rule.layouts:
            return f"`training` is not bound, at level {self.level}"
        for value in (*eqn.operands, *eqn.results):
            if wrong := self.type_error(value):
                return wrong
        if eqn.op == LOOP or eqn.regions:
            return self.attrs_error(eqn) or loop_error(eqn, self.rule.fitting)
        opdef = OPS[eqn.op]
        infer = partial(opdef.infer, [value.type.unsplit() for value in eqn.operands], eqn.attrs)
        found = tuple(value.type.unsplit() for value in eqn.results)
        wrong = self.attrs_error(eqn) or _types_error(f"type rule of {eqn.op}", "infers", infer, found)
        return wrong or self.place_error(opdef, eqn)

    def attrs_error(self, eqn: Equation) -> str | None:
        """Return what is wrong with the attributes of an equation, or None: a dimension or a mesh axis that is not declared."""
        for key, value in eqn.attrs.items():
            for dim in _dims_in(value):
                if self.dims.get(dim.name) != dim:
                    return f"{eqn.op}: {key} has dimension {dim.name} (size {dim.size}), which the program does not declare"
        axes = eqn.attrs.get("axes")
        if isinstance(axes, tuple) and not set(axes) <= (self.mesh.sizes.keys() if self.mesh else set()):
            return f"{eqn.op} over {', '.join(map(str, axes))}: the mesh lacks one of these axes"
        return None

    def place_error(self, opdef: OpDef, eqn: Equation) -> str | None:
        """Return what is wrong with the layout of an equation, or with how its values are placed at this level; None if nothing
        is.
        """
        if eqn.layout is None and self.rule.layouts:
            return f"at level {self.level} every equation has a layout"
        if eqn.layout is not None and not self.rule.layouts:
            return "it has a layout"
        if not self.rule.placed and not all(v.type.is_global for v in (*eqn.operands, *eqn.results)):
            return f"at level {self.level} types are global"
        if eqn.layout is not None and self.mesh:
            rule = opdef.layout_rule(eqn)
            space = [*rule.reduced, *(dim for value in eqn.results for dim in value.type.dims)]
            wrong = layout_error(eqn.layout, space, rule, self.mesh)
            if wrong:
                return wrong
        if not self.rule.placed or not self.mesh:
            return None
        fitting = eqn if self.rule.fitting else _with_fitting_operands(opdef, eqn)
        place = partial(placed_types, opdef, fitting, self.mesh)
        found = tuple(value.type for value in eqn.results)
        return _types_error(f"place rule of {eqn.op}", "gives", place, found)


def _signature(eqn: Equation) -> tuple[object, ...]:
    """Return everything that the soundness of an equation depends on."""
    return (
        eqn.op,
        tuple([value.type for value in eqn.operands]),
        tuple([value.type for value in eqn.results]),
        tuple(eqn.attrs.items()),
        None if eqn.layout is None else tuple(eqn.layout.items()),
    )


def _dims_in(value: Any) -> list[Dim]:
    """Return the dimensions in an attribute."""
    if isinstance(value, tuple):
        return [dim for item in value for dim in _dims_in(item)]
    return [value] if isinstance(value, Dim) else []


def _types(values: Iterable[TensorType]) -> str:
    return ", ".join(map(str, values))


def _types_error(
    rule: str, gives: str, types: Callable[[], tuple[TensorType, ...]], found: tuple[TensorType, ...]
) -> str | None:
    """Return what is wrong with the types that a rule gives to the results of an equation, or None.

    rule: the name of the rule. gives: its verb in the message. found: the types of the results.
    """
    try:
        known = types()
    except (OpError, PlacementError) as error:
        return f"the {rule} refuses: {error}"
    return None if known == found else f"the {rule} {gives} {_types(known)}, not {_types(found)}"


def _with_fitting_operands(opdef: OpDef, eqn: Equation) -> Equation:
    """Return the equation with operands of the types that it needs."""
    types = operand_types(opdef, eqn)
    return attrs.evolve(
        eqn, operands=tuple(Value(v.name, t) for v, t in zip(eqn.operands, types, strict=True))
    )


class _FunctionCheck:
    """Walks one function or region with the values that are in scope."""

    def __init__(
        self,
        program: Program,
        function: Function,
        rule: LevelRule,
        equations: _Equations,
        outer: str | None = None,
    ) -> None:
        """Start before the arguments.

        outer: the function around a region. may_ask: `training` may occur. names: names in use.
        """
        self.program, self.function, self.rule, self.equations = program, function, rule, equations
        self.is_region = outer is not None
        self.may_ask = function.name == "forward" if outer is None else outer.endswith("function forward")
        self.where = f"region {function.name} of {outer}" if outer else f"function {function.name}"
        self.declared = {parameter.name: parameter.type for parameter in program.parameters}
        self.arguments = {argument.value.name: argument.value.type for argument in function.arguments}
        self.visible: set[Value] = set()
        self.names: set[str] = set()

    def run(self) -> None:
        """Check arguments, body and outputs, in this order: each may refer to those before."""
        _unique((output.name for output in self.function.outputs), "outputs", self.where)
        for argument in self.function.arguments:
            self.argument(argument)
        self.body(self.function.body)
        for output in self.function.outputs:
            self.output(output)
        _unique((o.updates for o in self.function.outputs if o.updates is not None), "updates", self.where)

    def wrong(self, reason: str, eqn: Equation | None) -> VerifyError:
        return VerifyError(reason, equation_text(eqn), eqn.span) if eqn else VerifyError(reason, self.where)

    def define(self, value: Value, eqn: Equation | None = None) -> None:
        """Bring a value into scope that `eqn` defines, or the function as an argument if there is no `eqn`."""
        before = len(self.names)
        self.names.add(value.name)
        if len(self.names) == before:
            is_again = value in self.visible
            raise self.wrong(
                f"{value} is defined twice" if is_again else f"another value is called {value}", eqn
            )
        self.visible.add(value)

    def body(self, body: tuple[Equation, ...]) -> None:
        """Check equations in order: operands are defined before, results are new."""
        for eqn in body:
            self.used(eqn.operands, eqn)
            if not self.may_ask and has_trait(eqn, "training"):
                raise self.wrong("`training` occurs only in `forward`", eqn)
            self.equations.check(eqn)
            for region in eqn.regions:
                _FunctionCheck(self.program, region, self.rule, self.equations, self.where).run()
            for value in eqn.results:
                self.define(value, eqn)

    def used(self, values: tuple[Value, ...], eqn: Equation) -> None:
        """Raise `VerifyError` if an operand is not defined before its equation."""
        if not self.visible.issuperset(values):
            value = next(value for value in values if value not in self.visible)
            raise self.wrong(f"{value} is not defined before its use", eqn)

    def end(self, node: Argument | Output, where: str, pending: bool) -> None:
        """Check what arguments and outputs have in common: invariants 6, 8, 9 and 11. Reductions may be pending if `pending`.

        where: the place in the message.
        """
        if node in self.equations.seen:
            return
        type, layout = node.value.type, node.layout
        if wrong := self.equations.type_error(node.value):
            raise VerifyError(wrong, where)
        if type.pending and not pending:
            raise VerifyError(f"{node.value} is {type}: no reduction may be pending there", where)
        if (layout is not None) != self.rule.layouts:
            raise VerifyError("it has no layout" if layout is None else "it has a layout", where)
        placed = (
            type.unsplit().split_by(layout or {}, type.pending, type.reduction)
            if self.rule.placed
            else type.unsplit()
        )
        if type != placed and (self.rule.fitting or isinstance(node, Argument)):
            raise VerifyError(f"{node.value} is {type}, and its layout makes it {placed}", where)
        self.equations.seen.add(node)

    def argument(self, argument: Argument) -> None:
        """Check an argument, and define its value. A parameter must be one that the program declares."""
        where = f"argument {argument.value} of {self.where}"
        self.define(argument.value)
        self.end(argument, where, argument.role == "carried")
        declared = self.declared.get(argument.value.name)
        if argument.role == "parameter" and not self.is_region and declared != argument.value.type.unsplit():
            raise VerifyError("the program does not declare such a parameter", where, argument.span)

    def output(self, output: Output) -> None:
        """Check an output: it is defined, has a legal layout, and has the type of the argument that it updates."""
        where = f"output {output.name} of {self.where}"
        if output.value not in self.visible:
            raise VerifyError(f"{output.value} is not defined", where)
        self.end(output, where, self.is_region or not self.rule.fitting)
        updated, found = self.arguments.get(output.updates or ""), output.value.type
        if not self.rule.fitting:
            updated, found = updated and updated.unsplit(), found.unsplit()
        in_forward = self.function.name == "forward" and output.updates is not None
        if in_forward and (self.rule.layouts or output.updates not in self.program.states):
            raise VerifyError(
                "`forward` updates states of the model alone, before layouts are assigned", where
            )
        if output.updates is not None and updated != found:
            raise VerifyError(f"it is {output.value.type} and updates {output.updates}", where)
