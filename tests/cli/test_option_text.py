"""Options of subcommands: their help, their types and their defaults agree with the records of the driver."""

import argparse
import re

import attrs
import pytest

from mtfc.cli import command, compile, eval, option_text, options, run, search, simulate, train, verify
from mtfc.driver.loading.choice import Choice
from mtfc.driver.options import (
    ChainOptions,
    CompileOptions,
    EvalOptions,
    RunOptions,
    SearchOptions,
    TrainOptions,
    VerifyOptions,
)
from mtfc.driver.training.hosts import Hosts

RECORDS = {
    compile: (CompileOptions, ["f"]),
    eval: (EvalOptions, ["f", "--data", "d", "--params", "p"]),
    run: (RunOptions, ["f"]),
    search: (SearchOptions, ["f"]),
    train: (TrainOptions, ["f"]),
    verify: (VerifyOptions, ["f"]),
}

WITHOUT_OPTION = {"choice", "chains", "hosts", "generation", "exact"}
"""Fields that are made of several options."""


def parsed(module: object, arguments: list[str]) -> options.Options:
    parser = argparse.ArgumentParser()
    command.add_arguments(module, parser)  # type: ignore[arg-type]
    return parser.parse_args(arguments, options.Options())


@pytest.mark.parametrize("module", RECORDS, ids=lambda each: each.__name__)
def test_fields_have_options_with_the_same_defaults(module: object) -> None:
    record, arguments = RECORDS[module]
    given = parsed(module, arguments)
    found = given.record(record, choice=Choice())
    for field in attrs.fields(record):
        assert field.name in WITHOUT_OPTION or hasattr(given, field.name), field.name
        if field.default is not attrs.NOTHING and field.name not in WITHOUT_OPTION:
            expected = "-" if field.name == "output" else field.default
            assert getattr(found, field.name) == expected, field.name


def test_groups_of_options_have_their_defaults() -> None:
    assert parsed(search, ["f"]).record(ChainOptions) == ChainOptions()
    assert parsed(train, ["f"]).record(Hosts) == Hosts()
    assert parsed(simulate, ["f", "--target", "h100"]).choice == Choice()


@pytest.mark.parametrize("name", command.SUBCOMMANDS)
def test_a_number_or_choice_that_the_help_calls_the_default_is_it(name: str) -> None:
    """Options of the search for placements alone are None: the record says which of them are given."""
    parser = argparse.ArgumentParser()
    command.add_arguments(command._subcommand(name), parser)
    for action in parser._actions:
        said = re.search(r"\(default: ([\w.]+)\)", action.help or "")
        of_chains = action.dest in {field.name for field in attrs.fields(ChainOptions)} and name == "search"
        if said and not of_chains and (said[1][0].isdigit() or said[1] in (action.choices or ())):
            late = action.default is None and action.dest in ("axes", "save_minutes", "temperature")
            assert late or str(action.default).removesuffix(".0") == said[1], action.dest


def test_a_line_that_is_no_option_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no option: +steps"):
        option_text.add_options(argparse.ArgumentParser(), "  steps N   the steps")


def test_lists_flags_choices_and_groups() -> None:
    parser = argparse.ArgumentParser()
    text = """
  --array NAME     draw this array; repeatable
  --fresh          start over, also
      on a second line
  --kind a|b       one of two
others:
  -n, --steps N    so many steps
"""
    option_text.add_options(parser, text, required="kind", steps=7)
    given = parser.parse_args(["--array", "x", "--array", "y", "--kind", "b"])
    assert vars(given) == {"array": ["x", "y"], "fresh": False, "kind": "b", "steps": 7}
    assert parser.parse_args(["--kind", "a", "-n", "3"]).array == []
    assert "start over, also on a second line" in parser.format_help()
    assert "others:\n  -n" in parser.format_help()
