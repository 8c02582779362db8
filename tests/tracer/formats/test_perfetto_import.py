"""Perfetto files read the way the trace processor reads them: random mixtures of what writers do, row by row."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from tests.trace_processor import needs_trace_processor, query
from tests.tracer.formats.perfetto_files import (
    CLEARED,
    MONOTONIC,
    NEEDS,
    REALTIME,
    compressed,
    event,
    file_of,
    mixture,
    packet,
    snapshot,
    thread,
    track,
    written,
)
from tests.tracer.formats.staged import events, staged, table

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.perfetto_export.export import export
from trnprof.tracer.formats.perfetto_import import state as perfetto_import_state
from trnprof.tracer.formats.perfetto_import.format import FORMAT
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.reader import open_trace

SLICES = """select s.ts, s.dur, s.name, s.category, coalesce(th.name || ' ' || th.tid, t.name) as track,
    (select json_group_array(json_array(key, value_type, int_value, string_value, real_value)) from args a
     where a.arg_set_id = s.arg_set_id and key glob 'debug.*') as arguments
    from slice s join track t on t.id = s.track_id left join thread_track tt on tt.id = t.id left join thread th using (utid)"""
ARROWS = """select a.ts as first, a.name as source, b.ts as second, b.name as target
    from flow f join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in where a.id != b.id"""
SAMPLES = """select c.ts, c.value, t.name, t.unit from counter c join counter_track t on t.id = c.track_id"""
SAMPLE_TRACES = Path(__file__).parents[3] / "sample_traces"


def their_slices(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(
        (int(r["ts"]), int(r["dur"]), r["name"], r["category"], r["track"], their_arguments(r))
        for r in rows
    )


def their_samples(rows: list[dict[str, Any]]) -> Counter[Any]:
    units = {"bytes": "B", "W": "W", "": "1", None: "1"}
    return Counter((int(r["ts"]), r["value"], r["name"], units[r["unit"]]) for r in rows)


def their_arguments(row: dict[str, Any]) -> Any:
    found = {}
    for key, kind, whole, text, real in json.loads(row["arguments"]):
        value = {"string": text, "real": real, "bool": whole == 1}.get(kind, whole)
        found[key.removeprefix("debug.")] = value % 2**64 if kind == "uint" else value
    return frozenset(found.items())


def our_slices(stage: Stage) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for r in events(stage).iter_rows(named=True):
        attributes = json.loads(r["attributes"] or "{}")
        known = r["category"] if r["category"] not in ("host", "marker") else None
        length = -1 if r["end_ns"] == UNFINISHED else r["end_ns"] - r["start_ns"]
        categories = attributes.pop("categories", known)
        arguments = frozenset(flat("", attributes))
        found[r["start_ns"], length, r["name"], categories, r["track"], arguments] += 1
    return found


def flat(key: str, value: Any) -> list[tuple[str, Any]]:
    """Keys as the trace processor writes them: ``a.b[0]``."""
    if isinstance(value, dict):
        inner = [(f"{key}.{name}".lstrip("."), each) for name, each in value.items()]
    elif isinstance(value, list):
        inner = [(f"{key}[{i}]", each) for i, each in enumerate(value)]
    else:
        return [(key, value)]
    return [pair for name, each in inner for pair in flat(name, each)]


def our_arrows(stage: Stage) -> Counter[Any]:
    """Edges, forward in time: the processor turns those round whose target began before their source."""
    rows = events(stage).select("start_ns", "name").rows()
    found = table(stage, "flows").select("source_row", "target_row").rows()
    pairs = [(rows[source], rows[target]) for source, target in found]
    return Counter((*a, *b) if a[0] <= b[0] else (*b, *a) for a, b in pairs)


def our_samples(stage: Stage) -> Counter[Any]:
    found = table(stage, "counters").rows()
    places = [(stage.timelines[t].name, stage.timelines[t].unit) for t, _, _ in found]
    return Counter((at, value, *place) for (_, at, value), place in zip(found, places, strict=True))


@needs_trace_processor
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32))
def test_mixtures_are_read_as_the_trace_processor_reads_them(seed: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = written(Path(scratch) / "x.pftrace", mixture(seed, 300))
        slices, arrows, samples = query(path, SLICES, ARROWS, SAMPLES, strict=False)
        stage = staged(FORMAT, path, Path(scratch) / "stage")
        assert our_slices(stage) == their_slices(slices)
        assert our_arrows(stage) == Counter(
            (int(r["first"]), r["source"], int(r["second"]), r["target"]) for r in arrows
        )
        assert our_samples(stage) == their_samples(samples)


@needs_trace_processor
def test_an_export_is_read_as_the_trace_processor_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    export(open_trace(SAMPLE_TRACES / "transformer-trn2.trnprof"), path, flows="all")
    slices, arrows, samples = query(path, SLICES, ARROWS, SAMPLES)
    stage = staged(FORMAT, path, tmp_path / "stage")
    rows = events(stage).select("start_ns", "end_ns", "name", "category", "track").rows()
    assert Counter((s, e - s, *rest) for s, e, *rest in rows) == Counter(
        (int(r["ts"]), int(r["dur"]), r["name"], r["category"], r["track"])
        for r in slices
        if r["category"] != "step"
    )
    assert our_arrows(stage) == Counter(
        (int(r["first"]), r["source"], int(r["second"]), r["target"]) for r in arrows
    )
    assert our_samples(stage) == their_samples(samples)


def read(tmp_path: Path, *packets: Any) -> Stage:
    return staged(FORMAT, written(tmp_path / "x.pftrace", packets), tmp_path / "stage")


def rows_of(stage: Stage) -> list[tuple[Any, ...]]:
    return events(stage).select("name", "start_ns", "end_ns").rows()


@needs_trace_processor
def test_what_follows_lost_packets_waits_for_a_new_state(tmp_path: Path) -> None:
    def interned(at: int, **fields: Any) -> Any:
        return packet(
            7, timestamp=at, track_event=pb.TrackEvent(type=3, track_uuid=5, name_iid=1), **fields
        )

    names = pb.InternedData(event_names=[pb.EventName(iid=1, name="known")])
    other = pb.InternedData(event_names=[pb.EventName(iid=1, name="other")])
    packets = [
        track(5, "t"),
        interned(1, sequence_flags=CLEARED, interned_data=names),
        interned(2, sequence_flags=NEEDS),
        interned(3, sequence_flags=NEEDS, previous_packet_dropped=1),
        interned(4, sequence_flags=NEEDS),
        event("I", 5, 5, sequence=7, name="needs nothing"),
        interned(6, sequence_flags=CLEARED, interned_data=other),
        interned(7, sequence_flags=NEEDS),
    ]
    stage = read(tmp_path, *packets)
    assert rows_of(stage) == [
        ("known", 1, 1), ("known", 2, 2), ("needs nothing", 5, 5), ("other", 6, 6), ("other", 7, 7),
    ]  # fmt: skip
    counts = {f.kind: f.count for f in stage.audit.findings}
    assert counts == {"stateless_packets": 2, "lost_packets": 1}
    (theirs,) = query(tmp_path / "x.pftrace", "select name, ts from slice", strict=False)
    assert [(r["name"], r["ts"], r["ts"]) for r in theirs] == rows_of(stage)


def test_an_end_by_name_ends_that_slice(tmp_path: Path) -> None:
    """The processor cuts b where a ends, and then lacks a slice for b's own end."""
    stage = read(
        tmp_path,
        track(5, "t"),
        event("B", 5, 0, name="a"),
        event("B", 5, 5, name="b"),
        event("E", 5, 10, name="a"),
        event("E", 5, 15, name="b"),
        event("E", 5, 20, name="c"),
    )
    assert rows_of(stage) == [("a", 0, 10), ("b", 5, 15)]
    assert [(f.kind, f.count) for f in stage.audit.findings] == [("unmatched_ends", 1)]


