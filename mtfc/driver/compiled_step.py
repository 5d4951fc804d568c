"""Compile a step for a target, and put what the compiler makes of it beside the prediction.

A child process compiles our own program, so that the devices, the flags and the end of the compiler are the child's own. Only a
program with `call`s is compiled in this process, which has their functions.

XLA's partitioner chooses the collectives of a jitted function. The text of the compiled program names the call stack of each
collective, so the report can say which line sends more than `plan.step`, and whether the constraints of `plan.apply` mend that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from time import perf_counter
from typing import Any

import attrs

from mtfc.backends.common.devices import Unavailable, devices, import_jax, of_kind, setting_kept
from mtfc.backends.common.module import parts
from mtfc.backends.hlo import CYCLES_OF, UNKNOWN, WIRE, Frames, Item, work
from mtfc.backends.jax.tpu_topologies import GENERATIONS, smallest, text, topology
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.activity import doing
from mtfc.compiler.cost.effects.memory import padded
from mtfc.compiler.cost.hardware import SHORT_FLOATS, Device, Hardware, Rate
from mtfc.compiler.cost.sizes import Numbers, bytes_of, whole
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.volumes import Charge, PlacedCost, SentVolume, layout_cost
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Function, Program, source_file, walk
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.driver.data.files import readable_texts
from mtfc.driver.errors import FailedRequest, UsageError
from mtfc.driver.training.user_code import OWN
from mtfc.driver.verification import checks
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.frontend.jaxpr.user_lines import is_library
from mtfc.frontend.semantics.names.standard_library import library_machines
from mtfc.reports.inspection import Inspection, StepFigures

XLA_FOR_CPUS = Device(
    flops={"f32": Rate.constant(1e11), "bf16": Rate.constant(5e10)},
    memory=1e12,
    bandwidth=Rate.constant(1e10),
    ops={"reordered": 1e9},
)
"""A device with the facts that change the memory of programs for CPUs; its rates say nothing."""

HOURS = 4 * 3600.0

TARGET = re.compile(r"(?:tpu_)?(v\d\w?)(?::(\d+(?:x\d+)+))?|(\w+?)(?::([1-9]\d*))?")


@attrs.frozen
class CompileTarget:
    """The devices to compile for. machine: `cpu`, `gpu`, or the name of a machine. place: a topology of TPUs, or a number."""

    name: str
    machine: str
    place: str | None

    @classmethod
    def of(cls, name: str) -> CompileTarget:
        """Return the target of a name. Raises `UsageError`."""
        match = TARGET.fullmatch(name.strip())
        generation, shape, other, count = match.groups() if match else (None,) * 4
        if generation in GENERATIONS:
            return cls(name, f"tpu_{generation}", shape)
        known = ("cpu", "gpu", *(each for each in library_machines() if not each.startswith("tpu_")))
        machine = generation or other  # a GPU may have the name of a generation, such as v100
        if machine not in known or shape is not None:
            raise UsageError(
                f"--target {name}: expected cpu, cpu:8, gpu, a machine such as tpu_v5e or h100, or a topology such as v5e:4x4"
            )
        return cls(name, machine, count)

    @property
    def generation(self) -> str:
        """The generation of TPUs; empty for other devices."""
        return self.machine[4:] if self.machine.startswith("tpu_") else ""

    @property
    def is_gpu(self) -> bool:
        return not self.generation and self.machine != "cpu"

    @property
    def hardware(self) -> Hardware | None:
        """The machine of the library whose prediction stands beside the compiler's figures."""
        return find_hardware(self.machine, {}) if self.machine in library_machines() else None

    @property
    def device(self) -> Device | None:
        """The device whose memory is predicted."""
        return self.hardware.device if self.hardware else XLA_FOR_CPUS if self.machine == "cpu" else None

    def named(self, count: int) -> str:
        """Return the target for a mesh of so many devices. Raises `UsageError` if the target has fewer."""
        if self.generation:
            return f"{self.generation}:{self.place}" if self.place else smallest(self.generation, count)
        if self.place and count > int(self.place):
            raise UsageError(f"--target {self.name} has too few devices for {count}: choose another `--mesh`")
        return f"{self.machine}:{self.place or count}"

    def devices(self, count: int) -> list[Any]:
        """Return devices of JAX to compile for. Raises `Unavailable`."""
        if self.machine == "cpu":
            return devices(count)
        if self.generation:
            found = topology(self.named(count))
        else:
            kind = "" if self.machine == "gpu" else self.machine.upper()
            found = [each for each in of_kind(import_jax(), "gpu") if kind in each.device_kind.upper()]
        if len(found) < count:
            place = f"{self.named(count)} has" if self.generation else "here JAX finds"
            raise Unavailable(
                f"--target {self.name}: {place} {len(found)} such devices, and the mesh has {count}: "
                f"take another mesh, cpu:{count} or TPUs"
            )
        return found


