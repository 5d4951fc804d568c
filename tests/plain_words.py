"""Refuse docstrings that open with What, Whether, How, Of, That or Where: `make lint` runs this.

`python -m tests.plain_words FOLDER ...` prints the place of each such docstring, and exits with 1 where there is one. A string
below an assignment counts as its docstring.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

REFUSED = {"What", "Whether", "How", "Of", "That", "Where"}


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings that stand alone as statements."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            yield node.value


def opening(text: str) -> str:
    """Return the first word of a docstring, after the name of a pass and its colon if it has one."""
    words = text.split()
    if len(words) > 1 and words[0].endswith(":"):
        return words[1].capitalize()
    return words[0].rstrip(",.") if words else ""


def refused(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and first line of each docstring to rewrite."""
    for string in docstrings(ast.parse(path.read_text("utf-8"))):
        text = str(string.value)
        if opening(text) in REFUSED:
            yield string.lineno, text.strip().splitlines()[0]


def main(folders: Sequence[str]) -> int:
    found = 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            for line, text in refused(path):
                print(f"{path}:{line}: {text}")
                found += 1
    if found:
        print(f"{found} docstrings open with {', '.join(sorted(REFUSED))}: open with a verb or the thing")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
