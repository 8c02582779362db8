from __future__ import annotations

import asyncio
import math
import random
import signal
import subprocess
import sys
import threading
from collections import Counter as Multiset
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer import recorder as recorder_module
from trnprof.tracer.errors import TrnprofError, WriteError
from trnprof.tracer.lanes import NEVER, TaskSlots, assign_lanes
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.recorder import (
    HostRecorder,
    Span,
    counter,
    current_step,
    instant,
    is_recording,
    on_step,
    span,
    step,
)


@pytest.fixture(autouse=True)
def _nothing_left_recording() -> Iterator[None]:
    yield
    left = recorder_module._recorder
    if left is not None:
        left.stop()
    recorder_module._listeners.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.trnprof"


def rows(trace: Trace) -> pl.DataFrame:
    """Events with end, thread name, lane: one row each, by start."""
    events = trace.events.select(
        "track_id",
        "start_ns",
        "duration_ns",
        "step",
        pl.col("name").cast(pl.String),
        pl.col("category").cast(pl.String),
    ).collect()
    tracks = trace.tracks.select("track_id", "lane", thread="name")
    joined = events.join(tracks, on="track_id", how="left", validate="m:1")
    return joined.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns")).sort("start_ns")


def assert_no_overlap(events: pl.DataFrame) -> None:
    """Brute force: on each track each event ends before the next begins; an open one is the last."""
    for _, track in events.group_by("track_id"):
        ordered = track.sort("start_ns", "end_ns", nulls_last=True)
        ends = ordered["end_ns"].to_list()
        starts = ordered["start_ns"].to_list()
        for end, following in zip(ends, starts[1:], strict=False):
            assert end is not None
            assert end <= following


def recorded(path: Path, body: Callable[[HostRecorder], object]) -> Trace:
    with HostRecorder(path, drain_seconds=3600) as host:
        body(host)
    trace = open_trace(path)
    assert [p for p in (*trace.problems, *trace.validate()) if p.severity == "error"] == []
    return trace


