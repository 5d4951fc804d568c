"""Test layouts and meshes, in a file and on the command line, and the warnings about layouts."""

from collections.abc import Sequence

import pytest

from mtfc.compiler.diagnostics import CompileError, Diagnostics, Span
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.frontend.check import check
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.layout_options import chosen_layouts, parse_layout, parse_mesh
from mtfc.frontend.syntax.parser import parse

FILE = "file.mtf"

SOURCE = """
dim batch = 8; dim io = 4
mesh line = [all: 4]
mesh grid = [rows: 2, cols: 2]
layout whole on line = {}
layout both on grid = {
  batch: (rows, cols)
  params: { io: cols }, optimizer: { io: rows }
  value y: { io: cols }
}
model net(x: [batch, io]) {
  param w: [io] = uniform(low = -0.5, high = 1 / 2)
  param b: [io] = constant(0.25)
  y = x * w + b
  loss = mean(square(y))
  return loss
}
train net {
  minimize loss
  optimizer = momentum(learning_rate = 2 * 1e-3)
}
"""


def load() -> Module:
    """Elaborate a file."""
    diagnostics = Diagnostics()
    module = elaborate(parse(SOURCE, FILE, diagnostics), diagnostics)
    assert not list(diagnostics)
    return module


def test_a_layout_has_all_its_sections() -> None:
    layout = load().layouts[1].layout
    assert layout.rules == Rules((("batch", ("rows", "cols")),))
    assert layout.params == Rules((("io", ("cols",)),))
    assert layout.optimizer == Rules((("io", ("rows",)),))
    assert layout.value_rules == {"y": Rules((("io", ("cols",)),))}


def test_a_rule_over_no_axes_keeps_a_dimension_whole() -> None:
    """A section overrides the layout: here `w` is stored whole, but used in parts."""
    layout = parse_layout("io: cols; params: { io: () }", load(), parse_mesh("grid", load())).layout
    assert layout.rules.override(layout.params) == Rules((("io", ()),))


@pytest.mark.parametrize("text", ["grid", " grid ", "[rows: 2, cols: 2]", "rows:2;cols:2", "rows=2, cols=2"])
def test_forms_of_a_mesh(text: str) -> None:
    assert parse_mesh(text, load()).axes == (("rows", 2), ("cols", 2))


@pytest.mark.parametrize(
    "text", ["both", "batch:(rows, cols);params: {io: cols}", "{ batch: (rows, cols), params: { io: cols } }"]
)
def test_forms_of_a_layout(text: str) -> None:
    module = load()
    declared = parse_layout(text, module, module.meshes["grid"])
    assert declared.mesh.name == "grid"
    assert declared.layout.rules == Rules((("batch", ("rows", "cols")),))
    assert declared.layout.params == Rules((("io", ("cols",)),))


def test_a_layout_without_rules_is_replicated() -> None:
    module = load()
    for text in ("", "{}", "{\n}"):
        assert parse_layout(text, module, module.meshes["line"]).layout.rules == Rules()


def selected(layout: str | None, mesh: str | None) -> list[tuple[str, str]]:
    return [(each.name, each.mesh.name) for each in chosen_layouts(load(), layout, mesh)]


def test_layouts_are_selected_by_layout_and_mesh() -> None:
    assert selected(None, None) == [("whole", "line"), ("both", "grid")]
    assert selected("both", None) == [("both", "grid")]
    assert selected(None, "line") == [("whole", "line")]
    assert selected(None, "rows:1;cols:8") == [("whole", "given"), ("both", "given")]
    assert selected(None, "all:8") == [("whole", "given")]
    assert selected("batch:rows", "grid") == [("given", "grid")]


