"""The collectives, FLOPs and cycles of a compiled XLA program, read from its HLO text.

XLA rewrites its input: it combines all-reduces, starts a collective in one instruction and ends it in another, and moves loop
bodies to computations of their own. XLA's own cost analysis counts a loop body once. Every computation stands before those that
call it, so one pass is enough. The pass ends with the entry: newer versions of XLA leave computations behind it that nothing
calls.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from math import gcd, prod

import attrs

from mtfc.compiler.ir.ops.collectives import SENDINGS

KINDS = {sending.hlo: kind for kind, sending in SENDINGS.items()}
"""HLO opcode -> the kind of collective in reports."""

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) (?:.* )?\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][a-z\d-]*)\((.*)$")
CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
BRANCHES = re.compile(r"\b(?:branch_computations=\{|(?:true|false)_computation=)([^},]*(?:, %[\w.-]+)*)")
CALLED = re.compile(r"\b(?:calls|body|to_apply)=%?([\w.-]+)")
TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
FIRST_GROUP = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])")
AXIS_GROUPS = re.compile(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}")
MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
GROUP_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")
CHAIN = re.compile(r'channel_id=(\d+),.*\bchain_id="?(\w+)')
PAIRS = re.compile(r"source_target_pairs=\{(.*?\})\}")
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)')
WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
FEATURE_GROUPS = re.compile(r"feature_group_count=(\d+)")
BATCH_GROUPS = re.compile(r"batch_group_count=(\d+)")

PARTITIONS = re.compile(r"^HloModule .*num_partitions=(\d+)")
FRAME = re.compile(r"\bstack_frame_id=(\d+)")
ELEMENT = re.compile(r"^%?([\w.-]+)\), index=(\d+)")
FILE = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", re.MULTILINE)
STACK = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?\}", re.MULTILINE)

WIRE = "wire_bytes_per_device"

UNKNOWN = "loops_of_unknown_length"

FLOPS, CYCLES_OF = "flops", "cycles"
"""The kinds of work that are no collectives. Their quantity is `count`."""

Frames = tuple[tuple[str, int], ...]
"""The lines of a call stack, the innermost first: (file, line)."""


@attrs.frozen
class Item:
    """Work of one kind that one stack frame causes: FLOPs, cycles, or collectives in groups of devices.

    is_asynchronous: True if other instructions may run between the start and the end of the collective.
    """

    kind: str
    frame: int = 0
    groups: int = 0
    members: int = 0
    is_asynchronous: bool = False


Work = Counter[tuple[Item, str]]
"""(item, quantity) -> amount. The quantities are `count`, `elements_per_device`, `bytes_per_device`, `WIRE` and `UNKNOWN`."""


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
    for (item, quantity), amount in _known(hlo, SENDINGS):
        if quantity != WIRE:
            amounts = report.setdefault(item.kind, {})
            amounts[quantity] = amounts.get(quantity, 0) + int(amount)
    return report


def wire_bytes(hlo: str) -> float:
    """Return the bytes that leave each device in one run, by ring algorithms. Raises `ValueError` as `collectives` does."""
    return sum(amount for (_, quantity), amount in _known(hlo, SENDINGS) if quantity == WIRE)


def cycles(hlo: str) -> int:
    """Return the cycles that the TPU compiler expects one device to compute in one run; loops count once per iteration.

    Collectives count nothing, and neither do kernels without an estimate, such as copies in the background. Raises `ValueError`
    if the text does not state the trip count of a loop.
    """
    return sum(int(amount) for _, amount in _known(hlo, (CYCLES_OF,)))


def work(hlo: str) -> list[tuple[Item, Frames, dict[str, float]]]:
    """Return each device's work in one run: items, their call stacks, and the amount of each quantity.

    A loop whose trip count the text does not state counts as one iteration, and in the quantity `UNKNOWN`.
    """
    stacks, found = _stacks(hlo), dict[Item, dict[str, float]]()
    for (item, quantity), amount in _executed(hlo).items():
        found.setdefault(item, {})[quantity] = amount
    return [(item, stacks.get(item.frame, ()), amounts) for item, amounts in found.items()]


def _known(hlo: str, kinds: Container[str]) -> Iterator[tuple[tuple[Item, str], float]]:
    """Yield the work of some kinds. Raises `ValueError` for work in a loop whose trip count the text does not state."""
    for key, amount in _executed(hlo).items():
        if key[0].kind in kinds:
            if key[1] == UNKNOWN:
                raise ValueError("the HLO does not say how often a loop runs")
            yield key, amount


def _executed(hlo: str) -> Work:
    """Return the work of the entry."""
    done: dict[str, Work] = {}
    limits: dict[str, int] = {}
    begun: set[str] = set()
    partitions = PARTITIONS.search(hlo)
    devices, name = int(partitions[1]) if partitions else 1, ""
    for name, instructions in computations(hlo):
        limits |= limit(name, instructions, limits)
        own = [i for i in instructions if i.chain not in begun]
        done[name] = _work(own, done, limits, devices)
        begun |= {i.chain for i in instructions if i.chain}
    return done.get(name, Counter())


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
        elif line.split()[:1] == ["}"]:  # lines of a custom call's configuration may begin with `}}`
            yield name, instructions
            if is_entry:
                return


def _work(
    instructions: list[Instruction], done: Mapping[str, Work], limits: Mapping[str, int], devices: int
) -> Work:
    """Return the work of one computation and of all that it calls."""
    types = {instruction.name: instruction.type for instruction in instructions}
    frames = _operand_frames(instructions)
    total: Work = Counter()
    for instruction in instructions:
        if instruction.collective:
            if not _alone(instruction):
                total.update(_sent(instruction, types, frames, devices))
            continue
        if estimate := CYCLES.search(instruction.rest):
            total[Item(CYCLES_OF, _frame(instruction)), "count"] += int(estimate[1])
        if flops := _flops(instruction, types):
            total[Item(FLOPS, _frame(instruction)), "count"] += flops
        for callee in _callees(instruction, done):
            total.update(_called(instruction, done.get(callee, Counter()), limits))
    return total


def _callees(instruction: Instruction, done: Mapping[str, Work]) -> list[str]:
    """Return the computations that an instruction runs, and of branches the one with the most work.

    The end of an asynchronous instruction names the computation that its start runs.
    """
    if instruction.opcode.endswith(("-done", "-update")) or instruction.opcode in ("reduce", "reduce-window"):
        return []
    if instruction.opcode != "conditional":
        return CALLED.findall(instruction.rest)
    branches = [
        name for found in BRANCHES.findall(instruction.rest) for name in re.findall(r"[\w.-]+", found)
    ]
    return sorted(branches, key=lambda name: sum(done.get(name, Counter()).values()))[-1:]


def _called(instruction: Instruction, inside: Work, limits: Mapping[str, int]) -> Work:
    """Return the work of a called computation, for the frame of the call where it has none.

    The estimate of a kernel includes the cycles of everything that is fused into the kernel.

    inside: the work of the called computation. limits: the trip counts of loops.
    """
    is_kernel = instruction.opcode not in ("while", "call", "conditional")
    times, found = iterations(instruction, limits), Counter[tuple[Item, str]]()
    for (item, quantity), amount in inside.items():
        if is_kernel and item.kind == CYCLES_OF:
            continue
        starts = item.kind in SENDINGS and instruction.opcode == "async-start"
        frame, is_asynchronous = item.frame or _frame(instruction), item.is_asynchronous or starts
        made = attrs.evolve(item, frame=frame, is_asynchronous=is_asynchronous)
        found[made, quantity] += amount * (1 if times is None else times)
        if times is None:
            found[made, UNKNOWN] = 1
    return found


def _sent(
    instruction: Instruction, types: Mapping[str, str], frames: Mapping[tuple[str, int], int], devices: int
) -> Work:
    """Return the work of a collective. Each operand of a combined collective has a stack frame of its own."""
    kind, own = KINDS[instruction.collective or ""], _frame(instruction)
    members = _members(instruction) or devices
    factor = SENDINGS[kind].ring_bytes(members)
    is_asynchronous = instruction.opcode.endswith("-start") or instruction.chain is not None
    item = Item(kind, own, max(1, devices // members), members, is_asynchronous)
    total: Work = Counter({(item, "count"): 1})
    for i, name in enumerate(instruction.operands):
        part = attrs.evolve(item, frame=frames.get((instruction.name, i), own))
        for dtype, shape in ARRAY.findall(types[name]):
            size = prod(_sizes(shape))
            total[part, "elements_per_device"] += size
            total[part, "bytes_per_device"] += size * _bits(dtype) // 8
            total[part, WIRE] += size * _bits(dtype) / 8 * factor
    return total


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in re.findall(r"\d+", shape)]


def _bits(dtype: str) -> int:
    """Return the bits of an element: those of `f8e4m3fn` are 8, and those of `pred` are a byte's."""
    number = re.search(r"\d+", dtype)
    return int(number[0]) if number else 8 * (dtype == "pred")


