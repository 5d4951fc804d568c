"""Completion and signature help: the names that may stand at the cursor.

The text around the cursor does not parse yet, so the tokens before the cursor say where it is. The rest of the file gives the
names. A row of `PLACES` is a place in the language: its test, and the names that fit there. The first row that fits decides.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import PurePath

import attrs
from lsprotocol.types import (
    CompletionItem,
    CompletionItemKind,
    InsertTextFormat,
    MarkupContent,
    MarkupKind,
    ParameterInformation,
    SignatureHelp,
    SignatureInformation,
)

from mtfc.compiler.cost.hardware import GRAPH_KINDS, KINDS
from mtfc.compiler.diagnostics import Span, text_lines
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.training import BUILT_IN, LOSS_SCALE, TRAINING
from mtfc.compiler.ir.types import FORMS, WRITTEN_BYTES
from mtfc.editor import signatures
from mtfc.editor.documents import OPTIMIZERS, Declarations, Project
from mtfc.editor.names import Body, names_of_body
from mtfc.editor.signatures import CallSignature
from mtfc.frontend.hardware.declarations import DEVICE, GRAPH_LINK, LINK, SCRATCHPAD
from mtfc.frontend.layouts.allowed_warnings import OF_LAYOUTS
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.scope import ANY, STEP
from mtfc.frontend.semantics.training.train_blocks import DYNAMIC, PRECISION_KEYS
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.brackets import CLOSERS, DECLARATIONS
from mtfc.frontend.syntax.lexer import COMMENT, END, SEPARATOR, Token, lex
from mtfc.frontend.syntax.tree_builder import SETTINGS

# The place of the cursor

NAMES = ("NAME", "PATH", "WORD")

DEEPEST = 40
"""The number of innermost brackets that are looked at."""


@attrs.frozen
class OpenBracket:
    """A bracket that is open at the cursor.

    before: the tokens of its statement before the bracket. inside: the tokens in the bracket up to the cursor, with
    those of closed brackets in it.
    """

    token: Token
    before: Sequence[Token]
    inside: Sequence[Token]

    @property
    def text(self) -> str:
        return self.token.text

    @property
    def function(self) -> Token | None:
        """The name of the function whose call this bracket belongs to: `f(`, `f[`, or `f[...](`."""
        before = list(self.before)
        if self.text == "(" and before and before[-1].text == "]":
            while before and before[-1].text != "[":
                before.pop()
            before = before[:-1]
        is_call = self.text in ("(", "[") and before and before[-1].kind in NAMES
        return before[-1] if is_call and (self.text == "(" or _touches(before[-1], self.token)) else None

    @property
    def entry(self) -> Sequence[Token]:
        """The tokens since the last comma in this bracket."""
        return list(self.entries())[-1]

    def entries(self) -> Iterator[Sequence[Token]]:
        """Yield the tokens between commas and line ends."""
        depth, start = 0, 0
        for i, token in enumerate(self.inside):
            depth += (token.kind in CLOSERS) - (token.text in (")", "]", "}"))
            is_end = token.kind == "COMMA" or (token.kind == SEPARATOR and self.text == "{")
            if is_end and depth == 0:
                yield self.inside[start:i]
                start = i + 1
        yield self.inside[start:]


def _touches(left: Token, right: Token) -> bool:
    return left.line == right.line and left.end_column == right.column


@attrs.frozen
class Cursor:
    """The tokens before the cursor.

    word: the name that the cursor is in or behind, empty if there is none; it is among no tokens. statement: the tokens of the
    innermost statement or entry. brackets: the open brackets, the
    outermost first; of deeply nested ones, the outermost and the innermost. top: the tokens of the declaration.
    """

    line: int
    column: int
    word: str
    statement: Sequence[Token]
    brackets: Sequence[OpenBracket]
    top: Sequence[Token]
    in_comment: bool

    @property
    def innermost(self) -> OpenBracket | None:
        return self.brackets[-1] if self.brackets else None

    @property
    def previous(self) -> str:
        """The text of the token before the word; empty at the start of a statement."""
        return self.statement[-1].text if self.statement else ""

    @property
    def keyword(self) -> str:
        """The first word of the declaration."""
        return self.top[0].text if self.top else ""

    def call(self) -> OpenBracket | None:
        """Return the innermost open bracket of a call."""
        return next((each for each in reversed(self.brackets) if each.function is not None), None)


def cursor_at(text: str, line: int, column: int) -> Cursor:
    """Return the cursor at a line and column, which count from 1."""
    before = []
    for token in lex(text):
        if token.kind == END or (token.line, token.column) >= (line, column):
            break
        before.append(token)
    in_comment = bool(before) and before[-1].kind == COMMENT and before[-1].line == line
    before = [token for token in before if token.kind != COMMENT]
    word = ""
    if (
        before
        and before[-1].kind != SEPARATOR
        and before[-1].line == line
        and before[-1].end_column >= column
    ):
        last = before[-1]
        if last.text.replace(".", "").replace("_", "").isalnum() and not last.text[0].isdigit():
            word = last.text[: column - last.column]
            before.pop()
    if word == "" and before and before[-1].text == "." and before[-1].end_column == column:
        before.pop()  # `nn.`, where the lexer finds no path yet
        if before and before[-1].kind in NAMES:
            word = before.pop().text + "."
    return _cursor(before, line, column, word, in_comment)


def _cursor(before: Sequence[Token], line: int, column: int, word: str, in_comment: bool) -> Cursor:
    """Return the cursor: the statement and the open brackets around it. before: the tokens before the word that is typed."""
    stack: list[tuple[int, int]] = []  # (index of an open bracket, start of the statement before it)
    start = top = 0
    for i, token in enumerate(before):
        if token.column == 1 and token.text in DECLARATIONS:
            stack, start, top = [], i, i  # a bracket that the declarations above leave open
        inside_lines = not stack or before[stack[-1][0]].text == "{"
        if token.kind in CLOSERS:
            stack.append((i, start))
            start = i + 1 if token.text == "{" else start
        elif token.text in (")", "]", "}") and stack:
            start = stack.pop()[1]
        elif token.kind == SEPARATOR and inside_lines:
            start = i + 1
            top = i + 1 if not stack else top
    shown = stack if len(stack) <= DEEPEST else [stack[0], *stack[-DEEPEST:]]
    brackets = [OpenBracket(before[i], before[begin:i], before[i + 1 :]) for i, begin in shown]
    return Cursor(line, column, word, before[start:], brackets, before[top:], in_comment)


def name_of(token: Token) -> ast.Name | ast.Path:
    """Return the node of a name's token."""
    span: Span = token.span("")
    return ast.Path(span, tuple(token.text.split("."))) if "." in token.text else ast.Name(span, token.text)


