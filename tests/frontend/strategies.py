"""Generate random syntax trees, their text, and texts that do not parse.

`writing.source` writes the trees as text; tests compare the parser's tree of that text with the original.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from mtfc.compiler.diagnostics import Span
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.lexer import END, Token, lex
from tests.frontend.writing import source

HERE = Span("random.mtf", 1, 1, 1, 1)

# The second half are keywords elsewhere.
NAMES = (
    "x", "h", "w_1", "batch", "f32", "A", "model", "dim", "value", "state", "on", "along", "params", "optimizer",
)  # fmt: skip
TWO_SIDED = ("+", "-", "*", "/", "//", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or")

JUNK = (
    *NAMES, *TWO_SIDED, "0.5", "64", "1e999", "0x1", "...", "->", "=", ":", ",", ";", "(", ")", "[", "]", "{", "}",
    "\n", "\r\n", "\r", " ", "\t", "\f", "# c\n", "return", "param", "repeat", "scan", "yield", "as", "not", "true",
    "layout", "mesh", "train", "minimize", "report", "training", "fn",
    "import", "checkpoint", "\0", "\ufeff", "é", "日", "\ud800", "\u2028",
    "$", '"', "99999999999999999999",
)  # fmt: skip


@cache
def names() -> st.SearchStrategy[ast.Name]:
    return st.sampled_from(NAMES).map(lambda text: ast.Name(HERE, text))


@cache
def dotted() -> st.SearchStrategy[ast.Name | ast.Path]:
    paths = st.lists(st.sampled_from(NAMES), min_size=2, max_size=3).map(lambda p: ast.Path(HERE, tuple(p)))
    return names() | paths


def tuples(of: st.SearchStrategy[Any], least: int = 0, most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, min_size=least, max_size=most).map(tuple)


@cache
def dim_lists() -> st.SearchStrategy[ast.DimList]:
    return st.builds(ast.DimList, st.just(HERE), tuples(dotted() | st.just(ast.Ellipsis(HERE))))


@cache
def expressions() -> st.SearchStrategy[ast.Expr]:
    here = st.just(HERE)
    floats = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
    leaves = (
        st.builds(ast.Int, here, st.integers(0, 2**63 - 1))
        | st.builds(ast.Float, here, floats)
        | st.builds(ast.Bool, here, st.booleans())
        | dotted()
    )
    return st.recursive(leaves, _compound, max_leaves=8)


def _compound(parts: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    here = st.just(HERE)
    return (
        st.builds(ast.Unary, here, st.sampled_from(("-", "not")), parts)
        | st.builds(ast.Binary, here, st.sampled_from(TWO_SIDED), parts, parts)
        | calls(parts)
    )


def calls(parts: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Call]:
    here = st.just(HERE)
    values = parts | dim_lists() | st.builds(ast.Tuple, here, tuples(parts, 2))
    arguments = values | st.builds(ast.Arrow, here, parts, dotted() | dim_lists())
    keywords = tuples(st.builds(ast.Keyword, here, names(), values)).map(
        lambda found: tuple({keyword.name.text: keyword for keyword in found}.values())
    )
    bindings = st.builds(ast.DimBinding, here, names(), dotted())
    maybe = st.none() | names()
    return st.builds(
        ast.Call, here, dotted(), tuples(bindings, 0, 2), tuples(arguments), keywords, maybe, maybe
    )


@cache
def types() -> st.SearchStrategy[ast.Type]:
    return st.builds(
        ast.Type, st.just(HERE), st.none() | names(), tuples(dotted() | st.just(ast.Ellipsis(HERE)))
    )


@cache
def statements() -> st.SearchStrategy[ast.Statement]:
    here = st.just(HERE)
    simple: st.SearchStrategy[ast.Statement] = (
        st.builds(ast.Assign, here, tuples(names(), 1, 2), expressions())
        | st.builds(ast.Param, here, names(), types(), expressions())
        | st.builds(ast.State, here, names(), st.none() | types(), expressions())
        | st.builds(ast.StateUpdate, here, names(), expressions())
        | st.builds(ast.Watch, here, tuples(expressions(), 1))
        | st.builds(ast.Return, here, tuples(expressions(), 1))
        | st.builds(ast.Yield, here, names(), expressions())
        | st.builds(ast.DimDecl, here, names(), expressions())
    )
    slices = st.builds(ast.SliceBinding, here, names(), expressions())
    condition = st.none() | expressions()
    return st.recursive(
        simple,
        lambda inner: (
            st.builds(
                ast.Repeat, here, dotted(), st.booleans(), tuples(slices, 0, 2), condition, tuples(inner)
            )
            | st.builds(ast.Scan, here, tuples(slices, 1, 2), dotted(), condition, tuples(inner))
        ),
        max_leaves=4,
    )


@cache
def rules() -> st.SearchStrategy[tuple[ast.SplitRule, ...]]:
    every = st.builds(ast.Every, st.just(HERE))
    return tuples(st.builds(ast.SplitRule, st.just(HERE), dotted() | every, tuples(names(), 1)))


@cache
def device_sets() -> st.SearchStrategy[ast.DeviceSet]:
    here, number = st.just(HERE), st.builds(ast.Int, st.just(HERE), st.integers(0, 2**63 - 1))
    ranges = st.builds(ast.DeviceRange, here, number, number)
    return (
        expressions()
        | ranges
        | st.builds(ast.DevicesOfKind, here, dotted(), tuples(expressions() | ranges, 1, 3))
    )


@cache
def figures() -> st.SearchStrategy[tuple[ast.HardwareFigure, ...]]:
    """Generate figures of hardware, with tables within tables."""
    here = st.just(HERE)
    pairs = tuples(expressions(), 2).map(lambda items: ast.Tuple(HERE, items))
    plain = expressions() | pairs | st.builds(ast.DeviceList, here, tuples(device_sets(), 0, 3))
    by_size = st.builds(ast.HardwareFigure, here, st.builds(ast.Int, here, st.integers(0, 2**63 - 1)), plain)
    tables = st.builds(ast.HardwareFigures, here, tuples(by_size))
    inner = st.builds(ast.HardwareFigure, here, names(), plain | tables)
    nested = st.builds(ast.HardwareFigures, here, tuples(inner, 0, 2))
    return tuples(st.builds(ast.HardwareFigure, here, names(), plain | nested), 0, 3)


@cache
def declarations() -> st.SearchStrategy[ast.Declaration]:
    here = st.just(HERE)
    body = tuples(statements(), 0, 4)
    axes = st.builds(ast.MeshAxis, here, names(), expressions())
    inputs = st.builds(ast.Input, here, names(), types())
    fn_args = st.builds(ast.FnArg, here, names(), st.none() | types(), st.none() | expressions())
    return (
        st.builds(ast.ImportDecl, here, names())
        | st.builds(ast.DimDecl, here, names(), expressions())
        | st.builds(ast.MeshDecl, here, names(), tuples(axes))
        | layouts()
        | placements()
        | machines()
        | st.builds(ast.ModelDecl, here, names(), tuples(inputs), body)
        | st.builds(ast.FnDecl, here, names(), tuples(names()), tuples(fn_args), tuples(types(), 1), body)
        | st.builds(
            ast.OptimizerDecl, here, names(), tuples(fn_args), names(), st.none() | types(), names(), body
        )
        | training()
    )


def degrees() -> st.SearchStrategy[ast.Degree]:
    return st.builds(ast.Degree, st.just(HERE), dotted(), expressions())


def layouts() -> st.SearchStrategy[ast.LayoutDecl]:
    here = st.just(HERE)
    rule_sets = st.none() | st.builds(ast.RuleSet, here, rules())
    values = st.builds(ast.ValueRules, here, dotted(), rules())
    pipelines = st.builds(ast.PipelineRule, here, dotted(), st.booleans(), tuples(degrees()))
    allows = tuples(st.builds(ast.Allow, here, names()), 0, 2)
    parts = st.builds(
        ast.PartRules,
        here,
        tuples(dotted(), 1, 2),
        names(),
        rules(),
        rule_sets,
        rule_sets,
        tuples(values, 0, 2),
        tuples(pipelines, 0, 2),
        allows,
    )
    split = st.builds(ast.SplitRule, here, dotted(), tuples(names(), 1))
    numbers = st.builds(ast.Int, here, st.integers(0, 999))
    form_entries = split | st.builds(ast.FormFigure, here, dotted(), numbers)
    return st.builds(
        ast.LayoutDecl,
        here,
        names(),
        tuples(names(), 0, 2),
        st.none() | names(),
        rules(),
        rule_sets,
        rule_sets,
        tuples(values, 0, 2),
        tuples(pipelines, 0, 2),
        tuples(parts, 0, 2),
        st.none() | st.builds(ast.FormSet, here, tuples(form_entries)),
        allows,
    )


def placements() -> st.SearchStrategy[ast.PlacementDecl]:
    here, counts, devices = st.just(HERE), tuples(expressions(), 0, 2), tuples(device_sets())
    placed = st.builds(ast.OperatorPlacement, here, dotted(), counts, tuples(degrees()), devices)
    return st.builds(ast.PlacementDecl, here, names(), expressions(), tuples(placed, 0, 3))


def machines() -> st.SearchStrategy[ast.HardwareDecl]:
    here = st.just(HERE)
    devices = tuples(st.builds(ast.DeviceDecl, here, names(), figures()), 0, 2)
    links = tuples(st.builds(ast.LinkDecl, here, names(), figures()))
    return st.builds(ast.HardwareDecl, here, names(), figures(), devices, links)


def training() -> st.SearchStrategy[ast.TrainDecl]:
    here = st.just(HERE)
    precision_rules = tuples(st.builds(ast.PrecisionRule, here, names(), expressions()))
    precision = st.none() | st.builds(ast.Precision, here, precision_rules)
    settings = (st.none() | names(), st.none() | expressions(), precision)
    pattern = st.builds(ast.Pattern, here, st.text("abcxyz_.*?[]!-0", max_size=8))
    patterns = tuples(pattern, 1)
    group = st.builds(ast.OptimizerFor, here, patterns, expressions()) | st.builds(ast.Frozen, here, patterns)
    numbers = [st.none() | expressions()] * 4
    reported = st.none() | tuples(names(), 1)
    return st.builds(ast.TrainDecl, here, names(), *settings, *numbers, reported, tuples(group, 0, 3))


@cache
def files() -> st.SearchStrategy[ast.File]:
    return tuples(declarations(), 0, 4).map(lambda found: ast.File(HERE, found))


@cache
def bodies() -> st.SearchStrategy[tuple[ast.Statement, ...]]:
    return tuples(statements(), 1, 4)


@cache
def junk() -> st.SearchStrategy[str]:
    return (
        st.text()
        | st.lists(st.sampled_from(JUNK), max_size=60).map(" ".join)
        | st.lists(st.sampled_from(JUNK), max_size=60).map("".join)
    )


@st.composite
def chains(draw: st.DrawFn) -> str:
    """Generate operations without parentheses, in Python's syntax and in that of the language."""
    operators = st.sampled_from(("+", "-", "*", "/", "//", "**", "<", "!=", "and", "or"))
    text = draw(st.sampled_from(("", "not ")))
    for operator in draw(st.lists(operators, max_size=7)):
        logic = ("", "not ", "not not ") if operator in ("and", "or") else ("",)
        text += f"{draw(st.sampled_from(('', '-', '- -')))}{draw(st.sampled_from('ab1'))} {operator} "
        text += draw(st.sampled_from(logic))
    return text + "c"


@st.composite
def disguised(draw: st.DrawFn) -> tuple[ast.File, str]:
    """Generate a tree, and its text with random white space and comments."""
    tree = draw(files())
    spaces = st.sampled_from((" ", "  ", "\t", "\f ", ""))
    breaks = st.sampled_from(
        ("\n", "\r\n", "\r", "  # why\n", "\n\n\n", "\n# one\n\n  # two\n", ";\n", "\n;;\n")
    )
    inside = st.sampled_from(("", "", "", "\n", " # why\n"))
    depth = 0
    written = ""
    before: Token | None = None
    for token in lex(source(tree)):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if token.kind == END:
            break
        if token.text == "\n":
            written += draw(breaks)
        else:
            written += _gap(before, token) + draw(spaces) + token.text
            written += draw(inside) if depth else ""
        before = token
    return tree, written


def _gap(before: Token | None, token: Token) -> str:
    """Return a space if two tokens would become one without it."""
    if before is None or before.text == "\n":
        return ""
    return " " if before.text[-1:].isalnum() or before.text[-1] in "_.-+*/<>=!" else ""
