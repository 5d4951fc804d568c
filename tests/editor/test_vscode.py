"""The VS Code extension's files agree with the language and with the server. `make vscode` builds and tests the extension."""

import json
import re
from pathlib import Path
from typing import Any

import mtfc
from mtfc.editor.hover import CHOOSE, SEARCH

FOLDER = Path(__file__).parents[2] / "editors" / "vscode"


def _read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8"))


def _expanded(body: str | list[str]) -> str:
    """Return a snippet's text with the first proposal at each place."""
    text = body if isinstance(body, str) else "\n".join(body)
    text = re.sub(r"\$\{\d+\|(\w+)[^}]*\}", r"\1", text)
    return re.sub(r"\$\{\d+:([^}]*)\}", r"\1", text).replace("$0", "")


def test_snippets_are_legal() -> None:
    texts = {name: _expanded(each["body"]) for name, each in _read("snippets/mtf.json").items()}
    sizes = "\ndim io = 16\ndim hidden = 32\ndim layers = 4\n"
    text = "\n".join(
        [texts["Dimension"], sizes, texts["Mesh"], texts["Layout"], texts["Model"], texts["Function"]]
    )
    assert [each for each in mtfc.check_text(text) if each.severity == "error"] == []
    with_loss = texts["Model"].replace("return y", "loss = sum(y)\n  return loss")
    trained = "\n".join([texts["Dimension"], sizes, with_loss, texts["Training"]])
    assert [each for each in mtfc.check_text(trained) if each.severity == "error"] == []


def test_the_extension_has_the_commands_behind_lenses() -> None:
    contributed = {each["command"] for each in _read("package.json")["contributes"]["commands"]}
    assert {CHOOSE, SEARCH} <= contributed
    source = (FOLDER / "src" / "extension.ts").read_text("utf-8")
    assert all(f'"{name}"' in source for name in contributed)


def test_the_lock_names_no_registry() -> None:
    assert '"resolved"' not in (FOLDER / "package-lock.json").read_text("utf-8")
