"""Read a map of weights: a TOML file with the names and shapes that another library gives the parameters of a model.

A rule pairs a name pattern of their tensors with parameters of ours, and writes the axes of their tensor in the named dimensions
of our parameter, as einops does:

    [[rule]]
    theirs = "model.layers.{layers}.self_attn.q_proj.weight"
    ours = "decoder.layers.llama_layer.grouped_query.wq"
    dims = "(kv_heads sharers d_k) d_model"

`{layers}` numbers the tensors along the dimension `layers` of our parameter. This file checks the text of the map alone;
`exchange.py` applies the map to a program.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span, did_you_mean
from mtfc.driver.loading.sources import Sources, line_span

CODE = "E507"

Axes = tuple[tuple[str, ...], ...]
"""The dimensions that each axis of a tensor joins, the most major one first; an axis of size 1 joins none."""

HEADER = re.compile(r"\s*\[\[\s*rule\s*\]\]")
TABLE = re.compile(r"\s*\[")
HOLE = re.compile(r"\{([^\W\d]\w*)\}")
NAME = re.compile(r"[^\W\d]\w*")


def holes(pattern: str) -> frozenset[str]:
    """Return the names in braces."""
    return frozenset(HOLE.findall(pattern))


@attrs.frozen
class Rule:
    """A rule: their names, of which the first that a file has is read; our parameters; and the axes of their tensor.

    Several parameters are joined along axis `join` of their tensor. An entry of `dims` may be None: the dimensions of the
    parameter in their order. spans: the place of the rule, as `rule`, and of its keys.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    dims: tuple[Axes | None, ...]
    join: int
    spans: Mapping[str, Span] = attrs.field(eq=False, repr=False)

    def span(self, key: str) -> Span:
        return self.spans.get(key, self.spans["rule"])


@attrs.frozen
class WeightMap:
    """A map of weights.

    split: the parts of a dimension, with their sizes if they are given. metadata: of files that are written by the map.
    """

    path: str
    rules: tuple[Rule, ...]
    ignore: tuple[str, ...] = ()
    split: Mapping[str, tuple[tuple[str, int | None], ...]] = attrs.field(factory=dict)
    metadata: Mapping[str, str] = attrs.field(factory=dict)


def read_map(path: str, sources: Sources) -> WeightMap:
    """Read a map. Raises `CompileError` (E507) and `UsageError`."""
    file = sources.read(path)
    diagnostics = Diagnostics()
    found = _Reader(file, sources.texts[file], diagnostics).read()
    diagnostics.raise_if_errors()
    return found


