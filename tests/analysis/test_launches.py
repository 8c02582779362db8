"""Launches, queues and time that the device waits for the host: HTA's figures of real traces, and a twin that counts instants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.test_ranks import KINETO, gpu_tracks
from tests.analysis.traces import Row, build, event, step

from trnprof.analysis.focus import focus
from trnprof.analysis.launches import host_bound, launch_figures, launches, queue_depth
from trnprof.analysis.scope import Scope, device_scope
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.reader import Trace, open_trace

HTA: Mapping[int, tuple[int, int, int, int, Mapping[str, int]]] = {
    0: (261, 2359, 15832, 180, {"stream 7": 25, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
    1: (262, 2334, 48988, 183, {"stream 7": 26, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
    2: (262, 1853, 8372, 182, {"stream 7": 25, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
    3: (273, 2487, 35775, 216, {"stream 7": 20, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
    4: (273, 2587, 24743, 188, {"stream 7": 6, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
    5: (261, 2629, 23244, 200, {"stream 7": 6, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
    6: (262, 1789, 7886, 181, {"stream 7": 24, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
    7: (262, 1444, 4796, 179, {"stream 7": 19, "stream 22": 1, "stream 24": 1, "stream 84": 1}),
}
"""By rank of the 8-rank DLRM trace, as Holistic Trace Analysis 0.5.0 answers: launches, sums of calls and of delays (µs), events shorter
than their call (get_cuda_kernel_launch_stats), and the longest queue of each stream (get_queue_length_summary)."""


def focussed(trace: Trace) -> Scope:
    scope = device_scope(trace)
    assert scope is not None
    return focus(scope)


def test_real_traces_equal_hta(tmp_path: Path) -> None:
    if not KINETO.is_dir():
        pytest.skip("no ../shared/traces")
    files = [KINETO / f"dlrm_8rank_worker{r}.pt.trace.json.gz" for r in HTA]
    import_profiles(files, tmp_path / "d.trnprof")
    trace = open_trace(tmp_path / "d.trnprof")
    scope = device_scope(trace)
    assert scope is not None
    whole = scope.windows.with_columns(window_start_ns=pl.lit(0), window_end_ns=pl.lit(2**62))
    scope = focus(
        replace(scope, windows=whole)
    )  # HTA looks at all events, those outside of the step too
    found = launches(scope, trace)
    streams = scope.lanes.join(scope.units.select("unit_id", "rank"), on="unit_id")
    ranks = found.join(streams.select("track_id", "rank"), on="track_id")
    depths = queue_depth(found, scope, "track_id").join(streams, on="track_id")
    for row in launch_figures(ranks, ["rank"]).to_dicts():
        count, calls_us, delays_us, shorter, deepest = HTA[row["rank"]]
        assert (row["launches"], row["shorter"]) == (count, shorter)
        assert (row["call_total_ns"], row["delay_total_ns"]) == (1000 * calls_us, 1000 * delays_us)
        own = depths.filter(pl.col("rank") == row["rank"])
        assert dict(own.select("resource", "max_depth").iter_rows()) == deepest


WINDOW = range(20, 80)
drawn_launches = st.lists(
    st.tuples(
        st.sampled_from((10, 11, 110)),  # two streams of rank 0, one of rank 1
        st.integers(0, 60),
        st.integers(0, 9),  # the call
        st.integers(-3, 30),  # from its start to the event's
        st.integers(0, 12),
    ),
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(drawn_launches, st.lists(st.tuples(st.integers(0, 70), st.integers(0, 9)), max_size=2), st.integers(1, 7))  # fmt: skip
def test_against_instants(
    drawn: list[tuple[int, int, int, int, int]], alone: list[tuple[int, int]], bins: int
) -> None:
    rows: list[Row] = []
    flows = []
    for stream, at, call, until, time in drawn:
        flows.append({"source_event": len(rows), "target_event": len(rows) + 1, "kind": "launch"})
        rows.append(event(100 * (stream // 100) + 2, at, call, name="cudaLaunch", category="host"))
        rows.append(event(stream, at + until, time, name="k"))
    rows += [event(10, at, time, name="by itself") for at, time in alone]
    steps = [step(0, WINDOW.start, WINDOW.stop, rank=r) for r in (0, 1)]
    trace = build(rows, tracks=gpu_tracks(2), flows=flows, steps=steps)
    scope = focussed(trace)
    found = launches(scope, trace)
    known = [d for d in drawn if d[3] >= 0 and d[1] + d[3] in WINDOW]
    assert found.height == len(known)
    for row in launch_figures(found, ["track_id"]).to_dicts():
        own = [d for d in known if d[0] == row["track_id"]]
        assert row["launches"] == len(own)
        assert row["call_ns"] == median(call for *_, call, _, _ in own)
        delays = [max(0, until - call) for *_, call, until, _ in own]
        assert (row["delay_ns"], row["longest_delay_ns"]) == (median(delays), max(delays))
        assert row["overhead_ns"] == median(until for *_, until, _ in own)
        clipped = [
            min(at + until + time, WINDOW.stop) - at - until for _, at, _, until, time in own
        ]
        calls = [call for *_, call, _, _ in own]
        assert row["shorter"] == sum(t < c for t, c in zip(clipped, calls, strict=True))

    def waits(chosen: list[Any], instant: int) -> int:
        return sum(at <= instant < at + until for _, at, _, until, _ in chosen)

    edges = [WINDOW.start + n * len(WINDOW) // bins for n in range(bins + 1)]
    depths = queue_depth(found, scope, "track_id", bins)
    assert depths.height == bins * len({d[0] for d in known})
    for row in depths.to_dicts():
        own = [d for d in known if d[0] == row["track_id"]]
        here = [waits(own, i) for i in range(edges[row["bin"]], edges[row["bin"] + 1])]
        assert row["mean_depth"] == pytest.approx(sum(here) / len(here))
        assert row["max_depth"] == max(here)
        assert row["waiting_ns"] == sum(depth > 0 for depth in here)

    events = [(s, at + until, at + until + time) for s, at, _, until, time in drawn]
    events += [(10, at, at + time) for at, time in alone]
    units = {r["unit_id"]: r for r in host_bound(found, scope).to_dicts()}
    assert set(units) == {100 * (s // 100) + 1 for s, *_ in known}
    for unit, row in units.items():
        own = [d for d in known if d[0] // 100 == unit // 100]
        busy = {i for i in WINDOW for s, a, b in events if s // 100 == unit // 100 and a <= i < b}
        queued = {i for i in WINDOW if waits(own, i)} - busy
        assert (row["busy_ns"], row["queued_ns"]) == (len(busy), len(queued))
        assert row["host_bound_ns"] == len(WINDOW) - len(busy | queued)


def test_the_last_call_before_an_event_launched_it() -> None:
    rows = [
        event(2, 0, 4, name="graph capture", category="host"),
        event(2, 10, 5, name="graph launch", category="host"),
        event(2, 90, 5, name="too late", category="host"),
        event(10, 20, 30),
    ]
    flows = [{"source_event": n, "target_event": 3, "kind": "launch"} for n in range(3)]
    trace = build(rows, tracks=gpu_tracks(1), flows=flows)
    assert launches(focussed(trace), trace)["call"].to_list() == ["graph launch"]


def test_what_no_host_launched_is_no_launch() -> None:
    trace = build([event(10, 0, 5)], tracks=gpu_tracks(1))
    scope = focussed(trace)
    found = launches(scope, trace)
    assert not found.height
    assert not host_bound(found, scope).height
    assert not queue_depth(found, scope, "unit_id", 3).height
