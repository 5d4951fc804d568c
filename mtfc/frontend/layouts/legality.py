"""Check that a layout is legal for a program (Mesh-TensorFlow paper, section 5), and warn if it wastes processors.

A layout must be injective on every tensor: no mesh axis may split two of its dimensions. Sizes must divide evenly. Each broken
rule is reported once, at the rule, with the first tensor for which it is broken.

There are two warnings about legal layouts: W601 for duplicated work, and W602 for two rules that need one mesh axis. The readme
of Mesh-TensorFlow ("How do I pick a layout?") gives the rule: every expensive einsum should use all mesh axes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Label, Span, did_you_mean
from mtfc.compiler.ir.core import Equation, Program, Value, walk
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.contraction import iteration_dims, reduced_dims
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh
from mtfc.compiler.records import frozen
from mtfc.frontend.layouts.allowed_warnings import Allowed
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout, DeclaredRule, Section
from mtfc.frontend.layouts.pipelines import absent_loops, pipeline_errors
from mtfc.frontend.layouts.program_index import ProgramIndex, Shapes, Tensor, by_shape, in_main_file
from mtfc.frontend.semantics.names.scope import count

FindTargets = Callable[[Program, Mesh, Layout], Mapping[str, Tensor]]
"""Returns the layout targets that the compiler names in a program under a layout: see `ProgramIndex`."""


SUGGESTIONS = 20
"""Unknown names of a layout for which a similar name is searched: the search takes a while among thousands of names."""


MOST_CHECKS = 100_000
"""Most checks of the layouts of a file, as `ProgramIndex.size` counts them: they take about a second."""


def no_targets(program: Program, mesh: Mesh, layout: Layout) -> Mapping[str, Tensor]:
    """Return no targets besides the user's values."""
    return {}


def check_layouts(
    programs: Iterable[Program],
    layouts: Iterable[DeclaredLayout],
    layout_targets: FindTargets = no_targets,
    unused: Collection[str] = (),
    advice: Advice | None = None,
) -> list[Diagnostic]:
    """Return all errors and warnings of layouts for the models of one file.

    unused: names of values that the programs lack because nothing uses them. Rules may name these values.
    """
    shared = [ProgramIndex(program) for program in programs]
    left_out = {_unnumbered(path) for path in unused}
    found: list[Diagnostic] = []
    checks = 0
    for declared in layouts:
        facts = [each for each in shared if declared.is_for(each.program.name)]
        checks += sum(each.size(single=bool(declared.values)) for each in facts)
        if checks > MOST_CHECKS:
            return [*found, _too_many(declared)]
        if declared.values:
            facts = [_facts(each.program, declared, layout_targets) for each in facts]
        found += _unknown_paths(facts, declared, left_out)
        found += _absent_dims(facts, declared)
        found += absent_loops(facts, declared.pipelines)
        for each in facts:
            found += _check(each, declared, advice or Advice())
    return found


def _too_many(declared: DeclaredLayout) -> Diagnostic:
    """Return the error (E122) that a file's layouts together are too much to check."""
    message = f"the layouts up to this one have more than {MOST_CHECKS:,} tensors to check in the models of this file"
    help = "say which models a layout is for, check one with `--layout NAME`, or move layouts to other files"
    return Diagnostic("E122", message, declared.span, help=help)


def _facts(program: Program, declared: DeclaredLayout, layout_targets: FindTargets) -> ProgramIndex:
    return ProgramIndex(program, lambda: layout_targets(program, declared.mesh, declared.layout))


def check_layout(
    program: Program, declared: DeclaredLayout, layout_targets: FindTargets = no_targets
) -> list[Diagnostic]:
    """Return the errors and warnings of one layout for one model."""
    facts = _facts(program, declared, layout_targets)
    absent = (*_absent_dims([facts], declared), *absent_loops([facts], declared.pipelines))
    return [*absent, *_check(facts, declared, Advice())]


def _check(facts: ProgramIndex, declared: DeclaredLayout, advice: Advice) -> Iterator[Diagnostic]:
    """Yield the errors of a layout for a model; if it has none, also its warnings."""
    errors = list(_errors(facts, declared))
    yield from errors
    named = all(path in facts.by_path for path in declared.values)
    if named and not errors and (not advice.several or _is_meant_for(facts, declared)):
        yield from _Check(facts, declared, advice, lambda other: not any(_errors(facts, other))).found()


