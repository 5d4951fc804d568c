"""Read `hardware` declarations, and write them.

A machine has one kind of device and nested links, or devices with names, which may be of several kinds and joined in any way. A
declaration has entries within entries. The tables `DEVICE`, `SCRATCHPAD`, `LINK` and `GRAPH_LINK` list the known entries, each
with the function that reads its value.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import (
    CENTRAL,
    GRAPH_KINDS,
    KERNELS,
    KINDS,
    MOST_KINDS,
    MOST_LINKS,
    MOST_WIRES,
    NEIGHBOURING,
    PASSES,
    Device,
    DeviceGraph,
    DeviceKind,
    DotShares,
    GraphKind,
    GraphLink,
    Hardware,
    Kind,
    Link,
    Machine,
    Rate,
    Scratchpad,
)
from mtfc.compiler.cost.hardware import (
    MOST_DEVICES as MOST_NAMED_DEVICES,
)
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import KINDS as COLLECTIVES
from mtfc.frontend.semantics.names.constants import number
from mtfc.frontend.semantics.names.device_names import devices_of_kind, kinds_in
from mtfc.frontend.semantics.names.scope import Scope, T, listing
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.format import format_source

Read = Callable[[ast.HardwareFigure, Scope], Any]

LEAST, MOST = 1e-6, 1e30
"""Bounds of figures, so that products and quotients of figures stay finite."""

MOST_DEVICES = 2**31
"""Bound of numbers of devices, so that products of sizes stay small integers."""


def declare_nested(decl: ast.HardwareDecl, scope: Scope) -> Hardware | None:
    """Return a machine with one kind of device and nested links; None if it has an error."""
    found = entries_of(decl.figures, NESTED, ("device",), f"hardware `{decl.name.text}`", decl, scope)
    places: dict[str, Span] = {}
    named = [link for link in decl.links if scope.declare("link", link.name, places)]
    links = [_link(link, is_last=link is decl.links[-1], scope=scope) for link in named]
    made = [link for link in links if link is not None]
    if found is None or len(made) < len(decl.links):
        return None
    return Hardware(decl.name.text, found["device"], tuple(made))


def _link(link: ast.LinkDecl, is_last: bool, scope: Scope) -> Link | None:
    """Return a level of nested links; None, with a diagnostic, if it is wrong. is_last: it is the outermost level."""
    if any(key_of(figure) == "between" for figure in link.figures):
        help = "`between` is for machines whose devices have names: `device gpu: { count: 4, ... }`"
        return scope.refuse(
            "E012", "a link of nested links has no entry `between`", link.name.span, help=help
        )
    found = entries_of(link.figures, LINK, ("kind", "bandwidth"), "a link", link, scope)
    if found is None:
        return None
    kind: Kind = found["kind"]
    sizes: tuple[int, ...] = found.setdefault("size", ())
    if not sizes and not (is_last and kind == "switch"):
        help = "only an outermost switch has room for any number"
        return scope.refuse("E314", f"link `{link.name.text}` has no `size`", link.name.span, help=help)
    if len(sizes) > 1 and kind != "torus":
        help = "a torus has one for each side"
        return scope.refuse("E315", f"a {kind} has one size", value_of(link, "size").span, help=help)
    if kind not in NEIGHBOURING and "wraps" in found:
        return scope.refuse(
            "E315", f"`wraps` is for a ring or a torus, and this is a {kind}", value_of(link, "wraps").span
        )
    found.setdefault("latency", 0.0)
    return Link(link.name.text, **fields_of(found))


def value_of(link: ast.LinkDecl, key: str) -> ast.Node:
    return next(figure.value for figure in link.figures if key_of(figure) == key)


def entries_of(
    figures: Iterable[ast.HardwareFigure],
    known: Mapping[str, Read],
    needed: Iterable[str],
    where: str,
    node: ast.DeviceDecl | ast.HardwareDecl | ast.HardwareFigure | ast.LinkDecl,
    scope: Scope,
) -> dict[str, Any] | None:
    """Return the values of the entries by name.

    Returns None, and reports errors, if an entry is wrong, unknown, given twice or missing.

    known: name -> the function that reads the entry. needed: the names that must be there. where: the place in messages.
    """
    places: dict[str, Span] = {}
    found: dict[str, Any] = {}
    for figure in figures:
        name = ast.Name(figure.key.span, key_of(figure))
        if not scope.declare("entry", name, places):
            found[name.text] = None
        elif name.text in known:
            found[name.text] = known[name.text](figure, scope)
        else:
            scope.unknown("E012", f"{where} has no entry `{name.text}`", name, known, listing(known))
            found[name.text] = None
    is_misspelt = any(name not in known for name in found)
    missing = [name for name in needed if name not in found and not is_misspelt]
    place = node.key.span if isinstance(node, ast.HardwareFigure) else node.name.span
    for each in missing:
        scope.error("E314", f"{where} needs an entry `{each}`", place)
    return None if missing or None in found.values() else found


def key_of(figure: ast.HardwareFigure) -> str:
    return figure.key.text if isinstance(figure.key, ast.Name) else str(figure.key.value)


# Values of entries


def wrong_figure(figure: ast.HardwareFigure, expected: str, scope: Scope) -> T | None:
    return scope.refuse("E315", f"`{key_of(figure)}` takes {expected}", figure.value.span)


def figure_within(expected: str, fits: Callable[[float], bool], kind: type[float] = float) -> Read:
    """Return a function that reads a number that fits. expected: words for these numbers."""

    def read(figure: ast.HardwareFigure, scope: Scope) -> float | None:
        """Return the number of a figure; report one that does not fit."""
        if isinstance(figure.value, ast.HardwareFigures | ast.Tuple | ast.DeviceList):
            return wrong_figure(figure, expected, scope)
        value = number(figure.value, scope)
        if value is not None and not fits(value):
            return wrong_figure(figure, f"{expected}, and this is {value:g}", scope)
        return None if value is None else kind(value)

    return read


def _is_possible(value: float) -> bool:
    return LEAST <= value <= MOST


def _is_count(value: float) -> bool:
    return 1 <= value <= MOST_DEVICES and value == int(value)


positive = figure_within(f"a number from {LEAST:g} to {MOST:g}", _is_possible)
not_negative = figure_within("a number of seconds, 0 or more", lambda value: 0 <= value <= MOST)
whole_figure = figure_within("a whole number from 1 on", _is_count, int)


def _sizes(figure: ast.HardwareFigure, scope: Scope) -> tuple[int, ...] | None:
    """Return the sizes of a link, `8` or `(4, 4)`; None, with diagnostics, if one is wrong."""
    nodes = figure.value.items if isinstance(figure.value, ast.Tuple) else (figure.value,)
    sizes = [whole_figure(ast.HardwareFigure(node.span, figure.key, node), scope) for node in nodes]
    found = tuple(size for size in sizes if size is not None)
    return found if len(found) == len(sizes) else None


def word(*words: str) -> Read:
    """Return a function that reads one of some words."""

    def read(figure: ast.HardwareFigure, scope: Scope) -> str | None:
        """Return the word of a figure; report any other."""
        text = figure.value.text if isinstance(figure.value, ast.Name) else None
        if text not in words:
            wrong_figure(figure, f"one of: {', '.join(words)}", scope)
        return text if text in words else None

    return read


def _rate(figure: ast.HardwareFigure, scope: Scope) -> Rate | None:
    """Read a number, or a table of numbers by size."""
    if not isinstance(figure.value, ast.HardwareFigures):
        rate = positive(figure, scope)
        return None if rate is None else Rate.constant(rate)
    points = [_point(entry, scope) for entry in figure.value.entries]
    found = tuple(point for point in points if point is not None)
    sizes = [size for size, _ in found]
    if len(found) == len(points) and (not sizes or sizes != sorted(set(sizes))):
        return wrong_figure(
            figure, "a number, or numbers by ascending sizes: `{ 1e3: 2e9, 1e6: 40e9 }`", scope
        )
    return Rate(found) if len(found) == len(points) else None


def _point(entry: ast.HardwareFigure, scope: Scope) -> tuple[float, float] | None:
    """Return a size and the rate there, from an entry of a table by size; None, with a diagnostic (E315), for a wrong one."""
    if isinstance(entry.key, ast.Name) or not _is_possible(entry.key.value):
        message = f"a table by size has numbers from {LEAST:g} to {MOST:g} as keys"
        return scope.refuse("E315", message, entry.key.span)
    rate = positive(entry, scope)
    return None if rate is None else (float(entry.key.value), rate)


def _known(what: str, names: Sequence[str], help: str | None = None) -> Callable[[ast.Name, Scope], bool]:
    """Return a function that tests whether a name is one of `names`, and reports an error otherwise."""

    def is_known(name: ast.Name, scope: Scope) -> bool:
        message = f"no {what} is called `{name.text}`"
        return name.text in names or scope.unknown("E012", message, name, names, help or listing(names))

    return is_known


def _is_dtype(name: ast.Name, scope: Scope) -> bool:
    return name.text == "f8" or scope.dtype(name) is not None


def _table(expected: str, is_key: Callable[[ast.Name, Scope], bool], read: Read) -> Read:
    """Return a function that reads entries whose keys are names, such as dtypes.

    is_key: tests a key. read: reads a value.
    """

    def read_table(figure: ast.HardwareFigure, scope: Scope) -> dict[str, Any] | None:
        """Return the figures of a table by key; report one that is empty or wrong."""
        if not isinstance(figure.value, ast.HardwareFigures) or not figure.value.entries:
            return wrong_figure(figure, expected, scope)
        places: dict[str, Span] = {}
        found: dict[str, Any] = {}
        for entry in figure.value.entries:
            name = ast.Name(entry.key.span, key_of(entry))
            is_new = scope.declare("entry", name, places)
            found[name.text] = read(entry, scope) if is_new and is_key(name, scope) else None
        return None if None in found.values() else found

    return read_table


def _record(
    make: Callable[..., Any], known: Mapping[str, Read], needed: Sequence[str], where: str, expected: str
) -> Read:
    """Return a function that reads entries within an entry as a record; if none is needed, at least one of them.

    make: the record's class. known, needed, where: as in `entries_of`.
    """

    def read(figure: ast.HardwareFigure, scope: Scope) -> Any:
        """Return the object that the entries describe; report entries that are missing or wrong."""
        given = figure.value.entries if isinstance(figure.value, ast.HardwareFigures) else None
        if given is None or not (given or needed):
            return wrong_figure(figure, expected, scope)
        found = entries_of(given, known, needed, where, figure, scope)
        return None if found is None else make(**fields_of(found))

    return read


def _shares(figure: ast.HardwareFigure, scope: Scope) -> Rate | None:
    """Read a share, or a table of shares by size."""
    rate = _rate(figure, scope)
    if rate is not None and rate.peak > 1:
        return wrong_figure(figure, f"shares above 0 and up to 1, and one of these is {rate.peak:g}", scope)
    return rate


def fields_of(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return entries by the names that fields of records have."""
    return {FIELDS.get(key, key): value for key, value in entries.items()}


