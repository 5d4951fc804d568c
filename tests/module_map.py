"""`make map`: print each module of mtfc with the first sentence of its docstring, folder by folder."""

import ast
import re
from itertools import groupby

from tests.documents import ROOT


def main() -> None:
    paths = (path for path in (ROOT / "mtfc").rglob("*.py") if path.parent.name != "starter")
    for folder, found in groupby(
        sorted(paths, key=lambda path: (path.parent, path.name)), lambda path: path.parent
    ):
        print(f"\n{folder.relative_to(ROOT)}/")
        for path in found:
            text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
            if summary := re.match(r"(.*?)\.(?:\s|$)", text):
                print(f"  {path.name:28} {summary[1]}")


if __name__ == "__main__":
    main()