# ---------------------------------------------------------------- nesting


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nested_spans_lie_at_their_depth_inside_their_parent(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    truth: dict[str, tuple[str | None, int]] = {}

    def grow(host: HostRecorder, parent: str | None, depth: int) -> None:
        for _ in range(rng.randint(0, 3) if depth else 4):
            name = str(len(truth))
            truth[name] = (parent, depth)
            if rng.random() < 0.2:
                instant(name)
                continue
            with span(name):
                if rng.random() < 0.15:
                    host._drain_once()
                if depth < 5:
                    grow(host, name, depth + 1)

    path = tmp_path_factory.mktemp("nested") / "run.trnprof"
    events = rows(recorded(path, lambda host: grow(host, None, 0)))
    assert_no_overlap(events)
    found = {r["name"]: r for r in events.iter_rows(named=True)}
    assert found.keys() == truth.keys()
    for name, (parent, depth) in truth.items():
        assert found[name]["lane"] == depth
        if parent is not None:
            assert found[parent]["start_ns"] <= found[name]["start_ns"]
            assert found[name]["end_ns"] <= found[parent]["end_ns"]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_spans_that_interleave_get_the_lowest_free_lane(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    truth: dict[str, int] = {}
    still_open: list[tuple[str, Span]] = []

    def walk(host: HostRecorder) -> None:
        for number in range(80):
            if still_open and rng.random() < 0.5:
                _, ended = still_open.pop(rng.randrange(len(still_open)))
                ended.__exit__()
            else:
                taken = {truth[name] for name, _ in still_open}
                truth[str(number)] = next(i for i in range(99) if i not in taken)
                begun = span(str(number))
                assert isinstance(begun, Span)
                still_open.append((str(number), begun.__enter__()))
            if rng.random() < 0.1:
                host._drain_once()

    path = tmp_path_factory.mktemp("mixed") / "run.trnprof"
    events = rows(recorded(path, walk))
    assert_no_overlap(events)
    assert dict(zip(events["name"], events["lane"], strict=True)) == truth
    is_open = set(events.filter(pl.col("duration_ns").is_null())["name"])
    assert is_open == {name for name, _ in still_open}


@settings(max_examples=100, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=60),
    held=st.sets(st.integers(0, 3), max_size=3),
)
def test_lanes_of_groups_equal_a_brute_force_sweep(
    moves: list[tuple[int, int]], held: set[int]
) -> None:
    group, fixed = [0 for _ in held], sorted(held)
    record_span, is_enter = list(range(len(held))), [True] * len(held)
    open_spans: dict[int, list[int]] = {0: list(record_span), 1: [], 2: []}
    expected = list(fixed)
    for which, pick in moves:
        here = open_spans[which]
        if pick < 5 or not here:
            taken = {expected[i] for i in here}
            expected.append(next(i for i in range(99) if i not in taken))
            here.append(len(group))
            record_span.append(len(group))
            group.append(which)
            fixed.append(-1)
        else:
            record_span.append(here.pop(pick % len(here)))
        is_enter.append(
            len(group) - 1 == record_span[-1] and record_span.count(record_span[-1]) == 1
        )
    if not group:
        return
    dense = np.unique(group, return_inverse=True)[1].astype(np.int64)
    lanes = assign_lanes(
        np.array(record_span), np.array(is_enter), dense, np.array(fixed, np.int64)
    )
    assert lanes.tolist() == expected


def test_a_generator_that_holds_a_span_does_not_disturb_the_loop_around_it(path: Path) -> None:
    def load() -> Generator[int, None, None]:
        for i in range(50):
            with span("load"):
                yield i

    def loop(_: HostRecorder) -> None:
        batches = load()
        for _i in range(20):
            with span("fetch"):
                next(batches)
            with span("train"), span("forward"):
                pass
        batches.close()

    events = rows(recorded(path, loop))
    assert_no_overlap(events)
    assert Multiset(events["name"]) == {"load": 20, "fetch": 20, "train": 20, "forward": 20}
    assert events["lane"].max() == 2


def test_an_exception_closes_the_span(path: Path) -> None:
    def fail(_: HostRecorder) -> None:
        with pytest.raises(ZeroDivisionError), span("outer"), span("inner"):
            raise ZeroDivisionError
        with span("after"):
            pass

    events = rows(recorded(path, fail))
    assert events["duration_ns"].null_count() == 0
    assert dict(zip(events["name"], events["lane"], strict=True)) == {
        "outer": 0,
        "inner": 1,
        "after": 0,
    }


def test_a_span_is_reusable_in_turn_but_not_within_itself(path: Path) -> None:
    def use(_: HostRecorder) -> None:
        again = span("again")
        for _i in range(3):
            with again:
                pass
        with again, pytest.raises(RuntimeError, match="'again' is open already"):
            again.__enter__()
        with pytest.raises(RuntimeError, match="'again' is not open"):
            again.__exit__()

    assert rows(recorded(path, use))["name"].to_list() == ["again"] * 4


def test_spans_open_at_the_end_have_no_duration(path: Path) -> None:
    kept: list[Any] = []

    def leave(host: HostRecorder) -> None:
        kept.append(span("whole").__enter__())
        host._drain_once()
        kept.append(span("late").__enter__())
        with span("short"):
            pass

    events = rows(recorded(path, leave))
    assert {
        r["name"]: (r["duration_ns"] is None, r["lane"]) for r in events.iter_rows(named=True)
    } == {
        "whole": (True, 0),
        "late": (True, 1),
        "short": (False, 2),
    }
    kept[0].__exit__()  # after the end: no error, nothing recorded
    assert open_trace(path).events.collect().height == 3


def test_a_name_that_is_no_utf8_and_a_deep_recursion_survive(path: Path) -> None:
    def dig(depth: int) -> None:
        with span("\udc80" if depth == 0 else "deep"):
            if depth < 200:
                dig(depth + 1)

    events = rows(recorded(path, lambda _: dig(0)))
    assert sorted(events["lane"]) == list(range(201))
    assert events["name"][0] == "?"


def test_a_clock_reading_older_than_the_record_before_is_moved_up_to_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler_between_clock_and_append(_: HostRecorder) -> None:
        origin = recorder_module._now()
        times = iter([origin + t for t in (100, 300, 200, 400)])
        monkeypatch.setattr(recorder_module, "_now", lambda: next(times))
        with span("handler"):
            pass
        with span("interrupted"):  # read its clock at 200, before the handler ended at 300
            pass
        monkeypatch.undo()

    events = rows(recorded(path, handler_between_clock_and_append))
    assert_no_overlap(events)
    first, second = events.iter_rows(named=True)
    assert (first["duration_ns"], second["duration_ns"]) == (200, 100)
    assert second["start_ns"] == first["end_ns"]


# ---------------------------------------------------------------- threads


def test_eight_threads_lose_nothing(path: Path) -> None:
    def work(number: int) -> None:
        for _ in range(10_000):
            with span(f"outer{number}"), span(f"inner{number}"):
                pass

    with HostRecorder(path, drain_seconds=0.02):
        threads = [threading.Thread(target=work, args=(n,), name=f"worker{n}") for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = rows(open_trace(path))
    counts = events.group_by("thread", "lane", "name").len()
    assert {
        (r["thread"], r["lane"], r["name"]): r["len"] for r in counts.iter_rows(named=True)
    } == {
        (f"worker{n}", lane, f"{kind}{n}"): 10_000
        for n in range(8)
        for lane, kind in enumerate(("outer", "inner"))
    }
    ordered = events.sort("track_id", "start_ns")
    after = ordered.select(
        same=pl.col("track_id") == pl.col("track_id").shift(-1),
        fits=pl.col("end_ns") <= pl.col("start_ns").shift(-1),
    ).filter("same")
    assert after["fits"].all()
    inner = events.filter(pl.col("lane") == 1).sort("thread", "start_ns")
    outer = events.filter(pl.col("lane") == 0).sort("thread", "start_ns")
    assert (outer["start_ns"] <= inner["start_ns"]).all()
    assert (inner["end_ns"] <= outer["end_ns"]).all()


def test_threads_of_one_name_have_tracks_and_names_of_their_own(path: Path) -> None:
    meet = threading.Barrier(3)

    def work() -> None:
        meet.wait()
        with span("work"):
            meet.wait()

    def run(_: HostRecorder) -> None:
        threads = [threading.Thread(target=work, name="pool") for _i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    events = rows(recorded(path, run))
    assert sorted(events["thread"]) == ["pool", "pool #2", "pool #3"]
    assert events["track_id"].n_unique() == 3


def test_a_thousand_short_threads_are_recorded_and_forgotten(path: Path) -> None:
    def work() -> None:
        with span("short"):
            pass

    with HostRecorder(path, drain_seconds=0.01) as host:
        for _ in range(1000):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        host._stopping.wait(0.05)
        with host._lock:
            host._drain_once()
            host._drain_once()
            assert set(host._logs) == {0}  # the thread that started the recording
    events = rows(open_trace(path))
    assert events.height == 1000
    assert events["thread"].n_unique() == 1000


def test_a_span_may_end_in_another_thread(path: Path) -> None:
    def run(host: HostRecorder) -> None:
        handed = span("handed")
        thread = threading.Thread(target=handed.__enter__, name="giver")
        thread.start()
        thread.join()
        host._drain_once()
        handed.__exit__()

    (event,) = rows(recorded(path, run)).iter_rows(named=True)
    assert event["thread"] == "giver"
    assert event["duration_ns"] > 0


def test_threads_wait_for_a_drain_that_lags_and_nothing_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_WAITING", 100)

    def work() -> None:
        for _ in range(40):
            with span("held"):
                pass
            counter("held", 1.0)

    def run(host: HostRecorder) -> None:
        for _ in range(60):
            with span("many"):
                pass
        host._hold_back()
        waiting = [threading.Thread(target=work) for _ in range(3)]
        for thread in waiting:
            thread.start()
        assert is_recording()
        assert [log.number for log in host._logs.values()] == [0]
        host._drain_once()
        host._hold_back()
        for thread in waiting:
            thread.join()

    trace = recorded(path, run)
    assert Multiset(rows(trace)["name"]) == {"many": 60, "held": 120}
    assert trace.counters.collect().height == 120


def test_stopping_lets_waiting_threads_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_WAITING", 0)
    host = HostRecorder(path, drain_seconds=3600).start()
    instant("one")
    host._hold_back()
    thread = threading.Thread(target=instant, args=("late",))
    thread.start()
    host.stop()
    thread.join()
    assert "one" in rows(open_trace(path))["name"].to_list()


# ---------------------------------------------------------------- asyncio


def test_each_asyncio_task_has_lanes_of_its_own(path: Path) -> None:
    async def job(name: str, seed: int) -> None:
        rng = random.Random(seed)
        with span(f"{name}"):
            for _ in range(10):
                with span(f"{name}.child"):
                    await asyncio.sleep(rng.random() * 0.002)
                    with span(f"{name}.grandchild"):
                        await asyncio.sleep(0)
                await asyncio.sleep(0)

    async def main() -> None:
        with span("main"):
            await asyncio.gather(*(job(f"job{n}", n) for n in range(12)))

    with HostRecorder(path, drain_seconds=0.005), span("sync"):
        asyncio.run(main())
    events = rows(open_trace(path))
    assert_no_overlap(events)
    assert events.height == 2 + 12 * 21
    lanes = {name: set(part["lane"]) for (name,), part in events.group_by("name")}
    threads = {name: set(part["thread"]) for (name,), part in events.group_by("name")}
    assert (threads["sync"], lanes["sync"]) == ({"MainThread"}, {0})
    assert len({next(iter(threads[f"job{n}"])) for n in range(12)} | threads["main"]) == 13
    for n in range(12):
        for depth, name in enumerate((f"job{n}", f"job{n}.child", f"job{n}.grandchild")):
            assert lanes[name] == {depth}
            assert threads[name] == threads[f"job{n}"]


def test_lanes_of_ended_tasks_are_used_again(path: Path) -> None:
    async def job(number: int) -> None:
        with span(f"job{number}"):
            await asyncio.sleep(0)

    async def main(host: HostRecorder) -> None:
        for wave in range(20):
            await asyncio.gather(*(job(4 * wave + i) for i in range(4)))
            if wave % 3 == 0:
                host._drain_once()

    events = rows(recorded(path, lambda host: asyncio.run(main(host))))
    assert_no_overlap(events)
    assert events.height == 80
    assert 4 <= events["thread"].n_unique() <= 12  # an identity seen again counts as the same task


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6), st.integers(0, 30), st.integers(0, 30)),
                 max_size=10, unique_by=lambda r: r[:2]),
        max_size=5,
    )
)  # fmt: skip
def test_slots_never_hold_two_tasks_at_once_and_are_kept(
    drains: list[list[tuple[int, int, int, int]]],
) -> None:
    slots = TaskSlots()
    before: dict[tuple[int, int], int] = {}
    for drain in drains:
        if not drain:
            continue
        thread, task, a, b = (np.array(c, np.int64) for c in zip(*drain, strict=True))
        first = np.minimum(a, b) * 100 + np.arange(len(a))
        last = np.where(b > 25, NEVER, np.maximum(a, b) * 100 + 50 + np.arange(len(a)))
        got = slots.assign(thread, task, first, last)
        assert (got > 0).all()
        for i in range(len(drain)):
            assert before.get((thread[i], task[i]), got[i]) == got[i]
            for j in range(i):
                if thread[i] == thread[j] and got[i] == got[j]:
                    assert last[i] < first[j] or last[j] < first[i]
        before = {
            (int(thread[i]), int(task[i])): int(got[i])
            for i in range(len(drain))
            if last[i] == NEVER
        }


