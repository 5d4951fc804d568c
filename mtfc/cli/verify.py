"""`mtfc verify`: compare every layout on every backend with the undistributed program, and print the differences."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mtfc.backends.registry import BACKENDS
from mtfc.cli.options import (
    add_format,
    add_memory,
    add_parameters,
    add_passes,
    add_program,
    add_selection,
    chosen,
    seed,
)
from mtfc.driver.errors import ERRORS, OK
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import VerifyOptions
from mtfc.driver.verification.verify import Verified, verify
from mtfc.reports.exact_report import ExactCase, exact_text
from mtfc.reports.sizes_report import SizesCase, sizes_text
from mtfc.reports.verification_report import CaseResult, case_text

if TYPE_CHECKING:
    from mtfc.driver.verification.all_sizes import CheckedSizes
    from mtfc.driver.jax_functions.verification import VerifiedPlan

EXAMPLES = """\
examples:
  mtfc verify model.mtf
  mtfc verify model.mtf --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4" --backend numpy
  mtfc verify model.mtf --dim batch=8 --data batch.npz --format json
  mtfc verify model.mtf --all-sizes                                    prove all layouts, at any size
  mtfc verify train:step --args train:example --layout plan.json       verify a plan of a function of JAX

Status 1: a difference is larger than rounding.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.add_argument("--backend", choices=BACKENDS, help="run this backend only (default: both)")
    parser.add_argument(
        "--dtype",
        choices=("f32", "f64"),
        help="compute everything in this dtype, regardless of the file; in f64, rounding hides no differences",
    )
    parser.add_argument(
        "--data", metavar="FILE.npz", help="inputs; only the first batch is used (default: drawn)"
    )
    add_parameters(parser)
    parser.add_argument(
        "--seed", metavar="N", type=seed, default=0, help="seed of drawn inputs and parameters (default: 0)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print the error, the scale and the bound of every array"
    )
    parser.add_argument(
        "--no-exact", action="store_true", help="leave out the exact check, which rounding cannot mislead"
    )
    parser.add_argument(
        "--all-sizes",
        action="store_true",
        help="run the exact check alone, at small sizes that speak for every size: for models of any size on meshes of any size",
    )
    add_selection(parser, "all", or_placement=True)
    add_memory(parser)
    add_passes(parser)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    def show(result: CaseResult | ExactCase | SizesCase) -> None:
        if options.format == "json":
            return
        if isinstance(result, SizesCase):
            print(sizes_text(result), flush=True)
        elif isinstance(result, ExactCase):
            print(exact_text(result), flush=True)
        else:
            print(case_text(result, options.verbose), flush=True)

    given = _options(options)
    verified: Verified | VerifiedPlan | CheckedSizes
    if options.all_sizes:
        from mtfc.driver.verification.all_sizes import verify_all_sizes

        verified = verify_all_sizes(given, sources, show)
    elif given.choice.source is not None:
        from mtfc.driver.jax_functions.verification import verify_function

        verified = verify_function(given, sources)
    else:
        verified = verify(given, sources, show)
    print(json.dumps(verified.record(), indent=2) if options.format == "json" else verified.verdict())
    return OK if verified.ok else ERRORS


def _options(options: argparse.Namespace) -> VerifyOptions:
    return VerifyOptions(
        options.file,
        chosen(options),
        options.backend,
        options.dtype,
        options.data,
        options.params,
        options.params_partial,
        options.seed,
        not options.no_exact,
    )
