"""Data of other kinds than arrays: records, text with a tokenizer, packed documents and mixtures; each resumes exactly."""

import gc
import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc.backends.common.shares import Share
from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.data.tokenizers import Tokenizer
from mtfc.driver.errors import UsageError
from mtfc.driver.training.data_sources import DataSource, open_source
from mtfc.driver.training.example_files import map_array_records, map_parquet, parse_tf_example
from tests.training.models import BATCH, CLASSIFIER, LENGTH, TOKENS, program, shares, steps, taken

PACKED = TOKENS.replace(
    "tokens: i32[batch, length]",
    "tokens: i32[batch, length], tokens_segment_ids: i32[batch, length], tokens_positions: i32[batch, length]",
).replace(
    "gather(w, tokens, vocab)", "gather(w, tokens, vocab) * cast(tokens_segment_ids + tokens_positions, f32)"
)

WORDS = ["to", "be", "or", "not", "that", "is"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of a tokenizer that knows six words, and begins each text with a special token."""
    package = pytest.importorskip("tokenizers")
    vocabulary = {"<s>": 0, "<unk>": 1, **{word: i for i, word in enumerate(WORDS, 2)}}
    found = package.Tokenizer(package.models.WordLevel(vocabulary, unk_token="<unk>"))
    found.pre_tokenizer = package.pre_tokenizers.Whitespace()
    found.add_special_tokens(["<s>"])
    found.post_processor = package.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    found.save(str(path))
    return str(path)


def documents(count: int, most: int = 13) -> list[list[int]]:
    """Return documents of several lengths, some empty, whose tokens tell the document."""
    numbers = np.random.default_rng(0)
    return [[i + 1] * int(numbers.integers(0, most)) for i in range(count)]


def write_json_lines(folder: Path, content: list[list[int]]) -> str:
    lines = [json.dumps({"tokens": each}) for each in content]
    (folder / "d.jsonl").write_text("\n".join([*lines[:3], "", " \t", *lines[3:]]) + "\n")
    return f"{folder}/d.jsonl"


def write_parquet(folder: Path, content: list[list[int]]) -> str:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"tokens": content})
    parquet.write_table(table, folder / "d.parquet", row_group_size=7)
    return f"{folder}/d.parquet"


def write_array_record(folder: Path, content: list[list[int]]) -> str:
    write_records(folder / "d.array_record", [np.array(each, "<u2").tobytes() for each in content])
    return f"{folder}/d.array_record:uint16"


def write_records(path: Path, records: list[bytes]) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for each in records:
        writer.write(each)
    writer.close()


def write_shards(folder: Path, content: list[list[int]]) -> str:
    (folder / "shards").mkdir()
    for name, part in (("0", content[:5]), ("1", []), ("2", content[5:])):
        (folder / "shards" / name).mkdir()
        Path(write_json_lines(folder / "shards" / name, part)).rename(folder / "shards" / f"{name}.jsonl")
        (folder / "shards" / name).rmdir()
    return f"{folder}/shards"


KINDS: dict[str, Callable[[Path, list[list[int]]], str]] = {
    "JSON lines": write_json_lines,
    "Parquet": write_parquet,
    "ArrayRecord": write_array_record,
    "shards": write_shards,
}


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_hold_each_document_in_order(tmp_path: Path, kind: str) -> None:
    content = documents(40)
    source = open_source(KINDS[kind](tmp_path, content), program(PACKED))
    batches = taken(source, 100, seed=None)
    rows = np.concatenate([batch["tokens"] for batch in batches])
    stream = [token for each in content for token in each]
    assert len(rows) == len(stream) // LENGTH // BATCH * BATCH > BATCH
    np.testing.assert_array_equal(rows.reshape(-1), stream[: rows.size])
    for batch in batches:
        for tokens, segments, positions in zip(*(batch[name] for name in SORTED), strict=True):
            starts = np.flatnonzero(np.diff(tokens, prepend=-1))
            np.testing.assert_array_equal(segments, np.searchsorted(starts, np.arange(LENGTH), side="right"))
            np.testing.assert_array_equal(positions, np.arange(LENGTH) - starts[segments - 1])
            assert {each.dtype for each in (tokens, segments, positions)} == {np.dtype(np.int32)}


SORTED = ("tokens", "tokens_segment_ids", "tokens_positions")


def test_whole_documents_are_cut_only_if_they_are_longer_than_a_row(tmp_path: Path) -> None:
    content = documents(160, 2 * LENGTH)
    data = write_json_lines(tmp_path, content)
    source = open_source(data, program(PACKED), whole_documents=True)
    rows = [
        row for batch in taken(source, 100, None) for row in zip(*(batch[n] for n in SORTED), strict=True)
    ]
    found: list[list[int]] = []
    for tokens, segments, positions in rows:
        used = int((segments > 0).sum())
        assert used and not any(x[used:].any() for x in (tokens, segments, positions))
        assert segments[:used].tolist() == sorted(segments[:used])
        for segment in range(1, int(segments.max()) + 1):
            found.append(tokens[segments == segment].tolist())
            assert positions[segments == segment].tolist() == list(range(len(found[-1])))
    pieces = [each[at : at + LENGTH] for each in content for at in range(0, len(each), LENGTH)]
    left = [each for each in pieces if each not in found]
    assert all(each in pieces for each in found) and len(found) + len(left) == len(pieces)
    assert sum(map(len, left)) < BATCH * LENGTH  # the rows of the last step that is not full
    assert sum(map(len, found)) / (len(rows) * LENGTH) > 0.9
    one_after_the_other = taken(open_source(data, program(PACKED)), 100, None)
    assert len(rows) // BATCH >= len(one_after_the_other)


def test_whole_documents_need_an_input_that_tells_empty_places(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--whole-documents leaves .* give the model the input tokens_segment_ids"
    ):
        open_source(write_json_lines(tmp_path, documents(9)), program(TOKENS), whole_documents=True)


def test_each_pass_has_each_document_once_in_another_order(tmp_path: Path) -> None:
    content = documents(40)
    source = open_source(write_json_lines(tmp_path, content), program(TOKENS))
    size = sum(map(len, content))
    batches = taken(source, 3 * size // (BATCH * LENGTH), seed=3)
    assert list(batches[0]) == ["tokens"], "a model without segments takes the tokens alone"
    stream = np.concatenate([batch["tokens"].reshape(-1) for batch in batches])
    passes = [stream[:size], stream[size : 2 * size]]
    for each in passes:
        assert sorted(each) == sorted(token for each in content for token in each)
    assert passes[0].tolist() != passes[1].tolist()


def mixed_examples(folder: Path) -> DataSource:
    for name, count, first in (("a", 9, 0), ("b", 30, 100)):
        rows = np.arange(first, first + count, dtype="<u2").repeat(LENGTH)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return open_source(f"{folder}/a.bin:uint16@1,{folder}/b.bin:uint16@3", program(TOKENS), 2)


def packed(folder: Path) -> DataSource:
    return open_source(write_parquet(folder, documents(30, 40)), program(PACKED), 2)


def mixed_documents(folder: Path) -> DataSource:
    for name in "ab":
        (folder / name).mkdir()
    first = write_json_lines(folder / "a", documents(15))
    second = write_array_record(folder / "b", [[200 + i] * 3 for i in range(7)])
    return open_source(f"{first}@1,{second}@0.5", program(PACKED))


def whole_documents(folder: Path) -> DataSource:
    return open_source(
        write_json_lines(folder, documents(60, 2 * LENGTH)), program(PACKED), 2, whole_documents=True
    )


ENDLESS = (mixed_examples, packed, mixed_documents, whole_documents)


@pytest.mark.parametrize("opened", ENDLESS)
def test_a_run_resumes_at_any_step_on_any_number_of_processes(
    tmp_path: Path, opened: Callable[[Path], DataSource]
) -> None:
    source = opened(tmp_path)
    whole = taken(source, 12, seed=2)
    for processes in (1, 2):
        share = shares(processes)[-1]
        names = dict.fromkeys(whole[0], share.ranges_of("tokens", BATCH))
        iterator = source.batches(Share(names), 2)
        states = [iterator.state()]
        for _ in range(9):
            next(iterator)
            states.append(iterator.state())
        iterator.close()
        for at, state in enumerate(json.loads(json.dumps(states))):
            if at in (0, 1, 2, 5, 9):
                rest = list(islice(steps(source, Share(), 2, state), 12 - at))
                for before, after in zip(whole[at:], rest, strict=True):
                    assert before.keys() == after.keys()
                    for name, array in before.items():
                        np.testing.assert_array_equal(after[name], array, strict=True)


@pytest.mark.parametrize("opened", ENDLESS)
def test_the_examples_of_a_step_are_named(tmp_path: Path, opened: Callable[[Path], DataSource]) -> None:
    source = opened(tmp_path)
    iterator = source.batches(Share(), 2)
    next(iterator)
    places = source.places(json.loads(json.dumps(iterator.state())), 2)
    iterator.close()
    if opened is mixed_examples:
        assert places.count(", ") == 15 and "of " + str(tmp_path / "a.bin") in places
    else:
        assert places.startswith("rows of packed documents, up to about document ")


@pytest.mark.parametrize("opened", ENDLESS)
def test_the_parts_of_processes_make_the_global_batch(
    tmp_path: Path, opened: Callable[[Path], DataSource]
) -> None:
    source = opened(tmp_path)
    (whole,) = taken(source, 1, seed=4)
    parts = []
    for share in shares(4):
        ranges = dict.fromkeys(whole, share.ranges_of("tokens", BATCH))
        parts += taken(source, 1, 4, Share(ranges))
    for name, array in whole.items():
        np.testing.assert_array_equal(
            np.concatenate([part[name] for part in parts], axis=-2), array, strict=True
        )


def test_a_mixture_has_its_weights(tmp_path: Path) -> None:
    source = mixed_examples(tmp_path)
    assert source.steps_per_epoch is None
    assert "25.0% of" in source.description() and "(9)" in source.description()
    rows = np.concatenate([batch["tokens"].reshape(-1, LENGTH) for batch in taken(source, 9, seed=0)])
    assert np.bincount(rows[:, 0] // 100).tolist() == [36, 108]
    first = rows[rows[:, 0] < 100, 0].reshape(4, 9)
    np.testing.assert_array_equal(np.sort(first), np.tile(np.arange(9), (4, 1)))


def test_text_becomes_tokens(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "corpus.txt").write_text("to be or not to be " * 20)
    source = open_source(f"{tmp_path}/corpus.txt", program(TOKENS), tokenizer=tokenizer)
    tokens = np.concatenate([batch["tokens"].reshape(-1) for batch in taken(source, 9, seed=None)])
    expected = [0, *([2, 3, 4, 5, 2, 3] * 20)]
    np.testing.assert_array_equal(tokens, expected[: len(tokens)])
    assert len(tokens) == 3 * BATCH * LENGTH


def test_documents_of_text_become_tokens(tmp_path: Path, tokenizer: str) -> None:
    texts = ["to be", "that is", "not or"] * 20
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": texts}), tmp_path / "b.parquet")
    write_records(tmp_path / "c.array_record", [each.encode() for each in texts])
    expected = [0, 2, 3, 0, 6, 7, 0, 5, 4] * 20
    for name in ("a.jsonl", "b.parquet", "c.array_record"):
        source = open_source(f"{tmp_path}/{name}", program(PACKED), tokenizer=tokenizer)
        tokens = np.concatenate([batch["tokens"].reshape(-1) for batch in taken(source, 9, seed=None)])
        np.testing.assert_array_equal(tokens, expected[: 4 * BATCH * LENGTH])


def test_a_tokenizer_is_a_part_of_the_position(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.txt").write_text("to be or not to be " * 20)
    other = tmp_path / "other.json"
    other.write_text(Path(tokenizer).read_text().replace('"that": 6', '"this": 6'))
    assert Tokenizer.open(str(other)).decode([6]) == "this"
    source, changed = (
        open_source(f"{tmp_path}/corpus.txt", program(TOKENS), tokenizer=each)
        for each in (tokenizer, str(other))
    )
    iterator = source.batches(Share(), 0)
    next(iterator)
    next(steps(changed, Share(), 0, iterator.state()))
    iterator.close()
    assert "the data has changed since the checkpoint (tokenizer " in capsys.readouterr().err


def test_columns_of_parquet_are_inputs(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    model = CLASSIFIER.replace(", scale: f32[io]", "").replace("x * scale", "x")
    x = np.arange(60, dtype=np.float64).reshape(20, 3)
    fixed = arrow.FixedSizeListArray.from_arrays(x.reshape(-1), 3)
    for column in (fixed, x.tolist()):
        table = arrow.table({"x": column, "labels": np.arange(20), "note": ["a"] * 20})
        parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
        first, second = taken(open_source(f"{tmp_path}/a.parquet", program(model)), 9, seed=None)
        np.testing.assert_array_equal(first["x"], x[:8].astype(np.float32), strict=True)
        np.testing.assert_array_equal(second["labels"], np.arange(8, 16, dtype=np.int32), strict=True)


def test_a_column_that_holds_no_array_is_named(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = {"rows without a value (null)": [1, None], "lists of several lengths": [[1], [1, 2]]}
    for expected, column in {**values, "values of the type string": ["a", "b"]}.items():
        parquet.write_table(arrow.table({"tokens": column}), tmp_path / "a.parquet")
        with pytest.raises(CompileError, match=f"its column `tokens` has {re.escape(expected)}"):
            map_parquet(f"{tmp_path}/a.parquet", ["tokens"])
        assert not map_parquet(f"{tmp_path}/a.parquet", ["x"])


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    writer = pytest.importorskip("array_record.python.array_record_module").ArrayRecordWriter
    path = f"{tmp_path}/a.array_record"
    file = writer(path, "group_size:1,uncompressed")
    for i in range(9):
        file.write(bytes([i]) * 100)
    file.close()
    content = bytearray(Path(path).read_bytes())
    content[content.index(bytes([5]) * 100) + 50] ^= 1
    Path(path).write_bytes(content)
    source = open_source(f"{path}:uint8", program(TOKENS))
    with pytest.raises(CompileError, match="record 5 is damaged"):
        taken(source, 40, seed=0)


def test_other_bytes_than_utf_8_are_told(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"to be \xff not " * 90)
    open_source(f"{tmp_path}/a.txt", program(TOKENS), tokenizer=tokenizer)
    assert "a.txt: byte 6 is no UTF-8" in capsys.readouterr().err


def test_records_of_arrays_are_examples(tmp_path: Path) -> None:
    model = CLASSIFIER.replace(", scale: f32[io]", "").replace("x * scale", "x")
    records = [npz(x=np.full(3, i, np.float32), labels=np.int64(i)) for i in range(20)]
    write_records(tmp_path / "a.array_record", records)
    source = open_source(f"{tmp_path}/a.array_record", program(model))
    (first, _) = taken(source, 2, seed=5)
    np.testing.assert_array_equal(first["x"], np.repeat(first["labels"][:, None], 3, 1))
    assert len(set(first["labels"].tolist())) == BATCH


def varint(number: int) -> bytes:
    number %= 1 << 64
    head = bytes([number & 127 | 128]) if number > 127 else b""
    return head + varint(number >> 7) if head else bytes([number])


def field(number: int, content: bytes) -> bytes:
    """Return a field of protocol buffers that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def tf_example(is_packed: bool = True, **features: Any) -> bytes:
    """Write a `tf.train.Example` by the rules of its wire format."""
    entries = b""
    for name, values in features.items():
        if isinstance(values, bytes):
            kind, content = 1, field(1, values)
        elif np.asarray(values).dtype.kind == "f":
            kind, content = 2, field(1, np.asarray(values, "<f4").tobytes())
        elif is_packed:
            kind, content = 3, field(1, b"".join(map(varint, values)))
        else:
            kind, content = 3, b"".join(varint(1 << 3) + varint(each) for each in values)
        entries += field(1, field(1, name.encode()) + field(2, field(kind, content)))
    return field(1, entries)


def test_tf_examples_are_examples(tmp_path: Path) -> None:
    """Features have no shapes; bytes are numbers; a feature that the model lacks is ignored."""
    model = CLASSIFIER.replace(", scale: f32[io]", "").replace("x * scale", "x")
    records = [
        tf_example(i % 2 == 0, x=[i, 0.5, -1.0], labels=[i], name=b"a name", none=b"") for i in range(20)
    ]
    write_records(tmp_path / "a.array_record", records)
    (first, second) = taken(open_source(f"{tmp_path}/a.array_record", program(model)), 2, seed=None)
    np.testing.assert_array_equal(first["labels"], np.arange(8, dtype=np.int32), strict=True)
    np.testing.assert_array_equal(second["x"][0], np.array([8, 0.5, -1.0], np.float32), strict=True)
    bytes_of = [tf_example(x=bytes([i, 200, 0]), labels=[299 - i]) for i in range(9)]
    write_records(tmp_path / "b.array_record", bytes_of)
    (first,) = taken(open_source(f"{tmp_path}/b.array_record", program(model)), 1, seed=None)
    np.testing.assert_array_equal(first["x"][3], np.array([3, 200, 0], np.float32), strict=True)
    write_records(tmp_path / "c.array_record", [tf_example(x=[1.0, 2.0], labels=[-1])] * 9)
    with pytest.raises(CompileError, match=r"its array in .*/c\.array_record has shape \[9, 2\]"):
        open_source(f"{tmp_path}/c.array_record", program(model))


def test_tf_examples_are_documents(tmp_path: Path) -> None:
    content = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [299] * 40]
    records = [tf_example(tokens=each) for each in content]
    write_records(tmp_path / "a.array_record", records)
    packed = taken(open_source(f"{tmp_path}/a.array_record", program(PACKED)), 1, seed=None)
    lines = taken(open_source(write_json_lines(tmp_path, content), program(PACKED)), 1, seed=None)
    for name in lines[0]:
        np.testing.assert_array_equal(packed[0][name], lines[0][name], strict=True)
    write_records(tmp_path / "b.array_record", [tf_example(other=[1, 2])])
    with pytest.raises(
        UsageError, match=r"expected a tf\.train\.Example with the feature `tokens`, and it has other"
    ):
        open_source(f"{tmp_path}/b.array_record", program(PACKED))