@pytest.mark.parametrize(
    ("layout", "mesh", "code", "message", "columns"),
    [
        ("bth", None, "E311", "unknown layout `bth`", (1, 4)),
        (None, "gird", "E307", "unknown mesh `gird`", (1, 5)),
        ("batch:row", "grid", "E304", "mesh `grid` has no axis `row`", (7, 10)),
        ("{ btach: rows }", "grid", "E303", "unknown dimension `btach`", (3, 8)),
        ("batch:rows", None, "E307", "these rules need a mesh, and the file declares several", (1, 11)),
        ("batch: rows, 3", "grid", "E001", "expected an entry such as `batch: rows`, found `3`", (14, 15)),
        ("}; dim x = 2; layout y = {", "grid", "E312", "expected one list of rules, and nothing else", (1, 27)),
        (None, "rows:0", "E207", "`rows` has size 0, and the least possible is 1", (6, 7)),
        (None, "rows", "E307", "unknown mesh `rows`", (1, 5)),
        ("both", "line", "E304", "mesh `line` has no axis `rows`", None),
    ],
)  # fmt: skip
def test_wrong_options(
    layout: str | None, mesh: str | None, code: str, message: str, columns: tuple[int, int] | None
) -> None:
    with pytest.raises(CompileError) as raised:
        chosen_layouts(load(), layout, mesh)
    first = raised.value.diagnostics[0]
    assert (first.code, first.message) == (code, message)
    option = "<--mesh>" if layout is None else "<--layout>"
    assert first.span.file == (option if columns else FILE)
    assert columns is None or (first.span.column, first.span.end_column) == columns


def test_a_mesh_that_no_layout_fits() -> None:
    source = "dim a = 4\nmesh m = [all: 2]\nlayout l = { a: all }\nmodel f(x: [a]) { return x }"
    (found,) = check(source, FILE, mesh="planes:2")
    assert (found.code, found.message) == ("E311", "no declared layout fits this mesh")
    assert found.span == Span("<--mesh>", 1, 1, 1, 9)


def test_an_option_reaches_check() -> None:
    found = list(check(SOURCE, FILE, layout="io:all", mesh="all:3"))
    assert [(each.code, each.span.file) for each in found] == [("E302", "<--layout>")]
    assert not check(SOURCE, FILE, dims={"io": 6}, layout="io:all", mesh="all:3").errors
    assert [each.code for each in check(SOURCE, FILE, layout="none")] == ["E311"]


def test_work_is_heavy_from_one_hundredth_on() -> None:
    """One einsum has 99 or 100 times the work of the other."""
    source = """
dim big = {size}; dim small = 6; dim other = 6
mesh line = [all: 2]
layout split = {{ big: all }}
model net(x: [big, small], y: [small, other]) {{
  a = einsum(x, x -> [])
  b = einsum(y -> [other])
  return a, b
}}"""
    heavy, light = source.format(size=98 * 3), source.format(size=100 * 6)
    assert [d.message for d in check(heavy, FILE)] == [
        "layout `split` leaves mesh axis `all` unused here: this work is done 2 times over"
    ]
    assert not list(check(light, FILE))


def test_axes_of_size_one_duplicate_no_work() -> None:
    source = (
        "dim a = 4\nmesh m = [all: 1]\nlayout l = {}\nmodel f(x: [a]) { y = einsum(x, x -> []); return y }"
    )
    assert not list(check(source, FILE))


def test_a_value_may_have_its_work_split_by_a_rule_of_its_own() -> None:
    source = """
dim a = 4; dim b = 4
mesh m = [all: 2]
layout l = { LAYOUT }
model f(x: [a, b]) { y = einsum(x -> [a]); return y }"""
    found = check(source.replace("LAYOUT", ""), FILE)
    assert [d.code for d in found] == ["W601"]
    assert not list(check(source.replace("LAYOUT", "value y: { a: all }"), FILE))


def test_a_rule_for_values_of_one_name_in_several_models() -> None:
    """A `value` rule need not fit every model with a value of the name: `x` of the second model has no `b`."""
    source = """
    dim a = 4; dim b = 4
    mesh line = [all: 4]
    layout own = { value x: { RULE: all } }
    model one(x: [a, b]) { y = x + 1.0; return y }
    model two(x: [a]) { y = x + 1.0; return y }
    """
    assert not list(check(source.replace("RULE", "b"), FILE))
    found = list(check(source.replace("RULE", "c").replace("dim b", "dim c = 4; dim b"), FILE))
    assert [each.code for each in found] == ["E306"]


# Advice


def advice(
    times: Sequence[float] | None, layout: str = "{}", sizes: str = "dim a = 4; dim b = 4"
) -> list[str | None]:
    """Return the help of warnings; each layout asked about has the given speedup."""

    def faster(
        program: Program, eqn: Equation, mesh: Mesh, layout: Layout, others: Sequence[Layout]
    ) -> Sequence[float] | None:
        return None if times is None else times[: len(others)]

    source = f"{sizes}\nmesh m = [all: 2, one: 1, more: 2]\nlayout l = {layout}\n"
    model = "model f(x: [a, b]) { y = einsum(x, x -> []); return y }"
    return [each.help for each in check(source + model, FILE, predictor=lambda: faster)]


