"""The packaged extension in the real VS Code, in headless Chromium: `make vscode-test` brings all three.

The editor is code-server's build of VS Code for browsers. Its own server runs the extension, which starts `mtfc lsp`.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest

import mtfc
from mtfc.compiler.ir.printer import bytes_text

ROOT = Path(__file__).parents[2]
EDITOR = Path(os.environ.get("MTFC_EDITOR", ROOT / "build" / "editor" / "node_modules" / "code-server"))
SERVER = EDITOR / "lib" / "vscode" / "out" / "server-main.js"
EXTENSION = ROOT / "editors" / "vscode" / "mtfc.vsix"
MODEL = ROOT / "examples" / "two_layer.mtf"

AT_MOST = 60
"""Seconds to wait for the editor."""


@attrs.define
class Editor:
    """An editor with a file open."""

    view: Any

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds."""
        until = time.monotonic() + AT_MOST
        while not holds():
            assert time.monotonic() < until, what
            time.sleep(0.1)

    def wait(self, condition: str, what: Any = None) -> None:
        """Wait until a function of JavaScript returns something true."""
        self.until(lambda: self.view.evaluate(condition, what), f"{condition} of {what}")

    def wait_for(self, selector: str, text: str) -> None:
        """Wait for an element that contains a text; the editor writes blanks as U+00A0."""
        self.wait(
            """([selector, text]) => [...document.querySelectorAll(selector)].some(
            (each) => each.textContent.replaceAll("\\u00a0", " ").includes(text))""",
            [selector, text],
        )

    def run(self, title: str) -> None:
        """Run a command by its title, from the palette."""
        self.view.keyboard.press("F1")
        self.view.wait_for_selector(".quick-input-widget .monaco-list-row")
        self.view.keyboard.type(title)
        self.choose(title)

    def choose(self, title: str) -> None:
        """Click on an entry of the list that is open."""
        entry = ".quick-input-widget .monaco-list-row .label-name"
        self.wait_for(entry, title)
        found = [i for i, each in enumerate(self.view.locator(entry).all_inner_texts()) if each == title]
        self.view.locator(entry).nth(found[0]).click()

    def go_to(self, line: int, column: int = 1) -> None:
        self.view.keyboard.press("Control+g")
        self.view.wait_for_selector(".quick-input-widget input")
        self.view.keyboard.type(f"{line}:{column}")
        self.view.keyboard.press("Enter")
        self.wait_for(".statusbar", f"Ln {line}, Col {column}")

    def lenses(self) -> list[str]:
        found: list[str] = self.view.locator(".codelens-decoration").all_inner_texts()
        return [each.replace("\u00a0", " ") for each in found]

    def colours(self) -> dict[str, str]:
        """Return the colour of each word that is seen."""
        found: dict[str, str] = self.view.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll(".view-line span > span")].map(
            (each) => [each.textContent.trim(), getComputedStyle(each).color]))"""
        )
        return found


@pytest.fixture(scope="module")
def editor(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    """The editor with the extension and the example `two_layer.mtf`."""
    if not SERVER.is_file() or not EXTENSION.is_file():
        pytest.skip("no editor: `make vscode-test` fetches one")
    folder = tmp_path_factory.mktemp("editor")
    place = ["--extensions-dir", str(folder / "extensions"), "--server-data-dir", str(folder / "data")]
    common = ["node", str(SERVER), *place, "--accept-server-license-terms", "--telemetry-level", "off"]
    subprocess.run([*common, "--install-extension", str(EXTENSION)], check=True, capture_output=True)
    workspace = folder / "workspace"
    (workspace / ".vscode").mkdir(parents=True)
    settings = {"mtfc.command": str(Path(sys.executable).parent / "mtfc"), "workbench.startupEditor": "none"}
    (workspace / ".vscode" / "settings.json").write_text(json.dumps(settings))
    (workspace / "model.mtf").write_text(MODEL.read_text("utf-8"))
    started = [
        *common,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--without-connection-token",
        "--disable-workspace-trust",
    ]
    with (folder / "log").open("w+") as log:
        server = subprocess.Popen(started, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield _opened(browser, _port(folder / "log"), workspace / "model.mtf")
        finally:
            server.terminate()
            server.wait()


def _port(log: Path) -> int:
    until = time.monotonic() + AT_MOST
    while not (found := re.search(r"listening on (\d+)", log.read_text())):
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    return int(found[1])


def _opened(browser: Any, port: int, file: Path) -> Editor:
    view = browser.new_page(locale="en-US", viewport={"width": 1500, "height": 1000})
    payload = json.dumps([["openFile", f"vscode-remote://127.0.0.1:{port}{file}"]])
    view.goto(f"http://127.0.0.1:{port}/?folder={file.parent}&payload={quote(payload)}")
    view.wait_for_selector(".view-line", timeout=1000 * AT_MOST)
    view.click(".view-line >> nth=0")
    return Editor(view)


def test_words_have_the_colours_of_their_kinds(editor: Editor) -> None:
    kinds = ("dim", "batch", "64", "relu")

    def differ() -> bool:
        colours = editor.colours()
        return set(kinds) <= colours.keys() and len({colours[each] for each in kinds}) == len(kinds)

    editor.until(differ, "words of four kinds have four colours")
    colours = editor.colours()
    assert colours["dim"] == colours["mesh"] == colours["layout"]


def test_lenses_show_the_costs_of_layouts(editor: Editor) -> None:
    editor.wait_for(".codelens-decoration", "a training step under `replicated`")
    editor.wait_for(".codelens-decoration", "best known")
    costs = {each["layout"]: each for each in mtfc.cost(MODEL)["layouts"]}
    memory = bytes_text(costs["hybrid"]["memory_per_device"]["total"])
    assert sum(f"{memory} per device" in each for each in editor.lenses()) == 1
    assert len(editor.lenses()) == len(costs) + 1


def test_a_hover_shows_the_type_under_the_chosen_layout(editor: Editor) -> None:
    """The command lists the layouts; hovers and lenses follow the choice."""
    editor.run("mtfc: Choose the Layout That Is Shown")
    editor.choose("hybrid")
    editor.wait_for(".codelens-decoration", "a training step under `hybrid`")
    editor.go_to(21, 3)
    editor.run("Show or Focus Hover")
    editor.wait_for(".monaco-hover", "batch{rows}, hidden{cols}")
    editor.view.keyboard.press("Escape")


def test_costs_open_beside_the_file(editor: Editor) -> None:
    editor.run("mtfc: Show Costs by Line")
    editor.wait_for(".view-line", "layout hybrid")
    editor.wait_for(".tab.active", "costs of model.mtf.txt")
    editor.wait("() => !document.querySelector('.tab.dirty')")
    editor.run("View: Close Editor")
    editor.wait("() => document.querySelectorAll('.editor-group-container').length === 1")


def test_an_error_is_shown_and_mended(editor: Editor) -> None:
    """A wrong name is underlined while it is typed, its hover has the error, and its quick fix corrects it."""
    editor.go_to(23, 23)
    editor.view.keyboard.type("s")
    editor.wait("() => document.querySelectorAll('.squiggly-error').length")
    editor.run("Show or Focus Hover")
    editor.wait_for(".monaco-hover", "unknown value `ys`")
    editor.view.keyboard.press("Escape")
    editor.view.keyboard.press("Control+.")
    editor.wait_for(".action-widget .monaco-list-row", "`y`")
    editor.view.keyboard.press("Enter")
    editor.wait("() => !document.querySelectorAll('.squiggly-error').length")
    editor.wait_for(".view-line", "mean(square(y - target))")


def test_completion_offers_functions_with_their_arguments(editor: Editor) -> None:
    editor.go_to(23)
    editor.view.keyboard.press("End")
    editor.view.keyboard.type("\nz = ge")
    editor.view.keyboard.press("Control+Space")
    editor.wait_for(".suggest-widget .monaco-list-row", "gather(table, ids, d)")
    editor.view.keyboard.press("Escape")
