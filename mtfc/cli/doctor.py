"""`mtfc doctor`: show what is installed, and what is missing.

examples:
  mtfc doctor                        versions, devices, and a small model on each backend
  mtfc doctor --format json          the same for a report of a bug

Status 3 if mtfc itself cannot work; a missing extra is no failure.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from mtfc.backends.common.devices import installing
from mtfc.cli.options import FORMAT, Options
from mtfc.driver.errors import ENVIRONMENT, OK
from mtfc.driver.version import installed_version

OPTIONS = FORMAT


PATIENCE = 120.0
"""Seconds after which a process counts as hanging."""

PACKAGE = Path(__file__).parents[1]
MODEL = PACKAGE / "starter" / "model.mtf"
"""The model that each backend runs on four processors."""

BACKENDS = "numpy", "jax"
FOR_DEVELOPERS = "dev"

SHOW_DEVICES = """\
import json, jax
print(json.dumps({"kinds": [device.device_kind for device in jax.devices()], "platform": jax.default_backend()}))
"""


GIB = 2**30
NO_JAX = f"unknown without JAX: {installing('jax')}"


def run(options: Options) -> int:
    """Show which packages and devices are there; return the exit status."""
    record = _examine()
    options.print(lambda: record, lambda: "\n".join(_lines(record)))
    return OK if record["ok"] else ENVIRONMENT


class PackageState(TypedDict):
    """A package that mtfc uses: the installed version, or None; the least one; `state` is "ok", "old" or "missing"."""

    name: str
    installed: str | None
    least: str
    state: str


class Finding(TypedDict):
    """The answer of a process: `ok`, and a sentence. Each device and backend is tried in a process, which may hang or crash."""

    ok: bool
    text: str


def _examine() -> dict[str, Any]:
    """Look at the installation, and run a small model on each backend.

    Return the JSON record; `ok` is False if mtfc itself cannot work. devices: None without JAX. packages: by extra, `base` for
    what every installation needs. memory_bytes: of the machine, or None if unknown.
    """
    packages = _packages()
    has_jax = all(each["state"] != "missing" for each in packages.get("jax", []))
    backends = {name: _tried(name) for name in BACKENDS if name != "jax" or has_jax}
    base_is_whole = all(each["state"] == "ok" for each in packages.get("base", []))
    return {
        "ok": base_is_whole and backends["numpy"]["ok"],
        "version": installed_version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "memory_bytes": _memory_bytes(),
        "packages": packages,
        "devices": _devices() if has_jax else None,
        "backends": backends,
    }


def _packages() -> dict[str, list[PackageState]]:
    """Return the packages that the metadata of mtfc names, by extra; none if mtfc is not installed."""
    found: dict[str, list[PackageState]] = {}
    with suppress(metadata.PackageNotFoundError):
        for line in metadata.requires("mtfc") or []:
            match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*>=\s*([\d.]+)", line)
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
            if match and (extra is None or extra[1] != FOR_DEVELOPERS):
                found.setdefault(extra[1] if extra else "base", []).append(_state(match[1], match[2]))
    return found


def _state(name: str, least: str) -> PackageState:
    """Return the state of a package: `ok`, `old` or `missing`. least: the version that mtfc needs."""
    installed, state = None, "missing"
    with suppress(metadata.PackageNotFoundError):
        installed = metadata.version(name)
        state = "ok" if _numbers(installed) >= _numbers(least) else "old"
    return PackageState(name=name, installed=installed, least=least, state=state)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 2.1.0rc1, without trailing zeros."""
    release = re.sub(r"(\.0*)*$", "", re.sub(r"[^\d.].*", "", version))
    return tuple(map(int, filter(None, release.split("."))))


def _devices() -> Finding:
    """Return the devices that JAX finds in a process of its own, or its error."""
    done = _run("-c", SHOW_DEVICES)
    if not done["ok"]:
        return done
    record = json.loads(done["text"].splitlines()[-1])
    kinds = [f"{record['kinds'].count(kind)} x {kind}" for kind in dict.fromkeys(record["kinds"])]
    virtual = "; a mesh with more devices takes virtual ones" if record["platform"] == "cpu" else ""
    return Finding(ok=True, text=f"{', '.join(kinds)} ({record['platform']}){virtual}")


def _tried(backend: str) -> Finding:
    """Verify a small model under a layout on a backend, and return the result."""
    done = _run(
        "-m", "mtfc", "verify", str(MODEL), "--layout", "both", "--backend", backend, "--color", "never"
    )
    return (
        Finding(ok=True, text="a model split over 4 processors gives the right numbers")
        if done["ok"]
        else done
    )


def _run(*arguments: str) -> Finding:
    """Return the output of Python with these arguments and this mtfc; of a failure, the last line."""
    folders = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=variables
        )
    except subprocess.TimeoutExpired:
        return Finding(ok=False, text=f"no answer for {PATIENCE:.0f} seconds")
    if done.returncode == 0:
        return Finding(ok=True, text=done.stdout)
    said = (done.stderr or done.stdout).strip().splitlines()
    return Finding(ok=False, text=said[-1] if said else f"the process ended with status {done.returncode}")


def _memory_bytes() -> int | None:
    """Return the bytes of main memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return None


# Text


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report: versions, packages by extra, devices, and backends."""
    version = f"mtfc {record['version']}" if record["version"] else "mtfc, not installed"
    memory = f", {record['memory_bytes'] / GIB:.1f} GiB of memory" if record["memory_bytes"] else ""
    yield f"{version}, Python {record['python']}, {record['platform']}, {record['cores']} cores{memory}"
    yield ""
    if not record["packages"]:
        yield "packages   unknown, since mtfc runs without being installed: pip install . in its checkout"
    for extra, packages in record["packages"].items():
        yield f"{extra:10} {', '.join(map(_package, packages))}{_advice(extra, packages)}"
    yield ""
    yield f"{'devices':10} {_finding(record['devices']) if record['devices'] else NO_JAX}"
    for backend, finding in record["backends"].items():
        yield f"{backend:10} {_finding(finding)}"


def _package(each: Mapping[str, Any]) -> str:
    """Return the name of a package with its version, or that it is missing or too old."""
    if each["state"] == "missing":
        return f"{each['name']} missing"
    return f"{each['name']} {each['installed']}{' (too old)' if each['state'] == 'old' else ''}"


def _advice(extra: str, packages: Sequence[Mapping[str, Any]]) -> str:
    """Return how to install an extra, if one of its packages is missing or too old."""
    if all(each["state"] == "ok" for each in packages):
        return ""
    return f": {installing(extra)}"


def _finding(each: Mapping[str, Any]) -> str:
    return str(each["text"]) if each["ok"] else f"FAILED: {each['text']}"
