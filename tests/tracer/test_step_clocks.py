"""Host and device may both have steps of one rank: is each kept on its own clock, from the file to Perfetto?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from tests.tracer.perfetto_traces import CORE, Row, event, step, trace_of, track
from tests.tracer.two_clocks import DEVICE_STEPS, HOST_LABELS, record_two_clocks

from trnprof.tracer.formats.perfetto_export.export import export
from trnprof.tracer.merge import merge
from trnprof.tracer.reader import Trace, open_trace

DEVICE_LABELS = tuple(f"device {n}" for n in range(len(DEVICE_STEPS)))


def shown_steps(trace: Trace, scratch: Path) -> dict[tuple[str, ...], list[tuple[str, int]]]:
    """Label and start of the steps in the Perfetto file, by the names of the tracks they stand under, outermost first."""
    path = scratch / "x.pftrace"
    export(trace, path)
    message = pb.Trace()
    message.ParseFromString(path.read_bytes())
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor
        for p in message.packet
        if p.HasField("track_descriptor")
    }
    names = {e.iid: e.name for p in message.packet for e in p.interned_data.event_names}

    def place(uuid: int) -> tuple[str, ...]:
        at = tracks[uuid]
        above = place(at.parent_uuid) if at.parent_uuid else ()
        return (*above, at.name)

    found: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for packet in message.packet:
        slice_: Any = packet.track_event
        if slice_.type != pb.TrackEvent.TYPE_SLICE_BEGIN:
            continue
        where = place(slice_.track_uuid)
        if where[-1].startswith("steps"):
            found.setdefault(where, []).append((names[slice_.name_iid], packet.timestamp))
    return found


def labels_by_kind(trace: Trace) -> dict[str, tuple[str, ...]]:
    """Labels of the steps by the kind of their clock."""
    kinds = {c["clock_id"]: c["kind"] for f in trace.fragments for c in f["clocks"]}
    steps = trace.steps.sort("clock_id", "step")
    return {
        kind: tuple(steps.filter(pl.col("clock_id") == clock)["label"])
        for clock, kind in kinds.items()
    }


@pytest.mark.parametrize("host_first", [True, False])
def test_each_step_keeps_its_clock(tmp_path: Path, host_first: bool) -> None:
    trace = open_trace(record_two_clocks(tmp_path / "t.trnprof", host_first))
    assert set(trace.steps["clock_id"]) == {0, 1}
    assert labels_by_kind(trace) == {"host": HOST_LABELS, "device": DEVICE_LABELS}
    assert trace.validate() == []


def test_merged_traces_keep_the_clocks_of_steps(tmp_path: Path) -> None:
    parts = [record_two_clocks(tmp_path / f"{n}.trnprof", host_first=bool(n)) for n in range(2)]
    trace = open_trace(merge(parts, tmp_path / "all.trnprof"))
    kinds = {c["clock_id"]: c["kind"] for f in trace.fragments for c in f["clocks"]}
    is_host = trace.steps["label"].str.starts_with("host").to_list()
    assert [kinds[clock] == "host" for clock in trace.steps["clock_id"]] == is_host
    assert sorted(kinds.values()) == ["device", "host", "host"]


@pytest.mark.parametrize("host_first", [True, False])
def test_perfetto_shows_steps_under_their_own_clock(tmp_path: Path, host_first: bool) -> None:
    trace = open_trace(record_two_clocks(tmp_path / "t.trnprof", host_first))
    found = shown_steps(trace, tmp_path)
    by_clock = {where[0]: (where, steps) for where, steps in found.items()}
    assert by_clock.keys() == {"host time", "device time (emulated)"}
    where, steps = by_clock["device time (emulated)"]
    assert where[1:] == ("host0", "chip 0", "core 0", "steps")
    assert steps == [(f"device {n}", start) for n, (start, _) in enumerate(DEVICE_STEPS)]
    where, steps = by_clock["host time"]
    assert where[2:] == ("steps of rank 0",)
    assert tuple(label for label, _ in steps) == HOST_LABELS


HOST: Row = {"clock_id": 1, "kind": "host", "epoch_unix_ns": 10**18}
DEVICE: Row = {"clock_id": 0, "kind": "device", "epoch_unix_ns": None}
ALIGNED: Row = {"clock_id": 0, "kind": "device", "epoch_unix_ns": 10**18}
HOST_TRACK = track(9, "host", "box", clock_id=1)


@pytest.mark.parametrize(
    ("clocks", "more_tracks", "expected"),
    [
        pytest.param(
            [DEVICE, HOST],
            [HOST_TRACK],
            {
                ("device time", "host0", "chip 0", "core 0", "steps"),
                ("host time", "box", "steps of rank 0"),
            },
            id="host without events",
        ),
        pytest.param(
            [DEVICE, HOST],
            [],
            {
                ("device time", "host0", "chip 0", "core 0", "steps"),
                ("host time", "steps of rank 0"),
            },
            id="host without tracks",
        ),
        pytest.param(
            [ALIGNED, HOST],
            [HOST_TRACK],
            {("host0", "chip 0", "core 0", "steps"), ("box", "steps of rank 0")},
            id="one axis",
        ),
    ],
)
def test_steps_of_a_clock_without_events_stand_under_it(
    tmp_path: Path, clocks: list[Row], more_tracks: list[Row], expected: set[tuple[str, ...]]
) -> None:
    steps = [step(0, 5, 9), step(0, 7, 8, clock_id=1)]
    tracks = [*CORE, *more_tracks]
    trace = trace_of(events=[event(0, 3, 5, 4)], tracks=tracks, steps=steps, clocks=clocks)
    assert shown_steps(trace, tmp_path).keys() == expected


def test_order_of_steps_is_that_of_one_clock() -> None:
    """Steps of two clocks overlap freely; those of one clock and rank may not."""
    steps = [step(0, 0, 10), step(1, 10, 20), step(0, 5, 9, clock_id=1), step(1, 9, 12, clock_id=1)]
    clocks = [DEVICE, HOST]
    assert trace_of(steps=steps, clocks=clocks).validate() == []
    again = [*steps, step(1, 11, 15, clock_id=1)]
    kinds = {p.kind: p.count for p in trace_of(steps=again, clocks=clocks).validate()}
    assert kinds == {"duplicate_step": 2, "step_order": 1}
