"""The functions that generated modules are made of.

They stand in `prelude.py` and other files here as source that is checked and tested, and their text is copied.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path


def prelude(text: str, files: tuple[str, ...], public: Iterable[str] = ()) -> list[str]:
    """Return the source of the functions that a module needs, directly or not, in the order of the files; `public` always."""
    known, calls = definitions(files), _calls(files)
    needed: set[str] = set()
    found = {*public, *_called(text)} & known.keys()
    while found:
        needed |= found
        found = {name for one in found for name in calls[one]} - needed
    return [source for name, source in known.items() if name in needed]


def _called(text: str) -> set[str]:
    return set(re.findall(r"(?<![.\w])(\w+)\(", text))


@cache
def _calls(files: tuple[str, ...]) -> Mapping[str, set[str]]:
    """Return name -> names of the files that the definition calls."""
    known = definitions(files)
    return {name: _called(source) & known.keys() for name, source in known.items()}


@cache
def definitions(files: tuple[str, ...]) -> Mapping[str, str]:
    """Return name -> source of every function and table in the files."""
    found = {}
    for file in files:
        text = (Path(__file__).parents[1] / file).read_text("utf-8")
        lines = text.encode().splitlines()
        for node in ast.parse(text).body:
            source = _source(lines, node)
            if isinstance(node, ast.FunctionDef):
                found[node.name] = source
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = source
    return found


def _source(lines: list[bytes], node: ast.stmt) -> str:
    """Return the text of a statement with its decorators.

    `ast.get_source_segment` splits the whole file into lines for each statement.
    """
    assert node.end_lineno is not None
    start = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
    *inner, last = lines[start - 1 : node.end_lineno]
    return b"\n".join([*inner, last[: node.end_col_offset], b""]).decode()
