"""The findings of `mtfc doctor` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

GIB = 2**30
NO_JAX = "unknown without JAX: pip install 'mtfc[jax]'"


def doctor_text(record: Mapping[str, Any]) -> str:
    """Return a paragraph about the machine, and a line for each extra, the devices and each backend."""
    return "\n".join(_lines(record))


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    version = f"mtfc {record['version']}" if record["version"] else "mtfc, not installed"
    memory = f", {record['memory_bytes'] / GIB:.1f} GiB of memory" if record["memory_bytes"] else ""
    yield f"{version}, Python {record['python']}, {record['platform']}, {record['cores']} cores{memory}"
    yield ""
    if not record["packages"]:
        yield "packages   unknown, since mtfc runs without being installed: pip install mtfc"
    for extra, packages in record["packages"].items():
        yield f"{extra:10} {', '.join(map(_package, packages))}{_advice(extra, packages)}"
    yield ""
    yield f"{'devices':10} {_finding(record['devices']) if record['devices'] else NO_JAX}"
    for backend, finding in record["backends"].items():
        yield f"{backend:10} {_finding(finding)}"


def _package(each: Mapping[str, Any]) -> str:
    if each["state"] == "missing":
        return f"{each['name']} missing"
    return f"{each['name']} {each['installed']}{' (too old)' if each['state'] == 'old' else ''}"


def _advice(extra: str, packages: Sequence[Mapping[str, Any]]) -> str:
    if all(each["state"] == "ok" for each in packages):
        return ""
    name = "mtfc" if extra == "base" else f"'mtfc[{extra}]'"
    return f": pip install --upgrade {name}"


def _finding(each: Mapping[str, Any]) -> str:
    return str(each["text"]) if each["ok"] else f"FAILED: {each['text']}"
