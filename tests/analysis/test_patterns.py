"""Frequent patterns of operators in a row: counted again with plain loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.traces import DMA0, SYNC, TENSOR, VECTOR, Row, build, core_tracks, event

from trnprof.analysis.focus import focus
from trnprof.analysis.patterns import frequent_patterns, telling_patterns
from trnprof.analysis.scope import device_scope
from trnprof.tracer.reader import Trace

OPS = [{"op_id": i, "name": name} for i, name in enumerate("aabc")]


def patterns_of(trace: Trace, max_length: int = 4) -> pl.DataFrame:
    scope = device_scope(trace)
    assert scope is not None
    return frequent_patterns(focus(scope), trace, max_length)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((TENSOR, VECTOR, TENSOR + 10, DMA0)),
            st.sampled_from((None, 0, 1, 2)),
            st.integers(1, 5),
            st.sampled_from(("compute", "compute", "sync")),
        ),
        max_size=40,
    )
)
def test_against_plain_loops(drawn: list[tuple[int, int | None, int, str]]) -> None:
    at, rows = 0, []
    for track, op, length, category in drawn:
        columns = {} if track == DMA0 else {"category": category}
        rows.append(event(track, at, length, op_id=op, name="own", **columns))
        at += length
    found = patterns_of(build(rows, tracks=core_tracks(2), ops=OPS))
    seen: Counter[tuple[str, ...]] = Counter()
    time: Counter[tuple[str, ...]] = Counter()
    for track in (TENSOR, VECTOR, TENSOR + 10):
        runs: list[list[Any]] = []
        for lane, op, length, category in drawn:
            if lane != track or category == "sync":
                continue
            if runs and op is not None and runs[-1][0] == op:
                runs[-1][1] += length
            else:
                runs.append([op, length])
        names = ["own" if op is None else OPS[op]["name"] for op, _ in runs]
        for size in range(2, 5):
            for i in range(len(runs) - size + 1):
                gram = tuple(map(str, names[i : i + size]))
                seen[gram] += 1
                time[gram] += sum(t for _, t in runs[i : i + size])
    expected = {g: n for g, n in seen.items() if n > 1}
    assert {tuple(r["names"]): r["events"] for r in found.to_dicts()} == expected
    for row in found.to_dicts():
        gram = tuple(row["names"])
        assert (row["count"], row["time_ns"]) == (seen[gram] / 2, time[gram] / 2)


def lane(names: str, track: int = TENSOR) -> list[Row]:
    return [event(track, 10 * i, 10, name=name) for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("abcabcabcabc", ["abc"]),  # its rotations and parts say no more
        ("xabyabzabwab", ["ab"]),
        ("aaaa", ["aa"]),
        ("abc", []),
    ],
)
def test_those_that_say_something(names: str, expected: list[str]) -> None:
    found = telling_patterns(patterns_of(build(lane(names)), 6), 10)
    assert ["".join(n) for n in found["names"]] == expected


def test_a_part_that_comes_much_more_often_is_told_too() -> None:
    found = telling_patterns(patterns_of(build(lane("abcd" * 3 + "xab" * 9))), 10)
    told = ["".join(n) for n in found["names"]]
    assert "xab" in told
    assert "abcd" in told


def test_replicas_weigh_and_nothing_is_nothing() -> None:
    tracks = [{**t, "replica_count": 3} if t["track_id"] == 2 else t for t in core_tracks(2)]
    [found] = patterns_of(build(lane("abab"), tracks=tracks), 2).filter(pl.col("events") > 1).to_dicts()  # fmt: skip
    assert (found["names"], found["count"], found["time_ns"]) == (["a", "b"], 2 * 3 / 4, 40 * 3 / 4)
    for trace in (build(), build([event(SYNC, 0, 1, category="sync")])):
        assert not patterns_of(trace).height
        assert not telling_patterns(patterns_of(trace), 5).height
