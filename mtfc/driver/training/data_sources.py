"""The data of a training run: batches for one process, from files, mixtures of files, or a Python function.

The order of examples depends on the seed alone, so all processes and layouts agree on the global batch, and each process reads
its own rows only. Grain mixes sources, reads ahead in threads, and counts the steps that were handed out. The position in the
data is the number of the next step, for any number of processes.

Documents of any length become rows of tokens: one document after the other, cut where a row is full, or whole documents. Grain
packs. Whole documents come into the first of some rows that has room, and the ends of rows stay empty. The rows of a step depend
on the order of the documents alone: each process packs them all, and keeps its own rows.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np

from mtfc.backends.common.shares import Ranges, Share
from mtfc.compiler.diagnostics import did_you_mean
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import FLOATS
from mtfc.driver.data.array_files import Array
from mtfc.driver.data.files import with_local_copies
from mtfc.driver.data.inputs import DataInput, data_inputs, shape_text, stacked
from mtfc.driver.data.packages import import_package
from mtfc.driver.data.tokenizers import Tokenizer
from mtfc.driver.errors import UsageError, raised_as, similar_path
from mtfc.driver.training.data_interface import (
    AHEAD,
    BatchIterator,
    ExampleOrder,
    MixedOrder,
    Order,
    Position,
    UserSource,
    place_in,
)
from mtfc.driver.training.example_files import (
    ARRAY_RECORD,
    JSON_LINES,
    PARQUET,
    RECORDS,
    TEXT,
    TOKEN_DTYPES,
    DataPart,
    Examples,
    Records,
    first_tf_example,
    joined,
    open_examples,
    open_records,
    shards,
)
from mtfc.driver.training.user_code import FUNCTION, imported_function

SHUFFLE = 2
"""The number of the rule that orders examples: a position in one order has no meaning in another."""

THREADS = 2
"""The number of threads that read examples from files, or documents, and turn text into tokens."""


def open_source(
    spec: str,
    program: Program,
    accumulate: int = 1,
    tokenizer: str | None = None,
    takes_rest: bool = False,
    whole_documents: bool = False,
) -> DataSource:
    """Open data for the undistributed model. Raises `CompileError` (E501 to E504, E506), `UsageError` and `Unavailable`.

    spec: a file `.npz`, `.npy`, `.parquet`, `.jsonl` or `.array_record`, `NAME=FILE.npy,...` for several inputs, `FILE:DTYPE` for
    a file of tokens, a directory of such files, several of these with weights, as in `a.npz@3,b.npz@1`, or `MODULE:FUNCTION`.
    accumulate: the number of micro-batches of a step. tokenizer: the file of a tokenizer, for text.
    Paths may be remote. takes_rest: the data has an end, and may have fewer examples than a step takes. whole_documents: a
    document is cut only if it is longer than a row.
    """
    inputs = data_inputs(program.function("forward"))
    if not inputs:
        raise UsageError(f"model {program.name} has no inputs: leave out --data")
    if _is_function(spec):
        function = imported_function(spec, "", "a function that returns batches")
        return UserSource(spec, function, inputs, accumulate, takes_rest)
    spec = with_local_copies(spec)
    opened = Tokenizer.open(with_local_copies(tokenizer)) if tokenizer is not None else None
    with raised_as(UsageError, spec):
        source = _opened(spec, inputs, accumulate, opened)
    if whole_documents and isinstance(source, PackedSource):
        source = _of_whole_documents(source)
    if takes_rest:
        source.order(None)  # a mixture has no end
        if not isinstance(source, FileSource) or source.examples.count:
            return source
    return source.checked() if isinstance(source, FileSource) else source


def _is_function(spec: str) -> bool:
    """Return True for `MODULE:FUNCTION`, and False for a file of tokens such as `tokens.bin:uint16`."""
    match = FUNCTION.fullmatch(spec)
    return match is not None and match[2] not in TOKEN_DTYPES and not Path(match[1]).exists()


def check_documents(option: str, source: DataSource, whole_documents: bool) -> None:
    """Raise `UsageError` if whole documents are asked for, and an option names none."""
    if whole_documents and not isinstance(source, PackedSource):
        raise UsageError(f"--whole-documents is about documents, and {option} has none")


def _of_whole_documents(source: PackedSource) -> PackedSource:
    """Return a source that fills up rows. Raises `UsageError` if the model cannot tell the empty ends of rows."""
    name = source.documents.input.name
    if not any(each.name.endswith((SEGMENT_IDS, POSITIONS)) for each in source.inputs):
        raise UsageError(
            f"--whole-documents leaves the ends of rows empty, and the loss must leave them out: give the model the input"
            f" {name}{SEGMENT_IDS}, which is 0 there, or {name}{POSITIONS}"
        )
    return attrs.evolve(source, is_whole=True, identity={**source.identity, "whole_documents": BINS})


WEIGHTED = re.compile(r"(.+?)@(\d+(?:\.\d+)?|\.\d+)(?:,|$)")
"""A source of a mixture and its weight."""


OTHER_WEIGHT = re.compile(r"@(?!\d+(?:\.\d+)?(?:,|$)|\.\d+(?:,|$))([^,/]*)(?:,|$)")
"""A weight that is no number."""


def _weighted(spec: str) -> list[tuple[str, float]]:
    """Return the sources of a mixture with their weights, or a single source. Raises `UsageError`."""
    matches = list(WEIGHTED.finditer(spec))
    if len(matches) > 1 and "".join(match[0] for match in matches) == spec:
        return [(match[1], float(match[2])) for match in matches]
    other = OTHER_WEIGHT.search(spec) if "," in spec and not Path(spec).exists() else None
    if other is not None:
        raise UsageError(f"{spec}: the weight of a source is a number such as 3 or 0.5, and not `{other[1]}`")
    return [(spec, 1.0)]


def _opened(
    spec: str, inputs: Sequence[DataInput], accumulate: int, tokenizer: Tokenizer | None
) -> FileSource | PackedSource:
    """Open files: a single source, or several with weights."""
    weighted = _weighted(spec)
    if not all(weight for _, weight in weighted):
        raise UsageError(f"{spec}: the weights of a mixture are numbers above 0")
    parts = [_part(name, weight, tokenizer) for name, weight in weighted]
    files = [file for part in parts for file in part.files]
    repeated = [file for file, count in Counter(files).items() if count > 1]
    if repeated:
        raise UsageError(f"{spec} names {repeated[0]} twice: give it once, with the sum of the weights")
    kinds = {_are_documents(part, inputs, tokenizer) for part in parts}
    if len(kinds) > 1:
        raise UsageError(f"{spec} mixes documents and examples: give only documents, or only examples")
    if kinds == {True}:
        return _packed(spec, parts, inputs, accumulate, tokenizer)
    if tokenizer is not None:
        if any(file.endswith((".npz", ".npy", ".bin")) for file in files):
            raise UsageError(f"--tokenizer is for text, and {spec} has arrays or tokens: leave it out")
        _check_vocabulary(tokenizer, inputs[0])
    examples = [open_examples(part, inputs, tokenizer) for part in parts]
    named = [attrs.evolve(part, name=part.path) for part in parts]  # without the dtype of tokens
    mixture = Mixture.of(named, [each.count for each in examples])
    identity = {} if tokenizer is None else {"tokenizer": tokenizer.fingerprint}
    whole = joined(examples, spec) if len(examples) > 1 else examples[0]
    return FileSource(whole, inputs, accumulate, mixture, identity)


def _part(name: str, weight: float, tokenizer: Tokenizer | None) -> DataPart:
    """Find the files of a source. Raises `UsageError`."""
    path, dtype = _location(name, tokenizer)
    return DataPart(name, weight, path, dtype, shards(path, dtype, tokenizer is not None))


def _are_documents(part: DataPart, inputs: Sequence[DataInput], tokenizer: Tokenizer | None) -> bool:
    """Return True if a source has documents to pack, rather than an example in each row."""
    path, is_packed = part.files[0], any(each.name.endswith(SEGMENT_IDS) for each in inputs)
    if path.endswith(ARRAY_RECORD):
        return tokenizer is not None or part.dtype is not None or (is_packed and _has_tf_documents(path))
    return path.endswith(JSON_LINES) or (path.endswith(PARQUET) and (tokenizer is not None or is_packed))


def _has_tf_documents(path: str) -> bool:
    """Return True if the records are a `tf.train.Example` with tokens that are not packed yet."""
    features = first_tf_example(path)
    return features is not None and not any(name.endswith(SEGMENT_IDS) for name in features)


def _packed(
    spec: str,
    parts: Sequence[DataPart],
    inputs: Sequence[DataInput],
    accumulate: int,
    tokenizer: Tokenizer | None,
) -> PackedSource:
    """Open documents, and read the first one that has tokens."""
    input = tokens_input(spec, inputs)
    if tokenizer is not None:
        _check_vocabulary(tokenizer, input)
    key = TEXT if tokenizer is not None else input.name
    opened = [[open_records(file, part.dtype, key) for file in part.files] for part in parts]
    mixture = Mixture.of(parts, [sum(each.count for each in records) for records in opened])
    documents = Documents(tuple(each for records in opened for each in records), input, tokenizer)
    if not any(documents.tokens(number).size for number in range(documents.count)):
        raise UsageError(f"{spec} has no document with tokens")
    identity = {"documents": mixture.counts, "length": input.shape[1], "shuffle": SHUFFLE, **mixture.identity}
    if tokenizer is not None:
        identity["tokenizer"] = tokenizer.fingerprint
    rows = {"rows": input.rows * accumulate}
    return PackedSource(spec, documents, inputs, accumulate, mixture.order, {**identity, **rows})


def _check_vocabulary(tokenizer: Tokenizer, input: DataInput) -> None:
    """Raise `UsageError` if the model has fewer tokens than the tokenizer."""
    if input.bound is not None and tokenizer.size > input.bound:
        raise UsageError(
            f"{tokenizer.path} has {tokenizer.size} tokens, and input `{input.name}` takes numbers below {input.bound}:"
            " give the model a larger vocabulary, with --dim or in the file"
        )


def _location(spec: str, tokenizer: Tokenizer | None) -> tuple[str, str | None]:
    """Return the path and the dtype of tokens of a specification of files. Raises `UsageError`."""
    path, colon, dtype = spec.rpartition(":")
    if colon and dtype in TOKEN_DTYPES:
        if tokenizer is not None:
            raise UsageError(f"--tokenizer is for text, and {spec} has tokens: leave it out")
        return path, dtype
    if Path(spec).is_dir() or Path(spec).suffix in (
        ".npz",
        ".npy",
        *RECORDS,
    ):  # `NAME=FILE.npy,...` ends so, too
        return spec, None
    if colon and Path(path).is_file():
        help = did_you_mean(dtype, TOKEN_DTYPES, f"expected one of {', '.join(TOKEN_DTYPES)}")
        raise UsageError(f"{spec}: unknown dtype {dtype} of tokens; {help}")
    if Path(spec).is_file():
        if tokenizer is not None:
            return spec, None
        raise UsageError(
            f"{spec}: give the dtype of its tokens, as in {spec}:uint16, or for text a --tokenizer"
        )
    raise UsageError(f"{spec}: no such file or directory{similar_path(spec) or f'; {FORMS}'}")


FORMS = (
    "expected a file .npz, .npy, .parquet, .jsonl or .array_record, NAME=FILE.npy,... for several inputs, FILE:DTYPE for"
    " tokens such as tokens.bin:uint16, a text with --tokenizer, a directory of such files, DATA@WEIGHT,DATA@WEIGHT for a"
    " mixture, or MODULE:FUNCTION"
)


@attrs.frozen
class Mixture:
    """The sources of data with their numbers of examples or documents; one source has no weight."""

    parts: Sequence[DataPart]
    counts: list[int]

    @classmethod
    def of(cls, parts: Sequence[DataPart], counts: list[int]) -> Mixture:
        """Return a mixture. Raises `UsageError` if one of several sources is empty."""
        if len(parts) > 1 and 0 in counts:
            raise UsageError(f"{parts[counts.index(0)].name} is empty: leave it out of the mixture")
        return cls(parts, counts)

    @property
    def weights(self) -> list[float]:
        return [part.weight for part in self.parts]

    @property
    def is_single(self) -> bool:
        return len(self.counts) == 1

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that give a position in the data its meaning, ready for JSON."""
        return {} if self.is_single else {"sources": self.counts, "weights": self.weights}

    def order(self, seed: int | None, taken: int | None = None) -> Order:
        """Return the order of the examples. Raises `UsageError` for a mixture without a seed, which has no end.

        taken: the number of examples that an epoch of a single source takes.
        """
        if self.is_single:
            return ExampleOrder(self.counts[0], seed, taken)
        if seed is None:
            raise UsageError(
                f"an evaluation takes no mixture, which has no end: give {' or '.join(part.name for part in self.parts)}"
            )
        return MixedOrder.of(self.counts, self.weights, seed)

    def description(self) -> str:
        """Return the sources with their sizes and shares."""
        whole = sum(self.weights)
        return ", ".join(
            f"{part.weight / whole:.1%} of {part.name} ({count})"
            for part, count in zip(self.parts, self.counts, strict=True)
        )


