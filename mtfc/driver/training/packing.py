"""Documents of any length as rows of tokens: one document after the other, cut where a row is full, or whole documents.

Grain packs. Whole documents come into the first of some rows that has room, and the ends of rows stay empty. The rows of a step
depend on the order of the documents alone: each process packs them all, and keeps its own rows. So a position has a meaning for
any number of processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.backends.common.shares import Share
from mtfc.driver.data.array_files import Array
from mtfc.driver.data.fitting import shape_text
from mtfc.driver.data.packages import import_package
from mtfc.driver.data.tokenizers import Tokenizer
from mtfc.driver.errors import UsageError
from mtfc.driver.training.data_interface import (
    AHEAD,
    BatchIterator,
    DataInput,
    Order,
    Position,
    PositionedIterator,
)
from mtfc.driver.training.record_files import Records

SEGMENT_IDS, POSITIONS = "_segment_ids", "_positions"
"""The ends of the names of inputs that say to which document of its row a token belongs, from 1, and where it is in there."""

BINS = 64
"""The number of rows in which room is looked for: with more of them less stays empty, and more memory is taken."""

THREADS = 2
"""The number of threads that read documents and turn text into tokens."""


@attrs.frozen(eq=False)
class Documents:
    """The documents of one or several files, numbered one file after the other. input: takes the tokens."""

    files: tuple[Records, ...]
    input: DataInput
    tokenizer: Tokenizer | None

    @property
    def count(self) -> int:
        return sum(file.count for file in self.files)

    def tokens(self, number: int) -> Array:
        """Return the tokens of a document. Raises `CompileError` (E504) and `UsageError`."""
        file, within = self._file(number)
        found = self._encoded(file.read(within), file.place(within))
        return self.input.converted(found[None], lambda _: file.place(within))[0]

    def place(self, number: int) -> str:
        """Return the place of a document, for a message."""
        file, within = self._file(number)
        return file.place(within)

    def _file(self, number: int) -> tuple[Records, int]:
        """Return the file that has a document, and the number of the document there."""
        import numpy as np

        ends = np.cumsum([file.count for file in self.files])
        which = int(np.searchsorted(ends, number, side="right"))
        return self.files[which], number - int(ends[which]) + self.files[which].count

    def _encoded(self, document: Any, place: str) -> Array:
        import numpy as np

        if isinstance(document, str):
            if self.tokenizer is None:
                raise UsageError(f"{place} is text: name the file of a tokenizer with --tokenizer")
            return self.tokenizer.encode(document)
        try:
            tokens = np.asarray(document) if isinstance(document, (list, np.ndarray)) else None
        except ValueError:  # lists of several lengths
            tokens = None
        if tokens is None or tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise UsageError(f"{place}: expected a text, or a list of tokens, which are whole numbers")
        return tokens.astype(np.int64) if not tokens.size else tokens


def tokens_input(name: str, inputs: Sequence[DataInput]) -> DataInput:
    """Return the input that takes packed tokens. Raises `UsageError` if the model has others than those of packing."""
    found = [each for each in inputs if not each.name.endswith((SEGMENT_IDS, POSITIONS))]
    if len(found) == 1 and len(found[0].shape) == 2 and found[0].type.dtype in ("i32", "u32"):
        others = {f"{found[0].name}{end}" for end in (SEGMENT_IDS, POSITIONS)}
        rest = [each for each in inputs if each is not found[0]]
        if all(each.name in others and each.type == found[0].type for each in rest):
            return found[0]
    given = ", ".join(f"{each.name}: {shape_text(each.type)}" for each in inputs)
    raise UsageError(
        f"{name} holds documents, for a model with an input such as tokens: i32[batch, length], and optionally"
        f" tokens{SEGMENT_IDS} and tokens{POSITIONS} of the same type; this model has {given}"
    )


@attrs.frozen(eq=False)
class PackedSource:
    """Rows of packed documents, `accumulate` global batches a step. is_whole: a document is cut only if a row is too short."""

    name: str
    documents: Documents
    inputs: Sequence[DataInput]
    accumulate: int
    orders: Callable[[int | None], Order]
    identity: Mapping[str, Any]
    is_whole: bool = False

    @property
    def steps_per_epoch(self) -> None:
        """Unknown: the documents would have to be read."""
        return None

    def check_end(self) -> None:
        """Raise `UsageError` if the documents have no end."""
        self.orders(None)

    @property
    def rows(self) -> int:
        """Number of rows in a step."""
        return self.documents.input.rows * self.accumulate

    def description(self) -> str:
        length = self.documents.input.shape[1]
        kind = "whole documents" if self.is_whole else "documents"
        return f"{self.name}: {self.documents.count} {kind}, packed into rows of {length} tokens"

    def batches(self, share: Share, seed: int | None, start: Position | None = None) -> BatchIterator:
        grain = import_package("grain", "grain")
        order, tokens = self.orders(seed), self.documents.input
        reads = DocumentReads(self.documents, order)
        numbers = grain.MapDataset.range(self.documents.count if seed is None else sys.maxsize)
        documents = (
            numbers.map(reads)
            .filter(_has_tokens)
            .to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=8 * THREADS))
        )
        lengths = {tokens.name: tokens.shape[1]}
        if self.is_whole:
            pieces = grain.experimental.FlatMapIterDataset(documents, Pieces(tokens.name, tokens.shape[1]))
            packed = grain.experimental.FirstFitPackIterDataset(
                pieces, length_struct=lengths, num_packing_bins=BINS, shuffle_bins=False
            )
        else:
            packed = grain.experimental.ConcatThenSplitIterDataset(documents, length_struct=lengths)
            packed = packed.filter(IsFull(tokens.name))
        steps = packed.batch(self.rows, drop_remainder=True).map(
            PackedRows(self.inputs, self.accumulate, share)
        )
        iterator = grain.experimental.ThreadPrefetchDatasetIterator(iter(steps), AHEAD)
        if start is not None:
            start = {**start, "iterator": _with_tuples(start.get("iterator"))}
        return PositionedIterator.at(iterator, {**self.identity, "seed": seed}, start, self.name)

    def places(self, position: Position, seed: int | None) -> str:
        reads = DocumentReads(self.documents, self.orders(seed))
        number = reads.number(_next_document(position["iterator"]))
        return f"rows of packed documents, up to about {self.documents.place(number)}"


def _next_document(state: Any) -> int:
    """Return the position of the document that packing reads next, from a state of grain's iterators."""
    inner = next((state[name] for name in ("parent_state", "parent") if name in state), None)
    return int(state["next_index"]) if inner is None else _next_document(inner)


