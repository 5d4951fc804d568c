"""Parse tokens into a syntax tree: an LALR parser that continues after errors.

Lark computes the tables (`tables.py`), and this loop runs them. It replaces Lark's own parser for two reasons: recovery needs the
stacks, and building the nodes without an intermediate tree is several times faster.

After an error, the parser goes back to the last place in the same block where the grammar allows ERROR. Then it skips to the next
token that may follow ERROR. So a wrong statement is lost, and the rest of the file is checked.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics, Span
from mtfc.frontend.syntax import ast, syntax_errors, tables
from mtfc.frontend.syntax.brackets import NESTING_LIMIT, TOO_DEEP, TokenStream, arrange
from mtfc.frontend.syntax.lexer import END, SEPARATOR, WORD, Token, lex
from mtfc.frontend.syntax.syntax_errors import FARTHEST, python_error
from mtfc.frontend.syntax.tables import GrammarRule
from mtfc.frontend.syntax.tree_builder import TUPLES, TreeBuilder

PLAIN = frozenset(("assign", "return", "watch", "yield"))
"""Rules of statements that are dropped if one of their brackets is never closed."""

BORDERS = (SEPARATOR, "LBRACE", "RBRACE")
"""Tokens that end a statement."""

ELSE = ("else", "elif")


def parse(text: str, file: str, diagnostics: Diagnostics, line: int = 1, before: int = 0) -> ast.File:
    """Return the syntax tree of a file, or of its text from `line` on.

    before: characters of the text that stand before the file. Text that does not parse is reported, and becomes a `Broken` node.
    """
    tokens = lex(text, line, before)
    stream = arrange(tokens, file, diagnostics)
    declarations = _Parser(stream, TreeBuilder(file), diagnostics).run()
    end = tokens[-1]
    return ast.File(Span(file, line, 1, end.line, end.column), declarations)


class _Parser:
    """The stacks of the parser: symbol i leads to state i + 1, begins at token `begins[i]` and has the value `values[i]`."""

    def __init__(self, stream: TokenStream, builder: TreeBuilder, diagnostics: Diagnostics) -> None:
        """Start before the first token.

        makers: name of a rule -> the function that makes its node.
        """
        table = tables.load()
        self.moves = table.moves
        self.gotos = table.gotos
        self.rules = table.rules
        self.makers: dict[str, Callable[..., Any]] = {}
        self.builder = builder
        self.stream = stream
        self.tokens = stream.tokens
        self.file = builder.file
        self.diagnostics = diagnostics
        self.index = 0
        self.with_if: set[int] = set()  # blocks in which an `if` was reported
        self.states = [0]
        self.begins: list[int] = []
        self.values: list[Any] = []

    def run(self) -> tuple[ast.Declaration, ...]:
        """Return the declarations.

        A move shifts the token to a new state, or reduces by a rule; without a move, the parser recovers.
        """
        while True:
            token = self.tokens[self.index]
            move = self.moves[self.states[-1]].get(token.kind)
            if move is None:
                self._stuck(token)
            elif move < 0:
                self._reduce(self.rules[~move])
            elif token.kind == END:
                return cast(tuple[ast.Declaration, ...], self.values[0])
            else:
                self._push(move, self.index, token)
                self.index += 1

    def _push(self, state: int, begin: int, value: object) -> None:
        self.states.append(state)
        self.begins.append(begin)
        self.values.append(value)

    def _reduce(self, rule: GrammarRule) -> None:
        """Replace the values of a rule by what it makes of them. Statements with a bracket that was not closed are broken."""
        size = rule.size
        begin = self.begins[-size] if size else self.index
        try:
            value = self._make(rule, begin, self.values[-size:] if size else [])
        except CompileError as error:
            self._recover(error.diagnostics)
            return
        if rule.make in PLAIN and self.stream.unclosed and self.stream.is_unclosed(begin, self.index):
            value = self.builder.broken(self._span(begin), tuple(self.tokens[begin : self.index]))
        if size:
            del self.states[-size:], self.begins[-size:], self.values[-size:]
        self._push(self.gotos[self.states[-1]][rule.origin], begin, value)

    def _make(self, rule: GrammarRule, begin: int, values: list[Any]) -> Any:
        """Return what a rule makes of the values of its parts: its only child, a list, a tuple, or a node."""
        children = _children(rule, values)
        if rule.make is None:
            return children[0]
        if not rule.make:
            return children
        if rule.make in TUPLES:
            return tuple(children)
        make = self.makers.get(rule.make) or self.makers.setdefault(rule.make, self.builder.maker(rule.make))
        return make(self._span(begin), *children)

    def _span(self, begin: int) -> Span:
        """Return the span from token `begin` to the last one before the current token."""
        first, last = self.tokens[begin], self.tokens[max(begin, self.index - 1)]
        return Span(self.file, first.line, max(first.column, 1), last.line, max(last.end_column, 1))

    # Errors

    def _stuck(self, token: Token) -> None:
        """Handle a token that no rule takes: a keyword that may be a name here, or an error."""
        if token.kind == WORD:
            self.tokens[self.index] = token._replace(kind=self._kind_of_word(token))
        elif token.kind == TOO_DEEP:
            self._recover((syntax_errors.too_deep(token.span(self.file), NESTING_LIMIT),))
        else:
            expected = [kind for kind in self.moves[self.states[-1]] if self._accepts(kind)]
            previous = self.tokens[max(self.index - 1, 0)]
            error = syntax_errors.unexpected(previous, token, expected, self._instead(), self.file)
            if error.help is None and self._is_in_part():
                error = attrs.evolve(error, help=syntax_errors.A_PART)
            self._recover((error,), stuck=self.index)

    def _is_in_part(self) -> bool:
        """Return True if the entry of the current token begins with `part`, before any braces of its own."""
        for number in range(self.index - 1, -1, -1):
            token = self.tokens[number]
            if token.text in ("{", "}", ",", ";", "\n"):
                return False
            if token.kind == "PART":
                return True
        return False

    def _instead(self) -> list[str]:
        """Return the keywords that may stand in the place of the previous token."""
        depth = bisect_left(self.begins, self.index - 1)
        keywords = tables.load().keywords if depth < len(self.begins) else {}
        return [text for text, kind in keywords.items() if self._accepts(kind, depth + 1)]

    def _kind_of_word(self, token: Token) -> str:
        """Return the kind of a word: its keyword if the grammar allows it here, but a name in `state = ...`."""
        keyword = token.text.upper()
        is_defined = self.tokens[self.index + 1].kind in ("EQUAL", "COLON", "COMMA")
        if self._accepts(keyword) and not (is_defined and self._accepts("NAME")):
            return keyword
        return "NAME"

    def _accepts(self, kind: str, depth: int | None = None) -> bool:
        """Return True if a token may come after the first `depth` states, or after all."""
        states = self.states[:depth]
        while (move := self.moves[states[-1]].get(kind)) is not None:
            if move >= 0:
                return True
            rule = self.rules[~move]
            if rule.size:
                del states[-rule.size :]
            states.append(self.gotos[states[-1]][rule.origin])
        return False

    def _recover(self, errors: Iterable[Diagnostic], stuck: int | None = None) -> None:
        """Report errors, put ERROR in place of the broken text, and go to the next token that may follow.

        Where no rule takes token `stuck`, the statement may belong to another language.
        """
        begin = self._rewind()
        while (move := self.moves[self.states[-1]]["ERROR"]) < 0:
            self._reduce(self.rules[~move])
        self._push(move, begin, None)
        self.index = self.stream.after_brackets(self.index)
        while self.tokens[self.index].kind != END and not self._accepts(self.tokens[self.index].kind):
            self.index = self.stream.closer.get(self.index, self.index) + 1
        self._skip_indented()
        self.values[-1] = tuple(self.tokens[begin : self.index])
        if not self.stream.is_repaired(begin, self.index) and not self._is_rest_of_if(begin):
            habit = None if stuck is None else self._habit(begin, stuck)
            self.diagnostics.extend((habit,) if habit else errors)

    def _skip_indented(self) -> None:
        """Go past the lines below a line that ends in `:`, as a block of Python, where they are indented further."""
        tokens = self.tokens
        if self.index == 0 or tokens[self.index - 1].kind != "COLON":
            return
        column = tokens[self._line(self.index - 1)].column
        while tokens[self.index].kind == SEPARATOR:
            at = self.index + 1
            if tokens[at].column <= column or tokens[at].kind in (END, "RBRACE"):
                return
            while tokens[at].kind not in (SEPARATOR, END, "RBRACE"):
                at = self.stream.closer.get(at, at) + 1
            self.index = at

    def _is_rest_of_if(self, begin: int) -> bool:
        """True for an `else` in a block where an `if` was reported; the `if` is noted."""
        word, block = self.tokens[self._line(begin)].text, self.stream.block(begin)
        if word == "if":
            self.with_if.add(block)
        return word in ELSE and block in self.with_if

    def _line(self, index: int) -> int:
        """Return the first token of the statement with this token."""
        while index and self.tokens[index - 1].kind not in BORDERS:
            index -= 1
        return index

    def _habit(self, begin: int, stuck: int) -> Diagnostic | None:
        """Return the error of a habit in the line with token `stuck`, in a statement from token `begin` on."""
        begin = self._line(begin)
        end = begin
        while self.tokens[end].kind not in (*BORDERS, END):
            end += 1
        before = self.tokens[max(begin - FARTHEST, 0) : begin]
        return python_error(self.tokens[begin:end], stuck - begin, self.file, before) if begin < end else None

    def _rewind(self) -> int:
        """Drop symbols until ERROR may come, in the innermost possible block; return the first dropped token."""
        block = self.stream.block(self.index)
        begins = [*self.begins, self.index]
        while True:
            for depth in reversed(range(len(begins))):
                if self.stream.block(begins[depth]) == block and self._accepts("ERROR", depth + 1):
                    del self.states[depth + 1 :], self.begins[depth:], self.values[depth:]
                    return begins[depth]
            self.index = self.stream.closer[block] + 1
            block = self.stream.block(block)


def _children(rule: GrammarRule, values: list[Any]) -> list[Any]:
    """Return the values that a rule keeps; a list that grows at its end grows in place."""
    children: list[Any] = []
    for child in rule.children:
        if child is None:
            children.append(None)
        elif child >= 0:
            children.append(values[child])
        elif child == -1 and not rule.make:
            children = values[0]
        else:
            children.extend(values[~child])
    return children


N = TypeVar("N", bound=ast.Node)


def parse_option(
    prefix: str, text: str, brackets: str, file: str, kind: type[N], diagnostics: Diagnostics
) -> N:
    """Return the declaration that `prefix` and `text` make together, with spans that point into `text`.

    `brackets` are added where `text` does not begin with the first of them. Raises `CompileError` (syntax errors and E312).
    """
    whole = Span.of_line(file, text)
    if not text.lstrip().startswith(brackets[0]):
        prefix, text = prefix + brackets[0], f"{text}\n{brackets[1]}"
    declarations = parse(prefix + text, file, diagnostics, before=len(prefix)).declarations
    diagnostics.raise_if_errors()
    decl = declarations[0]
    if len(declarations) > 1 or not isinstance(decl, kind):
        diagnostics.add("E312", "expected one list of rules, and nothing else", whole)
        raise CompileError(diagnostics)
    return decl
