"""`mtfc verify`: every layout on every backend against the undistributed program.

The reference is the interpreter, on the program before anything is split. Each case starts from the same inputs and parameters.
The comparison covers outputs, gradients of all floating-point inputs and parameters, and drawn parameters. If the file trains,
the comparison covers parameters and optimizer state after each of three training steps, too. Placements are cases on NumPy,
compared in outputs and gradients of parameters.

A model that asks for `training` is compared in both modes: gradients in training, `forward` outside of training.

Rounding grows through some networks. Where two pixels are nearly equal, layouts may disagree on the larger one, and then on
whole gradients. Batch normalization over few numbers multiplies differences. So a case whose f32 difference exceeds the
tolerance runs again in f64. If the case agrees in f64, the difference was rounding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, get_args

from mtfc.cli.options import add_format, add_parameters, add_selection, add_source, seed
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.driver.data.inputs import given_parameters
from mtfc.driver.data.npz import Arrays, listed
from mtfc.driver.data.summary import finite
from mtfc.driver.errors import ERRORS, OK, UsageError
from mtfc.driver.running.execution import BACKENDS, without_warnings
from mtfc.driver.selection import Case, Selection, select
from mtfc.driver.sources import Sources
from mtfc.driver.verification.agreement import Part, Result, largest
from mtfc.driver.verification.reference import MOST_VIRTUAL_DEVICES, Exact, Reference

EXAMPLES = """\
examples:
  mtfc verify model.mtf
  mtfc verify model.mtf --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4" --backend numpy
  mtfc verify model.mtf --dim batch=8 --data batch.npz --format json

Status 1 says that something differs by more than rounding.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--backend", choices=BACKENDS, help="only this one (default: both)")
    parser.add_argument(
        "--dtype",
        choices=("f32", "f64"),
        help="compute everything in it, whatever the file says; in f64, differences are not hidden by rounding",
    )
    parser.add_argument("--data", metavar="FILE.npz", help="inputs; the first batch is used (default: drawn)")
    add_parameters(parser)
    parser.add_argument("--seed", metavar="N", type=seed, default=0, help="for what is drawn (default: 0)")
    add_selection(parser, "all", or_placement=True)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    if options.format == "json":
        found = record(options, sources)
        print(json.dumps(found, indent=2))
        return OK if found["ok"] else ERRORS
    results, _ = verified(options, sources, lambda result: print(_line(result), flush=True))
    print(_verdict(results))
    return OK if _are_right(results) else ERRORS


def record(options: argparse.Namespace, sources: Sources) -> dict[str, Any]:
    """The JSON record; see `docs/command.md`. Raises `CompileError`, `UsageError` and `Unavailable`."""
    results, tolerance = verified(options, sources)
    return _json(results, _are_right(results), tolerance)


def verified(
    options: argparse.Namespace, sources: Sources, show: Callable[[Result], None] = lambda _: None
) -> tuple[list[Result], float]:
    """Return the result of each case, shown as soon as it is known, and the largest difference that passes for rounding."""
    selection = select(options, sources, every_layout=True, or_placement=True)
    backends = _backends(options, selection)
    if "jax" in backends:
        _start_jax(selection.cases)
    program = everything_in(selection.program, options.dtype) if options.dtype else selection.program
    given = given_parameters(options, program)
    with without_warnings():
        results, tolerance = _compared(program, selection, backends, given, options, show)
    return results, tolerance


def _compared(
    program: Program,
    selection: Selection,
    backends: Sequence[str],
    given: Arrays,
    options: argparse.Namespace,
    show: Callable[[Result], None],
) -> tuple[list[Result], float]:
    reference = Reference.of(program, given, options)
    exact = Exact(selection.program, given, options, reference)
    results = []
    compared = chain.from_iterable(reference.compared(case, backends) for case in selection.cases)
    are_asked = options.layout is None or not selection.cases
    placements = selection.placements if are_asked and "numpy" in backends else ()
    placed = (reference.placed(placement) for placement in placements)
    for result in map(exact.settled, chain(compared, placed)):
        results.append(result)
        show(result)
    return results, reference.tolerance


def _are_right(results: Iterable[Result]) -> bool:
    return not any(result.wrong for result in results)


def _backends(options: argparse.Namespace, selection: Selection) -> Sequence[str]:
    """Raises `UsageError` where a placement was chosen, and JAX."""
    if selection.cases:
        return (options.backend,) if options.backend else BACKENDS
    if options.backend == "jax":
        raise UsageError("placements run on NumPy: no --backend jax")
    return ("numpy",)


def _start_jax(cases: Sequence[Case]) -> None:
    """JAX makes its devices once, so the largest mesh asks for them. GPUs and TPUs are to multiply numbers as they are, and not
    as rounded to 10 or 7 binary digits, which JAX lets them by default. Raises `Unavailable`.
    """
    from mtfc.backends.common.devices import import_jax, reserve

    import_jax().config.update("jax_default_matmul_precision", "highest")
    reserve(
        max((case.mesh.devices for case in cases if case.mesh.devices <= MOST_VIRTUAL_DEVICES), default=1)
    )


# Output


def _line(result: Result) -> str:
    """`hybrid      numpy  ok      outputs 1.2e-07  gradients 3.0e-07  parameters 0.0e+00  training 1.2e-07`"""
    start = f"{result.case.name:<20} {result.backend:<6}"
    if result.skipped:
        return f"{start} skipped: {result.skipped}"
    parts = "  ".join(f"{part} {error:.1e}" for part, error in largest(result.errors).items())
    wrong = f"  in {', '.join(result.wrong)}" if result.wrong else ""
    rounded = f"  which is rounding: {result.in_f64:.1e} in f64" if result.in_f64 is not None else ""
    if result.noise is not None:
        rounded = f"  which is rounding: noise of {result.noise:.1e} in the gradients does as much"
    return f"{start} {'WRONG' if wrong else 'ok':<6} {parts}{wrong}{rounded}"


def _verdict(results: Sequence[Result]) -> str:
    ran = [result for result in results if result.skipped is None]
    wrong = sum(bool(result.wrong) for result in ran)
    skipped = f", {len(results) - len(ran)} skipped" if len(ran) < len(results) else ""
    agree = f"{len(ran) - wrong} of {len(ran)} cases agree with the undistributed program{skipped}"
    names = dict.fromkeys(name for result in results for name in result.not_finite)
    if not names:
        return agree
    plural = "results are" if len(names) > 1 else "result is"
    return f"{agree}; {len(names)} {plural} not finite there: {listed(names)}"


def _json(results: Sequence[Result], ok: bool, tolerance: float) -> dict[str, Any]:
    return {"ok": ok, "tolerance": tolerance, "cases": [_case_json(result) for result in results]}


def _case_json(result: Result) -> dict[str, Any]:
    errors = {
        part: {name: finite(error) for name, error in result.errors.get(part, {}).items()}
        for part in get_args(Part)
    }
    return {
        "layout": result.case.name,
        "mesh": dict(result.case.mesh.axes),
        "backend": result.backend,
        "ok": not result.wrong,
        "skipped": result.skipped,
        "wrong": list(result.wrong),
        "in_f64": result.in_f64,
        "noise": result.noise,
        "not_finite": list(result.not_finite),
        **errors,
    }
