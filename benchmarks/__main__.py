"""`make bench`: measured figures of the project, each beside its target.

Each line has deterministic figures first. Times are medians, and compared times are measured in one run.
`python -m benchmarks startup compile` runs some of the sections only.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator

from benchmarks import (
    accuracy,
    compile_time,
    cpu_memory,
    data,
    first_step,
    gpu,
    gradient_sums,
    imports,
    inspection,
    networks,
    order,
    peer_flax,
    peer_gpt,
    peer_gspmd,
    peer_jax,
    peer_llama,
    peer_moe,
    peer_optax,
    peer_pipeline,
    peer_regions,
    peer_ring,
    peer_shardings,
    peer_zero,
    placements,
    plans,
    published,
    quality,
    rules,
    simulation,
    soap,
    solver,
    soybean,
    startup,
    step_memory,
    throughput,
    tiling,
    training,
    weights,
)
from benchmarks.figures import Figure

SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    "startup": startup.figures,
    "training": training.figures,
    "first_step": first_step.figures,
    "compile": compile_time.figures,
    "data": data.figures,
    "weights": weights.figures,
    "networks": networks.figures,
    "simulation": simulation.figures,
    "accuracy": accuracy.figures,
    "cpu_memory": cpu_memory.figures,
    "inspect": inspection.figures,
    "order": order.figures,
    "placements": placements.figures,
    "plans": plans.figures,
    "gpu": gpu.figures,
    "sums": gradient_sums.figures,
    "jax": peer_jax.figures,
    "gpt": peer_gpt.figures,
    "llama": peer_llama.figures,
    "moe": peer_moe.figures,
    "gspmd": peer_gspmd.figures,
    "imports": imports.figures,
    "shardings": peer_shardings.figures,
    "step_memory": step_memory.figures,
    "zero": peer_zero.figures,
    "optax": peer_optax.figures,
    "flax": peer_flax.figures,
    "ring": peer_ring.figures,
    "regions": peer_regions.figures,
    "pipeline": peer_pipeline.figures,
    "published": published.figures,
    "quality": quality.figures,
    "rules": rules.figures,
    "solver": solver.figures,
    "tiling": tiling.figures,
    "soybean": soybean.figures,
    "soap": soap.figures,
    "throughput": throughput.figures,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        print(f"unknown section {unknown[0]}; there are {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    missed = 0
    for name in names or SECTIONS:
        print(f"\n{name}")
        for figure in SECTIONS[name]():
            print(f"  {figure}", flush=True)
            missed += figure.missed
    return int(missed > 0)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    sys.exit(main(sys.argv[1:]))
