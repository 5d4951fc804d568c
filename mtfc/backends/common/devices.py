"""The devices of a JAX program: real ones if there are enough, else virtual ones of the CPU.

JAX makes its devices once per process, when a program first asks for one. A process that needs several meshes therefore reserves
devices for the largest one first.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from mtfc.backends.common.tpu_flags import add_tpu_flags

MOST_VIRTUAL = 2048
"""The largest number of CPU devices in one process. JAX gives higher device numbers to other processes."""

FLAG = "--xla_force_host_platform_device_count"
"""The XLA flag that sets the number of virtual CPU devices."""


def installing(extra: str) -> str:
    """Return the command that installs mtfc with an extra, or `base`. No release is published, so it runs in a checkout."""
    what = "." if extra == "base" else f"'.[{extra}]'"
    return f"pip install {what} in the checkout of mtfc"


class Unavailable(Exception):
    """Something is missing in the environment. The message names it, and says how to get it. Exit status 3."""


def import_jax() -> Any:
    """Return the `jax` package. Raises `Unavailable` if it is not installed.

    Adds flags for TPUs, as generated modules do. They have no effect once JAX has its devices.
    """
    _add_tpu_flags_once()
    try:
        import jax
    except ImportError as error:
        raise Unavailable(
            f"the JAX backend needs the package jax, which cannot be imported ({error}): {installing('jax')}"
        ) from error
    return jax


class LateJax:
    """JAX, which is imported once an attribute is asked for. Then a missing package raises `Unavailable`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_jax(), name)


jax: Any = LateJax()
"""JAX for modules all of whose functions need it."""


@cache
def _add_tpu_flags_once() -> None:
    add_tpu_flags()  # type: ignore[no-untyped-call]


@contextmanager
def setting_kept(name: str) -> Iterator[None]:
    """Restore a setting of JAX that the block may change for the whole process. Raises `Unavailable`.

    The caller may be in a context of JAX that has another value, for this thread alone.
    """
    from concurrent.futures import ThreadPoolExecutor

    config = import_jax().config
    with ThreadPoolExecutor(1) as outside:
        before = outside.submit(getattr, config, name).result()
    try:
        yield
    finally:
        config.update(name, before)


def reserve(count: int) -> None:
    """Make the CPU count as at least `count` devices. Has no effect after JAX has made its devices.

    Raises `Unavailable` if JAX is missing.
    """
    jax = import_jax()
    flag = re.search(rf"{FLAG}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    if count > max(int(flag[1]) if flag else 1, jax.config.jax_num_cpu_devices):
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def devices(count: int, needing: str = "the mesh has", smaller: str = "mesh") -> list[Any]:
    """Return `count` devices of one kind: JAX's default ones if there are enough, else virtual CPU devices.

    needing, smaller: the start of a message that says why, and what may be smaller. Raises `Unavailable` if JAX is missing, has
    already started with fewer devices, or cannot make enough.
    """
    jax = import_jax()
    # Each process of several has reserved its part before it joined the others.
    if not jax.distributed.is_initialized():
        reserve(min(count, MOST_VIRTUAL))
    found = of_kind(jax, None)
    if len(found) >= count:
        return found[:count]
    if count > MOST_VIRTUAL:
        raise Unavailable(
            f"{needing} {count} processors, and JAX makes at most {MOST_VIRTUAL} virtual devices: use a smaller {smaller}"
            + (", or --backend numpy" if smaller == "mesh" else "")
        )
    virtual = of_kind(jax, "cpu")
    if len(virtual) >= count:
        return virtual[:count]
    counted = {device.platform: len(kind) for kind in (found, virtual) for device in kind[:1]}
    started = " and ".join(f"{number} {name} device{'s' * (number > 1)}" for name, number in counted.items())
    raise Unavailable(
        f"{needing} {count} processors, and JAX has started with {started}: use a smaller {smaller}, or put"
        f' `jax.config.update("jax_num_cpu_devices", {count})` before the first use of JAX, or'
        f" XLA_FLAGS={FLAG}={count} into the environment"
    )


def of_kind(jax: Any, platform: str | None) -> list[Any]:
    """Return all devices of a platform, or of the default one if it is None. JAX may be told not to use a platform."""
    try:
        return list(jax.devices(platform))
    except RuntimeError as error:
        if platform is None:
            raise Unavailable(
                f"JAX finds no device to run on ({error}): unset JAX_PLATFORMS, or set it to cpu"
            ) from error
        return []
