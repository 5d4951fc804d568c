"""Test that every function of the library has a comment of one form."""

import re

import pytest

from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.format import format_source
from tests.library.reference import MODULES, Entry, entries, introduction

ENTRIES = [entry for path in MODULES for entry in entries(path)]
ITEM = re.compile(r"^- (`\w+`(?:, `\w+`)*|\w+): ", re.MULTILINE)
KINDS = {"returns", "parameters", "splitting", "source", "state"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_is_introduced_and_in_canonical_form(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text("utf-8")
    assert introduction(path).split("\n")[0].endswith(".")
    assert format_source(text, path.name) == text
    assert max(map(len, text.split("\n"))) <= 130


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_function_is_documented(entry: Entry) -> None:
    first, *rest = entry.comment.split("\n")
    assert (first[:1].isupper() or first.startswith("`")) and first.endswith(".")
    assert not rest or rest[0] == ""
    named = {name for item in ITEM.findall(entry.comment) for name in item.replace("`", "").split(", ")}
    assert named >= _to_be_named(entry)
    assert named <= _may_be_named(entry)


def _arguments(entry: Entry) -> set[str]:
    given = entry.decl.args if isinstance(entry.decl, ast.FnDecl) else entry.decl.hypers
    return {argument.name.text for argument in given}


def _to_be_named(entry: Entry) -> set[str]:
    """Arguments, what comes out, and generic dimensions that no argument can determine.

    Of several optimizers of one name, the first names the arguments of all.
    """
    if isinstance(entry.decl, ast.OptimizerDecl):
        first = next(each for each in ENTRIES if each.name == entry.name)
        return _arguments(entry) if entry is first else set()
    types = (argument.type for argument in entry.decl.args if argument.type)
    bound = {dim.text for type in types for dim in type.dims if isinstance(dim, ast.Name)}
    return {*_arguments(entry), "returns", *({name.text for name in entry.decl.generics} - bound)}


def _may_be_named(entry: Entry) -> set[str]:
    generics = entry.decl.generics if isinstance(entry.decl, ast.FnDecl) else ()
    return {*_arguments(entry), *(name.text for name in generics), *KINDS}