FIELDS = {"matrix": "mxu_size", "wait": "latency", "size": "sizes"}
"""Fields of `Device`, `Scratchpad` and `Link` whose keys in files have other names."""

DOTS: Mapping[str, Read] = {"short": _shares, "long": _shares, "summed": _shares}
SCRATCHPAD: Mapping[str, Read] = {
    "bytes": positive,
    "wait": not_negative,
    "reads": positive,
    "writes": positive,
    "factors": positive,
    "results": positive,
}
DEVICE: Mapping[str, Read] = {
    "flops": _table("FLOP/s by dtype, such as `{ f32: 20e12, bf16: 300e12 }`", _is_dtype, _rate),
    "memory": positive,
    "bandwidth": _rate,
    "overhead": not_negative,
    "loop": not_negative,
    "overlap": figure_within("a share, from 0 to 1", lambda value: 0 <= value <= 1),
    "dots": _record(
        DotShares,
        DOTS,
        (),
        "the entry `dots`",
        "shares of the FLOP/s by side, such as `{ short: { 64: 0.3, 512: 1 } }`",
    ),
    "attention": _table(
        "FLOP/s by pass, such as `{ forward: 180e12, backward: 160e12 }`", _known("pass", PASSES), _rate
    ),
    "matrix": whole_figure,
    "scratchpad": _record(Scratchpad, SCRATCHPAD, ("bytes",), "a scratchpad", "`{ bytes: ..., wait: ... }`"),
    "ops": _table(
        "elements/s by op, such as `{ gather: 1e9 }`",
        _known("op", (*OPS, *KERNELS), "the names of ops are those that `mtfc compile --emit ir` prints"),
        positive,
    ),
}
NEEDED = ("flops", "memory", "bandwidth")
NESTED: Mapping[str, Read] = {
    "device": _record(Device, DEVICE, NEEDED, "a device", "`{ flops: ..., memory: ..., bandwidth: ... }`")
}
LINK: Mapping[str, Read] = {
    "kind": word(*KINDS),
    "size": _sizes,
    "bandwidth": _rate,
    "latency": not_negative,
    "shared": whole_figure,
    "wraps": whole_figure,
    "collectives": _table(
        "bytes/s by collective, such as `{ all_to_all: 5e9 }`", _known("collective", COLLECTIVES), _rate
    ),
}


