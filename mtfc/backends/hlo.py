"""The collectives and cycles of a compiled XLA program, read from its HLO text.

XLA rewrites its input: it combines all-reduces, starts a collective in one instruction and ends it in another, and moves loop
bodies to computations of their own. Tests of communication therefore read the compiled text. Every computation stands before
those that call it, so one pass is enough. The pass ends with the entry: newer versions of XLA leave computations behind it that
nothing calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

import attrs

from mtfc.compiler.ir.ops.collectives import SENDINGS

KINDS = {sending.hlo: kind for kind, sending in SENDINGS.items()}
"""HLO opcode -> the kind of collective in reports."""

ITEM_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2),
    **dict.fromkeys(("f32", "s32", "u32"), 4),
    **dict.fromkeys(("f64", "s64", "u64", "c64"), 8),
    "c128": 16,
}

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) (?:.* )?\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][a-z\d-]*)\((.*)$")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
CALLED = re.compile(r"\b(?:calls|body|to_apply)=%?([\w.-]+)")
TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
FIRST_GROUP = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])")
AXIS_GROUPS = re.compile(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}")
MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
GROUP_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")
CHAIN = re.compile(r'channel_id=(\d+),.*\bchain_id="?(\w+)')
PAIRS = re.compile(r"source_target_pairs=\{(.*?\})\}")
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")

PARTITIONS = re.compile(r"^HloModule .*num_partitions=(\d+)")
FRAME = re.compile(r"\bstack_frame_id=(\d+)")
ELEMENT = re.compile(r"^%?([\w.-]+)\), index=(\d+)")
FILE = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", re.MULTILINE)
STACK = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?\}", re.MULTILINE)

WIRE = "wire_bytes_per_device"

Traffic = Counter[tuple[str, str, int]]
"""(kind, quantity, stack frame) -> amount. The quantities are `count`, `elements_per_device`, `bytes_per_device` and `WIRE`."""

Frames = tuple[tuple[str, int], ...]
"""The lines of a call stack, the innermost first: (file, line)."""


@attrs.frozen
class Instruction:
    """`name = type opcode(rest`. `rest` has the operands and, after the closing parenthesis, the attributes."""

    name: str
    type: str
    opcode: str
    rest: str

    @property
    def collective(self) -> str | None:
        """The HLO opcode of the collective that begins here; None if no collective does."""
        opcode = self.opcode.removesuffix("-start")
        return opcode if opcode in KINDS else None

    @property
    def chain(self) -> str | None:
        """The channel and chain of a collective that several kernels carry out together. Collectives may share a channel."""
        found = CHAIN.search(self.rest) if self.collective else None
        return found and f"{found[1]} {found[2]}"

    @property
    def operands(self) -> list[str]:
        """The names of the operands, with or without their types in front."""
        inside = self.rest[: _closing(self.rest)]
        return re.findall(r"%([\w.-]+)", inside) or [name.strip() for name in inside.split(",")]


def collectives(hlo: str) -> dict[str, dict[str, int]]:
    """Return the communication of each device in one run: kind -> `count`, `elements_per_device`, `bytes_per_device`.

    Elements are those of a device's operand, as in `cost`; loops count once per iteration. A collective in groups of one device
    sends nothing, and is left out. The TPU compiler may carry out a collective as a chain of kernels, each of which names the
    collective; only the first kernel counts. Raises `ValueError` if the text does not state the trip count of a loop that
    communicates.
    """
    report: dict[str, dict[str, int]] = {}
    for (kind, quantity, _), amount in _communication(hlo).items():
        if quantity != WIRE:
            amounts = report.setdefault(kind, {})
            amounts[quantity] = amounts.get(quantity, 0) + int(amount)
    return report


@attrs.frozen
class SentByStack:
    """The bytes that each device sends by collectives of one kind that one call stack of Python causes, in one run.

    bytes: of operands. wire_bytes: that leave the device, by a ring algorithm. frames: empty if the text names no line.
    """

    kind: str
    frames: Frames
    bytes: int
    wire_bytes: float


def sent_by_stack(hlo: str) -> list[SentByStack]:
    """Return what each device sends, by kind and Python call stack. Raises `ValueError` as `collectives` does."""
    traffic, stacks = _communication(hlo), _stacks(hlo)
    return [
        SentByStack(kind, stacks.get(frame, ()), int(amount), traffic[kind, WIRE, frame])
        for (kind, quantity, frame), amount in traffic.items()
        if quantity == "bytes_per_device"
    ]


def _communication(hlo: str) -> Traffic:
    traffic: dict[str, Traffic] = {}
    limits: dict[str, int] = {}
    begun: set[str] = set()
    devices = PARTITIONS.search(hlo)
    name = ""
    for name, instructions in _computations(hlo):
        limits |= _limit(name, instructions, limits)
        own = [i for i in instructions if i.chain not in begun]
        traffic[name] = _traffic(own, traffic, limits, int(devices[1]) if devices else 1)
        begun |= {i.chain for i in instructions if i.chain}
    return traffic.get(name, Counter())


def _stacks(hlo: str) -> dict[int, Frames]:
    """Return the call stacks in the header of a text: number of a frame -> its lines.

    Numbers of parents may be one too high, so that of a frame without a parent, such as the first one, is 0 or 1.
    """
    header = hlo.partition("\nFileNames\n")[2].partition("\n\n\n")[0]
    files = dict(FILE.findall(header.partition("FunctionNames")[0]))
    places = {number: (files[file], int(line)) for number, file, line in LOCATION.findall(header)}
    parents = {int(number): (int(parent or 0), place) for number, place, parent in STACK.findall(header)}
    first = min(parents.values(), default=(0, ""))[0]
    stacks: dict[int, Frames] = {}
    for frame, (parent, place) in sorted(parents.items()):
        stacks[frame] = (places[place], *stacks.get(parent - first, ()))
    return stacks


def cycles(hlo: str) -> int:
    """Return the cycles that the TPU compiler expects one device to compute in one run; loops count once per iteration.

    Collectives count nothing, and neither do kernels without an estimate, such as copies in the background.
    """
    known: dict[str, int] = {}
    limits: dict[str, int] = {}
    name = ""
    for name, instructions in _computations(hlo):
        limits |= _limit(name, instructions, limits)
        known[name] = sum(_cycles(instruction, known, limits) for instruction in instructions)
    return known.get(name, 0)


@attrs.frozen
class InFlight:
    """The collectives of one kind in one run of a compiled program; those of loops count once per iteration.

    count: all of them. hidden: those between whose start and end kernels compute. cycles: of these kernels. bytes: that leave a
    device. hidden_bytes: those of the hidden ones.
    """

    count: int = 0
    hidden: int = 0
    cycles: int = 0
    bytes: float = 0.0
    hidden_bytes: float = 0.0

    def plus(self, other: InFlight, times: int = 1) -> InFlight:
        mine, others = attrs.astuple(self), attrs.astuple(other)
        return InFlight(*(one + times * more for one, more in zip(mine, others, strict=True)))


def in_flight(hlo: str) -> dict[str, InFlight]:
    """Return the collectives of each kind, and what the compiler's schedule computes while they are sent.

    A collective is in flight from its start to its end, such as `all-gather-start` and `all-gather-done`, or from the first to
    the last of the kernels that carry it out together. Raises `ValueError` as `collectives` does.
    """
    reader = _FlightReader(hlo)
    found: dict[str, InFlight] = {}
    for name, instructions in _computations(hlo):
        found = reader.read(name, instructions)
    return found


class _FlightReader:
    """Reads computations, callees first.

    flights: computation -> its collectives by kind. chains: computation -> the chains that it takes part in. sent: chain -> the
    kind and bytes of its collective. cycles, limits: computation -> its cycles, its trip count.
    """

    def __init__(self, hlo: str) -> None:
        partitions = PARTITIONS.search(hlo)
        self.devices = int(partitions[1]) if partitions else 1
        self.flights: dict[str, dict[str, InFlight]] = {}
        self.chains: dict[str, set[str]] = {}
        self.sent: dict[str, tuple[str, float]] = {}
        self.cycles: dict[str, int] = {}
        self.limits: dict[str, int] = {}

    def read(self, name: str, instructions: list[Instruction]) -> dict[str, InFlight]:
        self.limits |= _limit(name, instructions, self.limits)
        cycles = [_cycles(each, self.cycles, self.limits) for each in instructions]
        self.cycles[name] = sum(cycles)
        self.flights[name], self.chains[name] = found, chains = dict[str, InFlight](), set[str]()
        places: dict[str, list[int]] = {}
        types = {each.name: each.type for each in instructions}
        starts: dict[str, str] = {}
        for i, each in enumerate(instructions):
            for key in self._keys(each, starts):
                places.setdefault(key, []).append(i)
            if each.collective and not _alone(each):
                self.sent[each.chain or each.name] = self._sent(each, types)
            elif each.opcode == "async-start":
                for kind, one in self._callees(each).items():
                    self.sent[each.name] = kind, one.bytes
            elif not each.opcode.endswith(("-done", "-update")):
                for kind, more in self._callees(each).items():
                    found[kind] = found.get(kind, InFlight()).plus(more, _iterations(each, self.limits))
        for key, at in places.items():
            if len(at) == 1 and key not in types:
                chains.add(key)
            elif key in self.sent:
                kind, size = self.sent.pop(key)
                inside = sum(cycles[at[0] + 1 : at[-1]])
                one = InFlight(1, int(inside > 0), inside, size, size * (inside > 0))
                found[kind] = found.get(kind, InFlight()).plus(one)
        return found

    def _keys(self, instruction: Instruction, starts: dict[str, str]) -> set[str]:
        """Return the collectives that an instruction starts, carries out or ends: names of instructions, and chains.

        starts: an instruction -> the one that started its collective; this one is added.
        """
        if instruction.opcode.endswith(("-done", "-update")):
            before = instruction.operands[0]
            starts[instruction.name] = starts.get(before, before)
            return {starts[instruction.name]}
        if instruction.collective or instruction.opcode == "async-start":
            return {instruction.chain or instruction.name}
        callees = CALLED.findall(instruction.rest) if instruction.opcode != "while" else ()
        return set[str]().union(*(self.chains.get(callee, set()) for callee in callees))

    def _sent(self, instruction: Instruction, types: Mapping[str, str]) -> tuple[str, float]:
        """Return the kind of a collective, and the bytes that leave a device."""
        traffic = _sent(instruction, types, {}, self.devices)
        kind = KINDS[instruction.collective or ""]
        return kind, sum(amount for (_, quantity, _), amount in traffic.items() if quantity == WIRE)

    def _callees(self, instruction: Instruction) -> dict[str, InFlight]:
        """Return the collectives of the computations that an instruction calls."""
        found: dict[str, InFlight] = {}
        for callee in CALLED.findall(instruction.rest):
            for kind, more in self.flights.get(callee, {}).items():
                found[kind] = found.get(kind, InFlight()).plus(more)
        return found


def _cycles(instruction: Instruction, known: Mapping[str, int], limits: Mapping[str, int]) -> int:
    """Return the cycles of an instruction. The estimate of a kernel includes everything that is fused into it."""
    if instruction.collective:
        return 0
    if instruction.opcode in ("while", "call", "conditional"):
        inside = sum(known.get(callee, 0) for callee in CALLED.findall(instruction.rest))
        return inside and inside * _iterations(instruction, limits)
    found = CYCLES.search(instruction.rest)
    return int(found[1]) if found else 0


def _computations(hlo: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Yield every computation's name and instructions, callees first, the program's entry last."""
    name, instructions, is_entry = "", [], False
    for line in re.sub(r"/\*.*?\*/", "", hlo).splitlines():
        if found := INSTRUCTION.match(line):
            instructions.append(Instruction(*found.groups()))
        elif found := COMPUTATION.match(line):
            name, instructions, is_entry = found[1], [], line.startswith("ENTRY ")
        elif (
            line.split() and line.split()[0] == "}"
        ):  # lines of a custom call's configuration may begin with `}}`
            yield name, instructions
            if is_entry:
                return


