"""Texts that an editor shows beside a file: hovers, hints of how values are split, and a line above models and layouts."""

from collections.abc import Iterable, Iterator, Mapping

import attrs
from lsprotocol.types import CodeLens, Command, InlayHint, InlayHintKind, Range

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.printer import axes_text, bytes_text, shown_layout
from mtfc.compiler.ir.types import WRITTEN_BYTES, Mesh, TensorType
from mtfc.editor import signatures
from mtfc.editor.documents import KINDS, Declarations, DeclaredSymbol, Project, TextBuffer
from mtfc.editor.figures import CaseFigures, ValueFigures, defined_in
from mtfc.editor.names import Body, Occurrence, statements
from mtfc.editor.token_kinds import END_OF_LINE
from mtfc.frontend.syntax import ast
from mtfc.reports.source_lines import count_text, flops_text
from mtfc.reports.step_report import seconds_text

MOST_VALUES = 4
"""Most values that a hover shows: a line in a function defines one for each call."""

CHOOSE, SEARCH = "mtfc.chooseLayout", "mtfc.search"
"""Commands behind the lines above models and layouts."""


# Hovers


def declared(symbol: DeclaredSymbol, project: Project) -> str:
    """Return the declaration of a symbol, as it is written, and the comment above it."""
    text = project.read(symbol.place.file) or ""
    if isinstance(symbol.node, ast.FnDecl | ast.OptimizerDecl) and symbol.kind in ("function", "optimizer"):
        found = signatures.of_declared(symbol.node, text)
        return _fenced(f"{KINDS[type(symbol.node)].keyword} {found.label}") + _paragraph(found.documentation)
    lines = END_OF_LINE.split(text)
    line = lines[symbol.place.line - 1].strip() if symbol.place.line <= len(lines) else symbol.name
    comment = signatures.comment_above(text, symbol.place.line) if symbol.place.column < 12 else ""
    return _fenced(line) + f"{symbol.kind} `{symbol.name}`" + _paragraph(comment)


def built_in(word: str) -> str | None:
    """Return the text for a word of the language that is no symbol; None if there is nothing to say."""
    if (found := signatures.of_word(word)) is not None:
        return _fenced(found.label) + found.documentation
    return f"dtype `{word}`, {WRITTEN_BYTES[word]} bytes" if word in WRITTEN_BYTES else None


def dimension(symbol: DeclaredSymbol, figures: CaseFigures | None) -> str:
    """Return the size of a dimension, and how the layout splits it."""
    types = [each.type for each in figures.values] if figures else []
    sizes = {dim.size for type in types for dim in type.dims if dim.name == symbol.name}
    if figures is None or not sizes:
        return ""
    (size, *_) = sizes
    splits = sorted(
        {axes for type in types for dim, axes in shown_layout(type).items() if dim == symbol.name}
    )
    rows = [
        f"split over `{', '.join(axes)}`: {size // figures.mesh.size(axes):,} on each device"
        for axes in splits
    ]
    return f"\n\nsize {size:,}; {under(figures)}:" + _bullets(rows or ["whole on each device"])


def values(symbol: DeclaredSymbol, statement: Span | None, figures: CaseFigures | None) -> str:
    """Return the types of the values that a statement defines, and the part of each that one device has."""
    if figures is None or statement is None:
        return ""
    found = defined_in(figures.values, symbol.name, statement)
    rows = list(dict.fromkeys(_value_text(each, figures.mesh) for each in found))
    more = len(rows) - MOST_VALUES
    shown = rows[:MOST_VALUES] + ([f"and {more} more, for other calls"] if more > 0 else [])
    return f"\n\n{under(figures)}:\n" + _bullets(shown) if shown else ""