def _errors(facts: ProgramIndex, declared: DeclaredLayout) -> Iterator[Diagnostic]:
    """Yield E301 and E302, and the errors of pipelines."""
    yield from pipeline_errors(facts, declared.pipelines)
    reported: set[tuple[Span, ...]] = set()
    for section, shapes, suffix in _applications(facts, declared):
        yield from _not_injective(facts, section, shapes, suffix, declared, reported)
        yield from _indivisible(section, shapes, declared, reported)


def _is_meant_for(facts: ProgramIndex, declared: DeclaredLayout) -> bool:
    """True if a layout is for this one of several models.

    Such a layout names models or values, splits a dimension of the model, or has no rules and so is for every model.
    """
    rules = (*declared.compute.values(), *declared.params.values(), *declared.optimizer.values())
    return (
        bool(declared.models or declared.values)
        or not rules
        or any(rule.dim in facts.neighbours for rule in rules)
    )


def _applications(facts: ProgramIndex, declared: DeclaredLayout) -> Iterator[tuple[Section, Shapes, str]]:
    """Yield each set of rules, with the tensors to which it applies, and words for the end of a message."""
    own = declared.values
    others = by_shape(t for t in facts.tensors if t.path not in own) if own else facts.shapes
    parameters = by_shape(t for t in facts.parameters if t.path not in own) if own else facts.stored
    yield declared.compute, others, ""
    yield declared.params, parameters, " where parameters are stored"
    yield declared.optimizer, parameters, " where optimizer state is stored"
    for path, section in own.items():
        yield section, by_shape(facts.of_path(path)), ""


# E301


def _not_injective(
    facts: ProgramIndex,
    section: Section,
    shapes: Shapes,
    suffix: str,
    declared: DeclaredLayout,
    reported: set[tuple[Span, ...]],
) -> Iterator[Diagnostic]:
    """Yield E301. A value that a pipeline yields for each layer and the whole batch is split by only one of the two rules."""
    clashes: dict[tuple[str, Span, Span], tuple[DeclaredRule, DeclaredRule, list[Tensor]]] = {}
    dropped = [{each.pipeline.loop, each.pipeline.batch} for each in declared.pipelines]
    for names, alike in shapes.items():
        for axis, one, other in _clashes(names, section):
            if {one.dim, other.dim} in dropped and not any(tensor.role for tensor in alike):
                continue
            entry = clashes.setdefault((axis, one.span, other.span), (one, other, []))
            entry[2].extend(alike)
    for (axis, *spans), (one, other, affected) in clashes.items():
        if tuple(spans) not in reported:
            reported.add(tuple(spans))
            free = _free_axis(one, other, section, shapes, declared.mesh)
            help = free or KEEP.format(axis)
            if not suffix:
                help += renaming(facts, affected, (other, one), section, may_declare=not free) or ""
            yield _clash(axis, one, other, affected, suffix, declared.name, help)


def _clashes(names: Sequence[str], section: Section) -> Iterator[tuple[str, DeclaredRule, DeclaredRule]]:
    """Yield the axes over which two dimensions of one tensor are split, with both rules in the order of the source."""
    users: dict[str, DeclaredRule] = {}
    for rule in (found for name in names if (found := section.get(name))):
        for axis in rule.axes:
            other = users.setdefault(axis, rule)
            if other is not rule:
                first, second = sorted((rule, other), key=lambda each: each.span)
                yield axis, first, second


def _clash(
    axis: str,
    one: DeclaredRule,
    other: DeclaredRule,
    affected: Sequence[Tensor],
    suffix: str,
    layout: str,
    help: str,
) -> Diagnostic:
    """Return the error (E301) that two rules split two dimensions of one tensor over one axis. affected: all such tensors.

    one, other: both rules.
    """
    tensor = next((each for each in affected if each.path), affected[0])
    message = f"layout `{layout}` splits two dimensions of {tensor.shown} over mesh axis `{axis}`{suffix}"
    more = len(affected) - 1
    rest = f", and {more} more value{'s' * (more > 1)} like it" if more else ""
    labels = [Label(one.span, f"`{one.dim}` is split over `{axis}` here")]
    if tensor.place:
        labels.append(Label(tensor.place, f"{tensor.shown} is {tensor.type}{rest}"))
    return Diagnostic("E301", message, other.span, tuple(labels), help)


