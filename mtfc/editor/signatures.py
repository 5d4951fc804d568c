"""Signatures as text: of functions, optimizers, built-in functions and initializers, with what their comments say."""

from collections.abc import Sequence

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.editor.documents import Declarations, Project
from mtfc.editor.token_kinds import END_OF_LINE
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.semantics.calls.function_calls import shown
from mtfc.frontend.syntax import ast


@attrs.frozen
class CallSignature:
    """The signature of something that can be called.

    label: the whole signature. parameters: the parts of the label that arguments are for, in order, with their names.
    named: the names of arguments that a call gives as `name = value`. generics: those that it gives as `[name = dim]`.
    """

    label: str
    parameters: Sequence[tuple[str, str]] = ()
    named: Sequence[str] = ()
    generics: Sequence[str] = ()
    documentation: str = ""


def of_declared(decl: ast.FnDecl | ast.OptimizerDecl, text: str, name: str = "") -> CallSignature:
    """Return the signature of a function or an optimizer.

    text: the text of its file. name: a name in place of the declared one.
    """
    generics, result, given = (
        list[str](),
        "",
        decl.hypers if isinstance(decl, ast.OptimizerDecl) else decl.args,
    )
    if isinstance(decl, ast.FnDecl):
        generics, types = [each.text for each in decl.generics], ", ".join(map(type_text, decl.results))
        result = f" -> {types}" if len(decl.results) == 1 else f" -> ({types})"
    arguments = [(each.name.text, argument_text(each, text)) for each in given]
    bracket = f"[{', '.join(generics)}]" if generics else ""
    label = f"{name or decl.name.text}{bracket}({', '.join(part for _, part in arguments)}){result}"
    names = [each for each, _ in arguments]
    return CallSignature(label, arguments, names, generics, comment_above(text, decl.span.line))


def of_word(name: str) -> CallSignature | None:
    """Return the signature of a built-in function or an initializer; None for any other word."""
    if name in BUILTINS:
        usage = BUILTINS[name].usage
        inside = usage[usage.index("(") + 1 : usage.rindex(")")]
        parts = [(part.partition("=")[0].strip(), part) for part in split_at_commas(inside)]
        return CallSignature(usage, parts, tuple(BUILTINS[name].keywords), (), "A built-in function.")
    if name in DISTRIBUTIONS:
        numbers = DISTRIBUTIONS[name].args
        parts = [(key, key if default is None else f"{key} = {default}") for key, default in numbers.items()]
        label = f"{name}({', '.join(part for _, part in parts)})"
        return CallSignature(label, parts, tuple(numbers), (), "Initial values of a parameter.")
    return None


def called(name: ast.Name | ast.Path, file: Declarations, project: Project) -> list[CallSignature]:
    """Return the signatures of what a name calls: one, or one for each declaration of an optimizer."""
    found = project.function(name, file)
    known = of_word(name.text)
    if known is not None and found is None:
        return [known]
    function = found.node if found else None
    decls = [function] if isinstance(function, ast.FnDecl) else project.optimizers(name, file)
    return [of_declared(each, project.read(each.span.file) or "", name.text) for each in decls]


def type_text(type: ast.Type) -> str:
    """Return a type as it is written; f32 is left out where it is left out."""
    text = shown(type)
    return text if type.dtype else text.removeprefix("f32")


def argument_text(each: ast.FnArg, text: str) -> str:
    """Return `x: [..., d]` or `eps = 1e-5`."""
    type = f": {type_text(each.type)}" if each.type else ""
    default = f" = {_source(each.default.span, text)}" if each.default else ""
    return f"{each.name.text}{type}{default}"


def _source(span: Span, text: str) -> str:
    """Return the source of an expression on one line."""
    lines = END_OF_LINE.split(text)[span.line - 1 : span.end_line]
    if len(lines) != 1:
        return "..."
    return lines[0][span.column - 1 : span.end_column - 1]


def comment_above(text: str, line: int) -> str:
    """Return the comment that ends in the line above a declaration, as Markdown."""
    lines = END_OF_LINE.split(text)[: line - 1]
    found: list[str] = []
    while lines and lines[-1].lstrip().startswith("#"):
        found.append(lines.pop().lstrip().removeprefix("#").removeprefix(" "))
    return "\n".join(reversed(found))


def split_at_commas(text: str) -> list[str]:
    """Return the parts of a list of arguments, which may hold brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
