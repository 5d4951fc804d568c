"""The shape of the code: imports go downward only, files and functions stay short, starting stays fast."""

import ast
import importlib
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

from mtfc.compiler.ir.ops import OPS

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for path in (ROOT / "mtfc").rglob("*.py") if path.parent.name != "starter")

ORDER = [
    "mtfc.compiler.records", "mtfc.compiler.diagnostics", "mtfc.compiler.activity", "mtfc.compiler.garbage",
    "mtfc.compiler.ir", "mtfc.compiler.analysis", "mtfc.compiler.cost", "mtfc.compiler.passes", "mtfc.compiler.search",
    "mtfc.placements", "mtfc.frontend.syntax", "mtfc.frontend.semantics", "mtfc.placements.declarations", "mtfc.frontend",
    "mtfc.backends", "mtfc.placements.running", "mtfc.meshes", "mtfc.reports", "mtfc.placements.placed_step_report",
    "mtfc.driver", "mtfc.editor", "mtfc.cli", "mtfc",
]  # fmt: skip
"""Packages from the lowest to the highest: a module imports from its own package and from lower ones, types included."""

APART = {
    ("mtfc.frontend", "mtfc.compiler.passes"),
    ("mtfc.frontend", "mtfc.compiler.analysis"),
    ("mtfc.reports", "mtfc.backends"),
}
"""(importer, imported): packages that do not use the lower one."""

APART_BUT_FOR = {
    ("mtfc.frontend.semantics.calls.builtin_equations", "mtfc.compiler.passes.autodiff.backward"),
    ("mtfc.frontend.jaxpr.renames", "mtfc.compiler.analysis.mincut"),
}
"""(importer, imported): a call of `gradients` makes equations while the model is elaborated; renames are placed by a flow."""

HEAVY = {
    "numpy", "jax", "scipy", "ml_dtypes", "sympy", "rich", "numba", "orbax", "grain", "safetensors", "keras", "lsprotocol",
    "pygls", "pygments",
}  # fmt: skip

WITH_NUMPY = {
    "backends", "exchange", "jax_functions", "meshes", "nan_search.py", "placements", "run.py", "search", "tables", "training",
    "verification",
}  # fmt: skip
"""Packages and modules that import NumPy at their top: they are loaded where arrays are computed."""

WITH_JAX = {"mtfc.backends.jax.jax_program", "mtfc.backends.calibrate.kernels"}
"""Modules that import JAX at their top: all of their functions need JAX, or a class of theirs is registered with it.

Others import these modules late.
"""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def package(module: str) -> str:
    """Return the package of `ORDER` that a module belongs to: the longest name that fits."""
    return max((name for name in ORDER if within(module, name)), key=len, default="mtfc")


def imported(parent: ast.AST) -> Iterator[str]:
    """Yield every imported module, in functions and for types too."""
    for node in ast.walk(parent):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (
                f"{node.module}.{alias.name}"
                for alias in node.names
                if is_module(f"{node.module}.{alias.name}")
            )


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def all_imports(path: Path) -> frozenset[str]:
    return frozenset(imported(tree(path)))


def imports_of(path: Path) -> set[str]:
    """Return the modules of mtfc that a module imports; of a package, the modules in it that are named."""
    found = {name for name in all_imports(path) if within(name, "mtfc")}
    return {name for name in found if not any(other.startswith(name + ".") for other in found)}


def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {module_name(path): imports_of(path) for path in MODULES}


def stay_apart(module: str, name: str) -> bool:
    return any(within(module, importer) and within(name, package) for importer, package in APART)


def test_imports_go_downward() -> None:
    """No module imports from above, or from a package that its own stays apart from."""
    wrong = {
        (module, name)
        for module, names in imports().items()
        for name in names
        if ORDER.index(package(name)) > ORDER.index(package(module))
        or (stay_apart(module, name) and (module, name) not in APART_BUT_FOR)
    }
    assert wrong == set()


def test_only_the_command_parses_arguments() -> None:
    importing = {module_name(path) for path in MODULES if "argparse" in all_imports(path)}
    assert {module for module in importing if not within(module, "mtfc.cli")} == set()


def test_only_tests_of_the_command_import_the_command() -> None:
    """Tests elsewhere and benchmarks call the API or the driver. This file runs the command in processes of its own."""
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    importing = {
        str(path.relative_to(ROOT))
        for path in paths
        if (ROOT / "tests" / "cli") not in path.parents
        and any(within(name, "mtfc.cli") for name in all_imports(path))
    }
    assert importing == set()


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other through imports."""
    reached = {name: reach(name, graph) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def reach(name: str, graph: Mapping[str, Set[str]]) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    found: set[str] = set()
    work = [name]
    while work:
        new = (graph[work.pop()] & graph.keys()) - found
        found |= new
        work += new
    return found


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circles({name: found - {name} for name, found in imports().items()}) == []


def test_no_two_files_of_the_compiler_share_a_name() -> None:
    paths = [path for path in MODULES if "compiler" in path.parts and path.name != "__init__.py"]
    assert shared((path.name, str(path)) for path in paths) == {}


def test_no_two_public_classes_share_a_name() -> None:
    names = [
        (node.name, module_name(path))
        for path in MODULES
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert shared(names) == {}


def shared(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that belong to more than one thing."""
    found: dict[str, list[str]] = {}
    for name, thing in pairs:
        found.setdefault(name, []).append(thing)
    return {name: things for name, things in found.items() if len(things) > 1}


NAMES_OPS = {
    "mtfc.compiler.passes.simplify": "looks up the rewrite rows of an op in a table",
    "mtfc.compiler.analysis.equation_names": "spells out a name that is a reserved word of layout files",
    "mtfc.frontend.semantics.bodies.expressions": "operators of the language, such as `and`, which are no equations yet",
}
"""Modules that may look up an op's name, and the reasons. Other modules ask for the traits of an op."""

