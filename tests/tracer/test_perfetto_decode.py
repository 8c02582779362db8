"""What the exporter writes, read back by perfetto's own protobuf classes."""

from __future__ import annotations

import gzip
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from tests.tracer.perfetto_traces import CORE, Row, event, flow, step, trace_of, track

from trnprof.tracer.formats.perfetto_export.encode import (
    Slices,
    encode_counters,
    encode_slices,
    no_pieces,
    varint,
)
from trnprof.tracer.formats.perfetto_export.export import export
from trnprof.tracer.reader import Trace

UINT63 = st.integers(0, 2**63 - 1)
WORDS = st.text(st.characters(codec="utf-8"), max_size=6)


def decoded(trace: Trace, **options: Any) -> tuple[list[Any], Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "x.pftrace"
        summary = export(trace, path, **options)
        message = pb.Trace()
        message.ParseFromString(path.read_bytes())
    return list(message.packet), summary


def slices_of(packets: list[Any]) -> tuple[dict[int, list[tuple[Any, ...]]], dict[int, Any]]:
    """Finished and open slices of each track, matched as Perfetto matches them, and each track's descriptor."""
    names = {e.iid: e.name for p in packets for e in p.interned_data.event_names}
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor
        for p in packets
        if p.HasField("track_descriptor")
    }
    events = [p for p in packets if p.HasField("track_event")]
    events.sort(key=lambda p: p.timestamp)
    stacks: dict[int, list[tuple[int, str]]] = defaultdict(list)
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for packet in events:
        stack = stacks[packet.track_event.track_uuid]
        if packet.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            stack.append((packet.timestamp, names[packet.track_event.name_iid]))
        elif packet.track_event.type == pb.TrackEvent.TYPE_SLICE_END:
            begin, name = stack.pop()
            found[packet.track_event.track_uuid].append((begin, packet.timestamp - begin, name))
    for uuid, stack in stacks.items():
        found[uuid] += [(begin, None, name) for begin, name in stack]
    return found, tracks


@given(st.integers(0, 2**64 - 1))
def test_varint_is_that_of_protobuf(value: int) -> None:
    assert pb.DebugAnnotation(uint_value=value).SerializeToString()[1:] == varint(value)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(UINT63, UINT63, UINT63, st.booleans(), st.integers(1, 2**31)), max_size=5)
)
def test_slice_packets(rows: list[tuple[int, int, int, bool, int]]) -> None:
    start, end, uuid, is_open, name = (
        (list(c) for c in zip(*rows, strict=True)) if rows else [[]] * 5
    )
    u64 = [np.array(c, np.uint64) for c in (start, end, uuid, name)]
    slices = Slices(
        u64[0], u64[1], np.array(is_open, bool), u64[2], u64[3], np.ones(len(rows), np.uint64)
    )
    none = no_pieces(len(rows))
    message = pb.Trace()
    message.ParseFromString(encode_slices(slices, none, none, none, none).tobytes())
    packets = iter(message.packet)
    for row in rows:
        begin = next(packets)
        assert (begin.timestamp, begin.track_event.track_uuid) == (row[0], row[2])
        assert begin.track_event.name_iid == row[4]
        assert begin.sequence_flags == pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        if not row[3]:
            finish = next(packets)
            assert (finish.timestamp, finish.track_event.track_uuid) == (row[1], row[2])
            assert finish.track_event.type == pb.TrackEvent.TYPE_SLICE_END
    assert next(packets, None) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(UINT63, UINT63, st.floats(allow_nan=False)), max_size=5))
def test_counter_packets(rows: list[tuple[int, int, float]]) -> None:
    time, uuid, value = (list(c) for c in zip(*rows, strict=True)) if rows else [[]] * 3
    data = encode_counters(
        np.array(time, np.uint64), np.array(uuid, np.uint64), np.array(value, float)
    )
    message = pb.Trace()
    message.ParseFromString(data.tobytes())
    got = [
        (p.timestamp, p.track_event.track_uuid, p.track_event.double_counter_value)
        for p in message.packet
    ]
    assert got == rows


