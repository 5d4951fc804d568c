"""The readme's network on real handwritten digits: it learns, and its losses agree under all layouts and backends."""

import importlib.util
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import RunOptions
from mtfc.driver.running.run import run
from tests.sampling import some

ROOT = Path(__file__).parents[1]
LAYOUTS = ("replicated", "batch_split", "hidden_split", "tiled", "image_split")
STEPS = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the arrays that the example writes."""
    spec = importlib.util.spec_from_file_location("digits", ROOT / "examples" / "digits.py")
    assert spec and spec.loader
    digits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(digits)
    digits.FOLDER = tmp_path_factory.mktemp("digits")
    digits.write_arrays()
    return Path(digits.FOLDER)


def losses(folder: Path, backend: str, layout: str) -> list[float]:
    """Return the loss of every step, after a check that at least 95 % of the test scans are recognised at the end."""
    options = RunOptions(
        str(ROOT / "examples" / "digits.mtf"),
        Choice(layout=layout),
        backend=backend,
        train=True,
        steps=STEPS,
        data=str(folder / "train.npz"),
        eval=str(folder / "test.npz"),
    )
    done = run(options, Sources(), lambda _: None)
    assert done.status == 0
    assert done.steps[-1]["eval"]["accuracy"] >= 0.95
    return [step["loss"] for step in done.steps]


def test_scans_kept_for_testing_are_not_trained_on(folder: Path) -> None:
    train, test = (np.load(folder / f"{name}.npz")["images"].reshape(-1, 64) for name in ("train", "test"))
    assert (len(train), len(test)) == (1440, 360)
    assert len({image.tobytes() for image in train} & {image.tobytes() for image in test}) == 0
    assert len({image.tobytes() for image in (*train, *test)}) == 1797


@pytest.fixture(scope="module")
def reference() -> dict[str, list[float]]:
    """The losses of the first case that runs."""
    return {}


@pytest.mark.parametrize(
    ("backend", "layout"), [*product(["numpy"], LAYOUTS), *product(["jax"], some(LAYOUTS, 2))]
)
def test_every_layout_learns_the_same(
    folder: Path,
    reference: dict[str, list[float]],
    backend: str,
    layout: str,
) -> None:
    found = losses(folder, backend, layout)
    assert len(found) == STEPS
    expected = reference.setdefault("losses", found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_test_covers_every_layout_of_the_file() -> None:
    text = (ROOT / "examples" / "digits.mtf").read_text("utf-8")
    assert tuple(line.split()[1] for line in text.splitlines() if line.startswith("layout")) == LAYOUTS