@attrs.frozen
class _Reader:
    """Checks the tables of a map, and reports (E507) what is wrong."""

    file: str
    text: str
    diagnostics: Diagnostics

    def error(self, message: str, span: Span, help: str | None = None) -> None:
        self.diagnostics.add(CODE, message, span, help=help)

    def line(self, number: int) -> Span:
        """Return the text of a line, counted from 1, or of the last line."""
        return line_span(self.file, self.text, number)

    def read(self) -> WeightMap:
        """Return the map. All of its entries are checked, so that all errors are reported at once."""
        content = self._toml()
        self._known(content, ("prefix", "rule", "ignore", "split", "metadata"), self.line(1))
        places = self._places()
        rules = content.get("rule", [])
        if not isinstance(rules, list) or len(rules) != len(places) or not rules:
            if not self.diagnostics.errors:
                self.error("a map has at least one rule, below a line `[[rule]]`", self.line(1))
            rules = []
        prefix = content.get("prefix", "")
        if not isinstance(prefix, str):
            self.error("`prefix` is a text", self._at("prefix"))
            prefix = ""
        read = [self._rule(rule, spans, prefix) for rule, spans in zip(rules, places, strict=False)]
        return WeightMap(
            self.file,
            tuple(rule for rule in read if rule is not None),
            self._texts(content.get("ignore", []), "ignore", self._at("ignore")) or (),
            self._split(content.get("split", {})),
            self._metadata(content.get("metadata", {})),
        )

    def _toml(self) -> dict[str, Any]:
        """Return the tables of the file; report a file that is no TOML at the line of the fault."""
        try:
            return tomllib.loads(self.text)
        except RecursionError:
            self.error("this map is nested too deeply", self.line(1))
            return {}
        except tomllib.TOMLDecodeError as error:
            message, _, place = str(error).partition(" (at ")
            found = re.search(r"line (\d+)", place)
            span = self.line(int(found[1]) if found else len(self.text))
            self.error(f"this map is no TOML: {message[:1].lower()}{message[1:]}", span)
            return {}

    def _places(self) -> list[dict[str, Span]]:
        """Return the places of the rules and of their keys: TOML's parser does not tell them."""
        places: list[dict[str, Span]] = []
        inside = False
        for number, line in enumerate(self.text.splitlines(), 1):
            if HEADER.match(line):
                places.append({"rule": self.line(number)})
                inside = True
            elif TABLE.match(line):
                inside = False
            elif inside and (key := re.match(r"\s*(\w+)\s*=", line)):
                places[-1].setdefault(key[1], self.line(number))
        return places

    def _at(self, word: str) -> Span:
        """Return the line of an entry of the whole map."""
        lines = enumerate(self.text.splitlines(), 1)
        return next(
            (self.line(i) for i, line in lines if re.match(rf"\s*\[?\s*{word}\b", line)), self.line(1)
        )

    def _known(self, table: Mapping[str, Any], known: Sequence[str], span: Span) -> None:
        """Report keys of a table that a map of weights does not have."""
        for key in table:
            if key not in known:
                help = did_you_mean(key, known, f"known are {', '.join(known)}")
                self.error(f"a map of weights has no `{key}` here", span, help)

    def _texts(self, value: Any, key: str, span: Span) -> tuple[str, ...] | None:
        """Return one text or a list of texts."""
        found = [value] if isinstance(value, str) else value
        if isinstance(found, list) and all(isinstance(each, str) and each.strip() for each in found):
            return tuple(found)
        self.error(f"`{key}` is a text, or a list of texts", span)
        return None

    # Rules

    def _rule(self, rule: Any, spans: Mapping[str, Span], prefix: str) -> Rule | None:
        """Return a rule, whose names may begin with the prefix; None if it cannot be read."""
        self._known(rule, ("theirs", "ours", "dims", "join"), spans["rule"])
        lacking = [key for key in ("theirs", "ours") if not rule.get(key)]
        if lacking:
            self.error(f"this rule lacks `{lacking[0]}`", spans["rule"])
            return None
        theirs = self._texts(rule["theirs"], "theirs", spans.get("theirs", spans["rule"]))
        ours = self._texts(rule["ours"], "ours", spans.get("ours", spans["rule"]))
        if theirs is None or ours is None:
            return None
        dims = self._dims(rule.get("dims"), len(ours), spans.get("dims", spans["rule"]))
        if len({holes(pattern) for pattern in theirs}) > 1:
            self.error("the names of `theirs` have different `{...}`", spans["theirs"])
        names = (*(prefix + name for name in theirs), *theirs) if prefix else theirs
        return Rule(names, ours, dims, self._join(rule, len(ours), spans), spans)

    def _join(self, rule: Mapping[str, Any], number: int, spans: Mapping[str, Span]) -> int:
        """Return the axis along which `number` parameters are joined in one tensor; report a wrong or missing one."""
        join = rule.get("join", 0)
        if isinstance(join, bool) or not isinstance(join, int) or join < 0:
            self.error("`join` is the number of an axis of their tensor, from 0 on", spans["join"])
        elif number > 1 and "join" not in rule:
            help = "`join = 0` joins them along the first axis of their tensor"
            self.error("several parameters in one tensor need `join`", spans["rule"], help)
        return int(join) if isinstance(join, int) else 0

    def _dims(self, value: Any, number: int, span: Span) -> tuple[Axes | None, ...]:
        """Return the axes that `dims` gives each of `number` parameters: one entry is for all of them, None if there is none."""
        if value is None:
            return (None,) * number
        texts = self._texts(value, "dims", span) or ()
        if len(texts) not in (1, number):
            self.error(f"`dims` has {len(texts)} entries, and `ours` {number}", span)
        axes = [self._axes(text, span) for text in texts]
        return tuple(axes * number if len(axes) == 1 else (axes + [None] * number)[:number])

    def _axes(self, text: str, span: Span) -> Axes | None:
        """Parse `(heads d_k) d_model 1`."""
        pieces = re.findall(r"\([^()]*\)|[^\s()]+|[()]", text)
        axes = [tuple(piece.strip("()").split()) if piece != "1" else () for piece in pieces]
        wrong = [name for axis in axes for name in axis if not NAME.fullmatch(name)]
        if wrong or any(piece in "()" for piece in pieces):
            example = 'an axis is a dimension, 1, or several dimensions: "(heads d_k) d_model"'
            self.error(f"`dims` cannot be read: `{text}`", span, example)
            return None
        return tuple(axes)

    # Other tables

    def _split(self, table: Any) -> dict[str, tuple[tuple[str, int | None], ...]]:
        """Return dimension -> its parts, each with its size; the size of one part may be left out."""
        found = {}
        for name, value in table.items() if isinstance(table, dict) else ():
            pieces = value.split() if isinstance(value, str) else []
            parts = [re.fullmatch(r"([^\W\d]\w*)(?:=(\d+))?", piece) for piece in pieces]
            sizes = [(part[1], int(part[2]) if part[2] else None) for part in parts if part]
            if len(sizes) < max(2, len(parts)) or sum(size is None for _, size in sizes) > 1:
                example = (
                    f'the parts of `{name}`, the major one first, all but one with a size: "half=2 pair"'
                )
                self.error(f"`split` of `{name}` cannot be read", self._at("split"), example)
            found[str(name)] = tuple(sizes)
        if not isinstance(table, dict):
            self.error("`split` is a table: a dimension and its parts", self._at("split"))
        return found

    def _metadata(self, table: Any) -> dict[str, str]:
        """Return the table `metadata`; report anything but texts."""
        if isinstance(table, dict) and all(isinstance(value, str) for value in table.values()):
            return dict(table)
        self.error("`metadata` is a table of texts", self._at("metadata"))
        return {}
