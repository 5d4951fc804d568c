"""The functions of a program as a generated module has them: names, arguments and results."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Form:
    """The form of a program's function in a generated module.

    takes: the dicts of its arguments by role, in the order of its signature. counts: True if the step's number comes last.
    outputs: True if the function returns a dict of outputs. gives: the other returned dicts, by the role of the arguments that
    they replace or belong to.
    """

    name: str
    takes: Mapping[str, str]
    counts: bool = False
    outputs: bool = True
    gives: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def signature(self) -> str:
        return ", ".join([*self.takes.values(), *(["step"] if self.counts else [])])


_MODEL = {"parameter": "params", "input": "inputs"}
_GRADIENTS = {"parameter": "gradients"}

FORMS: Mapping[str, Form] = {
    "forward": Form("forward", _MODEL),
    "gradients": Form("gradients", _MODEL),
    "step": Form(
        "train_step",
        {"parameter": "params", "state": "state", "input": "inputs"},
        counts=True,
        gives={"parameter": "params", "state": "state"},
    ),
    "batch_gradients": Form("batch_gradients", _MODEL, counts=True, gives=_GRADIENTS),
    "step_gradients": Form("step_gradients", _MODEL, counts=True, gives=_GRADIENTS),
    "clip_gradients": Form("clip_gradients", _GRADIENTS, outputs=False, gives=_GRADIENTS),
}
"""The program's functions, by name."""

NAMES = {function: form.name for function, form in FORMS.items()}
"""Name of each of the program's functions in a module."""