# The names there

Items = Iterator[CompletionItem]

STATEMENTS = ("param", "state", "repeat", "scan", "return", "yield", "watch", "update", "dim")
SECTIONS = ("params", "optimizer", "forms", "value", "pipeline", "part", "allow")

SNIPPETS = {
    "dim": "dim ${1:name} = ${2:64}",
    "mesh": "mesh ${1:grid} = [${2:rows}: ${3:2}, ${4:cols}: ${5:4}]",
    "layout": "layout ${1:hybrid} on ${2:grid} = { ${3:batch}: ${4:rows} }",
    "model": "model ${1:net}(${2:x}: f32[${3:batch, io}]) {\n  $0\n  return ${4:x}\n}",
    "fn": "fn ${1:name}[${2:d}](${3:x}: [..., ${2:d}]) -> [..., ${2:d}] {\n  return $0\n}",
    "train": "train ${1:net} {\n  minimize ${2:loss}\n  optimizer = ${3:sgd(learning_rate = 0.1)}\n}",
    "optimizer": "optimizer ${1:name}(${2:learning_rate}) (p, g) {\n  p = p - $0\n}",
    "param": "param ${1:w}: [${2:d_in, d_out}] = ${3:normal(stddev = 0.02)}",
    "repeat": "repeat ${1:layers} {\n  $0\n}",
    "scan": "scan ${1:x_t} = ${2:x} along ${3:time} {\n  $0\n}",
}
"""Texts for keywords at the start of a declaration or statement."""