@st.composite
def lanes(draw: st.DrawFn) -> list[Row]:
    """Events that fill tracks 3 to 5 without overlap: gaps, no gaps, no length, nested marks, an open one at the end."""
    rows: list[Row] = []
    for lane in (3, 4, 5):
        at = draw(st.integers(-20, 20))
        for _ in range(draw(st.integers(0, 6))):
            at += draw(st.integers(0, 3))
            length = draw(st.integers(0, 4))
            rows.append(event(0, lane, at, length, draw(WORDS)))
            if length and draw(st.booleans()):
                rows.append(event(0, lane, at + draw(st.integers(0, length)), 0, "mark"))
            at += length
        if draw(st.booleans()):
            rows.append(event(0, lane, at, None, draw(WORDS)))
    order = draw(st.permutations(range(len(rows))))
    return [rows[i] | {"event_id": n} for n, i in enumerate(order)]


@settings(max_examples=60, deadline=None)
@given(lanes())
def test_random_lanes_come_back(rows: list[Row]) -> None:
    packets, summary = decoded(trace_of(events=rows), flows="none")
    found, tracks = slices_of(packets)
    offset = summary.offsets_ns["device time"]
    assert offset == -min([0, *(row["start_ns"] for row in rows)])
    got = {(tracks[uuid].name, *s) for uuid, slices in found.items() for s in slices}
    names = {row["track_id"]: row["name"] for row in CORE}
    assert got == {
        (
            names[r["track_id"]],
            r["start_ns"] + offset,
            r["duration_ns"],
            r["name"].replace("\0", "␀") or "(unnamed)",
        )
        for r in rows
    }
    assert sum(map(len, found.values())) == summary.slices == len(rows)
    assert summary.unfinished == sum(r["duration_ns"] is None for r in rows)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "step": st.none() | st.integers(-(2**31), 2**31 - 1),
                "dtype": st.none() | WORDS,
                "flops": st.none() | st.floats(allow_nan=False),
                "is_transpose": st.none() | st.booleans(),
                "bytes": st.none() | st.integers(-(2**63), 2**63 - 1),
                "ready_ns": st.none() | st.integers(0, 2**40),
                "attributes": st.none() | WORDS,
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_arguments_come_back_typed(rows: list[Row]) -> None:
    packets, _ = decoded(trace_of(events=[event(i, 3, i * 10, 5, **r) for i, r in enumerate(rows)]))
    names = {e.iid: e.name for p in packets for e in p.interned_data.debug_annotation_names}
    strings = {
        e.iid: e.str.decode()
        for p in packets
        for e in p.interned_data.debug_annotation_string_values
    }

    def value(annotation: Any) -> Any:
        field = annotation.WhichOneof("value")
        found = getattr(annotation, field)
        return strings[found] if field == "string_value_iid" else found

    begins = [
        p.track_event for p in packets if p.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN
    ]
    for row, begin in zip(rows, begins, strict=True):
        expected = {
            k: v.replace("\0", "␀") if isinstance(v, str) else v
            for k, v in row.items()
            if v is not None
        }
        if not expected.get("attributes"):
            expected.pop("attributes", None)
        got = {names[a.name_iid]: value(a) for a in begin.debug_annotations}
        assert got == expected
        assert {k: type(v) for k, v in got.items()} == {k: type(v) for k, v in expected.items()}


def test_first_packet_alone_clears_the_state() -> None:
    packets, _ = decoded(trace_of(events=[event(0, 3, 0, 1)]))
    cleared = [p.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED for p in packets]
    assert cleared == [pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED] + [0] * (len(packets) - 1)
    assert {p.trusted_packet_sequence_id for p in packets} == {1}