@attrs.frozen(eq=False)
class FileSource:
    """Examples of files, `accumulate` global batches a step."""

    examples: Examples
    inputs: Sequence[DataInput]
    accumulate: int
    mixture: Mixture
    identity: Mapping[str, Any]

    @property
    def per_step(self) -> int:
        """Number of examples in a step."""
        return self.examples.dim.size * self.accumulate

    @property
    def steps_per_epoch(self) -> int | None:
        return self.whole_steps if self.mixture.is_single else None

    @property
    def whole_steps(self) -> int:
        """Number of steps with all their examples in one pass."""
        return self.examples.count // self.per_step

    @property
    def rest(self) -> int:
        """Number of examples after the last whole step."""
        return self.examples.count % self.per_step

    def rest_batch(self, share: Share, inputs: Sequence[DataInput]) -> dict[str, Array]:
        """Return this process's rows of the examples after the last whole step of one batch, for a model with these inputs."""
        order = ExampleOrder(self.examples.count, None)
        return attrs.evolve(self, inputs=inputs)._batch(share, order, self.whole_steps)

    def checked(self) -> FileSource:
        """Return this source. Raises `UsageError` if it has too few examples for one step."""
        if self.steps_per_epoch == 0:
            size, dim = self.examples.dim.size, self.examples.dim.name
            batches = (
                f"{self.accumulate} batches of {dim} = {size}" if self.accumulate > 1 else f"{dim} = {size}"
            )
            if not self.examples.count:
                raise UsageError(f"{self.examples.name} has no examples")
            raise UsageError(
                f"{self.examples.name} has {self.examples.count} examples, and a step takes {batches}:"
                f" give more data, or a smaller batch with --dim {dim}=N"
            )
        return self

    def description(self) -> str:
        """Return the numbers of examples and of steps, and of the examples that an epoch leaves out."""
        count, steps = self.examples.count, self.steps_per_epoch
        if steps is None:
            return f"a mixture of examples without end: {self.mixture.description()}"
        rest = count - steps * self.per_step
        left = f"; {rest} are left out of each epoch, too few for a step" if rest else ""
        return f"{self.examples.name}: {count} examples, {steps} step{'s'[: steps - 1]} an epoch{left}"

    def batches(self, share: Share, seed: int | None, start: Position | None = None) -> BatchIterator:
        """Return the batches from a position on, read ahead in threads. Without a seed they end after one pass."""
        grain = import_package("grain", "grain")
        reads = partial(self._step, share, self.order(seed))
        steps = self.steps_per_epoch if seed is None else sys.maxsize
        options = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=AHEAD)
        iterator = iter(grain.MapDataset.range(steps).map(reads).to_iter_dataset(options))
        order = {"examples": self.examples.count, "per_step": self.per_step, "seed": seed, "shuffle": SHUFFLE}
        order |= {**self.mixture.identity, **self.identity}
        return BatchIterator.at(iterator, order, start, self.examples.name)

    def order(self, seed: int | None) -> Order:
        """Return the order of the examples. Raises `UsageError` for a mixture without a seed, which has no end."""
        return self.mixture.order(seed, self.whole_steps * self.per_step)

    def places(self, position: Position, seed: int | None) -> str:
        """Return where the examples of a batch stand.

        If some of their numbers are not finite, name the input and those examples alone.
        """
        step = position["iterator"]["next_index"] - 1
        numbers = self.order(seed).numbers(step * self.per_step + np.arange(self.per_step))
        for each in self.inputs:
            has_rows = each.name not in self.examples.constants and each.rows == self.examples.dim.size
            if each.type.dtype in FLOATS and has_rows:
                rows = self.examples.read(each, numbers).reshape(len(numbers), -1)
                if not (finite := np.isfinite(rows).all(axis=1)).all():
                    bad = self.examples.places(numbers[~finite])
                    return f"`{each.name}` has numbers that are not finite in {bad}"
        return self.examples.places(numbers)

    def _step(self, share: Share, order: Order, step: int) -> dict[str, Array]:
        """Return this process's rows of a step, counted from 0."""
        count = self.accumulate
        return stacked([self._batch(share, order, step * count + i) for i in range(count)])

    def _batch(self, share: Share, order: Order, number: int) -> dict[str, Array]:
        """Return this process's rows of a global batch; `number` counts from the start of training."""
        examples = self.examples
        known: dict[Ranges, Array] = {}  # inputs mostly have the same rows
        batch = {}
        for each in self.inputs:
            rows = share.rows(each.name, each.rows)
            if each.name in examples.constants:
                constant = examples.constants[each.name]
                batch[each.name] = constant[rows] if each.shape else constant
                continue
            ranges = share.ranges_of(each.name, each.rows)
            if ranges not in known:
                known[ranges] = order.numbers(number * examples.dim.size + rows)
            batch[each.name] = examples.read(each, known[ranges])
        return batch