# ---------------------------------------------------------------- counters, instants, steps


def test_counters_keep_every_sample_nan_and_infinities(path: Path) -> None:
    def sample(_: HostRecorder) -> None:
        samples: list[Any] = [1, math.nan, math.inf, -math.inf, np.float32(0.5), True]
        for value in samples:
            counter("loss", value)
        counter("hbm", 2.0, "B")
        counter("hbm", 3.0, "GiB")

    trace = recorded(path, sample)
    tracks = trace.tracks.filter(pl.col("kind").cast(pl.String) == "counter")
    assert tracks.select("name", "unit").rows() == [("loss", None), ("hbm", "B"), ("hbm", "GiB")]
    values = [
        part["value"].to_list()
        for _, part in trace.counters.sort("track_id", "timestamp_ns")
        .collect()
        .group_by("track_id", maintain_order=True)
    ]
    np.testing.assert_array_equal(values[0], [1.0, math.nan, math.inf, -math.inf, 0.5, 1.0])
    assert values[1:] == [[2.0], [3.0]]


def test_an_instant_is_a_marker_of_no_duration_under_the_open_span(path: Path) -> None:
    def mark(_: HostRecorder) -> None:
        instant("before")
        with span("work"):
            instant("inside")

    events = rows(recorded(path, mark))
    found = {
        r["name"]: (r["lane"], r["category"], r["duration_ns"] == 0)
        for r in events.iter_rows(named=True)
    }
    assert found == {
        "before": (0, "marker", True),
        "work": (0, "host", False),
        "inside": (1, "marker", True),
    }


