"""The devices of JAX programs. Each case has a process of its own, as JAX makes its devices once."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from mtfc.backends.common import tpu_flags
from mtfc.backends.common.tpu_flags import FUSION_FLAGS, TPU_FLAGS, TPU_VARIABLE, add_tpu_flags
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
    names = [flag.split("=")[0] for flag in found if flag not in FUSION_FLAGS]
    assert len(names) == len({*names}) == len({*own, *TPU_FLAGS}) - bool(own)


@pytest.mark.parametrize(
    ("libtpu", "chip", "flags"),
    [
        *(("0.0.42", chip, FUSION_FLAGS[:1]) for chip in ("0x0027", "0x0056", "0x005e")),
        *(("0.0.42.1", chip, FUSION_FLAGS) for chip in ("0x0062", "0x0063", "0x006f")),
        *(("0.0.43.2", chip, ()) for chip in ("0x0027", "0x005e", "0x0062", "0x006f")),
        *((libtpu, "0x0063", FUSION_FLAGS) for libtpu in ("0.0.50", "0.1.0.dev20261127+nightly")),
        ("0.1.0", "0x0062", ()),
        (None, "0x0062", ()),
    ],
)
def test_tpus_get_the_flags_that_their_compiler_takes(
    libtpu: str | None, chip: str, flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of v2, v3 and v4 lack memory for all-reduces. libtpu from 0.0.43 on refuses programs for other chips than v5e."""

    def version(name: str) -> str:
        if libtpu is None:
            raise PackageNotFoundError(name)
        return libtpu

    monkeypatch.setattr("importlib.metadata.version", version)
    for number, (vendor, device) in enumerate([("0x8086", chip), ("0x1ae0", chip)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    monkeypatch.setattr(tpu_flags, "Path", lambda _: tmp_path)
    monkeypatch.setenv(TPU_VARIABLE, "")
    add_tpu_flags()
    assert set(os.environ[TPU_VARIABLE].split()) == {*TPU_FLAGS, *flags}
    monkeypatch.setenv(TPU_VARIABLE, "")
    shutil.rmtree(tmp_path / "1")
    add_tpu_flags()
    anywhere = FUSION_FLAGS if libtpu in ("0.0.42", "0.0.42.1") else ()
    assert set(os.environ[TPU_VARIABLE].split()) == {*TPU_FLAGS, *anywhere}


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
        "pip install '.[jax]' in the checkout of mtfc"
    )


COMMANDS = f"""
import sys
sys.modules["jax"] = None
from mtfc.cli import main
large = {str(ROOT / "examples/digits.mtf")!r}
for command in ("train", large, "--steps", "1"), ("train", "missing.mtf"), ("eval", "missing.mtf"):
    more = ["--data", "x.npz", "--params", "y.npz"] if command[0] == "eval" else []
    print(main([*command, *more]))
"""


def test_commands_find_that_jax_is_missing_only_where_they_need_it() -> None:
    assert output(COMMANDS).split() == ["3", "2", "2"]


def test_jax_finds_no_device() -> None:
    message = output(REFUSED, JAX_PLATFORMS="none_such")
    assert message.startswith("JAX finds no device to run on (") and message.endswith("or set it to cpu")