def _traffic(
    instructions: list[Instruction], known: Mapping[str, Traffic], limits: Mapping[str, int], devices: int
) -> Traffic:
    """Return the communication of one computation and of all that it calls."""
    types = {instruction.name: instruction.type for instruction in instructions}
    frames = _element_frames(instructions)
    total: Traffic = Counter()
    for instruction in instructions:
        if instruction.collective and not _alone(instruction):
            total.update(_sent(instruction, types, frames, devices))
        elif not instruction.opcode.endswith(("-done", "-update")):
            for callee in CALLED.findall(instruction.rest):
                if known.get(callee):
                    times = _iterations(instruction, limits)
                    total.update({key: amount * times for key, amount in known[callee].items()})
    return total


def _sent(
    instruction: Instruction, types: Mapping[str, str], frames: Mapping[tuple[str, int], int], devices: int
) -> Traffic:
    """Return the communication of a collective. Each operand of a combined collective has a stack frame of its own."""
    kind, own = KINDS[instruction.collective or ""], _frame(instruction)
    factor = SENDINGS[kind].ring_bytes(_members(instruction) or devices)
    total: Traffic = Counter({(kind, "count", own): 1})
    for i, name in enumerate(instruction.operands):
        frame = frames.get((instruction.name, i), own)
        for dtype, shape in ARRAY.findall(types[name]):
            size = prod(int(n) for n in shape.split(",") if n)
            total[kind, "elements_per_device", frame] += size
            total[kind, "bytes_per_device", frame] += size * ITEM_BYTES[dtype]
            total[kind, WIRE, frame] += size * ITEM_BYTES[dtype] * factor
    return total


