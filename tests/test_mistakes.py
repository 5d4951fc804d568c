"""Test that the message about a mistake names a remedy, and that the remedy works: the tables are in `mistakes.py`."""

import pytest

from mtfc.frontend.check import check
from tests.mistakes import IN_FILES, MODEL


@pytest.mark.parametrize(
    ("old", "wrong", "message", "remedy", "right"), IN_FILES, ids=[row[1].strip()[:40] for row in IN_FILES]
)
def test_mistakes_in_files(old: str, wrong: str, message: str, remedy: str, right: str) -> None:
    assert MODEL.count(old) == 1
    errors = check(MODEL.replace(old, wrong), "model.mtf").errors
    assert f"{errors[0].code}: {errors[0].message}".startswith(message)
    assert remedy in f"{errors[0].message} {errors[0].help}"
    assert not check(MODEL.replace(old, right), "model.mtf").errors


def test_a_wrong_name_of_the_loss_is_reported_beside_another_mistake() -> None:
    text = MODEL.replace("minimize loss", "minimize los").replace(
        "one_hot(labels, classes)", "one_hott(labels, classes)"
    )
    assert [each.code for each in check(text, "model.mtf").errors] == ["E104", "E401"]
    assert check(text, "model.mtf").errors[1].help == "did you mean `loss`?"
