"""Generate random syntax trees, their text, and texts that do not parse.

`writing.source` writes the trees as text; tests compare the parser's tree of that text with the original.
"""

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


def node(kind: type[Any], *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, st.just(HERE), *fields)


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
    return node(ast.DimList, tuples(dotted() | st.just(ast.Ellipsis(HERE))))


@cache
def expressions() -> st.SearchStrategy[ast.Expr]:
    floats = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
    leaves = (
        node(ast.Int, st.integers(0, 2**63 - 1))
        | node(ast.Float, floats)
        | node(ast.Bool, st.booleans())
        | dotted()
    )
    return st.recursive(leaves, _compound, max_leaves=8)


def _compound(parts: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    return (
        node(ast.Unary, st.sampled_from(("-", "not")), parts)
        | node(ast.Binary, st.sampled_from(TWO_SIDED), parts, parts)
        | calls(parts)
    )


def calls(parts: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Call]:
    values = parts | dim_lists() | node(ast.Tuple, tuples(parts, 2))
    arguments = values | node(ast.Arrow, parts, dotted() | dim_lists())
    keywords = tuples(node(ast.Keyword, names(), values)).map(
        lambda found: tuple({keyword.name.text: keyword for keyword in found}.values())
    )
    bindings = node(ast.DimBinding, names(), dotted())
    maybe = st.none() | names()
    return node(ast.Call, dotted(), tuples(bindings, 0, 2), tuples(arguments), keywords, maybe, maybe)


@cache
def types() -> st.SearchStrategy[ast.Type]:
    return node(ast.Type, st.none() | names(), tuples(dotted() | st.just(ast.Ellipsis(HERE))))


@cache
def statements() -> st.SearchStrategy[ast.Statement]:
    simple: st.SearchStrategy[ast.Statement] = (
        node(ast.Assign, tuples(names(), 1, 2), expressions())
        | node(ast.Param, names(), types(), expressions())
        | node(ast.State, names(), st.none() | types(), expressions())
        | node(ast.StateUpdate, names(), expressions())
        | node(ast.Watch, tuples(expressions(), 1))
        | node(ast.Return, tuples(expressions(), 1))
        | node(ast.Yield, names(), expressions())
        | node(ast.DimDecl, names(), expressions())
    )
    slices = node(ast.SliceBinding, names(), expressions())
    condition = st.none() | expressions()
    return st.recursive(
        simple,
        lambda inner: (
            node(ast.Repeat, dotted(), st.booleans(), tuples(slices, 0, 2), condition, tuples(inner))
            | node(ast.Scan, tuples(slices, 1, 2), dotted(), condition, tuples(inner))
        ),
        max_leaves=4,
    )


@cache
def rules() -> st.SearchStrategy[tuple[ast.SplitRule, ...]]:
    every = node(ast.Every)
    return tuples(node(ast.SplitRule, dotted() | every, tuples(names(), 1)))


@cache
def device_sets() -> st.SearchStrategy[ast.DeviceSet]:
    number = node(ast.Int, st.integers(0, 2**63 - 1))
    ranges = node(ast.DeviceRange, number, number)
    return expressions() | ranges | node(ast.DevicesOfKind, dotted(), tuples(expressions() | ranges, 1, 3))


@cache
def figures() -> st.SearchStrategy[tuple[ast.HardwareFigure, ...]]:
    """Generate figures of hardware, with tables within tables."""
    pairs = tuples(expressions(), 2).map(lambda items: ast.Tuple(HERE, items))
    plain = expressions() | pairs | node(ast.DeviceList, tuples(device_sets(), 0, 3))
    by_size = node(ast.HardwareFigure, node(ast.Int, st.integers(0, 2**63 - 1)), plain)
    tables = node(ast.HardwareFigures, tuples(by_size))
    inner = node(ast.HardwareFigure, names(), plain | tables)
    nested = node(ast.HardwareFigures, tuples(inner, 0, 2))
    return tuples(node(ast.HardwareFigure, names(), plain | nested), 0, 3)


@cache
def declarations() -> st.SearchStrategy[ast.Declaration]:
    body = tuples(statements(), 0, 4)
    axes = node(ast.MeshAxis, names(), expressions())
    inputs = node(ast.Input, names(), types())
    fn_args = node(ast.FnArg, names(), st.none() | types(), st.none() | expressions())
    return (
        node(ast.ImportDecl, names())
        | node(ast.DimDecl, names(), expressions())
        | node(ast.MeshDecl, names(), tuples(axes))
        | layouts()
        | placements()
        | machines()
        | node(ast.ModelDecl, names(), tuples(inputs), body)
        | node(ast.FnDecl, names(), tuples(names()), tuples(fn_args), tuples(types(), 1), body)
        | node(ast.OptimizerDecl, names(), tuples(fn_args), names(), st.none() | types(), names(), body)
        | training()
    )


def degrees() -> st.SearchStrategy[ast.Degree]:
    return node(ast.Degree, dotted(), expressions())


def layouts() -> st.SearchStrategy[ast.LayoutDecl]:
    rule_sets = st.none() | node(ast.RuleSet, rules())
    values = node(ast.ValueRules, dotted(), rules())
    pipelines = node(ast.PipelineRule, dotted(), st.booleans(), tuples(degrees()))
    allows = tuples(node(ast.Allow, names()), 0, 2)
    sections = (rules(), rule_sets, rule_sets, tuples(values, 0, 2), tuples(pipelines, 0, 2))
    parts = node(ast.PartRules, tuples(dotted(), 1, 2), names(), *sections, allows)
    split = node(ast.SplitRule, dotted(), tuples(names(), 1))
    numbers = node(ast.Int, st.integers(0, 999))
    form_entries = split | node(ast.FormFigure, dotted(), numbers)
    forms = st.none() | node(ast.FormSet, tuples(form_entries))
    on = (names(), tuples(names(), 0, 2), st.none() | names())
    return node(ast.LayoutDecl, *on, *sections, tuples(parts, 0, 2), forms, allows)


def placements() -> st.SearchStrategy[ast.PlacementDecl]:
    counts, devices = tuples(expressions(), 0, 2), tuples(device_sets())
    placed = node(ast.OperatorPlacement, dotted(), counts, tuples(degrees()), devices)
    return node(ast.PlacementDecl, names(), expressions(), tuples(placed, 0, 3))


def machines() -> st.SearchStrategy[ast.HardwareDecl]:
    devices = tuples(node(ast.DeviceDecl, names(), figures()), 0, 2)
    links = tuples(node(ast.LinkDecl, names(), figures()))
    return node(ast.HardwareDecl, names(), figures(), devices, links)


def training() -> st.SearchStrategy[ast.TrainDecl]:
    precision_rules = tuples(node(ast.PrecisionRule, names(), expressions()))
    precision = st.none() | node(ast.Precision, precision_rules)
    settings = (st.none() | names(), st.none() | expressions(), precision)
    pattern = node(ast.Pattern, st.text("abcxyz_.*?[]!-0", max_size=8))
    patterns = tuples(pattern, 1)
    group = node(ast.OptimizerFor, patterns, expressions()) | node(ast.Frozen, patterns)
    numbers = [st.none() | expressions()] * 4
    reported = st.none() | tuples(names(), 1)
    return node(ast.TrainDecl, names(), *settings, *numbers, reported, tuples(group, 0, 3))


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
