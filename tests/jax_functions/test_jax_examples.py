"""The further examples in `examples/jax` print what docs/jax.md shows (`make examples`). The first is a session of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"```text\n\$ python (examples/jax/\w+\.py)\n(.*?)```", re.DOTALL)
PAGE = dict(SHOWN.findall((ROOT / "docs" / "jax.md").read_text("utf-8")))


def test_the_page_shows_the_other_examples() -> None:
    assert PAGE.keys() == {"examples/jax/nnx_classifier.py", "examples/jax/keras_classifier.py"}


@pytest.mark.skipif("EVERY_LAYOUT" not in os.environ, reason="takes 20 s of computing: make examples")
@pytest.mark.parametrize("script", PAGE)
def test_an_example_prints_what_is_shown(script: str) -> None:
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.sub(r"\d+\.\d+", "N", done.stdout) == re.sub(r"\d+\.\d+", "N", PAGE[script])
