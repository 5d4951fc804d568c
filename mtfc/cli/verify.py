"""`mtfc verify`: compare every layout on every backend with the undistributed program.

examples:
  mtfc verify model.mtf
  mtfc verify model.mtf --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4" --backend numpy
  mtfc verify model.mtf --dim batch=8 --data batch.npz --format json
  mtfc verify model.mtf --all-sizes                                    prove all layouts, at any size
  mtfc verify train:step --args train:example --layout plan.json       verify a plan of a function of JAX

Status 1: a difference is larger than rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtfc.backends.registry import BACKENDS
from mtfc.cli.options import LOWERING, PARAMETERS, Options, program, selection
from mtfc.driver.errors import ERRORS, OK
from mtfc.driver.options import VerifyOptions
from mtfc.driver.verification.results import CheckResult, JaxGradients, Verified
from mtfc.driver.verification.verify import verify

if TYPE_CHECKING:
    from mtfc.driver.jax_functions.comparison import PlanVerification


OPTIONS = f"""{program()}
  --backend {"|".join(BACKENDS)}    run this backend only (default: both)
  --dtype f32|f64        compute everything in this dtype, regardless of the file; in f64, rounding hides no differences
  --data FILE.npz        inputs; only the first batch is used (default: drawn)
{PARAMETERS}
  --seed N               seed of drawn inputs and parameters (default: 0)
  --verbose              print the error, the scale and the bound of every array
  --no-exact             leave out the exact check, which rounding cannot mislead
  --all-sizes            run the exact check alone, at small sizes that speak for every size: for models of any size on
                         meshes of any size
  --step                 compare the training step with the `train` block, and nothing else
  --budget SECONDS       time for all checks; those that do not fit are skipped (default: each check has a time by its size)
{LOWERING}{selection("all", or_placement=True)}"""
RECORDS = (VerifyOptions,)


def run(options: Options) -> int:
    """Compare layouts with the undistributed program; return the exit status."""

    def show(result: CheckResult | str) -> None:
        """Print the lines of a result. Of several models, the name of each comes before its results."""
        if options.format == "text" and not isinstance(result, JaxGradients):
            print(f"{result}:" if isinstance(result, str) else result.text(options.verbose), flush=True)

    given = options.record(VerifyOptions, exact=not options.no_exact)
    verified: Verified | PlanVerification
    if given.choice.source is not None and not given.all_sizes:
        from mtfc.driver.jax_functions.verification import verify_function

        verified = verify_function(given, options.sources, show)
    else:
        verified = verify(given, options.sources, show)
    options.print(verified.record, verified.verdict)
    return OK if verified.ok else ERRORS
