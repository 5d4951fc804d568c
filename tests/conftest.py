"""Settings of all tests: the option that rewrites golden texts; Hypothesis without a clock, and with the same cases every time;
and eight virtual devices for JAX, set before anything imports JAX.

A failing case of other tests than properties is shown as it was drawn; `pytest --hypothesis-profile shrink` makes it small.
"""

import gc
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies._internal.core import CompositeStrategy, PermutationStrategy
from hypothesis.strategies._internal.strategies import SampledFromStrategy

from mtfc.backends.common import allocator
from mtfc.driver.verification import checks
from tests import xla
from tests.command_server import server

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *xla.FLAGS])
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", str(xla.QUICK))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands that tests start keep compiled modules

settings.register_profile(
    "mtfc",
    deadline=None,
    derandomize=True,
    max_examples=14,
    phases=(Phase.explicit, Phase.generate),
    print_blob=False,
)
settings.register_profile("shrink", deadline=None, derandomize=True)
settings.load_profile("mtfc")

# Generators make thousands of these strategies for a program. Hypothesis would search each for strategies that it is made of.
for kind, has_reusable_values in (
    (SampledFromStrategy, True),
    (PermutationStrategy, False),
    (CompositeStrategy, False),
):
    kind.force_is_empty, kind.force_has_reusable_values = False, has_reusable_values

# Hypothesis draws some numbers from literals of loaded files: cases would depend on them, and on the tests that ran before.
providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the expected texts; read the diff after"
    )


FIRST = ("test_numpy_runner.py", "training", "test_examples.py", "test_docs.py")
"""Files and folders whose tests come first.

Numba compiles the loops of searches in half a minute: one process does so, and the others later find them compiled. If the
longest tests came last, one process would run them while the others have none left.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the first files and folders first."""
    items.sort(
        key=lambda item: next((i for i, name in enumerate(FIRST) if name in item.path.parts), len(FIRST))
    )


def pytest_collection_finish() -> None:
    """Collect garbage rarely, and never search the modules: this takes a tenth of the time of all tests."""
    gc.set_threshold(200_000, 20, 20)
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def memory_comes_and_goes() -> Iterator[None]:
    """A command that keeps memory would keep it for all tests that follow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "keep_memory", lambda: None)
        yield


@pytest.fixture(autouse=True)
def checks_run_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of `verify` run in this process, which costs no start of another, and sees what a test changes."""
    if "in_children" not in request.fixturenames:
        monkeypatch.setattr(checks, "results", checks.results_here)


@pytest.fixture
def in_children() -> None:
    """Checks of `verify` run in processes of their own, as those of users do."""


@pytest.fixture(autouse=True)
def narrow_numbers() -> Iterator[None]:
    """A module that computes in f64 makes JAX wide for the whole process: not for the tests that follow."""
    yield
    if sys.modules.get("jax"):
        sys.modules["jax"].config.update("jax_enable_x64", False)


@pytest.fixture
def optimized(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """XLA as users have it: for what depends on how it rounds."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=xla.FULL))
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def folder_of_compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this process's programs compiled by XLA."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True, scope="module")
def small_caches(folder_of_compiled_programs: Path) -> Iterator[None]:
    """JAX keeps all that it has compiled: thousands of programs that few other tests run again. Let it keep them in files."""
    if "jax" in sys.modules and sys.modules["jax"].config.jax_compilation_cache_dir is None:
        xla.keep_compiled(folder_of_compiled_programs)
    if "jax" in sys.modules:
        xla.share_context()
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="session")
def jax_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a server of commands that has imported JAX. Its forks share compiled programs."""
    folder = tmp_path_factory.mktemp("server")
    kept = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with server(folder, "jax", {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **kept}) as place:
        yield place


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
