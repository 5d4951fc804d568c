"""Files that nobody vouches for: each is refused in a sentence, soon, and without reading what its header claims."""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pytest

from tests.cli.conftest import Mtfc

DEEP = "[" * 100_000
SECONDS = 5.0
"""Far more than each of the refusals takes."""


def npy(size: int, content: bytes) -> bytes:
    """Return an NPY file whose header claims `size` numbers."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def npz(path: str, size: int, compression: int = ZIP_STORED) -> str:
    with ZipFile(path, "w", compression) as archive:
        archive.writestr("w.npy", npy(size, bytes(1000)))
    return path


def safetensors(path: str, header: str) -> str:
    Path(path).write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(4))
    return path


def folder_with(name: str, text: str) -> str:
    place = Path("given", name)
    place.parent.mkdir(parents=True)
    place.write_text(text)
    return "given"


PARAMETERS: dict[str, tuple[Callable[[], str], str]] = {
    "a header that claims 3 GB": (lambda: npz("big.npz", 800_000_000), "it is damaged"),
    "a compressed one": (lambda: npz("big.npz", 800_000_000, ZIP_DEFLATED), "it is damaged"),
    "a negative size": (lambda: npz("big.npz", -250), "it is damaged"),
    "deep safetensors": (lambda: safetensors("a.safetensors", '{"w":' + DEEP), "it is no safetensors file"),
    "an infinite shape": (lambda: safetensors("a.safetensors", '{"w":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,4]}}'),
     "it is no safetensors file"),
    "a deep index": (lambda: folder_with("model.safetensors.index.json", '{"weight_map":' + DEEP),
     "model.safetensors.index.json is damaged"),
    "a deep record": (lambda: folder_with("about/about.json", DEEP), "about/about.json is damaged"),
    "an infinite step": (lambda: folder_with("about/about.json", '{"format": 1, "step": Infinity}'),
     "about/about.json is damaged"),
}  # fmt: skip


@pytest.mark.parametrize(("write", "reason"), PARAMETERS.values(), ids=PARAMETERS)
def test_parameters_are_refused_soon(mtfc: Mtfc, write: Callable[[], str], reason: str) -> None:
    start = time.process_time()
    outcome = mtfc("run", "model.mtf", "--params", write())
    assert outcome.status == 1
    assert f"error[E501]: cannot read arrays: {reason}" in outcome.err
    assert time.process_time() - start < SECONDS


def test_data_whose_header_claims_more_than_the_file_has(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("run", "model.mtf", "--data", npz("big.npz", 800_000_000))
    assert outcome.status == 1
    assert "error[E501]: cannot read arrays: it is damaged" in outcome.err


def test_a_deep_map_of_weights(mtfc: Mtfc, folder: Path) -> None:
    Path("deep.toml").write_text(f"a = {DEEP}")
    outcome = mtfc(
        "export", "model.mtf", "--params", npz("w.npz", 250), "--map", "deep.toml", "-o", "out.npz"
    )
    assert outcome.status == 1
    assert "this map is nested too deeply" in outcome.err


@pytest.mark.parametrize("content", [DEEP, '{"problem": {"nodes": {"costs": [[Infinity]]}}}'])
def test_a_hostile_problem(mtfc: Mtfc, folder: Path, content: str) -> None:
    Path("problem.json").write_text(content)
    outcome = mtfc("solve", "problem.json")
    assert outcome.status == 1
    assert "mtfc: problem.json: expected" in outcome.err


def test_a_named_pipe_is_refused(mtfc: Mtfc, folder: Path) -> None:
    os.mkfifo("pipe.mtf")
    outcome = mtfc("check", "pipe.mtf")
    assert outcome.status == 2
    assert "it is a pipe; write `-` and redirect the pipe to standard input" in outcome.err


def test_an_endless_file_is_refused(mtfc: Mtfc) -> None:
    outcome = mtfc("check", "/dev/zero")
    assert outcome.status == 2
    assert outcome.err == "mtfc: cannot read /dev/zero: it has more than 64 MiB\n"


def test_a_hundred_errors_are_shown(mtfc: Mtfc, folder: Path) -> None:
    Path("wrong.mtf").write_text(")" * 40_000)
    start = time.process_time()
    outcome = mtfc("check", "wrong.mtf")
    assert outcome.status == 1
    assert outcome.err.count("error[E003]") == 100
    assert outcome.err.endswith("\n... and 39,900 more\n")
    assert outcome.out == "wrong.mtf: 40000 errors\n"
    assert time.process_time() - start < SECONDS


REPEATED = {
    "calls": (30, "{ return tanh(x) }"),
    "numbers": (13, f"{{ y0 = 1; {'; '.join(f'y{i + 1} = y{i} + 1' for i in range(300))}; return x }}"),
    "dimensions": (13, f"{{ {'; '.join(f'dim d{i} = {i + 1}' for i in range(300))}; return x }}"),
    "parameters": (11, f"{{ {'; '.join(f'param p{i}: [] = zeros()' for i in range(99))}; return x }}"),
    "watched values": (12, f"{{ {'; '.join(f'y{i} = 2; watch y{i}' for i in range(99))}; return x }}"),
}
"""The number of functions that call each other, and the body of the last one, which has little in it that is an equation."""


@pytest.mark.parametrize("kind", REPEATED)
def test_a_program_of_too_many_calls_is_refused_before_it_is_elaborated(
    mtfc: Mtfc, folder: Path, kind: str
) -> None:
    """Each function calls the one before it twice, as in the attack of a billion laughs."""
    number, body = REPEATED[kind]
    lines = ["dim io = 4", f"fn f0(x: [...]) -> [...] {body}"]
    lines += [f"fn f{i + 1}(x: [...]) -> [...] {{ return f{i}(f{i}(x)) }}" for i in range(number)]
    lines += ["model net(x: [io]) {", f"  y = f{number}(x)", "  return y", "}"]
    Path("laughs.mtf").write_text("\n".join(lines))
    start = time.process_time()
    outcome = mtfc("check", "laughs.mtf")
    assert "error[E122]: the program has more than 50,000 equations and calls" in outcome.err
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_a_rule_over_sixty_mesh_axes(mtfc: Mtfc, folder: Path, order: int) -> None:
    """Axes that stay together count as one; axes in another order take the direct chain of collectives."""
    names = [f"a{i}" for i in range(60)]
    lines = [
        f"dim batch = {2**60}",
        f"mesh m = [{', '.join(f'{name}: 2' for name in names)}]",
        f"layout main on m = {{ batch: ({', '.join(names)}); value x: {{ batch: ({', '.join(names[::order])}) }} }}",
        "model net(x: [batch]) {",
        "  y = sum(x * 2.0)",
        "  return y",
        "}",
    ]
    Path("axes.mtf").write_text("\n".join(lines))
    start = time.process_time()
    outcome = mtfc("compile", "axes.mtf")
    assert outcome.status == 0, outcome.err
    assert time.process_time() - start < SECONDS