class FakeClock:
    """A clock that tells what it is told."""

    def __init__(self, origin_ns: int) -> None:
        self.origin_ns = self.now_ns = origin_ns

    def __call__(self) -> int:
        return self.now_ns

    def at(self, time_ns: int) -> None:
        self.now_ns = self.origin_ns + time_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock(10**12)
    monkeypatch.setattr(recorder_module, "_now", fake)
    return fake


def test_steps_run_from_end_to_end_and_the_first_from_its_enter(
    path: Path, clock: FakeClock
) -> None:
    ended: list[tuple[str, int | None]] = []

    def train(host: HostRecorder) -> None:
        on_step(lambda label: ended.append((label, current_step())))
        at = [0, 100, 150, 170, 230, 260, 300]
        with span("setup"):
            clock.at(at[1])
        assert current_step() == 0
        with step(), span("first"):
            clock.at(at[2])
        clock.at(at[3])
        with span("idle"):
            host._drain_once()
        with step("second"):
            clock.at(at[4])
        clock.at(at[5])
        step("plain")
        clock.at(at[6])

    trace = recorded(path, train)
    assert trace.steps.select("step", "rank", "start_ns", "end_ns", "label").rows() == [
        (0, 0, 100, 150, "step 0"),
        (1, 0, 150, 230, "second"),
        (2, 0, 230, 260, "plain"),
    ]
    assert trace.steps["source"].cast(pl.String).to_list() == ["marker"] * 3
    assert ended == [("step 0", 1), ("second", 2), ("plain", 3)]
    events = rows(trace)
    assert dict(zip(events["name"], events["step"], strict=True)) == {
        "setup": None,
        "first": 0,
        "idle": 1,
    }