KEEP = "keep one of the two rules, or use a mesh with another axis than `{}` for the other dimension"


def _free_axis(
    one: DeclaredRule, other: DeclaredRule, section: Section, shapes: Shapes, mesh: Mesh
) -> str | None:
    """Return help that gives another axis for one of the dimensions, if the mesh has one that no dimension beside it uses.

    one, other: the rules that split two dimensions over one axis.
    """
    for rule in (other, one):
        beside = {name: dim for alike in shapes.values() for name, dim in _dims(alike[0], rule.dim)}
        used = {each for name in beside for each in _axes(section, name)}
        size = beside[rule.dim].size
        free = [name for name in mesh.names if name not in used and size % mesh.sizes[name] == 0]
        if free:
            return f"axis `{free[0]}` is free: write `{rule.dim}: {free[0]}`"
    return None


def _dims(tensor: Tensor, needed: str) -> Iterator[tuple[str, Dim]]:
    """The dimensions of a tensor by name, if it has the one that is needed."""
    if needed in tensor.type.names:
        yield from zip(tensor.type.names, tensor.type.dims, strict=True)


def _axes(section: Section, name: str) -> tuple[str, ...]:
    """Return the axes that the rule of a dimension has in a section; none without a rule."""
    return section[name].axes if name in section else ()


# E302


def _indivisible(
    section: Section,
    shapes: Shapes,
    declared: DeclaredLayout,
    reported: set[tuple[Span, ...]],
) -> Iterator[Diagnostic]:
    """Yield E302 for each rule that does not divide a dimension of some tensor evenly."""
    mesh = declared.mesh
    dims = {dim.name: dim for alike in shapes.values() for dim in alike[0].type.dims}
    for rule in section.values():
        dim = dims.get(rule.dim)
        if dim is None or dim.size % mesh.size(rule.axes) == 0 or (rule.span,) in reported:
            continue
        reported.add((rule.span,))
        parts = mesh.size(rule.axes)
        over = " and ".join(f"`{axis}` ({mesh.sizes[axis]})" for axis in rule.axes)
        message = f"`{dim.name}` has size {dim.size}, which cannot be split evenly over {over}"
        label = Label(rule.declared, f"`{dim.name}` is {dim.size}")
        help = f"make it a multiple of {parts}, or split another dimension"
        yield Diagnostic("E302", message, rule.span, (label,), help)


# Rules for single values


def _unknown_paths(
    facts: Sequence[ProgramIndex], declared: DeclaredLayout, left_out: Collection[str]
) -> Iterator[Diagnostic]:
    """Yield E305 for rules for values that no model has. The first ones suggest a similar name."""
    if not declared.values or not facts:
        return
    paths = [path for path in declared.paths if _unnumbered(path) not in left_out]
    unknown = [path for path in paths if not any(each.of_path(path) for each in facts)]
    known = {name for each in facts for name in (*each.by_path, *each.layout_targets)} if unknown else set()
    for number, path in enumerate(unknown):
        help = did_you_mean(path, known) if number < SUGGESTIONS else None
        yield Diagnostic("E305", f"no model has a value `{path}`", declared.paths[path].span, help=help)


def _unnumbered(path: str) -> str:
    """Return `layers.dense_2.h` as `layers.dense.h`: values that are left out have no numbers."""
    return re.sub(r"_\d+(?=\.|$)", "", path)


def _absent_dims(facts: Sequence[ProgramIndex], declared: DeclaredLayout) -> Iterator[Diagnostic]:
    """Yield E306 for rules for dimensions that no value of the name has, in any model."""
    for path, section in declared.values.items():
        named = [tensor for each in facts for tensor in each.of_path(path)]
        for rule in section.values():
            if named and not any(rule.dim in tensor.type.names for tensor in named):
                labels = [Label(t.place, f"`{path}` is {t.type}") for t in named if t.place]
                message = f"`{path}` has no dimension `{rule.dim}`"
                yield Diagnostic("E306", message, rule.span, tuple(labels))


