"""A report as one HTML document: styles, scripts and data stand in the page, and its policy forbids everything from elsewhere.

Data is JSON in a script element that no browser runs. `<`, `>` and `&` are escaped there, so no text of a user can end the
element. The scripts of the page put texts into it as text, never as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mtfc.reports.array_summary import finite

FORMAT = 1
"""The version of the records of pages."""

ASSETS = Path(__file__).parent / "assets"

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS: Mapping[str, Sequence[str]] = {
    "layouts": ("uPlot.iife.min.js", "page.js", "charts.js", "drawings.js", "what_if.js", "layouts.js"),
    "placements": ("page.js", "drawings.js", "own_lines.js", "placements.js"),
    "meshes": ("page.js", "drawings.js", "own_lines.js", "meshes.js"),
    "run": ("uPlot.iife.min.js", "page.js", "charts.js", "run.js"),
}
"""The scripts of a page, by the kind of its data."""


def document(title: str, data: Mapping[str, Any]) -> str:
    """Return the page of a record, which names its `kind`."""
    style = "\n".join(map(_asset, STYLES))
    scripts = [_asset(name) for name in SCRIPTS[data["kind"]]]
    sources = " ".join(map(_hash, scripts))
    parts = {
        "title": escape(title),
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {sources}; base-uri 'none'; form-action 'none'",
        "style": style,
        "data": data_text(data),
        "scripts": "\n".join(f"<script>{each}</script>" for each in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def data_text(data: Any) -> str:
    """Return JSON that may stand between script tags; numbers that are not finite are null."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows this text alone."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
