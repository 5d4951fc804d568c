"""Check that a layout is legal for a program (Mesh-TensorFlow paper, section 5).

A layout must be injective on every tensor: no mesh axis may split two of its dimensions. Sizes must divide evenly. Each broken
rule is reported once, at the rule, with the first tensor for which it is broken. `efficiency.py` has the warnings about legal
layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from mtfc.compiler.diagnostics import Diagnostic, Label, Span, nearest
from mtfc.compiler.ir.core import Equation, Program, Value
from mtfc.compiler.ir.types import Dim, Layout, Mesh
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout, DeclaredRule, Section
from mtfc.frontend.layouts.efficiency import Advice, check_efficiency
from mtfc.frontend.layouts.pipelines import absent_loops, pipeline_errors
from mtfc.frontend.layouts.program_index import ProgramIndex, Shapes, Tensor, by_shape

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
    errors = list(_errors(facts, declared))
    yield from errors
    named = all(path in facts.by_path for path in declared.values)
    if named and not errors and (not advice.several or _is_meant_for(facts, declared)):
        yield from check_efficiency(facts, declared, advice, lambda other: not any(_errors(facts, other)))


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
    """Yield E301. What a pipeline yields for each layer and the whole batch is split by only one of the two rules."""
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
    """Return help that gives another axis for one of the dimensions, if the mesh has one that no dimension beside it uses."""
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
    asked = [path for path in declared.paths if _unnumbered(path) not in left_out]
    unknown = [path for path in asked if not any(each.of_path(path) for each in facts)]
    known = {name for each in facts for name in (*each.by_path, *each.layout_targets)} if unknown else set()
    for number, path in enumerate(unknown):
        near = nearest(path, known) if number < SUGGESTIONS else None
        help = f"did you mean `{near}`?" if near else None
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
    new, declared = _new(facts, dim, section)
    variable = name.rpartition(".")[2]
    return f"; or rename one of them: `rename({variable}, {dim} -> {new})`{declared}"


def _new(facts: ProgramIndex, dim: str, section: Section, taken: Sequence[str] = ()) -> tuple[str, str]:
    """Return a name for a dimension of the same size that no rule splits, and its declaration if it needs one."""
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
