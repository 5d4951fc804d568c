"""The promise of docs/language.md for pending sums that pass through factors which are 0, infinite or NaN, on both backends."""

from typing import Any

import numpy as np
import pytest

from tests.harness import call, jax_module, load, lowered, numpy_module, reference

HEAD = "dim batch = 8; dim io = 4; mesh line = [all: 4]; layout dp on line = { batch: all }\n"

FORMS = ("y * s", "s * y", "y / s", "einsum(y, s -> [io])", "y * s + y", "y * (1.0 / s)")

FACTORS = (0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 3.0)


def results(product: str, x: Any, s: Any) -> dict[str, Any]:
    """Return `e`, each element of the product, undistributed and from both backends."""
    body = f"y = sum(x, over = batch); e = {product}; t = sum(e); return e, t"
    source = f"{HEAD}model m(x: [batch, io], s: [io]) {{ {body} }}\n"
    arrays = {"x": x.astype(np.float32), "s": s.astype(np.float32)}
    with np.errstate(all="ignore"):
        found = {"whole": reference(source, "forward", arrays)}
        function, program = load(source).programs[0].function("forward"), lowered(source)
        for name, module in (("numpy", numpy_module(program)), ("jax", jax_module(program))):
            found[name] = call(module, function, arrays)
    return found


@pytest.mark.parametrize("product", FORMS)
@pytest.mark.parametrize("factor", FACTORS)
def test_what_is_not_finite_stays_so_under_every_layout(product: str, factor: float) -> None:
    """Terms of both signs; one element has the special factor, and finite elements agree."""
    x = np.random.default_rng(1).integers(-8, 9, (8, 4)) / 4 + np.eye(8, 4)
    s = np.array([2.0, factor, 1.0, -4.0])
    found = results(product, x, s)
    for name in ("e", "t"):
        whole = found["whole"][name]
        for backend in ("numpy", "jax"):
            split = found[backend][name]
            assert (np.isfinite(split) == np.isfinite(whole)).all(), (backend, name, split, whole)
            np.testing.assert_allclose(split[np.isfinite(whole)], whole[np.isfinite(whole)], rtol=1e-5)


@pytest.mark.parametrize("term", [np.nan, np.inf, -np.inf])
def test_a_term_that_is_not_finite_reaches_every_result(term: float) -> None:
    x = np.ones((8, 4))
    x[5, 2] = term
    for found in results("y * s", x, np.array([1.0, 2.0, 3.0, 4.0])).values():
        assert list(np.isfinite(found["e"])) == [True, True, False, True]
        assert not np.isfinite(found["t"])
