"""Predicted arguments, memory and FLOPs of training steps, beside those of the compiled programs, as `mtfc inspect` shows them.

The steps are those of `cpu_memory` on eight virtual CPU devices. Where libtpu is installed, the large networks of `accuracy`
follow.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cpu_memory import CASES
from benchmarks.figures import Figure
from benchmarks.steps import LARGE
from mtfc.backends.common.devices import Unavailable
from mtfc.driver.compiled_step import CompileTarget, inspected


def figures() -> Iterator[Figure]:
    for target, case in [*(("cpu", case) for case in CASES), *LARGE]:
        try:
            found = inspected(case.lowered(), CompileTarget.of(target))
        except Unavailable as error:
            print(f"  left out: {error}")
            return
        said, real = found["predicted"], found["compiled"]
        wrong = abs(said.memory["arguments"] - real.memory["arguments"])
        yield Figure(f"{case.name} on {found.target}: wrong bytes of arguments", wrong, "", 0)
        yield Figure("    predicted memory over compiled", said.memory["total"] / real.memory["total"], "")
        yield Figure("    predicted FLOPs over compiled", said.flops / real.flops, "")
        if real.total_cycles:
            yield Figure(
                "    predicted cycles over compiled", (said.total_cycles or 0) / real.total_cycles, ""
            )
