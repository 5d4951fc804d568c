"""Build the syntax nodes of grammar rules.

A rule without a method here makes the `ast` node of its name from its children. A method handles tokens with more than text,
optional parts, and errors that a grammar cannot express. For such an error the method raises `CompileError`, and the parser
recovers as from any syntax error.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeGuard, TypeVar, cast

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Label, Span, failure, nearest
from mtfc.compiler.records import frozen
from mtfc.frontend.syntax import ast, syntax_errors
from mtfc.frontend.syntax.ast import bound, children, walk
from mtfc.frontend.syntax.brackets import NESTING_LIMIT
from mtfc.frontend.syntax.lexer import Token
from mtfc.frontend.syntax.other_libraries import ENTRIES

INTEGER = re.compile(r"[0-9]+")
DECIMAL = re.compile(r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")
LARGEST_INTEGER = 2**63 - 1

N = TypeVar("N", bound=ast.Node)

# The entries of a `train` block.
SETTINGS = ("minimize", "optimizer", "precision", "accumulate", "weigh_by", "clip", "average", "report")
GROUPS = ("optimizer for", "frozen")
"""The entries of a `train` block for some of the parameters."""
STORED = ("params", "optimizer")
"""The sections of a layout that say how arrays are stored."""
# Rules that make a tuple of their children.
TUPLES = frozenset(
    (
        "block",
        "device_numbers",
        "entries",
        "file",
        "items",
        "list",
        "names",
        "one",
        "patterns",
        "settings",
        "slices",
        "values",
    )
)

# Rules of declarations, and of parts of layouts, whose last child are their entries.
WITH_ENTRIES = ("layout_decl", "part", "placement_decl", "hardware_decl")


def _filling(node: type[ast.Node]) -> Callable[..., ast.Node]:
    """Return the class, whose lists and flags that a text leaves out are empty and false."""
    fields = [str(kind) for kind in vars(node).get("__annotations__", {}).values()]
    lists = [number for number, kind in enumerate(fields) if kind.startswith("tuple[")]
    flags = [number for number, kind in enumerate(fields) if kind == "bool"]
    if not lists and not flags:
        return node

    def make(span: Span, *values: Any) -> ast.Node:
        given = list(values)
        for number in lists:
            given[number] = given[number] or ()
        for number in flags:
            given[number] = given[number] is not None
        return node(span, *given)

    return make


def _or_broken(make: Callable[..., ast.Node]) -> Callable[..., ast.Node]:
    """Return a function that makes a declaration, or `Broken` if one of its entries is broken."""

    def made(span: Span, *values: Any) -> ast.Node:
        node = make(span, *values)
        names = frozenset(each.text for each in values[:1] if isinstance(each, ast.Name))
        return ast.Broken(span, names) if _is_broken(values[-1]) else node

    return made


class KeyedEntry(ast.Node):
    """An entry of a `train` block, such as `minimize loss` or `key = value`, or a section `key: { rules }` of a layout."""

    key: Token | ast.Name
    value: Any


@frozen
class TreeBuilder:
    """Makes the nodes of the syntax tree: a method for each rule of the grammar whose node is not just its children."""

    file: str

    def maker(self, rule: str) -> Callable[..., Any]:
        """Return the function that makes the value of a rule from a span and the children."""
        found: Callable[..., Any] | None = getattr(self, rule, None)
        found = found or _filling(getattr(ast, "".join(part.capitalize() for part in rule.split("_"))))
        return _or_broken(found) if rule in WITH_ENTRIES else found

    # Expressions

    def name(self, span: Span, token: Token) -> ast.Name:
        return ast.Name(span, token.text)

    def path(self, span: Span, token: Token) -> ast.Path:
        return ast.Path(span, tuple(token.text.split(".")))

    def pattern(self, span: Span, token: Token) -> ast.Pattern:
        return ast.Pattern(span, token.text[1:-1])

    def true(self, span: Span) -> ast.Bool:
        return ast.Bool(span, True)

    def false(self, span: Span) -> ast.Bool:
        return ast.Bool(span, False)

    def number(self, span: Span, token: Token) -> ast.Int | ast.Float:
        """Make an integer or a float. Raises `CompileError` (E005, E006) for other numbers, and for too large ones."""
        text = token.text
        if INTEGER.fullmatch(text):
            return ast.Int(span, _integer(text, span))
        if not DECIMAL.fullmatch(text):
            shown = syntax_errors.describe(token)
            raise failure("E005", f"{shown} is not a number", span, help="numbers look like 64, 0.5 and 1e-3")
        if math.isinf(value := float(text)):
            raise failure("E006", "this number is larger than any float", span)
        return ast.Float(span, value)

    def chain(self, span: Span, *items: Token | ast.Expr) -> ast.Expr:
        if len(items) > 2 * NESTING_LIMIT:
            raise CompileError((syntax_errors.too_deep(span, NESTING_LIMIT),))
        return _shallow(_chained(items, self.file))

    def parentheses(self, span: Span, inner: ast.Expr) -> ast.Expr:
        return inner.evolve(span=span)

    def call(
        self,
        span: Span,
        function: ast.Name | ast.Path,
        bindings: tuple[ast.DimBinding, ...] | None,
        arguments: tuple[ast.Argument | ast.Keyword, ...],
        scope: ast.Name | None,
        shared: ast.Name | None,
    ) -> ast.Call:
        """Make a call. Raises `CompileError` (E008, E010) for keywords that occur twice or come before positional arguments."""
        keywords = _only(arguments, ast.Keyword)
        positional = tuple(item for item in arguments if not isinstance(item, ast.Keyword))
        errors = [*_misplaced(arguments), *_repeated((k.name.text, k) for k in keywords)]
        if errors:
            raise CompileError(errors)
        return _shallow(ast.Call(span, function, bindings or (), positional, keywords, scope, shared))

    # Statements and declarations

    def broken(
        self, span: Span, tokens: Sequence[Token], body: tuple[ast.Statement, ...] | None = None
    ) -> ast.Broken:
        """Make a statement with a syntax error: `tokens` do not parse, and `body` is the block after a broken head."""
        names = frozenset(token.text for token in tokens if token.text.isidentifier())
        known = (node.text for each in body or () for node in walk(each) if isinstance(node, ast.Name))
        inside = (name.text for statement in body or () for name in bound(statement))
        return ast.Broken(span, names.union(known), frozenset((*_targets(tokens), *inside)))

    def entry(self, span: Span, key: Token | ast.Name, value: object) -> KeyedEntry:
        return KeyedEntry(span, key, value)

    def layout_decl(self, span: Span, name: ast.Name, *rest: Any) -> ast.LayoutDecl:
        """Make a layout. Its mesh and its models, behind the name, are in either order."""
        *given, entries = rest
        mesh = next((each for each in given if isinstance(each, ast.Name)), None)
        models = next((each for each in given if isinstance(each, tuple)), ())
        forms, rules = _rules_of(entries, "a layout")
        more = (*rules, _only(entries, ast.PartRules), forms, _only(entries, ast.Allow))
        return ast.LayoutDecl(span, name, models, mesh, *more)

    def part(
        self,
        span: Span,
        paths: tuple[ast.Name | ast.Path, ...],
        mesh: ast.Name,
        entries: tuple[ast.Node, ...],
    ) -> ast.PartRules:
        forms, rules = _rules_of(entries, "a part")
        misplaced = (*([forms] if forms else ()), *_only(entries, ast.PartRules | ast.Allow))
        more = (*rules, misplaced)
        return ast.PartRules(span, paths, mesh, *more)

    def hardware_decl(self, span: Span, name: ast.Name, entries: tuple[ast.Node, ...]) -> ast.HardwareDecl:
        of_each = (_only(entries, kind) for kind in (ast.HardwareFigure, ast.DeviceDecl, ast.LinkDecl))
        return ast.HardwareDecl(span, name, *of_each)

    def device_range(self, span: Span, token: Token) -> ast.DeviceRange:
        first, last = (ast.Int(span, _integer(digits, span)) for digits in token.text.split(".."))
        return ast.DeviceRange(span, first, last)

    def train_decl(
        self, span: Span, model: ast.Name, entries: tuple[ast.Node, ...]
    ) -> ast.TrainDecl | ast.Broken:
        """Make a `train` block of its entries. Raises `CompileError` for entries of a wrong form."""
        reports = [entry for entry in entries if _is_report(entry)]
        settings = _by_key(
            (entry for entry in entries if not _is_report(entry)), SETTINGS, "a train block", GROUPS
        )
        if _is_broken(entries):
            return ast.Broken(span, frozenset())
        errors = [
            _unfit(entry) for key, entry in settings.items() if _is_precision(entry) != (key == "precision")
        ]
        named = [*reports, *(entry for key, entry in settings.items() if key == "minimize")]
        errors += [_unnamed(entry) for entry in named if not _is_named(entry)]
        if errors:
            raise CompileError(errors)
        values: dict[str, Any] = dict.fromkeys(SETTINGS)
        values.update((key, entry.value) for key, entry in settings.items())
        values["report"] = tuple(name for entry in reports for name in entry.value) or None
        return ast.TrainDecl(span, model, **values, groups=_only(entries, ast.OptimizerFor | ast.Frozen))


def _targets(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the names that a text seems to bind: `a` and `b` in `a, b = ...`, `h` in `h += ...` and in `param h ...`."""
    texts = [token.text for token in tokens]
    for text in texts[texts[:1] in (["param"], ["state"], ["update"], ["yield"]) :]:
        if text.isidentifier():
            yield text
        elif text != ",":
            break
    for index, text in enumerate(texts):
        if text == "=":
            yield from (each for each in texts[max(index - 2, 0) : index] if each.isidentifier())


