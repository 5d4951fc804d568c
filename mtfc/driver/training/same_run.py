"""The facts on which all processes of a training run must agree, compared before the first step.

Processes that differ in a seed, a shard or a version would train without an error to numbers that no single process gives.
Paths may differ: what counts is the content, by the names and sizes of files, their first bytes and samples of the others.
"""

import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zlib import crc32

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.compiler.diagnostics import text_lines
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.files import readable_texts
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.selection import Case
from mtfc.driver.options import EvalOptions, TrainOptions
from mtfc.driver.training.data_sources import DataSource

PACKAGES = ("mtfc", "jax", "jaxlib", "numpy", "grain", "orbax-checkpoint")

CONFIGURED = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl")
"""JAX's options that change numbers; variables of the environment set them."""

OPTIONS = (
    *("steps", "epochs", "eval_every", "eval_batches", "params_partial", "seed", "folder", "save_every"),
    *("save_minutes", "keep", "fresh", "debug_nans", "skipped", "bad_steps"),
    *("warm_start", "keep_best", "stop_early", "averages", "batches", "whole_documents"),
)
"""Options with the same value in all processes. The others say where process 0 writes, or name files."""

FILES = ("data", "eval", "params", "tokenizer")
"""Options that name files."""

NAMES = {"folder": "dir", "skipped": "skip-steps"}

FIRST = 1 << 16
"""The bytes at the start of a file that are compared: those of an array begin with its dtype and shape."""

SAMPLE = 1 << 12
"""The bytes of each sample of the rest, which ends with the file's last bytes."""

SAMPLES, FEWEST = 1024, 4
"""Number of samples of the files of an option together, and the smallest number of one file."""

LONGEST = 60
"""Characters of a value that a message shows."""

ABSENT = "nothing"

Facts = Mapping[str, str]


def facts_of(
    options: TrainOptions | EvalOptions,
    fingerprint: str,
    module: str,
    case: Case,
    sources: Mapping[str, DataSource | None],
) -> Facts:
    """Return the facts of this process by the names that a message gives them.

    module: the text of the compiled program, which depends on passes and on a memory limit too. sources: the data by option.
    """
    given = attrs.asdict(options, recurse=False)
    facts = {
        f"--{NAMES.get(name, name).replace('_', '-')}": _shown(given[name])
        for name in OPTIONS
        if name in given
    }
    facts["--processes"] = _shown(options.hosts.processes)
    facts["--memory"] = _shown(options.choice.memory)
    facts["--model"] = _shown(options.choice.model)
    facts["--dim"] = _listed(f"{name}={size}" for name, size in options.choice.dims.items())
    facts["--set"] = _listed(options.choice.settings)
    facts["the program, by its fingerprint"] = fingerprint
    facts["--mesh"] = case.mesh.axes_text
    rules = sha256(repr((case.layout, options.choice.passes)).encode()).hexdigest()[:8]
    facts["--layout"] = f"{case.name} (rules {rules})"
    facts["the compiled program"] = sha256(module.encode()).hexdigest()[:16]
    for option, spec in ((f"--{name}", given[name]) for name in FILES if name in given):
        facts |= dict(_facts_of_files(option, spec)) if spec else {option: ABSENT}
    for option, source in sources.items():
        if source is not None:
            facts[f"the steps an epoch of {option}"] = _shown(source.steps_per_epoch)
    facts["Python"] = platform.python_version()
    facts |= {name.upper(): _shown(getattr(import_jax().config, name)) for name in CONFIGURED}
    return facts | {name: _version(name) for name in PACKAGES}


def program_fingerprint(program: Program) -> str:
    """Return a hash of the undistributed program: sizes, equations, optimizer, but no layout and no line numbers."""
    from mtfc.compiler.ir.printer import print_program

    text = print_program(attrs.evolve(program, mesh=None, layout=None))
    lines = (line.partition("  //")[0] for line in text.splitlines())  # comments show the lines of the file
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def train_entries(program: Program, settings: Sequence[str]) -> dict[str, str]:
    """Return the arguments in a program's `train` block by name, as the file writes them, or as `--set` replaces them."""
    span = program.training.span if program.training else None
    text = readable_texts([span.file]).get(span.file, "") if span else ""
    lines = text_lines(text)[span.line - 1 : span.end_line] if span else []
    code = "\n".join(line.partition("#")[0] for line in lines)
    found: dict[str, str] = {}
    for key, value in re.findall(r"(\w+) *= *([^\s,(){}]+)", code):
        found[key] = f"{found[key]}, {value}" if key in found else value
    pairs = (setting.partition("=") for setting in settings)
    return found | {key.strip().rpartition(".")[2]: value.strip() for key, _, value in pairs}


def check_same(facts: Sequence[Facts]) -> None:
    """Raise `UsageError` with every fact that is not the same in all processes, which are numbered from 0."""
    names = list(dict.fromkeys(name for each in facts for name in each))
    lines = []
    for name in names:
        values: dict[str, list[int]] = {}
        for process, each in enumerate(facts):
            values.setdefault(each.get(name, ABSENT), []).append(process)
        if len(values) > 1:
            lines.append(
                f"{name}: " + "; ".join(f"{value} on {_processes(at)}" for value, at in values.items())
            )
    if lines:
        raise UsageError(
            "the processes of this run differ, and each needs the same command, program, data and versions:"
            + "".join(f"\n  {line}" for line in lines)
        )


def _shown(value: object) -> str:
    text = ABSENT if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({crc32(text.encode()):08x})"


def _listed(values: Iterable[str]) -> str:
    return _shown(", ".join(sorted(values)) or None)


def _processes(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:4])) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    return f"process{'es' * (len(numbers) > 1)} {shown}"


def _version(package: str) -> str:
    """Return the version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _facts_of_files(option: str, spec: str) -> Iterator[tuple[str, str]]:
    """Yield the specification without the folders of its paths, and what the content of each file shows."""
    parts = []
    for part in re.split(r"([,=]|@[\d.]+)", spec):
        path = next((each for each in (part, part.rpartition(":")[0]) if each and Path(each).exists()), None)
        parts.append(part if path is None else Path(path).name + part[len(path) :])
        if path is not None:
            files = _files(Path(path))
            for file in files:
                name = f"{option} {Path(path).name}" + f"/{file.name}" * Path(path).is_dir()
                yield name, _content(file, max(FEWEST, SAMPLES // len(files)))
    yield option, "".join(parts)


def _files(path: Path) -> list[Path]:
    """Return a file, or the files of a folder by name."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    return sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))


def _content(file: Path, samples: int) -> str:
    """Return the size and a checksum of the first bytes and of samples at equal distances."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        found = crc32(opened.read(FIRST))
        last = max(FIRST, size - SAMPLE)
        for i in range(samples if size > FIRST else 0):
            opened.seek(FIRST + (last - FIRST) * i // (samples - 1))
            found = crc32(opened.read(SAMPLE), found)
    return f"{size} bytes (samples {found:08x})"
