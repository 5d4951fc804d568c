"""The messages of syntax errors.

A message says what was expected and what was found, in the words of the language and not of its grammar.

Recognize Python syntax in a statement with a syntax error, and say how to write it here.

The statement is read again from its beginning: `for`, `+=` and `h[0]` show the intention better than the token at which the
parser stopped.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from mtfc.compiler.diagnostics import Diagnostic, Label, Span, nearest
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.types import WRITTEN_BYTES
from mtfc.frontend.syntax import other_libraries, tables
from mtfc.frontend.syntax.lexer import END, RESERVED, SEPARATOR, STATEMENTS, WORD, Token
from mtfc.frontend.syntax.other_libraries import FUNCTIONS

A_PART = "a part is `part embed on front: { batch: all }`, and of several names `part (embed, head) on front: { ... }`"

NO_STRINGS = "the language has no strings"

LOOKALIKES = {
    "×": "`*`",
    "÷": "`/`",
    "−": "`-`",
    "–": "`-`",
    "→": "`->`",
    "≤": "`<=`",
    "≥": "`>=`",
    "≠": "`!=`",
    "\xa0": "a plain space",
    "&": "`and`",
    "|": "`or`",
    "!": "`not`",
    "^": "`**`",
    "%": "`x - y * floor(x / y)`",
    "~": "`not`",
    "?": "`where(condition, x, y)`",
    ".": "`h = relu(x)`, and then `y = sum(h)`, as a result has no methods",
}

OPERATORS = frozenset(("OPERATOR", "MINUS", "AND", "OR"))
# An expression that may end here may also go on with many tokens; a message lists only these ends.
ENDS = frozenset(("COMMA", "RPAR", "RSQB", "ALONG", SEPARATOR))
# Tokens that are always possible between statements or declarations: a message leaves them out.
BETWEEN = frozenset(("ERROR", "RBRACE", SEPARATOR, END))

TOP = "a declaration such as `dim` or `model`"

# Words for sets of possible tokens: the first row whose tokens are all possible counts.
STARTS = (
    (TOP, frozenset(("DIM", "MODEL"))),
    ("a statement", frozenset(("PARAM", "STATE", "RETURN", "NAME"))),
    ("an entry such as `minimize loss`", frozenset(("MINIMIZE", "REPORT", "NAME"))),
    ("an entry such as `device: { ... }`", frozenset(("LINK", "NAME"))),
    ("an entry such as `batch: rows`", frozenset(("VALUE", "NAME"))),
)
# Words for sets of tokens, which a message lists beside the other possible tokens.
PARTS = (
    ("an expression", frozenset(("NAME", "PATH", "NUMBER", "TRUE", "FALSE", "LPAR", "MINUS", "NOT"))),
    ("a name", frozenset(("NAME", "PATH"))),
    ("a name", frozenset(("NAME",))),
)


def describe(token: Token) -> str:
    """Return a token in words: its text in backticks, shortened, or the end of the line or the file."""
    if token.kind == END:
        return "the end of the file"
    if token.text == "\n":
        return "the end of the line"
    shown = token.text if len(token.text) <= 40 else token.text[:39] + "…"
    return f"`{shown}`"


def unexpected(
    previous: Token, token: Token, expected: Collection[str], instead: Collection[str], file: str
) -> Diagnostic:
    """Return E001 for a token that no rule takes, or E009 for a reserved word in place of a name.

    expected: the kinds of tokens that may stand here. instead: the keywords that may stand in the place of `previous`.
    """
    kinds = frozenset(expected)
    word = previous if token.text == "=" else token
    if word.text in RESERVED and "NAME" in kinds and not OPERATORS & kinds:
        return Diagnostic("E009", f"`{word.text}` is a reserved word, not a name", word.span(file))
    names = _names(kinds)
    message = f"expected {_one_of(names)}, found {describe(token)}"
    help = _advice(previous, token, kinds, instead) or _sign(previous, token, names)
    return Diagnostic("E001", message, token.span(file), help=help)


WRONG_SIGNS: Mapping[tuple[str, str], str] = {
    (
        "`:`",
        ",",
    ): "an argument has a type, `{0}: [dims]`, a mesh axis a size, `{0}: 2`, and a rule an axis, `{0}: axis`",
    ("`:`", ")"): "an argument has a type: `{0}: [dims]`",
    ("`{`", "->"): "a model states no types of its results: `return` has them",
    ("`)`", ","): "several values stand without parentheses: `return y, loss`",
    ("`,` or `=`", ":"): "a parameter is `param {0}: [dims] = normal(stddev = 0.02)`",
    (
        "`,` or `)`",
        ":",
    ): "an argument by name is `{0} = ...`; rules stand in a layout: `layout data on line = {{ ... }}`",
    ("`,` or `)`", "over"): "dimensions are an argument by name: `{0}, over = [d]`",
    ("`,` or `)`", "along"): "a dimension is an argument: `{0}, d`",
    (
        "`,` or `)`",
        "=",
    ): "only numbers of a `fn` have defaults: `fn f(x: [dims], rate = 0.1) -> [dims] {{ ... }}`",
    ("`[`", "="): "a number with a default has no type: `rate = 0.1`",
    ("a name or `[`", "("): "dimensions stand in brackets: `[batch, classes]`",
    (
        "a name, `...` or `]`",
        "(",
    ): "declare the joined dimension in the file, `dim both = batch * classes`, and write `[both]`",
    (TOP, "@"): "there are no decorators: delete it, as whole models are compiled",
    ("`=`", ","): "declare each name in a line of its own",
    **dict.fromkeys((("a statement", "//"), ("a statement", "/"), (TOP, "//")), "a comment begins with `#`"),
}
"""The first expected token and the one that was found -> help; `{0}` is the token before."""

REPLACED = ("=", ":", "->", "(", "[", "{", "==", "=>")
"""Signs that are written in the place of another one."""


def _sign(previous: Token, token: Token, names: list[str]) -> str | None:
    """Return help for a wrong sign, such as a colon in the place of `=`, and for a size without `dim`."""
    help = WRONG_SIGNS.get((_one_of(names), token.text)) or WRONG_SIGNS.get((names[0], token.text))
    if help:
        return help.format(previous.text)
    if "`,`" in names and "`=`" not in names and previous.kind == token.kind == "NAME":
        return f"write a comma: `{previous.text}, {token.text}`"
    if names[0] == TOP and token.kind == "NAME":
        return f"a size is `dim {token.text} = 4`, and a statement stands in a model: `model m(x: [batch]) {{ ... }}`"
    if names[0] == "a statement" and token.kind == "PATH":
        value, _, function = token.text.rpartition(".")
        return f"a statement names its result: `{value} = {function}({value})`"
    is_replaced = len(names) == 1 and names[0].startswith("`") and token.text in REPLACED
    return f"write {names[0]} in place of `{token.text}`" if is_replaced else None


def _names(kinds: frozenset[str]) -> list[str]:
    """Return how a message names the expected kinds of tokens: by a group if they are one, without dull separators."""
    if kinds == {"FOR"}:  # `optimizer` begins two kinds of entries
        return ["`=`", "`for`"]
    if kinds >= OPERATORS:
        kinds = kinds & ENDS or kinds - OPERATORS
    for name, group in STARTS:
        if group <= kinds:
            return [name]
    for name, group in PARTS:
        if group <= kinds:
            return [name, *map(_name, sorted(kinds - group - BETWEEN))]
    dull = BETWEEN - {SEPARATOR} if SEPARATOR in kinds and "COMMA" not in kinds else {"ERROR", END}
    return [_name(kind) for kind in sorted(kinds - dull)]


def _name(kind: str) -> str:
    """Return a kind of token in words: the text of one that always has the same text, else its name."""
    if kind == "PATTERN":
        return 'a pattern such as `"*.bias"`'
    pattern = tables.load().terminals.get(kind, "")
    text = re.sub(r"\\(.)", r"\1", pattern)
    is_plain = pattern and re.escape(text) == pattern
    return "the end of the line" if kind == SEPARATOR else f"`{text if is_plain else kind.lower()}`"


def _one_of(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _advice(previous: Token, token: Token, kinds: frozenset[str], instead: Collection[str]) -> str | None:
    """Return help for an unexpected token, or None. kinds: the expected ones. instead: names that may stand before it."""
    if token.text == "\n" and "NUMBER" in kinds and previous.text not in STATEMENTS:
        return "put an expression of several lines in parentheses"
    if token.text == ":" and "LBRACE" in kinds:
        return "a body stands in braces: `{ ... }`"
    if token.kind == "PATTERN" and "FOR" in kinds:
        return "write `optimizer for` before the pattern"
    if token.kind == "PATTERN" and "->" in token.text:
        return f"{NO_STRINGS}; dimensions have names: `einsum(a, b -> [dims])`"
    if token.kind == "PATTERN":
        return f'{NO_STRINGS}; quotes are for patterns, as in `frozen "*.bias"`'
    if token.text == "(" and "EQUAL" in kinds:
        return f"give the result a name: `name = {previous.text}(...)`"
    if token.kind not in ("NAME", "PATH", "NUMBER", WORD):
        return None
    keywords = tables.load().keywords
    meant = nearest(token.text, [text for text, kind in keywords.items() if kind in kinds - OPERATORS])
    if not meant and previous.kind == "NAME" and previous.text not in keywords and not OPERATORS & kinds:
        meant = nearest(previous.text, instead)
    return f"did you mean `{meant}`?" if meant else None


def unclosed(opener: Token, closing: str, shown_by: Token, file: str) -> Diagnostic:
    place = describe(shown_by) if shown_by.kind == END or shown_by.text == "\n" else "this"
    label = Label(shown_by.span(file), f"expected `{closing}` before {place}")
    return Diagnostic("E002", f"this `{opener.text}` is never closed", opener.span(file), (label,))


def stray(token: Token, file: str) -> Diagnostic:
    return Diagnostic("E003", f"this `{token.text}` closes nothing", token.span(file))


def bad_character(token: Token, file: str) -> Diagnostic:
    """Return the error for characters that no token has."""
    text = token.text
    shown = f"`{text[:40]}`" if text.isprintable() else ", ".join(f"U+{ord(c):04X}" for c in text[:5])
    help = None
    if text in LOOKALIKES:
        help = f"write {LOOKALIKES[text]}"
    elif text.isalpha():
        help = "names are made of the letters a to z, digits and `_`"
    elif text == '"':
        help = 'close the quote on this line: a pattern is `"*.bias"`'
    elif text[0] in "\"'":
        help = NO_STRINGS
        help += "; dimensions have names: `einsum(a, b -> [dims])`" if "->" in text else ""
        help += f"; write the name alone: `{text[1:-1]}`" if text[1:-1].isidentifier() else ""
    return Diagnostic(
        "E004", f"unexpected character{'s'[: len(text) - 1]} {shown}", token.span(file), help=help
    )


def too_deep(span: Span, limit: int) -> Diagnostic:
    help = "give a part of the expression a name of its own"
    return Diagnostic("E007", f"this is nested more than {limit} levels deep", span, help=help)


WHERE = "both sides are computed, and `where(condition, x, y)` chooses element by element"
FUNCTION = "declare it beside the models: `fn f(x: [...]) -> [...] { ... }`"

WORDS: Mapping[str, str] = {
    **dict.fromkeys(("if", "elif", "else"), WHERE),
    "while": "declare it, `dim steps = 10`, and write `repeat steps while x > 0 { ... }`",
    **dict.fromkeys(("def", "lambda"), FUNCTION),
    "class": "a model is `model m(x: [batch, io]) { ... }`, a part of one a `fn`",
    **dict.fromkeys(("let", "var"), "write the name alone: `h = ...`"),
    "const": "a size is `dim batch = 4`, and a value in a model is its name alone: `h = ...`",
    **dict.fromkeys(("use", "using", "include", "require"), "write `import nn`, and call `nn.dense(x)`"),
    "from": "write `import nn`, and call `nn.dense(x)`",
    "with": "it belongs to `repeat layers with k = keys { ... }`",
    "assert": "types are checked when the file is compiled",
    "pass": "braces may be empty",
    "raise": "a model only computes values: return one that shows the problem",
    **dict.fromkeys(("try", "except"), "a model only computes values, and cannot fail"),
    "global": "dimensions and functions of the file are known everywhere",
    "del": "memory is freed after the last use of a value",
}
"""Words that begin a statement in Python or another language, with the help."""

MESSAGES: Mapping[str, str] = {
    "while": "`while` belongs to a loop with a dimension, which is the most iterations",
    "with": "there is no `with` here",
}
"""Messages for words that the language has in other places."""

COMPARISONS = {"in": "compare values with `x == y`", "is": "compare values with `x == y`; there is no `None`"}

CALLS: Mapping[str, str] = {
    "backward": other_libraries.GRADIENT,
    "step": "a `train` block updates the parameters: `mtfc run FILE --train --steps 10`",
    "zero_grad": "each step has new gradients",
    "manual_seed": "the command has the seed: `mtfc run FILE --seed 1`",
}
"""Calls that return nothing in Python, with the help."""

NO_INDEX = "a tensor has no `[...]`"


# Syntax


def python_error(
    statement: Sequence[Token], at: int, file: str, before: Sequence[Token] = ()
) -> Diagnostic | None:
    """Return the error of a statement that does not parse at token `at`, if the statement looks like Python.

    `before` are the tokens before the statement.
    """
    for habit in HABITS:
        if found := habit(statement, at):
            token, message, help = found
            if message == NO_INDEX:
                help = _of_index(statement, token, before)
            return Diagnostic("E001", message, token.span(file), help=help)
    return None


Found = tuple["Token", str, str] | None
"""The token to point at, the message, and the help."""


REPEATED = "declare a dimension, `dim layers = {value}`, and write `repeat layers {{ ... }}`"
LAYERS = (
    "write `repeat {name} {{ ... }}`, by a dimension, or `scan x_t = x along d {{ ... }}` for slices of `x`"
)
WHOLE = "a function takes whole tensors: `y * 2` doubles each element, and `scan y_t = y along d {{ ... }}` goes over slices"
PATTERNS = (
    (r"(?P<at>for) (?!=)\S+ .*?(?P<value>(?<= )\d\S*)", "there is no `for`", REPEATED),
    (r"(?P<at>for) (?!=)\S+ (?:.* )?(?P<name>[A-Za-z_]\w*)(?: \))?$", "there is no `for`", LAYERS),
    (r"(?P<at>for) (?!=)\S+ ", "there is no `for`", LAYERS),
    (r".* (?P<at>for) \S+ in ", "there is no `for` inside of an expression", WHOLE),
    (r"repeat \S+ (?P<at>in) (?P<value>\d\S*)", "a `repeat` has no variable", REPEATED),
    (r"repeat \S+ (?P<at>in) (?:.* )?(?P<name>\S+)$", "a `repeat` has no variable", "write `repeat {name} {{ ... }}`"),
    (r"repeat (?P<at>\() (?P<value>\d\S*)", "expected a dimension, found `(`", REPEATED),
    (r"repeat (?P<at>(?P<value>\d\S*))", "expected a dimension, found `{at}`", REPEATED),
    (r"scan \S+ (?P<at>in)(?: (?P<value>\S+))?", "expected `=`, found `in`",
     "write `scan {value}_t = {value} along d {{ ... }}`, with the dimension `d` of `{value}`"),
    (r"scan \S+ = \S+ (?P<at>in|over|of|by) ", "expected `along`, found `{at}`", "write `along` in place of `{at}`"),
    (r"(?P<at>import) (?!=|[\w.]+$)", "`import` takes the name of one module",
     "write `import nn`; there are no packages, and no `as`"),
    (r"mesh [^[]*\[ (?:[^,]*, )*?(?P<at>\d\S*)", "expected a mesh axis, found `{at}`",
     "an axis has a name: `[rows: 2, cols: 4]`"),
    (r"param (?P<at>[A-Za-z_]\w*)$", "parameter `{at}` has no type", "write `param {at}: [dims] = normal(stddev = 0.02)`"),
    (r"frozen (?P<at>[A-Za-z_][\w.]*)$", 'expected a pattern such as `"*.bias"`, found `{at}`',
     'write `frozen "{at}"`, or `frozen "{at}.*"` for the parameters of a call'),
    (r"(?P<at>int|float|double|bool|auto|Tensor|tensor|f32|i32) (?P<name>\w+) =", "there is no `{at}` before a name",
     "write the name alone: `{name} = ...`"),
    (r"(?P<name>\w+) (?P<at>[-+]) (?P=at)$", "there is no `{at}{at}`", "write `{name} = {name} {at} 1`"),
    (r"(?P<at>[-+]) (?P=at) (?P<name>\w+)$", "there is no `{at}{at}`", "write `{name} = {name} {at} 1`"),
    (r"\w+ = (?P<at>param) ", "`param` begins a statement", f"write `{other_libraries.PARAM}`"),
)  # fmt: skip
"""A pattern of a statement with a space between its tokens, the message, and the help.