@attrs.frozen(eq=False)
class DocumentReads:
    """Reads the document at a position, counted from the start of training."""

    documents: Documents
    order: Order

    def __call__(self, position: int) -> dict[str, Array]:
        return {self.documents.input.name: self.documents.tokens(self.number(position))}

    def number(self, position: int) -> int:
        """Return the number of the document at a position."""
        import numpy as np

        return int(self.order.numbers(np.array([position]))[0])


def _has_tokens(document: Mapping[str, Array]) -> bool:
    return all(tokens.size for tokens in document.values())


@attrs.frozen
class Pieces:
    """Cuts a document that is longer than a row, as a transformation of grain. length: of a row."""

    name: str
    length: int
    max_fan_out: int = sys.maxsize

    def flat_map(self, document: Mapping[str, Array]) -> list[dict[str, Array]]:
        tokens = document[self.name]
        return [{self.name: tokens[at : at + self.length]} for at in range(0, len(tokens), self.length)]


@attrs.frozen
class IsFull:
    """Tells if a row has tokens to its end; only the last row of a pass has not."""

    name: str

    def __call__(self, row: Mapping[str, Array]) -> bool:
        return bool(row[self.name + SEGMENT_IDS][-1])


@attrs.frozen(eq=False)
class PackedRows:
    """Takes this process's rows of each input from the packed rows of a step."""

    inputs: Sequence[DataInput]
    accumulate: int
    share: Share

    def __call__(self, step: Mapping[str, Array]) -> dict[str, Array]:
        return {each.name: self._rows(each, step[each.name]) for each in self.inputs}

    def _rows(self, input: DataInput, array: Array) -> Array:
        import numpy as np

        batches = array.reshape(self.accumulate, input.rows, -1)
        rows = batches[:, self.share.rows(input.name, input.rows)]
        found = input.converted(rows, lambda _: "a packed row")
        return np.ascontiguousarray(found[0] if self.accumulate == 1 else found)


def _with_tuples(state: Any) -> Any:
    """Return a state of grain as it was before JSON made lists of its tuples, with which grain compares them."""
    if isinstance(state, Mapping):
        return {name: _with_tuples(value) for name, value in state.items()}
    return tuple(map(_with_tuples, state)) if isinstance(state, list) else state