@attrs.frozen
class Completion:
    """The names at one cursor. with_snippets: True if the editor takes texts with places to fill in."""

    cursor: Cursor
    file: Declarations
    project: Project
    neighbours: Iterable[str] = ()
    with_snippets: bool = False

    def items(self) -> list[CompletionItem]:
        """Return what may stand at the cursor; the editor picks what fits the word there."""
        if self.cursor.in_comment or (self.cursor.previous.startswith('"')):
            return []
        found: dict[str, CompletionItem] = {}
        for fits, names in PLACES:
            if fits(self):
                for item in names(self):
                    found.setdefault(item.label, item)
                break
        return list(found.values())

    # Where the cursor is

    @property
    def bracket(self) -> OpenBracket | None:
        return self.cursor.innermost

    @property
    def body(self) -> Body | None:
        return self.file.body_at(self.cursor.line)

    def is_in(self, keyword: str) -> bool:
        """Return True if the cursor is in braces of a declaration with a keyword."""
        return self.cursor.keyword == keyword and bool(self.cursor.brackets)

    def entry(self) -> list[Token]:
        """Return the tokens of the entry that the cursor is in, without line ends."""
        return [token for token in self.bracket.entry if token.text != "\n"] if self.bracket else []

    def after(self, *texts: str) -> bool:
        return self.cursor.previous in texts

    def in_type(self) -> bool:
        """Return True for dimensions of a type: `x: f32[` and `-> [`."""
        bracket = self.bracket
        if bracket is None or bracket.text != "[" or not bracket.before:
            return False
        last = bracket.before[-1].text
        return bracket.function is None or last in WRITTEN_BYTES or last in (ANY, ":", "->")

    def in_generics(self) -> bool:
        return self.bracket is not None and self.bracket.text == "[" and self.bracket.function is not None

    # The names

    def modules(self) -> Items:
        yield from map(_module, standard_library.modules())
        yield from (_item(PurePath(path).stem, CompletionItemKind.Module, path) for path in self.neighbours)

    def dims(self) -> Items:
        """Yield the dimensions that are visible at the cursor: those of the body, of the file, and of modules."""
        body = self.body
        if body is not None:
            for name in names_of_body(body, self.file).dims:
                yield _item(name, CompletionItemKind.TypeParameter, f"dimension of `{body.name.text}`")
        elif self.cursor.keyword == "fn":
            yield from _items(self._generics(), CompletionItemKind.TypeParameter, "dimension")
        for name, symbol in self.file.symbols["dimension"].items():
            yield _item(
                name, CompletionItemKind.TypeParameter, _size(symbol.node, self.project.read(self.file.file))
            )
        for module, found in self.project.modules(self.file).items():
            for name in found.dims:
                yield _item(f"{module}.{name}", CompletionItemKind.TypeParameter, f"dimension of `{module}`")

    def _generics(self) -> list[str]:
        """Return the generic dimensions of a function that does not parse yet: `fn f[d, e](`."""
        texts = [token.text for token in self.cursor.top]
        end = texts.index("]") if texts[2:3] == ["["] and "]" in texts else 2
        return [token.text for token in self.cursor.top[3:end] if token.kind in NAMES]

    def type_start(self) -> Items:
        """Yield the dtypes with which a type may begin."""
        yield from _dtypes()
        if self.cursor.keyword in ("fn", "optimizer"):
            yield _item(ANY, CompletionItemKind.Keyword, "any dtype")

    def meshes(self) -> Items:
        """Yield the meshes of the file with their axes."""
        for name in self.file.symbols["mesh"]:
            axes = ", ".join(self.file.axes.get(name, {}))
            yield _item(name, CompletionItemKind.Struct, f"mesh with axes {axes}")

    def models(self) -> Items:
        return _items(self.file.symbols["model"], CompletionItemKind.Class, "model")

    def axes(self) -> Items:
        """Yield the axes of the layout's mesh, or of all meshes if it is unknown."""
        name = self._mesh_of_layout()
        found = [self.file.axes[name]] if name in self.file.axes else self.file.axes.values()
        return _items(chain(*found), CompletionItemKind.EnumMember, "mesh axis")

    def _mesh_of_layout(self) -> str:
        """Return the name after `on`, else that of the first mesh of the file; an empty text if there is none."""
        words = [token.text for token in self.cursor.top]
        return (
            words[words.index("on") + 1] if "on" in words[:-1] else next(iter(self.file.symbols["mesh"]), "")
        )

    def in_forms(self) -> bool:
        """Return True in the section `forms` of a layout."""
        before = self.bracket.before[-2:] if self.bracket and self.bracket.text == "{" else []
        return [token.text for token in before] == ["forms", ":"]

    def layout_entries(self) -> Items:
        yield from self.dims()
        yield from map(_keyword, SECTIONS if len(self.cursor.brackets) == 1 else ())

    def placement_entries(self) -> Items:
        """Yield what a placement may name: dimensions, and the operators of all models."""
        yield from self.dims()
        for model in self.file.symbols["model"].values():
            if isinstance(model.node, Body):
                yield from _items(names_of_body(model.node).values, CompletionItemKind.Variable, "operator")

    def outputs(self) -> Items:
        """Yield the outputs of the model of a `train` block; in `report` also the built-in figures."""
        words = [token.text for token in self.cursor.top]
        model = self.file.symbols["model"].get(words[1]) if len(words) > 1 else None
        if model is not None and isinstance(model.node, ast.ModelDecl):
            for statement in model.node.body:
                for value in statement.values if isinstance(statement, ast.Return) else ():
                    if isinstance(value, ast.Name):
                        yield _value(value.text, f"output of `{model.name}`")
        if "report" in [token.text for token in self.cursor.statement]:
            yield from map(_keyword, BUILT_IN)

    def optimizers(self) -> Items:
        """Yield the optimizers of the file and of the library."""
        for name in self.file.symbols["optimizer"]:
            yield self._called(name, CompletionItemKind.Constructor)
        for name in standard_library.optimizers(OPTIMIZERS):
            yield self._called(name, CompletionItemKind.Constructor)

    def precision_values(self) -> Items:
        is_scale = [token.text for token in self.entry()][:1] == [LOSS_SCALE]
        return iter([_keyword(DYNAMIC)]) if is_scale else _dtypes()

    def hardware_keys(self) -> Items:
        """Yield the keys of the block of `hardware` at the cursor."""
        words = [token.text for token in (self.bracket.before if self.bracket else ())]
        inner = words[-2] if len(words) > 1 and words[-1] == ":" else ""
        table: Iterable[str] = ("device", "link")
        if inner == "device":
            table = DEVICE
        elif words[-3:-2] == ["device"]:
            table = ("count", "role", *DEVICE)
        elif inner == "scratchpad":
            table = SCRATCHPAD
        elif inner in ("flops", "collectives"):
            table = WRITTEN_BYTES if inner == "flops" else ()
        elif "link" in words:
            table = dict.fromkeys((*LINK, *GRAPH_LINK))
        return _items(table, CompletionItemKind.Property, "figure of hardware")

    def generics(self) -> Items:
        """Yield the dimensions that the called function can be given, else all dimensions."""
        for each in self._signatures(self.bracket):
            yield from (_argument(name, f"dimension of `{each.label}`") for name in each.generics)
        if not self._signatures(self.bracket):
            yield from self.dims()

    def initializers(self) -> Items:
        return self._functions(DISTRIBUTIONS)

    def of_module(self) -> Items:
        """Yield the functions and dimensions of the module before the dot, under their full names."""
        head = self.cursor.word.partition(".")[0]
        if head == "random":
            yield from self._functions(name for name in BUILTINS if name.startswith("random."))
        module = self.project.modules(self.file).get(head)
        yield from self._functions(f"{head}.{name}" for name in (module.functions if module else ()))
        for name in module.optimizers if module and self.cursor.keyword == "train" else ():
            yield self._called(f"{head}.{name}", CompletionItemKind.Constructor)
        dims = (f"{head}.{name}" for name in (module.dims if module else ()))
        yield from _items(dims, CompletionItemKind.TypeParameter, "dimension")

    def keywords_of_call(self) -> Items:
        """Yield the named arguments of the call around the cursor that it does not give yet."""
        call = self.cursor.call()
        if call is None or call.text != "(" or call is not self.bracket or self.entry():
            return
        given = {entry[0].text for entry in call.entries() if len(entry) > 1 and entry[1].text == "="}
        for each in self._signatures(call):
            yield from (_argument(name, each.label) for name in each.named if name not in given)

    def expression(self) -> Items:
        """Yield all that may begin an expression: keywords of the call, values, functions, modules, dimensions, words."""
        yield from self.keywords_of_call()
        yield from self._values()
        if self.body is None and self.cursor.brackets:
            yield from _items(self._words_of_block(), CompletionItemKind.Variable, "value")
        if self.cursor.keyword in ("optimizer", "train"):
            yield _value(STEP, "number of the training step")
        if self.cursor.keyword in ("model", "fn"):
            yield _value(TRAINING, "true in training")
        yield from self._functions(self.file.symbols["function"])
        for module, found in self.project.modules(self.file).items():
            yield _module(module)
            yield from self._functions(f"{module}.{name}" for name in found.functions)
        yield from self._functions(BUILTINS)
        yield from self.dims()
        yield from map(_keyword, ("true", "false", "not", "and", "or"))

    def _words_of_block(self) -> list[str]:
        """Return the names that a body which does not parse seems to bind before the cursor."""
        tokens = self.cursor.top
        pairs = pairwise(tokens)
        return [a.text for a, b in pairs if a.kind in NAMES and b.text in ("=", ":")]

    def statement_start(self) -> Items:
        yield from map(self._snippet, STATEMENTS)
        yield from self._values()

    def _values(self) -> Items:
        """Yield the values of the body around the cursor."""
        for name, symbol in names_of_body(self.body, self.file).values.items() if self.body else ():
            yield _value(name, symbol.kind)

    # Making items

    def _functions(self, names: Iterable[str]) -> Items:
        return (self._called(name, CompletionItemKind.Function) for name in names)

    def _snippet(self, word: str) -> CompletionItem:
        """Return the item of a keyword, which inserts a whole construct if the editor takes snippets."""
        item = _keyword(word)
        if self.with_snippets and word in SNIPPETS:
            item.insert_text, item.insert_text_format = SNIPPETS[word], InsertTextFormat.Snippet
        return item

    def _signatures(self, bracket: OpenBracket | None) -> list[CallSignature]:
        name = bracket.function if bracket else None
        return signatures.called(name_of(name), self.file, self.project) if name else []

    def _called(self, name: str, kind: CompletionItemKind) -> CompletionItem:
        """Return the item of a function, with its signature and its comment."""
        (token, *_) = lex(name)
        found = signatures.called(name_of(token), self.file, self.project)
        item = _item(name, kind, found[0].label if found else "")
        if found and found[0].documentation:
            item.documentation = _markdown(found[0].documentation)
        return item

    # Signature help

    def signature_help(self) -> SignatureHelp | None:
        """Return the signatures of the call around the cursor, with the argument that the cursor is in."""
        call = self.cursor.call()
        found = self._signatures(call)
        if call is None or not found:
            return None
        entries = list(call.entries())
        is_generic = call.text == "["
        infos = [_information(each, entries, is_generic) for each in found]
        return SignatureHelp(infos, 0, infos[0].active_parameter)


