"""The collectives of a compiled XLA program, read from its HLO text.

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
    for name, instructions in computations(hlo):
        limits |= limit(name, instructions, limits)
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


def computations(hlo: str) -> Iterator[tuple[str, list[Instruction]]]:
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
                    times = iterations(instruction, limits)
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


def limit(name: str, instructions: list[Instruction], known: Mapping[str, int]) -> dict[str, int]:
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


def iterations(instruction: Instruction, limits: Mapping[str, int]) -> int:
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