def renaming(
    facts: ProgramIndex,
    affected: Iterable[Tensor],
    rules: Sequence[DeclaredRule],
    section: Section,
    may_declare: bool,
) -> str | None:
    """Return `; or rename ...` with the call, if a suitable operand exists, and `; or declare ...` for inputs and parameters.

    The operand belongs to an equation that makes one of these tensors, and has only one of the two rules' dimensions.
    """
    affected = tuple(affected)
    argument = next((each for each in affected if each.role is not None and each.path), None)
    if argument is not None:
        return _redeclared(facts, argument, rules[0].dim, section) if may_declare else None
    spans = {tensor.span for tensor in affected}
    for eqn in facts.equations:
        if eqn.span not in spans:
            continue
        for rule, beside in zip(rules, reversed(rules), strict=True):
            operand = _operand(facts, eqn, rule.dim, beside.dim)
            if operand is not None:
                return _text(facts, facts.paths[operand], rule.dim, section)
    return None


def _operand(facts: ProgramIndex, eqn: Equation, dim: str, other: str) -> Value | None:
    """Return an operand with a name of the user's that has the one dimension, and not the other."""
    fit = (value for value in eqn.operands if dim in value.type.names and other not in value.type.names)
    return next((value for value in fit if value in facts.paths), None)


def _redeclared(facts: ProgramIndex, tensor: Tensor, dim: str, section: Section) -> str:
    """Return help for an input or a parameter, which has both dimensions by its declaration."""
    new, declared = _new(facts, dim, section, tensor.type.names)
    names = ", ".join(new if name == dim else name for name in tensor.type.names)
    dtype = "" if tensor.type.dtype == "f32" else tensor.type.dtype
    variable = (tensor.path or "").rpartition(".")[2]
    return f"; or declare `{variable}: {dtype}[{names}]`{declared}, and `rename` the values that it meets"


def _text(facts: ProgramIndex, name: str, dim: str, section: Section) -> str:
    """Return help that renames a dimension of a value to one that no rule splits."""
    new, declared = _new(facts, dim, section)
    variable = name.rpartition(".")[2]
    return f"; or rename one of them: `rename({variable}, {dim} -> {new})`{declared}"


def _new(facts: ProgramIndex, dim: str, section: Section, taken: Sequence[str] = ()) -> tuple[str, str]:
    """Return a name for a dimension of the same size that no rule splits, and its declaration if it needs one.

    taken: names that are not free.
    """
    size = facts.program.dims[dim].size
    like = [
        each.name
        for each in facts.program.dims.values()
        if each.size == size and each.name != dim and each.name not in (*section, *taken)
    ]
    free = next((each for each in like if "memory" in each or dim in each), None)
    new = free or f"{dim}_whole"
    declared = "" if free else f", with `dim {new} = {dim}`"
    return new, declared


# Warnings about legal layouts


MACHINE = "h100"
"""The library's machine on which steps are predicted."""

LEAST = 1.05
"""Least predicted speedup of a step for which a rule is advised."""

Faster = Callable[[Program, Equation, Mesh, Layout, Sequence[Layout]], Sequence[float] | None]
"""A function that predicts the speedup of a program under each of some other layouts.

The other layouts differ in the layout of the given equation. The function returns None if the prediction takes too long, or the
machine has no room for the mesh.
"""


def no_predictions() -> Faster:
    """Return a function that predicts nothing, without a simulator."""
    return lambda *_: None


@frozen(slots=False)
class Advice:
    """Options of the warnings about layouts.

    allowed: warnings that the file allows. several: True if the file has several models. trained: the models that it trains.
    predictor: makes the function that predicts speedups, on demand.
    """

    allowed: Allowed = attrs.field(factory=Allowed)
    several: bool = False
    trained: tuple[str, ...] = ()
    predictor: Callable[[], Faster] = no_predictions

    @cached_property
    def faster(self) -> Faster:
        return self.predictor()


MOST_PLACES = 3
"""Maximum number of places that a warning shows beside the first."""


