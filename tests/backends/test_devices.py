"""The devices of JAX programs. Each case has a process of its own, as JAX makes its devices once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtfc.backends.common import tpu_flags
from mtfc.backends.common.tpu_flags import ALL_REDUCE_FLAG, TPU_FLAGS, TPU_VARIABLE, add_tpu_flags
from tests.documents import ROOT


def output(code: str, **environment: str) -> str:
    """Return the output of the code, which starts with `devices` and `reserve` imported, and JAX not started."""
    prologue = (
        "from mtfc.backends.common.devices import *\nfrom mtfc.backends.common.devices import reserve\n"
    )
    clean = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-c", prologue + code]
    done = subprocess.run(
        command, env={**clean, "JAX_PLATFORMS": "cpu", **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


REFUSED = """
try:
    devices(8)
except Unavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    "flags", ["", "--xla_force_host_platform_device_count=12", "--xla_cpu_enable_fast_math=false"]
)
def test_virtual_devices(flags: str) -> None:
    code = "found = devices(6); print(len(found), found[0].platform, len(devices(3)))"
    assert output(code, XLA_FLAGS=flags) == "6 cpu 3"


def test_a_flag_that_offers_more_devices_counts() -> None:
    """The first mesh does not spoil the second."""
    flags = "--xla_force_host_platform_device_count=8"
    assert output("print(len(devices(2)), len(devices(8)))", XLA_FLAGS=flags) == "2 8"


def test_reserved_devices_are_there_for_a_larger_mesh() -> None:
    assert output("reserve(8); print(len(devices(2)), len(devices(8)))") == "2 8"


@pytest.mark.parametrize("given", ["", "--xla_enable_async_all_gather=false --other=1"])
def test_flags_of_the_tpu_compiler_stand_beside_those_of_the_user(given: str) -> None:
    code = "import os; import_jax(); import_jax(); print(os.environ['LIBTPU_INIT_ARGS'])"
    found, own = output(code, LIBTPU_INIT_ARGS=given).split(), given.split()
    assert found[: len(own)] == own
    assert (
        len(found)
        == len({flag.split("=")[0] for flag in found})
        == len({*own, *TPU_FLAGS, ALL_REDUCE_FLAG}) - bool(own)
    )


@pytest.mark.parametrize("chip", ["0x0027", "0x005e", "0x0062"])
def test_chips_before_v5_send_no_all_reduces_in_dots(
    chip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA fails to compile the largest Transformer for v2, v3 and v4 with this flag: its kernels lack memory."""
    for number, (vendor, device) in enumerate([("0x8086", chip), ("0x1ae0", chip)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    monkeypatch.setattr(tpu_flags, "Path", lambda _: tmp_path)
    monkeypatch.setenv(TPU_VARIABLE, "")
    add_tpu_flags()
    assert (ALL_REDUCE_FLAG in os.environ[TPU_VARIABLE]) == (chip == "0x0062")
    shutil.rmtree(tmp_path / "1")
    add_tpu_flags()
    assert ALL_REDUCE_FLAG in os.environ[TPU_VARIABLE]


def test_jax_has_started_with_too_few() -> None:
    assert output("devices(2)" + REFUSED) == (
        "the mesh has 8 processors, and JAX has started with 2 cpu devices: use a smaller mesh, or put"
        ' `jax.config.update("jax_num_cpu_devices", 8)` before the first use of JAX, or'
        " XLA_FLAGS=--xla_force_host_platform_device_count=8 into the environment"
    )


def test_more_than_jax_can_make() -> None:
    refused = REFUSED.replace("devices(8)", "devices(2049)")
    assert "the mesh has 2049 processors, and JAX makes at most 2048 virtual devices" in output(refused)


IN_PYTHON = f"""
import mtfc
compiled = mtfc.compile({str(ROOT / "examples/two_layer.mtf")!r}, layout="hybrid")
for use in (compiled.init, lambda: mtfc.from_jax(abs, 1.0)):
    try:
        use()
    except mtfc.Unavailable as error:
        print(error)
"""


def test_jax_is_missing() -> None:
    message, *others = output("import sys; sys.modules['jax'] = None" + REFUSED + IN_PYTHON).splitlines()
    assert others == [message] * 2
    assert message.startswith("the JAX backend needs the package jax") and message.endswith(
        "pip install 'mtfc[jax]'"
    )


def test_jax_finds_no_device() -> None:
    message = output(REFUSED, JAX_PLATFORMS="none_such")
    assert message.startswith("JAX finds no device to run on (") and message.endswith("or set it to cpu")