def test_plain_markers_begin_with_the_recording(path: Path, clock: FakeClock) -> None:
    def train(_: HostRecorder) -> None:
        for end in (10, 30, 60):
            clock.at(end)
            step()

    trace = recorded(path, train)
    assert trace.steps.select("start_ns", "end_ns").rows() == [(0, 10), (10, 30), (30, 60)]


def test_steps_are_heard_without_a_recording_and_until_removed() -> None:
    heard: list[str] = []
    remove = on_step(heard.append)
    with step("a"):
        pass
    step("b")
    remove()
    remove()
    with step("c"):
        pass
    assert heard == ["a", "b"]
    assert current_step() is None


# ---------------------------------------------------------------- start, stop, errors


def test_nothing_happens_while_nothing_records() -> None:
    assert not is_recording()
    assert span("a") is span("b") is step()
    with span("a"), step():
        instant("i")
        counter("c", 1.0)


@pytest.mark.parametrize("records", [False, True])
def test_names_must_be_text(path: Path, records: bool) -> None:
    def misuse(_: object) -> None:
        wrong: Any
        for wrong in (None, 3, b"load", ["load"]):
            with pytest.raises(TypeError, match="name of a span must be a str, not"):
                span(wrong)
            with pytest.raises(TypeError, match="the name must be a str, not"):
                instant(wrong)
            with pytest.raises(TypeError, match="the name must be a str, not"):
                counter(wrong, 1.0)
        wrong = 5
        with pytest.raises(TypeError, match="the label must be a str, not int: 5"):
            step(wrong)
        with pytest.raises(TypeError, match="float"):
            counter("c", None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="decorate functions with @trnprof"):
            span("load")(misuse)

    if records:
        recorded(path, misuse)
    else:
        misuse(None)