def test_only_rules_that_are_faster_are_advised() -> None:
    best = "split a dimension over `all`: on h100 `b: all` is predicted to be 3.0 times as fast, `a: all` 2.0 times"
    (help,) = advice([2.0, 3.0], "{ allow W602 }")
    assert help is not None and help.startswith(best)
    (help,) = advice([2.0, 0.5])
    assert help is not None and "`a: all` is predicted to be 2.0 times as fast;" in help
    (help,) = advice([1.0, 0.5])
    assert help is not None and help.startswith("no rule for `all` is predicted to be faster")
    assert advice(None) == [None]


def test_no_rule_is_advised_that_would_be_illegal() -> None:
    sizes = "dim a = 3; dim b = 4"
    assert advice([2.0], "{ b: more, params: { a: all } }", sizes) == [
        "split a dimension over `all`: on h100 `b: (more, all)` is predicted to be 2.0 times as fast"
    ]
    assert advice([2.0], "{ a: more }", "dim a = 2; dim b = 3") == [
        "none of its dimensions can be split over `all` as well"
    ]


# Models


SEVERAL = """
dim a = 4; dim b = 4
mesh line = [all: 2]
layout first for one = { a: all }
layout second on line for two, one = { b: all }
layout third = { b: all }
layout fourth for two on line = { a: all }
model one(x: [a]) { y = einsum(x, x -> []); return y }
model two(x: [b]) { y = einsum(x, x -> []); return y }
"""


def of_several(layout: str | None, mesh: str | None, model: str | None) -> list[str]:
    diagnostics = Diagnostics()
    module = elaborate(parse(SEVERAL, FILE, diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    return [each.name for each in chosen_layouts(module, layout, mesh, model)]


def test_a_layout_is_offered_to_the_models_that_it_is_for() -> None:
    assert of_several(None, None, "one") == ["first", "second", "third"]
    assert of_several(None, None, "two") == ["second", "third", "fourth"]
    assert of_several(None, "line", "two") == ["second", "third", "fourth"]
    assert of_several(None, "all: 4", "two") == ["second", "third", "fourth"]
    assert of_several("first", None, "one") == of_several("first", None, None) == ["first"]


def test_a_layout_for_another_model_is_refused() -> None:
    with pytest.raises(CompileError) as raised:
        of_several("first", None, "two")
    (error,) = raised.value.diagnostics
    assert (error.code, error.span.file) == ("E311", "<--layout>")
    assert error.message == "layout `first` is for model `one`, and not for `two`"
    assert error.help is not None and "--model one" in error.help and "`fourth`" in error.help


def test_a_layout_is_checked_with_the_models_that_it_is_for() -> None:
    """No warning for `first` with `two`, for `fourth` with `one`, or for `third` with `one`, which has no `b`."""
    found = [(each.message.split("`")[1], each.span.line) for each in check(SEVERAL, FILE)]
    assert found == [("second", 8), ("fourth", 9)]
    wrong = SEVERAL.replace("a: all }\nmodel", "a: all, value x: { a: all } }\nmodel")
    assert [each.code for each in check(wrong, FILE).errors] == ["E306"]
    assert not check(wrong.replace("for two on line", "on line"), FILE).errors


# allow


@pytest.mark.parametrize(
    ("layout", "line", "warned"),
    [
        ("{}", "", True),
        ("{ allow W601 }", "", False),
        ("{ allow W602 }", "", True),
        ("{}", "  # allow W601", False),
        ("{}", "  # allow W602, W601: it is small", False),
        ("{}", "  # we allow W601", True),
        ("{}  # allow W601", "", False),
        ("{\n# allow W601\n}", "", True),
    ],
)
def test_warnings_may_be_allowed(layout: str, line: str, warned: bool) -> None:
    model = f"model f(x: [a]) {{\n  y = einsum(x, x -> []){line}\n  return y\n}}"
    source = f"dim a = 4\nmesh m = [all: 2]\nlayout l = {layout}\n{model}"
    assert [each.code for each in check(source, FILE)] == ["W601"] * warned


def test_a_comment_alone_on_its_line_is_about_the_next_one() -> None:
    source = "dim a = 4\nmodel f(x: [a]) {\n  # allow W603\n\n  # for later\n  h = x + 1\n  g = x + 1\n  return x\n}"
    assert [each.message for each in check(source, FILE)] == ["`g` is never used"]
