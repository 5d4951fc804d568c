"""`mtfc inspect`: print what the compiler of a machine makes of a step, beside the prediction.

examples:
  mtfc inspect model.mtf --target cpu:8                           compile for virtual CPU devices
  mtfc inspect model.mtf --target tpu_v5e --layout hybrid         compile for the smallest topology that has the mesh
  mtfc inspect model.mtf --target v5p:4x4x4 --format json         compile for a topology; this needs libtpu, and no TPU
  mtfc inspect train:step --args train:example --layout plan.json --target cpu:8 --apply       also inspect plan.apply

Status 1: the compiler refuses the program, for example because memory does not suffice.
"""

from mtfc.cli.options import LOWERING, Options, program, selection

OPTIONS = f"""{program()}
  --target HW            cpu:N for virtual devices, gpu, a machine such as tpu_v5e or h100, or a topology such as v5e:4x4
  --apply                inspect plan.apply, and the function with the shardings of its arguments and results alone, too
{LOWERING}{selection("the first")}"""
REQUIRED = "target"


def run(options: Options) -> None:
    """Show what a machine's compiler makes of a step, beside the prediction."""
    from mtfc.driver.inspect import inspect

    options.show(inspect(options.file, options.target, options.choice, options.sources, options.apply))