def _frame(instruction: Instruction) -> int:
    """Return the number of the stack frame that an instruction stems from, and 0 if it names none."""
    found = FRAME.search(instruction.rest)
    return int(found[1]) if found else 0


def _operand_frames(instructions: list[Instruction]) -> dict[tuple[str, int], int]:
    """Return the stack frames of operands of combined collectives: (instruction, index) -> frame.

    XLA gives each result of a collective that it has combined a frame. If JAX has combined the collective, all results have the
    frame of the collective, and the instruction that makes the operand has one.
    """
    own = {each.name: _frame(each) for each in instructions}
    found = {
        (each.name, i): own[name]
        for each in instructions
        if each.collective and len(each.operands) > 1
        for i, name in enumerate(each.operands)
        if own.get(name)
    }
    for each in instructions:
        match = ELEMENT.search(each.rest) if each.opcode == "get-tuple-element" else None
        if match and _frame(each) not in (0, own.get(match[1])):
            found[match[1], int(match[2])] = _frame(each)
    return found


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

    The counter starts at 0, as JAX and XLA's partitioner make it. A truth value beside the comparison may end the loop
    earlier: then this is the largest trip count. XLA may fuse both.

    known: the limits of the computations before, by name.
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


def iterations(instruction: Instruction, limits: Mapping[str, int]) -> int | None:
    """Return how often an instruction runs the computation that it calls; None if the text does not say so.

    A loop states its trip count, or its condition does.
    """
    if instruction.opcode != "while":
        return 1
    if count := TRIP_COUNT.search(instruction.rest):
        return int(count[1])
    condition = CONDITION.search(instruction.rest)
    return limits.get(condition[1]) if condition else None


