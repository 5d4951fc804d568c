"""Find the hardware that `--target` names: in the file, in the library, or in a file of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from mtfc.compiler.cost.hardware import DeviceGraph, Hardware, Machine
from mtfc.compiler.diagnostics import CompileError, Diagnostics, Span, did_you_mean, failure
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.names.standard_library import HARDWARE, SHOWN, library_machines
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

OPTION = "<--target>"


def is_path(target: str) -> bool:
    """Return True if a target is the path of a file, and not a name."""
    return Path(split_target(target)[0]).suffix == ".mtf"


def split_target(target: str) -> tuple[str, str | None]:
    """Return the machine or the file of a target, and the part of the machine: `box:gpu`, `box.mtf:gpu`."""
    machine, colon, part = target.strip().rpartition(":")
    return (machine, part) if colon and "/" not in part and "\\" not in part else (target.strip(), None)


def find_hardware(target: str, declared: Mapping[str, Machine]) -> Hardware:
    """Return equal devices with nested links: a machine, or a part of one. Raises `CompileError` (E313, E340)."""
    name, part = split_target(target)
    return part_of(find_machine(name, declared), part, target)


def find_machine(name: str, declared: Mapping[str, Machine]) -> Machine:
    """Return the machine of this name, declared in the file or else in the library. Raises `CompileError` (E313)."""
    if name in declared:
        return declared[name]
    if name in library_machines():
        return machine_in_file((HARDWARE / f"{name}.mtf").read_text("utf-8"), f"{SHOWN}hardware/{name}.mtf")
    known = [*declared, *library_machines()]
    every = f"one of: {', '.join(known)}; or a file that declares one: `--target box.mtf`"
    begun = [f"`{each}`" for each in known if each.startswith(name.casefold())]
    help = f"these begin so: {', '.join(begun)}" if len(begun) > 1 else did_you_mean(name, known, every)
    raise failure("E313", f"unknown hardware `{name}`", Span.of_line(OPTION, name), help)


def part_of(machine: Machine, part: str | None, target: str) -> Hardware:
    """Return a machine, or a part of it, as equal devices with nested links. Raises `CompileError` (E313, E340)."""
    if isinstance(machine, DeviceGraph):
        return _uniform(machine, part, target)
    if part is not None:
        message = f"`{machine.name}` has one kind of device and nested links, and no part `{part}`"
        raise failure("E313", message, Span.of_line(OPTION, target), "leave the part out")
    return machine


def _uniform(graph: DeviceGraph, part: str | None, target: str) -> Hardware:
    """Return a uniform part of a device graph, or all of it. Raises `CompileError` (E313, E340)."""
    from mtfc.compiler.cost.tables.device_links import UniformParts

    parts, scope, name = UniformParts.of(graph), Scope(Diagnostics()), split_target(target)[0]
    found = parts.hardware(part)
    if found is not None:
        return found
    sizes, known = parts.sizes(), dict(graph.parts())
    listed = f"uniform parts: {', '.join(f'`{each}` ({size})' for each, size in sizes.items())}"
    if part is not None and part not in known:
        message = f"`{graph.name}` has no part `{part}`"
        scope.unknown("E313", message, ast.Name(Span.of_line(OPTION, target), part), known, listed)
        raise CompileError(scope.diagnostics)
    what = f"the part `{part}` of `{graph.name}`" if part is not None else f"`{graph.name}`"
    why = (
        "links that do not nest"
        if part is not None or len(graph.kinds) == 1
        else f"devices of several kinds ({graph.summary})"
    )
    message = f"a layout needs equal devices with nested links, and {what} has {why}"
    help = f"take a placement, or a uniform part of the machine: `{name}:{next(iter(sizes))}`; {listed}"
    raise failure("E340", message, Span.of_line(OPTION, target), help)


def machine_in_file(text: str, file: str) -> Machine:
    """Return the only hardware that a file declares. Raises `CompileError` (E313)."""
    diagnostics = Diagnostics()
    module = elaborate(parse(text, file, diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    if len(module.hardware) != 1:
        several = f"several hardware: {', '.join(module.hardware)}"
        message = f"this file declares {several if module.hardware else 'no hardware'}"
        help = "a file for `--target` declares one, such as `mtfc calibrate` writes"
        Scope(diagnostics).error("E313", message, Span(file, 1, 1, 1, 1), help=help)
        diagnostics.raise_if_errors()
    (hardware,) = module.hardware.values()
    return hardware


def raise_no_room(target: str, message: str, help: str) -> NoReturn:
    """Raise `CompileError` (E316) for a mesh that does not fit on the hardware."""
    raise failure("E316", message, Span.of_line(OPTION, target), help)
