"""The names, arguments and results of a program's functions in a generated module."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mtfc.compiler.ir.core import Function, Output


@attrs.frozen
class Form:
    """The form of a program's function in a generated module.

    takes: role of arguments -> the dict that has them, in the order of the signature.
    counts: True if the step's number comes last.
    outputs: True if the function returns a dict of outputs.
    gives: role of arguments -> the returned dict with their new values or gradients.
    """

    name: str
    takes: Mapping[str, str]
    counts: bool = False
    outputs: bool = True
    gives: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def signature(self) -> str:
        return ", ".join([*self.takes.values(), *(["step"] if self.counts else [])])

    def groups(self, function: Function) -> dict[str, dict[str, Output]]:
        """Return the outputs of a function by the dict that returns them, and by their keys there."""
        roles = {argument.value.name: argument.role for argument in function.arguments}
        found: dict[str, dict[str, Output]] = {"outputs": {}} if self.outputs else {}
        found |= {group: {} for group in self.gives.values()}
        for output in function.outputs:
            group = self.gives[roles[output.updates]] if output.updates else "outputs"
            found[group][output.updates or output.name] = output
        return found


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
    "averaged": Form(
        "averaged",
        {"parameter": "params", "state": "state"},
        outputs=False,
        gives={"parameter": "params"},
    ),
    "segment": Form(
        "segment",
        {"parameter": "params", "state": "state", "input": "inputs"},
        counts=True,
        gives={"parameter": "params", "state": "state"},
    ),
    "clip_gradients": Form("clip_gradients", _GRADIENTS, outputs=False, gives=_GRADIENTS),
}
"""Name of a function in the program -> its form."""

NAMES = {function: form.name for function, form in FORMS.items()}
"""Name of a function in the program -> its name in a module."""
