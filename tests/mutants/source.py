"""`make mutate-source`: change the compiler's source in one place; the fast tests that concern the file must fail.

A mutant is one change of a syntax tree: another comparison, `or` for `and`, a dropped condition or statement, a constant that is
wrong by one, swapped arguments. Mutants are drawn at random, with MUTATE_SEED, until MUTATE_MINUTES are over. Each runs in a copy
of the repository, two at a time. A survivor is a gap in the tests, or a change that means the same.
"""

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from tempfile import TemporaryDirectory

import attrs

MINUTES = float(os.environ.get("MUTATE_MINUTES", "10"))
SEED = os.environ.get("MUTATE_SEED", "0")
PROCESSES = 2
LIMIT = 240
"""Seconds after which the tests of a mutant count as failed: the mutant does not end."""

ROOT = Path(__file__).parents[2]
COPIED = ("mtfc", "tests", "examples", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
FOLDERS = ("mtfc/compiler/passes", "mtfc/compiler/ir/ops", "mtfc/backends/common", "mtfc/backends/numpy")
"""The folders whose files are changed, unless the command names others."""

PASSES = ("tests/passes", "tests/test_communication.py")
EXACT = ("tests/properties/test_exact.py",)
TESTS = {
    "mtfc/compiler/passes/autodiff": (*PASSES, "tests/properties/test_loops.py", "tests/test_micro_batches.py",
     "tests/test_loss_scaling.py", "tests/test_parameter_averages.py", "tests/test_wide_sums.py", *EXACT,
     "tests/backends/test_value_and_grad.py"),
    "mtfc/compiler/passes/partition": (*PASSES, "tests/properties/test_pending_sums.py", "tests/test_pending_factors.py",
     "tests/properties/test_passes.py", *EXACT),
    "mtfc/compiler/passes/spatial": (*PASSES, "tests/test_halos.py", "tests/properties/test_kinds.py"),
    "mtfc/compiler/passes": (*PASSES, "tests/test_training_flag.py", "tests/properties/test_passes.py", *EXACT),
    "mtfc/compiler/ir/ops": ("tests/ir", *PASSES, "tests/backends/test_op_gradients.py", "tests/backends/test_dtypes.py",
     "tests/test_diagnostics.py", "tests/test_halos.py", "tests/backends/test_interpreter.py", *EXACT,
     "tests/backends/test_jax_backend.py::test_ops"),
    "mtfc/compiler/ir": ("tests/ir", *PASSES, "tests/test_ir_api.py", *EXACT),
    "mtfc/backends": ("tests/backends/test_emitter.py", "tests/backends/test_checks.py", "tests/backends/test_numpy_backend.py",
     *EXACT),
}  # fmt: skip
"""Folder -> the tests that concern its files, the fastest first. A longer path comes before a shorter one."""


# Changes


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}  # fmt: skip
TYPED = frozenset({"isinstance", "getattr", "map", "filter", "partial"})
"""Functions that refuse swapped arguments."""
FUNCTIONS = {"any": "all", "all": "any", "min": "max", "max": "min"}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may take the place of a node."""
    match node:
        case ast.Compare(left, [op], right):
            yield ast.Compare(left, [COMPARISONS[type(op)]()], right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.If(_, body, orelse):
            yield from (ast.If(ast.Constant(value), body, orelse) for value in (True, False))
        case ast.comprehension(target, iter, ifs, is_async):
            for i in range(len(ifs)):
                yield ast.comprehension(target, iter, ifs[:i] + ifs[i + 1 :], is_async)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
            if value:  # an index -1 often means the same as 0
                yield ast.Constant(value - 1)
        case ast.Call(ast.Name(name), args, keywords) if name in FUNCTIONS:
            yield ast.Call(ast.Name(FUNCTIONS[name], ast.Load()), args, keywords)
        case ast.Call(function, [*rest, first, second], keywords) if ast.unparse(function) not in TYPED:
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield ast.Call(function, [*rest, second, first], keywords)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


IGNORED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
UNEVALUATED = frozenset({"annotation", "returns", "decorator_list"})
"""Fields of nodes that no test can notice, or that only say how messages read."""


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be changed, in the order of the text."""
    yield tree
    for name, field in ast.iter_fields(tree):
        if name in UNEVALUATED:
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST) and not isinstance(child, IGNORED):
                yield from nodes(child)


@attrs.frozen
class Mutant:
    """The `choice`-th change of a file. text: the changed file."""

    file: str
    choice: int
    line: int
    column: int
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.before}  ->  {self.after}"


