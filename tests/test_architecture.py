"""The shape of the code: imports go downward only, files and functions stay short, starting stays fast."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "mtfc").rglob("*.py"))

FLOORS = [
    ("mtfc.compiler.diagnostics", 1),
    ("mtfc.compiler.render", 1),
    ("mtfc.compiler.hardware", 2),
    ("mtfc.compiler.ir.types", 2),
    ("mtfc.compiler.ir.core", 2),
    ("mtfc.compiler.ir.opdef", 2),
    ("mtfc.compiler.ir", 3),
    ("mtfc.compiler.operators", 3),
    ("mtfc.compiler.passes", 4),
    ("mtfc.compiler.analysis", 4),
    ("mtfc.compiler.search", 4),
    ("mtfc.frontend", 4),
    ("mtfc.backends", 4),
    ("mtfc.compiler.pipelines", 5),
    ("mtfc.compiler.placeable", 5),
    ("mtfc.driver", 6),
    ("mtfc.cli", 7),
    ("mtfc", 7),
]
"""Package -> floor; the first that fits counts. A module imports from its own floor and those below."""

ON_ONE_FLOOR = {
    ("mtfc.compiler.passes", "mtfc.compiler.analysis"),
    ("mtfc.compiler.search", "mtfc.compiler.analysis"),
}
"""Who may import whom among the packages of floor 4, besides themselves."""

PACKAGES_OF_FLOOR_4 = [package for package, floor in FLOORS if floor == 4]

HEAVY = {"numpy", "jax", "scipy", "ml_dtypes", "sympy", "rich", "numba"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def floor(module: str) -> int:
    return next(floor for package, floor in FLOORS if within(module, package))


def package_of_floor_4(module: str) -> str | None:
    return next((package for package in PACKAGES_OF_FLOOR_4 if within(module, package)), None)


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported when the code runs, in functions too."""
    for node in ast.iter_child_nodes(tree):
        if is_for_types_only(node):
            continue
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
        yield from imported(node)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(path: Path) -> set[str]:
    """What a module of ours imports of ours; of a package only what is imported from it."""
    found = {name for name in imported(ast.parse(path.read_text("utf-8"))) if within(name, "mtfc")}
    return {name for name in found if not any(other.startswith(name + ".") for other in found)}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_downward(path: Path) -> None:
    module = module_name(path)
    upward = {name for name in imports_of(path) if floor(name) > floor(module)}
    assert not upward, f"{module} (floor {floor(module)}) imports from above"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_packages_of_one_floor_do_not_import_each_other(path: Path) -> None:
    own = package_of_floor_4(module_name(path))
    for name in imports_of(path) if own else ():
        other = package_of_floor_4(name)
        assert other in (None, own) or (own, other) in ON_ONE_FLOOR, f"{own} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    folder = path.parent
    with_numpy = folder.name in ("backends", "operators") or folder.parent.name == "search"
    heavy = HEAVY - {"numpy"} if with_numpy else HEAVY
    top = ast.parse(path.read_text("utf-8")).body
    modules = {name.partition(".")[0] for node in top for name in imported_by(node)}
    assert not modules & heavy


def imported_by(node: ast.stmt) -> list[str]:
    return list(imported(ast.Module([node], []))) if isinstance(node, (ast.Import, ast.ImportFrom)) else []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 700


def function_lengths() -> dict[str, int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    trees = {module_name(path): ast.parse(path.read_text("utf-8")) for path in MODULES}
    return {
        f"{module}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, functions)
    }


def test_functions_stay_short() -> None:
    lengths = function_lengths()
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 30
    assert statistics.median(lengths.values()) < 9


def loaded_by(*arguments: str) -> set[str]:
    """The top-level packages that are loaded when the command has run."""
    program = (
        "import sys; from mtfc.cli import main; status = main(sys.argv[1:]); "
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr); sys.exit(status)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(result.stderr.splitlines()[-1].split())


def test_check_loads_nothing_heavy() -> None:
    assert not loaded_by("check", "examples/digits.mtf") & {*HEAVY, "lark"}


@pytest.mark.parametrize("kind", ["ir", "grad", "spmd", "numpy", "jax"])
def test_compile_does_not_load_jax(kind: str) -> None:
    assert "jax" not in loaded_by("compile", "examples/digits.mtf", "--emit", kind)


def test_simulate_does_not_load_jax() -> None:
    assert not loaded_by("simulate", "examples/digits.mtf", "--target", "h100") & {"jax", "numpy"}


def test_cost_does_not_load_jax() -> None:
    assert not loaded_by("cost", "examples/digits.mtf", "--symbolic") & {"jax", "numpy"}