class _Check:
    """The check of a legal layout for one model. is_legal: tests another layout."""

    def __init__(
        self,
        facts: ProgramIndex,
        declared: DeclaredLayout,
        advice: Advice,
        is_legal: Callable[[DeclaredLayout], bool],
    ) -> None:
        """Check a layout for one model.

        facts: its tensors. advice: proposes layouts for help. stages: the loops with pipelines.
        """
        self.facts, self.declared = facts, declared
        self.advice, self.is_legal = advice, is_legal
        self.mesh = declared.mesh
        self.stages = _stages(facts, declared)

    def found(self) -> Iterator[Diagnostic]:
        """Yield W601 and W602."""
        declared = self.declared
        if "W601" not in declared.allowed and not self.advice.allowed.at("W601", declared.span):
            yield from self.duplicated()
        if "W602" not in declared.allowed and declared.values:
            for eqn in self.facts.equations:
                yield from self.conflicts(eqn)

    def _rules(self, eqn: Equation, reduced: Iterable[Dim]) -> dict[str, DeclaredRule]:
        """Return the rules of an equation: the rules for its first result, and the rules for the `reduced` dimensions."""
        result = eqn.results[0]
        own = self._section(result)
        kept = {name: own[name] for name in result.type.names if name in own}
        compute = self.declared.compute
        return {**kept, **{dim.name: compute[dim.name] for dim in reduced if dim.name in compute}}

    # W601

    def duplicated(self) -> Iterator[Diagnostic]:
        """Yield a warning for each set of unused axes of equations: all processors along these axes do the same work."""
        groups: dict[tuple[str, ...], list[Equation]] = {}
        for eqn in self.facts.heavy:
            used = {axis for rule in self._rules(eqn, reduced_dims(eqn)).values() for axis in rule.axes}
            used |= self.stages.get(eqn, frozenset())
            unused = tuple(axis for axis, size in self.mesh.axes if size > 1 and axis not in used)
            if unused and eqn.span and not self.advice.allowed.at("W601", in_main_file(eqn.span)):
                groups.setdefault(unused, []).append(eqn)
        if groups and self._is_only_sampled():
            yield self._meant_for([axis for axis in self.mesh.names if any(axis in axes for axes in groups)])
            return
        for axes, equations in groups.items():
            yield self._duplicated(axes, sorted(equations, key=lambda eqn: -self.facts.heavy[eqn]))

    def _is_only_sampled(self) -> bool:
        """Return True if the layout is for all models of a file that trains others than this one."""
        return self.facts.program.training is None and bool(self.advice.trained) and not self.declared.models

    def _meant_for(self, unused: Sequence[str]) -> Diagnostic:
        """Return the warning that a layout for training leaves axes unused in a model that is only sampled."""
        axes, name, model = _list(unused), self.declared.name, self.facts.program.name
        message = f"layout `{name}` leaves {axes} unused in model `{model}`, which has no `train` block"
        help = f"say which model it is for: `layout {name} for {self.advice.trained[0]} on {self.mesh.name}`"
        return Diagnostic("W601", message, self.declared.span, (), help)

    def _duplicated(self, unused: Sequence[str], equations: Sequence[Equation]) -> Diagnostic:
        """Return the warning about equations, the heaviest first."""
        eqn, *others = equations
        assert eqn.span is not None, "others are left out"
        axes = f"mesh {'axes' if len(unused) > 1 else 'axis'} {_list(unused)}"
        more = f" and in {count(len(others), 'more equation')}" if others else ""
        message = f"layout `{self.declared.name}` leaves {axes} unused here{more}: this work is done"
        message += f" {self.mesh.size(unused)} times over"
        labels = [Label(self.declared.span, "under this layout"), *_inside(eqn.span)]
        places = dict.fromkeys(in_main_file(each.span) for each in others if each.span)
        also = [Label(place, "and here") for place in places if place != in_main_file(eqn.span)]
        help = "; ".join(text for axis in unused if (text := self._help(eqn, axis)))
        return Diagnostic(
            "W601", message, in_main_file(eqn.span), (*labels, *also[:MOST_PLACES]), help or None
        )

    def _help(self, eqn: Equation, axis: str) -> str | None:
        """Return the rules for an axis that are predicted to make a step faster."""
        dims = [dim for dim in iteration_dims(eqn) if self._may_split(dim, axis)]
        others = [self.declared.with_rule(dim.name, (*self._axes(dim.name), axis)) for dim in dims]
        legal = {dim.name: each for dim, each in zip(dims, others, strict=True) if self.is_legal(each)}
        if not legal:
            return f"none of its dimensions can be split over `{axis}` as well"
        layouts = [each.layout for each in legal.values()]
        program, layout = self.facts.program, self.declared.layout
        found = self.advice.faster(program, eqn, self.mesh, layout, layouts)
        if found is None:
            return None
        best = sorted(zip(found, legal, strict=True), reverse=True)
        rules = [(self._extended(dim, axis), f"{times:.1f} times") for times, dim in best if times >= LEAST]
        if not rules:
            meant = "`allow W601` in the layout says that this is meant"
            return f"no rule for `{axis}` is predicted to be faster on {MACHINE}; {meant}"
        (rule, times), *more = rules
        rest = "".join(f", {rule} {times}" for rule, times in more)
        return (
            f"split a dimension over `{axis}`: on {MACHINE} {rule} is predicted to be {times} as fast{rest}"
        )

    def _axes(self, name: str) -> Axes:
        rule = self.declared.compute.get(name)
        return rule.axes if rule else ()

    def _may_split(self, dim: Dim, axis: str) -> bool:
        """Return True if a dimension can be split over an axis as well.

        The size must divide evenly, and no tensor may have another dimension that is split over the axis.
        """
        divides = dim.size % self.mesh.size((*self._axes(dim.name), axis)) == 0
        return divides and all(axis not in self._axes(name) for name in self.facts.neighbours[dim.name])

    def _extended(self, dim: str, axis: str) -> str:
        before = self._axes(dim)
        return f"`{dim}: ({', '.join((*before, axis))})`" if before else f"`{dim}: {axis}`"

    # W602

    def conflicts(self, eqn: Equation) -> Iterator[Diagnostic]:
        """Yield W602 for each axis over which two dimensions of the equation are split, if no tensor has both dimensions.

        Only `value` rules can cause this: without them, one of the two dimensions is summed away before the other is met.
        """
        users: dict[str, list[DeclaredRule]] = {}
        for rule in self._rules(eqn, _reduced(eqn)).values():
            for axis in rule.axes:
                users.setdefault(axis, []).append(rule)
        for axis, rules in users.items():
            if len(rules) > 1 and self.mesh.sizes[axis] > 1 and not self._is_error(eqn, axis, rules):
                yield self._conflict(eqn, axis, rules)

    def _is_error(self, eqn: Equation, axis: str, rules: Sequence[DeclaredRule]) -> bool:
        """Return True if one tensor of the equation has two of the dimensions, which is E301."""
        tensors = (*eqn.operands, *eqn.results)
        return any(sum(self._splits(value, rule.dim, axis) for rule in rules) > 1 for value in tensors)

    def _section(self, value: Value) -> Section:
        return self.declared.values.get(self.facts.paths.get(value, ""), self.declared.compute)

    def _splits(self, value: Value, dim: str, axis: str) -> bool:
        """Return True if the rules for a value split this dimension over the axis."""
        rule = self._section(value).get(dim)
        return rule is not None and dim in value.type.names and axis in rule.axes

    def _conflict(self, eqn: Equation, axis: str, rules: Sequence[DeclaredRule]) -> Diagnostic:
        """Return the warning (W602) that two dimensions, both split over an axis, meet in an equation."""
        names = _list([rule.dim for rule in rules])
        message = f"{names} are both split over mesh axis `{axis}` and meet here: only one of them can be"
        labels = tuple(Label(rule.span, f"`{rule.dim}` is split over `{axis}` here") for rule in rules)
        help = "the other one stays whole in this equation; give the dimensions different axes to avoid that"
        assert eqn.span is not None, "the user's equations have a place in the source"
        return Diagnostic("W602", message, in_main_file(eqn.span), (*labels, *_inside(eqn.span)), help)


def _stages(facts: ProgramIndex, declared: DeclaredLayout) -> dict[Equation, frozenset[str]]:
    """Return the mesh axes along which stages of a pipeline compute each equation, for the equations of pipelines."""
    loops = {each.pipeline.loop for each in declared.pipelines}
    found: dict[Equation, frozenset[str]] = {}
    for eqn in facts.loops:
        if dim_of(eqn).name in loops:
            axes = frozenset(declared.compute[dim_of(eqn).name].axes)
            found |= {each: axes | found.get(each, frozenset()) for each in walk(region_of(eqn).body)}
    return found


def _inside(span: Span) -> Iterator[Label]:
    """Yield a label at a place in a function of another file; nothing for a place in the main file."""
    if in_main_file(span).file != span.file:
        yield Label(attrs.evolve(span, call=None), "by this")


def _reduced(eqn: Equation) -> tuple[Dim, ...]:
    """Return the dimensions that the equation itself sums away: a dimension of one operand alone is summed before."""
    reduced = OPS[eqn.op].layout_rule(eqn).reduced
    if len(eqn.operands) == 1:
        return reduced
    return tuple(dim for dim in reduced if sum(dim in value.type.dims for value in eqn.operands) > 1)


def _list(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
