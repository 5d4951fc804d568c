"""The collectives and cycles of a compiled XLA program, read from its HLO text.

XLA rewrites its input: it combines all-reduces, starts a collective in one instruction and ends it in another, and moves loop
bodies to computations of their own. Tests of communication therefore read the compiled text. Every computation stands before
those that call it, so one pass is enough.
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
    **dict.fromkeys(("pred", "s8", "u8"), 1),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2),
    **dict.fromkeys(("f32", "s32", "u32"), 4),
    **dict.fromkeys(("f64", "s64", "u64"), 8),
}

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) (?:.* )?\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][a-z\d-]*)\((.*)$")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
CALLED = re.compile(r"\b(?:calls|body|to_apply)=%?([\w.-]+)")
TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
FIRST_GROUP = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])")
CHAIN = re.compile(r"channel_id=(\d+),.*\bchain_id=")
PAIRS = re.compile(r"source_target_pairs=\{(.*?\})\}")
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")

Traffic = Counter[tuple[str, str]]
"""(kind, quantity) -> amount. The quantities are `count`, `elements_per_device` and `bytes_per_device`."""


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
        """The channel of a collective that several kernels carry out together."""
        found = CHAIN.search(self.rest) if self.collective else None
        return found and found[1]

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
    traffic: dict[str, Traffic] = {}
    limits: dict[str, int] = {}
    begun: set[str] = set()
    name = ""
    for name, instructions in _computations(hlo):
        limits |= _limit(name, instructions)
        traffic[name] = _traffic([i for i in instructions if i.chain not in begun], traffic, limits)
        begun |= {i.chain for i in instructions if i.chain}
    report: dict[str, dict[str, int]] = {}
    for (kind, quantity), amount in traffic.get(name, Counter()).items():
        report.setdefault(kind, {})[quantity] = amount
    return report


def cycles(hlo: str) -> int:
    """Return the cycles that the TPU compiler expects one device to compute in one run; loops count once per iteration.

    Collectives count nothing, and neither do kernels without an estimate, such as copies in the background.
    """
    known: dict[str, int] = {}
    limits: dict[str, int] = {}
    name = ""
    for name, instructions in _computations(hlo):
        limits |= _limit(name, instructions)
        known[name] = sum(_cycles(instruction, known, limits) for instruction in instructions)
    return known.get(name, 0)


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
    name, instructions = "", []
    for line in re.sub(r"/\*.*?\*/", "", hlo).splitlines():
        if found := INSTRUCTION.match(line):
            instructions.append(Instruction(*found.groups()))
        elif found := COMPUTATION.match(line):
            name, instructions = found[1], []
        elif line.startswith("}"):
            yield name, instructions


def _traffic(
    instructions: list[Instruction], known: Mapping[str, Traffic], limits: Mapping[str, int]
) -> Traffic:
    """Return the communication of one computation and of all that it calls."""
    types = {instruction.name: instruction.type for instruction in instructions}
    total: Traffic = Counter()
    for instruction in instructions:
        if instruction.collective and not _alone(instruction):
            total.update(_sent(instruction, types))
        elif not instruction.opcode.endswith(("-done", "-update")):
            for callee in CALLED.findall(instruction.rest):
                if known.get(callee):
                    times = _iterations(instruction, limits)
                    total.update({key: amount * times for key, amount in known[callee].items()})
    return total


def _sent(instruction: Instruction, types: Mapping[str, str]) -> Traffic:
    arrays = [array for name in instruction.operands for array in ARRAY.findall(types[name])]
    sizes = [(dtype, prod(int(n) for n in shape.split(",") if n)) for dtype, shape in arrays]
    kind = KINDS[instruction.collective or ""]
    return Counter(
        {
            (kind, "count"): 1,
            (kind, "elements_per_device"): sum(size for _, size in sizes),
            (kind, "bytes_per_device"): sum(size * ITEM_BYTES[dtype] for dtype, size in sizes),
        }
    )


def _alone(instruction: Instruction) -> bool:
    """Return True if every device communicates with itself only. Without groups, all devices are one group."""
    if pairs := PAIRS.search(instruction.rest):
        return all(source == target for source, target in re.findall(r"\{(\d+),(\d+)\}", pairs[1]))
    group = FIRST_GROUP.search(instruction.rest)
    return group is not None and (group[2] == "1" or (group[1] or "").isdigit())


def _limit(name: str, instructions: list[Instruction]) -> dict[str, int]:
    """Return the trip count of a loop, if the computation only compares its counter with a constant.

    The counter starts at 0, as JAX makes it.
    """
    constants = [each for each in instructions if each.opcode == "constant" and each.type.startswith("s32[]")]
    if len(constants) != 1 or instructions[-1].opcode != "compare":
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
