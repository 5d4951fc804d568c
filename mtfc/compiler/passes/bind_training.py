"""bind-training: make the choices of a model that depend on `training`.

`differentiate` binds the flag to true in the functions that it adds. The flag then remains in `forward` only, where this pass
binds it to false. With training=true the flag is true there too: the operators of a placement are those of a training step.

A run outside of training leaves the model's states as they are: `forward` loses the outputs that update them.

Input:   %training: bool[] = training; %y: f32[batch] = where %training, %dropped, %x
Output:  %y: f32[batch] = transpose %x dims=[batch]
After this pass no `training` remains, and `forward` updates nothing.
"""

from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.training import bound
from mtfc.compiler.passes.dce import live_only
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class BindTraining(Pass):
    name: ClassVar[str] = "bind-training"
    training: bool = False

    def run(self, program: Program) -> Program:
        return program.map_functions(lambda function: _without_updates(bound(function, self.training)))


def _without_updates(function: Function) -> Function:
    """Drop the outputs of `forward` that update states, and the equations that only these outputs need."""
    if function.name != "forward" or function.handed_out == function.outputs:
        return function
    return live_only(attrs.evolve(function, outputs=function.handed_out))