# Documents

SEGMENT_IDS, POSITIONS = "_segment_ids", "_positions"
"""The ends of the names of inputs that say to which document of its row a token belongs, from 1, and where it is in there."""

BINS = 64
"""The number of rows in which room is looked for: with more of them less stays empty, and more memory is taken."""


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
        which, within = place_in(np.cumsum([0, *(file.count for file in self.files)]), number)
        return self.files[which], within

    def _encoded(self, document: Any, place: str) -> Array:
        """Return the tokens of a document, which is a text or a list of tokens. place: the name of the document in messages."""
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
    order: Callable[[int | None], Order]
    identity: Mapping[str, Any]
    is_whole: bool = False

    steps_per_epoch: ClassVar[None] = None
    """Unknown: the documents would have to be read."""

    @property
    def rows(self) -> int:
        """Number of rows in a step."""
        return self.documents.input.rows * self.accumulate

    def description(self) -> str:
        length = self.documents.input.shape[1]
        kind = "whole documents" if self.is_whole else "documents"
        return f"{self.name}: {self.documents.count} {kind}, packed into rows of {length} tokens"

    def batches(self, share: Share, seed: int | None, start: Position | None = None) -> BatchIterator:
        """Return the batches from a position on.

        Documents are packed into rows whole, or as one stream that is cut into rows.
        """
        grain = import_package("grain", "grain")
        name, length = self.documents.input.name, self.documents.input.shape[1]
        numbers = grain.MapDataset.range(self.documents.count if seed is None else sys.maxsize)
        documents = (
            numbers.map(partial(self._document, self.order(seed)))
            .filter(lambda document: bool(document[name].size))
            .to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=8 * THREADS))
        )
        lengths = {name: length}
        if self.is_whole:
            pieces = grain.experimental.FlatMapIterDataset(documents, Pieces(name, length))
            packed = grain.experimental.FirstFitPackIterDataset(
                pieces, length_struct=lengths, num_packing_bins=BINS, shuffle_bins=False
            )
        else:
            packed = grain.experimental.ConcatThenSplitIterDataset(documents, length_struct=lengths)
            packed = packed.filter(
                lambda row: bool(row[name + SEGMENT_IDS][-1])
            )  # the last of a pass is not full
        steps = packed.batch(self.rows, drop_remainder=True).map(partial(self._step, share))
        iterator = grain.experimental.ThreadPrefetchDatasetIterator(iter(steps), AHEAD)
        if start is not None:
            start = {**start, "iterator": _with_tuples(start.get("iterator"))}
        return BatchIterator.at(iterator, {**self.identity, "seed": seed}, start, self.name)

    def places(self, position: Position, seed: int | None) -> str:
        """Return about which documents a batch has: packing does not say exactly."""
        number = self._number(self.order(seed), _next_document(position["iterator"]))
        return f"rows of packed documents, up to about {self.documents.place(number)}"

    def _document(self, order: Order, position: int) -> dict[str, Array]:
        """Return the document at a position, counted from the start of training."""
        return {self.documents.input.name: self.documents.tokens(self._number(order, position))}

    def _number(self, order: Order, position: int) -> int:
        """Return the number of the document at a position of an order."""
        return int(order.numbers(np.array([position]))[0])

    def _step(self, share: Share, step: Mapping[str, Array]) -> dict[str, Array]:
        """Return this process's rows of each input from the packed rows of a step."""
        return {each.name: self._rows(share, each, step[each.name]) for each in self.inputs}

    def _rows(self, share: Share, input: DataInput, array: Array) -> Array:
        """Return this process's rows of an input from the packed rows of all micro-batches of a step."""
        batches = array.reshape(self.accumulate, input.rows, -1)
        rows = batches[:, share.rows(input.name, input.rows)]
        found = input.converted(rows, lambda _: "a packed row")
        return np.ascontiguousarray(found[0] if self.accumulate == 1 else found)