def _integer(digits: str, span: Span) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(LARGEST_INTEGER)) or int(digits) > LARGEST_INTEGER:
        raise failure("E006", "this integer does not fit in 64 bits", span)
    return int(digits)


def _no_axis(figure: ast.FormFigure) -> Diagnostic:
    return Diagnostic("E001", f"expected a name or `(`, found `{figure.number.value}`", figure.number.span)


def _is_precision(entry: KeyedEntry) -> bool:
    return isinstance(entry.value, ast.Precision)


def _unfit(entry: KeyedEntry) -> Diagnostic:
    found, expected = "`{`", "an expression"
    if not _is_precision(entry):
        found, expected = "an expression", "`{ params: f32, compute: bf16 }`"
    return Diagnostic("E001", f"expected {expected}, found {found}", entry.value.span)


def _is_report(entry: ast.Node) -> TypeGuard[KeyedEntry]:
    return isinstance(entry, KeyedEntry) and entry.key.text == "report"


def _is_named(entry: KeyedEntry) -> bool:
    """True if the entry has the value that its keyword takes: a name to minimize, or names to report."""
    return isinstance(entry.value, tuple if _is_report(entry) else ast.Name)


def _unnamed(entry: KeyedEntry) -> Diagnostic:
    what = "names" if _is_report(entry) else "a name"
    help = "write `report accuracy, grad_norm`" if _is_report(entry) else "write `minimize loss`"
    return Diagnostic("E001", f"expected {what} after `{entry.key.text}`, found `=`", entry.span, help=help)