def test_lanes_are_merged_and_namesakes_are_not() -> None:
    tracks = [
        track(0, "host", "host0"),
        track(1, "thread", "Main", 0, lane=0),
        track(2, "thread", "Main", 0, lane=1),
        track(3, "dma_queue", "q0", 0, lane=0),
        track(4, "dma_queue", "q0", 0, lane=0),
        track(5, "dma_queue", "q0", 0, lane=1),
    ]
    packets, _ = decoded(trace_of(events=[event(i, i, 0, 5) for i in range(1, 6)], tracks=tracks))
    _, found = slices_of(packets)
    main, q0 = ([d for d in found.values() if d.name == name] for name in ("Main", "q0"))
    none = pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
    by_key = pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
    assert [d.sibling_merge_behavior for d in main] == [by_key] * 2
    assert len({d.sibling_merge_key for d in main}) == 1
    assert [d.sibling_merge_behavior for d in q0] == [none, by_key, by_key]
    assert q0[1].sibling_merge_key == q0[2].sibling_merge_key != main[0].sibling_merge_key


def test_siblings_are_in_explicit_order() -> None:
    tracks = [track(0, "core", "core")] + [
        track(i, "engine", f"engine {i}", 0, sort_order=10 - i) for i in range(1, 5)
    ]
    packets, _ = decoded(trace_of(events=[event(i, i, 0, 5) for i in range(1, 5)], tracks=tracks))
    _, found = slices_of(packets)
    assert found[0].child_ordering == pb.TrackDescriptor.EXPLICIT
    core = next(d for d in found.values() if d.name == "core")
    assert core.child_ordering == pb.TrackDescriptor.EXPLICIT
    engines = sorted(
        (d.sibling_order_rank, d.name) for d in found.values() if d.parent_uuid == core.uuid
    )
    assert [name for _, name in engines] == ["engine 4", "engine 3", "engine 2", "engine 1"]


def test_hosts_that_two_writers_describe_are_one() -> None:
    tracks = [
        track(0, "host", "host0"),
        track(1, "thread", "Main", 0),
        track(2, "host", "host0"),
        track(3, "thread", "Main", 2),
    ]
    packets, _ = decoded(trace_of(events=[event(1, 1, 0, 9), event(3, 3, 0, 5)], tracks=tracks))
    found, descriptors = slices_of(packets)
    hosts = [d for d in descriptors.values() if d.name == "host0"]
    assert len(hosts) == 1
    assert {descriptors[uuid].parent_uuid for uuid in found} == {hosts[0].uuid}
    assert len(found) == 2


