"""`mtfc export`: write parameters as safetensors, under our names or those of another library.

examples:
  mtfc export model.mtf --params params.npz -o model.safetensors
  mtfc export model.mtf --params runs/first -o model.safetensors
  mtfc export llama.mtf --params params.npz --map maps/llama_hf.toml -o model.safetensors

A map of weights has the names and shapes of another library: see docs/weights.md.
"""

from mtfc.cli.import_ import EXCHANGE
from mtfc.cli.options import SOURCE, Options
from mtfc.driver.exchange.exchange import export_weights
from mtfc.driver.options import ExchangeOptions

OPTIONS = f"""{SOURCE}
  --params IN            the parameters: .npz, .safetensors, a folder of shards, or a --dir of `mtfc train`
  --averages             write the averages of parameters instead
{EXCHANGE}"""
RECORDS = (ExchangeOptions,)
REQUIRED = "params output"


def run(options: Options) -> None:
    written = export_weights(options.record(ExchangeOptions, source=options.params), options.sources)
    options.print(written.record, written.report)
