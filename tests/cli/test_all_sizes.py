"""`verify --all-sizes`: the check at small sizes says what the check at a program's own sizes says, and names its sizes."""

import re
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

import mtfc
from mtfc.cli.command import main
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.twins import plain, smaller, twin
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, Selection, choose
from mtfc.driver.verification.exact_cases import BOTH, small_programs
from tests.harness import load
from tests.sampling import some
from tests.sizes.campaign import Pair, checked

FILES = sorted((Path(__file__).parents[1] / "sizes").glob("*.mtf"))


def selected(file: Path) -> Selection:
    return choose(file.read_text("utf-8"), file.name, Choice(), every_layout=True)


@pytest.mark.parametrize("file", some(FILES, 1), ids=lambda file: file.stem)
def test_large_models_are_proven_in_seconds(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(file), "--all-sizes"]) == 0
    shown = capsys.readouterr().out
    assert "all sizes  ok     all" in shown
    assert re.search(r"multiples of (2048|256): .*batch", shown)


@pytest.mark.parametrize("file", some(FILES, 1), ids=lambda file: file.stem)
def test_twins_do_not_change_the_program(file: Path) -> None:
    selection = selected(file)
    found = small_programs(selection.program, selection.case)  # type: ignore[arg-type]
    plainly = selection.cases[0].lower(selection.program, of=BOTH)
    assert print_program(found.whole) == print_program(plainly)
    for each in found.lowered:
        assert signature(each) == signature(plainly)


def signature(program: Program) -> str:
    """Return the text of a program's functions without numbers."""
    text = print_program(program)
    return re.sub(r"=-?[\d.e+-]+\b|// .*", "=N", text[text.index("\nfunction ") :])


def test_a_twin_computes_with_its_small_numbers() -> None:
    batch, rows = twin(128, (4, 9)), twin(64, (2, 3))
    part = batch // rows
    assert part == 2
    assert [smaller(part, i) for i in (0, 1)] == [2, 3]
    assert [smaller(1 / batch, i) for i in (0, 1)] == [1 / 4, 1 / 9]
    assert [smaller(200 - batch, i) for i in (0, 1)] == [196, 191]
    assert type(plain(batch)) is int
    assert type(twin(3, (3, 3))) is int


@pytest.mark.parametrize("number", some(range(6), 3))
def test_small_sizes_agree_with_own_sizes(number: int) -> None:
    with np.errstate(all="ignore"):
        outcomes = Counter(checked(number))
    assert not [outcome for outcome in outcomes if ":" in outcome]
    assert outcomes["agrees"]


SCALED = """
dim batch = 4096
dim io = 1024
mesh grid = [rows: 64, cols: 16]
layout main on grid = { batch: rows, io: cols }
model m(x: f32[batch, io]) {
  param w: f32[io] = normal(stddev = 0.5)
  loss = mean(square(x * w))
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.25)
  accumulate = 256
}
"""


def test_every_fault_of_a_large_program_is_found() -> None:
    """The small programs have the sites of the large one, and each planted fault is found or changes nothing."""
    module = load(SCALED.replace("4096", "64").replace("1024", "16").replace("64, cols: 16", "8, cols: 4"))
    (program,), (layout,) = module.programs, module.layouts
    pair = Pair.of(program, LayoutOnMesh(layout.mesh, layout.layout))
    with np.errstate(all="ignore"):
        outcomes = Counter(pair.outcomes(Random(0)))
    assert outcomes["caught"]
    assert not [outcome for outcome in outcomes if ":" in outcome]


WINDOWS = """
dim batch = 256
dim length = 1026
dim halves = 512
dim out = 512
dim next = 1025
dim k = 4
mesh grid = [rows: 32]
layout main on grid = { batch: rows }
model m(x: f32[batch, length]) {
  first = slice(x, length -> halves, start = 2)
  second = slice(x, length -> halves, start = 514)
  joined = slice(x, length -> next, start = 1)
  windows = window(x, length -> [out, k], stride = 2)
  both = first * second
  return both, joined, windows
}
"""


def test_slices_and_windows_fit_at_small_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "windows.mtf"
    file.write_text(WINDOWS)
    assert main(["verify", str(file), "--all-sizes"]) == 0
    shown = capsys.readouterr().out
    assert "multiples of 32: batch" in shown
    assert re.search(r"from \d+ on: length|: .*length", shown)
    assert "1026" not in shown


COMPUTED = """
dim table = 64
dim length = 16
dim batch = 32
mesh grid = [rows: 16]
layout main on grid = { length: rows }
model m(x: f32[table, batch]) {
  param w: f32[length] = normal(stddev = 0.5)
  every = gather(x, 3 * range(length) + 2, table)
  backwards = gather(x, 15 - range(length), table)
  loss = sum(every * w) + sum(backwards * w)
  return loss
}
"""


def test_computed_indices_stay_in_range() -> None:
    """Else the rows of a lookup would be zeros at small sizes, and hide faults."""
    module = load(COMPUTED)
    (program,), (layout,) = module.programs, module.layouts
    pair = Pair.of(program, LayoutOnMesh(layout.mesh, layout.layout))
    for small in pair.small:
        sizes = {name: dim.size for name, dim in small.lowered.dims.items()}
        assert 3 * (sizes["length"] - 1) + 2 < sizes["table"] < 32
    with np.errstate(all="ignore"):
        outcomes = Counter(pair.outcomes(Random(0)))
    assert outcomes["caught"]
    assert not [outcome for outcome in outcomes if ":" in outcome]


def test_python_has_the_sizes(tmp_path: Path) -> None:
    file = tmp_path / "scaled.mtf"
    file.write_text(SCALED)
    found = mtfc.verify(file, all_sizes=True)
    assert found["ok"]
    (case,) = found["all_sizes"]
    assert case["sizes"]["batch"] == {"size": 4096, "multiple": 64, "small": [4, 9]}
    assert case["sizes"]["mesh axis rows"]["small"] == [2, 3]


def test_options_of_floats_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scaled.mtf"
    file.write_text(SCALED)
    assert main(["verify", str(file), "--all-sizes", "--dtype", "f64"]) == 2
    assert "--dtype has no meaning with --all-sizes" in capsys.readouterr().err


def test_large_programs_are_told_of_all_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scaled.mtf"
    file.write_text(SCALED.replace("4096", "4194304").replace("1024", "65536"))
    assert main(["verify", str(file)]) == 2
    assert "take --all-sizes" in capsys.readouterr().err
