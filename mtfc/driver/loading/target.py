"""The machine that `--target` names, and a check that a mesh fits on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.loading.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware, Machine
    from mtfc.compiler.ir.types import Mesh


def target_of(target: str, declared: Mapping[str, Machine], sources: Sources) -> Hardware:
    """Return a machine for layouts: one that the file declares, one of the library, or the one in a .mtf file; or `MACHINE:PART`.

    Raises `CompileError`, and `UsageError` if a file cannot be read.
    """
    from mtfc.frontend.hardware_targets import part_of, split_target

    return part_of(_machine(target, declared, sources), split_target(target)[1], target)


def machine_of(target: str, declared: Mapping[str, Machine], sources: Sources) -> Machine:
    """Return a machine for placements, of any shape, or a part of it. Raises like `target_of`."""
    from mtfc.frontend.hardware_targets import part_of, split_target

    machine, part = _machine(target, declared, sources), split_target(target)[1]
    return machine if part is None else part_of(machine, part, target)


def _machine(target: str, declared: Mapping[str, Machine], sources: Sources) -> Machine:
    """Return the machine of a target as a whole."""
    from mtfc.frontend.hardware_targets import find_machine, is_path, machine_in_file, split_target

    sources.texts["<--target>"] = target
    name, _ = split_target(target)
    if not is_path(target):
        return find_machine(name, declared)
    file = sources.read(name)
    return machine_in_file(sources.texts[file], file)


def file_of(target: str | None) -> str | None:
    """Return the file that a target names, or None for a machine's name."""
    from mtfc.frontend.hardware_targets import is_path, split_target

    return split_target(target)[0] if target is not None and is_path(target) else None


def has_room(hardware: Hardware, mesh: Mesh) -> bool:
    """Return True if a mesh fits on the hardware."""
    try:
        check_room(hardware, mesh, hardware.name)
    except CompileError:
        return False
    return True


def check_room(hardware: Hardware, mesh: Mesh, target: str, needing: str | None = None) -> None:
    """Raise `CompileError` (E316) unless a mesh fits on the hardware.

    The hardware needs a device for each processor, and each link needs room for its part of the mesh: 5 x 3 processors do not
    fit on 4 nodes of 4 devices. needing: the start of a message about several meshes together, which need devices, and no links
    for the whole.
    """
    from mtfc.compiler.cost.topology import Topology
    from mtfc.frontend.hardware_targets import raise_no_room

    devices = hardware.devices
    if devices is not None and mesh.devices > devices:
        has = f"`{hardware.name}` has {devices} device{'s'[: devices - 1]}"
        message = f"{needing or f'mesh `{mesh.name}` has'} {mesh.devices} processors, and {has}"
        help = "choose larger hardware" if needing else "choose a smaller mesh with `--mesh`"
        raise_no_room(target, message, help)
    if needing:
        return
    overfull = Topology.of(mesh, hardware).overfull()
    if overfull is not None:
        shape = " x ".join(str(size) for _, size in mesh.axes)
        message = f"mesh `{mesh.name}` of {shape} processors does not lie on the {overfull.size} that `{overfull.name}` connects"
        raise_no_room(target, message, "choose axes whose sizes divide those of the links with `--mesh`")