# FLOPs

ELEMENTWISE = re.compile(
    "abs|add|atan2|cbrt|ceil|clamp|compare|cosine|divide|erf|exponential|exponential-minus-one|floor|log|log-plus-one|logistic"
    "|maximum|minimum|multiply|negate|power|remainder|round-nearest-afz|round-nearest-even|rsqrt|select|sign|sine|sqrt|subtract"
    "|tan|tanh"
)
"""The opcodes that compute one floating-point operation for each element."""


def _flops(instruction: Instruction, types: Mapping[str, str]) -> int:
    """Return the floating-point operations of an instruction itself; integers count nothing."""
    (dtype, shape), *_ = ARRAY.findall(instruction.type) or [("", "")]
    if instruction.opcode == "dot" or CONTRACTED.search(instruction.rest):
        return 2 * prod(_sizes(shape)) * _contracted(instruction, types)
    if instruction.opcode == "convolution" or LABELS.search(instruction.rest):
        return _convolved(instruction, types, _sizes(shape))
    if dtype[:1] not in ("f", "b", "c"):
        return 0
    if ELEMENTWISE.fullmatch(instruction.opcode):
        return prod(_sizes(shape))
    if instruction.opcode == "reduce":
        return prod(_shape(instruction, types, 0))
    if instruction.opcode == "reduce-window":
        return prod(_sizes(shape)) * prod(size for size, *_ in _windows(instruction))
    return 0