FROZEN = 'write `frozen "head.*"`, with a pattern for the names of parameters'


def _is_broken(entries: Iterable[ast.Node]) -> bool:
    return any(isinstance(entry, ast.Broken) for entry in entries)


def _only(entries: Iterable[ast.Node], kind: Any) -> tuple[Any, ...]:
    """Return the entries of a class, or of several."""
    return tuple(entry for entry in entries if isinstance(entry, kind))


def _rules_of(entries: Iterable[ast.Node], where: str) -> tuple[ast.FormSet | None, Any]:
    """Return the forms, and the rules: for values, of the sections `params` and `optimizer`, for single values, of pipelines.

    Raises `CompileError`.
    """
    keyed = _by_key(entries, (*STORED, "forms"), where)
    forms = keyed.pop("forms", None)
    figures = (each for entry in keyed.values() for each in entry.value if isinstance(each, ast.FormFigure))
    if errors := [_no_axis(each) for each in figures]:
        raise CompileError(errors)
    stored = {key: ast.RuleSet(entry.span, entry.value) for key, entry in keyed.items()}
    rules = _only(entries, ast.SplitRule), *map(stored.get, STORED)
    single = _only(entries, ast.ValueRules), _only(entries, ast.PipelineRule)
    return ast.FormSet(forms.span, forms.value) if forms else None, (*rules, *single)


