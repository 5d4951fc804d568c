"""Read `hardware` declarations whose devices have names: devices of several kinds, and links between any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

import attrs

from mtfc.compiler.cost.device_graph import (
    CENTRAL,
    GRAPH_KINDS,
    MOST_DEVICES,
    MOST_KINDS,
    MOST_LINKS,
    MOST_WIRES,
    DeviceGraph,
    DeviceKind,
    GraphKind,
    GraphLink,
    Machine,
)
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.diagnostics import Span
from mtfc.frontend.hardware.declarations import (
    DEVICE,
    NEEDED,
    Read,
    declare_nested,
    entries_of,
    fields_of,
    not_negative,
    positive,
    value_of,
    whole_figure,
    word,
    wrong_figure,
)
from mtfc.frontend.semantics.names.device_names import devices_of_kind, kinds_in
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast


def declare_hardware(decls: Iterable[ast.HardwareDecl], scope: Scope) -> dict[str, Machine | None]:
    """Return the machines by name, with None for a machine that has an error."""
    places: dict[str, Span] = {}
    return {
        decl.name.text: _graph(decl, scope) if decl.devices else declare_nested(decl, scope)
        for decl in decls
        if scope.declare("hardware", decl.name, places)
    }


def _graph(decl: ast.HardwareDecl, scope: Scope) -> DeviceGraph | None:
    for figure in decl.figures:
        help = "if one device has a name, all have: `device cpu: { ... }`"
        scope.error("E315", "a machine with named devices has no other entries", figure.key.span, help=help)
    places: dict[str, Span] = {}
    named = [each for each in decl.devices if scope.declare("device", each.name, places)]
    kinds = [each for each in (_kind(each, scope) for each in named) if each is not None]
    links = [each for each in decl.links if scope.declare("link", each.name, places)]
    figures = [
        entries_of(each.figures, LINK, ("kind", "between", "bandwidth"), "a link", each, scope)
        for each in links
    ]
    is_complete = len(kinds) == len(decl.devices) and len(links) == len(decl.links) and not decl.figures
    if not is_complete or not _has_room(decl, kinds, scope):
        return None
    graph = DeviceGraph(decl.name.text, tuple(kinds), ())
    wrong: set[str] = set()
    for number, (link, found) in enumerate(zip(links, figures, strict=True)):
        made = _link(link, found, graph, links[number:], wrong, scope) if found is not None else None
        if made is None:
            wrong.add(link.name.text)
        elif not _has_wires(made, graph, link, scope):
            return None
        else:
            graph = attrs.evolve(graph, links=(*graph.links, made))
    if wrong:
        return None
    return graph if _is_connected(graph, decl, scope) and _has_worker(graph, decl, scope) else None


def _has_worker(graph: DeviceGraph, decl: ast.HardwareDecl, scope: Scope) -> bool:
    """Report a machine of parameter servers alone."""
    if len(graph.servers) < graph.devices:
        return True
    message = f"`{decl.name.text}` has parameter servers alone, which run no parts of a program"
    scope.error("E315", message, decl.name.span, help="leave out `role` for a device that computes")
    return False


def _has_room(decl: ast.HardwareDecl, kinds: Iterable[DeviceKind], scope: Scope) -> bool:
    """Report machines with too many devices, kinds or links."""
    numbers = sum(kind.count for kind in kinds), len(decl.devices), len(decl.links)
    words = ("devices", "kinds of devices", "links")
    for number, most, what in zip(numbers, (MOST_DEVICES, MOST_KINDS, MOST_LINKS), words, strict=True):
        if number > most:
            message = (
                f"`{decl.name.text}` has {number:,} {what}, and {most} are possible if devices have names"
            )
            help = "a machine with one `device` and nested links may have any number of devices"
            scope.error("E315", message, decl.name.span, help=help)
            return False
    return True


def _has_wires(link: GraphLink, graph: DeviceGraph, decl: ast.LinkDecl, scope: Scope) -> bool:
    """Report the link with which a machine has too many pairs of joined members."""
    if sum(each.most_pairs for each in (*graph.links, link)) <= MOST_WIRES:
        return True
    message = f"with `{link.name}`, the links join more than {MOST_WIRES:,} pairs of members"
    scope.error("E315", message, decl.name.span, help="join many devices by a switch")
    return False


def _is_connected(graph: DeviceGraph, decl: ast.HardwareDecl, scope: Scope) -> bool:
    lost = graph.unreachable()
    if lost is None:
        return True
    name = decl.devices[graph.kind_of[lost]].name
    message = f"no links lead from `{graph.called(0)}` to `{graph.called(lost)}`"
    help = "name the device, its kind, or a switch or bus that joins it, in the `between` of a link"
    scope.error("E341", message, name.span, help=help)
    return False


def _kind(decl: ast.DeviceDecl, scope: Scope) -> DeviceKind | None:
    where = f"device `{decl.name.text}`"
    known: Mapping[str, Read] = {"count": whole_figure, "role": word("worker", "server"), **DEVICE}
    found = entries_of(decl.figures, known, NEEDED, where, decl, scope)
    if found is None:
        return None
    count, role = found.pop("count", 1), found.pop("role", "worker")
    return DeviceKind(decl.name.text, Device(**fields_of(found)), count, role == "server")


def _link(
    link: ast.LinkDecl,
    found: Mapping[str, Any],
    graph: DeviceGraph,
    later: Iterable[ast.LinkDecl],
    wrong: Set[str],
    scope: Scope,
) -> GraphLink | None:
    """Return a link; None if it is wrong, with an error unless the fault is that of a link which it joins.

    wrong: the links above that have an error.
    """
    kind: GraphKind = found["kind"]
    nodes: ast.DeviceList = found["between"]
    if len(nodes.devices) > MOST_DEVICES + MOST_LINKS:
        message = f"`between` has {len(nodes.devices):,} entries, and a machine has fewer devices and links"
        scope.error("E315", message, nodes.span)
        return None
    names = {each.name.text for each in later}
    groups = [_group(node, graph, names, wrong, scope) for node in nodes.devices]
    good = tuple(group for group in groups if group is not None)
    if len(good) < len(groups):
        return None
    place = value_of(link, "between").span
    duplex = found.get("duplex", "full")
    made = GraphLink(
        link.name.text, kind, good, found["bandwidth"], found.get("latency", 0.0), duplex == "half"
    )
    return made if _is_link(made, graph, place, scope) else None


def _is_link(link: GraphLink, graph: DeviceGraph, place: Span, scope: Scope) -> bool:
    """Report a link that joins the wrong number of members, or a member with itself."""
    members = [member for group in link.groups for member in group]
    if link.kind == "wire" and len(link.groups) != 2:
        message = f"a wire is between two devices or groups, and this names {len(link.groups)}"
        scope.error("E315", message, place, help="write `between: [cpu, gpu]`, or make it a switch")
        return False
    twice = next((member for member, times in Counter(members).items() if times > 1), None)
    if len(set(members)) < 2:
        scope.error("E315", f"`{link.name}` joins {_listed(link, graph)}: a link has two ends", place)
        return False
    if twice is not None and link.kind != "wire":
        scope.error("E315", f"`between` has `{graph.called(twice)}` twice", place)
        return False
    return True


def _listed(link: GraphLink, graph: DeviceGraph) -> str:
    names = {graph.called(member) for group in link.groups for member in group}
    return f"`{names.pop()}` with itself" if names else "nothing"


def _group(
    node: ast.DeviceSet, graph: DeviceGraph, later: Set[str], wrong: Set[str], scope: Scope
) -> tuple[int, ...] | None:
    """Return the members that an entry of `between` names; see `_link`."""
    if isinstance(node, ast.DevicesOfKind):
        return devices_of_kind(node, kinds_in(graph), "E315", scope)
    if not isinstance(node, ast.Name):
        scope.error("E315", "`between` takes names of devices and links: `[cpu, gpu[0..3]]`", node.span)
        return None
    kind = next((i for i, each in enumerate(graph.kinds) if each.name == node.text), None)
    if kind is not None:
        return graph.numbers(kind)
    if node.text in wrong:
        return None
    known = {each.name: number for number, each in enumerate(graph.links)}
    if node.text not in known:
        help = "links join links that stand above them" if node.text in later else None
        names = (*(each.name for each in graph.kinds), *known)
        scope.unknown("E012", f"no device or link is called `{node.text}`", node, names, help)
        return None
    number = known[node.text]
    if graph.links[number].kind not in CENTRAL:
        message = f"`{node.text}` is a {graph.links[number].kind}, which no link can join"
        scope.error("E315", message, node.span, help="links join devices, switches and buses")
        return None
    return (graph.middle(number),)


def _between(figure: ast.HardwareFigure, scope: Scope) -> ast.DeviceList | None:
    if isinstance(figure.value, ast.DeviceList) and figure.value.devices:
        return figure.value
    wrong_figure(figure, "the devices and links that are joined: `[cpu, gpu[0..3]]`", scope)
    return None


LINK: Mapping[str, Read] = {
    "kind": word(*GRAPH_KINDS),
    "between": _between,
    "bandwidth": positive,
    "latency": not_negative,
    "duplex": word("full", "half"),
}
