"""Machines that `--target` can name, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtfc.compiler.cost.device_graph import DeviceGraph, Machine, kinds_of
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.printer import bytes_text
from mtfc.reports.table import aligned, count_text


def machines_json(machines: Mapping[str, Machine]) -> list[dict[str, Any]]:
    """Return a record for each machine; machines with several kinds of devices have a record for each kind in it."""
    return [_machine_json(name, each) for name, each in machines.items()]


def _machine_json(name: str, machine: Machine) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if isinstance(machine, DeviceGraph):
        figures["kinds"] = [
            {"kind": each.name, "devices": each.count, **_figures(own)}
            for each, own in zip(machine.kinds, kinds_of(machine), strict=True)
        ]
    else:
        figures = _figures(machine)
    return {
        "target": name,
        "devices": machine.devices,
        **figures,
        "links": [link.name for link in machine.links],
        "peak_figures": machine.has_peak_figures,
    }


def _figures(hardware: Hardware) -> dict[str, Any]:
    device = hardware.device
    return {
        "flops": {dtype: rate.peak for dtype, rate in device.flops.items()},
        "memory": int(device.memory),
    }


def machines_text(machines: Mapping[str, Machine]) -> str:
    """Return a table with a line for each machine, or for each kind of its devices."""
    rows = [["target", "devices", "FLOP/s", "memory", "links"]]
    for name, machine in machines.items():
        if isinstance(machine, DeviceGraph):
            devices, between = [f"{kind.count} {kind.name}" for kind in machine.kinds], ", "
        else:
            devices, between = ["any number" if machine.devices is None else str(machine.devices)], " in "
        links = between.join(link.name for link in machine.links)
        for number, (own, count) in enumerate(zip(kinds_of(machine), devices, strict=True)):
            fastest, rate = max(own.device.flops.items(), key=lambda item: (item[0] != "f8", item[1].peak))
            speed, memory = f"{count_text(int(rate.peak))} in {fastest}", bytes_text(int(own.device.memory))
            rows.append([name if not number else "", count, speed, memory, links if not number else ""])
    return "\n".join(aligned(rows, indent=""))
