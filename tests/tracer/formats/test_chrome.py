"""Chrome traces: every phase, the public files recounted with Python's json, known faults, GPUs by name, damaged files."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tracer.formats.chrome_events import Event, arrows, at, listed, ns, spans, stage_of, x
from tests.tracer.formats.staged import counters, events, head_of, kinds, staged

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.chrome.format import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.reader import open_trace

SHARED = Path(__file__).parents[3].parent / "shared"
PUBLIC = sorted((SHARED / "traces" / "chrome").glob("*.json"))
FAULTS = SHARED / "oracles" / "faults"
needs_shared = pytest.mark.skipif(not PUBLIC, reason="no ../shared/traces beside the repository")
UNIX_US = 1_760_000_000_000_000


PAIRS_BY_HAND = {
    # begins, of which unfinished; ends without a beginning; ends with another name: counted by hand in the files
    "async_begin_end.json": (15, 3, 1, 0),
    "flow_simple.json": (0, 0, 0, 0),
    "instance_counters.json": (2, 0, 0, 0),
    "instant_events.json": (0, 0, 0, 0),
    "nanoseconds.json": (8, 0, 0, 0),
    "nestable_async.json": (9, 1, 1, 0),
    "simple_trace.json": (8, 0, 0, 1),
    "tall_trace.json": (18, 0, 0, 0),
}


@needs_shared
@pytest.mark.parametrize("path", PUBLIC, ids=lambda p: p.name)
def test_public_files(tmp_path: Path, path: Path) -> None:
    said = listed(json.loads(path.read_text()))
    phases = Counter(e["ph"] for e in said)
    begins, unfinished, alone, misnamed = PAIRS_BY_HAND[path.name]
    assert begins == sum(phases[p] for p in "BbS")
    assert FORMAT.recognise(head_of(path)) == 20
    stage = staged(FORMAT, path, tmp_path / "stage")
    assert stage.rows == sum(phases[p] for p in "XBbSTniIP")
    found = events(stage)
    complete = Counter(
        (e["name"], ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in said if e["ph"] == "X"
    )
    instants = Counter((e["name"], ns(e["ts"]), ns(e["ts"])) for e in said if e["ph"] in "iIPn")
    starts = Counter((e["name"], ns(e["ts"])) for e in said if e["ph"] in "BbS")
    rows = Counter(found.select("name", "start_ns", "end_ns").rows())
    assert not (complete + instants) - rows
    assert not starts - Counter(found.select("name", "start_ns").rows())
    is_step = pl.col("name").str.contains(": ", literal=True)
    assert found.filter(~is_step, end_ns=UNFINISHED).height == unfinished
    tally = {f.kind: f.count for f in stage.audit.findings}
    assert tally.get("unmatched_ends", 0) == alone
    assert tally.get("mismatched_ends", 0) == misnamed
    samples = [v for series in counters(stage).values() for v in series] if phases["C"] else []
    assert sorted(samples) == sorted(
        (ns(e["ts"]), float(v)) for e in said if e["ph"] == "C" for v in e["args"].values()
    )
    for event, text in zip(found["name"], found["attributes"], strict=True):
        assert text is None or isinstance(json.loads(text), dict), event


@needs_shared
def test_public_values(tmp_path: Path) -> None:
    folder = SHARED / "traces" / "chrome"
    flows = staged(FORMAT, folder / "flow_simple.json", tmp_path / "flows")
    assert arrows(flows) == {
        ("SenderB", "Blergh", "data"),
        ("SenderA", "OtherSlice", "data"),
        ("OtherSlice", "SomeSlice", "data"),
    }
    series = counters(staged(FORMAT, folder / "instance_counters.json", tmp_path / "counters"))
    assert series["counter[b]"] == [(9_524_000, 10.0), (9_631_000, 0.0)]
    assert len(series["counter[123]"]) == 6
    fine = spans(staged(FORMAT, folder / "nanoseconds.json", tmp_path / "ns"))
    assert [e - s for _, s, e in fine if e is not None] == [1100, 200, 300, 400, 11, 2, 3, 4]
    simple = staged(FORMAT, folder / "simple_trace.json", tmp_path / "simple")
    assert ("Asub with a name that wont fit", 827_000, 828_000) in spans(simple)
    header = simple.facts.metadata["chrome"]["header"]
    assert header["stackFrames"]["8"] == {"category": "m2", "name": "frame8", "parent": "1"}


def test_ends_are_matched_by_name_first(tmp_path: Path) -> None:
    overlapping = [at("B", "a", 0), at("B", "b", 1), at("E", "a", 2), at("E", "b", 3)]
    other_thread = [at("B", "a", 0, tid=2), {"ph": "E", "ts": 9, "pid": 1, "tid": 2}]
    stage = stage_of(tmp_path, overlapping + other_thread)
    assert spans(stage) == [("a", 0, 2_000), ("a", 0, 9_000), ("b", 1_000, 3_000)]
    assert not kinds(stage)


def test_what_ends_say_is_kept(tmp_path: Path) -> None:
    rows = [
        at("B", "same", 0, args={"k": 1}, cat="c", tts=5),
        at("E", "same", 1, args={"k": 1}),
        at("B", "new", 2, cat="c"),
        at("E", "new", 3, args={"result": "ok"}, tts=7),
    ]
    attributes = [json.loads(t) for t in events(stage_of(tmp_path, rows))["attributes"]]
    assert attributes == [
        {"k": 1, "event": {"cat": "c", "tts": 5}},
        {"event": {"cat": "c"}, "end_event": {"result": "ok", "event": {"tts": 7}}},
    ]


def test_unclosed_and_unopened(tmp_path: Path) -> None:
    stage = stage_of(
        tmp_path, [at("E", "lost", 1), at("B", "open", 2), at("B", "in", 3), at("E", "in", 4)]
    )
    assert spans(stage) == [("open", 2_000, None), ("in", 3_000, 4_000)]
    (finding,) = stage.audit.findings
    assert (finding.kind, finding.count) == ("unmatched_ends", 1)
    assert "lost" in finding.example


def test_async_ids_and_their_scopes(tmp_path: Path) -> None:
    rows = [
        at("b", "x", 0, cat="a", id="1"),
        at("b", "x", 1, cat="b", id="1"),
        at("b", "x", 2, cat="a", id="1", scope="s"),
        at("b", "x", 3, pid=1, cat="a", id2={"local": "1"}),
        at("b", "x", 4, pid=2, cat="a", id2={"local": "1"}),
        at("b", "x", 5, pid=1, cat="g", id2={"global": "7"}),
        at("e", "x", 10, cat="a", id="1"),
        at("e", "x", 11, cat="b", id="1"),
        at("e", "x", 12, cat="a", id="1", scope="s"),
        at("e", "x", 13, pid=2, cat="a", id2={"local": "1"}),
        at("e", "x", 14, pid=1, cat="a", id2={"local": "1"}),
        at("e", "x", 15, pid=9, cat="g", id2={"global": "7"}),
    ]
    found = spans(stage_of(tmp_path, rows))
    assert found == [("x", k * 1000, e * 1000) for k, e in enumerate([10, 11, 12, 14, 13, 15])]


def test_objects_contexts_and_dumps(tmp_path: Path) -> None:
    rows = [
        at("N", "o", 1, cat="c", id="0x1"),
        at("O", "o", 2, cat="c", id="0x1", args={"snapshot": {"deep": [1]}}),
        at("D", "o", 5, cat="c", id="0x1"),
        at("(", "ctx", 1, id="0x9"),
        at(")", "ctx", 3, id="0x9"),
        at("v", "memory", 4, args={"dumps": {"process_totals": {}}}),
        at("V", "memory", 4),
        at("c", "sync", 5, args={"sync_id": "s1", "issue_ts": 4}),
        at("R", "mark", 6),
        at("P", "sample", 7, sf="3"),
        at("?", "odd", 8),
    ]
    stage = stage_of(tmp_path, rows)
    found = {
        (n, s): (e, k)
        for n, s, e, k in events(stage).select("name", "start_ns", "end_ns", "track").rows()
    }
    assert found["o", 1_000] == (5_000, "c (objects)")
    assert found["o", 2_000] == (2_000, "c (objects)")
    assert found["ctx", 1_000][0] == 3_000
    assert found["memory", 4_000] == (4_000, "process instants")
    assert found["mark", 6_000] == (6_000, "thread 1")
    assert stage.rows == 9
    assert kinds(stage) == {"unknown_phase"}
    sample = events(stage).filter(name="sample")["attributes"][0]
    assert json.loads(sample) == {"event": {"sf": "3", "ph": "P"}}


def test_flow_bindings(tmp_path: Path) -> None:
    rows = [
        x("outer", 0, 10),
        x("inner", 2, 4),
        x("next", 20, 5, tid=2),
        x("around", 12, 3, tid=2),
        at("s", "f", 3, cat="c", id=1),
        at("t", "f", 13, tid=2, cat="c", id=1),
        at("f", "f", 14, tid=2, cat="c", id=1),
        at("s", "f", 7, cat="c", id=2),
        at("f", "f", 14, tid=2, cat="c", id=2, bp="e"),
        at("s", "g", 3, cat="c", id=1),
        at("s", "h", 50, cat="c", id=8),
        {**x("out", 30, 1), "bind_id": "0x7", "flow_out": True},
        {**x("in", 40, 1, tid=2), "bind_id": "0x7", "flow_in": True},
    ]
    stage = stage_of(tmp_path, rows)
    assert arrows(stage) == {
        ("inner", "around", "data"),
        ("around", "next", "data"),
        ("outer", "around", "data"),
        ("out", "in", "data"),
    }
    assert {f.kind: f.count for f in stage.audit.findings} == {
        "dangling_flows": 1,
        "incomplete_flows": 1,
    }


def test_counters_have_series_and_ids(tmp_path: Path) -> None:
    rows = [
        at("C", "mem", 0, args={"heap": 1, "stack": "2.5"}),
        at("C", "mem", 1, args={"stack": 3, "other": None}),
        at("C", "mem", 2, pid=2, id="b", args={"value": 7}),
    ]
    stage = stage_of(tmp_path, [*rows, x("a", 0, 1), x("b", 0, 1, pid=2)])
    assert counters(stage) == {
        "process 1: mem heap": [(0, 1.0)],
        "process 1: mem stack": [(0, 2.5), (1_000, 3.0)],
        "process 2: mem[b]": [(2_000, 7.0)],
    }
    assert kinds(stage) == {"unreadable_values"}


def test_names_order_and_scopes(tmp_path: Path) -> None:
    def named(kind: str, pid: int, tid: int, **args: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}

    rows = [
        x("a", 0, 1, tid=7, pid=1),
        x("b", 0, 1, tid=8, pid=1),
        x("c", 0, 1, tid="main", pid=2),
        at("i", "p", 0, pid=2, s="p"),
        at("i", "g", 0, pid=2, s="g"),
        named("process_name", 1, 0, name="server"),
        named("thread_name", 1, 7, name="worker"),
        named("thread_sort_index", 1, 8, sort_index=-5),
        named("process_sort_index", 2, 0, sort_index=-1),
        named("trace_buffer_overflowed", 1, 0, overflowed_at_ts=3),
    ]
    stage = stage_of(tmp_path, rows)
    ordered = sorted(stage.timelines, key=lambda t: t.sort_order)
    assert [t.name for t in ordered] == [
        "process 2: main",
        "process 2: process instants",
        "server 1: thread 8",
        "server 1: worker",
        "global instants",
    ]
    assert kinds(stage) == {"ring_buffer_overwritten"}


@pytest.mark.parametrize(
    ("header", "first_us", "base"),
    [
        ({}, 0, None),
        ({}, UNIX_US, 0),
        ({"beginningOfTime": UNIX_US}, 0, UNIX_US * 1000),
        ({"baseTimeNanoseconds": UNIX_US * 1000}, 5, UNIX_US * 1000),
        ({"otherData": {"profile_start_ts": UNIX_US // 1000}}, 5, UNIX_US * 1000),
        ({"viztracer_metadata": {"baseTimeNanoseconds": UNIX_US * 1000}}, 5, UNIX_US * 1000),
    ],
)
def test_clock(tmp_path: Path, header: Event, first_us: int, base: int | None) -> None:
    stage = stage_of(tmp_path, {**header, "traceEvents": [x("a", first_us, 1)]})
    assert stage.facts.base_unix_ns == base


def test_unit_is_never_guessed_but_told(tmp_path: Path) -> None:
    rows = [x("a", 0, 5), x("b", 9e13, 7)]
    stage = stage_of(tmp_path, {"displayTimeUnit": "ns", "traceEvents": rows})
    assert spans(stage)[1] == ("b", 90_000_000_000_000_000, 90_000_000_000_007_000)
    assert kinds(stage) == {"suspicious_time_unit"}


def test_events_without_times(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, '[{"ph":"X","name":"a","ts":5,"dur":1,"pid":1,"tid":1},'
        '{"ph":"X","name":"n","ts":NaN,"dur":1,"pid":1,"tid":1},{"ph":"B","name":"b","pid":1,"tid":1},{"ph":"X","name":"d","ts":6,"pid":1,"tid":1}]')  # fmt: skip
    assert spans(stage) == [("a", 5_000, 6_000), ("n", 5_000, None), ("d", 6_000, None)]
    assert {f.kind: f.count for f in stage.audit.findings}["missing_time"] == 2


BASE_FAULTS = [
    *("10_array_no_closing_bracket", "11_trailing_comma"),
    *("16_displayTimeUnit_ns_values_in_us", "18_huge_tid_and_flow_id", "27_empty_event_at_end"),
    *("32_reverse_order", "38_B_E_pairs", "12d_plain_name_gz_content"),
]


@pytest.mark.skipif(not FAULTS.is_dir(), reason="no ../shared/oracles beside the repository")
@pytest.mark.parametrize("name", BASE_FAULTS)
def test_faults_give_the_figures_of_the_clean_trace(tmp_path: Path, name: str) -> None:
    clean = staged(FORMAT, FAULTS / "00_good_rank0.json", tmp_path / "clean")
    faulty = staged(FORMAT, FAULTS / f"{name}.json", tmp_path / "faulty")
    assert spans(clean) == spans(faulty)
    assert faulty.rows == clean.rows == 26
    assert {f.severity for f in faulty.audit.findings} <= {"note"}
    assert len(arrows(faulty)) == len(arrows(clean)) > 0


@pytest.mark.skipif(not FAULTS.is_dir(), reason="no ../shared/oracles beside the repository")
def test_child_that_ends_a_fraction_late_stays_inside(tmp_path: Path) -> None:
    path = FAULTS / "15_child_ends_4e-10us_after_parent.json"
    said = listed(json.loads(path.read_text(), parse_float=str, parse_int=str))
    stage = staged(FORMAT, path, tmp_path / "stage")
    ends = {
        (e["name"], ns(e["ts"])): ns(str(Fraction(e["ts"]) + Fraction(e["dur"])))
        for e in said
        if e["ph"] == "X"
    }
    assert all(ends[name, start] == end for name, start, end in spans(stage))
    parent = next(s for s in spans(stage) if s[0] == "aten::op0")
    child = next(s for s in spans(stage) if s[0] == "cudaLaunchKernel")
    assert (child[1] > parent[1], child[2]) == (True, parent[2])


@pytest.mark.skipif(not FAULTS.is_dir(), reason="no ../shared/oracles beside the repository")
def test_unclosed_beginning_of_the_faults(tmp_path: Path) -> None:
    stage = staged(FORMAT, FAULTS / "38b_unclosed_B.json", tmp_path / "stage")
    said = listed(json.loads((FAULTS / "38b_unclosed_B.json").read_text()))
    (begin,) = (e for e in said if e["ph"] == "B")
    assert [s for s in spans(stage) if s[2] is None] == [(begin["name"], ns(begin["ts"]), None)]
    assert stage.rows == 27


def test_epoch_times_as_text_keep_their_nanoseconds(tmp_path: Path) -> None:
    rows = [x("a", f"{UNIX_US}.123", "0.877"), x("b", f"{UNIX_US + 1}.0005", 1)]  # type: ignore[arg-type]
    stage = stage_of(tmp_path, rows)
    assert spans(stage) == [
        ("a", UNIX_US * 1000 + 123, UNIX_US * 1000 + 1000),
        ("b", UNIX_US * 1000 + 1001, UNIX_US * 1000 + 2001),
    ]


def test_ids_beyond_32_bits_stay_apart(tmp_path: Path) -> None:
    tids = [1, (1 << 32) + 1, (1 << 64) + 1, "1 "]
    stage = stage_of(tmp_path, [x("a", 0, 1, tid=t) for t in tids] + [x("a", 0, 1, pid=0, tid=0)])
    assert len(stage.timelines) == 5


@pytest.mark.parametrize("text", ["[]", '{"traceEvents":[]}', "[{}]"])
def test_empty_traces(tmp_path: Path, text: str) -> None:
    stage = stage_of(tmp_path, text)
    assert FORMAT.recognise(head_of(tmp_path / "trace.json")) >= 15
    assert (stage.rows, kinds(stage)) == (0, {"no_events"})


@pytest.mark.parametrize("text", ['{"a": 1}', "", "x", "{"])
def test_no_traces(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProfileError, match=r"trace\.json: "):
        stage_of(tmp_path, text)


def test_end_to_end(tmp_path: Path) -> None:
    """Paired, nested, repeated and cut, in a written trace."""
    rows = [
        x("outer", 0, 100),
        x("inner", 10, 50, args={"k": 1}),
        x("inner", 10, 50, args={"k": 1}),
    ]
    rows += [at("B", "open", 120, args={"a": [1, 2]})]
    text = json.dumps({"traceEvents": rows})[:-2] + ', {"ph": "X", "na'
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    import_profiles([path], tmp_path / "out.trnprof")
    trace = open_trace(tmp_path / "out.trnprof")
    found = trace.events.sort("start_ns").collect()
    assert found["name"].to_list() == ["outer", "inner", "open"]
    assert found["duration_ns"].to_list() == [100_000, 50_000, None]
    assert found["category"].unique().to_list() == ["host"]
    told = {row["kind"]: row["count"] for f in trace.fragments for row in f["audit"]}
    assert (told["duplicate_events"], told["truncated"]) == (1, 1)
    assert not [p for p in trace.validate() if p.severity == "error" and p.kind != "truncated"]


@needs_shared
@given(st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_files_are_salvaged_or_refused(tmp_path_factory: Any, data: st.DataObject) -> None:
    text = bytearray(data.draw(st.sampled_from([p.read_bytes() for p in PUBLIC])))
    if data.draw(st.booleans()):
        del text[data.draw(st.integers(1, len(text))) :]
    for at_byte in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=4)):
        text[at_byte] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "t.json").write_bytes(bytes(text))
    FORMAT.recognise(head_of(folder / "t.json"))
    with contextlib.suppress(ProfileError):
        assert_readable(staged(FORMAT, folder / "t.json", folder / "stage"))


def assert_readable(stage: Stage) -> None:
    found = events(stage) if stage.rows else pl.DataFrame({"attributes": []})
    assert all(json.loads(t) is not None for t in found["attributes"].drop_nulls())