def _information(
    each: CallSignature, entries: Sequence[Sequence[Token]], is_generic: bool
) -> SignatureInformation:
    """Return the signature of a call, with the parameter that is being typed. entries: the tokens of each argument so far."""
    parameters = [(name, name) for name in each.generics] if is_generic else each.parameters
    entry = [token for token in entries[-1] if token.text != "\n"]
    active = min(len(entries) - 1, len(parameters))
    if len(entry) > 1 and entry[1].text == "=":
        names = [name for name, _ in parameters]
        active = names.index(entry[0].text) if entry[0].text in names else len(parameters)
    return SignatureInformation(
        each.label,
        _markdown(each.documentation),
        [ParameterInformation(text) for _, text in parameters],
        active if active < len(parameters) else None,
    )


def _item(label: str, kind: CompletionItemKind, detail: str = "") -> CompletionItem:
    return CompletionItem(label, kind=kind, detail=detail or None)


def _items(names: Iterable[str], kind: CompletionItemKind, detail: str) -> Items:
    return (_item(name, kind, detail) for name in names)


def _dtypes() -> Items:
    for name, size in WRITTEN_BYTES.items():
        yield _item(name, CompletionItemKind.Keyword, f"{size} bytes")


def _module(name: str) -> CompletionItem:
    """Return the item of a module, with the comment at its top."""
    item = _item(name, CompletionItemKind.Module, "module")
    text = standard_library.text(name)
    if text is not None:
        item.documentation = _markdown(signatures.comment_above(text, _first_code(text)))
    return item


