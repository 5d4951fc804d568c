"""Find the parameter groups of a `train` block: entries for some of the parameters.

`optimizer for "*.bias" = ...` gives parameters an optimizer of their own, and `frozen "embed.*"` leaves parameters unchanged. A
pattern is matched against full names of parameters, like a shell pattern; `*` also matches dots. The last entry that matches a
parameter decides, so general entries come first and exceptions after them.
"""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.models import Model
from mtfc.frontend.semantics.names.scope import Scope, listing
from mtfc.frontend.syntax import ast

Entry = ast.OptimizerFor | ast.Frozen

WILD = "*?."
"""Characters that are removed from the ends of a pattern to find a misspelt name."""

IN_THE_FILE = "change the entries of parameter groups in the file"
MOST_LABELS = 4

MOST_PAIRS = 500_000
"""Most pairs of a pattern and a parameter in a `train` block: each is matched."""


@frozen
class ParameterGroups:
    """The entries of a `train` block, each with its parameters; `rest` are the parameters without an entry."""

    members: tuple[tuple[Entry, tuple[str, ...]], ...]
    rest: tuple[str, ...]

    @cached_property
    def frozen(self) -> frozenset[str]:
        groups = (names for entry, names in self.members if isinstance(entry, ast.Frozen))
        return frozenset(name for names in groups for name in names)

    @cached_property
    def frozen_by(self) -> list[Label]:
        """Labels at the entries that freeze a parameter."""
        entries = (entry for entry, names in self.members if isinstance(entry, ast.Frozen) and names)
        return [Label(_patterns(entry), "frozen here") for entry in islice(entries, MOST_LABELS)]

    @property
    def optimized(self) -> Iterator[tuple[ast.Expr, tuple[str, ...]]]:
        """The optimizers of the entries, each with the parameters that it updates."""
        return (
            (entry.optimizer, names) for entry, names in self.members if isinstance(entry, ast.OptimizerFor)
        )


def optimizers_of(entries: Iterable[Entry]) -> list[Label]:
    """Return labels at the first entries `optimizer for`."""
    places = [_patterns(entry) for entry in entries if isinstance(entry, ast.OptimizerFor)]
    return [Label(place, "this group has an optimizer of its own") for place in places[:MOST_LABELS]]


def _patterns(entry: Entry) -> Span:
    return entry.patterns[0].span.to(entry.patterns[-1].span)


def groups_of(model: Model, decl: ast.TrainDecl, scope: Scope) -> ParameterGroups:
    """Return the groups of a model's parameters; report a pattern that matches no parameter."""
    names = [parameter.name for parameter in model.program.parameters if not parameter.is_state]
    chosen: dict[str, int] = {}
    for number, pattern in _bounded(decl.groups, len(names), scope):
        matching = [name for name in names if fnmatchcase(name, pattern.text)]
        chosen.update(dict.fromkeys(matching, number))
        if not matching and model.complete:
            _report(pattern, model, names, scope)
    members: list[list[str]] = [[] for _ in decl.groups]
    for name in names:
        if name in chosen:
            members[chosen[name]].append(name)
    found = tuple((entry, tuple(own)) for entry, own in zip(decl.groups, members, strict=True))
    return ParameterGroups(found, tuple(name for name in names if name not in chosen))


def _bounded(entries: Sequence[Entry], names: int, scope: Scope) -> list[tuple[int, ast.Pattern]]:
    """Return the patterns with the numbers of their entries; none, and an error, if there are too many."""
    found = [(number, pattern) for number, entry in enumerate(entries) for pattern in entry.patterns]
    if len(found) * names <= MOST_PAIRS:
        return found
    message = f"the entries and parameters of this model make more than {MOST_PAIRS:,} pairs to compare"
    scope.error("E122", message, found[-1][1].span, help="write fewer entries, with `*` for many names")
    return []


def _report(pattern: ast.Pattern, model: Model, names: list[str], scope: Scope) -> None:
    """Report (E418) a pattern that no parameter has."""
    message = f"no parameter of model `{model.program.name}` is called `{pattern.text}`"
    meant = _meant(pattern.text, names, scope)
    help = f'did you mean `"{meant}"`?' if meant else _listing(names)
    scope.error("E418", message, pattern.span, help=help)


def _meant(pattern: str, names: list[str], scope: Scope) -> str | None:
    """Return the pattern with its name, or its last part, replaced by the nearest existing name."""
    if not scope.reports.suggests:
        return None
    core = pattern.strip(WILD)
    for word, known in ((core, names), (core, _parts(names)), (core.rpartition(".")[2], _parts(names))):
        near = scope.reports.nearest(word, list(known)) if word else None
        found = pattern.replace(word, near) if near else ""
        if any(fnmatchcase(name, found) for name in names):
            return found
    return None


def _parts(names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(part for name in names for part in name.split("."))


def _listing(names: list[str]) -> str:
    return listing(names) or f"it has {len(names)} parameters, among them {', '.join(names[:4])}"