def test_functions_are_decorated_by_name_even_before_a_recording(path: Path) -> None:
    @span
    def add(a: int, b: int) -> int:
        return a + b

    @span
    async def later(a: int) -> int:
        await asyncio.sleep(0)
        return a

    with pytest.raises(TypeError, match="generator"):

        @span
        def numbers() -> Iterator[int]:
            yield 1

    def call(_: HostRecorder) -> None:
        assert add(1, b=2) == 3
        assert asyncio.run(later(4)) == 4

    names = rows(recorded(path, call))["name"].to_list()
    assert [n.rsplit(".", 1)[1] for n in names] == ["add", "later"]


def test_one_recorder_at_a_time_and_each_once(tmp_path: Path) -> None:
    host = HostRecorder(tmp_path / "a.trnprof").start()
    with pytest.raises(TrnprofError, match="was started before"):
        host.start()
    with pytest.raises(TrnprofError, match=r"already recording into .*a\.trnprof: stop"):
        HostRecorder(tmp_path / "b.trnprof").start()
    assert not (tmp_path / "b.trnprof").exists()
    host.stop()
    host.stop()
    with pytest.raises(TrnprofError, match="was started before"):
        host.start()
    with HostRecorder(tmp_path / "b.trnprof"), span("second"):
        pass
    assert rows(open_trace(tmp_path / "b.trnprof"))["name"].to_list() == ["second"]


