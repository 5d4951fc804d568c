"""What a pass is: a frozen record of options with a `run` from program to program.

Its fields are its options, so that a pipeline such as `differentiate,combine-collectives{max_bytes=0}` is both parsed and printed
from the class alone.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.verifier import Level


class PipelineError(Exception):
    """A pipeline's text names an unknown pass or option, or gives an option a wrong value."""


@attrs.frozen
class Pass:
    """Base of all passes. `level` is the level of the IR after it (see verify.LEVELS); None: the same as before."""

    name: ClassVar[str]
    level: ClassVar[Level | None] = None

    def run(self, program: Program) -> Program:
        raise NotImplementedError

    def __str__(self) -> str:
        """The pass with those options that differ from their defaults, as `parse` takes it."""
        options = [
            f"{field.name}={_show(getattr(self, field.name))}"
            for field in attrs.fields(type(self))
            if getattr(self, field.name) != field.default
        ]
        return self.name + (f"{{{','.join(options)}}}" if options else "")

    @classmethod
    def with_options(cls, options: dict[str, str]) -> Pass:
        """The pass from its options as text. Raises `PipelineError`."""
        fields = {field.name: field for field in attrs.fields(cls)}
        for name in options:
            if name not in fields:
                known = ", ".join(fields) or "none"
                raise PipelineError(f"pass `{cls.name}` has no option `{name}` (it has: {known})")
        values = {name: _read(cls.name, name, text, fields[name].default) for name, text in options.items()}
        return attrs.evolve(cls(), **values)


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(owner: str, option: str, text: str, default: object) -> object:
    """`text` as a value of the default's type."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise PipelineError(f"`{owner}{{{option}}}` is true or false, not `{text}`")
        return text == "true"
    if not isinstance(default, int):
        return text
    if not text.isdecimal():
        raise PipelineError(f"`{owner}{{{option}}}` takes a whole number, not `{text}`")
    return int(text)
