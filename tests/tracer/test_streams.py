"""Of a damaged stream whole batches are read, and never a row that nobody wrote."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.batches import batch_crc32, join_batches, normalized, to_batch
from trnprof.tracer.errors import WriteError
from trnprof.tracer.schema import EVENTS, GROUPS, TABLES
from trnprof.tracer.streams import BatchStream, read_stream

ROWS = 12
BATCHES = 5


def batch_of(number: int) -> pa.RecordBatch:
    """Batches whose dictionaries differ, with nulls."""
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    return to_batch(
        EVENTS,
        {
            "event_id": ids.astype(np.uint64),
            "track_id": ids.astype(np.uint32),
            "start_ns": ids * 10,
            "duration_ns": pa.array([None if i % 5 == 0 else i for i in ids.tolist()]),
            "name": [f"name{i % 4}-{number}" for i in ids.tolist()],
            "category": ["compute", "dma"] * (ROWS // 2),
            "is_transpose": pa.array([None if i % 3 == 0 else i % 2 == 0 for i in ids.tolist()]),
            "attributes": pa.array([None if i % 2 else "{}" * (i % 7) for i in ids.tolist()]),
        },
    )


def write(path: Path) -> list[int]:
    """Write the stream; the file size after each batch."""
    stream = BatchStream(path, EVENTS, 1000)
    ends = []
    for number in range(BATCHES):
        stream.append(batch_of(number))
        stream.flush()
        ends.append(path.stat().st_size)
    stream.close()
    return ends


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    path = tmp_path_factory.mktemp("stream") / "x.arrows"
    ends = write(path)
    return path.read_bytes(), ends


def check_only_written(path: Path) -> int:
    """Every batch read is one that was written; how many there are."""
    batches, problems = read_stream(path, EVENTS)
    for batch in batches:
        first = batch["event_id"][0].as_py()
        assert batch.num_rows == ROWS
        assert batch.to_pydict() == batch_of(first // ROWS).to_pydict()
    if len(batches) < BATCHES and path.stat().st_size:
        assert all(p.severity == "error" for p in problems)
    return len(batches)


def test_a_whole_stream_has_every_batch_and_no_problem(
    tmp_path: Path, whole: tuple[bytes, list[int]]
) -> None:
    path = tmp_path / "x.arrows"
    path.write_bytes(whole[0])
    assert check_only_written(path) == BATCHES
    assert read_stream(path, EVENTS)[1] == []


def test_truncated_anywhere_gives_exactly_the_whole_batches_before(
    tmp_path: Path, whole: tuple[bytes, list[int]]
) -> None:
    data, ends = whole
    cuts = sorted({*range(0, len(data), 61), *ends, *(e - 1 for e in ends), *(e + 1 for e in ends)})
    path = tmp_path / "x.arrows"
    for cut in cuts:
        path.write_bytes(data[:cut])
        assert check_only_written(path) == sum(end <= cut for end in ends)
        torn = read_stream(path, EVENTS)[1]
        assert bool(torn) == (cut not in ends and cut < len(data))


@pytest.mark.parametrize("count", [1, 3, 8, 100, 4096, 100_000])
def test_appended_zeros_add_no_rows_and_are_told(
    tmp_path: Path, whole: tuple[bytes, list[int]], count: int
) -> None:
    data, ends = whole
    path = tmp_path / "x.arrows"
    path.write_bytes(data[: ends[-1]] + bytes(count))
    assert check_only_written(path) == BATCHES
    assert [p.kind for p in read_stream(path, EVENTS)[1]] == ["torn_stream"]


def test_zero_filled_tail_gives_only_whole_batches(
    tmp_path: Path, whole: tuple[bytes, list[int]]
) -> None:
    data, ends = whole
    path = tmp_path / "x.arrows"
    for cut in range(0, len(data), 97):
        path.write_bytes(data[:cut] + bytes(len(data) - cut))
        # bytes that were zero anyway are whole already
        assert check_only_written(path) >= sum(end <= cut for end in ends)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_flipped_bits_never_give_other_rows(
    tmp_path_factory: pytest.TempPathFactory, whole: tuple[bytes, list[int]], data: st.DataObject
) -> None:
    damaged = bytearray(whole[0])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flip") / "x.arrows"
    path.write_bytes(damaged)
    check_only_written(path)


def test_one_corrupt_batch_does_not_hide_those_after_it(
    tmp_path: Path, whole: tuple[bytes, list[int]]
) -> None:
    data, ends = whole
    damaged = bytearray(data)
    place = data.index(np.arange(ROWS, 2 * ROWS, dtype=np.uint64).tobytes())
    assert ends[0] < place < ends[1]
    damaged[place] ^= 1
    path = tmp_path / "x.arrows"
    path.write_bytes(damaged)
    assert check_only_written(path) == BATCHES - 1
    (problem,) = read_stream(path, EVENTS)[1]
    assert (problem.kind, problem.count) == ("corrupt_batch", 1)


def test_a_stream_of_another_table_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.arrows"
    write(path)
    batches, problems = read_stream(path, GROUPS)
    assert batches == []
    assert problems[0].kind == "foreign_columns"


@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 11), count=st.integers(0, 12))
def test_crc_does_not_depend_on_how_a_batch_was_sliced(first: int, count: int) -> None:
    sliced = normalized(batch_of(1).slice(first, count))
    rebuilt = normalized(
        join_batches(EVENTS, [sliced.slice(0, count // 2), sliced.slice(count // 2)])
    )
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, sliced.schema) as writer:
        writer.write_batch(sliced)
    read = pa.ipc.open_stream(buffer.getvalue()).read_next_batch()
    assert batch_crc32(read) == batch_crc32(sliced)
    assert rebuilt.to_pydict() == sliced.to_pydict()


def test_lists_round_trip(tmp_path: Path) -> None:
    stream = BatchStream(tmp_path / "g.arrows", GROUPS, 2)
    rows = {"group_id": [0, 1, 2], "ranks": [[0, 1], [], [2, 3, 4]], "name": ["a", "b", "c"]}
    stream.append(to_batch(GROUPS, rows))
    stream.close()
    batches, problems = read_stream(tmp_path / "g.arrows", GROUPS)
    assert problems == []
    assert [b.num_rows for b in batches] == [2, 1]
    assert pa.Table.from_batches(batches).to_pydict() == rows


def test_a_file_that_took_our_descriptor_is_not_written_into(tmp_path: Path) -> None:
    """A program may close every descriptor (os.closerange); its next file then has our number."""
    table = TABLES["counters"]
    batch = to_batch(table, {"track_id": [0], "timestamp_ns": [1], "value": [2.0]})
    stream = BatchStream(tmp_path / "ours.arrows", table, 10)
    stream.append(batch)
    stream.flush()
    number = stream._sink.fileno()  # type: ignore[union-attr]
    os.close(number)
    theirs = os.open(tmp_path / "theirs.txt", os.O_CREAT | os.O_WRONLY)
    assert theirs == number
    stream.append(batch)
    with pytest.raises(WriteError, match=r"ours\.arrows"):
        stream.flush()
    stream.abandon()
    os.write(theirs, b"mine")
    os.close(theirs)
    assert (tmp_path / "theirs.txt").read_bytes() == b"mine"
    assert sum(b.num_rows for b in read_stream(tmp_path / "ours.arrows", table)[0]) == 1
