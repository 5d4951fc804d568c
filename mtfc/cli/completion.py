"""`mtfc completion`: print the completion of commands and options for a shell.

examples:
  mtfc completion bash > ~/.local/share/bash-completion/completions/mtfc
  mtfc completion zsh > ~/.zfunc/_mtfc               with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  mtfc completion fish > ~/.config/fish/completions/mtfc.fish
  eval "$(mtfc completion bash)"                     for the shell at hand
"""

import argparse
from collections.abc import Iterator

from mtfc.cli.options import Options

SHELLS = "bash", "zsh", "fish", "tcsh", "powershell"

PLACES = {"FILE": "FILE", "DIR": "DIRECTORY"}
"""The sort of completion by a word in what an argument is called in `--help`."""

OPTIONS = f"  SHELL  {' or '.join(SHELLS)}"
CHOICES = {"shell": SHELLS}


def run(options: Options) -> None:
    """Print the completion script of a shell, with the topics, machines and file names that options take."""
    from mtfc.cli.command import make_parser
    from mtfc.driver.data.packages import import_package
    from mtfc.driver.help_pages import topics
    from mtfc.frontend.semantics.names.standard_library import library_machines

    shtab = import_package("shtab", "shtab", "completion", "completion")
    parser = make_parser([], with_all_options=True)
    names = {"topic": topics, "target": library_machines}
    for action in _actions(parser):
        if action.dest in names:
            action.choices = tuple(names[action.dest]())
        for word, sort in PLACES.items():
            if word in str(action.metavar):
                action.complete = getattr(shtab, sort)  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
