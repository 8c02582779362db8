"""Whoever waits for a rank that comes late, its chain of waiting leads back to that."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.collectives.traced import COSTS, fabric_of, gathered, rows, written

from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.tracer.reader import Trace


def test_who_waits_for_a_late_rank_is_said(tmp_path: Path) -> None:
    trace = written(tmp_path, [gathered(fabric_of("ring:4"), release_ps={2: 10_000_000})])
    events = rows(
        trace,
        "track",
        "kind",
        "on",
        "event_id",
        "name",
        "category",
        "start_ns",
        "duration_ns",
        "blocked_by",
        "wait_reason",
    )
    stream = events.filter((pl.col("kind") == "collective_stream") & (pl.col("on") == 2))
    late = stream.row(0, named=True)
    assert stream.select("name", "category", "start_ns", "blocked_by", "wait_reason").rows()[
        :2
    ] == [
        ("late", "marker", 0, None, None),
        ("all_gather", "collective", 10_000, late["event_id"], "host"),
    ]
    first = events.filter(pl.col("track") == "2>3").row(0, named=True)
    assert late["duration_ns"] == first["start_ns"] == 10_000
    assert (first["wait_reason"], first["blocked_by"]) == ("peer", late["event_id"])
    # rank 3 sends its own at once, waits for that of rank 2, and has what rank 2 passes on when it has sent that
    waits = events.filter(pl.col("track") == "3>0").select("start_ns", "wait_reason").rows()
    assert waits == [(0, None), (11_500, "peer"), (12_500, None)]


def causes(trace: Trace) -> tuple[dict[int, dict[str, Any]], dict[int, int]]:
    """Every event, and where its chain of waiting ends; on the way each blocker has ended before its waiter starts."""
    columns = ("event_id", "track", "kind", "on", "name", "start_ns", "duration_ns", "blocked_by")
    events = {row["event_id"]: row for row in rows(trace, *columns).iter_rows(named=True)}
    ends = {}
    for event_id, event in events.items():
        at = event
        while at["blocked_by"] is not None:
            blocker = events[at["blocked_by"]]
            assert blocker["start_ns"] + blocker["duration_ns"] <= at["start_ns"]
            at = blocker
        ends[event_id] = at["event_id"]
    return events, ends


@settings(max_examples=25, deadline=None)
@given(
    late=st.dictionaries(st.integers(0, 4), st.integers(1, 60).map(lambda n: n * 700), max_size=3),
    ranks=st.integers(2, 5),
)
def test_whatever_waits_for_a_late_rank_leads_back_to_it(late: dict[int, int], ranks: int) -> None:
    late = {rank: ns for rank, ns in late.items() if rank < ranks}
    releases = {rank: ns * 1000 for rank, ns in late.items()}
    with tempfile.TemporaryDirectory() as folder:
        outcome = gathered(fabric_of(f"ring:{ranks}"), release_ps=releases)
        events, cause_of = causes(written(Path(folder), [outcome]))
    starts = ring_starts(late, ranks)
    sent: dict[int, int] = {}
    links = [event for event in events.values() if event["kind"] == "link"]
    for event in sorted(links, key=lambda each: each["start_ns"]):
        rank = int(event["track"].split(">")[0])
        sent[rank] = sent.get(rank, -1) + 1
        start, to_blame = starts[rank, sent[rank]]
        cause = events[cause_of[event["event_id"]]]
        assert event["start_ns"] == start
        assert (cause["on"] if cause["name"] == "late" else None) in to_blame


def ring_starts(
    late: dict[int, int], ranks: int
) -> dict[tuple[int, int], tuple[int, set[int | None]]]:
    """When each rank of a ring sends in each step, and whose call that follows from (None: of a rank that came in time).

    A segment is 1 µs on a link and 0.5 on its way: a step starts when its link is free and what it passes on has come.
    """
    starts: dict[tuple[int, int], tuple[int, set[int | None]]] = {}
    for step in range(ranks - 1):
        for rank in range(ranks):
            called = (late.get(rank, 0), {rank if rank in late else None})
            bounds = [called]
            if step:
                came, sender = starts[(rank - 1) % ranks, step - 1]
                free, own = starts[rank, step - 1]
                bounds += [(came + 1500, sender), (free + 1000, own)]
            start = max(time for time, _ in bounds)
            starts[rank, step] = start, set().union(*(who for time, who in bounds if time == start))
    return starts


@pytest.mark.parametrize("forwarding", ["cut-through", "store-and-forward"])
@pytest.mark.parametrize("endpoint", [NO_COST, COSTS])
def test_every_wait_of_those_who_need_a_late_rank_ends_at_its_coming(
    endpoint: Endpoint, forwarding: str, tmp_path: Path
) -> None:
    # so late that everything else is long over: what ends later had to wait for it
    request = Request(
        "all_to_all",
        1 << 20,
        tuple(range(16)),
        ("all-pairs",),
        chunks=2,
        forwarding=forwarding,
        release_ps={5: 10**10},
    )
    trace = written(tmp_path, [run_collective(fabric_of("torus:4x4"), request, endpoint)], endpoint)
    events, cause_of = causes(trace)
    names = {
        (events[cause_of[i]]["name"], events[cause_of[i]]["on"])
        for i, event in events.items()
        if event["start_ns"] > 10**7 // 2
    }
    assert names == {("late", 5)}
    arrivals = [event for event in events.values() if event["name"] == "last arrival"]
    # rank 5 had all that others sent when it came, and waits for none
    assert {event["on"] for event in arrivals} == set(range(16)) - {5}
