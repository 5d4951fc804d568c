"""The shape of a file: its symbols, the parts that can be folded, and a kind for each token."""

from collections.abc import Iterable, Iterator, Mapping

from lsprotocol.types import (
    DocumentSymbol,
    FoldingRange,
    FoldingRangeKind,
    SemanticTokensLegend,
    SemanticTokenTypes,
    SymbolKind,
)

from mtfc.compiler.diagnostics import Span
from mtfc.editor import token_kinds
from mtfc.editor.documents import KINDS, TextBuffer
from mtfc.editor.names import Body, Occurrence, statements
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.brackets import CLOSERS
from mtfc.frontend.syntax.lexer import COMMENT, Token, lex

# Symbols

SHOWN_AS: Mapping[type[ast.Node], tuple[SymbolKind, str]] = {
    **{node: (each.shown, each.keyword) for node, each in KINDS.items()},
    ast.TrainDecl: (SymbolKind.Event, "train"),
}

SHOWN_INSIDE: Mapping[type[ast.Node], tuple[SymbolKind, str]] = {
    ast.MeshAxis: (SymbolKind.EnumMember, "axis"),
    ast.Input: (SymbolKind.Variable, "input"),
    ast.Param: (SymbolKind.Field, "param"),
    ast.State: (SymbolKind.Field, "state"),
    ast.DimDecl: (SymbolKind.TypeParameter, "dim"),
}
"""Parts of declarations that are symbols of their own."""


def symbols(tree: ast.File, buffer: TextBuffer) -> list[DocumentSymbol]:
    """Return the declarations of a file, with the parameters, states and axes in them."""
    return [_symbol(decl, buffer) for decl in tree.declarations if type(decl) in SHOWN_AS]


def _symbol(decl: ast.Node, buffer: TextBuffer) -> DocumentSymbol:
    """Return a declaration as a symbol with those inside of it."""
    kind, word = SHOWN_AS[type(decl)]
    name: ast.Name = decl.model if isinstance(decl, ast.TrainDecl) else decl.name  # type: ignore[attr-defined]
    whole = buffer.range(decl.span)
    return DocumentSymbol(
        name.text, kind, whole, buffer.range(name.span), word, children=list(_inside(decl, buffer))
    )


def _inside(decl: ast.Node, buffer: TextBuffer) -> Iterator[DocumentSymbol]:
    """Yield the symbols in a declaration: axes of a mesh, inputs of a model, and statements of a body."""
    inside: Iterable[ast.Node] = decl.axes if isinstance(decl, ast.MeshDecl) else ()
    if isinstance(decl, Body):
        inputs = decl.inputs if isinstance(decl, ast.ModelDecl) else ()
        inside = (*inputs, *statements(decl.body))
    for each in inside:
        if type(each) in SHOWN_INSIDE:
            name: ast.Name = each.name  # type: ignore[attr-defined]
            kind, word = SHOWN_INSIDE[type(each)]
            yield DocumentSymbol(name.text, kind, buffer.range(each.span), buffer.range(name.span), word)


# Folding


def folds(text: str) -> list[FoldingRange]:
    """Return the brackets over several lines, and runs of comments and of imports."""
    tokens = lex(text)
    return [*_brackets(tokens), *_runs(tokens, COMMENT, FoldingRangeKind.Comment), *_imports(tokens)]


def _brackets(tokens: Iterable[Token]) -> Iterator[FoldingRange]:
    """Yield the lines between brackets, which can be folded."""
    opened: list[Token] = []
    for token in tokens:
        if token.kind in CLOSERS:
            opened.append(token)
        elif token.kind in CLOSERS.values() and opened:
            begin = opened.pop()
            if token.line - 1 > begin.line:
                yield FoldingRange(begin.line - 1, token.line - 2)


def _runs(tokens: Iterable[Token], kind: str, shown: FoldingRangeKind) -> Iterator[FoldingRange]:
    """Yield the runs of lines that begin with a token of a kind."""
    first: dict[int, Token] = {}
    for token in tokens:
        if token.text not in ("\n", ""):
            first.setdefault(token.line, token)
    yield from _ranges(sorted(line for line, token in first.items() if token.kind == kind), shown)


def _imports(tokens: Iterable[Token]) -> Iterator[FoldingRange]:
    lines = sorted({token.line for token in tokens if token.text == "import" and token.column == 1})
    yield from _ranges(lines, FoldingRangeKind.Imports)


def _ranges(lines: list[int], shown: FoldingRangeKind) -> Iterator[FoldingRange]:
    """Yield each run of consecutive lines, of which there must be several, as a range to fold."""
    begin = 0
    for i, line in enumerate(lines):
        if i + 1 == len(lines) or lines[i + 1] != line + 1:
            if i > begin:
                yield FoldingRange(lines[begin] - 1, line - 1, kind=shown)
            begin = i + 1


# Semantic tokens

TYPES: Mapping[str, SemanticTokenTypes] = {
    **{
        kind: SemanticTokenTypes(shown.semantic)
        for kind, shown in token_kinds.HIGHLIGHTS.items()
        if shown.semantic
    },
    **{each.symbol: each.token for each in KINDS.values()},
    "axis": SemanticTokenTypes.EnumMember,
    "device": SemanticTokenTypes.Property,
    "link": SemanticTokenTypes.Property,
    "argument": SemanticTokenTypes.Parameter,
    "parameter": SemanticTokenTypes.Property,
    "state": SemanticTokenTypes.Property,
    "value": SemanticTokenTypes.Variable,
    "scope": SemanticTokenTypes.Label,
}
"""The type of the protocol for each kind of token and of symbol."""

LEGEND = SemanticTokensLegend(
    [each.value for each in dict.fromkeys(TYPES.values())], ["declaration", "defaultLibrary"]
)
NUMBERS = {kind: LEGEND.token_types.index(each.value) for kind, each in TYPES.items()}
DECLARED, OF_LIBRARY = 1, 2


def semantic_tokens(buffer: TextBuffer, found: Iterable[Occurrence]) -> list[int]:
    """Return the tokens in the encoding of the protocol: five numbers for each, relative to the token before."""
    data: list[int] = []
    line = start = 0
    for span, kind, modifiers in _kinds(buffer, found):
        begin, end = buffer.position(span.line, span.column), buffer.position(span.end_line, span.end_column)
        column = begin.character - (start if begin.line == line else 0)
        data += [begin.line - line, column, end.character - begin.character, NUMBERS[kind], modifiers]
        line, start = begin.line, begin.character
    return data


def _kinds(buffer: TextBuffer, found: Iterable[Occurrence]) -> Iterator[tuple[Span, str, int]]:
    """Yield the tokens in order; a path has a kind for each of its names."""
    by_line: dict[int, list[Occurrence]] = {}
    for each in found:
        by_line.setdefault(each.span.line, []).append(each)
    for token, kind in token_kinds.classified(buffer.text):
        if kind is None or kind in ("punctuation", "error"):
            continue
        inside = [
            each
            for each in by_line.get(token.line, ())
            if token.column <= each.span.column and each.span.end_column <= token.end_column
        ]
        for each in inside:
            yield each.span, each.symbol.kind, DECLARED * (each.role == "declared")
        if not inside and kind != "name":
            yield token.span(""), kind, OF_LIBRARY * (kind == "builtin")