def _next_document(state: Any) -> int:
    """Return the position of the document that packing reads next, from a state of grain's iterators."""
    inner = next((state[name] for name in ("parent_state", "parent") if name in state), None)
    return int(state["next_index"]) if inner is None else _next_document(inner)


@attrs.frozen
class Pieces:
    """Cuts a document that is longer than a row, as a transformation of grain. length: the length of a row."""

    name: str
    length: int
    max_fan_out: int = sys.maxsize

    def flat_map(self, document: Mapping[str, Array]) -> list[dict[str, Array]]:
        tokens = document[self.name]
        return [{self.name: tokens[at : at + self.length]} for at in range(0, len(tokens), self.length)]


def _with_tuples(state: Any) -> Any:
    """Return a state of grain as it was before JSON made lists of its tuples, with which grain compares them."""
    if isinstance(state, Mapping):
        return {name: _with_tuples(value) for name, value in state.items()}
    return tuple(map(_with_tuples, state)) if isinstance(state, list) else state


DataSource = FileSource | PackedSource | UserSource
"""The data of `--data` or `--eval`.

- `steps_per_epoch`: the number of steps in one pass; None if it is unknown.
- `description`: a line for people: the number of examples and steps, and the examples that are left out.
- `batches`: the steps for one process. A seed shuffles the examples, in another order each epoch, without end. None gives one
  pass in the order of the data. `start` is a position that `state` returned, of any process. Raises `UsageError`, and so does
  `next`; `next` also raises `CompileError`.
- `places`: the examples of the step before a position, in all processes, and their files, for a message.
"""
