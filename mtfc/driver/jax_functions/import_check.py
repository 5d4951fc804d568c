"""The check of an import: the user's jaxpr and the imported program, both over a finite field.

`backends/exact/jaxprs.py` evaluates the jaxpr by itself, with axes by position. So a wrong link, rename or rule of the import
makes other numbers, and there is no tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mtfc.compiler.activity import doing
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.loops import is_unbounded
from mtfc.reports.exact_report import ExactCase

if TYPE_CHECKING:
    from mtfc.backends.exact.residues import ExactArray
    from mtfc.frontend.jaxpr.importing import Imported, Leaf

NAME = "import"
"""The name of the check beside those of layouts."""

MOST = 2**20
"""The most iterations of a loop."""


def import_case(imported: Imported, seed: int) -> ExactCase:
    """Compare the imported program with the jaxpr that it is made of."""
    from mtfc.backends.exact.check import without_residues
    from mtfc.backends.exact.residues import NotExact
    from mtfc.driver.running.execution import without_warnings
    from mtfc.driver.verification.exact_cases import QUICK, elements

    name, size = imported.program.name, elements(imported.program)
    if size > QUICK:
        return ExactCase(NAME, name, skipped=f"its values have {size:.1e} elements")
    if strange := without_residues(imported.main):
        return ExactCase(NAME, name, skipped=f"`{strange}` has no meaning on residues")
    with doing("exact check of the import"), without_warnings():
        try:
            return _compared(imported, seed, size)
        except NotExact as error:
            return ExactCase(NAME, name, skipped=f"`{error}` has no meaning on residues")
        except Exception as error:  # a primitive of the user's own may do anything on other numbers
            line = next(iter(str(error).splitlines()), "")
            return ExactCase(NAME, name, skipped=f"JAX raises {type(error).__name__} on residues: {line}")


def given_constants(imported: Imported) -> Mapping[str, Any]:
    """Return the arrays that the function closes over, by the names of arguments."""
    import numpy as np

    return {
        leaf.name: np.asarray(leaf.constant).reshape([dim.size for dim in leaf.flat_dims])
        for leaf in imported.inputs
        if leaf.constant is not None and leaf.key is None
    }


def _compared(imported: Imported, seed: int, size: int) -> ExactCase:
    from mtfc.backends.exact.check import DRAWS, ExactReference, evaluated
    from mtfc.backends.exact.jaxprs import ImportedEvaluation, JaxprOnField
    from mtfc.backends.exact.prime_field import PRIMES, PrimeField

    reference = ExactReference(imported.program, given_constants(imported), seed, derives=False)
    main, closed = imported.main, imported.flat.closed
    number = len(closed.jaxpr.invars)
    wrong: dict[str, None] = {}
    judged = {leaf.name: 0 for leaf in imported.outputs}
    elements, cut, unsure = 0, 0, dict[str, int]()
    for draw in DRAWS:
        field = PrimeField(PRIMES[draw], seed + draw)
        arguments = {a.value.name: reference.drawn(a, field, draw, main.name) for a in main.arguments}
        given = [_as_in_jax(leaf, arguments[leaf.name]) for leaf in imported.inputs]
        constants = [(leaf.constant, x) for leaf, x in zip(imported.inputs, given, strict=True)][number:]
        actual = evaluated(main, arguments, ImportedEvaluation(field))
        unsure = {what: unsure.get(what, 0) + n for what, n in field.counts.items()}
        jaxprs = JaxprOnField(field, constants, _longest(imported))
        for leaf, x in zip(imported.outputs, jaxprs.run(closed, given[:number]), strict=True):
            apart, unknown = _differences(actual[leaf.name], x)
            elements += actual[leaf.name].size
            judged[leaf.name] += actual[leaf.name].size - unknown
            if apart:
                wrong[leaf.name] = None
        cut += jaxprs.cut_loops
    if wrong and cut:
        return ExactCase(NAME, imported.program.name, skipped="a loop does not end on residues")
    return ExactCase(
        NAME,
        imported.program.name,
        tuple(f"{name} of {main.name}" for name in wrong),
        elements=elements,
        not_judged=elements - sum(judged.values()),
        unsure=unsure,
        computed=2 * size,
        cut_loops=cut,
        unjudged=tuple(name for name, number in judged.items() if not number),
    )


def _longest(imported: Imported) -> int:
    """Return the number of iterations to follow a `while` for: the imported program leaves some loops there."""
    from mtfc.backends.exact.jaxprs import LONGEST_LOOP

    is_cut = any(eqn.regions and is_unbounded(eqn) for eqn in walk(imported.main.body))
    return LONGEST_LOOP if is_cut else MOST


def _as_in_jax(leaf: Leaf, x: ExactArray) -> Any:
    """Return the value of an argument in the shape that the user's function takes: random keys from their data."""
    if leaf.key is None:
        return x.reshape(leaf.shape)
    import jax

    return jax.random.wrap_key_data(jax.numpy.asarray(x.values.reshape(leaf.shape)), impl=leaf.key)


def _differences(actual: ExactArray, expected: Any) -> tuple[int, int]:
    """Return the number of elements that differ, and of those that are not judged, as they have no meaning over the field."""
    import numpy as np

    from mtfc.backends.exact.residues import POISON, ExactArray

    if not isinstance(expected, ExactArray):
        import jax

        return int((actual.values.ravel() != np.asarray(jax.random.key_data(expected)).ravel()).sum()), 0
    if not expected.is_float:
        return int((actual.values.ravel() != expected.values.ravel()).sum()), 0
    a, b = actual.residues().values.ravel(), expected.residues().values.ravel()
    is_unknown = b == POISON
    return int(((a != b) & ~is_unknown).sum()), int(is_unknown.sum())
