"""A trace of a collective holds every chunk on every link, when it crossed, and who waited for whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.collectives.traced import COSTS, fabric_of, gathered, rows, written

from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.request import FLUID, Request
from trnprof.emulator.collectives.run import run_collective, run_many
from trnprof.emulator.collectives.trace import rows as trace_rows
from trnprof.emulator.collectives.trace.kernel import Transfers, order_by_server
from trnprof.emulator.collectives.trace.write import write_collectives
from trnprof.tracer.errors import CollectiveError
from trnprof.tracer.reader import Trace


def test_each_link_of_a_ring_passes_on_what_its_neighbour_sent(tmp_path: Path) -> None:
    trace = written(tmp_path, [gathered(fabric_of("ring:4"))])
    links = rows(trace, "track", "kind", "name", "start_ns", "duration_ns", "bytes").filter(
        pl.col("kind") == "link"
    )
    assert links.drop("kind").rows() == [
        (f"{chip}>{(chip + 1) % 4}", f"{chip}>{(chip + 1) % 4}", start, 1000, 50_000)
        for chip in range(4)
        for start in (0, 1500, 3000)
    ]


def test_a_later_step_waits_for_its_peer_and_says_for_which_event(tmp_path: Path) -> None:
    trace = written(tmp_path, [gathered(fabric_of("ring:4"))])
    events = rows(
        trace, "track", "kind", "event_id", "start_ns", "ready_ns", "blocked_by", "wait_reason"
    )
    links = events.filter(pl.col("kind") == "link")
    of_id = dict(
        zip(links["event_id"], zip(links["track"], links["start_ns"], strict=True), strict=True)
    )
    for track, _, _, start, ready, blocker, reason in links.iter_rows():
        assert start == ready
        if start == 0:
            assert (blocker, reason) == (None, None)
        else:
            before = (int(track[0]) - 1) % 4
            assert of_id[blocker] == (f"{before}>{track[0]}", start - 1500)
            assert reason == "peer"


def test_a_stream_is_busy_until_all_has_come_and_names_what_came_last(tmp_path: Path) -> None:
    trace = written(tmp_path, [gathered(fabric_of("ring:4"))])
    events = rows(
        trace, "track", "kind", "on", "event_id", "name", "start_ns", "duration_ns", "blocked_by"
    )
    track_of = dict(zip(events["event_id"], events["track"], strict=True))
    streams = events.filter(pl.col("kind") == "collective_stream").sort("on", "start_ns")
    # the last segment leaves its link after 4 µs, and arrives 0.5 later
    assert streams.select("on", "name", "start_ns", "duration_ns").rows() == [
        row
        for chip in range(4)
        for row in ((chip, "all_gather", 0, 4000), (chip, "last arrival", 4000, 500))
    ]
    blockers = streams["blocked_by"].to_list()
    assert blockers[::2] == [None] * 4
    assert [track_of[e] for e in blockers[1::2]] == ["3>0", "0>1", "1>2", "2>3"]


def test_a_chunk_on_its_way_over_several_links_waits_for_the_link_before(tmp_path: Path) -> None:
    request = Request(
        "send_recv", 50_000, (0, 2), ("direct",), chunks=1, forwarding="store-and-forward"
    )
    trace = written(tmp_path, [run_collective(fabric_of("ring:5"), request)])
    links = rows(trace, "track", "kind", "name", "start_ns", "wait_reason").filter(
        pl.col("kind") == "link"
    )
    assert links.drop("kind").rows() == [("0>1", "0>2", 0, None), ("1>2", "0>2", 1500, "link")]


@pytest.mark.parametrize("endpoint", [NO_COST, COSTS])
def test_bytes_on_links_are_those_of_the_outcome(endpoint: Endpoint, tmp_path: Path) -> None:
    fabric = fabric_of("torus:4x4")
    outcome = run_collective(fabric, Request("all_reduce", 1_000_003, tuple(range(16))), endpoint)
    trace = written(tmp_path, [outcome], endpoint)
    assert trace.tracks.filter(pl.col("kind") == "link").height == fabric.links
    sent = (
        rows(trace, "track_id", "kind", "bytes", "duration_ns")
        .filter(pl.col("kind") == "link")
        .group_by("track_id")
        .agg(pl.col("bytes", "duration_ns").sum(), pl.len())
    )
    assert dict(zip(sent["track_id"], sent["bytes"], strict=True)) == {
        link: size for link, size in enumerate(outcome.link_bytes.tolist()) if size
    }
    # rounding each end to ns moves an event by 1 ns at most
    busy = outcome.link_busy_ps[sent["track_id"].to_numpy()] / 1000
    assert (np.abs(sent["duration_ns"].to_numpy() - busy) <= sent["len"].to_numpy()).all()


def test_endpoints_have_tracks_where_they_cost_something(tmp_path: Path) -> None:
    outcome = run_collective(
        fabric_of("ring:4"),
        Request("all_reduce", 1 << 20, (0, 1, 2, 3), ("ring",), chunks=2),
        COSTS,
    )
    trace = written(tmp_path, [outcome], COSTS)
    found = trace.tracks.filter(pl.col("chip") == 3)
    assert set(zip(found["kind"].cast(pl.String), found["name"], strict=True)) == {
        ("chip", "chip 3"),
        ("collective_stream", "CC stream 0"),
        ("collective_stream", "CC-core 0"),
        ("dma_queue", "DMA"),
        ("hbm", "HBM"),
    }
    assert found.filter(pl.col("name") == "HBM")["peak_bytes_per_s"].to_list() == [2.9e12]
    events = rows(trace, "track", "category")
    assert set(events.filter(pl.col("track") == "DMA")["category"]) == {"dma"}


def test_a_gap_is_called_by_what_it_is_made_of_most(tmp_path: Path) -> None:
    request = Request("all_gather", 4 << 20, (0, 1, 2, 3), ("ring",), chunks=1)
    trace = written(tmp_path, [run_collective(fabric_of("ring:4"), request, COSTS)], COSTS)
    events = rows(trace, "track", "on", "name", "start_ns", "wait_reason")
    for track, first, later in (
        ("CC-core 0", "collective", "peer"),
        ("DMA", "collective", "peer"),
        # 0.5 µs of latency and 0.7 at the receiver, then 1.1 for posting and over 3 for reading
        ("0>1", "collective", "queue"),
    ):
        on_chip = events.filter((pl.col("track") == track) & (pl.col("on").fill_null(0) == 0))
        assert on_chip["wait_reason"].to_list() == [first, later, later], track


def test_operations_are_the_steps_of_their_collective(tmp_path: Path) -> None:
    trace = written(tmp_path, [gathered(fabric_of("ring:4"))])
    ops = (
        trace.ops.lazy()
        .collect()
        .select("op_id", "parent_id", "name", "algorithm", "in_bytes", "out_bytes")
    )
    assert ops.with_columns(pl.col("algorithm").cast(pl.String)).rows() == [
        (0, None, "all_gather", "ring", 50_000, 200_000),
        *((1 + s, 0, f"all_gather step {s}", "ring", None, None) for s in range(3)),
    ]
    assert trace.groups["ranks"].to_list() == [[0, 1, 2, 3]]
    ids = rows(trace, "kind", "op_id", "start_ns").filter(pl.col("kind") == "link")
    assert (ids["op_id"] == 1 + ids["start_ns"] // 1500).all()
    assert set(trace.steps["end_ns"]) == {4500}


def test_flows_join_what_waits_with_what_it_waits_for(tmp_path: Path) -> None:
    trace = written(tmp_path, [gathered(fabric_of("ring:4"))])
    flows = trace.flows.collect()
    ends = trace.events.select("event_id", end=pl.col("start_ns") + pl.col("duration_ns")).collect()
    end_of = dict(ends.iter_rows())
    start_of = dict(trace.events.select("event_id", "start_ns").collect().iter_rows())
    # every step but the first waits for the message of the step before
    assert flows.height == 8
    assert set(flows["kind"].cast(pl.String)) == {"collective"}
    for source, target, lag in flows.select("source_event", "target_event", "lag_ns").iter_rows():
        assert (lag, end_of[source] + lag) == (500, start_of[target])


def test_two_at_once_have_streams_groups_and_operations_of_their_own(tmp_path: Path) -> None:
    fabric = fabric_of("ring:8")
    outcomes = run_many(
        fabric,
        [
            Request("all_gather", 800_000, tuple(range(8)), ("ring",), chunks=2),
            Request("all_reduce", 400_000, (0, 1, 2, 3), ("ring",), chunks=2),
        ],
    )
    trace = written(tmp_path, list(outcomes))
    streams = rows(trace, "track", "kind", "on", "name").filter(
        pl.col("kind") == "collective_stream"
    )
    spans = streams.filter(pl.col("name") != "last arrival")
    assert set(spans.drop("kind").rows()) == {
        *(("CC stream 0", chip, "all_gather") for chip in range(8)),
        *(("CC stream 1", chip, "all_reduce") for chip in range(4)),
    }
    assert trace.groups["ranks"].to_list() == [list(range(8)), [0, 1, 2, 3]]
    roots = trace.ops.lazy().collect().filter(pl.col("parent_id").is_null())
    assert roots.select("name", "group_id").rows() == [("all_gather", 0), ("all_reduce", 1)]
    carried = rows(trace, "kind", "bytes").filter(pl.col("kind") == "link")["bytes"].sum()
    assert carried == sum(int(outcome.link_bytes.sum()) for outcome in outcomes)


def test_shards_hold_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_collective(
        fabric_of("torus:4x4"), Request("all_to_all", 1 << 20, tuple(range(16)), chunks=2), COSTS
    )
    columns = ("track", "on", "start_ns", "duration_ns", "name", "bytes", "ready_ns", "wait_reason")
    (tmp_path / "one").mkdir()
    one = written(tmp_path / "one", [outcome], COSTS)
    monkeypatch.setattr(trace_rows, "MAX_SHARD_ROWS", 300)
    many = written(tmp_path, [outcome], COSTS)
    assert len([s for s in many.shards if s.table == "events"]) > 3
    assert rows(many, *columns).sort(columns).equals(rows(one, *columns).sort(columns))
    # what bound each start is the same event, by track and time
    for trace in (one, many):
        assert trace.events.select(pl.col("blocked_by").is_null().sum()).collect().item() > 0
    assert blockers(one).equals(blockers(many))


def blockers(trace: Trace) -> pl.DataFrame:
    events = trace.events.select("event_id", "track_id", "start_ns", "blocked_by").collect()
    joined = events.join(events, left_on="blocked_by", right_on="event_id", how="inner")
    columns = ["track_id", "start_ns", "track_id_right", "start_ns_right"]
    return joined.select(columns).sort(columns)


def test_other_fidelities_have_nothing_to_write(tmp_path: Path) -> None:
    outcome = run_collective(
        fabric_of("ring:4"), Request("all_gather", 1 << 20, (0, 1, 2, 3), ("ring",), FLUID)
    )
    with pytest.raises(CollectiveError, match="a trace needs the chunked fidelity"):
        write_collectives(tmp_path / "run.trnprof", [outcome], NO_COST)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=60), st.integers(1, 20))
def test_shards_are_full_in_order_of_ends(ends: list[int], most: int) -> None:
    shard, shards = trace_rows._shards(np.array(ends, np.int64), most)
    assert shards == max(1, -(-len(ends) // most))
    assert np.bincount(shard, minlength=shards).max(initial=0) <= most
    by_end = shard[np.argsort(np.array(ends, np.int64), kind="stable")]
    assert (np.diff(by_end.astype(int)) >= 0).all()


TASKS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4000), st.integers(0, 3)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(TASKS)
def test_tasks_are_ordered_by_server_start_and_length(tasks: list[tuple[int, int, int]]) -> None:
    server, start, length = (np.array([t[i] for t in tasks], np.int64) for i in range(3))
    end = start + length * 1000
    nothing = np.zeros(len(tasks), np.int64)
    transfers = Transfers(
        server.astype(np.int32), nothing.astype(np.int32), nothing, start, end, start, nothing - 1, np.zeros(4, np.int8)
    )  # fmt: skip
    order, starts, ends = order_by_server(transfers, nothing.astype(np.int8), 1)
    assert ends.tolist() == [0, *np.cumsum(np.bincount(server, minlength=4))]
    assert starts.tolist() == start[order].tolist()
    start_ns, end_ns = (start + 500) // 1000, (end + 500) // 1000
    keys = [(server[i], start_ns[i], start_ns[i] - end_ns[i]) for i in order]
    assert sorted(order.tolist()) == list(range(len(tasks)))
    assert keys == sorted(keys)