def _frame(instruction: Instruction) -> int:
    """Return the number of the stack frame that an instruction stems from, and 0 if it names none."""
    found = FRAME.search(instruction.rest)
    return int(found[1]) if found else 0


def _element_frames(instructions: list[Instruction]) -> dict[tuple[str, int], int]:
    """Return the stack frames of the results of instructions with several results: (instruction, index) -> frame."""
    elements = [each for each in instructions if each.opcode == "get-tuple-element"]
    found = [(ELEMENT.search(each.rest), _frame(each)) for each in elements]
    return {(match[1], int(match[2])): frame for match, frame in found if match and frame}


def _members(instruction: Instruction) -> int:
    """Return the number of devices in a group, and 0 if the groups are not stated."""
    if found := AXIS_GROUPS.search(instruction.rest):
        sizes = dict(MESH_AXIS.findall(found[1]))
        return prod(int(part or sizes[axis]) for axis, part in GROUP_AXIS.findall(found[2]))
    group = FIRST_GROUP.search(instruction.rest)
    return int(group[2] or len(group[1].split(",")) * bool(group[1])) if group else 0


def _alone(instruction: Instruction) -> bool:
    """Return True if every device communicates with itself only. Without groups, all devices are one group."""
    if pairs := PAIRS.search(instruction.rest):
        return all(source == target for source, target in re.findall(r"\{(\d+),(\d+)\}", pairs[1]))
    return _members(instruction) == 1