def declare_hardware(decls: Iterable[ast.HardwareDecl], scope: Scope) -> dict[str, Machine | None]:
    """Return the machines by name, with None for a machine that has an error."""
    places: dict[str, Span] = {}
    return {
        decl.name.text: _graph(decl, scope) if decl.devices else declare_nested(decl, scope)
        for decl in decls
        if scope.declare("hardware", decl.name, places)
    }


def _graph(decl: ast.HardwareDecl, scope: Scope) -> DeviceGraph | None:
    """Return a machine with named devices; None, with a diagnostic, if it is wrong.

    Devices must be connected, and one must compute.
    """
    for figure in decl.figures:
        help = "if one device has a name, all have: `device cpu: { ... }`"
        scope.error("E315", "a machine with named devices has no other entries", figure.key.span, help=help)
    places: dict[str, Span] = {}
    named = [each for each in decl.devices if scope.declare("device", each.name, places)]
    kinds = [each for each in (_kind(each, scope) for each in named) if each is not None]
    links = [each for each in decl.links if scope.declare("link", each.name, places)]
    figures = [
        entries_of(each.figures, GRAPH_LINK, ("kind", "between", "bandwidth"), "a link", each, scope)
        for each in links
    ]
    is_complete = len(kinds) == len(decl.devices) and len(links) == len(decl.links) and not decl.figures
    if not is_complete or not _has_room(decl, kinds, scope):
        return None
    graph = DeviceGraph(decl.name.text, tuple(kinds), ())
    wrong: set[str] = set()
    for place, (link, found) in enumerate(zip(links, figures, strict=True)):
        made = _graph_link(link, found, graph, links[place:], wrong, scope) if found is not None else None
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
    return scope.error("E315", message, decl.name.span, help="leave out `role` for a device that computes")


