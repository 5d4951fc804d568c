"""The check of an import: the user's jaxpr and the imported program, both over a finite field.

`backends/exact/jaxprs.py` evaluates the jaxpr by itself, with axes by position. So a wrong link, rename or rule of the import
makes other numbers, and there is no tolerance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtfc.backends.exact.check import (
    DRAWS,
    ExactReference,
    ExactResult,
    evaluated,
    measured,
    summed_up,
    without_residues,
)
from mtfc.backends.exact.jaxprs import LONGEST_LOOP, ImportedEvaluation, JaxprOnField, with_key, without_key
from mtfc.backends.exact.residues import POISON, ExactArray, NotExact
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.loops import is_unbounded
from mtfc.driver.verification.exact_cases import elements, exact_case
from mtfc.driver.verification.results import ExactCase
from mtfc.frontend.jaxpr.importing import Imported

NAME = "import"
"""The name of the check beside those of layouts."""

MOST = 2**20
"""The most iterations of a loop."""


def import_case(imported: Imported, seed: int) -> ExactCase:
    """Compare the imported program with the jaxpr that it is made of."""
    name = imported.program.name
    try:
        case = exact_case(imported.program, NAME, lambda: _compared(imported, seed))
    except Exception as error:  # a primitive of the user's own may do anything on other numbers
        line = str(error).partition("\n")[0]
        return ExactCase(name, NAME, skipped=f"JAX raises {type(error).__name__} on residues: {line}")
    if case.wrong and case.found.cut_loops:
        return ExactCase(name, NAME, skipped="a loop does not end on residues")
    return case


def given_constants(imported: Imported) -> Mapping[str, Any]:
    """Return the arrays that the function closes over, by the names of arguments."""
    return {
        leaf.name: np.asarray(leaf.constant).reshape([dim.size for dim in leaf.flat_dims])
        for leaf in imported.inputs
        if leaf.constant is not None and leaf.key is None
    }


def _compared(imported: Imported, seed: int) -> ExactResult:
    if strange := without_residues(imported.main):
        raise NotExact(strange)
    reference = ExactReference(imported.program, given_constants(imported), seed, derives=False)
    main, closed = imported.main, imported.flat.closed
    number = len(closed.jaxpr.invars)
    counts, unsure, cut_loops = list[tuple[str, int, int, int]](), Counter[str](), 0
    for draw in DRAWS:
        field = reference.field(draw)
        arguments = {a.value.name: reference.drawn(a, field, draw, main.name) for a in main.arguments}
        shaped = ((leaf.key, arguments[leaf.name].reshape(leaf.shape)) for leaf in imported.inputs)
        given = [x if key is None else with_key(x.values, key) for key, x in shaped]
        constants = [(leaf.constant, x) for leaf, x in zip(imported.inputs, given, strict=True)][number:]
        actual = evaluated(main, arguments, ImportedEvaluation(field))
        unsure.update(field.counts)
        jaxprs = JaxprOnField(field, constants, _longest(imported))
        for leaf, x in zip(imported.outputs, jaxprs.run(closed, given[:number]), strict=True):
            output = actual[leaf.name]
            counts.append((f"{leaf.name} of {main.name}", output.size, *_differences(output, x)))
        cut_loops += jaxprs.cut_loops
    return summed_up(counts, unsure, len(DRAWS) * elements(imported.program), cut_loops)


def _longest(imported: Imported) -> int:
    """Return the number of iterations to follow a `while` for: the imported program leaves some loops there."""
    is_cut = any(eqn.regions and is_unbounded(eqn) for eqn in walk(imported.main.body))
    return LONGEST_LOOP if is_cut else MOST


def _differences(actual: ExactArray, expected: Any) -> tuple[int, int]:
    """Return the number of elements that differ, and of those that are not judged, as they have no meaning over the field."""
    if not isinstance(expected, ExactArray):
        expected = measured(actual.field, np.asarray(without_key(expected)))
    if not expected.is_float:
        return int((actual.values.ravel() != expected.values.ravel()).sum()), 0
    a, b = actual.residues().values.ravel(), expected.residues().values.ravel()
    is_unknown = b == POISON
    return int(((a != b) & ~is_unknown).sum()), int(is_unknown.sum())
