"""Test `docs/`: commands print the text that is shown, examples give the diagnostics below them, tables list everything."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent

import pytest

from mtfc.backends.jax.backend import JAX
from mtfc.compiler.diagnostics import Diagnostic
from mtfc.compiler.ir.opdef import flops_per_operand, flops_per_result, no_flops
from mtfc.compiler.ir.ops import FAMILIES, OPS
from mtfc.compiler.ir.ops.collectives import OPS as COLLECTIVES
from mtfc.compiler.passes.pipelines import PASSES, default_pipeline
from mtfc.driver.help_pages import grouped, topics
from mtfc.driver.jax_functions.xla_faults import FAULTS
from mtfc.driver.layout_advice import predictor
from mtfc.frontend.check import check
from mtfc.frontend.semantics.bodies.expressions import OPERATORS, SIGNS
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.syntax.lexer import RESERVED
from mtfc.reports.diagnostic_text import render
from tests import collectives
from tests.command_server import command_servers
from tests.documents import (
    DOCUMENTS,
    ROOT,
    broken_links,
    check_generated,
    check_sessions,
    environment,
    fences,
    settle,
)
from tests.jax_functions.fault_program import SHOWN
from tests.library.reference import reference

DOCS = ROOT / "docs"
BY_NAME = {path.stem: path for path in DOCUMENTS}
WITH_SESSIONS = [path for path in DOCUMENTS if "```console" in path.read_text("utf-8")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, jax_server: Path) -> Iterator[Path]:
    """A folder with `mtfc` and `python`, whose commands start as forks."""
    folder = tmp_path_factory.mktemp("programs")
    with command_servers(folder, environment(folder), jax_server):
        yield folder


@pytest.mark.parametrize("path", WITH_SESSIONS, ids=lambda path: path.stem)
def test_commands_print_what_is_shown(
    path: Path, programs: Path, tmp_path: Path, update_golden: bool
) -> None:
    check_sessions(path, tmp_path, programs, update_golden)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_no_paths_of_one_machine(path: Path) -> None:
    assert not re.search(r"(?<![\w.])/(?:home|tmp|usr|work|Users|root|opt)/", path.read_text("utf-8"))


def test_readme_leads_to_every_document() -> None:
    readme = BY_NAME["README"].read_text("utf-8")
    assert [path.name for path in DOCS.glob("*.md") if f"(docs/{path.name})" not in readme] == []


def test_extras_are_installed_from_the_checkout() -> None:
    """No release is published, so no page and no message installs `mtfc` by its name."""
    folders = (ROOT / "mtfc", ROOT / "examples", DOCS)
    paths = [path for folder in folders for kind in ("*.py", "*.md") for path in folder.rglob(kind)]
    texts = {
        path: path.read_text("utf-8")
        for path in [*paths, ROOT / "README.md", ROOT / "editors/vscode/README.md"]
    }
    assert [
        str(path) for path, text in texts.items() if re.search(r"pip install (?:-\S+ )*['\"]?mtfc", text)
    ] == []


def test_help_and_site_list_pages_alike() -> None:
    navigation = (ROOT / "website" / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    parts = re.findall(r"^  - (.*):\n((?:      - .*\n)+)", navigation, re.MULTILINE)
    listed = {title.lower(): set(re.findall(r"(\w+)\.md$", pages, re.MULTILINE)) for title, pages in parts}
    shown = {title.lower(): {*pages} for title, pages in grouped(topics()).items()}
    assert {title: pages - {"api", "index"} for title, pages in listed.items()} == shown


# The language


def test_every_function_is_described() -> None:
    reference = BY_NAME["language"].read_text("utf-8")
    assert [name for name in BUILTINS if f"`{name}(" not in reference] == []


def test_every_word_of_the_language_is_named() -> None:
    reference = BY_NAME["language"].read_text("utf-8")
    assert [word for word in RESERVED if f"`{word}`" not in reference] == []


def test_example_of_the_reference_has_no_errors() -> None:
    (text,) = _marked("examples.mtf")
    assert check(text, "examples.mtf").errors == ()


def _marked(word: str) -> list[str]:
    document = BY_NAME["language"].read_text("utf-8")
    return [fence.text for fence in fences(document) if fence.words == ("mtf", word)]


def _complete() -> Iterator[str]:
    """The fragments as files: declarations with those of the example, statements and `train` blocks in the example."""
    (example,) = _marked("examples.mtf")
    shared = re.findall(r"^((?:dim|mesh) \w+) .*\n", example, re.MULTILINE)
    for text in _marked("declarations"):
        missing = (each for each in shared if not re.search(rf"^{each} ", text, re.MULTILINE))
        yield text + "".join(_line(each, example) for each in missing)
    yield from (example.replace("  # statements\n", text) for text in _marked("statements"))
    yield from (example.partition("train ")[0] + text for text in _marked("training"))


def _line(start: str, text: str) -> str:
    return next(f"{line}\n" for line in text.splitlines() if line.startswith(f"{start} "))


def test_fragments_in_the_reference_have_no_errors() -> None:
    for text in _complete():
        errors = check(text, "fragment.mtf").errors
        assert errors == (), render(errors, {"fragment.mtf": text})


def _written() -> dict[str, str]:
    """Return the way to call each op in a program: a function, or an operator between x and y."""
    operators = {op: f"x {sign} y" for sign, op in OPERATORS.items()}
    signs = {op: "-x" if sign == "-" else f"{sign} x" for sign, op in SIGNS.items()}
    calls = {name.removeprefix("random."): builtin.usage for name, builtin in BUILTINS.items()}
    return {**calls, "full": calls["full"], "constant": "0.5", "training": "training", **operators, **signs}


FLOPS = {
    OPS["add_at"].flops: "1 per element that is added",
    OPS["call"].flops: "`flops` per element of the mapped dimensions",
    OPS["einsum"].flops: "per point of the iteration space, operands − 1, and 1 more if it sums",
    OPS["grouped_dot"].flops: "2 per point of the iteration space, in which each row has one group",
    **dict.fromkeys(
        (op.flops for op in OPS.values() if {"attention", "attention_gradient"} & op.traits),
        "per logit, 4, and 2 for each multiplication of its dots",
    ),
}


def ops_table() -> str:
    """Return the ops whose FLOPs are those of no family, and the ops that only the compiler makes."""
    written = _written()
    ops = [op for family in FAMILIES for op in family.OPS if op not in COLLECTIVES]
    rows = [f"| `{op.name}` | {op.doc} |" for op in ops if op.name not in written]
    by_flops: dict[str, list[str]] = {}
    for op in ops:
        if op.flops not in (no_flops, flops_per_result, flops_per_operand):
            by_flops.setdefault(FLOPS[op.flops], []).append(f"`{op.name}`")
    return "\n".join(
        [
            "| FLOPs | ops |",
            "| --- | --- |",
            *(f"| {flops} | {', '.join(names)} |" for flops, names in by_flops.items()),
            "\n| made by the compiler alone | what it gives |",
            "| --- | --- |",
            *rows,
            "",
        ]
    )


def collectives_table() -> str:
    rows = ["| op | what it does |", "| --- | --- |", *(f"| `{op.name}` | {op.doc} |" for op in COLLECTIVES)]
    return "\n".join(rows) + "\n"


# Passes and modules


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""


def passes_table() -> str:
    """Every pass in the order in which it first runs, in the words of its own file, which also says what holds after it."""
    rows = ["| pass | what it does |", "| --- | --- |"]
    for name in dict.fromkeys(each.name for each in default_pipeline()):
        (path,) = (ROOT / "mtfc/compiler/passes").rglob(f"{name.replace('-', '_')}.py")
        text = " ".join(_docstring(path).split())
        summary = re.match(r"[\w-]+: (.*?\.)(?: |$)", text)
        after = re.search(r"After this pass (.*?\.)(?: |$)", text)
        assert summary and after, name
        link = f"[`{name}`](../{path.relative_to(ROOT)})"
        rows.append(f"| {link} | {_capital(summary[1])} |")
    return "\n".join(rows) + "\n"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def test_every_pass_is_in_the_default_pipeline() -> None:
    assert {each.name for each in default_pipeline()} == PASSES.keys()


def test_supported_versions_are_the_same_everywhere() -> None:
    """pyproject.toml, the tests of CI, the pages and the modules that are written state the same versions of Python and JAX."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project, extras = settings["project"], settings["project"]["optional-dependencies"]
    kinds = "\n".join(project["classifiers"])
    pythons = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", kinds, re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    matrix = re.findall(r'\{ python: "(.*?)", jax: "(.*?)" \}', workflow)
    guide, readme = (BY_NAME[name].read_text("utf-8") for name in ("contributing", "README"))
    table = re.findall(r"^\| (3\.\d+) \| (.*) \|$", guide, re.MULTILINE)

    assert sorted({python for python, _ in matrix}) == pythons
    assert table == [(python, version or "the newest") for python, version in matrix]
    assert f"Python {', '.join(pythons[:-1])} and {pythons[-1]}, and JAX {JAX}, " in readme
    assert f"\nPython {pythons[0]} or later." in readme
    assert (
        project["requires-python"] == f">={pythons[0]}" == f">={settings['tool']['mypy']['python_version']}"
    )
    assert settings["tool"]["ruff"]["target-version"] == f"py{pythons[0].replace('.', '')}"
    assert {each for extra in extras.values() for each in extra if re.match(r"jax\b", each)} == {
        f"jax>={JAX}",
        f"jax[tpu]>={JAX}",
    }
    assert (pythons[0], f"{JAX}.0") in matrix, "the oldest version of each"


