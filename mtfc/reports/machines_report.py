"""Machines that `--target` can name, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.printer import bytes_text
from mtfc.reports.table import aligned, count_text


def machines_json(machines: Mapping[str, Hardware]) -> list[dict[str, Any]]:
    """Return a record for each machine."""
    return [_machine_json(name, each) for name, each in machines.items()]


def _machine_json(name: str, hardware: Hardware) -> dict[str, Any]:
    device = hardware.device
    return {
        "target": name,
        "devices": hardware.devices,
        "flops": {dtype: rate.peak for dtype, rate in device.flops.items()},
        "memory": int(device.memory),
        "links": [link.name for link in hardware.links],
        "peak_figures": hardware.has_peak_figures,
    }


def machines_text(machines: Mapping[str, Hardware]) -> str:
    """Return a table with a line for each machine."""
    rows = [["target", "devices", "FLOP/s", "memory", "links"]]
    for name, hardware in machines.items():
        fastest, rate = max(hardware.device.flops.items(), key=lambda item: item[1].peak)
        devices = "any number" if hardware.devices is None else str(hardware.devices)
        links = " in ".join(link.name for link in hardware.links)
        speed = f"{count_text(int(rate.peak))} in {fastest}"
        rows.append([name, devices, speed, bytes_text(int(hardware.device.memory)), links])
    return "\n".join(aligned(rows, indent="")) + "\n"