def _has_room(decl: ast.HardwareDecl, kinds: Iterable[DeviceKind], scope: Scope) -> bool:
    """Report machines with too many devices, kinds or links."""
    for given, most, what in (
        (sum(kind.count for kind in kinds), MOST_NAMED_DEVICES, "devices"),
        (len(decl.devices), MOST_KINDS, "kinds of devices"),
        (len(decl.links), MOST_LINKS, "links"),
    ):
        if given > most:
            message = (
                f"`{decl.name.text}` has {given:,} {what}, and {most} are possible if devices have names"
            )
            help = "a machine with one `device` and nested links may have any number of devices"
            return scope.error("E315", message, decl.name.span, help=help)
    return True


def _has_wires(link: GraphLink, graph: DeviceGraph, decl: ast.LinkDecl, scope: Scope) -> bool:
    """Report the link with which a machine has too many pairs of joined members."""
    if sum(each.most_pairs for each in (*graph.links, link)) <= MOST_WIRES:
        return True
    message = f"with `{link.name}`, the links join more than {MOST_WIRES:,} pairs of members"
    return scope.error("E315", message, decl.name.span, help="join many devices by a switch")


def _is_connected(graph: DeviceGraph, decl: ast.HardwareDecl, scope: Scope) -> bool:
    """Return True if links lead from the first device to all others; else report (E341) one that none leads to."""
    lost = graph.unreachable()
    if lost is None:
        return True
    name = decl.devices[graph.kind_of[lost]].name
    message = f"no links lead from `{graph.called(0)}` to `{graph.called(lost)}`"
    help = "name the device, its kind, or a switch or bus that joins it, in the `between` of a link"
    return scope.error("E341", message, name.span, help=help)


def _kind(decl: ast.DeviceDecl, scope: Scope) -> DeviceKind | None:
    """Return the kind of devices that a `device` entry declares; None, with a diagnostic, if it is wrong."""
    where = f"device `{decl.name.text}`"
    known: Mapping[str, Read] = {"count": whole_figure, "role": word("worker", "server"), **DEVICE}
    found = entries_of(decl.figures, known, NEEDED, where, decl, scope)
    if found is None:
        return None
    count, role = found.pop("count", 1), found.pop("role", "worker")
    return DeviceKind(decl.name.text, Device(**fields_of(found)), count, role == "server")