def _first_code(text: str) -> int:
    """Return the line after the comment at the head of a module."""
    lines = text.split("\n")
    return 1 + next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))


def _keyword(word: str) -> CompletionItem:
    return _item(word, CompletionItemKind.Keyword)


def _value(name: str, detail: str) -> CompletionItem:
    return _item(name, CompletionItemKind.Variable, detail)


def _argument(name: str, detail: str) -> CompletionItem:
    """Return the item of a keyword argument, which sorts before all others."""
    item = _item(f"{name} =", CompletionItemKind.Property, detail)
    item.insert_text, item.filter_text, item.sort_text = f"{name} = ", name, f" {name}"
    return item


def _size(node: ast.Node | None, text: str | None) -> str:
    """Return `dim hidden = 4 * io`, as it is written."""
    lines = text_lines(text or "")
    line = node.span.line if node else 0
    return lines[line - 1].partition("#")[0].strip() if 0 < line <= len(lines) else "dimension"


def _markdown(text: str) -> MarkupContent:
    return MarkupContent(MarkupKind.Markdown, text)


Fits = Callable[[Completion], object]
Names = Callable[[Completion], Items]


def _in_layout_value(at: Completion) -> bool:
    """Return True behind the colon of a rule: `batch: ` or `batch: (rows, `."""
    words = [token.text for token in at.cursor.top]
    colon = len(words) - 1 - words[::-1].index(":") if ":" in words else -1
    return (colon >= 0 and not {"{", "}", ",", "\n", ")"} & set(words[colon + 1 :])) or (
        at.bracket is not None and at.bracket.text == "("
    )


