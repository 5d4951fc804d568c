"""A sum whose terms XLA adds one after the other is no fault: its rounding grows with the number of terms."""

from functools import partial
from itertools import accumulate

import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.driver.verification.agreement import Expected, Limits
from mtfc.driver.verification.reference import MORE_ROUNDINGS, ROUNDINGS
from tests.harness import load

SOURCE = """
dim rows = 2; dim d = 6000
model net(x: {dtype}[rows, d]) {{ y = sum(x, over = d); return y }}
"""


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_terms_added_in_order_are_rounding(dtype: str) -> None:
    (program,) = load(SOURCE.format(dtype=dtype)).programs
    wide = np.random.default_rng(3).random((2, 6000)) + 0.5
    terms = wide.astype(np.float32 if dtype == "f32" else np.float64)
    evaluate = partial(interpret, program.function("forward"), program, {"x": terms})
    runs = [
        evaluate()["y"],
        *(evaluate(evaluate=rounding)["y"] for rounding in (*ROUNDINGS, *MORE_ROUNDINGS)),
    ]
    expected = Expected([np.asarray(run) for run in runs], Limits.of_dtype(terms.dtype))
    in_order = np.array([[*accumulate(row)][-1] for row in terms], terms.dtype)
    assert expected.compared(in_order).fault is None
    assert (
        expected.compared(in_order * (1 + 4000 * np.finfo(dtype.replace("f", "float")).eps)).fault
        == "differs"
    )
