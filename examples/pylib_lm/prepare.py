"""Write the source text of the standard library of the running Python as tokens: `train.bin` and `held_out.bin`, a byte each.

A hash of its name puts one file in twenty among the held-out ones, so the split is the same on every machine. Each file ends
with a byte 0, which source text does not contain. Tests, installed packages, generated tables (`encodings`, `pydoc_data`) and
near copies of other modules (`lib2to3`) are left out, and so is a file with the text of another one.

    python examples/pylib_lm/prepare.py FOLDER
"""

from __future__ import annotations

import sys
import sysconfig
from hashlib import sha256
from pathlib import Path

SKIPPED = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test"),
    *("encodings", "pydoc_data", "lib2to3"),
}
ONE_IN = 20
"""One file in so many is held out."""


def source_files(library: Path) -> list[tuple[str, bytes]]:
    """Return name and text of the files, by name; each text once."""
    texts: dict[bytes, str] = {}
    for path in sorted(library.rglob("*.py")):
        if not SKIPPED & set(path.relative_to(library).parts):
            texts.setdefault(path.read_bytes(), path.relative_to(library).as_posix())
    return [(name, text) for text, name in texts.items() if text.strip() and b"\0" not in text]


def is_held_out(name: str) -> bool:
    """Return True for the names of held-out files."""
    return int(sha256(name.encode()).hexdigest(), 16) % ONE_IN == 0


def prepare(folder: Path, library: Path) -> dict[str, list[tuple[str, bytes]]]:
    """Write both files, and return the source files in each."""
    files = source_files(library)
    parts = {
        "train": [each for each in files if not is_held_out(each[0])],
        "held_out": [each for each in files if is_held_out(each[0])],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for part, members in parts.items():
        (folder / f"{part}.bin").write_bytes(b"".join(text + b"\0" for _, text in members))
    return parts


def main(folder: str) -> None:
    parts = prepare(Path(folder), Path(sysconfig.get_paths()["stdlib"]))
    for part, members in parts.items():
        size = sum(len(text) + 1 for _, text in members)
        print(f"{folder}/{part}.bin: {len(members)} files, {size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
