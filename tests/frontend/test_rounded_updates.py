"""W605 and W606 against the arithmetic of 16 bits."""

import ml_dtypes
import numpy as np
import pytest

from tests.harness import diagnose

MODEL = """
dim batch = 8
dim io = 4
model net(x: [batch, io]) {{
  param w: [io] = {init}
  param start: [io] = zeros()
  loss = mean(square(x * w + start))
  return loss
}}
train net {{
  minimize loss
  optimizer = {optimizer}
  precision = {{ params: {dtype}, compute: {dtype} }}
}}
"""


def warnings(init: str, optimizer: str, dtype: str) -> list[str]:
    found = diagnose(MODEL.format(init=init, optimizer=optimizer, dtype=dtype))
    return [each.code for each in found]


@pytest.mark.parametrize("size", [1.0, 0.02, 3.0, 0.5, 2.0**-20, 100.0])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_steps_that_vanish(size: float, optimizer: str) -> None:
    """A step is named exactly where subtracting it from an element of this size changes nothing."""
    stored = ml_dtypes.bfloat16(size)
    for rate in np.geomspace(size / 2**11, size / 2**6, 23):
        is_lost = stored - ml_dtypes.bfloat16(rate) == stored
        found = warnings(
            f"constant({float(stored)!r})",
            f"{optimizer}(learning_rate = {float(rate)!r}, beta2 = 0.99)",
            "bf16",
        )
        assert found == ["W606"] * int(is_lost), rate


@pytest.mark.parametrize(
    ("optimizer", "dtype", "expected"),
    [
        ("adam(learning_rate = 0.01)", "f16", ["W605"]),
        ("adam(learning_rate = 0.01, epsilon = 1e-7)", "f16", []),
        ("adam(learning_rate = 0.01, epsilon = 0.0)", "f16", []),
        ("adamw(learning_rate = 0.01, epsilon = 2e-8)", "f16", ["W605"]),
        ("adam(learning_rate = 0.01)", "f32", []),
        ("adam(learning_rate = 1e-9)", "f32", []),
        ("sgd(learning_rate = 1e-9)", "bf16", []),
        ("adam(learning_rate = 0.0001 * (step + 1))", "bf16", ["W605"]),
        ("adam(learning_rate = 0.0001 * (step + 1), beta2 = 0.99)", "bf16", []),
    ],
)
def test_numbers_that_are_zero(optimizer: str, dtype: str, expected: list[str]) -> None:
    assert warnings("ones()", optimizer, dtype) == expected
    epsilon = np.float16(1e-8)
    assert epsilon == 0 and np.float16(1e-7) != 0
