"""`mtfc search`: find the best plan for a machine, and print it with its proof.

examples:
  mtfc search model.mtf --target h100 --devices 64 -o best.mtf      find the best plan, and write it
  mtfc search model.mtf --target tpu_v2                     for all processors of a machine
  mtfc search model.mtf --target h100 --devices 8 --memory 40GiB       find a plan for half of the memory
  mtfc search model.mtf --mesh "rows:16;cols:32" --target tpu_v2
  mtfc search model.mtf --target tpu_v2 --axes-names data,model
  mtfc search model.mtf --mesh grid --why-not "batch:rows"  also print the cost of this rule, by line
  mtfc search train:step --args train:example --target h100 --devices 8 -o plan.json    search a plan of a function of JAX

  mtfc search model.mtf --space forms --layout hybrid --target tpu_v2      keep the rules, and choose the forms
  mtfc search model.mtf --space kcuts --target p2_8xlarge      SoyBean's k-cuts, beside the fewest bytes of all tilings
  mtfc search model.mtf --space soap --target p100_cluster --devices 4 -o placed.mtf
  mtfc search model.mtf --space soap --target p100_cluster --devices 4 --exhaustive
  mtfc search model.mtf --space soap --target p100_cluster --devices 4 --why-not "h: { batch: 4 }; y: {} on [0]"

A plan is a mesh, a layout, the storage of parameters and of the optimizer's state, recomputation, a pipeline and forms. The best
one has the shortest step, as `mtfc simulate` predicts it, and fits into the memory. OUT.mtf is FILE with the sizes of --dim and
the result, called `found`. A layout is the first of OUT.mtf, so `mtfc compile OUT.mtf` takes it. A placement is the last, and
`mtfc verify OUT.mtf` runs it.
"""

from typing import TextIO

from mtfc.cli.options import FORMAT, MODEL, Options, program
from mtfc.cli.progress import figures_line
from mtfc.driver.data.files import write_text
from mtfc.driver.errors import INTERRUPTED, OK, UsageError, say
from mtfc.driver.options import ChainOptions, SearchOptions
from mtfc.driver.searching.search import DEFAULT_TARGET, SPACES, search
from mtfc.driver.searching.space import SearchAnswer

OPTIONS = f"""{program()}
  --objective time|serial|memory|bytes    minimize the simulated step (time), its time without overlap (serial), the memory, or
                         the bytes that a device sends if no work is repeated (bytes) (default: time, with --space
                         tiling serial, kcuts bytes)
  --budget SECONDS       time limit of the search, in its own CPU seconds (default: 60)
  --why-not RULES        also compare the result with the best layout that has these rules, by line
  --what-if              also search, each in a fifth of the budget, with 1 GiB more memory, twice the network, twice the
                         batch, and twice and half the devices
  -o, --output OUT.mtf   write FILE with the result
{FORMAT}
choice of the processors:
  --devices N            number of devices, for meshes of any shape
  --mesh NAME|SHAPE      a declared mesh, or a shape; `one` is a single device
  --target HW            the machine (default: the first that FILE declares, else {DEFAULT_TARGET})
  --memory SIZE          the memory of a device, such as 40GiB, in place of the machine's
  --axes N               most axes of a mesh (default: 3)
  --axes-names A,B       names of the axes, the outermost first; a mesh has at most as many axes (default: x,y,z)

for experts, one part of the space or the spaces of papers:
  --space {"|".join(SPACES)}    {"; ".join(f"{name}: {space.summary}" for name, space in SPACES.items())} (default: plan)
  --storage              with --space rules: also search the sections params and optimizer of a layout
  --recompute            with --space rules, forms and pipelines: let the backward pass compute values again under layouts that
                         would not fit into memory, as --memory HW does
  --layout NAME|RULES    with --space forms: a declared layout, or rules (default: the first layout that FILE declares)
  --exhaustive           with --space soap: prove that the result is the best of all, on few devices
  --export OUT.json      with --space tiling: write the question to `mtfc solve` about the mesh of the result

with --space soap:
  --dimensions S,O,A,P   kinds of parallelism: samples, operators on different devices, attributes, parameters (default: all)
  --one-dimension        split each operator in at most one dimension
  --starts A,B           placements to start from: data_parallel, expert, random, or names of the file's (default: all)
  --proposals N          proposals of each chain (default: until the time ends)
  --beta B               accept a placement that takes 1/B longer with probability 1/e (default: 300)
  --seed N               seed of the random choices (default: 0)
  --simulation delta|full    simulate what a proposal changes, or everything, with the same result (default: delta)
{MODEL}"""
RECORDS = SearchOptions, ChainOptions


def run(options: Options) -> int:
    """Search for the best layout or placement, and show it; return the exit status."""
    given = options.record(SearchOptions, chains=options.record(ChainOptions))
    _check_suffix(options.output, given.choice.source is not None)
    to = options.check_outputs("-o", "--export")
    try:
        with figures_line(".4g", options.budget):
            found = search(given, options.sources, exports=options.export is not None)
    except KeyboardInterrupt:
        say(f"{options.file}: interrupted before anything was found")
        return INTERRUPTED
    _show(found, options, to)
    return OK


def _check_suffix(path: str | None, is_function: bool) -> None:
    """Raise `UsageError` if the name of a result says another kind of file: plans of functions are JSON."""
    function, file = (".json", ".mtf", "plan of a function of JAX"), (".mtf", ".json", "FILE with a layout")
    right, wrong, what = function if is_function else file
    if path is not None and path.endswith(wrong):
        raise UsageError(f"-o {path}: the result is a {what}: write -o {path.removesuffix(wrong)}{right}")


def _show(found: SearchAnswer, options: Options, to: TextIO) -> None:
    """Write and print the result, and the answer to `--why-not`."""
    if options.export is not None and found.exported is not None:
        write_text(options.export, found.exported())
    if options.output is not None:
        write_text(options.output, found.written())
    answer, prices = found.why_not(), found.prices()
    extra = {"why_not": answer.record()} if answer else {}
    extra |= {"what_if": prices.record()} if prices else {}
    more = [prices.report().removesuffix("\n")] if prices else []
    more += [answer.report(options.sources.with_library()).removesuffix("\n")] if answer else []
    options.print(
        lambda: found.result.record() | extra, lambda: "\n\n".join([found.result.report(), *more]), to
    )
