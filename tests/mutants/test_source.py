"""Mutants of the compiler's source differ from it in one place that can change what it does."""

from tests.mutants.source import FOLDERS, ROOT, TESTS, choices, concerning, mutant

TEXT = '''def f(x: int | None, y: int) -> bool | None:
    """Text."""
    if x is not None and not y:
        g(x, y)
    return any(a < 1 for a in y if a)
'''


def test_each_mutant_changes_one_place() -> None:
    every = [mutant("f.py", TEXT, i) for i, _ in enumerate(choices(TEXT))]
    assert [f"{each.line}: {each.before} -> {each.after}" for each in every] == [
        "3: if x is not None and (not y): -> if True:",
        "3: if x is not None and (not y): -> if False:",
        "3: x is not None and (not y) -> x is not None or not y",
        "3: x is not None and (not y) -> not y",
        "3: x is not None and (not y) -> x is not None",
        "3: x is not None -> x is None",
        "3: not y -> y",
        "4: g(x, y) -> pass",
        "4: g(x, y) -> g(y, x)",
        "5: any((a < 1 for a in y if a)) -> all((a < 1 for a in y if a))",
        "5: a < 1 -> a <= 1",
        "5: 1 -> 2",
        "5: 1 -> 0",
        "5: for a in y if a -> for a in y",
    ]
    assert len({each.text for each in every}) == len(every)


def test_every_file_has_tests() -> None:
    files = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert all(map(concerning, files))
    assert all((ROOT / test.split("::")[0]).exists() for tests in TESTS.values() for test in tests)