LINK_KINDS = dict.fromkeys((*KINDS, *GRAPH_KINDS))

PLACES: tuple[tuple[Fits, Names], ...] = (
    (lambda at: at.cursor.keyword == "import", Completion.modules),
    (lambda at: "." in at.cursor.word, Completion.of_module),
    (lambda at: at.is_in("layout") and at.after("allow"), lambda at: _items(OF_LAYOUTS, CompletionItemKind.Constant, "warning")),
    (
        lambda at: at.is_in("layout") and at.in_forms() and at.after(":"),
        lambda at: map(_keyword, FORMS.get(next((token.text for token in at.entry()), ""), ())),
    ),
    (lambda at: at.is_in("layout") and at.in_forms(), lambda at: map(_keyword, FORMS)),
    (lambda at: at.is_in("layout") and _in_layout_value(at), Completion.axes),
    (lambda at: at.is_in("layout"), Completion.layout_entries),
    (lambda at: at.cursor.keyword == "layout" and at.after("on"), Completion.meshes),
    (lambda at: at.cursor.keyword == "layout" and "for" in [t.text for t in at.cursor.top], Completion.models),
    (lambda at: at.is_in("placement"), Completion.placement_entries),
    (
        lambda at: at.is_in("hardware") and at.after(":") and [t.text for t in at.entry()][:1] == ["kind"],
        lambda at: _items(LINK_KINDS, CompletionItemKind.EnumMember, "kind of link"),
    ),
    (lambda at: at.is_in("hardware") and not at.after(":"), Completion.hardware_keys),
    (lambda at: at.cursor.keyword == "train" and not at.cursor.brackets, Completion.models),
    (
        lambda at: at.is_in("train") and len(at.cursor.brackets) == 1 and not at.cursor.statement,
        lambda at: map(_keyword, (*SETTINGS, "frozen")),
    ),
    (
        lambda at: at.is_in("train") and {t.text for t in at.cursor.statement[:1]} & {"minimize", "report", "weigh_by"},
        Completion.outputs,
    ),
    (
        lambda at: at.is_in("train") and len(at.cursor.brackets) == 1 and at.after("=")
        and [t.text for t in at.cursor.statement][:1] == ["optimizer"],
        Completion.optimizers,
    ),
    (lambda at: at.is_in("train") and "precision" in _words(at) and at.after(":"), Completion.precision_values),
    (lambda at: at.is_in("train") and "precision" in _words(at), lambda at: map(_keyword, PRECISION_KEYS)),
    (lambda at: at.cursor.keyword in ("mesh", "dim"), Completion.dims),
    (lambda at: at.after("repeat", "along", "->") or at.in_type(), Completion.dims),
    (lambda at: at.in_generics() and at.after("["), Completion.generics),
    (lambda at: at.in_generics() and at.after(","), Completion.generics),
    (lambda at: at.in_generics(), Completion.dims),
    (lambda at: at.after(":"), Completion.type_start),
    (lambda at: at.after("=") and [t.text for t in at.cursor.statement][:1] == ["param"], Completion.initializers),
    (lambda at: not at.cursor.statement and not at.cursor.brackets, lambda at: map(at._snippet, DECLARATIONS)),
    (lambda at: not at.cursor.statement, Completion.statement_start),
    (lambda at: bool(at.cursor.brackets), Completion.expression),
)  # fmt: skip
"""The places of the language, each with the names that may stand there."""


def _words(at: Completion) -> Mapping[str, None]:
    """Return the words of the statement at the cursor, and those before each bracket around it."""
    return dict.fromkeys(token.text for token in at.cursor.statement) | dict.fromkeys(
        token.text for bracket in at.cursor.brackets for token in bracket.before
    )
