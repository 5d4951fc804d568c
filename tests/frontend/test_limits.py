"""Limits on what a small file can make the compiler do: each is an error before the work, at any size of the rest."""

import pytest

from mtfc.driver.check import check_source
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources

HEAD = "dim io = 4\ndim big = 1000000000\nmesh m = [x: 2]\n"
TOWER = "fn f0(x: [...]) -> [...] { return tanh(x) }\n" + "".join(
    f"fn f{i + 1}(x: [...]) -> [...] {{ return f{i}(f{i}(f{i}(f{i}(x)))) }}\n" for i in range(6)
)
MODELS = "".join(f"model net{i}(x: [io]) {{\n  y = f6(x)\n  return y\n}}\n" for i in range(20))
LOOP = "model net(x: [io]) {\n  repeat big {\n    x = tanh(x)\n  }\n  y = x + 1\n  return y\n}\n"
PLACED = "placement one on 2 = { y: {} on [1] }\n"
SMALL = "".join(f"model net{i}(x: [io]) {{ return x }}\n" for i in range(300))
LAYOUTS = "".join(f"layout l{i} on m = {{ io: x }}\n" for i in range(300))
PARAMETERS = "".join(f"  param w{i}: [io] = zeros()\n  x = x * w{i}\n" for i in range(1000))
FROZEN = "".join(f'  frozen "w{i}"\n' for i in range(1000))
TRAIN = f"train net {{\n  minimize loss\n  optimizer = sgd(learning_rate = 0.1)\n{FROZEN}}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + TOWER + MODELS, "the program has more than 50,000 equations and calls"),
        (HEAD + LOOP + PLACED, "a placement unrolls all loops"),
        (HEAD + SMALL + LAYOUTS, "have more than 100,000 tensors to check"),
        (
            f"{HEAD}model net(x: [io]) {{\n{PARAMETERS}  loss = sum(x)\n  return loss\n}}\n{TRAIN}",
            "make more than 500,000 pairs to compare",
        ),
    ],
)
def test_work_that_multiplies_is_refused(text: str, message: str) -> None:
    sources = Sources()
    sources.texts["case.mtf"] = text
    errors = [each for each in check_source("case.mtf", Choice(), sources) if each.severity == "error"]
    assert {each.code for each in errors} == {"E122"}
    assert message in errors[0].message


def test_a_long_chain_of_the_input_needs_no_recursion() -> None:
    sources = Sources()
    chain = "  x = tanh(x)\n" * 2000
    sources.texts["case.mtf"] = f"{HEAD}model net(x: [io]) {{\n{chain}  y = x + 1\n  return y\n}}\n{PLACED}"
    assert not [each for each in check_source("case.mtf", Choice(), sources) if each.severity == "error"]