def _limit(name: str, instructions: list[Instruction], known: Mapping[str, int]) -> dict[str, int]:
    """Return the trip count of a loop, if the computation only compares its counter with a constant.

    The counter starts at 0, as JAX and XLA's partitioner make it. A truth value beside the comparison may end the loop earlier:
    then this is the largest trip count. XLA may fuse both.
    """
    constants = [
        each
        for each in instructions
        if each.opcode == "constant" and each.type.startswith(("s32[]", "u32[]"))
    ]
    if instructions[-1].opcode == "fusion" and not constants:
        fused = [known[callee] for callee in CALLED.findall(instructions[-1].rest) if callee in known]
        return {name: fused[0]} if fused else {}
    if len(constants) != 1 or instructions[-1].opcode not in ("compare", "and"):
        return {}
    return {name: int(constants[0].rest.split(")")[0])}


def _iterations(instruction: Instruction, limits: Mapping[str, int]) -> int:
    """Return how often an instruction runs the computation that it calls.

    A loop states its trip count, or its condition does. Raises `ValueError` if neither does.
    """
    if instruction.opcode != "while":
        return 1
    if count := TRIP_COUNT.search(instruction.rest):
        return int(count[1])
    condition = CONDITION.search(instruction.rest)
    if condition and condition[1] in limits:
        return limits[condition[1]]
    raise ValueError(f"the HLO does not say how often the loop {instruction.name} runs")


def _closing(text: str) -> int:
    """Return the position of the parenthesis that closes the one opened before `text`."""
    depth = 1
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position
    return len(text)