def _graph_link(
    link: ast.LinkDecl,
    found: Mapping[str, Any],
    graph: DeviceGraph,
    later: Iterable[ast.LinkDecl],
    wrong: Set[str],
    scope: Scope,
) -> GraphLink | None:
    """Return a link; None if it is wrong, with an error unless the fault is that of a link which it joins.

    wrong: the links above that have an error. found: the values of the entries.
    """
    kind: GraphKind = found["kind"]
    nodes: ast.DeviceList = found["between"]
    if len(nodes.devices) > MOST_NAMED_DEVICES + MOST_LINKS:
        message = f"`between` has {len(nodes.devices):,} entries, and a machine has fewer devices and links"
        return scope.refuse("E315", message, nodes.span)
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
        return scope.error("E315", message, place, help="write `between: [cpu, gpu]`, or make it a switch")
    twice = next((member for member, times in Counter(members).items() if times > 1), None)
    if len(set(members)) < 2:
        return scope.error("E315", f"`{link.name}` joins {_listed(link, graph)}: a link has two ends", place)
    if twice is not None and link.kind != "wire":
        return scope.error("E315", f"`between` has `{graph.called(twice)}` twice", place)
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
        return scope.refuse(
            "E315", "`between` takes names of devices and links: `[cpu, gpu[0..3]]`", node.span
        )
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
        return scope.refuse("E315", message, node.span, help="links join devices, switches and buses")
    return (graph.middle(number),)


def _between(figure: ast.HardwareFigure, scope: Scope) -> ast.DeviceList | None:
    """Return the list of what a link joins; None, with a diagnostic, for anything else."""
    if isinstance(figure.value, ast.DeviceList) and figure.value.devices:
        return figure.value
    return wrong_figure(figure, "the devices and links that are joined: `[cpu, gpu[0..3]]`", scope)


GRAPH_LINK: Mapping[str, Read] = {
    "kind": word(*GRAPH_KINDS),
    "between": _between,
    "bandwidth": positive,
    "latency": not_negative,
    "duplex": word("full", "half"),
}


# Hardware as text, as `mtfc calibrate` writes it


USUAL = {"loop": 0.0, "overlap": 1.0, "shared": 1}
"""Figures that are left out if they have these values."""


def hardware_text(hardware: Hardware, comment: str) -> str:
    """Return a file in canonical form that declares the hardware, with figures rounded to four digits."""
    links = ((f"link {link.name}", link, LINK) for link in hardware.links)
    lines = [
        *(f"# {line}".rstrip() for line in comment.splitlines()),
        f"hardware {hardware.name} = {{",
        *(
            f"{name}: {_braces(_entries(of, keys))}"
            for name, of, keys in (("device", hardware.device, DEVICE), *links)
        ),
        "}",
    ]
    return format_source("\n".join(lines) + "\n")


def _entries(record: object, known: Iterable[str]) -> Iterator[str]:
    """Yield the entries of a record that differ from their defaults, as text. known: the keys in their order."""
    for key in known:
        value = getattr(record, FIELDS.get(key, key))
        if value not in (None, (), {}) and value != USUAL.get(key):
            yield f"{key}: {_text(value)}"


def _text(value: object) -> str:
    """Return the text of a figure. Tables of rates by name have a line for each."""
    if isinstance(value, Rate) and len(value.points) > 1:
        return _on_one_line(f"{_text(size)}: {_text(rate)}" for size, rate in value.points)
    if isinstance(value, Rate):
        return _text(value.points[0][1])
    if isinstance(value, Scratchpad):
        return _on_one_line(_entries(value, SCRATCHPAD))
    if isinstance(value, DotShares):
        return _braces(_entries(value, DOTS))
    if isinstance(value, Mapping):
        return _braces(f"{key}: {_text(each)}" for key, each in value.items())
    if isinstance(value, tuple):
        return str(value[0] if len(value) == 1 else value)
    return _number(value) if isinstance(value, float) else str(value)


def _braces(entries: Iterable[str]) -> str:
    return "{\n" + "".join(f"{entry}\n" for entry in entries) + "}"


def _on_one_line(entries: Iterable[str]) -> str:
    return "{ " + ", ".join(entries) + " }"


def _number(value: float) -> str:
    """Return a figure such as `1.234e9` or `16`."""
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text