def test_a_failing_drain_ends_the_recording_and_stop_says_why(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostRecorder(path, drain_seconds=0.01).start()

    def full(*_: object) -> None:
        raise WriteError("the disk is full")

    monkeypatch.setattr(host._drain, "write_spans", full)
    with span("lost"):
        pass
    host._thread.join(timeout=30)
    assert not is_recording()
    with pytest.raises(WriteError, match="the disk is full"):
        host.stop()


def test_a_reproducible_recording_names_no_host_and_no_date(path: Path) -> None:
    with HostRecorder(path, reproducible=True, command=["python", "x.py"]), span("a"):
        pass
    trace = open_trace(path)
    assert set(trace.tracks["host"]) == {"host0"}
    (fragment,) = trace.fragments
    assert fragment["sealed"] is True
    assert [(c["kind"], c["epoch_unix_ns"]) for c in fragment["clocks"]] == [("host", None)]


def test_tracks_stand_under_the_host(path: Path) -> None:
    with HostRecorder(path), span("a"), span("b"):
        counter("c", 1.0)
    tracks = open_trace(path).tracks.with_columns(pl.col("kind").cast(pl.String))
    (host,) = tracks.filter(pl.col("kind") == "host")["track_id"]
    below = tracks.filter(pl.col("kind") != "host").sort("sort_order")
    assert set(below["parent_id"]) == {host}
    assert below.select("kind", "name", "lane").rows() == [
        ("thread", "MainThread", 0),
        ("thread", "MainThread", 1),
        ("counter", "c", 0),
    ]


# ---------------------------------------------------------------- processes


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_facade_loads_no_heavy_library_until_it_records() -> None:
    done = python(
        "import sys, trnprof\n"
        "with trnprof.span('a'): trnprof.counter('c', 1)\n"
        "print([m for m in ('numpy', 'pyarrow', 'polars', 'asyncio') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


FORKING = """
import multiprocessing, os, sys, threading, time
from trnprof.tracer.recorder import HostRecorder, is_recording, span

def child_work():
    assert not is_recording()
    for _ in range(1000):
        with span("child"):
            pass

def busy(stop):
    while not stop.is_set():
        with span("busy"):
            time.sleep(0.0001)

with HostRecorder(sys.argv[1], drain_seconds=0.001) as host:
    stop = threading.Event()
    thread = threading.Thread(target=busy, args=(stop,))
    thread.start()
    for i in range(8):
        with span("parent"):
            pid = os.fork()
            if pid == 0:
                child_work()
        if pid == 0:
            break
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    else:
        process = multiprocessing.get_context("fork").Process(target=child_work)
        process.start()
        process.join()
        assert process.exitcode == 0
        stop.set()
        thread.join()
if pid == 0:  # left the `with` block of the parent: nothing was sealed, and it may record elsewhere
    with HostRecorder(f"{sys.argv[1]}.{i}"), span("own"):
        pass
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no fork here")
def test_a_forked_child_records_nothing_and_spoils_nothing(path: Path) -> None:
    done = python(FORKING, str(path))
    assert done.returncode == 0, done.stderr
    trace = open_trace(path)
    assert [p for p in trace.problems if p.severity == "error"] == []
    assert [f["sealed"] for f in trace.fragments] == [True]
    events = rows(trace)
    counts = Multiset(events["name"])
    assert counts["parent"] == 8
    assert counts.keys() == {"parent", "busy"}
    assert events["duration_ns"].null_count() == 0
    assert rows(open_trace(f"{path}.7"))["name"].to_list() == ["own"]


KILLED = """
import os, signal, sys, time
from pathlib import Path
from trnprof.tracer.recorder import HostRecorder, counter, span, step

host = HostRecorder(sys.argv[1], drain_seconds=0.01).start()
outer = span("outer").__enter__()
for i in range(1000):
    with step(), span("work"):
        counter("i", i)
while host._logs[0].records or host._counts:
    time.sleep(0.01)
with host._lock:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
def test_what_was_drained_survives_a_kill(path: Path) -> None:
    assert python(KILLED, str(path)).returncode == -signal.SIGKILL
    trace = open_trace(path)
    assert [f["sealed"] for f in trace.fragments] == [False]
    events = rows(trace)
    assert events["name"].to_list() == ["work"] * 1000
    assert set(events["lane"]) == {1}
    assert trace.steps.height == 1000
    assert trace.counters.collect()["value"].to_list() == [float(i) for i in range(1000)]


def test_a_program_that_never_stops_its_recorder_is_sealed_at_exit(path: Path) -> None:
    done = python(
        "import sys\n"
        "from trnprof.tracer.recorder import HostRecorder, span\n"
        "HostRecorder(sys.argv[1]).start()\n"
        "with span('a'): pass\n",
        str(path),
    )
    assert done.returncode == 0, done.stderr
    trace = open_trace(path)
    assert [f["sealed"] for f in trace.fragments] == [True]
    assert rows(trace)["name"].to_list() == ["a"]