def _value_text(each: ValueFigures, mesh: Mesh) -> str:
    """Return what a device holds of a value: its type, shape, bytes, splits and pending sums."""
    type, size = each.type, bytes_text(each.type.local_bytes(mesh))
    shape = " x ".join(f"{size:,}" for size in type.local_shape(mesh)) or "a scalar"
    splits = [
        f"{dim} over `{', '.join(axes)}` ({mesh.size(axes)})" for dim, axes in shown_layout(type).items()
    ]
    split = f"; {', '.join(splits)}" if splits else "; whole on each device" if mesh.devices > 1 else ""
    pending = f"; a sum over `{', '.join(type.pending)}` is pending" if type.pending else ""
    return f"`{each.path}`: `{type}`; one device has {shape}, {size}{split}{pending}"


def line(figures: CaseFigures | None, file: str, number: int) -> str:
    """Return the work, the transfers and the memory of a line on one device in a step, and the reasons for its transfers."""
    found = figures.lines.get((file, number)) if figures else None
    if figures is None or found is None:
        return ""
    return f"\n\nThis line, {under(figures)}, on one device in a step:\n" + _bullets(found)


def under(figures: CaseFigures) -> str:
    """Return the layout and the mesh."""
    return (
        f"under layout `{figures.layout}` on [{figures.mesh.axes_text}]"
        if figures.is_declared
        else "on one device"
    )


def _fenced(text: str) -> str:
    return f"```mtf\n{text}\n```\n"


def _paragraph(text: str) -> str:
    return f"\n\n{text}" if text else ""


def _bullets(rows: Iterable[str]) -> str:
    return "".join(f"\n- {row}" for row in rows)


# Places that define values


def definitions(decl: Body) -> Iterator[tuple[ast.Name, Span]]:
    """Yield the names that a body defines, each with the statement or input that defines it."""
    inputs = decl.inputs if isinstance(decl, ast.ModelDecl) else ()
    for each in (*inputs, *statements(decl.body)):
        if isinstance(each, ast.Assign | ast.Input | ast.Param | ast.State):
            names = each.targets if isinstance(each, ast.Assign) else (each.name,)
            yield from ((name, each.span) for name in names)


def statement_of(file: Declarations, symbol: DeclaredSymbol, at: Span) -> Span | None:
    """Return the statement that defines a value at a place: the one that the place is in, or the last one before."""
    decl = file.body_at(at.line)
    pairs = [pair for pair in (definitions(decl) if decl else ()) if pair[0].text == symbol.name]
    own = [span for name, span in pairs if name.span == at]  # the place is no use in the same statement
    before = [
        span for _, span in pairs if (span.line, span.column) < (at.line, at.column) and span not in own
    ]
    return next(iter((*own, *reversed(before), *(span for _, span in pairs))), None)


# Hints


def hints(
    file: Declarations, figures: Iterable[CaseFigures], buffer: TextBuffer, first: int, last: int
) -> list[InlayHint]:
    """Return how each value is split, beside the name that defines it, for some lines."""
    known = tuple(value for each in figures for value in each.values)
    found: list[InlayHint] = []
    for decl in file.tree.declarations:
        if isinstance(decl, Body) and decl.span.line <= last and first <= decl.span.end_line:
            for name, statement in definitions(decl):
                if first <= name.span.line <= last:
                    found += _hint(name, defined_in(known, name.text, statement), buffer)
    return found


def _hint(name: ast.Name, found: Iterable[ValueFigures], buffer: TextBuffer) -> Iterator[InlayHint]:
    """Yield a hint with the splits of a value behind its name; of several layouts, the first two that differ."""
    shown = sorted({text for each in found if (text := split_text(each.type))})
    if shown:
        position = buffer.position(name.span.end_line, name.span.end_column)
        label = " or ".join(shown[:2]) + (" or ..." if len(shown) > 2 else "")
        yield InlayHint(position, label, InlayHintKind.Type, padding_left=True)


def split_text(type: TensorType) -> str:
    """Return `{batch: rows, hidden: cols} +{cols}`: the dimensions that are split, and the axes of pending sums."""
    splits = ", ".join(f"{dim}: {axes_text(axes, str)}" for dim, axes in shown_layout(type).items())
    sign = "+" if type.reduction == "sum" else type.reduction
    pending = f"{sign}{{{', '.join(type.pending)}}}" if type.pending else ""
    return " ".join(filter(None, (f"{{{splits}}}" if splits else "", pending)))


