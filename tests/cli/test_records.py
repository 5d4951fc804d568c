"""The Python API returns the records that the command prints with `--format json`, with the types of `records`."""

from collections.abc import Callable
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

import mtfc as mtfc_api
from mtfc.driver import records
from tests.cli.conftest import Mtfc

GRID = "rows:2;cols:3"
CASES: list[tuple[Callable[[], Any], tuple[str, ...], type]] = [
    (lambda: mtfc_api.cost("model.mtf"), ("cost", "model.mtf"), records.Costs),
    (
        lambda: mtfc_api.cost("model.mtf", layout={"io": "cols"}, mesh={"rows": 2, "cols": 3}, symbolic=True),
        ("cost", "model.mtf", "--symbolic", "--layout", "io:cols", "--mesh", GRID),
        records.Costs,
    ),
    (
        lambda: mtfc_api.explain("model.mtf", layout="both", dims={"batch": 8}),
        ("explain", "model.mtf", "--layout", "both", "--dim", "batch=8"),
        records.Explanation,
    ),
    (lambda: mtfc_api.diff("model.mtf"), ("diff", "model.mtf"), records.Difference),
    (
        lambda: mtfc_api.diff("model.mtf", {"batch": "rows"}, "both", mesh={"rows": 2, "cols": 3}, target="v100"),
        ("diff", "model.mtf", "--layout", "{ batch: rows }", "--layout", "both", "--mesh", GRID, "--target", "v100"),
        records.Difference,
    ),
    (
        lambda: mtfc_api.verify("model.mtf", backend="numpy", seed=3),
        ("verify", "model.mtf", "--backend", "numpy", "--seed", "3"),
        records.Verification,
    ),
    (
        lambda: mtfc_api.verify("model.mtf", layout="both", dtype="f64"),
        ("verify", "model.mtf", "--layout", "both", "--dtype", "f64"),
        records.Verification,
    ),
    (
        lambda: mtfc_api.compile("model.mtf", layout="both").simulate("k80_cluster"),
        ("simulate", "model.mtf", "--layout", "both", "--target", "k80_cluster"),
        records.Step,
    ),
    (
        lambda: mtfc_api.search("model.mtf", target="p100_cluster", devices=2),
        ("search", "model.mtf", "--target", "p100_cluster", "--devices", "2"),
        records.Search,
    ),
    (
        lambda: mtfc_api.search("model.mtf", target="p100_cluster", devices=2, space="soap", budget=30.0),
        ("search", "model.mtf", "--target", "p100_cluster", "--devices", "2", "--space", "soap", "--budget", "30"),
        records.Search,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "command", "type"), CASES, ids=lambda case: " ".join(case) if isinstance(case, tuple) else ""
)
def test_a_record_is_what_the_command_prints(
    call: Callable[[], Any], command: tuple[str, ...], type: type, mtfc: Mtfc
) -> None:
    printed, found = mtfc(*command, "--format", "json").json, call()
    if "search_seconds" in found:
        printed["search_seconds"] = found["search_seconds"]
        for one, other in zip(printed.get("history", ()), found.get("history", ()), strict=True):
            one["search_seconds"] = other["search_seconds"]
    assert found == printed
    assert_typed(found, type)


def assert_typed(value: object, type: Any) -> None:
    """Assert that a value has a type of `records`, with all required keys, and no others."""
    if is_typeddict(type):
        assert isinstance(value, dict)
        hints = get_type_hints(type, include_extras=True)
        needed = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
        assert needed <= value.keys() <= hints.keys(), (type, needed ^ value.keys())
        for name, each in value.items():
            hint = hints[name]
            assert_typed(each, get_args(hint)[0] if get_origin(hint) is NotRequired else hint)
    elif get_origin(type) is list:
        assert isinstance(value, list)
        for each in value:
            assert_typed(each, get_args(type)[0])
    elif get_origin(type) is dict:
        assert isinstance(value, dict)
        for each in value.values():
            assert_typed(each, get_args(type)[1])
    elif type is not Any:
        kinds = get_args(type) or (type,)
        assert isinstance(value, (*kinds, int) if float in kinds else kinds), (value, type)