def critical_by_hand(rows: list[Row]) -> set[tuple[int, int]]:
    """Walk back from the last event of each step, one event at a time."""
    by_id = {r["event_id"]: r for r in rows}
    edges = set()
    for number in {r["step"] for r in rows}:
        own = [r for r in rows if r["step"] == number]
        at = max(own, key=lambda r: (r["start_ns"] + r["duration_ns"], -r["event_id"]))
        while at["blocked_by"] is not None:
            edges.add((at["blocked_by"], at["event_id"]))
            at = by_id[at["blocked_by"]]
    return edges


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_critical_flows_are_the_walk_back_of_each_step(data: st.DataObject) -> None:
    rows: list[Row] = []
    free = {3: 0, 4: 0, 5: 0}
    for i in range(data.draw(st.integers(1, 12))):
        lane = data.draw(st.sampled_from([3, 4, 5]))
        before = data.draw(st.none() | st.sampled_from(rows)) if rows else None
        start = (
            free[lane]
            if before is None
            else max(free[lane], before["start_ns"] + before["duration_ns"])
        )
        length = data.draw(st.integers(1, 5))
        free[lane] = start + length
        blocker = None if before is None else before["event_id"]
        rows.append(event(7 * i, lane, start, length, step=i // 5, blocked_by=blocker))
    packets, summary = decoded(trace_of(events=rows), flows="critical")
    assert drawn_edges(packets, rows) == critical_by_hand(rows)
    assert summary.flows == len(critical_by_hand(rows))
    assert summary.flows_undrawn == 0


def drawn_edges(packets: list[Any], rows: list[Row]) -> set[tuple[int, int]]:
    """Source and target of each arrow by start and track, as event ids."""
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor.name
        for p in packets
        if p.HasField("track_descriptor")
    }
    names = {row["track_id"]: row["name"] for row in CORE}
    event_at = {(names[r["track_id"]], r["start_ns"]): r["event_id"] for r in rows}
    source: dict[int, int] = {}
    target: dict[int, int] = {}
    for packet in packets:
        if packet.track_event.flow_ids or packet.track_event.terminating_flow_ids:
            at = event_at[tracks[packet.track_event.track_uuid], packet.timestamp]
            source |= dict.fromkeys(packet.track_event.flow_ids, at)
            target |= dict.fromkeys(packet.track_event.terminating_flow_ids, at)
    assert source.keys() == target.keys()
    return {(source[i], target[i]) for i in source}


def test_a_cycle_of_blockers_ends() -> None:
    rows = [event(1, 3, 0, 5, blocked_by=2), event(2, 4, 0, 6, blocked_by=1)]
    _, summary = decoded(trace_of(events=rows), flows="critical")
    assert summary.flows + summary.flows_undrawn == 2


@pytest.mark.parametrize(("choice", "count"), [("none", 0), ("collective", 1), ("all", 3)])
def test_choice_of_flows(choice: str, count: int) -> None:
    rows = [event(i, 3 + i % 3, i * 10, 10) for i in range(4)]
    edges = [flow(0, 1), flow(1, 2, "collective"), flow(0, 3, "buffer")]
    _, summary = decoded(trace_of(events=rows, flows=edges), flows=choice)
    assert summary.flows == count


def test_edges_that_no_arrow_can_show_are_counted() -> None:
    tracks = [*CORE, track(9, "thread", "Main", 0, clock_id=1)]
    rows = [event(0, 3, 10, 5), event(1, 4, 0, 5), event(2, 9, 100, 5)]
    edges = [flow(0, 1), flow(1, 2), flow(77, 1), flow(1, 0)]
    _, summary = decoded(trace_of(events=rows, flows=edges, tracks=tracks), flows="all")
    assert (summary.flows, summary.flows_undrawn) == (1, 3)


def test_gzip_holds_the_same_bytes(tmp_path: Path) -> None:
    trace = trace_of(events=[event(i, 3, i, 1) for i in range(100)])
    export(trace, tmp_path / "a.pftrace")
    export(trace, tmp_path / "a.pftrace.gz")
    packed = (tmp_path / "a.pftrace.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "a.pftrace").read_bytes()
    export(trace, tmp_path / "a.pftrace.gz", force=True)
    assert (tmp_path / "a.pftrace.gz").read_bytes() == packed


def test_batches_out_of_order_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnprof.tracer.formats.perfetto_export.order.BATCH_ROWS", 3)
    rows = [event(i, 3 + i % 2, (50 - i) * 10, 10) for i in range(50)]
    packets, summary = decoded(trace_of(events=rows))
    found, _ = slices_of(packets)
    assert summary.slices == 50
    assert {s[1] for slices in found.values() for s in slices} == {10}


def test_replicas_are_told_once() -> None:
    tracks = [
        track(0, "host", "host0", replica_count=1),
        track(1, "core", "core 0", 0, replica_count=144),
        track(2, "engine", "Tensor", 1, replica_count=144),
        track(3, "core", "core 1", 0, replica_of=1),
    ]
    packets, _ = decoded(trace_of(events=[event(0, 2, 0, 1)], tracks=tracks))
    names = [p.track_descriptor.name for p in packets if p.HasField("track_descriptor")]
    assert names == ["", "host0", "core 0 ×144", "Tensor"]


def test_steps_that_overlap_get_lanes() -> None:
    rows = [step(0, 0, 10), step(1, 10, 25), step(1, 12, 20), step(2, 25, 30)]
    packets, summary = decoded(trace_of(events=[event(0, 3, 0, 1)], steps=rows))
    found, tracks = slices_of(packets)
    lanes = sorted(sorted(s[:2] for s in found[u]) for u in found if tracks[u].name == "steps")
    assert lanes == [[(0, 10), (10, 15), (25, 5)], [(12, 8)]]
    assert summary.steps == 4


def test_names_by_string_columns_are_taken_as_well() -> None:
    rows = trace_of(events=[event(0, 3, 0, 1, "matmul")]).events.collect()
    packets, _ = decoded(trace_of(events=rows.with_columns(pl.col("name").cast(pl.String))))
    assert [e.name for p in packets for e in p.interned_data.event_names] == ["matmul"]