def test_clocks_and_wall_clock(tmp_path: Path) -> None:
    message = pb.TrackEvent(type=3, track_uuid=5, name="x")
    stage = read(
        tmp_path,
        snapshot(1, boottime=1_000, monotonic=400, realtime=10**18),
        track(5, "t"),
        packet(timestamp=450, timestamp_clock_id=MONOTONIC, track_event=message),
        packet(timestamp=10**18 + 7, timestamp_clock_id=REALTIME, track_event=message),
        packet(timestamp=9, timestamp_clock_id=200, track_event=message),
    )
    assert rows_of(stage) == [("x", 1_050, 1_050), ("x", 1_007, 1_007)]
    assert stage.facts.base_unix_ns == 10**18 - 1_000
    assert ("unknown_clock", 1) in [(f.kind, f.count) for f in stage.audit.findings]


def test_fields_without_a_column_are_kept(tmp_path: Path) -> None:
    message = pb.TrackEvent(type=3, track_uuid=5, name="x", correlation_id=2**63)
    message.log_message.body_iid = 3
    message.MergeFromString(b"\xea\xea\x04\x02hi" + b"\xf0\xea\x04\x07")
    stage = read(tmp_path, track(5, "t"), packet(timestamp=1, track_event=message))
    assert json.loads(events(stage)["attributes"].item()) == {
        "TrackEvent.correlation_id": 2**63,
        "TrackEvent.log_message": "EAM=",
        "TrackEvent.9901": "aGk=",
        "TrackEvent.9902": 7,
    }


