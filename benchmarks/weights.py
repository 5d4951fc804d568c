"""Exchange of weights: time and memory of `mtfc import` and `mtfc export` for a Llama in bf16, as Hugging Face stores it."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np

from benchmarks.figures import Figure, median_seconds
from mtfc.driver.data.array_files import StoredArray, write_arrays
from mtfc.driver.exchange.exchange import export_weights, import_weights, links_of
from mtfc.driver.exchange.weight_map import read_map
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select_program
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import ExchangeOptions

EXAMPLES = Path(__file__).parents[1] / "examples"
LLAMA, MAP = str(EXAMPLES / "llama.mtf"), str(EXAMPLES / "maps" / "llama_hf.toml")
CHOICE = Choice(dims={"vocab": 32000, "d_model": 2048, "d_ff": 8192, "layers": 4, "d_k": 64})
RUNS = 3


def figures() -> Iterator[Figure]:
    with TemporaryDirectory() as folder:
        theirs, ours, back = (
            str(Path(folder) / f"{name}.safetensors") for name in ("theirs", "ours", "back")
        )
        size, largest = _write(theirs)
        copying = median_seconds(lambda: shutil.copyfile(theirs, back), RUNS)
        yield Figure(f"copying a file of {size / 1e9:.2f} GB", copying, "s")
        importing = ExchangeOptions(LLAMA, CHOICE, source=theirs, output=ours, map=MAP)
        exporting = ExchangeOptions(LLAMA, CHOICE, source=ours, output=back, map=MAP)
        for name, work in (
            ("importing", lambda: import_weights(importing, Sources())),
            ("exporting", lambda: export_weights(exporting, Sources())),
        ):
            yield Figure(f"{name} the same weights", median_seconds(work, RUNS), "s")
            yield Figure(f"{name}: peak of memory / the largest parameter", _peak(work) / largest, "x", 2.1)


def _write(path: str) -> tuple[int, int]:
    """Write weights; return the bytes of all and of the largest parameter."""
    sources = Sources()
    program = select_program(LLAMA, CHOICE, sources)
    generator = np.random.default_rng(0)

    def drawn(shape: tuple[int, ...]) -> Callable[[], object]:
        return lambda: generator.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)

    links = links_of(read_map(MAP, sources), program)
    write_arrays(path, {x.names[0]: StoredArray(x.shape, "bfloat16", drawn(x.shape)) for x in links})
    sizes = [2 * int(np.prod([dim.size for dim in each.type.dims])) for each in program.parameters]
    return sum(sizes), max(sizes)


def _peak(work: Callable[[], object]) -> int:
    """Return the most bytes that Python and NumPy have allocated at one time."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
