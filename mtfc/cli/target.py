"""The machine that `--target` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mtfc.cli.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.hardware import Hardware


def target_of(target: str, declared: Mapping[str, Hardware], sources: Sources) -> Hardware:
    """One that the file declares, one of the library, or that of a .mtf file.

    Raises `CompileError`, and `UsageError` where a file cannot be read.
    """
    from mtfc.frontend.targets import in_file, is_path, named

    if not is_path(target):
        return named(target, declared)
    file = sources.read(target)
    return in_file(sources.texts[file], file)
