"""The backends that there are. A new backend is a folder here and a record in `BACKENDS`.

The command and the Python API take their choices of backends and of emitted texts from this table. A record names functions by
module, and the module is imported at the first call: a check imports neither NumPy nor JAX, and generating a JAX module does not
import JAX.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.core import Program


def _late(module: str, function: str) -> Callable[..., Any]:
    """Return a function that imports its module when it is called."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"mtfc.backends.{module}"), function)(*arguments)

    return call


@attrs.frozen
class TextKind:
    """A text that a backend makes of a lowered program; `title` is a line of help. Making it may raise `Unavailable`."""

    title: str
    emit: Callable[[Program], str]


@attrs.frozen(kw_only=True)
class Backend:
    """One backend.

    title: a line of help for the generated module.
    generate: lowered program -> the text of a Python module that runs without mtfc; `common/emitter.py` lists its contents.
    load: text of the module -> the module, ready to run. Raises `Unavailable` if packages or devices are missing.
    measure: (number of devices, None for all; `calibration.Effort`) -> this machine as `Hardware`, and the name of the measuring
        tool. Raises `Unavailable`.
    further: kinds of text that the backend makes beside the module.
    """

    title: str
    generate: Callable[[Program], str]
    load: Callable[[str], ModuleType]
    measure: Callable[[int | None, Any], tuple[Hardware, str]]
    further: Mapping[str, TextKind] = attrs.field(factory=dict)


BACKENDS: Mapping[str, Backend] = {
    "numpy": Backend(
        title="a NumPy module that simulates every processor",
        generate=_late("numpy.backend", "generate"),
        load=_late("numpy.backend", "load"),
        measure=_late("calibrate.calibration", "with_numpy"),
    ),
    "jax": Backend(
        title="a JAX module",
        generate=_late("jax.backend", "generate"),
        load=_late("jax.runtime", "load"),
        measure=_late("calibrate.calibration", "with_jax"),
        further={
            "stablehlo": TextKind("what JAX hands to XLA", _late("jax.runtime", "stablehlo")),
            "hlo": TextKind("what XLA compiles it to", _late("jax.runtime", "hlo")),
        },
    ),
}


def default_backend() -> str:
    """Return the backend that runs models: JAX, on which `mtfc train` runs, or NumPy where JAX is not installed."""
    return "jax" if find_spec("jax") else "numpy"


def text_kinds() -> Mapping[str, TextKind]:
    """Return every kind of text that backends make, the modules first."""
    modules = {name: TextKind(each.title, each.generate) for name, each in BACKENDS.items()}
    return {**modules, **{kind: text for each in BACKENDS.values() for kind, text in each.further.items()}}