The group `at` is the token to point at. Each pattern takes time that is linear in the text.
"""


def _pattern(statement: Sequence[Token], at: int) -> Found:
    """Recognize a statement by the table of patterns."""
    text = " ".join(token.text.replace(" ", "_") for token in statement)
    for pattern, message, help in PATTERNS:
        if found := re.match(pattern, text):
            given = {name: value for name, value in found.groupdict().items() if value}
            words = {"name": "layers", "value": "x", **given}
            return (
                statement[text.count(" ", 0, found.start("at"))],
                message.format(**words),
                help.format(**words),
            )
    return None


def _word(statement: Sequence[Token], at: int) -> Found:
    """Recognize `if x > 0`, `while`, `def`, and `if` within an expression."""
    first = statement[0]
    if first.text in WORDS and [token.text for token in statement[1:2]] != ["="]:
        return _other_word(first)
    stuck = statement[min(at, len(statement) - 1)]
    before = statement[at - 1] if 0 < at <= len(statement) else stuck
    if stuck.text in COMPARISONS and before.kind in ("NAME", "PATH", "RPAR"):
        return stuck, f"there is no `{stuck.text}`", COMPARISONS[stuck.text]
    for token in (stuck, before):
        if token is not first and token.text in ("if", "lambda"):
            return _other_word(token)
    return None


def _other_word(token: Token) -> Found:
    message = MESSAGES.get(token.text, f"there is no `{token.text}`")
    return token, message, WORDS[token.text]


def _compound(statement: Sequence[Token], at: int) -> Found:
    """Recognize `h += 1` and `h := 1`."""
    if len(statement) < 3 or statement[0].kind != "NAME" or statement[2].text != "=" or at != 1:
        return None
    name, operator = statement[0].text, statement[1].text
    if operator not in ("+", "-", "*", "/", "//", "**", "@", ":"):
        return None
    rest = _text(statement[3:])
    plain = len([token for token in statement[3:] if token.kind != "COMMENT"]) == 1 or operator in ("+", ":")
    value = rest if plain else f"({rest})"
    value = value if operator == ":" else f"{name} {operator} {value}"
    return statement[1], f"there is no `{operator}=`", f"write `{name} = {value}`"


def _text(tokens: Sequence[Token]) -> str:
    """Return the text of tokens of one line, with the spaces between them."""
    text = ""
    for index, token in enumerate(tokens):
        gap = index and token.column - tokens[index - 1].end_column
        text += " " * (1 if gap else 0) + token.text
    return text


def _applied(statement: Sequence[Token], at: int) -> Found:
    """Recognize `nn.Linear(64, 10)(h)`: a call of the result of a call."""
    texts = [token.text for token in statement]
    if not 1 < at < len(texts) or texts[at - 1 : at + 1] != [")", "("]:
        return None
    opener = _openers(texts)[at - 1]
    callee = statement[opener - 1] if opener > 0 else statement[at]
    name = callee.text.rpartition(".")[2]
    help = other_libraries.LAYERS.get(
        name, "give the result a name, and call a function with it: `h = f(x)`, `y = g(h)`"
    )
    return statement[at], "the result of a call is a value, and cannot be called", help


def _openers(texts: Sequence[str]) -> list[int]:
    """Return the innermost bracket around each token and around the end, or -1; a closing bracket is inside of its own."""
    found, waiting = [], [-1]
    for index, text in enumerate(texts):
        found.append(waiting[-1])
        if text in ("(", "["):
            waiting.append(index)
        elif text in (")", "]") and len(waiting) > 1:
            waiting.pop()
    return [*found, waiting[-1]]


def _statement_call(statement: Sequence[Token], at: int) -> Found:
    """Recognize `print(h)`: a call whose result has no name."""
    if len(statement) < 2 or at > 1 or statement[1].text != "(":
        return None
    name = statement[0].text.rpartition(".")[2]
    help = CALLS.get(name) or FUNCTIONS.get(name)
    return (statement[0], f"there is no `{name}`", help) if help else None


def _call_without_parentheses(statement: Sequence[Token], at: int) -> Found:
    """Recognize `y = relu x`."""
    if not 2 < at == len(statement) - 1 or statement[1].text != "=":
        return None
    before, stuck = statement[at - 1], statement[at]
    is_value = stuck.kind in ("NAME", "PATH", "NUMBER") and stuck.text not in WORDS
    if before.kind not in ("NAME", "PATH") or not is_value:
        return None
    help = f"arguments stand in parentheses: `{before.text}({stuck.text})`"
    return stuck, f"expected the end of the line, found `{stuck.text}`", help


def _sizes(statement: Sequence[Token], at: int) -> Found:
    """Recognize sizes in place of dimensions: `f32[8, 4]`, `nn.dense[d_out = 10](h)`, `nn.dense[10](h)`."""
    texts = [token.text for token in statement]
    opener = _opener(texts, at)
    if opener < 1 or not 0 < at < len(texts) or statement[at].kind != "NUMBER":
        return None
    size, function, help = texts[at], texts[opener - 1], None
    if texts[at - 1] == "=":
        name = "classes" if texts[at - 2].startswith("d_") else texts[at - 2]
        help = f"write `{texts[at - 2]} = {name}`, with `dim {name} = {size}` in the file"
    elif _is_called(texts, opener) and statement[opener - 1].kind in ("NAME", "PATH"):
        help = f"write `{function}[d_out = classes](...)`, with `dim classes = {size}` in the file"
    elif function in WRITTEN_BYTES or function in (":", "->", "=", ",", "("):
        help = f"dimensions have names: declare `dim d = {size}`, and write `d`"
    return (statement[at], f"expected a dimension, found `{size}`", help) if help else None


def _param(statement: Sequence[Token], at: int) -> Found:
    """Recognize `param w: [io]` and `param w = normal()`, which lack the initial value or the type."""
    if len(statement) < 2 or statement[0].text != "param":
        return None
    name = statement[1]
    after = statement[2].text if len(statement) > 2 else ""
    if after == "=":
        called = statement[3].text if len(statement) > 3 else ""
        initial = _text(statement[3:]) if called in DISTRIBUTIONS else "normal(stddev = 0.02)"
        return name, f"parameter `{name.text}` has no type", f"write `param {name.text}: [dims] = {initial}`"
    whole = _text(statement)
    if after == ":" and at >= len(statement) and "=" not in [token.text for token in statement]:
        help = f"write `{whole} = normal(stddev = 0.02)`, or `zeros()`, `ones()`, `uniform(low = -0.1, high = 0.1)`"
        return name, f"parameter `{name.text}` has no initial value", help
    return None


def _index(statement: Sequence[Token], at: int) -> Found:
    """Recognize `h[0]`, `h[:, 0]` and `x.shape[0]`."""
    texts = [token.text for token in statement]
    if "=" not in texts[:at] and texts[0] not in ("return", "yield"):
        return None
    opener = _opener(texts, at)
    if opener < 1 or not re.fullmatch(r"[\w.]+|[\])]", texts[opener - 1]) or texts[opener - 1][0].isdigit():
        return None
    if _is_called(texts, opener):
        return None
    if texts[opener - 1].endswith(".shape"):
        return statement[opener - 1], "there is no `shape`", FUNCTIONS["shape"]
    return statement[opener], NO_INDEX, ""


def _of_index(statement: Sequence[Token], opener: Token, before: Sequence[Token]) -> str:
    """Return the help for an index that begins at a token."""
    texts = [token.text for token in statement]
    at = statement.index(opener)
    end = texts.index("]", at) if "]" in texts[at:] else len(texts)
    name = texts[at - 1] if texts[at - 1] not in ("]", ")") else "x"
    return index_help(name, texts[at + 1 : end], before)


def _opener(texts: Sequence[str], at: int) -> int:
    """Return the bracket around token `at` if it is a `[`, else -1."""
    opener = _openers(texts[:at])[-1]
    return opener if opener >= 0 and texts[opener] == "[" else -1


def _is_called(texts: Sequence[str], opener: int) -> bool:
    """True if arguments follow a bracket, so that the bracket binds dimensions of a function."""
    openers = _openers(texts)
    inside = [index for index in range(opener + 1, len(texts)) if openers[index] == opener]
    return bool(inside) and texts[inside[-1] : inside[-1] + 2] == ["]", "("]


HABITS: tuple[Callable[[Sequence[Token], int], Found], ...] = (
    _pattern, _compound, _param, _word, _applied, _sizes, _index, _statement_call, _call_without_parentheses,
)  # fmt: skip


FARTHEST = 1000
"""Most tokens before a statement that are searched for a declaration, so that many errors take linear time."""


def index_help(name: str, index: Sequence[str], before: Sequence[Token]) -> str:
    """Return help for a tensor with an index: `index` is the text in the brackets, `before` the tokens before the statement."""
    dim = _meant(index, _dims(name, before))
    where = "" if dim else f"; `d` is a dimension of `{name}`"
    dim = dim or "d"
    return (
        f"dimensions have names: `slice({name}, {dim} -> short, start = 0)` takes a part of one, "
        f"and `gather({name}, ids, {dim})` the elements at positions{where}"
    )


def _meant(index: Sequence[str], dims: Sequence[str]) -> str | None:
    """Return the first dimension of which the index takes a part; `[..., 0]` counts from the end."""
    items = [item.strip() for item in " ".join(index).split(",")]
    places = [place for place, item in enumerate(items) if item not in (":", "...")]
    if not dims or not places:
        return None
    place = places[0] - len(items) if "..." in items else places[0]
    return dims[place] if -len(dims) <= place < len(dims) else None


def _dims(name: str, before: Sequence[Token]) -> list[str]:
    """Return the dimensions in the last declaration of a name: `x: [batch, io]`, or `h = einsum(x, w -> [batch, hidden])`."""
    text, word = " ".join(token.text for token in before), re.escape(name)
    found = re.findall(rf"(?:(?<!\S){word} (:)|(?:^|[\n;{{] ){word} =) ([^\n;]*)", text)
    if not found:
        return []
    is_declared, rest = found[-1]
    _, arrow, stated = rest.rpartition("-> ")
    listed = re.match(r"(?:\w+ )?\[ ([\w ,]*) \]", rest if is_declared else arrow and stated)
    return listed[1].split(" , ") if listed else []
