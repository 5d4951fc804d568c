"""Write a syntax tree as text, with parentheses around every operation. The parser is tested against this text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from mtfc.frontend.syntax import ast


@singledispatch
def source(node: ast.Node) -> str:
    raise TypeError(node)


def listed(nodes: Iterable[ast.Node]) -> str:
    return ", ".join(map(source, nodes))


def block(body: Iterable[ast.Node]) -> str:
    return "{\n" + "".join(f"{source(statement)}\n" for statement in body) + "}"


@source.register
def _(node: ast.File) -> str:
    return "".join(f"{source(declaration)}\n" for declaration in node.declarations)


# Expressions


@source.register(ast.Int | ast.Float)
def _(node: ast.Int | ast.Float) -> str:
    return repr(node.value)


@source.register
def _(node: ast.Bool) -> str:
    return "true" if node.value else "false"


@source.register(ast.Name | ast.Path)
def _(node: ast.Name | ast.Path) -> str:
    return node.text


@source.register
def _(node: ast.Ellipsis) -> str:
    return "..."


@source.register
def _(node: ast.Unary) -> str:
    return f"({node.op} {source(node.operand)})"


@source.register
def _(node: ast.Binary) -> str:
    return f"({source(node.left)} {node.op} {source(node.right)})"


@source.register
def _(node: ast.DimList) -> str:
    return f"[{listed(node.dims)}]"


@source.register
def _(node: ast.Tuple) -> str:
    return f"({listed(node.items)})"


@source.register
def _(node: ast.Arrow) -> str:
    return f"{source(node.source)} -> {source(node.target)}"


@source.register
def _(node: ast.Keyword) -> str:
    return f"{source(node.name)} = {source(node.value)}"


@source.register
def _(node: ast.DimBinding) -> str:
    return f"{source(node.generic)} = {source(node.dim)}"


@source.register
def _(node: ast.Call) -> str:
    bindings = f"[{listed(node.bindings)}]" if node.bindings else ""
    scope = f" as {source(node.scope)}" if node.scope else ""
    scope += f" sharing {source(node.shared)}" if node.shared else ""
    return f"{source(node.function)}{bindings}({listed((*node.arguments, *node.keywords))}){scope}"


@source.register
def _(node: ast.Type) -> str:
    return f"{source(node.dtype) if node.dtype else ''}[{listed(node.dims)}]"


# Statements


@source.register
def _(node: ast.Assign) -> str:
    return f"{listed(node.targets)} = {source(node.value)}"


@source.register
def _(node: ast.Param) -> str:
    return f"param {source(node.name)}: {source(node.type)} = {source(node.init)}"


@source.register
def _(node: ast.State) -> str:
    type = f": {source(node.type)}" if node.type else ""
    return f"state {source(node.name)}{type} = {source(node.value)}"


@source.register
def _(node: ast.Watch) -> str:
    return f"watch {listed(node.values)}"


@source.register
def _(node: ast.StateUpdate) -> str:
    return f"update {source(node.name)} = {source(node.value)}"


@source.register
def _(node: ast.Return) -> str:
    return f"return {listed(node.values)}"


@source.register
def _(node: ast.Yield) -> str:
    return f"yield {source(node.name)} = {source(node.value)}"


@source.register
def _(node: ast.SliceBinding) -> str:
    return f"{source(node.name)} = {source(node.source)}"


@source.register
def _(node: ast.Repeat) -> str:
    checkpoint = "checkpoint " if node.checkpoint else ""
    slices = f"with {listed(node.slices)} " if node.slices else ""
    return f"repeat {source(node.dim)} {checkpoint}{slices}{_condition(node)}{block(node.body)}"


@source.register
def _(node: ast.Scan) -> str:
    return f"scan {listed(node.slices)} along {source(node.dim)} {_condition(node)}{block(node.body)}"


def _condition(node: ast.Repeat | ast.Scan) -> str:
    return "" if node.condition is None else f"while {source(node.condition)} "


# Declarations


@source.register
def _(node: ast.ImportDecl) -> str:
    return f"import {source(node.name)}"


@source.register
def _(node: ast.DimDecl) -> str:
    return f"dim {source(node.name)} = {source(node.size)}"


@source.register
def _(node: ast.MeshDecl) -> str:
    return f"mesh {source(node.name)} = [{listed(node.axes)}]"


@source.register
def _(node: ast.MeshAxis) -> str:
    return f"{source(node.name)}: {source(node.size)}"


@source.register
def _(node: ast.FormFigure) -> str:
    return f"{source(node.key)}: {source(node.number)}"


@source.register
def _(node: ast.LayoutDecl) -> str:
    entries = rules_of(node)
    entries += [source(value) for value in node.values]
    entries += [source(pipeline) for pipeline in node.pipelines]
    entries += [source(part) for part in node.parts]
    entries += [f"forms: {{{listed(node.forms.entries)}}}"] if node.forms else []
    entries += [source(allow) for allow in node.allows]
    mesh = f" on {source(node.mesh)}" if node.mesh else ""
    models = f" for {', '.join(map(source, node.models))}" if node.models else ""
    both = f"{mesh}{models}" if len(entries) % 2 else f"{models}{mesh}"
    return f"layout {source(node.name)}{both} = {{{', '.join(entries)}}}"


def rules_of(node: ast.LayoutDecl | ast.PartRules) -> list[str]:
    sections = (("params", node.params), ("optimizer", node.optimizer))
    return [
        *(source(rule) for rule in node.rules),
        *(f"{key}: {source(section)}" for key, section in sections if section),
    ]


@source.register
def _(node: ast.PartRules) -> str:
    names = source(node.paths[0]) if len(node.paths) == 1 else f"({listed(node.paths)})"
    entries = [*rules_of(node), *map(source, (*node.values, *node.pipelines, *node.misplaced))]
    return f"part {names} on {source(node.mesh)}: {{{', '.join(entries)}}}"


@source.register
def _(node: ast.PipelineRule) -> str:
    return f"pipeline {source(node.loop)}{' checkpoint' * node.checkpoint}: {{{listed(node.cuts)}}}"


@source.register
def _(node: ast.Allow) -> str:
    return f"allow {source(node.code)}"


@source.register
def _(node: ast.SplitRule) -> str:
    return f"{source(node.dim)}: ({listed(node.axes)})"


@source.register
def _(node: ast.Every) -> str:
    return "*"


@source.register(ast.RuleSet | ast.Precision)
def _(node: ast.RuleSet | ast.Precision) -> str:
    return f"{{{listed(node.rules)}}}"


@source.register
def _(node: ast.ValueRules) -> str:
    return f"value {source(node.path)}: {{{listed(node.rules)}}}"


@source.register
def _(node: ast.PlacementDecl) -> str:
    return f"placement {source(node.name)} on {source(node.devices)} = {{{listed(node.operators)}}}"


@source.register
def _(node: ast.OperatorPlacement) -> str:
    indices = f"[{listed(node.indices)}]" if node.indices else ""
    return f"{source(node.path)}{indices}: {{{listed(node.degrees)}}} on [{listed(node.devices)}]"


@source.register
def _(node: ast.Degree) -> str:
    return f"{source(node.dim)}: {source(node.parts)}"


@source.register
def _(node: ast.HardwareDecl) -> str:
    entries = [*map(source, node.devices), *map(source, node.links), *map(source, node.figures)]
    return f"hardware {source(node.name)} = {{{', '.join(entries)}}}"


@source.register
def _(node: ast.DeviceDecl) -> str:
    return f"device {source(node.name)}: {{{listed(node.figures)}}}"


@source.register
def _(node: ast.DeviceList) -> str:
    return f"[{listed(node.devices)}]"


@source.register
def _(node: ast.DeviceRange) -> str:
    return f"{source(node.first)}..{source(node.last)}"


@source.register
def _(node: ast.DevicesOfKind) -> str:
    return f"{source(node.kind)}[{listed(node.numbers)}]"


@source.register
def _(node: ast.LinkDecl) -> str:
    return f"link {source(node.name)}: {{{listed(node.figures)}}}"


@source.register
def _(node: ast.HardwareFigure) -> str:
    return f"{source(node.key)}: {source(node.value)}"


@source.register
def _(node: ast.HardwareFigures) -> str:
    return f"{{{listed(node.entries)}}}"


@source.register
def _(node: ast.ModelDecl) -> str:
    return f"model {source(node.name)}({listed(node.inputs)}) {block(node.body)}"


@source.register
def _(node: ast.Input) -> str:
    return f"{source(node.name)}: {source(node.type)}"


@source.register
def _(node: ast.FnDecl) -> str:
    generics = f"[{listed(node.generics)}]" if node.generics else ""
    head = f"fn {source(node.name)}{generics}({listed(node.args)})"
    return f"{head} -> ({listed(node.results)}) {block(node.body)}"


@source.register
def _(node: ast.FnArg) -> str:
    type_ = f": {source(node.type)}" if node.type else ""
    default = f" = {source(node.default)}" if node.default else ""
    return f"{source(node.name)}{type_}{default}"


@source.register
def _(node: ast.OptimizerDecl) -> str:
    pattern = f": {source(node.pattern)}" if node.pattern else ""
    operands = f"{source(node.parameter)}{pattern}, {source(node.gradient)}"
    return f"optimizer {source(node.name)}({listed(node.hypers)}) ({operands}) {block(node.body)}"


@source.register
def _(node: ast.PrecisionRule) -> str:
    return f"{source(node.use)}: {source(node.value)}"


@source.register
def _(node: ast.TrainDecl) -> str:
    settings = {
        key: getattr(node, key)
        for key in ("optimizer", "precision", "accumulate", "weigh_by", "clip", "average")
    }
    entries = [f"{key} = {source(value)}" for key, value in settings.items() if value]
    entries += [f"minimize {source(node.minimize)}"] if node.minimize else []
    for group in node.groups:
        patterns = ", ".join(f'"{pattern.text}"' for pattern in group.patterns)
        is_frozen = isinstance(group, ast.Frozen)
        entries.append(
            f"frozen {patterns}" if is_frozen else f"optimizer for {patterns} = {source(group.optimizer)}"
        )
    entries += [f"report {', '.join(map(source, node.report))}"] if node.report else []
    return f"train {source(node.model)} {{\n" + "".join(f"{entry}\n" for entry in entries) + "}"
