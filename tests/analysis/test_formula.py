"""Test formulas of sizes: their values follow the arithmetic of numbers, and they print in the file's order."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtfc.compiler.cost.sizes import FormulaSizes
from mtfc.compiler.cost.symbolic import Formula, Symbol, ratio
from mtfc.compiler.ir.types import Dim, Mesh

BATCH, IO, ROWS = Symbol(0, "batch", True), Symbol(1, "io", True), Symbol(2, "rows", False)
batch, io, rows = (Formula.symbol(symbol) for symbol in (BATCH, IO, ROWS))
numbers = st.fractions(-5, 5, max_denominator=4)
sizes = st.fixed_dictionaries({name: st.integers(1, 9) for name in ("batch", "io", "rows")})


@st.composite
def monomials(draw: st.DrawFn) -> Formula:
    """Draw a coefficient times powers of the symbols; axes divide, dimensions multiply."""
    powers = [
        (BATCH, draw(st.integers(0, 3))),
        (IO, draw(st.integers(0, 3))),
        (ROWS, -draw(st.integers(0, 2))),
    ]
    coefficient = draw(numbers.filter(bool))
    return Formula({tuple((symbol, power) for symbol, power in powers if power): coefficient})


formulas = st.lists(monomials(), max_size=4).map(lambda terms: sum(terms, start=Formula()))


@given(formulas, formulas, numbers, sizes)
def test_algebra_commutes_with_evaluation(a: Formula, b: Formula, n: Fraction, at: dict[str, int]) -> None:
    x, y = a.evaluate(at), b.evaluate(at)
    assert (a + b).evaluate(at) == x + y
    assert (a - b).evaluate(at) == x - y
    assert (a * b).evaluate(at) == x * y
    assert (n + a * n - n).evaluate(at) == x * n


@given(formulas, monomials(), sizes)
def test_division_by_one_term(a: Formula, term: Formula, at: dict[str, int]) -> None:
    assert (a / term).evaluate(at) == a.evaluate(at) / term.evaluate(at)
    assert (a / term) * term == a


def test_division_by_a_sum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot divide by the sum batch \+ io"):
        batch / (batch + io)


@given(formulas, sizes)
def test_text_is_an_expression_with_the_same_value(a: Formula, at: dict[str, int]) -> None:
    exact = {name: Fraction(size) for name, size in at.items()}
    assert eval(str(a), {}, exact) == pytest.approx(float(a.evaluate(at)))


@given(formulas)
def test_equal_formulas_print_alike_and_cancel(a: Formula) -> None:
    reordered = sum((Formula({m: c}) for m, c in reversed(a.terms.items())), start=Formula())
    assert reordered == a
    assert str(reordered) == str(a)
    assert not a - a
    assert str(a - a) == "0"


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (Formula.of(0), "0"),
        (Formula.of(-3), "-3"),
        (io * batch * 2 + 1, "2*batch*io + 1"),
        (io + batch * batch, "batch**2 + io"),
        (batch * io / rows - io, "batch*io/rows - io"),
        (batch / (rows * rows * 3), "batch/(3*rows**2)"),
        (Formula.of(1) / rows * -1, "-1/rows"),
        (Formula.of(Fraction(3, 2)) * batch, "3*batch/2"),
        (rows * io * batch, "batch*io*rows"),
    ],
)
def test_text(formula: Formula, text: str) -> None:
    assert str(formula) == text


def test_leading_terms_are_those_whose_dimensions_are_not_part_of_anothers() -> None:
    assert (batch * io / rows + 7 * batch + io + 5).leading() == batch * io / rows
    assert (batch + io + 1).leading() == batch + io
    assert (batch * batch + batch * io + batch).leading() == batch * batch + batch * io
    assert (batch / rows + batch + Formula.of(1) / rows).leading() == batch / rows + batch
    assert Formula.of(3).leading() == Formula.of(3)


@given(formulas)
def test_dropped_terms_are_dominated_by_a_leading_one(a: Formula) -> None:
    """A dropped term divided by some leading term has dimensions only in the denominator."""
    leading = a.leading()
    for monomial in a.terms.keys() - leading.terms.keys():
        quotients = [Formula({monomial: Fraction(1)}) / Formula({m: Fraction(1)}) for m in leading.terms]
        dims = [[power for s, power in m if s.is_dim] for quotient in quotients for m in quotient.terms]
        assert any(powers and max(powers) < 0 for powers in dims)


def test_ratio() -> None:
    assert ratio(2 * batch, 10 * batch * io / rows) == "rows/(5*io)"
    assert ratio(Formula(), batch) == "0"
    assert ratio(batch, batch + io) == "batch/(batch + io)"
    assert ratio(batch + 1, batch + io) == "(batch + 1)/(batch + io)"


def test_axis_called_as_a_dimension_is_written_with_its_mesh() -> None:
    dim = Dim("batch", 8)
    scale = FormulaSizes([dim], Mesh("line", (("batch", 2),)))
    assert str(scale.dim(dim, ("batch",))) == "batch/line.batch"
    assert scale.dim(dim, ("batch",)).evaluate(scale.values) == 4
