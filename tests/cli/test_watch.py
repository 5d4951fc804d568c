"""Values that a file watches: what `mtfc run` and `mtfc train` show of them."""

import json
import re
from pathlib import Path

import numpy as np

from tests.cli.conftest import Mtfc


def write(folder: Path, body: str) -> None:
    (folder / "model.mtf").write_text(f"""
dim batch = 8
dim io = 4
dim layers = 3
mesh line = [rows: 2]
layout data = {{ batch: rows }}
fn half[d](x: [..., d]) -> [..., d] {{
  scores = tanh(x)
  size = mean(square(scores))
  watch scores, size
  return scores * 0.5
}}
model m(x: [batch, io]) {{
  param w: [io] = normal(stddev = 0.5)
  h = x * w
  {body}
  loss = mean(square(h))
  return h, loss
}}
train m {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}
""")


def test_a_loop_that_only_watches_stays(mtfc: Mtfc, folder: Path) -> None:
    """Nothing but `watch` reads `g`, and no warning calls it unused; a call that nothing reads is left out as a whole."""
    write(folder, "repeat layers { g = tanh(h); watch g }\n z = half(h)")
    checked = mtfc("check", "model.mtf")
    assert checked.status == 0
    assert "`z`" in checked.out + checked.err and "`g`" not in checked.out + checked.err
    assert [*mtfc("run", "model.mtf", "--format", "json").json["outputs"]] == ["h", "loss", "layers.g"]


def test_a_short_last_batch_is_joined_where_the_rows_are(mtfc: Mtfc, folder: Path) -> None:
    """The rows of a value that is watched in a loop are along its second dimension."""
    write(folder, "repeat layers { g = tanh(h); h = 2 * g; watch g }")
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((19, 4)).astype(np.float32))
    for rows in ("8", "19"):
        options = ("--data", "x.npz", "--dim", f"batch={rows}", "--layout", "{}", "--save", f"{rows}.npz")
        assert mtfc("run", "model.mtf", *options).status == 0
    with np.load("8.npz") as several, np.load("19.npz") as whole:
        assert several["layers.g"].shape == (3, 19, 4)
        np.testing.assert_allclose(several["layers.g"], whole["layers.g"], rtol=1e-6)


def test_each_step_of_training_shows_watched_figures(mtfc: Mtfc, folder: Path) -> None:
    """Scalars and short vectors are figures; a line shows them for as many steps as `--show-every` says."""
    write(folder, "repeat layers { h = half(h) }\n step = max(h -> [])\n watch step")
    done = mtfc("run", "model.mtf", "--train", "--steps", "2")
    lines = re.findall(r"^step +\d.*", done.out, re.M)
    assert len(lines) == 2 and all(" layers.half.size [0." in line for line in lines)
    done = mtfc("train", "model.mtf", "--steps", "5", "--log", "log.jsonl", "--show-every", "2")
    lines = re.findall(r"^step +\d.*", done.out, re.M)
    assert [line.split()[1] for line in lines] == ["1/5", "2/5", "4/5", "5/5"]
    assert all(" layers.half.size [0." in line for line in lines)
    figures = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert [each["step"] for each in figures] == [1, 2, 3, 4, 5]
    assert all(len(each["layers.half.size"]) == 3 and 0 < each["report/step"] < 2 for each in figures)
    assert "layers.half.scores" not in figures[0]