# Compilation


@attrs.frozen
class XlaProgram:
    """A compiled program as text, its memory by part, and the compiler. failed: the reason why there is none."""

    text: str = ""
    memory: Mapping[str, int] = attrs.field(factory=dict)
    seconds: float = 0.0
    compiler: str = "XLA"
    failed: str | None = None


def compiled(lowered: Any, target: CompileTarget) -> XlaProgram:
    """Compile a `jax.stages.Lowered`. A program that the compiler refuses has a reason."""
    from importlib.metadata import version

    jax, start = import_jax(), perf_counter()
    name = f"libtpu {version('libtpu')}" if target.generation else f"XLA of jaxlib {version('jaxlib')}"
    try:
        done = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return XlaProgram(compiler=name, failed=" ".join(str(error).splitlines()[:3]))
    seconds = perf_counter() - start
    return XlaProgram(text(done), memory_of(done, is_tpu=bool(target.generation)), seconds, name)


def memory_of(executable: Any, is_tpu: bool) -> dict[str, int]:
    """Return the bytes of a compiled program on one device.

    libtpu states more temporaries than its compiler needs, which compiles for less memory. The peak of the compiler's own
    assignment of buffers says what it needs.
    """
    said = executable.memory_analysis()
    arguments, peak = said.argument_size_in_bytes, said.peak_memory_in_bytes
    outputs, temporaries = said.output_size_in_bytes - said.alias_size_in_bytes, said.temp_size_in_bytes
    if is_tpu:
        temporaries = max(0, min(temporaries, peak - arguments - outputs))
    parts = {"arguments": arguments, "outputs": outputs, "temporaries": temporaries}
    return {**parts, "total": sum(parts.values()), "peak": peak}


def compilations(program: Program, function: str, target: CompileTarget) -> Sequence[checks.Check]:
    """Return the compilation of a function of a lowered program, for a process of its own."""
    count = program.placed_on.devices

    def run() -> Iterator[XlaProgram]:
        """Yield the compiled function. Raises `Unavailable` if the mesh does not fit the machine."""
        from mtfc.backends.jax.runtime import lowered

        try:
            with setting_kept("jax_enable_x64"):  # a module may change the setting
                found = lowered(program, function, target.devices(count))
        except AssertionError:  # JAX's own, for a mesh that is no part of a torus
            raise Unavailable(
                f"a mesh of {count} devices does not lie on {target.named(count)}: take another mesh"
            ) from None
        yield compiled(found, target)

    return [checks.Check(f"compiling for {target.named(count)}", run, XlaProgram(), HOURS)]


def checked(found: XlaProgram, target: CompileTarget) -> XlaProgram:
    """Return a compiled program. Raises `FailedRequest` if the compiler has refused it."""
    if found.failed is not None:
        raise FailedRequest(f"{found.compiler} does not compile this for {target.name}: {found.failed}")
    return found


def inspected(program: Program, target: CompileTarget) -> Inspection:
    """Compile the step of a lowered program, or its forward pass if it does not train, in a child process.

    Raises `UsageError`, `Unavailable` and `FailedRequest`.
    """
    name = "step" if program.has_function("step") else "forward"
    cost, given = layout_cost(program, device=target.device), (program, name, target)
    remade = checks.Remade("mtfc.driver.compiled_step:compilations", given)
    variables = {} if target.is_gpu else {"JAX_PLATFORMS": "cpu"}
    source = BACKENDS["jax"].generate(program)
    run = checks.results_here if "mapped_call(" in source else checks.results
    (found,) = run(compilations(*given), remade, None, variables)
    checked(found, target)
    with doing("reading the compiled program"):
        roads = {
            "predicted": predicted(program.function(name), cost, target),
            "compiled": figures(found, generated_places(source, program.function(name))),
        }
    sent = (
        eqn.operands[0].type.dtype for eqn in walk(program.function(name).body) if has_trait(eqn, "sends")
    )
    is_widened = target.machine == "cpu" and any(dtype in SHORT_FLOATS for dtype in sent)
    named = target.named(cost.mesh.devices)
    return Inspection(cost, named, found.compiler, found.seconds, roads, is_widened=is_widened)


Lower = Callable[[Sequence[Any]], Sequence[Any]]
"""Returns `plan.apply`, and the function with shardings alone, as `jax.stages.Lowered` for devices."""


