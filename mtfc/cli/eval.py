"""`mtfc eval`: print the means of a model's outputs over data, with trained parameters.

examples:
  mtfc eval model.mtf --params runs/first --data test.npz
  mtfc eval lm.mtf --params runs/lm/checkpoints/8000 --data valid.bin:uint16 --batches 100 --layout fsdp
  mtfc eval lm.mtf --params runs/lm --data valid.bin:uint16 --coordinator host0:1234 --processes 4 --process-id 0
  mtfc eval model.mtf --params runs/first --averages --data test.npz --format json
"""

from mtfc.cli.errors import run_joined
from mtfc.cli.options import FORMAT, HOSTS, OF_PARAMETERS, SOURCE, WHOLE_DOCUMENTS, Options, selection
from mtfc.driver.errors import OK
from mtfc.driver.options import EvalOptions
from mtfc.driver.training.hosts import Hosts
from mtfc.driver.training.loop import evaluate

OPTIONS = f"""{SOURCE}
  --data DATA            FILE.npz, FILE.npy, FILE:DTYPE for tokens, a directory of these, or MODULE:FUNCTION
  --tokenizer FILE       a tokenizer.json, which makes tokens of the text in --data
{WHOLE_DOCUMENTS}
  --batches N            end after N batches (default: all)
{OF_PARAMETERS}
  --averages             take the averages that --params has of trained parameters
  --seed N               seed of parameters that --params lacks (default: 0)
{FORMAT}{selection("the first", or_placement=True)}{HOSTS}"""
RECORDS = EvalOptions, Hosts
REQUIRED = "data params"


def run(options: Options) -> int:
    given = options.record(EvalOptions, hosts=options.record(Hosts))
    return run_joined(given.hosts, lambda: _run(given, options), options)


def _run(given: EvalOptions, options: Options) -> int:
    """Evaluate, and print the means in process 0."""
    found = evaluate(given, options.sources)
    if found is not None:
        options.print(found.record, found.table)
    return OK
