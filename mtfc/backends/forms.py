"""The functions of a program as a generated module has them: their names, what they take and what they give."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Form:
    """How a function of the program looks in a module.

    takes: the dicts of its arguments by role, in the order of its signature. counts: whether the step's number comes last.
    gives: what it returns: `outputs`, and by the role of what they replace or belong to, dicts like its arguments.
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
"""What the program's functions are called in a module."""