def _shape(instruction: Instruction, types: Mapping[str, str], number: int) -> list[int]:
    """Return the sizes of an operand."""
    names = instruction.operands
    found = ARRAY.search(types.get(names[number], "")) if number < len(names) else None
    return _sizes(found[2]) if found else []


def _contracted(instruction: Instruction, types: Mapping[str, str]) -> int:
    """Return the number of products in each element of a dot; also of one that a library computes on GPUs."""
    found, sizes = CONTRACTED.search(instruction.rest), _shape(instruction, types, 0)
    return prod(sizes[i] for i in _sizes(found[1]) if i < len(sizes)) if found else 1


def _convolved(instruction: Instruction, types: Mapping[str, str], result: list[int]) -> int:
    """Return the FLOPs of a convolution: products with padding or with the zeros of a dilation count nothing."""
    labels = LABELS.search(instruction.rest)
    given, kernel = (_shape(instruction, types, number) for number in (0, 1))
    if labels is None or (len(given), len(kernel)) != (len(labels[1]), len(labels[2])):
        return 0
    features, batches = (
        int(match[1]) if (match := pattern.search(instruction.rest)) else 1
        for pattern in (FEATURE_GROUPS, BATCH_GROUPS)
    )
    products = given[labels[1].index("b")] * given[labels[1].index("f")] * kernel[labels[2].index("o")]
    for number, window in enumerate(_windows(instruction)):
        sizes = (each[text.index(str(number))] for each, text in ((given, labels[1]), (result, labels[3])))
        products *= _overlaps(*sizes, *window)
    return 2 * products // (features * batches)


def _windows(instruction: Instruction) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the size, the stride, the padding in front and the dilations of both operands along each dimension."""
    found = WINDOW.search(instruction.rest)
    given = dict(part.split("=") for part in found[1].split()) if found else {}
    columns = [given[name].split("x") if name in given else [] for name in ("size", "stride", "pad")]
    columns += [given[name].split("x") if name in given else [] for name in ("lhs_dilate", "rhs_dilate")]
    for i, size in enumerate(columns[0]):
        stride, pad, left, right = (column[i] if column else None for column in columns[1:])
        yield int(size), int(stride or 1), int((pad or "0").split("_")[0]), int(left or 1), int(right or 1)


@lru_cache(maxsize=10000)
def _overlaps(given: int, result: int, size: int, stride: int, pad: int, left: int, right: int) -> int:
    """Return the number of pairs of a result's position and a kernel's position that meet an element of the operand.

    The position of the operand, `place * stride + offset`, must be a multiple of its dilation `left`.

    given, size: the sizes of the operand's and of the kernel's dimension. left, right: the dilations of both.
    """
    count, step, length = 0, left // gcd(stride, left), (given - 1) * left + 1
    for offset in range(-pad, size * right - pad, right):
        if offset % gcd(stride, left) == 0:
            first, last = max(0, -(offset // stride)), min(result - 1, (length - 1 - offset) // stride)
            inverse = pow(stride // gcd(stride, left), -1, step) if step > 1 else 0
            start = -offset // gcd(stride, left) * inverse % step if step > 1 else 0
            count += max(0, (last - first - (start - first) % step) // step + 1)
    return count


def _closing(text: str) -> int:
    """Return the position of the parenthesis that closes the one opened before `text`."""
    depth = 1
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position
    return len(text)
