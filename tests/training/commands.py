"""Runs of `mtfc train` in a process of its own, with XLA as users have it, and the figures that they write."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def python(*arguments: str | Path, folder: Path = ROOT) -> str:
    """Run Python in a folder, and return its standard output. Raises an error with its messages if it fails."""
    slow = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    paths = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    env = {name: value for name, value in os.environ.items() if name not in slow} | paths
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mtfc(*arguments: str, folder: Path = ROOT) -> str:
    """Run the command in a folder, and return its standard output."""
    return python("-m", "mtfc", *arguments, folder=folder)


def imported(path: Path) -> Any:
    """Return a file of Python as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(log: Path) -> list[dict[str, Any]]:
    """Return the figures of each step."""
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def options(option: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield an option for each name and value: `--dim batch=8`."""
    for name, value in values.items():
        yield from (option, f"{name}={value}")
