"""The file of a plan: its mesh and layout, and the check of a layout that was made for other sizes of the arguments."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Forms, Layout, Mesh, Rules, is_form
from mtfc.compiler.search.usual_layouts import all_rules
from mtfc.driver.data.files import parsed_json, read_bytes
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.memory_limit import limit_of, written_limit
from mtfc.driver.loading.selection import LayoutOnMesh

FORMAT = 2
"""The version of the file that `Plan.save` writes."""

LARGEST = 2**24
"""The most bytes of such a file."""


def plan_text(case: LayoutOnMesh, program: Program) -> str:
    """Return the text of the file of a plan."""
    layout, limit = case.layout, case.limit
    limit = None if limit == limit_of(None, {}, layout) else limit
    machine = written_limit(limit.hardware, {}) if limit and limit.hardware else None
    record = {
        "format": FORMAT,
        "program": structure(program),
        "sizes": argument_sizes(program),
        "mesh": case.mesh.sizes,
        "memory": limit.memory if limit else None,
        "machine": machine if isinstance(machine, str) else None,
        "layout": {
            **{name: _record(getattr(layout, name)) for name in ("rules", "params", "optimizer")},
            "values": {path: _record(rules) for path, rules in layout.values},
            "forms": layout.forms.entries,
        },
    }
    return f"{json.dumps(record, indent=2)}\n"


def _record(rules: Rules) -> dict[str, list[str]]:
    return {dim: list(axes) for dim, axes in rules.axes}


def case_of(record: Mapping[str, Any]) -> LayoutOnMesh:
    """Return the layout of a record that `Plan.save` wrote. Raises `KeyError`, `TypeError` and `ValueError`."""
    layout = record["layout"]

    def rules(entries: Mapping[str, Sequence[str]]) -> Rules:
        return Rules(tuple((str(dim), tuple(map(str, axes))) for dim, axes in entries.items()))

    values = tuple((str(path), rules(entries)) for path, entries in layout["values"].items())
    mesh = Mesh("mesh", tuple((str(name), int(size)) for name, size in record["mesh"].items()))
    stored = rules(layout["params"]), rules(layout.get("optimizer", {}))
    forms = Forms.of(layout.get("forms", {}))
    plan = Layout("plan", rules(layout["rules"]), *stored, values, forms=forms)
    memory, machine = record.get("memory"), record.get("machine")
    at = f"@{machine}" if machine and is_form("recompute", machine) else ""
    return LayoutOnMesh(mesh, plan, limit=limit_of(f"{memory}{at}" if memory else None, {}, plan))


def read_plan(path: str) -> tuple[LayoutOnMesh, str, dict[str, int]]:
    """Return the mesh and the layout of a file that `Plan.save` wrote, and its program's structure and sizes.

    Raises `UsageError`.
    """
    try:
        record = parsed_json(read_bytes(path, LARGEST))
        if record["format"] != FORMAT:
            raise UsageError(f"{path} is a plan of another version of mtfc: make it again by a search")
        case = case_of(record)
        for rules in all_rules(case.layout):
            _ = [case.mesh.size(axes) for _, axes in rules.axes]
        return case, str(record["program"]), {str(name): int(size) for name, size in record["sizes"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, json.JSONDecodeError):
        raise UsageError(f"{path} is no plan that this version of mtfc wrote") from None


def structure(program: Program) -> str:
    """Return a number that tells programs with other arguments or dimensions apart, at any sizes."""
    from hashlib import sha256

    arguments = [(a.value.name, str(a.value.type)) for a in program.function("forward").arguments]
    return sha256(repr(arguments).encode()).hexdigest()[:16]


def argument_sizes(program: Program) -> dict[str, int]:
    """Return the size of each dimension of the arguments."""
    return {d.name: d.size for a in program.function("forward").arguments for d in a.value.type.dims}


def check_sizes(case: LayoutOnMesh, before: Mapping[str, int], program: Program, what: str) -> str:
    """Return a sentence on what was checked of a layout that was made for other sizes of a program's dimensions.

    Raises `UsageError` if a dimension that the layout splits does not divide evenly.
    """
    layout, now = case.layout, {name: dim.size for name, dim in program.dims.items()}
    for dim, axes in (each for rules in all_rules(layout) for each in rules.axes):
        parts = case.mesh.size(axes)
        if now.get(dim, 0) % parts:
            raise UsageError(
                f"{what} splits `{dim}` over {', '.join(axes)} in {parts} parts, and its size is {now[dim]} here: make it a "
                f"multiple of {parts}, or search a plan for this size"
            )
    sizes = [
        f"{name} {size} and not {before[name]}"
        for name, size in argument_sizes(program).items()
        if before.get(name, size) != size
    ]
    return (
        f"{what} is used for {', '.join(sizes)}: every dimension that it splits divides evenly; its memory and time are not "
        "checked"
    )