# Lines above models and layouts


@attrs.frozen
class BestKnown:
    """The best layout of a model that is known on some number of devices: of the file's layouts, or of a search."""

    name: str
    seconds: float


def best_known(figures: Iterable[CaseFigures], devices: int, searched: BestKnown | None) -> BestKnown | None:
    """Return the fastest of the layouts on a number of devices that fit in memory, and of a search."""
    known = [
        BestKnown(each.layout, each.seconds)
        for each in figures
        if each.seconds is not None and each.fits and each.mesh.devices == devices
    ]
    return min([*known, *([searched] if searched else [])], key=lambda each: each.seconds, default=None)


def lenses(
    file: Declarations,
    figures: Mapping[tuple[str, str | None], CaseFigures],
    chosen: Mapping[str, str | None],
    searched: Mapping[tuple[str, int], BestKnown],
    buffer: TextBuffer,
) -> list[CodeLens]:
    """Return the lines above models and layouts. chosen: the layout of each model. searched: results of searches."""
    found = []
    for decl in file.tree.declarations:
        if isinstance(decl, ast.ModelDecl):
            case = figures.get((decl.name.text, chosen.get(decl.name.text)))
            found += [_lens(buffer, decl, model_text(case), CHOOSE)] if case else []
        elif isinstance(decl, ast.LayoutDecl):
            own = [each for (_, layout), each in figures.items() if layout == decl.name.text]
            for each in own:
                others = [other for (model, _), other in figures.items() if model == each.model]
                best = best_known(others, each.mesh.devices, searched.get((each.model, each.mesh.devices)))
                title = layout_text(each, best, with_model=len(own) > 1)
                found.append(_lens(buffer, decl, title, SEARCH, each.model, each.mesh.name))
    return found


def _lens(
    buffer: TextBuffer, decl: ast.ModelDecl | ast.LayoutDecl, title: str, command: str, *more: str
) -> CodeLens:
    """Return a command above a declaration. title: its text. more: further arguments of the command."""
    place: Range = buffer.range(decl.name.span)
    arguments = [buffer.uri, *more] if command == SEARCH else [buffer.uri]
    return CodeLens(place, Command(title, command, arguments=arguments))


def model_text(each: CaseFigures) -> str:
    """Return the parameters of a model, and the FLOPs and the time of a step under the chosen layout."""
    devices = each.mesh.devices
    whole = flops_text(each.flops * devices)
    step = "training step" if each.trains else "forward pass"
    time = _time(each)
    layout = f" under `{each.layout}`" if each.is_declared else ""
    machine = f", {time} on {devices} x {each.target}" if time else ""
    return f"{count_text(each.parameters)} parameters; a {step}{layout}: {whole}{machine}"


def layout_text(each: CaseFigures, best: BestKnown | None, with_model: bool) -> str:
    """Return what a device sends and stores under a layout, and the best layout that is known."""
    sent = f"sends {bytes_text(each.sent)}" if each.sent else "sends nothing"
    memory = (
        f"{bytes_text(each.memory)} per device{'' if each.fits else f', which does NOT fit on {each.target}'}"
    )
    parts = [f"{sent}, {memory}", *([_time(each)] if _time(each) else [])]
    if best is not None and each.seconds is not None:
        is_best = best.seconds >= each.seconds * 0.999 and each.fits
        parts.append("best known" if is_best else f"best known: {best.name}, {seconds_text(best.seconds)}")
    return (f"{each.model}: " if with_model else "") + "; ".join(parts)


def _time(each: CaseFigures) -> str:
    peak = " at peak figures" if each.peak else ""
    return f"{seconds_text(each.seconds)}{peak}" if each.seconds is not None else ""


def at(found: Iterable[Occurrence], line: int, column: int) -> Occurrence | None:
    """Return the occurrence that the cursor is in or behind."""
    inside = [
        each
        for each in found
        if each.span.line == line and each.span.column <= column <= each.span.end_column
    ]
    return inside[-1] if inside else None
