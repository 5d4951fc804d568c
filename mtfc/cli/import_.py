"""`mtfc import`: read parameters that another library wrote.

examples:
  mtfc import model.mtf --from model.safetensors -o params.npz
  mtfc import llama.mtf --from Llama-3-8B --map maps/llama_hf.toml -o llama.safetensors
  mtfc run llama.mtf --params llama.safetensors --data batch.npz

--from takes a .safetensors or .npz file, or a folder with model.safetensors.index.json and its shards.
A map of weights has the names and shapes of another library: see docs/weights.md.
"""

from mtfc.cli.options import FORMAT, MODEL, SOURCE, Options
from mtfc.driver.exchange.exchange import import_weights
from mtfc.driver.options import ExchangeOptions

EXCHANGE = f"""
  --map MAP.toml         the names and shapes of another library
  -o, --output OUT       the file to write, which ends in .safetensors or .npz
{FORMAT}{MODEL}"""


OPTIONS = f"""{SOURCE}
  --from IN              the file or folder to read
{EXCHANGE}"""
RECORDS = (ExchangeOptions,)
REQUIRED = "from output"


def run(options: Options) -> None:
    written = import_weights(options.record(ExchangeOptions), options.sources)
    options.print(written.record, written.report)