NAMED = [path for path in MODULES if path.parent.name != "ops" and module_name(path) not in NAMES_OPS]


def test_no_op_is_told_by_its_name() -> None:
    found = {}
    for path in NAMED:
        compared = [each for node in ast.walk(tree(path)) for each in compared_with_op(node)]
        constants = importlib.import_module(module_name(path)).__dict__ if compared else {}
        found |= {
            (module_name(path), each.lineno): names
            for each in compared
            if (names := names_of_ops(each, constants))
        }
    assert found == {}


def compared_with_op(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that an `.op` is compared with, matched against, or looked up in."""
    match node:
        case ast.Compare(left, _, others) if any(map(is_op, (left, *others))):
            yield from (side for side in (left, *others) if not is_op(side))
        case ast.Match(subject, cases) if any(map(is_op, ast.walk(subject))):
            yield from (
                each.value for case in cases for each in ast.walk(case) if isinstance(each, ast.MatchValue)
            )
        case ast.Subscript(table, key) if is_op(key):
            yield table
        case ast.Call(ast.Attribute(table, "get"), [key, *_]) if is_op(key):
            yield table


def is_op(node: ast.AST) -> bool:
    """Return True for `eqn.op`, and for a call such as `context.op(value)`."""
    node = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, ast.Attribute) and node.attr == "op"


def test_no_op_is_compared_with_a_name() -> None:
    """No module is excepted: a table of rewrite rows has ops as keys, and its rows ask for traits."""
    found = {
        (module_name(path), each.lineno): names
        for path in MODULES
        if path.parent.name != "ops"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare | ast.Match)
        for each in compared_with_op(node)
        if (names := names_of_ops(each, {}))
    }
    assert found == {}


@pytest.mark.parametrize(
    "code", ['eqn.op == "sum"', 'c.op(x) != "mul"', 'eqn.op in ("max", "min")', '"sum" == eqn.op']
)
def test_comparisons_of_ops_are_found(code: str) -> None:
    (compared,) = (each for node in ast.walk(ast.parse(code)) for each in compared_with_op(node))
    assert names_of_ops(compared, {})


def names_of_ops(node: ast.expr, constants: Mapping[str, object]) -> set[str]:
    """Return the names of ops in an expression, and in the constants of the module that it mentions; `OPS` aside."""
    found: set[object] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Constant):
            found.add(each.value)
        elif isinstance(each, ast.Name) and each.id != "OPS":
            value = constants.get(each.id)
            found |= (
                {value} if isinstance(value, str) else set(value) if isinstance(value, Iterable) else set()
            )
    return {name for name in OPS if name in found}


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    found = {module_name(path): heavy_imports(path) for path in MODULES}
    assert {module: names for module, names in found.items() if names} == {}


def heavy_imports(path: Path) -> set[str]:
    """Return the heavy packages that a module imports at its top without being excepted."""
    with_numpy = not WITH_NUMPY.isdisjoint(path.parts)
    heavy = HEAVY - {"numpy"} if with_numpy else HEAVY
    heavy = heavy - {"jax"} if module_name(path) in WITH_JAX else heavy
    heavy = heavy - {"lsprotocol", "pygls", "pygments"} if "editor" in path.parts else heavy
    return heavy & {name.partition(".")[0] for node in tree(path).body for name in imported_by(node)}


def imported_by(node: ast.stmt) -> list[str]:
    return list(imported(ast.Module([node], []))) if isinstance(node, (ast.Import, ast.ImportFrom)) else []


def test_files_stay_short() -> None:
    lengths = {module_name(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {module: length for module, length in lengths.items() if length > 700} == {}


def function_lengths() -> dict[str, int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        f"{module_name(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, functions)
    }


def test_functions_stay_short() -> None:
    lengths = function_lengths()
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 30
    assert statistics.median(lengths.values()) < 9


def loaded_by(*arguments: str) -> set[str]:
    """Return the top-level packages that are loaded after a run of the command."""
    program = (
        "import sys; from mtfc.cli import main; status = main(sys.argv[1:]); "
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr); sys.exit(status)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(result.stderr.splitlines()[-1].split())


NEVER_LOADED = {
    "check examples/digits.mtf": {*HEAVY, "lark"},
    "--help": {*HEAVY, "attrs", "lark", "json"},
    "check --help": {*HEAVY, "attrs", "lark", "json"},
    "compile examples/digits.mtf --emit spmd": {"jax"},
    "compile examples/digits.mtf --emit numpy": {"jax"},
    "compile examples/digits.mtf --emit jax": {"jax"},
    "simulate examples/digits.mtf --target h100": {"jax", "numpy"},
    "cost examples/digits.mtf --symbolic": {"jax", "numpy"},
}
"""Command -> packages that it does without."""


@pytest.mark.parametrize("command", NEVER_LOADED)
def test_commands_load_only_what_they_need(command: str) -> None:
    assert not loaded_by(*command.split()) & NEVER_LOADED[command]


MOST_CODE = 71_500
"""The lines of code that the package may have. A change that adds some deletes as many; a larger number needs a decision."""


def test_the_package_does_not_grow() -> None:
    """Blank lines, comments and docstrings do not count."""
    assert sum(map(lines_of_code, sorted((ROOT / "mtfc").rglob("*.py")))) <= MOST_CODE


def lines_of_code(path: Path) -> int:
    lines = enumerate(map(str.strip, path.read_text("utf-8").splitlines()), 1)
    found = {number for number, line in lines if line and not line.startswith("#")}
    docstrings = set[int]()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            found.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(found - docstrings)
