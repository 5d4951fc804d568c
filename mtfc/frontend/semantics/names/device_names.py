"""Find the devices of a machine by the names of their kinds: `cpu`, `gpu[2]`, `gpu[0..3]`."""

from collections.abc import Iterable, Iterator, Mapping

from mtfc.compiler.cost.hardware import MOST_DEVICES, DeviceGraph
from mtfc.frontend.semantics.names.constants import integer
from mtfc.frontend.semantics.names.scope import Scope, listing
from mtfc.frontend.syntax import ast


def numbers_in(
    nodes: Iterable[ast.Expr | ast.DeviceRange], count: int, what: str, code: str, scope: Scope
) -> tuple[int, ...] | None:
    """Return device numbers below `count`; None, and errors of the code, if one is wrong. what: words for a device."""
    found: list[int] = []
    is_right = True
    for node in nodes:
        ends = [node.first, node.last] if isinstance(node, ast.DeviceRange) else [node]
        values = [integer(end, scope) for end in ends]
        numbers = [value for value in values if value is not None]
        wrong = next((value for value in numbers if not 0 <= value < count), None)
        if wrong is not None:
            numbered = f"they are numbered from 0 to {count - 1}" if count > 1 else "there is only number 0"
            scope.error(code, f"there is no {what} {wrong}: {numbered}", node.span)
        elif len(numbers) == 2 and numbers[0] > numbers[1]:
            message = f"no device is in the range from {numbers[0]} to {numbers[1]}"
            scope.error(code, message, node.span, help=f"write `{numbers[1]}..{numbers[0]}`")
            wrong = 0
        is_right &= wrong is None and len(numbers) == len(ends)
        found += range(numbers[0], numbers[-1] + 1) if is_right else ()
    return tuple(found) if is_right else None


def devices_of_kind(
    node: ast.DevicesOfKind, kinds: Mapping[str, tuple[int, int]], code: str, scope: Scope
) -> tuple[int, ...] | None:
    """Return the devices of `gpu[0..3]`; None, and an error, if there are no such devices. kinds: first device and count."""
    if node.kind.text not in kinds:
        help = listing(kinds) or "a placement on a number of devices has no kinds"
        scope.unknown("E012", f"no device is called `{node.kind.text}`", node.kind, kinds, help)
        return None
    first, count = kinds[node.kind.text]
    found = numbers_in(node.numbers, count, f"`{node.kind.text}`", code, scope)
    return None if found is None else tuple(first + number for number in found)


def kinds_in(graph: DeviceGraph) -> dict[str, tuple[int, int]]:
    """Return the first device and the count of each kind."""
    return {kind.name: (graph.first(number), kind.count) for number, kind in enumerate(graph.kinds)}


def written_devices(devices: Iterable[int], graph: DeviceGraph) -> Iterator[str]:
    """Yield the names of devices, with ranges for consecutive devices of a kind."""
    stretch: list[int] = []
    for device in [*devices, MOST_DEVICES + 1]:
        is_next = stretch and device == stretch[-1] + 1 and device < graph.devices
        if is_next and graph.kind_of[device] == graph.kind_of[stretch[0]]:
            stretch.append(device)
            continue
        yield from _written(stretch, graph)
        stretch = [device]


def _written(stretch: list[int], graph: DeviceGraph) -> Iterator[str]:
    """Yield the text of devices in a row: their kind if they are all of it, or a range of it."""
    if len(stretch) < 2:
        yield from map(graph.called, stretch)
        return
    kind = graph.kind_of[stretch[0]]
    first, own = graph.first(kind), graph.kinds[kind]
    is_whole = len(stretch) == own.count
    yield own.name if is_whole else f"{own.name}[{stretch[0] - first}..{stretch[-1] - first}]"
