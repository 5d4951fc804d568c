"""Compile a step for a target, and put what the compiler makes of it beside the prediction.

A child process compiles our own program, so that the devices, the flags and the end of the compiler are the child's own.
`plan.apply` is a function of the user's process, and is compiled there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs

from mtfc.backends.common.devices import Unavailable, devices, import_jax
from mtfc.backends.common.module import parts
from mtfc.backends.hlo import CYCLES_OF, FLOPS, UNKNOWN, WIRE, Frames, Item, work
from mtfc.backends.jax.tpu_topologies import CLOCKS, CORES, smallest, text, topology
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.activity import doing
from mtfc.compiler.cost.device_models import expected_memory
from mtfc.compiler.cost.effects.memory import memory_of, padded
from mtfc.compiler.cost.hardware import Device, Hardware, Rate
from mtfc.compiler.cost.sizes import Numbers, bytes_of, whole
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.volumes import charges
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Function, Program, source_file, walk
from mtfc.driver.errors import FailedRequest, UsageError
from mtfc.driver.verification.checks import Check, Remade, results
from mtfc.frontend.hardware_targets import find_hardware, library_machines
from mtfc.reports.inspection import Inspection, StepFigures, Transfer

XLA_FOR_CPUS = Device(
    flops={"f32": Rate.constant(1e11), "bf16": Rate.constant(5e10)},
    memory=1e12,
    bandwidth=Rate.constant(1e10),
    ops={"reordered": 1e9},
)
"""A device with the facts that change the memory of programs for CPUs; its rates say nothing."""

MOST_DEVICES = 512
"""The most virtual devices that programs are compiled for."""

HOURS = 4 * 3600.0

EXPECTED = "expected cpu, cpu:8, gpu, gpu:8, a machine such as tpu_v5e or h100, or a topology of TPUs such as v5e:4x4"

TARGET = re.compile(
    r"(?:tpu_)?(?P<tpu>v\d+\w?)(?::(?P<shape>\d+(?:x\d+)+))?|(?P<other>\w+)(?::(?P<count>\d+))?"
)


@attrs.frozen
class CompileTarget:
    """The devices to compile for. generation: that of TPUs. shape: the topology, such as `4x4`. count: the number of devices.

    machine: the machine of the library that the devices are.
    """

    name: str
    platform: str
    generation: str = ""
    shape: str | None = None
    count: int | None = None
    machine: str | None = None

    @classmethod
    def of(cls, name: str) -> CompileTarget:
        """Return the target of a name. Raises `UsageError`."""
        match = TARGET.fullmatch(name.strip())
        if match is None:
            raise UsageError(f"--target {name}: {EXPECTED}")
        found, machines, other = match.groupdict(), library_machines(), match["other"]
        machine = f"tpu_{found['tpu']}"
        if found["tpu"] and (machine in machines or found["tpu"] in (*CLOCKS, *CORES)):
            known = machine if machine in machines else None
            return cls(name, "tpu", found["tpu"], found["shape"], machine=known)
        if other not in ("cpu", "gpu", *machines) or found["count"] == "0":
            raise UsageError(f"--target {name}: {EXPECTED}")
        count = int(found["count"]) if found["count"] else None
        known = other if other in machines else None
        return cls(name, "cpu" if other == "cpu" else "gpu", count=count, machine=known)

    @property
    def hardware(self) -> Hardware | None:
        """The machine whose prediction stands beside the compiler's figures."""
        return find_hardware(self.machine, {}) if self.machine else None

    @property
    def device(self) -> Device | None:
        hardware = self.hardware
        return hardware.device if hardware else XLA_FOR_CPUS if self.platform == "cpu" else None

    def named(self, count: int) -> str:
        """Return the target for a mesh of so many devices. Raises `UsageError` if the mesh does not fit, or is too large."""
        most = MOST_DEVICES if self.count is None and self.platform == "cpu" else self.count
        if most is not None and count > most:
            raise UsageError(
                f"--target {self.name} has {most} devices, and the mesh {count}: choose another `--mesh`"
            )
        if self.platform != "tpu":
            return f"{self.machine or self.platform}:{self.count or count}"
        return f"{self.generation}:{self.shape}" if self.shape else smallest(self.generation, count)

    def devices(self, count: int) -> list[Any]:
        """Return devices of JAX to compile for. Raises `Unavailable`."""
        if self.platform == "tpu":
            found = topology(self.named(count))
            if len(found) < count:
                raise Unavailable(
                    f"{self.named(count)} has {len(found)} devices, and the mesh {count}: choose another mesh"
                )
            return found
        if self.platform == "cpu":
            return devices(count)
        return self._gpus(count)

    def _gpus(self, count: int) -> list[Any]:
        try:
            found = list(import_jax().devices("gpu"))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise Unavailable(
                f"--target {self.name}: JAX finds no GPU here ({reason}): take cpu:{count}, or TPUs"
            ) from None
        kind = found[0].device_kind
        if self.machine is not None and self.machine.upper() not in kind.upper():
            raise Unavailable(f"--target {self.name}: the GPU of this machine is {kind}: take gpu")
        if len(found) < count:
            raise Unavailable(
                f"the mesh has {count} devices, and this machine {len(found)} of {kind}: choose a smaller mesh"
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


def compiled(lowered: Any, platform: str) -> XlaProgram:
    """Compile a `jax.stages.Lowered`. A program that the compiler refuses has a reason."""
    from importlib.metadata import version

    jax, start = import_jax(), perf_counter()
    name = f"libtpu {version('libtpu')}" if platform == "tpu" else f"XLA of jaxlib {version('jaxlib')}"
    try:
        done = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return XlaProgram(compiler=name, failed=" ".join(str(error).splitlines()[:3]))
    seconds, said = perf_counter() - start, done.memory_analysis()
    kept = said.output_size_in_bytes - said.alias_size_in_bytes
    memory = {
        "arguments": said.argument_size_in_bytes,
        "outputs": kept,
        "temporaries": said.temp_size_in_bytes,
        "total": said.argument_size_in_bytes + kept + said.temp_size_in_bytes,
        "peak": said.peak_memory_in_bytes,
    }
    return XlaProgram(text(done), {name: int(size) for name, size in memory.items()}, seconds, name)


def compilations(program: Program, function: str, target: CompileTarget) -> Sequence[Check]:
    """Return the compilation of a function of a lowered program, for a process of its own."""
    count = program.placed_on.devices

    def run() -> Iterator[XlaProgram]:
        from mtfc.backends.jax.runtime import lowered

        try:
            found = lowered(program, function, target.devices(count))
        except AssertionError:  # JAX's own, for a mesh that is no part of a torus
            raise Unavailable(
                f"the mesh of {count} devices does not lie on {target.named(count)}: choose another"
            ) from None
        yield compiled(found, target.platform)

    return [Check(f"compiling for {target.named(count)}", run, XlaProgram(), HOURS)]


def compiled_program(program: Program, function: str, target: CompileTarget) -> XlaProgram:
    """Compile a function of a lowered program in a child process. Raises `Unavailable` and `FailedRequest`."""
    given = program, function, target
    remade = Remade("mtfc.driver.compiled_step:compilations", given)
    platforms = {} if target.platform == "gpu" else {"JAX_PLATFORMS": "cpu"}
    (found,) = results(compilations(*given), remade, None, platforms)
    return checked(found, target)


def checked(found: XlaProgram, target: CompileTarget) -> XlaProgram:
    """Return a compiled program. Raises `FailedRequest` if the compiler has refused it."""
    if found.failed is not None:
        raise FailedRequest(f"{found.compiler} does not compile this for {target.name}: {found.failed}")
    return found


# Figures


def predicted(program: Program, name: str, target: CompileTarget) -> StepFigures:
    """Return the prediction for a function of a lowered program."""
    function, mesh = program.function(name), program.placed_on
    device, hardware = target.device, target.hardware
    scale = padded(function, mesh, device) if device else Numbers(mesh)
    memory = expected_memory(function, mesh, device) if device else memory_of(function, mesh, scale)
    outputs = [each.value.type for each in function.outputs if each.updates is None]
    arguments, kept = (
        whole(sum((bytes_of(type, scale) for type in types), start=0))
        for types in ([each.value.type for each in function.arguments], outputs)
    )
    total = whole(memory.total)
    found = [*charges(function, Numbers(mesh))]
    seconds = step_time(function, mesh, hardware).lines if hardware and target.generation in CLOCKS else {}
    clock = CLOCKS.get(target.generation, 0.0)
    return StepFigures(
        {
            "arguments": arguments,
            "outputs": kept,
            "temporaries": max(0, total - arguments - kept),
            "total": total,
        },
        tuple((each.span, whole(each.flops)) for each in found if each.flops),
        tuple((span, round(each.compute * clock)) for span, each in seconds.items()),
        tuple(
            (each.span, _predicted_transfer(each.kind, mesh.devices, mesh.size(each.axes), each.sent))
            for each in found
            if each.kind is not None
        ),
    )


def _predicted_transfer(kind: str, devices: int, members: int, sent: Any) -> Transfer:
    return Transfer(
        kind, devices // members, members, None, sent.count, whole(sent.bytes), float(sent.wire_bytes)
    )


def figures(found: XlaProgram, place: Callable[[Frames], Span | None]) -> StepFigures:
    """Return the figures of a compiled program. place: the user's line of a call stack."""
    amounts = [(item, place(frames), each) for item, frames, each in work(found.text)]
    by_kind = {
        kind: tuple((span, int(each["count"])) for item, span, each in amounts if item.kind == kind)
        for kind in (FLOPS, CYCLES_OF)
    }
    transfers = tuple(
        (span, _transfer(item, each)) for item, span, each in amounts if item.kind not in by_kind
    )
    unknown = any(UNKNOWN in each for _, _, each in amounts)
    return StepFigures(found.memory, by_kind[FLOPS], by_kind[CYCLES_OF], transfers, unknown)


def _transfer(item: Item, amounts: Mapping[str, float]) -> Transfer:
    count, size = (int(amounts.get(name, 0)) for name in ("count", "bytes_per_device"))
    groups = item.kind, item.groups, item.members, item.is_asynchronous
    return Transfer(*groups, count, size, amounts.get(WIRE, 0.0))


def generated_places(program: Program, function: Function) -> Callable[[Frames], Span | None]:
    """Return what gives the place of an equation from the call stack of its statement in the generated module.

    A comment with the line stands above each statement, at the same indentation or at that of a block around the statement.
    """
    own = source_file([function])
    spans = {f"# {eqn.span.seen_from(own)}": eqn.span for eqn in walk(function.body) if eqn.span is not None}
    texts = {file: part.splitlines() for file, part in parts(BACKENDS["jax"].generate(program))}

    def above(lines: Sequence[str], number: int) -> Span | None:
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


# Inspection


def inspected(program: Program, target: CompileTarget) -> Inspection:
    """Compile the step of a lowered program, or its forward pass if it does not train.

    Raises `UsageError`, `Unavailable` and `FailedRequest`.
    """
    name = "step" if program.has_function("step") else "forward"
    function, count = program.function(name), program.placed_on.devices
    full_name = target.named(count)
    with doing(f"compiling for {full_name}"):
        found = compiled_program(program, name, target)
    with doing("reading the compiled program"):
        done = figures(found, generated_places(program, function))
        return Inspection(
            program.name,
            "training step" if name == "step" else "forward pass",
            source_file([function]),
            program.layout.name if program.layout else "",
            program.placed_on,
            full_name,
            found.compiler,
            found.seconds,
            predicted(program, name, target),
            done,
        )
