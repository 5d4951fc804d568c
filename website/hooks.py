"""Hooks of MkDocs: make the site of the Markdown files as they are read in the repository.

- The README is the first page.
- Each diagnostic gets a page of its own, `diagnostics/E301.html`, beside the page of all.
- Files of the repository that a page links to become pages with their text.
- The words after the language of a fenced block are for the tests, and are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```(\w+) [^`\n]*$", re.MULTILINE)
SECTION = re.compile(r"^### ([EW]\d{3})\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)

LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml"}
API = """\
# Functions of Python

The functions and classes of `mtfc`, from their docstrings. [The Python API](python.md) explains how to use them.

::: mtfc

::: mtfc.ir
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no Markdown file in `docs/` is."""
    made = {
        "index.md": (ROOT / "README.md").read_text("utf-8"),
        "api.md": API,
        "decisions/index.md": "\n".join(["# Decisions\n", *_decisions()]),
    }
    for code, text in SECTION.findall((DOCS / "diagnostics.md").read_text("utf-8")):
        made[f"diagnostics/{code}.md"] = f"# {code}\n{text}"
    for path in sorted(_linked()):
        language = LANGUAGES.get(path.suffix, "text")
        text = path.read_text("utf-8")
        fence = "`" * 8
        front = "---\nsearch:\n  exclude: true\n---\n"
        name = path.relative_to(ROOT).as_posix()
        made[f"source/{name}.md"] = f"{front}# {name}\n\n{fence}{language}\n{text}\n{fence}\n"
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Lead links to files of the repository to their pages, and leave words for the tests out of fences."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"boost": 0.25}  # results for users come first
    origin = _origin(page.file.src_uri)
    without_words = FENCE.sub(r"```\1", markdown)
    parts = re.split(r"(^```.*?^```$)", without_words, flags=re.MULTILINE | re.DOTALL)
    return (
        "".join(
            part if part.startswith("```") else LINK.sub(lambda match: _relinked(match, origin, page), part)
            for part in parts
        )
        .replace('"docs/images/', '"images/')
        .replace("(docs/images/", "(images/")
    )


def _origin(uri: str) -> Path:
    """Return the Markdown file that a page is made of."""
    if uri == "index.md":
        return ROOT / "README.md"
    return DOCS / ("diagnostics.md" if uri.startswith("diagnostics/") else uri)


def _decisions() -> Iterator[str]:
    """Yield an item with a link for each decision."""
    for path in sorted((DOCS / "decisions").glob("*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        yield f"- [{title}]({path.name})"


def _linked() -> set[Path]:
    """Return the files outside of `docs/` that pages link to."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    targets = (_target(page, link) for page in pages for _, link in LINK.findall(page.read_text("utf-8")))
    return {path for path in targets if path and path.is_file() and not path.is_relative_to(DOCS)}


def _target(page: Path, link: str) -> Path | None:
    """Return the file or folder of the repository that a link names, or None for a link to the web."""
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", path):
        return None
    return (page.parent / path).resolve()


def _relinked(match: re.Match[str], origin: Path, page: Page) -> str:
    text, link = match.groups()
    if link.startswith("#") and page.file.src_uri.startswith("diagnostics/"):
        is_code = re.fullmatch(r"#[ew]\d{3}", link)
        return f"[{text}]({link[1:].upper()}.md)" if is_code else f"[{text}](../diagnostics.md{link})"
    target = _target(origin, link)
    if target is None:
        return match[0]
    anchor = "#" + link.partition("#")[2] if "#" in link else ""
    if target.is_relative_to(DOCS) and target.is_file():
        uri = target.relative_to(DOCS).as_posix()
    elif target == ROOT / "README.md":
        uri = "index.md"
    elif target.is_file():
        uri = f"source/{target.relative_to(ROOT).as_posix()}.md"
    elif target == DOCS / "decisions":
        uri = "decisions/index.md"
    else:
        return text  # a folder has no page
    here = posixpath.dirname(page.file.src_uri)
    return f"[{text}]({posixpath.relpath(uri, here or '.')}{anchor})"
