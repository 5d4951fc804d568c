"""Read `placement` declarations, which split operators into parts and put the parts on devices, and write them.

The declaration itself is checked when a file is read. `strategy` checks it against the operators of a prepared program: they
must exist, and be splittable as declared.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

import attrs

from mtfc.compiler.cost.hardware import DeviceGraph, Machine
from mtfc.compiler.diagnostics import Diagnostics, Label, Span
from mtfc.compiler.ir.types import Dim
from mtfc.frontend.semantics.names.constants import integer
from mtfc.frontend.semantics.names.device_names import (
    devices_of_kind,
    kinds_in,
    numbers_in,
    written_devices,
)
from mtfc.frontend.semantics.names.scope import Reports, Scope, count
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.format import format_source
from mtfc.frontend.syntax.parser import parse_option
from mtfc.placements.operators.operator_graph import Operator, OperatorGraph
from mtfc.placements.operators.operator_parts import OperatorParts, Unsplittable
from mtfc.placements.operators.strategy import (
    Configuration,
    Strategy,
    ordered_degrees,
    part_places,
)


@attrs.frozen
class PlacedOperator:
    """One entry of a placement.

    degrees: the number of parts along each dimension, in the order of the source. devices: the device of each part, with the
    last dimension's index changing fastest; empty if any devices will do.
    """

    name: str
    degrees: tuple[tuple[Dim, int], ...]
    devices: tuple[int, ...]
    span: Span


@attrs.frozen
class DeclaredPlacement:
    """A placement on a number of devices, or on those of a machine. An operator without an entry is whole, on device 0."""

    name: str
    devices: int
    operators: tuple[PlacedOperator, ...]
    span: Span


def declare_placements(
    decls: Iterable[ast.PlacementDecl], machines: Mapping[str, Machine | None], scope: Scope
) -> tuple[DeclaredPlacement, ...]:
    """Return the placements whose declarations have no error.

    machines: the machines that the file declares; None for one with an error.
    """
    places: dict[str, Span] = {}
    decls = [decl for decl in decls if scope.declare("placement", decl.name, places)]
    found = (_placement(decl, machines, scope) for decl in decls)
    return tuple(each for each in found if each is not None)


def _placement(
    decl: ast.PlacementDecl, machines: Mapping[str, Machine | None], scope: Scope
) -> DeclaredPlacement | None:
    """Return a declared placement with its legal operators; None, with a diagnostic, if something is wrong."""
    name = decl.devices.text if isinstance(decl.devices, ast.Name) else None
    machine = machines.get(name) if name is not None else None
    if name in machines and machine is None:
        return None
    devices = machine.devices if machine is not None else integer(decl.devices, scope)
    if devices is None:
        if machine is not None:
            message = f"`{machine.name}` has room for any number of devices: say how many"
            scope.error("E318", message, decl.devices.span)
        return None
    if devices < 1:
        scope.error(
            "E318", f"a placement on {devices} devices", decl.devices.span, help="there is 1 at least"
        )
        return None
    kinds = kinds_in(machine) if isinstance(machine, DeviceGraph) else {}
    good = _operators(decl.operators, DeviceNames(devices, kinds), scope, is_asked=False)
    if len(good) < len(decl.operators):
        return None
    return DeclaredPlacement(decl.name.text, devices, good, decl.name.span)


@attrs.frozen
class DeviceNames:
    """The devices that a placement can name: by number, and by kind, of which the first device and the count are known."""

    count: int
    kinds: Mapping[str, tuple[int, int]]

    def numbers(self, node: ast.DeviceSet, scope: Scope) -> tuple[int, ...] | None:
        """Return the devices that an entry of a list names; None, and an error, if there are none."""
        if isinstance(node, ast.DevicesOfKind):
            return devices_of_kind(node, self.kinds, "E318", scope)
        if isinstance(node, ast.Name) and node.text in self.kinds:
            first, count = self.kinds[node.text]
            return tuple(range(first, first + count))
        if isinstance(node, ast.Name) and self.kinds and scope.find_dim(node) is None:
            scope.unknown("E012", f"no device is called `{node.text}`", node, self.kinds)
            return None
        return numbers_in([node], self.count, "device", "E318", scope)


def _operators(
    nodes: Sequence[ast.OperatorPlacement], devices: DeviceNames, scope: Scope, is_asked: bool
) -> tuple[PlacedOperator, ...]:
    """Return the entries that have no error; with `is_asked`, entries need no devices."""
    places: dict[str, Span] = {}
    found = (_placed(each, devices, places, scope, is_asked) for each in nodes)
    return tuple(each for each in found if each is not None)


def _placed(
    node: ast.OperatorPlacement, devices: DeviceNames, places: dict[str, Span], scope: Scope, is_asked: bool
) -> PlacedOperator | None:
    """Return one entry of a placement; None, with a diagnostic, if it is wrong.

    places: the entries so far, by name. is_asked: the entry is a question of a search, which may leave the devices open.
    """
    indices = [integer(each, scope) for each in node.indices]
    name = node.path.text + (f"[{', '.join(map(str, indices))}]" if indices else "")
    if name in places:
        scope.error("E309", f"`{name}` is placed twice", node.span, [Label(places[name], "first here")])
        return None
    places[name] = node.path.span
    degrees = [_degree(each, scope) for each in node.degrees]
    numbers = [devices.numbers(each, scope) for each in node.devices]
    split = tuple(each for each in degrees if each is not None)
    there = tuple(device for each in numbers if each is not None for device in each)
    if None in indices or len(split) < len(degrees) or None in numbers:
        return None
    parts = prod(degree for _, degree in split)
    if parts != len(there) and not (is_asked and not there):
        message = (
            f"`{name}` is split into {count(parts, 'part')}, and placed on {count(len(there), 'device')}"
        )
        scope.error(
            "E318", message, node.span, help="each part has a device, which may be that of another too"
        )
        return None
    return PlacedOperator(name, split, there, node.span)


def _degree(node: ast.Degree, scope: Scope) -> tuple[Dim, int] | None:
    """Return a dimension and the number of its parts; None, with a diagnostic (E319), if it does not divide evenly."""
    dim, parts = scope.dim(node.dim, "E303"), integer(node.parts, scope)
    if dim is None or parts is None:
        return None
    if parts < 1 or dim.size % parts:
        message = f"`{dim.name}` (size {dim.size}) cannot be split into {parts} equal parts"
        scope.error("E319", message, node.span, [Label(scope.place(node.dim), "declared here")])
        return None
    return dim, parts


def strategy_of(placement: DeclaredPlacement, graph: OperatorGraph, diagnostics: Diagnostics) -> Strategy:
    """Return a configuration for each operator of a graph. Raises `CompileError` (E317, E319)."""
    scope = Scope(Reports(diagnostics))
    known = {operator.name: operator for operator in graph.operators}
    found: dict[str, Configuration] = {}
    for each in placement.operators:
        if each.name not in known:
            _unknown(each, scope, known)
        else:
            found[each.name] = _configuration(each, known[each.name], scope)
    diagnostics.raise_if_errors()
    return tuple(found.get(name, Configuration((), (0,))) for name in known)


def asked_configurations(
    text: str, devices: int, graph: OperatorGraph, file: Scope, machine: Machine | None = None
) -> dict[int, Configuration]:
    """Return the configurations that `--why-not` asks about, by the number of the operator. machine: has the names of devices.

    A configuration without devices stands for all configurations with its degrees. Raises `CompileError`; its spans are in a
    file `<--why-not>` that holds `text`.
    """
    scope = file.for_text()
    prefix = f"placement asked on {devices} = "
    decl = parse_option(prefix, text, "{}", "<--why-not>", ast.PlacementDecl, scope.diagnostics)
    operators = {operator.name: (number, operator) for number, operator in enumerate(graph.operators)}
    configurations = {}
    kinds = kinds_in(machine) if isinstance(machine, DeviceGraph) else {}
    for each in _operators(decl.operators, DeviceNames(devices, kinds), scope, is_asked=True):
        parts = prod(degree for _, degree in each.degrees)
        if each.name not in operators:
            _unknown(each, scope, operators)
        elif parts > devices:
            message = f"`{each.name}` is split into {count(parts, 'part')}, and there are {count(devices, 'device')}"
            scope.error("E318", message, each.span)
        else:
            number, operator = operators[each.name]
            configurations[number] = _configuration(each, operator, scope)
    scope.diagnostics.raise_if_errors()
    return configurations


def _unknown(placed: PlacedOperator, scope: Scope, known: Collection[str]) -> None:
    name = ast.Name(placed.span, placed.name)
    scope.unknown("E317", f"the model has no operator `{placed.name}`", name, known)


def _configuration(placed: PlacedOperator, operator: Operator, scope: Scope) -> Configuration:
    """Return the configuration of an operator, with its parts in the order of the operator's dimensions."""
    written = tuple((dim.name, degree) for dim, degree in placed.degrees if degree > 1)
    degrees = ordered_degrees(operator, dict(written))
    names = [name for name, _ in degrees]
    wrong = [name for name, _ in written if name not in names]
    if wrong:
        message = f"operator `{operator.name}` cannot be split in `{wrong[0]}`"
        possible = ", ".join(f"`{dim.name}`" for dim in operator.dims)
        scope.error("E319", message, placed.span, help=f"it can in: {possible}" if possible else None)
        return Configuration((), (0,))
    try:
        assert OperatorParts(operator, degrees).needs
    except Unsplittable as error:
        scope.error("E319", f"operator `{operator.name}`: {error}", placed.span)
        return Configuration((), (0,))
    places = part_places(tuple(n for _, n in degrees), tuple(names.index(name) for name, _ in written))
    return Configuration(degrees, tuple(placed.devices[i] for i in places if placed.devices))


def placement_text(
    name: str, devices: int, graph: OperatorGraph, chosen: Strategy, machine: Machine | None = None
) -> str:
    """Return the declaration of a strategy, in canonical form. machine: a device graph that the file declares, if any."""
    named = machine if isinstance(machine, DeviceGraph) and machine.devices == devices else None
    lines = [f"placement {name} on {devices if named is None else named.name} = {{"]
    operators = zip(graph.operators, chosen, strict=True)
    lines += [entry_text(operator, each, named) for operator, each in operators]
    return format_source("\n".join([*lines, "}"]) + "\n")


def entry_text(operator: Operator, chosen: Configuration, machine: DeviceGraph | None = None) -> str:
    """Return the entry of an operator in a placement, with the names of devices if they have some."""
    degrees = ", ".join(f"{dim}: {degree}" for dim, degree in chosen.degrees)
    devices = map(str, chosen.devices) if machine is None else written_devices(chosen.devices, machine)
    where = f" on [{', '.join(devices)}]" if chosen.devices else ""
    return f"{operator.name}: {f'{{ {degrees} }}' if degrees else '{}'}{where}"
