"""Examine an installation for `mtfc doctor`: versions, devices, what is missing, and whether a small model runs.

Devices and backends are tried in processes of their own: a driver that hangs or crashes is a finding too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from mtfc.driver.version import installed_version

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


class PackageState(TypedDict):
    """A package that mtfc uses: the installed version, or None; the least one; `state` is "ok", "old" or "missing"."""

    name: str
    installed: str | None
    least: str
    state: str


class Finding(TypedDict):
    """The answer of a process: `ok`, and a sentence."""

    ok: bool
    text: str


class Doctor(TypedDict):
    """The record of `mtfc doctor --format json`; `ok` is False if mtfc itself cannot work.

    devices: None without JAX. packages: by extra, `base` for what every installation needs. memory_bytes: of the machine, or
    None if unknown.
    """

    ok: bool
    version: str | None
    python: str
    platform: str
    cores: int
    memory_bytes: int | None
    packages: dict[str, list[PackageState]]
    devices: Finding | None
    backends: dict[str, Finding]


def examine() -> Doctor:
    """Look at the installation, and run a small model on each backend."""
    packages = _packages()
    has_jax = all(each["state"] != "missing" for each in packages.get("jax", []))
    backends = {name: _tried(name) for name in BACKENDS if name != "jax" or has_jax}
    base_is_whole = all(each["state"] == "ok" for each in packages.get("base", []))
    return Doctor(
        ok=base_is_whole and backends["numpy"]["ok"],
        version=installed_version(),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        packages=packages,
        devices=_devices() if has_jax else None,
        backends=backends,
    )


def _packages() -> dict[str, list[PackageState]]:
    """Return the packages that the metadata of mtfc names, by extra; none if mtfc is not installed."""
    found: dict[str, list[PackageState]] = {}
    for extra, name, least in _requirements():
        if extra != FOR_DEVELOPERS:
            found.setdefault(extra, []).append(_state(name, least))
    return found


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Yield the extra, the name and the least version of each package that mtfc uses."""
    try:
        lines = metadata.requires("mtfc") or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*>=\s*([\d.]+)", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if match:
            yield extra[1] if extra else "base", match[1], match[2]


def _state(name: str, least: str) -> PackageState:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return PackageState(name=name, installed=None, least=least, state="missing")
    state = "ok" if _numbers(installed) >= _numbers(least) else "old"
    return PackageState(name=name, installed=installed, least=least, state=state)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 2.1.0rc1, without trailing zeros."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _devices() -> Finding:
    done = _run("-c", SHOW_DEVICES)
    if not done["ok"]:
        return done
    record = json.loads(done["text"].splitlines()[-1])
    kinds = [f"{record['kinds'].count(kind)} x {kind}" for kind in dict.fromkeys(record["kinds"])]
    virtual = "; a mesh with more devices takes virtual ones" if record["platform"] == "cpu" else ""
    return Finding(ok=True, text=f"{', '.join(kinds)} ({record['platform']}){virtual}")


def _tried(backend: str) -> Finding:
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
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return None
