"""Override entries of a `train` block, as `--set optimizer.learning_rate=1e-3` does.

An override replaces a part of the syntax tree before elaboration. Its value is checked like a value of the file. Errors point
into the text of the option: option number i is line i of a file `<--set>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Diagnostics, Label, Span, nearest
from mtfc.frontend.semantics.names.modules import declarations_of
from mtfc.frontend.semantics.training import train_blocks
from mtfc.frontend.semantics.training.parameter_groups import IN_THE_FILE, optimizers_of
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import OPTION
from mtfc.frontend.syntax.other_libraries import ENTRIES
from mtfc.frontend.syntax.parser import parse
from mtfc.frontend.syntax.tree_builder import SETTINGS

SECTIONS = ("optimizer", "precision")
"""Entries with parts that can be replaced: `optimizer.learning_rate`, `precision.compute`."""

KEYS = (*SETTINGS, "optimizer.learning_rate", *(f"precision.{key}" for key in train_blocks.PRECISION_KEYS))
"""The known keys, to suggest for a misspelt key."""

LISTED = f"the keys are {', '.join((*SETTINGS, 'optimizer.HYPERPARAMETER', *KEYS[len(SETTINGS) + 1 :]))}"

WORDS = ("minimize", "report")
"""The entries that are written without `=`."""

FIXED = ("frozen", "optimizer for")
"""The first words of entries that an option cannot change."""


def with_overrides(
    file: ast.File, settings: Sequence[str], model: str | None, diagnostics: Diagnostics
) -> ast.File:
    """Return the file with the overrides, each `KEY=VALUE`, in the `train` block of `model`, or of the first model.

    The last of several overrides for one key counts. A wrong override is reported and left out.
    """
    models = [decl.name.text for decl in declarations_of(file, ast.ModelDecl)]
    chosen = models[0] if model is None and models else model
    if not settings or chosen not in models:
        return file
    old = next((decl for decl in declarations_of(file, ast.TrainDecl) if decl.model.text == chosen), None)
    if old is None:
        if not declarations_of(file, ast.Broken):
            message = f"model `{chosen}` has no `train` block that an option could change"
            help = f"add one to the file: `train {chosen} {{ ... }}`"
            diagnostics.add("E417", message, Span.of_line(OPTION, settings[0]), help=help)
        return file
    new = old
    for number, setting in enumerate(settings, 1):
        new = _Override.of(setting, number, diagnostics).applied(new)
    return file.evolve(declarations=tuple(new if each is old else each for each in file.declarations))


def _is_alone(key: str, decl: ast.Declaration) -> bool:
    """True if a `train` block has no other entry than `key`."""
    others = [getattr(decl, name) for name in decl.fields if name not in ("span", "model", key)]
    return all(value is None or value == () for value in others)


@attrs.frozen
class _Override:
    """An override. `key` spans from its first character to the last before `=`; `equal` is the position of `=` in the text."""

    text: str
    number: int
    key: ast.Name
    equal: int
    diagnostics: Diagnostics

    @classmethod
    def of(cls, text: str, number: int, diagnostics: Diagnostics) -> _Override:
        """Read `key = value`, the option with a number, with the place of the key in it."""
        equal = text.index("=") if "=" in text else len(text)
        name = text[:equal].strip()
        begin = 1 + len(text[:equal]) - len(text[:equal].lstrip())
        key = ast.Name(Span(OPTION, number, begin, number, begin + len(name)), name)
        return cls(text, number, key, equal, diagnostics)

    def applied(self, decl: ast.TrainDecl) -> ast.TrainDecl:
        """Return the `train` block with the override."""
        section, dot, part = self.key.text.partition(".")
        fixed = next(
            (words for words in FIXED if self.key.text.split()[: len(words.split())] == words.split()), None
        )
        if fixed is not None:
            message = f"an option cannot change `{fixed}`: write that entry in the file"
            self._error("E012", message, self.key.span, LISTED)
            return decl
        if not dot and section in SETTINGS:
            return self._entry(section, decl)
        if dot and section in SECTIONS and part.isidentifier():
            return self._part(section, self._name_of_part(part), decl)
        meant = nearest(section, SECTIONS) if dot else nearest(section, KEYS)
        help = (
            f"did you mean `{meant}{dot}{part}`?"
            if meant not in (None, section)
            else ENTRIES.get(section, LISTED)
        )
        self._error("E012", f"a train block has no entry `{self.key.text}`", self.key.span, help)
        return decl

    def _name_of_part(self, part: str) -> ast.Name:
        span = self.key.span
        return ast.Name(attrs.evolve(span, column=span.end_column - len(part)), part)

    def _entry(self, key: str, decl: ast.TrainDecl) -> ast.TrainDecl:
        """Return a `train` block with an entry as `--set` gives it; the same block if that has an error."""
        joint = " " if key in WORDS else "="
        value = self._parsed(key, f"{self.text[: self.equal]}{joint}{self.text[self.equal + 1 :]}")
        changes: dict[str, Any] = {key: value}
        return decl if value is None else decl.evolve(**changes)

    def _part(self, section: str, name: ast.Name, decl: ast.TrainDecl) -> ast.TrainDecl:
        """Replace a hyperparameter of the optimizer, or one entry of the precision."""
        value = self._parsed("clip", f"{'clip'.ljust(self.equal)}{self.text[self.equal :]}")
        if value is None:
            return decl
        if section == "optimizer":
            return self._hyperparameter(name, value, decl)
        rule = ast.PrecisionRule(name.span, name, value)
        others = (
            [each for each in decl.precision.rules if each.use != name] if decl.precision is not None else []
        )
        return decl.evolve(precision=ast.Precision(name.span, (*others, rule)))

    def _hyperparameter(self, name: ast.Name, value: ast.Expr, decl: ast.TrainDecl) -> ast.TrainDecl:
        """Replace a hyperparameter. Elaboration reports a block without optimizers, or an optimizer that is no call."""
        call = decl.optimizer
        labels = optimizers_of(decl.groups)
        if call is None and labels:
            message = f"the `train` block of `{decl.model.text}` has no entry `optimizer = ...` with hyperparameters"
            self.diagnostics.add("E417", message, self.key.span, labels, IN_THE_FILE)
        if not isinstance(call, ast.Call):
            return decl
        others = (keyword for keyword in call.keywords if keyword.name != name)
        keywords = (*others, ast.Keyword(name.span, name, value))
        return decl.evolve(optimizer=call.evolve(keywords=keywords))

    def _parsed(self, key: str, entry: str) -> ast.Expr | None:
        """Return the value of `key` in a `train` block with this one entry; None, and an error, if the text is not one entry."""
        found = Diagnostics()
        declarations = parse(f"train given {{\n{entry}\n}}", OPTION, found, self.number - 1).declarations
        self.diagnostics.extend(map(self._inside, found))
        if found.errors:
            return None
        decl = declarations[0]
        value: ast.Expr | None = getattr(decl, key, None)
        if len(declarations) > 1 or value is None or not _is_alone(key, decl):
            self._error(
                "E410", "expected one entry, and nothing else", Span.of_line(OPTION, self.text, self.number)
            )
            return None
        return value

    def _inside(self, diagnostic: Diagnostic) -> Diagnostic:
        """Move the places of a diagnostic about the block into the option."""
        labels = tuple(Label(self._clamped(label.span), label.message) for label in diagnostic.labels)
        span = self._clamped(diagnostic.span)
        help = diagnostic.help if span.column <= len(self.text) else None  # an option has one line
        return attrs.evolve(diagnostic, span=span, labels=labels, help=help)

    def _clamped(self, span: Span) -> Span:
        """Return a place of the parsed text that does not reach beyond the text of the option."""
        end = 1 + len(self.text)
        if span.line != self.number:
            return Span(OPTION, self.number, end, self.number, end)
        return span if span.end_line == span.line else Span(OPTION, span.line, span.column, span.line, end)

    def _error(self, code: str, message: str, span: Span, help: str | None = None) -> None:
        self.diagnostics.add(code, message, span, help=help)
