"""`mtfc simulate`: what a step takes on a machine, and where the time goes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mtfc.cli.options import add_format, add_selection
from mtfc.driver.data.files import check_apart, check_writable, report_to, write_text
from mtfc.driver.errors import OK, UsageError
from mtfc.driver.selection import select
from mtfc.driver.sources import Sources
from mtfc.driver.target import check_room, file_of, target_of

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.compiler.ir.types import Mesh
    from mtfc.driver.selection import Selection

EXAMPLES = """\
examples:
  mtfc simulate model.mtf --target h100                 a step on as many H100 as the first layout's mesh has processors
  mtfc simulate model.mtf --target tpu_v4 --layout hybrid --trace step.json
  mtfc simulate found.mtf --target p100_cluster --layout found          a placement, as mtfc search --space soap writes it
  mtfc simulate model.mtf --target mine.mtf             a machine of one's own, for example as mtfc calibrate wrote it
  mtfc simulate --target list                           the machines that there are
"""

LIST = "list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="a .mtf file; - is standard input; needless for --target list"
    )
    parser.add_argument(
        "--target",
        metavar="HW",
        required=True,
        help="hardware of the file, of the library, or of a .mtf file; `list` shows the names",
    )
    parser.add_argument("--trace", metavar="OUT.json", help="write a timeline for Perfetto or Chrome")
    parser.add_argument(
        "--place",
        metavar="AXES",
        help="the mesh axes from the innermost link outwards, such as cols,rows (default: the last axis first)",
    )
    add_selection(parser, "the first", or_placement=True)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    check_writable(options.trace)
    check_apart({"--trace": options.trace}, {"FILE": options.file, "--target": file_of(options.target)})
    if options.file is None and options.target != LIST:
        raise UsageError("simulate takes a FILE; only --target list goes without one")
    if options.target == LIST:
        declared = {} if options.file is None else select(options, sources, or_placement=True).hardware
        _show_machines(declared, options.format)
        return OK
    selection = select(options, sources, or_placement=True)
    hardware = target_of(options.target, selection.hardware, sources)
    (_layout if selection.cases else _placement)(options, selection, hardware, sources)
    return OK


def _layout(options: argparse.Namespace, selection: Selection, hardware: Hardware, sources: Sources) -> None:
    import attrs

    from mtfc.compiler.cost.memory import memory_on
    from mtfc.compiler.cost.step_time import step_time
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.frontend.semantics.names import standard_library
    from mtfc.reports.step_json import step_json, step_trace
    from mtfc.reports.step_report import step_report

    (case,) = selection.cases
    check_room(hardware, case.mesh, options.target)
    order = _order(options.place, case.mesh)
    program = case.lower(selection.program)
    cost = layout_cost(program)
    function = program.function("step" if cost.trains else "forward")
    cost = attrs.evolve(cost, memory=memory_on(function, case.mesh, hardware.device))
    step = step_time(function, case.mesh, hardware, order)
    if options.trace is not None:
        title = f"{cost.model}, layout {cost.layout.name} on {hardware.name}"
        write_text(options.trace, json.dumps(step_trace(step, title)) + "\n")
    if options.format == "json":
        print(json.dumps(step_json(cost, step, hardware), indent=2), file=report_to(options.trace))
    else:
        texts = sources.texts | standard_library.texts({span.file for span in step.lines if span})
        print(step_report(cost, step, hardware, texts), end="", file=report_to(options.trace))


def _placement(
    options: argparse.Namespace, selection: Selection, hardware: Hardware, sources: Sources
) -> None:
    from mtfc.driver.simulate_soap import record, report, simulated
    from mtfc.frontend.semantics.names import standard_library

    (placement,) = selection.placements
    if options.place is not None:
        raise UsageError(f"`{placement.name}` is a placement, which says where everything is: no --place")
    found = simulated(placement, selection.program, hardware, options.target)
    if options.trace is not None:
        write_text(options.trace, json.dumps(found.trace()) + "\n")
    if options.format == "json":
        print(json.dumps(record(found), indent=2), file=report_to(options.trace))
    else:
        texts = sources.texts | standard_library.texts({span.file for span in found.step.lines if span})
        print(report(found, texts), end="", file=report_to(options.trace))


def _order(text: str | None, mesh: Mesh) -> tuple[str, ...]:
    """All axes of the mesh, as `--place` has them. Raises `UsageError`."""
    if text is None:
        return ()
    axes = tuple(axis.strip() for axis in text.split(","))
    if sorted(axes) != sorted(mesh.names):
        raise UsageError(f"--place takes the axes of the mesh, each once: {','.join(mesh.names[::-1])}")
    return axes


def _show_machines(declared: Mapping[str, Hardware], format: str) -> None:
    """Print what `--target` can name: the machines of the file, and those of the library."""
    from mtfc.frontend.hardware_targets import find_hardware, library_machines

    names = dict.fromkeys((*declared, *library_machines()))
    machines = {name: find_hardware(name, declared) for name in names}
    if format == "json":
        print(json.dumps([_machine_json(name, each) for name, each in machines.items()], indent=2))
    else:
        print(_machines(machines), end="")


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


def _machines(machines: Mapping[str, Hardware]) -> str:
    """Return a table with a line for each machine."""
    from mtfc.compiler.ir.printer import bytes_text
    from mtfc.reports.table import aligned, count_text

    rows = [["target", "devices", "FLOP/s", "memory", "links"]]
    for name, hardware in machines.items():
        fastest, rate = max(hardware.device.flops.items(), key=lambda item: item[1].peak)
        devices = "any number" if hardware.devices is None else str(hardware.devices)
        links = " in ".join(link.name for link in hardware.links)
        speed = f"{count_text(int(rate.peak))} in {fastest}"
        rows.append([name, devices, speed, bytes_text(int(hardware.device.memory)), links])
    return "\n".join(aligned(rows, indent="")) + "\n"