def test_packets_of_other_sources_are_told(tmp_path: Path) -> None:
    ftrace = pb.TracePacket(ftrace_events=pb.FtraceEventBundle(cpu=0))
    state = pb.TrackEvent(type=5, track_uuid=5, name="busy")
    stage = read(
        tmp_path, track(5, "t"), event("I", 5, 1, name="x"), ftrace, ftrace, packet(timestamp=2, track_event=state)
    )  # fmt: skip
    found = {f.where.split(", ")[1]: (f.severity, f.count) for f in stage.audit.findings}
    assert found == {"ftrace_events": ("note", 2), "TYPE_STATE": ("warning", 1)}


def test_descriptors_again_and_in_a_circle(tmp_path: Path) -> None:
    stage = read(
        tmp_path,
        track(5, "old name", 6),
        track(6, "above", 5),
        track(7, "itself", 7),
        track(5, "new name"),
        event("I", 5, 1, name="x"),
        event("I", 7, 2, name="y"),
    )
    assert events(stage)["track"].to_list() == ["new name", "itself"]


def test_threads_of_processes(tmp_path: Path) -> None:
    process = pb.ProcessDescriptor(pid=40, process_name="job")
    stage = read(
        tmp_path,
        track(4, process=process),
        thread(5, 40, 41, "main"),
        thread(5, 40, 41, "main"),
        event("I", 5, 1, name="x"),
        event("I", 4, 2, name="of the process"),
        event("I", 9, 3, name="of a track that nothing describes"),
    )
    lines = [(t.name, t.parent) for t in stage.timelines]
    assert lines == [("job 40", None), ("main 41", 0), ("of a track that nothing describes", None)]


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "no packet"), (b"\n\x00", ""), (b"{}", "no packet"), (b"\x0a\xff\xff\xff\xff\x7fx", "no packet")],
)  # fmt: skip
def test_files_that_are_none(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(data)
    if why:
        with pytest.raises(ProfileError, match=why):
            staged(FORMAT, path, tmp_path / "stage")
    else:
        assert staged(FORMAT, path, tmp_path / "stage").rows == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.integers(1, 4), st.booleans())
def test_damaged_files_are_salvaged(seed: int, at: int, flips: int, is_cut: bool) -> None:
    data = bytearray(file_of(mixture(seed % 3, 60)))
    pick = random.Random(at)
    for _ in range(flips):
        data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
    if is_cut:
        del data[pick.randrange(len(data)) :]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "x.pftrace"
        path.write_bytes(data)
        with contextlib.suppress(ProfileError):
            stage = staged(FORMAT, path, Path(scratch) / "stage")
            attributes = events(stage)["attributes"].drop_nulls() if stage.rows else []
            assert all(isinstance(json.loads(text), dict) for text in attributes)


def test_a_cut_file_keeps_whole_packets(tmp_path: Path) -> None:
    packets = [track(5, "t"), *(event("I", 5, i, name="x") for i in range(10))]
    whole = file_of(packets)
    path = tmp_path / "x.pftrace"
    path.write_bytes(whole[:-3])
    stage = staged(FORMAT, path, tmp_path / "stage")
    assert stage.rows == 9
    (finding,) = stage.audit.findings
    assert finding.kind == "truncated"
    assert finding.example == f"byte {len(file_of(packets[:-1]))}"


def test_nesting_and_bombs_are_bounded(tmp_path: Path) -> None:
    note = pb.DebugAnnotation(name="n", int_value=1)
    for _ in range(90):
        note = pb.DebugAnnotation(name="n", dict_entries=[note])
    deep = pb.TrackEvent(type=3, track_uuid=5, name="deep", debug_annotations=[note])
    bomb = pb.TracePacket(compressed_packets=zlib.compress(bytes(200 << 20), 9))
    nested = compressed([compressed([compressed([event("I", 5, 3, name="hidden")])])])
    stage = read(tmp_path, track(5, "t"), packet(timestamp=1, track_event=deep), bomb, nested)
    assert rows_of(stage) == [("deep", 1, 1)]
    text = events(stage)["attributes"].item()
    assert text.count("{") == text.count("}") <= 62
    assert {f.kind for f in stage.audit.findings} == {"malformed_packets"}


def test_sequences_beyond_number_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto_import_state, "_MAX_SEQUENCES", 3)
    packets = [event("I", 5, 1, sequence=n, name="x") for n in range(1, 5)]
    assert read(tmp_path, *packets[:3]).rows == 3
    with pytest.raises(ProfileError, match=r"x.pftrace: more than 3 packet sequences"):
        staged(FORMAT, written(tmp_path / "x.pftrace", packets), tmp_path / "again")
