"""Write a syntax tree as text, with parentheses around every operation. The parser is tested against this text."""

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from mtfc.frontend.syntax import ast


def source(node: ast.Node) -> str:
    """Return the text of a node by its form: a template with the names of fields, or a function."""
    form = FORMS[type(node)]
    return form.format_map(Fields(node)) if isinstance(form, str) else form(node)


def listed(nodes: Iterable[ast.Node]) -> str:
    return ", ".join(map(source, nodes))


def block(body: Iterable[ast.Node]) -> str:
    return "{\n" + "".join(f"{source(statement)}\n" for statement in body) + "}"


@attrs.frozen
class Fields:
    """The fields of a node as text: several nodes are a list, and the statements of a body a block."""

    node: ast.Node

    def __getitem__(self, name: str) -> str:
        value = getattr(self.node, name)
        if isinstance(value, tuple):
            return block(value) if name == "body" else listed(value)
        return source(value) if isinstance(value, ast.Node) else str(value)


def given(before: str, node: ast.Node | Iterable[ast.Node] | None, after: str = "") -> str:
    """Return the text of a part that may be absent, between two texts."""
    if not node:
        return ""
    return f"{before}{source(node) if isinstance(node, ast.Node) else listed(node)}{after}"


def condition(node: ast.Repeat | ast.Scan) -> str:
    return given("while ", node.condition, " ")


def repeat(node: ast.Repeat) -> str:
    checkpoint = "checkpoint " if node.checkpoint else ""
    slices = given("with ", node.slices, " ")
    return f"repeat {source(node.dim)} {checkpoint}{slices}{condition(node)}{block(node.body)}"


def call(node: ast.Call) -> str:
    scope = given(" as ", node.scope) + given(" sharing ", node.shared)
    arguments = listed((*node.arguments, *node.keywords))
    return f"{source(node.function)}{given('[', node.bindings, ']')}({arguments}){scope}"


def layout(node: ast.LayoutDecl) -> str:
    entries = [*rules_of(node), *map(source, (*node.values, *node.pipelines, *node.parts))]
    entries += [f"forms: {{{listed(node.forms.entries)}}}"] if node.forms else []
    entries += map(source, node.allows)
    mesh, models = given(" on ", node.mesh), given(" for ", node.models)
    both = f"{mesh}{models}" if len(entries) % 2 else f"{models}{mesh}"
    return f"layout {source(node.name)}{both} = {{{', '.join(entries)}}}"


def rules_of(node: ast.LayoutDecl | ast.PartRules) -> list[str]:
    sections = (("params", node.params), ("optimizer", node.optimizer))
    return [*map(source, node.rules), *(f"{key}: {source(section)}" for key, section in sections if section)]


def part(node: ast.PartRules) -> str:
    names = source(node.paths[0]) if len(node.paths) == 1 else f"({listed(node.paths)})"
    entries = [*rules_of(node), *map(source, (*node.values, *node.pipelines, *node.misplaced))]
    return f"part {names} on {source(node.mesh)}: {{{', '.join(entries)}}}"


def hardware(node: ast.HardwareDecl) -> str:
    return f"hardware {source(node.name)} = {{{listed((*node.devices, *node.links, *node.figures))}}}"


def function(node: ast.FnDecl) -> str:
    head = f"fn {source(node.name)}{given('[', node.generics, ']')}({listed(node.args)})"
    return f"{head} -> ({listed(node.results)}) {block(node.body)}"


def optimizer(node: ast.OptimizerDecl) -> str:
    operands = f"{source(node.parameter)}{given(': ', node.pattern)}, {source(node.gradient)}"
    return f"optimizer {source(node.name)}({listed(node.hypers)}) ({operands}) {block(node.body)}"