def _by_key(
    entries: Iterable[ast.Node], known: Collection[str], where: str, more: Collection[str] = ()
) -> dict[str, KeyedEntry]:
    """Return the entries with keys. Raises `CompileError` if a key is unknown or given twice.

    more: names of entries without keys, which the help lists too. known: the keys that may be there. where: the place in
    messages.
    """
    keyed = [(entry.key.text, entry) for entry in entries if isinstance(entry, KeyedEntry)]
    errors = list(_repeated(keyed))
    for key, entry in keyed:
        if key not in known:
            meant = nearest(key, (*known, *more))
            help = f"did you mean `{meant}`?" if meant else f"it has {', '.join((*known, *more))}"
            help = ENTRIES.get(key, help) if "minimize" in (*known, *more) else help
            help = FROZEN if meant == "frozen" else help
            errors.append(Diagnostic("E012", f"{where} has no entry `{key}`", entry.span, help=help))
    if errors:
        raise CompileError(errors)
    return dict(keyed)


def _repeated(keyed: Iterable[tuple[str, ast.Node]]) -> Iterator[Diagnostic]:
    """Yield E008 for each key that was there before."""
    first: dict[str, ast.Node] = {}
    for key, node in keyed:
        if first.setdefault(key, node) is not node:
            label = Label(first[key].span, "first given here")
            yield Diagnostic("E008", f"`{key}` is given twice", node.span, (label,))


def _misplaced(arguments: Iterable[ast.Node]) -> Iterator[Diagnostic]:
    """Yield E010 for each positional argument behind a keyword argument."""
    keyword: ast.Keyword | None = None
    for argument in arguments:
        if isinstance(argument, ast.Keyword):
            keyword = keyword or argument
        elif keyword:
            label = Label(keyword.span, "a keyword argument")
            message = "positional arguments come before keyword arguments"
            yield Diagnostic("E010", message, argument.span, (label,))


def _shallow(node: N) -> N:
    """Return the node. Raises `CompileError` if it is nested too deeply for recursive functions."""
    span = node.span
    if span.line == span.end_line and span.end_column - span.column <= NESTING_LIMIT:
        return node  # every level takes a character of the text
    levels = 0
    level: list[ast.Node] = [node]
    while level and levels <= NESTING_LIMIT:
        level = [child for parent in level for child in children(parent)]
        levels += 1
    if level:
        raise CompileError((syntax_errors.too_deep(span, NESTING_LIMIT),))
    return node


COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
# From the loosest to the tightest.
LEVELS = (("or",), ("and",), ("not",), COMPARISONS, ("+", "-"), ("*", "/", "//", "@"), ("negate",), ("**",))
LEVEL = {operator: level for level, operators in enumerate(LEVELS) for operator in operators}


@frozen
class _Pending:
    """An operator whose right operand is being read."""

    token: Token
    is_prefix: bool

    @property
    def level(self) -> int:
        return LEVEL["negate" if self.is_prefix and self.token.text == "-" else self.token.text]


def _chained(chain: Iterable[Token | ast.Expr], file: str) -> ast.Expr:
    """Return the expression of a chain. Raises `CompileError` for `a < b < c`."""
    operands: list[ast.Expr] = []
    pending: list[_Pending] = []
    wants_operand = True
    for item in chain:
        if not isinstance(item, Token):
            operands.append(item)
            wants_operand = False
            continue
        operator = _Pending(item, is_prefix=wants_operand)
        while pending and not wants_operand and _comes_first(pending[-1], operator, file):
            _apply(pending.pop(), operands, file)
        pending.append(operator)
        wants_operand = True
    while pending:
        _apply(pending.pop(), operands, file)
    return operands[0]


def _comes_first(left: _Pending, right: _Pending, file: str) -> bool:
    """Return True if the left operator takes b in `a left b right c`. Raises `CompileError` for two comparisons."""
    if left.token.text in COMPARISONS and right.token.text in COMPARISONS:
        message = f"comparisons do not chain: `{left.token.text}` and then `{right.token.text}`"
        help = "compare twice and join the results with `and`"
        raise failure("E011", message, right.token.span(file), help)
    return left.level > right.level or (left.level == right.level and right.token.text != "**")


def _apply(operator: _Pending, operands: list[ast.Expr], file: str) -> None:
    """Replace the last operand, or the last two, by the expression of an operator on them."""
    last = operands.pop()
    if operator.is_prefix:
        start = operator.token.span(file)
        node: ast.Expr = ast.Unary(start.to(last.span), cast(ast.UnaryOp, operator.token.text), last)
    else:
        first = operands.pop()
        node = ast.Binary(first.span.to(last.span), cast(ast.BinaryOp, operator.token.text), first, last)
    operands.append(node)
