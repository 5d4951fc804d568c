"""The facts of a process of a run, and what is said of processes that differ."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import TrainOptions
from mtfc.driver.training import same_run
from mtfc.driver.training.same_run import Facts, check_same, facts_of
from tests.training.test_hosts import MODEL


def difference(*facts: Facts) -> list[str]:
    """Return the lines about facts that differ."""
    try:
        check_same(facts)
    except UsageError as error:
        return str(error).splitlines()[1:]
    return []


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Facts]:
    """Return the facts of options."""
    monkeypatch.chdir(tmp_path)
    Path("model.mtf").write_text(MODEL)

    def of(layout: str | None = None, fingerprint: str = "f", **options: object) -> Facts:
        case: LayoutOnMesh = select("model.mtf", Choice(layout=layout), Sources()).cases[0]
        return facts_of(TrainOptions("model.mtf", **options), fingerprint, "", case, {})  # type: ignore[arg-type]

    return of


def test_processes_are_counted_by_value(facts: Callable[..., Facts]) -> None:
    same, other = facts(), facts(seed=1, skipped=(range(3, 5),), fingerprint="g", layout="crossed")
    found = difference(same, other, same, same, same, same, other)
    assert found[:2] == [
        "  --seed: 0 on processes 0, 2, 3, 4 and 1 more; 1 on processes 1, 6",
        "  --skip-steps: () on processes 0, 2, 3, 4 and 1 more; (range(3, 5),) on processes 1, 6",
    ]
    assert [line.partition(":")[0].strip() for line in found[2:]] == [
        "the program, by its fingerprint",
        "--layout",
    ]
    assert difference(same, same) == [] == difference(facts(seed=1), facts(seed=1))


def test_what_chooses_the_program_is_named(facts: Callable[..., Facts]) -> None:
    here = facts(choice=Choice(model="lm", dims={"d": 8, "b": 4}, settings=("accumulate=4",)))
    there = facts(
        choice=Choice(dims={"b": 4, "d": 8}, settings=("accumulate=4", "optimizer.learning_rate=0.1"))
    )
    assert difference(here, there) == [
        "  --model: lm on process 0; nothing on process 1",
        "  --set: accumulate=4 on process 0; accumulate=4, optimizer.learning_rate=0.1 on process 1",
    ]


def test_where_process_0_writes_is_no_difference(facts: Callable[..., Facts]) -> None:
    assert difference(facts(log="a", tensorboard="b", target="h100"), facts(profile="c")) == []


def test_files_are_compared_by_content_and_not_by_place(facts: Callable[..., Facts]) -> None:
    for place in ("a", "b"):
        Path(place).mkdir()
        np.save(f"{place}/x.npy", np.zeros((4, 2), np.float32))
        Path(place, "tokens.bin").write_bytes(bytes(64))
    for spec in ("x={}/x.npy,y={}/x.npy", "{}/tokens.bin:uint16", "{}/x.npy", "module:function"):
        specs = [spec.replace("{}", place) for place in ("a", "b")]
        assert difference(*(facts(data=each, eval=each) for each in specs)) == []
    np.save("b/x.npy", np.zeros((4, 2), np.int32))  # of the same size
    (found,) = difference(facts(data="a/x.npy"), facts(data="b/x.npy"))
    assert found.startswith("  --data x.npy: 160 bytes (samples ")
    (found,) = difference(facts(data="a/tokens.bin:uint16"), facts(data="a/tokens.bin:int16"))
    assert found == "  --data: tokens.bin:uint16 on process 0; tokens.bin:int16 on process 1"
    assert len(difference(facts(data="a/x.npy"), facts())) == 2


def test_long_files_are_compared_by_samples_up_to_their_end(facts: Callable[..., Facts]) -> None:
    for size in (same_run.FIRST, same_run.FIRST + 1, same_run.FIRST + same_run.SAMPLE + 1, 5_000_000):
        Path("a.bin").write_bytes(bytes(size))
        before = facts(data="a.bin:uint8")
        for at in (size - 1, 0, 2_500_000):
            if at < size:
                Path("a.bin").write_bytes(bytes(size))
                with Path("a.bin").open("r+b") as file:
                    file.seek(at)
                    file.write(b"x" * min(size - at, 5000))
                assert len(difference(before, facts(data="a.bin:uint8"))) == 1


def test_versions_are_compared(facts: Callable[..., Facts], monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts()
    monkeypatch.setattr(same_run, "version", lambda package: "0.0.1" if package == "jax" else before[package])
    (found,) = difference(before, facts())
    assert found == f"  jax: {before['jax']} on process 0; 0.0.1 on process 1"
