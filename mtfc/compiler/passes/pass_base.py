"""Base of all passes: a frozen record of options with a function `run` from program to program.

The record's fields are the options, except those with `IN_PYTHON`. So the classes alone are enough to parse and print a pipeline
such as `differentiate,combine-collectives{max_bytes=0}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.verifier import LEVELS, Level
from mtfc.compiler.records import frozen


class PipelineError(Exception):
    """A pipeline's text names an unknown pass or option, or gives an option a wrong value."""


@frozen
class Pass:
    """Base of all passes.

    takes: the levels of the IR (see `verifier.LEVELS`) at which the pass can run. level: the level after the pass, or None if
    it stays the same. Every pass can run again on its own result.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[Level, ...]] = tuple(LEVELS)
    level: ClassVar[Level | None] = None

    def run(self, program: Program) -> Program:
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the pass's name with the options that differ from their defaults, as `parse_pipeline` reads it."""
        options = [
            f"{field.name}={_show(getattr(self, field.name))}"
            for field in options_of(type(self))
            if getattr(self, field.name) != field.default
        ]
        return self.name + (f"{{{','.join(options)}}}" if options else "")

    @classmethod
    def with_options(cls, options: dict[str, str]) -> Pass:
        """Return the pass with options given as text. Raises `PipelineError`."""
        needed = [field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING]
        if needed:
            raise PipelineError(
                f"pass `{cls.name}` has options without a default, which text cannot give: {', '.join(needed)}"
            )
        return cls().changed(options)

    def changed(self, options: dict[str, str]) -> Pass:
        """Return the pass with some options changed. Raises `PipelineError`."""
        fields = {field.name: field for field in options_of(type(self))}
        for name in options:
            if name not in fields:
                known = ", ".join(fields) or "none"
                raise PipelineError(f"pass `{self.name}` has no option `{name}` (it has: {known})")
        values = {name: _read(self.name, name, text, fields[name].default) for name, text in options.items()}
        return attrs.evolve(self, **values)


def one_of(words: Iterable[str]) -> Callable[[Pass, attrs.Attribute[str], str], None]:
    """Return a check that an option is one of some words, which raises `PipelineError`."""

    def check(own: Pass, option: attrs.Attribute[str], text: str) -> None:
        if text not in words:
            raise PipelineError(f"`{own.name}{{{option.name}}}` is one of {', '.join(words)}, not `{text}`")

    return check


IN_PYTHON = {"in_python": True}
"""Metadata of a field that text cannot set."""


def options_of(cls: type[Pass]) -> list[attrs.Attribute[Any]]:
    """Return the fields of a pass that are options of a pipeline's text."""
    return [field for field in attrs.fields(cls) if not field.metadata.get("in_python")]


LONGEST_NUMBER = 18
"""Digits of an option's number."""


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(owner: str, option: str, text: str, default: object) -> object:
    """Return `text` as a value of the default's type. Raises `PipelineError`."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise PipelineError(f"`{owner}{{{option}}}` is true or false, not `{text}`")
        return text == "true"
    if not isinstance(default, int):
        return text
    if not text.isdecimal() or len(text) > LONGEST_NUMBER:
        raise PipelineError(f"`{owner}{{{option}}}` takes a whole number, not `{text}`")
    return int(text)