def choices(text: str) -> Iterator[tuple[ast.AST, ast.AST, ast.AST]]:
    """Yield the tree of a file, a node in it, and what takes the node's place."""
    tree = ast.parse(text)
    for node in nodes(tree):
        for new in changes(node):
            yield tree, node, new


def mutant(file: str, text: str, choice: int) -> Mutant:
    """Return the `choice`-th mutant of a file."""
    tree, node, new = next(each for i, each in enumerate(choices(text)) if i == choice)
    place = node.iter if isinstance(node, ast.comprehension) else node
    line, column = getattr(place, "lineno", 0), getattr(place, "col_offset", 0) + 1
    before, after = (_shown(each) for each in (node, new))
    changed = ast.unparse(ast.fix_missing_locations(_Replace(node, new).visit(tree)))
    return Mutant(file, choice, line, column, before, after, changed)


def _shown(node: ast.AST) -> str:
    """Return the first line of a node's text."""
    return ast.unparse(ast.fix_missing_locations(node)).strip().split("\n")[0]


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def drawn(folders: Sequence[str]) -> list[Callable[[], Mutant]]:
    """Return the mutants of all files of some folders, in random order. A mutant is made when it is called for."""
    texts = {
        str(path.relative_to(ROOT)): path.read_text("utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    every = [(file, i) for file, text in texts.items() for i, _ in enumerate(choices(text))]
    Random(SEED).shuffle(every)
    return [partial(mutant, file, texts[file], i) for file, i in every]


# Tests


def concerning(file: str) -> tuple[str, ...]:
    """Return the tests that concern a file."""
    return next(tests for folder, tests in TESTS.items() if file.startswith(folder))


@attrs.frozen
class Copy:
    """A copy of the repository, in which tests run."""

    root: Path

    @classmethod
    def at(cls, root: Path) -> "Copy":
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / name)
        return cls(root)

    def passes(self, tests: Sequence[str]) -> bool:
        """Return True if all tests pass within the limit."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def survives(self, mutant: Mutant) -> bool:
        """Return True if the tests of the changed file pass."""
        right = (ROOT / mutant.file).read_text("utf-8")
        self._write(mutant.file, mutant.text)
        try:
            return self.passes(concerning(mutant.file))
        finally:
            self._write(mutant.file, right)

    def _write(self, file: str, text: str) -> None:
        """Write a file, and remove its compiled form, which Python takes for current within the same second."""
        path = self.root / file
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(text, "utf-8")


@attrs.frozen
class Pool:
    """Copies of the repository, one for each process."""

    free: SimpleQueue[Copy]
    threads: ThreadPoolExecutor

    @classmethod
    def at(cls, root: Path) -> "Pool":
        free: SimpleQueue[Copy] = SimpleQueue()
        for i in range(PROCESSES):
            free.put(Copy.at(root / str(i)))
        return cls(free, ThreadPoolExecutor(PROCESSES))

    def passing(self, tests: Sequence[str]) -> bool:
        copy = self.free.get()
        try:
            return copy.passes(tests)
        finally:
            self.free.put(copy)

    def tried(self, until: float, make: Callable[[], Mutant]) -> tuple[Mutant, bool] | None:
        """Return a mutant, and whether it survives; or None if the time is over."""
        if time.monotonic() > until:
            return None
        copy, made = self.free.get(), make()
        try:
            return made, copy.survives(made)
        finally:
            self.free.put(copy)


def failing_at_first(pool: Pool, folders: Sequence[str]) -> list[str]:
    """Return the tests that fail without any change."""
    files = (str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py"))
    needed = sorted({test for file in files for test in concerning(file)})
    passing = pool.threads.map(pool.passing, [[test] for test in needed])
    return [test for test, passes in zip(needed, passing, strict=True) if not passes]


def main(folders: Sequence[str]) -> int:
    """Try mutants until the time is over, and print the survivors. Return 1 if the tests fail without a mutant."""
    with TemporaryDirectory() as directory:
        pool = Pool.at(Path(directory))
        failing = failing_at_first(pool, folders)
        if failing:
            print(f"these tests fail without a change: {', '.join(failing)}")
            return 1
        mutants, until = drawn(folders), time.monotonic() + 60 * MINUTES
        counts = {True: 0, False: 0}
        for found in filter(None, pool.threads.map(partial(pool.tried, until), mutants)):
            counts[found[1]] += 1
            if found[1]:
                print(found[0], flush=True)
        tried = sum(counts.values())
        score = 100 * counts[False] / max(1, tried)
        survivors = f"{counts[True]} survive, score {score:.0f} %"
        print(f"{tried} of {len(mutants)} mutants: {counts[False]} caught, {survivors}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or FOLDERS))
