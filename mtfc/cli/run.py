"""`mtfc run`: execute a model, or train it for a few steps.

examples:
  mtfc run model.mtf --data batch.npz --save outputs.npz
  mtfc run model.mtf --train --steps 100 --data train.npz --save params.npz --backend jax
  mtfc run model.mtf --params params.npz --data test.npz --layout "batch:rows" --mesh "rows:4"
  mtfc run lm.mtf --model generate --params params.npz --prompt "def " --temperature 0.5 --seed 3

An NPZ file of data holds an array for each input. If the first dimension of an array is k times that of the
input, the array holds k batches. For fewer rows at the end the model is compiled a second time.
"""

from mtfc.backends.registry import BACKENDS
from mtfc.cli.errors import show_diagnostics
from mtfc.cli.options import LOWERING, PARAMETERS, SOURCE, Options, selection
from mtfc.driver.data.files import report_to
from mtfc.driver.errors import UsageError
from mtfc.driver.options import RunOptions
from mtfc.driver.running.generation import Generation
from mtfc.driver.running.run import run as run_model
from mtfc.reports.array_summary import StepRecord, step_text

OPTIONS = f"""{SOURCE}
  --backend {"|".join(BACKENDS)}    the backend that executes (default: jax, as `mtfc train`; numpy without JAX)
  --train                train by the file's `train` block
  --steps N              number of batches or training steps (default: one pass over the data)
  --data FILE.npz        inputs by name (default: one batch, drawn)
  --eval FILE.npz        during training, also run the model on these inputs
{PARAMETERS}
  --averages             start from the averages that --params has of trained parameters
  --save FILE            write the outputs, or the trained parameters and losses: .npz, or .safetensors
  --seed N               seed of drawn inputs, parameters and texts (default: 0)
  --debug-nans           in training, show the line that makes the first number that is not finite
  --without-collectives  send nothing, to measure how long steps take without communication: ALL NUMBERS ARE WRONG; with
                         --backend jax
{LOWERING}
text, of a model that continues prompts:
  --prompt TEXT          print this text and how the model continues it; repeatable
  --temperature T        0 takes the most probable token, 1 draws as the model says (default: 0.8)
  --tokenizer FILE       a tokenizer.json, for a model of its tokens rather than of bytes
  --tokens N             print at most N new tokens of each text
{selection("the first", or_placement=True)}"""
RECORDS = (RunOptions,)


def run(options: Options) -> int:
    """Run or train a model on drawn or given data; return the exit status."""
    to = report_to(options.save)
    given = options.record(RunOptions, generation=_generation(options))

    def show(step: StepRecord) -> None:
        """Print a line for a step of training; JSON has all steps at the end."""
        if options.format == "text":
            print(step_text(step), file=to, flush=True)

    done = run_model(given, options.sources, show)
    options.print(done.record, done.report, to)
    if done.cause:
        show_diagnostics([done.cause], options.sources, options.format)
    return done.status


def _generation(options: Options) -> Generation | None:
    """Return the prompts with their options; None without prompts. Raises `UsageError` for options alone."""
    values = {name: getattr(options, name) for name in ("temperature", "tokens", "tokenizer")}
    given = {name: value for name, value in values.items() if value is not None}
    if not options.prompts and given:
        raise UsageError(f"--{next(iter(given))} goes with --prompt, the text to continue")
    return Generation(tuple(options.prompts), **given) if options.prompts else None
