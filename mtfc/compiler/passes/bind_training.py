"""bind-training: make the choices of a model that depend on `training`.

`differentiate` binds the flag to true in the functions that it adds. The flag then remains in `forward` only, where this pass
binds it to false. With training=true the flag is true there too: the operators of a placement are those of a training step.

Input:   %training: bool[] = training; %y: f32[batch] = where %training, %dropped, %x
Output:  %y: f32[batch] = transpose %x dims=[batch]
After this pass no `training` remains.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.training_flag import bound
from mtfc.compiler.passes.pass_base import Pass


@attrs.frozen
class BindTraining(Pass):
    name: ClassVar[str] = "bind-training"
    training: bool = False

    def run(self, program: Program) -> Program:
        return program.map_functions(lambda function: bound(function, self.training))