def inspect_plan(program: Program, target: CompileTarget, lower: Lower | None) -> Inspection:
    """Compile `plan.step`; and `plan.apply` and the function with shardings alone if `lower` makes these for devices.

    Raises `UsageError`, `Unavailable` and `FailedRequest`.
    """
    found = inspected(program, target)
    places = [each.span for road in found.roads.values() for each in road.charges if each.span is not None]
    found = attrs.evolve(found, texts=readable_texts(span.file for span in places))
    if lower is None:
        return found
    with doing(f"compiling plan.apply for {found.target}"):
        done = [compiled(each, target) for each in lower(target.devices(found.cost.mesh.devices))]
        more = [figures(checked(each, target), user_place) for each in done]
    return attrs.evolve(found, roads={**found.roads, **dict(zip(("apply", "shardings"), more, strict=True))})


# Figures


def predicted(function: Function, cost: PlacedCost, target: CompileTarget) -> StepFigures:
    """Return the prediction for a function of one processor."""
    mesh, hardware = cost.mesh, target.hardware
    scale = padded(function, mesh, target.device) if target.device else Numbers(mesh)
    kept = [each.value for each in function.outputs if each.updates is None]
    arguments, outputs = (
        sum(whole(bytes_of(value.type, scale)) for value in values)
        for values in ([each.value for each in function.arguments], kept)
    )
    total = whole(cost.memory.total)
    temporaries = max(0, total - arguments - outputs)
    memory = {"arguments": arguments, "outputs": outputs, "temporaries": temporaries, "total": total}
    clock = GENERATIONS[target.generation].clock if target.generation else 0
    seconds = step_time(function, mesh, hardware).lines if hardware and clock else {}
    charges = (
        attrs.evolve(each, axes=(f"{mesh.devices // mesh.size(each.axes)} of {mesh.size(each.axes)}",))
        if each.kind
        else each
        for each in cost.step
    )
    cycles = ((span, round(each.compute * clock)) for span, each in seconds.items())
    return StepFigures(memory, tuple(charges), tuple(cycles))


def figures(found: XlaProgram, place: Callable[[Frames], Span | None]) -> StepFigures:
    """Return the figures of a compiled program. place: the user's line of a call stack."""
    amounts = [(item, place(frames), each) for item, frames, each in work(found.text)]
    cycles = ((span, int(each["count"])) for item, span, each in amounts if item.kind == CYCLES_OF)
    charges = (_charge(item, span, each) for item, span, each in amounts if item.kind != CYCLES_OF)
    return StepFigures(
        found.memory, tuple(charges), tuple(cycles), any(UNKNOWN in each for *_, each in amounts)
    )


def _charge(item: Item, span: Span | None, amounts: Mapping[str, float]) -> Charge:
    """Return the figures of an item of a compiled program as a charge: its collective, or its FLOPs if it is none."""
    names = ("count", "elements_per_device", "bytes_per_device", WIRE)
    count, elements, size, wire = (amounts.get(name, 0) for name in names)
    if item.kind not in KINDS:
        return Charge(span, "forward", int(count))
    groups = f"{item.groups} of {item.members}", "asynchronous" if item.is_asynchronous else "synchronous"
    sent = SentVolume(int(count), int(elements), int(size), wire)  # type: ignore[arg-type]
    return Charge(span, "forward", kind=item.kind, axes=groups, sent=sent)


def generated_places(source: str, function: Function) -> Callable[[Frames], Span | None]:
    """Return what gives the place of an equation from the call stack of its statement in the generated module.

    A comment with the line stands above each statement, at the same indentation or at that of a block around the statement.
    """
    own = source_file([function])
    spans = {f"# {eqn.span.seen_from(own)}": eqn.span for eqn in walk(function.body) if eqn.span is not None}
    texts = {file: part.splitlines() for file, part in parts(source)}

    def above(lines: Sequence[str], number: int) -> Span | None:
        """Return the place in the nearest comment above a line that is indented no deeper; None without one."""
        indent = len(lines[number - 1]) - len(lines[number - 1].lstrip())
        for line in reversed(lines[:number]):
            comment = line.lstrip().removesuffix(", backward").removesuffix(", update")
            if comment in spans and len(line) - len(line.lstrip()) <= indent:
                return spans[comment]
        return None

    def place(frames: Frames) -> Span | None:
        found = (above(texts[file], line) for file, line in frames if file in texts)
        return next((span for span in found if span is not None), None)

    return place


def user_place(frames: Frames) -> Span | None:
    """Return the innermost line of the imported function outside of libraries, or else the innermost one."""
    known = [*takewhile(lambda frame: not frame[0].startswith(OWN), frames)]
    own = (frame for frame in known if not is_library(frame[0]))
    place = next(own, known[0] if known else None)
    return place and Span(place[0], place[1], 1, place[1], 2)
