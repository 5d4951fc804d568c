"""`mtfc compile`: compile a file, and print any stage of it.

examples:
  mtfc compile model.mtf                              print one processor's program, with its collectives
  mtfc compile model.mtf --emit jax -o model.py       write a JAX module that runs without mtfc
  mtfc compile model.mtf --print-ir-after all         also print the program after each pass, on standard error
  mtfc compile model.mtf --stop-after insert-reshards
  mtfc compile model.mtf --passes "differentiate,simplify,dce"
  mtfc compile --passes list                          print the passes, with their options
  mtfc compile model.ir --emit jax -o model.py        go on from a program that was printed
  mtfc compile train:step --args train:example --layout plan.json --emit jax        print the program of a plan

kinds:
"""

import sys
from itertools import zip_longest

import attrs

from mtfc.backends.registry import text_kinds
from mtfc.cli.options import FORMAT, MEMORY, Options, json_text, program, selection
from mtfc.driver.compile import EMITTERS, IR_KINDS, PassRecord, emit, list_passes, syntax_tree
from mtfc.driver.data.files import STANDARD, write_text
from mtfc.driver.errors import UsageError
from mtfc.driver.options import CompileOptions


def _kinds() -> str:
    """Return the kinds of text in two columns: those of the compiler, and those of the backends."""
    ours = {"ast": "the syntax tree", **{name: kind.title for name, kind in IR_KINDS.items()}}
    theirs = {name: kind.title for name, kind in text_kinds().items()}
    rows = zip_longest(ours.items(), theirs.items(), fillvalue=("", ""))
    return "".join(f"  {a:<9}  {b:<30}  {c:<9}  {d}".rstrip() + "\n" for (a, b), (c, d) in rows)


LIST = "list"
"""The word after `--passes` that prints all passes."""

MORE = _kinds()

OPTIONS = f"""{program(", a .ir file of IR text", is_required=False)}
  --emit KIND            default: spmd
  -o, --output OUT       where to write (default: standard output)
  --train                fail if the file has no training step
{MEMORY}{FORMAT}
passes:
  --print-ir-after PASS|all    print the program after this pass, or after each pass that changes it
  --print-function forward|gradients|step    print only this function after passes
  --print-diff           print only the lines that a pass changes
  --locations            print IR with the place of each equation in the source
  --passes PIPELINE      run these passes instead: NAME or NAME{{option=value}}, with commas between; `list` prints them
  --stop-after PASS      end with this pass
{selection("the first", or_placement=True)}"""
RECORDS = (CompileOptions,)
DEFAULTS = {"output": STANDARD}
CHOICES = {"emit": ("ast", *EMITTERS)}


def run(options: Options) -> None:
    """Run `mtfc compile`: print what the options ask for, or the list of passes."""
    if options.passes == LIST:
        write_text(options.output, list_passes())
        return
    if options.file is None:
        raise UsageError("which file? give a .mtf file, or `--passes list`")
    options.check_outputs("-o")
    as_json = options.format == "json"
    if options.emit == "ast":
        if options.args is not None:
            raise UsageError("--emit ast shows the text of a .mtf file, and a function of JAX has none")
        text = syntax_tree(options.file, options.sources, as_json)
    elif as_json:
        passes: list[PassRecord] = []
        record = emit(_options(options), options.sources, passes.append).record()
        record |= {"passes": [each.record() for each in passes]} if options.print_ir_after else {}
        text = json_text(record)
    else:
        text = emit(_options(options), options.sources, _show).text
    write_text(options.output, text if text.endswith("\n") else f"{text}\n")


def _show(found: PassRecord) -> None:
    if found.text is not None:
        print(f"// after {found.name} ({1000 * found.seconds:.1f} ms)\n{found.text}", file=sys.stderr)


def _options(options: Options) -> CompileOptions:
    return options.record(CompileOptions, choice=attrs.evolve(options.choice, passes=None))