@pytest.mark.parametrize(
    "record", [b"", b"text\n", b"\n\x04text", b"\n\x00", field(1, field(1, b"\xff")), b"\x0a\xff\xff"]
)
def test_other_records_are_no_tf_example(record: bytes) -> None:
    assert not parse_tf_example(record)


def test_threads_read_records_of_arrays(tmp_path: Path) -> None:
    """Threads take turns all the time, and Python collects garbage while it parses headers."""
    write_records(tmp_path / "a.array_record", [npz(x=np.full(3, i, np.float32)) for i in range(8)])
    column = map_array_records(f"{tmp_path}/a.array_record", {})["x"]
    before, interval, turns = gc.get_threshold(), sys.getswitchinterval(), lambda phase, details: None
    gc.callbacks.append(turns)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda i: column[np.array([i % 8])][0, 0], range(6000)))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*before)
        gc.callbacks.remove(turns)
    assert found == [i % 8 for i in range(6000)]


def npz(**arrays: Any) -> bytes:
    from io import BytesIO

    np.savez(file := BytesIO(), **arrays)
    return file.getvalue()


def test_documents_without_tokens_do_not_hang(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no document with tokens"):
        open_source(write_json_lines(tmp_path, [[], [], []]), program(TOKENS))


UNEXPECTED = "document 0 of a.jsonl: expected a text, or a list of tokens"

ERRORS: dict[str, tuple[str, dict[str, str], bool, str]] = {
    "a line that is no object": ("a.jsonl", {"a.jsonl": "[1]\n"}, False, "line 1 of a.jsonl: expected an object with `tokens`"),
    "a key that is missing": ("a.jsonl", {"a.jsonl": '\n{"text": "be"}'}, False,
     "line 2 of a.jsonl: expected an object with `tokens`"),
    "text without a tokenizer": ("a.jsonl", {"a.jsonl": '{"tokens": "be"}'}, False,
     "document 0 of a.jsonl is text: name the file of a tokenizer with --tokenizer"),
    "fractions": ("a.jsonl", {"a.jsonl": '{"tokens": [1.5]}'}, False, UNEXPECTED),
    "a null": ("a.jsonl", {"a.jsonl": '{"tokens": null}'}, False, UNEXPECTED),
    "lists in lists": ("a.jsonl", {"a.jsonl": '{"tokens": [[1], [2, 3]]}'}, False, UNEXPECTED),
    "a large number": ("a.jsonl", {"a.jsonl": '{"tokens": [99999999999999999999999]}'}, False, UNEXPECTED),
    "a token out of range": ("a.jsonl", {"a.jsonl": '{"tokens": [7, 300]}'}, False,
     "input `tokens` takes numbers from 0 to 299, and document 0 of a.jsonl has 300"),
    "no file": ("lost.jsonl", {}, False, "lost.jsonl:1:1: E501: cannot read arrays: no such file or directory"),
    "no Parquet file": ("a.parquet", {"a.parquet": "no"}, False,
     "a.parquet:1:1: E501: cannot read arrays: it is no Parquet file"),
    "no ArrayRecord file": ("a.array_record", {"a.array_record": "no"}, False,
     "a.array_record:1:1: E501: cannot read arrays: it is no ArrayRecord file"),
    "an empty file": ("a.jsonl", {"a.jsonl": ""}, False, "a.jsonl has no document with tokens"),
    "a tokenizer for tokens": ("a.bin:uint8", {"a.bin": "no"}, True,
     "--tokenizer is for text, and a.bin:uint8 has tokens: leave it out"),
    "a tokenizer for arrays": ("a.npz", {"a.npz": "no"}, True,
     "--tokenizer is for text, and a.npz has arrays or tokens: leave it out"),
    "a weight of zero": ("a.bin:uint8@0,b.bin:uint8@1", {"a.bin": "", "b.bin": ""}, False,
     "the weights of a mixture are numbers above 0"),
    "a weight that is no number": ("a.bin:uint8@nan,b.bin:uint8@1", {"a.bin": "", "b.bin": ""}, False,
     "the weight of a source is a number such as 3 or 0.5, and not `nan`"),
    "one file twice": ("a.bin:uint8@1,a.bin:uint8@1", {"a.bin": "no"}, False, "names a.bin twice"),
    "an empty part": ("a.bin:uint8@1,b.bin:uint8@1", {"a.bin": "", "b.bin": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}, False,
     "a.bin is empty: leave it out"),
    "documents and examples": ("a.bin:uint8@1,b.jsonl@1",
     {"a.bin": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "b.jsonl": '{"tokens": [7]}'}, False,
     "mixes documents and examples"),
    "a part that is lost": ("a.bin:uint8@1,b.bin@1", {"a.bin": "no"}, False, "b.bin: no such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str, kind: str
) -> None:
    spec, files, has_tokenizer, expected = ERRORS[kind]
    monkeypatch.chdir(tmp_path)
    for path, content in files.items():
        Path(path).write_text(content)
    with pytest.raises((UsageError, CompileError)) as caught:
        opened = open_source(spec, program(TOKENS), tokenizer=tokenizer if has_tokenizer else None)
        taken(opened, 1, seed=0)
    assert expected in str(caught.value)


def test_a_model_of_other_inputs_takes_no_documents(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"documents, for a model with an input such as tokens: i32\[batch"):
        open_source(write_json_lines(tmp_path, [[1]]), program(CLASSIFIER))


def test_a_vocabulary_must_fit(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "a.txt").write_text("to be")
    small = program(TOKENS.replace("dim vocab = 300", "dim vocab = 7"))
    with pytest.raises(UsageError, match="has 8 tokens, and input `tokens` takes numbers below 7"):
        open_source(f"{tmp_path}/a.txt", small, tokenizer=tokenizer)


def test_any_text_and_any_tokens_are_taken(tokenizer: str) -> None:
    found = Tokenizer.open(tokenizer)
    assert found.encode("to \ud800 be \udcff").tolist() == [0, 2, 1, 3, 1]
    assert found.encode("").tolist() == [0]
    assert found.decode([0, 2, -1, 8, 2**40, 3]) == "to be"
    assert found.decode([]) == ""


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    for name, expected in (
        ("a.json", "expected a tokenizer.json of the package"),
        ("b.json", "no such file"),
    ):
        with pytest.raises(UsageError, match=expected):
            Tokenizer.open(str(tmp_path / name))


def test_an_evaluation_takes_no_mixture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"an evaluation takes no mixture, which has no end: give .*a\.bin"):
        mixed_examples(tmp_path).batches(Share(), None)