# Functions of JAX


def faults_table() -> str:
    """Every known fault of XLA, and the rules under which its program shows the fault."""
    rows = [
        "| fault | what happens | primitives | shown by | JAX | reference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for fault in FAULTS:
        names, shown = ", ".join(f"`{name}`" for name in fault.primitives), SHOWN[fault.name]
        rules, mesh = (", ".join(map(": ".join, each.items())) for each in (shown.rules, _texts(shown.mesh)))
        links = ", ".join(_issue(each) for each in (fault.reference or "").split(", ") if each)
        what = _capital(fault.what)
        rows.append(f"| {fault.name} | {what} | {names} | `{rules}` on `{mesh}` | {fault.seen} | {links} |")
    return "\n".join(rows) + "\n"


def _texts(sizes: Mapping[str, int]) -> dict[str, str]:
    return {name: str(size) for name, size in sizes.items()}


def _issue(reference: str) -> str:
    """Return a link to an issue, such as `openxla/xla#49118`."""
    repository, _, number = reference.partition("#")
    return f"[{reference}](https://github.com/{repository}/issues/{number})"


# Diagnostics


def emitted_codes() -> set[str]:
    """Every code that stands in the compiler's source."""
    texts = (path.read_text("utf-8") for path in (ROOT / "mtfc").rglob("*.py"))
    return {code for text in texts for code in re.findall(r'"([EW]\d{3})"', text)}


def test_every_code_is_documented() -> None:
    page = BY_NAME["diagnostics"].read_text("utf-8")
    documented = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert documented == sorted(emitted_codes())


EXAMPLE = re.compile(
    r"(```mtf( inside| beside| trained| optimizer)?\n(.*?)```\n```text\n)(.*?)(```)", re.DOTALL
)
"""An example with its messages.

It is a file, statements inside of the page's `inside.mtf`, declarations beside its model, training of its `trained.mtf`, or the
optimizer of this training.
"""
TRAIN = "train net { minimize loss; optimizer = mine(rate = 0.1) }\n"


def test_examples_of_diagnostics(update_golden: bool) -> None:
    """The messages of an example follow it; where it is in the section of a code, that code is in it, and no other."""
    path = BY_NAME["diagnostics"]
    shown = path.read_text("utf-8")
    models = {fence.file: fence.text for fence in fences(shown) if fence.language == "mtf" and fence.file}
    before, _, after = models["inside.mtf"].partition("  # statements\n")

    def explained(match: re.Match[str]) -> str:
        first, kind, text, _, last = match.groups()
        if kind == " inside":
            text = f"{before}{indent(text, '  ')}{after}"
        elif kind == " beside":
            text += models["inside.mtf"]
        elif kind in (" trained", " optimizer"):
            text += models["trained.mtf"]
            text += TRAIN if kind == " optimizer" else ""
        found = list(check(text, "model.mtf", predictor=predictor))
        (section,) = re.findall(r"^### (\w+)$", shown[: match.start()], re.MULTILINE)[-1:]
        assert {each.code for each in found} <= {section}, section
        above = before.count("\n") if kind == " inside" else 0
        return f"{first}{''.join(_brief(each, above) for each in found)}{last}"

    settle(path, shown, EXAMPLE.sub(explained, shown), update_golden)


def _brief(found: Diagnostic, above: int) -> str:
    """Return a diagnostic without the lines of the source. above: the lines that the page does not show."""
    help = f"help: {found.help}\n" if found.help else ""
    return f"line {found.span.line - above}: {found.message}\n{help}"


KINDS = {
    "a whole number of 32 bits": "i32",
    "true or false": "bool",
    "a number or a truth value": "number or bool",
    "printable text without quotes": "text",
    "a dimension": "dim",
    "a tuple of one dimension": "dims, one",
    "a tuple of different dimensions": "dims",
    "a set of dimensions, as a tuple": "{dims}",
    "a tuple of dimensions": "[dims]",
    "a tuple of different mesh axes": "axes",
    "a set of mesh axes, as a tuple": "{axes}",
    "a set of pairs of dimensions, as a tuple, each dimension mapped once": "{pairs}",
}


def ops_of_ir() -> str:
    """Return a table of all ops with their operands and attributes; ops that are alike share a row."""
    alike: dict[tuple[str, str], list[str]] = {}
    attention = OPS["attention"].attributes
    for op in OPS.values():
        least, *more = op.arity
        shared = attention if "attention_gradient" in op.traits else ()
        stated = [
            f"`{a.name}`{'?' if a.optional else ''}: {KINDS.get(a.kind.text, a.kind.text.removeprefix('a '))}"
            for a in op.attributes
            if a not in shared
        ]
        first = ["those of `attention`, without `part`"] if shared else []
        text = "; ".join([*first, *stated])
        alike.setdefault((f"{least}{'+' if more else ''}", text), []).append(f"`{op.name}`")
    rows = (f"| {', '.join(ops)} | {number} | {stated} |" for (number, stated), ops in alike.items())
    return "\n".join(["| ops | operands | attributes |", "| --- | --- | --- |", *rows, ""])


PARTS = {
    "language": {"ops": ops_table},
    "ir": {"ops_of_ir": ops_of_ir},
    "library": {"library": reference},
    "collectives": collectives.PARTS,
    "architecture": {"passes": passes_table, "collectives": collectives_table},
    "jax": {"faults": faults_table},
}


@pytest.mark.parametrize("name", PARTS)
def test_generated_parts_are_up_to_date(name: str, update_golden: bool) -> None:
    check_generated(BY_NAME[name], PARTS[name], update_golden)