def train(node: ast.TrainDecl) -> str:
    keys = ("optimizer", "precision", "accumulate", "weigh_by", "clip", "average")
    entries = [given(f"{key} = ", getattr(node, key)) for key in keys]
    entries += [given("minimize ", node.minimize)]
    for group in node.groups:
        patterns = ", ".join(f'"{pattern.text}"' for pattern in group.patterns)
        is_frozen = isinstance(group, ast.Frozen)
        entries.append(
            f"frozen {patterns}" if is_frozen else f"optimizer for {patterns} = {source(group.optimizer)}"
        )
    entries += [given("report ", node.report)]
    return f"train {source(node.model)} {{\n" + "".join(f"{entry}\n" for entry in entries if entry) + "}"


FORMS: dict[type[ast.Node], str | Callable[[Any], str]] = {
    ast.File: lambda node: "".join(f"{source(declaration)}\n" for declaration in node.declarations),
    # expressions
    ast.Int: "{value}",
    ast.Float: "{value}",
    ast.Bool: lambda node: "true" if node.value else "false",
    ast.Name: "{text}",
    ast.Path: "{text}",
    ast.Ellipsis: "...",
    ast.Unary: "({op} {operand})",
    ast.Binary: "({left} {op} {right})",
    ast.DimList: "[{dims}]",
    ast.Tuple: "({items})",
    ast.Arrow: "{source} -> {target}",
    ast.Keyword: "{name} = {value}",
    ast.DimBinding: "{generic} = {dim}",
    ast.Call: call,
    ast.Type: lambda node: f"{given('', node.dtype)}[{listed(node.dims)}]",
    # statements
    ast.Assign: "{targets} = {value}",
    ast.Param: "param {name}: {type} = {init}",
    ast.State: lambda node: f"state {source(node.name)}{given(': ', node.type)} = {source(node.value)}",
    ast.Watch: "watch {values}",
    ast.StateUpdate: "update {name} = {value}",
    ast.Return: "return {values}",
    ast.Yield: "yield {name} = {value}",
    ast.SliceBinding: "{name} = {source}",
    ast.Repeat: repeat,
    ast.Scan: lambda node: (
        f"scan {listed(node.slices)} along {source(node.dim)} {condition(node)}{block(node.body)}"
    ),
    # declarations
    ast.ImportDecl: "import {name}",
    ast.DimDecl: "dim {name} = {size}",
    ast.MeshDecl: "mesh {name} = [{axes}]",
    ast.MeshAxis: "{name}: {size}",
    ast.FormFigure: "{key}: {number}",
    ast.LayoutDecl: layout,
    ast.PartRules: part,
    ast.PipelineRule: lambda node: (
        f"pipeline {source(node.loop)}{' checkpoint' * node.checkpoint}: {{{listed(node.cuts)}}}"
    ),
    ast.Allow: "allow {code}",
    ast.SplitRule: "{dim}: ({axes})",
    ast.Every: "*",
    ast.RuleSet: "{{{rules}}}",
    ast.Precision: "{{{rules}}}",
    ast.PrecisionRule: "{use}: {value}",
    ast.ValueRules: "value {path}: {{{rules}}}",
    ast.PlacementDecl: "placement {name} on {devices} = {{{operators}}}",
    ast.OperatorPlacement: lambda node: (
        f"{source(node.path)}{given('[', node.indices, ']')}: {{{listed(node.degrees)}}} on [{listed(node.devices)}]"
    ),
    ast.Degree: "{dim}: {parts}",
    ast.HardwareDecl: hardware,
    ast.DeviceDecl: "device {name}: {{{figures}}}",
    ast.DeviceList: "[{devices}]",
    ast.DeviceRange: "{first}..{last}",
    ast.DevicesOfKind: "{kind}[{numbers}]",
    ast.LinkDecl: "link {name}: {{{figures}}}",
    ast.HardwareFigure: "{key}: {value}",
    ast.HardwareFigures: "{{{entries}}}",
    ast.ModelDecl: "model {name}({inputs}) {body}",
    ast.Input: "{name}: {type}",
    ast.FnDecl: function,
    ast.FnArg: lambda node: f"{source(node.name)}{given(': ', node.type)}{given(' = ', node.default)}",
    ast.OptimizerDecl: optimizer,
    ast.TrainDecl: train,
}
