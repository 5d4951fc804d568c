"""Functions that generated modules are made of: source that stands in files of ours, checked like any other, and is copied."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path


def prelude(text: str, files: tuple[str, ...], public: Iterable[str] = ()) -> list[str]:
    """Source of what a module with this text needs of the files, directly or not, in their order; `public` it always needs."""
    known = definitions(files)
    needed: set[str] = set()
    found = {*public, *_called(text)} & known.keys()
    while found:
        needed |= found
        found = {name for one in found for name in _called(known[one])} & known.keys() - needed
    return [source for name, source in known.items() if name in needed]


def _called(text: str) -> set[str]:
    return set(re.findall(r"(?<![.\w])(\w+)\(", text))


@cache
def definitions(files: tuple[str, ...]) -> Mapping[str, str]:
    """Name -> source of every function of the files, and of every table."""
    found = {}
    for file in files:
        text = (Path(__file__).parents[1] / file).read_text("utf-8")
        for node in ast.parse(text).body:
            source = f"{ast.get_source_segment(text, node)}\n"
            if isinstance(node, ast.FunctionDef):
                found[node.name] = source
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = source
    return found
