"""Documents as tests: the program prints the outputs that they show, and their links have targets.

A fenced block means something to a test by the words after its language:

- ```` ```mtf model.mtf ````, and so for any language: the block is written to that file, for the commands that follow;
  ```` ```mtf model.mtf append ````: it is added to it;
  ```` ```mtf model.mtf replace ````: its lines replace those that assign the same names.
- ```` ```console ````: lines that start with `$ ` are commands, the others what they print, both streams. They run in a folder of
  the document's own, which holds `examples/`. Rounding errors are not compared, nor times of runs and of searches, which end
  with the clock. Other decimal numbers are compared up to rounding, also predicted times.
- ```` ```console roughly ````: decimal numbers may be off by 2 %; what training prints is rounded differently on every machine.
- ```` ```console jax ````: these commands need JAX, and are passed over where it is missing.
- `<!-- generated: NAME -->`: what follows, up to the next line that ends it, is what the test's function NAME gives.

`pytest --update-golden` puts in what the commands print, and what is generated.
"""

import hashlib
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import attrs

from tests import xla

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

FENCE = re.compile(r"^```(.*)$\n((?:^(?!```).*$\n)*)^```$", re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)$\n((?:^(?!\$ ).*(?:\n|\Z))*)", re.MULTILINE)
COMPILED = re.compile("mtfc: loops were compiled in")
"""A line that only the first search after an installation prints."""
TIME = re.compile(r"[\d.]+ (?=m?s\b)")
CLOCKED = re.compile(r"mtfc (?:run|train|search)\b")
"""A command whose times depend on the clock: those of steps that ran, or bounds that a search reached in its time."""

DECIMAL = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?")
ROUNDING = 1e-4
"""Numbers below it that are written with an exponent are errors of rounding, which depend on the processor."""

LARGEST = re.compile(r"(\de-(?:0[5-9]|\d\d)) \([\w.]+\)")
"""An error of rounding, and the name of the array that has the largest one: the processor decides which array this is."""

GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@attrs.frozen
class Fence:
    """A fenced block: the words after the opening fence, and the lines inside."""

    words: tuple[str, ...]
    text: str

    @property
    def language(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if any."""
        return next((word for word in self.words[1:] if "." in word), None)


def fences(document: str) -> Iterator[Fence]:
    for match in FENCE.finditer(document):
        yield Fence(tuple(match[1].split()), match[2])


def environment(programs: Path) -> dict[str, str]:
    """Return the environment of commands. programs: a folder with `mtfc` and `python`."""
    paths = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    jax = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(xla.QUICK_FLAGS),
        "JAX_COMPILATION_CACHE_DIR": str(programs / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return {**os.environ, **paths, **jax, "COLUMNS": "100"}


@attrs.frozen
class Session:
    """The folder in which a document's commands run, and the environment that they see.

    searches: a folder with the outputs of searches of the examples, which documents have in common.
    """

    folder: Path
    environment: Mapping[str, str]
    searches: Path

    @classmethod
    def start(cls, folder: Path, programs: Path) -> "Session":
        """Start a session in a folder. programs: a folder with `mtfc` and `python`."""
        shutil.copytree(ROOT / "examples", folder / "examples")
        return cls(folder, environment(programs), programs)

    def write(self, fence: Fence) -> None:
        assert fence.file is not None
        path = self.folder / fence.file
        before = path.read_text("utf-8") if {"append", "replace"} & {*fence.words} else ""
        now = replaced(before, fence.text) if "replace" in fence.words else before + fence.text
        path.write_text(now, "utf-8")

    def run(self, command: str) -> str:
        """Return the output of a command on both streams. A search of an example runs once; so does one of the file `gpt.py`."""
        search, _, rest = command.partition(" | ")
        if not search.startswith(("mtfc search examples/", "mtfc search gpt:")):
            return self._output(command)
        gpt, plan = self.folder / "gpt.py", self.folder / "plan.json"
        content = gpt.read_bytes() if gpt.exists() else b""
        place = self.searches / hashlib.sha256(search.encode() + content).hexdigest()
        written = place.with_suffix(".json")
        if not place.exists():
            place.write_text(self._output(search), "utf-8")
            if plan.exists():
                shutil.copy(plan, written)
        elif written.exists():
            shutil.copy(written, plan)
        return self._output(f"cat {place} | {rest or 'cat'}")

    def _output(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        assert "Traceback" not in done.stdout, f"$ {command}\n{done.stdout}"
        lines = (line.rstrip() for line in done.stdout.splitlines() if not COMPILED.match(line))
        return "".join(f"{line}\n" for line in lines)

    def replay(self, document: str) -> str:
        """Return the document with the present outputs of its commands."""
        return FENCE.sub(self._replayed, document)

    def _replayed(self, match: re.Match[str]) -> str:
        fence = Fence(tuple(match[1].split()), match[2])
        if fence.file:
            self.write(fence)
        if fence.language != "console" or ("jax" in fence.words and find_spec("jax") is None):
            return match[0]
        printed = partial(self._printed, "roughly" in fence.words)
        return f"```{match[1]}\n{COMMAND.sub(printed, fence.text)}```"

    def _printed(self, roughly: bool, match: re.Match[str]) -> str:
        """Return a command and its output. The shown output stays if it differs only by times and rounding."""
        command, shown = match.groups()
        actual = self.run(command)
        agrees = agrees_but_times if CLOCKED.match(command) else agrees_in_all
        return match[0] if agrees(actual, shown, roughly) else f"$ {command}\n{actual}"


def replaced(text: str, lines: str) -> str:
    """Return `text` with each assignment to a name that `lines` assigns replaced by the line of `lines`."""
    new = {line.partition("=")[0]: line for line in lines.splitlines()}
    old = text.splitlines()
    assert new.keys() <= {line.partition("=")[0] for line in old}
    return "".join(f"{new.get(line.partition('=')[0], line)}\n" for line in old)


def agrees_but_times(actual: str, shown: str, roughly: bool) -> bool:
    """Return True if two outputs differ only by times and rounding."""
    return agrees_in_all(TIME.sub("", actual), TIME.sub("", shown), roughly)


def agrees_in_all(actual: str, shown: str, roughly: bool) -> bool:
    """Return True if two outputs differ only by rounding."""
    actual, shown = (LARGEST.sub(r"\1", text) for text in (actual, shown))
    if [line.split() for line in DECIMAL.sub("#", actual).splitlines()] != [
        line.split() for line in DECIMAL.sub("#", shown).splitlines()
    ]:
        return False
    relative, absolute = (2e-2, 2e-2) if roughly else (1e-4, 5e-6)
    pairs = zip(DECIMAL.findall(actual), DECIMAL.findall(shown), strict=True)
    return all(
        math.isclose(float(a), float(b), rel_tol=relative, abs_tol=ROUNDING if "e" in a + b else absolute)
        for a, b in pairs
    )


def check_sessions(path: Path, folder: Path, programs: Path, update: bool) -> None:
    """Assert that every command of a document prints what the document shows. programs: a folder with `mtfc` and `python`."""
    document = path.read_text("utf-8")
    settle(path, document, Session.start(folder, programs).replay(document), update)


def check_generated(path: Path, parts: Mapping[str, Callable[[], str]], update: bool) -> None:
    """Assert that the generated parts of a document are up to date. A part's name may have an argument: `example E301`."""
    document = path.read_text("utf-8")

    def generate(match: re.Match[str]) -> str:
        return f"{match[1]}{parts[match[2]]()}{match[4]}"

    settle(path, document, GENERATED.sub(generate, document), update)


def settle(path: Path, shown: str, now: str, update: bool) -> None:
    """Write the present text into the document, or assert that the document shows the present text."""
    if update:
        path.write_text(now, "utf-8")
    else:
        assert shown == now, "out of date: run pytest --update-golden, and read the difference"


# Links


def anchors(document: str) -> set[str]:
    """Return the anchors that GitHub gives a document's headings."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(FENCE.sub("", document)))
    return {text.strip().replace(" ", "-") for text in plain}


def broken_links(path: Path) -> list[str]:
    """Return the links to files or headings of this repository that do not exist."""
    prose = CODE.sub("", FENCE.sub("", path.read_text("utf-8")))
    found = [link for match in LINK.findall(prose) for link in match if link]
    return [link for link in found if not link.startswith(("https://", "http://")) and not _leads(path, link)]


def _leads(path: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = (path.parent / file).resolve() if file else path
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors(target.read_text("utf-8"))
