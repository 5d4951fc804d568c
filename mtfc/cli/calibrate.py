"""`mtfc calibrate`: measure this machine, as a target for simulate.

examples:
  mtfc calibrate -o here.mtf                            measure all devices of JAX
  mtfc simulate model.mtf --target here.mtf             predict the time of a step on them
  mtfc calibrate --devices 8 -o virtual.mtf             measure eight devices, virtual ones if there are fewer
  mtfc calibrate --backend numpy -o numpy.mtf           measure the NumPy backend on one device
  mtfc calibrate --operators model.mtf --layout found   measure the operators of a placement, for simulate --measured
"""

from mtfc.backends.registry import BACKENDS
from mtfc.cli.options import Options, selection
from mtfc.driver.calibrate import check_devices, measure
from mtfc.driver.data.files import STANDARD, write_text
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.choice import Choice

OPTIONS = f"""
  -o, --output OUT.mtf   write to a file
  --backend {"|".join(sorted(BACKENDS))}    the measured backend (default: jax)
  --devices N            number of JAX devices (default: all)
  --shapes               also measure dots with few rows, and with few summed elements
  --quick                few sizes and short runs: seconds instead of two minutes
  --operators FILE       measure the parts of a model's operators instead, each size once: of a placement, or of all on N devices
{selection("none", or_placement=True)}"""
DEFAULTS = {"output": STANDARD, "backend": "jax"}


def run(options: Options) -> None:
    """Measure this machine for a hardware file, or the operators of a model with `--operators`."""
    if options.operators is not None:
        _operators(options)
        return
    if options.choice != Choice():
        raise UsageError("the options of models and layouts go with --operators, which measures a model")
    check_devices(options.backend, options.devices)
    options.check_outputs("-o")
    say("measuring; other work on this machine would disturb it")
    write_text(options.output, measure(options.backend, options.devices, options.quick, options.shapes))


def _operators(options: Options) -> None:
    """Measure the operators of a model on the devices. Raises `UsageError` for options about whole machines."""
    from mtfc.driver.calibrate import calibrate_operators

    if options.backend != "jax" or options.quick or options.shapes or options.output != STANDARD:
        raise UsageError(
            "--operators measures on JAX, and keeps the times: no --backend, --quick, --shapes and -o"
        )
    say("measuring; other work on this machine would disturb it")
    print(calibrate_operators(options.operators, options.choice, options.sources, options.devices))
