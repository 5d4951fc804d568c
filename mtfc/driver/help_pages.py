"""The pages of the documentation, for `mtfc help` and `mtfc explain CODE`.

An installed package holds the pages in `mtfc/docs`; a checkout has them in `docs`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from mtfc.driver.errors import UsageError
from mtfc.frontend.semantics.names import standard_library

PACKAGE = Path(__file__).parents[1]
FOLDERS = PACKAGE / "docs", PACKAGE.parent / "docs"
"""Folders that may hold the pages; the first one with pages is read."""

CODE = re.compile(r"[EW]\d{3}", re.IGNORECASE)
CODE_TITLE = re.compile(rf"### {CODE.pattern}")
GROUPS = {
    "every day": "daily jax cost search simulate report verification diagnostics training",
    "research": "collectives comparison papers soap solver tiling",
    "for maintainers": "architecture contributing extending graphs ir",
}
"""Pages by purpose, as they are listed. All others are about the language and Python, after those of every day."""


def is_code(text: str) -> bool:
    """Return True if the text has the form of a diagnostic's code."""
    return CODE.fullmatch(text) is not None


def topics() -> dict[str, str]:
    """Return the title of each page by its name."""
    return {page.stem: _title(page.read_text("utf-8")) for page in sorted(_folder().glob("*.md"))}


def grouped(names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the names of pages by purpose."""
    first, *last = ((title, pages.split()) for title, pages in GROUPS.items())
    others = [name for name in names if name not in " ".join(GROUPS.values()).split()]
    return dict([first, ("language and Python", others), *last])


def page(topic: str) -> str:
    """Return a page or a diagnostic's section as Markdown, or a module of the library. Raises `UsageError`."""
    if is_code(topic):
        return code_section(topic)
    if (module := standard_library.text(topic)) is not None:
        return module
    names = list(topics())
    if topic.lower() not in names:
        near = get_close_matches(topic.lower(), names, 1)
        meant = f"did you mean `{near[0]}`?" if near else "`mtfc help` lists the topics"
        raise UsageError(f"no help about `{topic}`: {meant}")
    return (_folder() / f"{topic.lower()}.md").read_text("utf-8")


@cache
def code_places() -> dict[str, int]:
    """Return the line of each diagnostic's section in `code_page()`."""
    lines = code_page().read_text("utf-8").splitlines()
    return {line.removeprefix("### "): i for i, line in enumerate(lines, 1) if CODE_TITLE.fullmatch(line)}


def code_page() -> Path:
    """Return the page about all diagnostics. Raises `UsageError`."""
    return _folder() / "diagnostics.md"


def code_section(code: str) -> str:
    """Return the section about a diagnostic, as Markdown without the title's marks. Raises `UsageError`."""
    text = code_page().read_text("utf-8")
    section = re.search(rf"^### {code.upper()}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise UsageError(f"there is no diagnostic {code.upper()}: `mtfc help diagnostics` lists all of them")
    return f"{code.upper()}\n\n{section[1].strip()}\n"


def _folder() -> Path:
    """Return the folder of the pages of help. Raises `UsageError` if the installation has none."""
    found = next((folder for folder in FOLDERS if (folder / "diagnostics.md").exists()), None)
    if found is None:
        raise UsageError(
            "this installation of mtfc lacks its pages of help: pip install . in the checkout of mtfc"
        )
    return found


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ").replace("`", "")
