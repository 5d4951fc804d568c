"""Test unused statements: the program is the same without them, and a warning says so."""

import re

import pytest

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.printer import print_program
from mtfc.frontend.check import check
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.semantics.names.unused_values import find_unused
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource
from tests.properties.campaign import holds_for

FILE = "file.mtf"

DECLARATIONS = """
import nn
dim batch = 8; dim io = 4; dim classes = 6; dim layers = 3; dim best = 2
mesh line = [all: 2]
layout dp = { batch: all }
fn noisy(x: [..., io]) -> [..., io] {
  param scale: [io] = ones()
  return x * scale + random.normal([...])
}
"""


def load(source: str) -> tuple[Module, Diagnostics]:
    diagnostics = Diagnostics()
    module = elaborate(parse(source, FILE, diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    return module, diagnostics


def text(source: str) -> str:
    """Return the elaborated programs, without places in the source."""
    module, _ = load(source)
    return re.sub(r"  // .*", "", "".join(print_program(program) for program in module.programs))


def model(*statements: str) -> str:
    body = "\n".join(f"  {each}" for each in statements)
    return f"{DECLARATIONS}model m(x: [batch, io], labels: i32[batch]) {{\n{body}\n}}\n"


def warned(source: str) -> list[str]:
    return [each.message for each in check(source, FILE) if each.code == "W603"]


LIVE = (
    "y = noisy(x) + noisy(x)",
    "y = nn.dropout(y, 0.5)",
    "repeat layers { y = noisy(y); y = nn.dropout(y, 0.1) }",
    "out = nn.dense[d_out = classes](y)",
    "return out",
)


@pytest.mark.parametrize("place", range(len(LIVE)))
@pytest.mark.parametrize(
    "dead",
    [
        "h = nn.dense[d_out = classes](x)", "h = nn.dropout(x, 0.5)", "h = noisy(noisy(x)) as named", "h = 2.0", "mul = x * 2",
        "repeat layers { x = noisy(x) }", "repeat layers { h = noisy(x); yield each = h; yield other = h * 2 }",
        "scan x_t = x along batch { yield h = nn.dropout(x_t, 0.5) }",
        "values, indices = top_k(nn.dense[d_out = classes](x), classes -> best)", "h = noisy(x); h_2 = h * h; h = h + h_2",
    ],
)  # fmt: skip
def test_a_dead_statement_changes_nothing(dead: str, place: int) -> None:
    """A dead statement changes no names of parameters, random numbers, loops and values, and no equation."""
    statements = [*LIVE[:place], dead, *LIVE[place:]]
    if "{ x = " in dead:  # the dead statement is alive if something reads `x` after it
        statements = [*LIVE[:-1], dead, LIVE[-1]]
    assert text(model(*statements)) == text(model(*LIVE))
    assert warned(model(*statements)) and not warned(model(*LIVE))


@pytest.mark.parametrize(
    ("inside", "without"),
    [
        ("h = noisy(y); y = noisy(y)", "y = noisy(y)"),
        ("y = noisy(y); b = b + noisy(y)", "y = noisy(y)"),
        ("b = noisy(y); y = noisy(y); a = b; b = a", "y = noisy(y)"),
        ("y = noisy(y); yield each = noisy(y)", "y = noisy(y)"),
        ("repeat best { b = noisy(b) }; y = noisy(y)", "y = noisy(y)"),
        ("repeat best { y = noisy(y); b = noisy(b) }", "repeat best { y = noisy(y) }"),
    ],
)
def test_a_dead_statement_in_a_loop_changes_nothing(inside: str, without: str) -> None:
    def looped(start: str, body: str) -> str:
        return model(f"y = x{start}", f"repeat layers {{ {body} }}", "out = noisy(y)", "return out")

    assert text(looped("; b = noisy(x)", inside)) == text(looped("", without))


def test_dead_code_of_a_function_is_dropped_at_each_call_and_warned_about_once() -> None:
    source = model("y = wasteful(x)", "repeat layers { y = wasteful(y) }", "return y")
    wasteful = "fn wasteful(x: [..., io]) -> [..., io] {{ {} y = noisy(x); return y * 2 }}\n"
    with_dead = source + wasteful.format("h = noisy(x);")
    assert text(with_dead) == text(source + wasteful.format(""))
    assert warned(with_dead) == ["`h` is never used"]


def test_a_loop_means_what_it_needs_before_it() -> None:
    """A variable that the loop binds again is carried, so the value before it is used."""
    source = model("b = noisy(x)", "repeat layers { b = x; x = x + 1 }", "return b, x")
    assert not warned(source)
    assert "carried %b" in text(source)


def test_a_parameter_stays() -> None:
    source = model("param w: [io] = zeros()", "repeat layers { param v: [io] = zeros() }", "return x")
    assert warned(source) == ["`w` is never used", "`v` is never used"]
    assert "param w:" in text(source) and "param layers.v:" in text(source)


def test_a_chain_of_unused_values_gives_one_warning() -> None:
    source = model("a = noisy(x)", "b = a * 2", "c = a + b", "return x")
    (warning,) = [each for each in check(source, FILE) if each.code == "W603"]
    assert warning.message == "`c` is never used"
    assert [label.message for label in warning.labels] == ["used for this alone"] * 2


def test_names_that_begin_with_an_underscore_are_unused_on_purpose() -> None:
    dead = model("a = x * 2", "_rest = noisy(a)", "return x")
    assert not warned(dead)
    assert text(dead) == text(model("return x"))


def test_inputs_and_arguments_may_be_unused() -> None:
    source = model("y = first(x, x)", "return y")
    assert not warned(source + "fn first(x: [..., io], y: [..., io]) -> [..., io] { return x }\n")


def test_nothing_is_called_unused_where_the_model_has_errors() -> None:
    assert not warned(model("h = x * 2", "return hh"))
    assert not warned(model("h = x * 2"))


def test_errors_in_dead_statements_are_reported() -> None:
    source = model("h = x * wrong", "g = nn.dense(x)", "z = labels and x", "return x")
    assert [each.code for each in check(source, FILE)] == ["E101", "E220", "E202"]


def test_no_work_is_called_duplicated_that_nothing_uses() -> None:
    dead = model("h = nn.dense[d_out = classes](x)", "return x").replace("{ batch: all }", "{ io: all }")
    assert [each.code for each in check(dead, FILE)] == ["W603"]
    alive = dead.replace("  return x\n}", "  return h\n}").replace("{ io: all }", "{}")
    assert [each.code for each in check(alive, FILE)] == ["W601"]


def test_a_rule_may_name_a_dead_value() -> None:
    source = model("h = x * 2", "return x").replace("{ batch: all }", "{ value h: { batch: all } }")
    assert [each.code for each in check(source, FILE)] == ["W603"]


def test_an_optimizer_is_as_it_was() -> None:
    source = model("param w: [io] = ones()", "loss = mean(x * w)", "return loss")
    train = "optimizer o() (p, g) {\n h = p * 2\n p = p - g\n}\ntrain m { minimize loss; optimizer = o() }\n"
    assert not warned(source + train)


@holds_for(programs(Options(grouped=False)) | programs(Options(structured=True, grouped=False)))
def test_random_programs_are_those_without_their_dead_lines(program: HasSource) -> None:
    lines = dict(enumerate(program.source.split("\n"), 1))
    for decl in parse(program.source, FILE, Diagnostics()).declarations:
        for span in find_unused(decl).dead if isinstance(decl, ast.ModelDecl | ast.FnDecl) else ():
            for line in range(span.line, span.end_line + 1):
                lines.pop(line, None)
    without = "\n".join(lines.values())
    assert text(without) == text(program.source)
    assert all(
        "param" in lines[each.span.line] for each in load(program.source)[1] if each.span.line in lines
    )
