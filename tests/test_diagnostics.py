"""Test the text of every diagnostic: `diagnostics/CODE_*.test` has a source, a line `---`, and the expected text.

Imported files follow the source, each after a line `=== NAME.mtf`. `pytest --update-golden` rewrites the texts;
read the diff afterwards.
"""

import re
from pathlib import Path

import pytest

import mtfc
from mtfc.driver.layout_advice import predictor
from mtfc.driver.loading.layout_targets import layout_targets
from mtfc.frontend.check import check
from mtfc.frontend.semantics.names import standard_library
from mtfc.reports.diagnostic_text import render

CASES = sorted((Path(__file__).parent / "diagnostics").glob("*.test"))


def diagnosed(source: str) -> str:
    """Return the text of all diagnostics of the file `case.mtf` and the files beside it."""
    main, *others = re.split(r"^=== (\S+)\n", source, flags=re.MULTILINE)
    files = {"case.mtf": main, **dict(zip(others[::2], others[1::2], strict=True))}
    found = check(main, "case.mtf", neighbour=files.get, layout_targets=layout_targets, predictor=predictor)
    library_texts = standard_library.texts()
    return render(found, files | library_texts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_text_of_diagnostics(case: Path, update_golden: bool) -> None:
    source, expected = case.read_text("utf-8").split("---\n", 1)
    actual = diagnosed(source)
    if update_golden:
        case.write_text(f"{source}---\n{actual}", "utf-8")
        return
    assert actual == expected
    assert f"[{case.stem[:4]}]" in actual


def test_every_syntax_error_has_a_case() -> None:
    in_other_tests = {"E013"}  # a file that is not text
    sources = (Path(mtfc.__file__).parent / "frontend").rglob("*.py")
    used = {code for path in sources for code in re.findall(r'"(E0\d\d)"', path.read_text("utf-8"))}
    assert {case.stem[:4] for case in CASES} >= used - in_other_tests
