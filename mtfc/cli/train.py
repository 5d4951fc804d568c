"""`mtfc train`: train a model for hours, with checkpoints, on one process or many.

examples:
  mtfc train model.mtf --data train.npz --eval test.npz --epochs 10 --dir runs/first
  mtfc train lm.mtf --data tokens.bin:uint16 --steps 100000 --dir runs/lm --save-minutes 10 --tensorboard runs/tb
  mtfc train lm.mtf --data shards:uint16 --steps 1000 --layout fsdp --target h100 --profile /tmp/trace
  mtfc train lm.mtf --data mydata:batches --steps 1000 --coordinator host0:1234 --processes 4 --process-id 0

The same command again goes on from the last checkpoint in --dir, also with another --layout, --mesh or number of
processes. Ctrl-C stops after the running step and saves a checkpoint.
"""

import sys

from mtfc.cli.errors import leave, run_joined, show_diagnostics
from mtfc.cli.options import HOSTS, LOWERING, PARAMETERS, SOURCE, WHOLE_DOCUMENTS, Options, selection
from mtfc.driver.data.files import write_text
from mtfc.driver.errors import UsageError, say
from mtfc.driver.options import TrainOptions
from mtfc.driver.report import run_page
from mtfc.driver.training.hosts import Hosts
from mtfc.driver.training.train import train as train_model

OPTIONS = f"""{SOURCE}{PARAMETERS}{LOWERING}
length and data:
  --steps N              train until step N (default: one epoch)
  --epochs N             train for N passes over the data
  --data DATA            FILE.npz, .npy, .parquet, .jsonl or .array_record, FILE:DTYPE for tokens, a directory of these,
                         DATA@WEIGHT,... for a mixture, or MODULE:FUNCTION (default: one batch, drawn)
  --tokenizer FILE       a tokenizer.json, which makes tokens of the text in --data and --eval
{WHOLE_DOCUMENTS}
  --eval DATA            also run the model on these data, in the same forms
  --eval-every N         steps between evaluations (default: a tenth of the run)
  --eval-batches N       batches of an evaluation (default: all)
  --stop-early N         end after N evaluations in a row without a better mean: of the metric of --keep-best, or of the loss
  --seed N               seed of parameters and of the order of data (default: 0)

checkpoints:
  --dir DIR              the folder for checkpoints and metrics.jsonl, which may be remote
  --report OUT.html      at the end, write the page of `mtfc report DIR`; with a local --dir
  --save-every N         steps between checkpoints
  --save-minutes M       minutes between checkpoints (default: 10)
  --keep N               keep the newest N checkpoints (default: 3)
  --keep-best METRIC     also keep the checkpoint of the best evaluation, by `loss`, `NAME:max` or `NAME:min`
  --warm-start RUN       after a change of the program: take what fits from the last checkpoint of a run, and draw the rest
  --fresh                start over; earlier results in --dir are renamed

figures:
  --show-every N         steps between lines on standard output (default: a twentieth of the run)
  --log FILE             write a JSON line for each step (default: DIR/metrics.jsonl)
  --tensorboard DIR      write curves for TensorBoard
  --metrics MODULE:FUNCTION    call a function with the figures of each step, as a dict
  --profile DIR          write a trace of a few steps, by JAX's profiler
  --target MACHINE       compare each step with its predicted time on a machine
  --debug-nans           show the line that makes the first number that is not finite

steps that fail, and ends:
  --skip-steps N-M,...   read the batches of these steps, and leave the parameters alone
  --bad-steps N          end after N steps in a row that overflow with a dynamic loss scale (default: 50)
  --grace S              seconds from SIGTERM until the cluster ends the process (default: 30)
{HOSTS}{selection("the first", or_placement=True)}"""
RECORDS = TrainOptions, Hosts


def run(options: Options) -> int:
    """Train a model on its data, perhaps with other processes; return the exit status."""
    given = options.record(TrainOptions, hosts=options.record(Hosts))
    if options.report is not None:
        _check_report(options)
    return run_joined(given.hosts, lambda: _run(given, options), options)


def _check_report(options: Options) -> None:
    """Raise `UsageError` unless the run has a folder with its figures, and the page can be written."""
    if options.folder is None:
        raise UsageError("--report shows the figures of --dir: add --dir FOLDER")
    if options.log is not None:
        raise UsageError("--report shows the figures that --dir holds: leave out --log")
    if not options.report.endswith(".html"):
        raise UsageError(f"--report writes a page: expected a name such as run.html, not `{options.report}`")
    options.check_outputs("--report")


def _write_report(options: Options) -> None:
    """Write the page of the run. A run that ended before its first step has none, and keeps its status."""
    try:
        page = run_page(options.folder)
    except UsageError as error:
        say(str(error))
        return
    write_text(options.report, page.html)
    say(f"{options.report}: {page.title}")


def _run(given: TrainOptions, options: Options) -> int:
    """Train, print the summary on the leading host, and return the status."""
    done = train_model(given, options.sources, sys.stdout if options.format == "text" else None)
    if done.leads:
        options.print(done.summary.record, done.summary.table)
    if done.leads and options.report is not None:
        _write_report(options)
    if done.leads and done.cause:
        show_diagnostics([done.cause], options.sources, options.format)
    if done.leaves_thread:
        leave(done.status)
    return done.status
