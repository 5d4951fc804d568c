"""`mtfc compile`: print a file at any stage of its compilation."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import zip_longest

from mtfc.backends.registry import text_kinds
from mtfc.cli.options import add_format, add_selection, add_source, chosen
from mtfc.driver.compile import EMITTERS, IR_KINDS, emit, syntax_tree
from mtfc.driver.data.files import STANDARD, check_apart, check_writable, write_text
from mtfc.driver.errors import OK
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import CompileOptions

_EXAMPLES = """\
examples:
  mtfc compile model.mtf                              print one processor's program, with its collectives
  mtfc compile model.mtf --emit jax -o model.py       write a JAX module that runs without mtfc
  mtfc compile model.mtf --print-ir-after all         also print the program after each pass, on standard error
  mtfc compile model.mtf --stop-after insert-reshards
  mtfc compile model.mtf --passes "differentiate,simplify,dce"

kinds:
"""


def _kinds() -> str:
    """Return the kinds of text in two columns: those of the compiler, and those of the backends."""
    ours = {"ast": "the syntax tree", **{name: kind.title for name, kind in IR_KINDS.items()}}
    theirs = {name: kind.title for name, kind in text_kinds().items()}
    rows = zip_longest(ours.items(), theirs.items(), fillvalue=("", ""))
    return "".join(f"  {a:<9}  {b:<30}  {c:<9}  {d}".rstrip() + "\n" for (a, b), (c, d) in rows)


EXAMPLES = _EXAMPLES + _kinds()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--emit", choices=("ast", *EMITTERS), default="spmd", metavar="KIND", help="default: spmd"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", default=STANDARD, help="where to write (default: standard output)"
    )
    parser.add_argument("--train", action="store_true", help="fail if the file has no training step")
    passes = parser.add_argument_group("passes")
    passes.add_argument("--print-ir-after", metavar="PASS|all", help="print the program after this pass")
    passes.add_argument(
        "--passes",
        metavar="PIPELINE",
        help="run these passes instead: NAME or NAME{option=value}, with commas between",
    )
    passes.add_argument("--stop-after", metavar="PASS", help="end with this pass")
    add_selection(parser, "the first")
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    check_writable(options.output)
    check_apart({"-o": options.output}, {"FILE": options.file})
    as_json = options.format == "json"
    if options.emit == "ast":
        text = syntax_tree(options.file, sources, as_json)
    else:
        emitted = emit(_options(options), sources, lambda text: print(text, file=sys.stderr))
        text = json.dumps(emitted.record(), indent=2) if as_json else emitted.text
    write_text(options.output, text if text.endswith("\n") else f"{text}\n")
    return OK


def _options(options: argparse.Namespace) -> CompileOptions:
    return CompileOptions(
        options.file,
        chosen(options),
        options.emit,
        options.train,
        options.passes,
        options.stop_after,
        options.print_ir_after,
    )
