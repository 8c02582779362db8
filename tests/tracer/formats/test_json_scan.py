"""Does the scanner say of Chrome-style JSON what Python's json says, and of JSON that is none what was meant?"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.formats.scanning import (
    ARGS,
    Bytes,
    assert_same,
    events_of,
    nearest_ns,
    scanned,
)

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.trace_json import scan as json_scan
from trnprof.tracer.formats.trace_json.repair import repair_text
from trnprof.tracer.formats.trace_json.scan import Fields, Scan
from trnprof.tracer.ingest.audit import Audit

SHARED = Path(__file__).parents[3].parent / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared beside the repository")


def real_files() -> Iterator[Path]:
    for folder in ("kineto", "chrome", "aiu"):
        yield from sorted((SHARED / "traces" / folder).glob("*.json*"))


@needs_shared
@pytest.mark.parametrize("path", list(real_files()), ids=lambda p: p.name)
def test_real_files_are_read_as_json_reads_them(path: Path) -> None:
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    found = scanned(data, 300_000)
    document = json.loads(data)
    assert_same(found, document)
    assert not found.kinds
    exact = events_of(json.loads(data, parse_float=str, parse_int=str))
    for row, event in zip(found.rows, exact, strict=True):
        if "ts" in event:
            assert row["start_ns"] == nearest_ns(event["ts"])
        if "ts" in event and "dur" in event:
            assert row["end_ns"] == nearest_ns(event["ts"], event["dur"])


numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
events = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "ph": st.sampled_from(["X", "B", "E", "M"]),
            "name": st.one_of(st.text(max_size=40), numbers),
            "pid": st.one_of(st.integers(0, 3), st.sampled_from(["0", "a\n", "GPU"])),
            "tid": numbers,
            "ts": st.one_of(numbers, st.decimals(-10, 10**10, places=3).map(str)),
            "id": values,
            "cname": values,
            "a very long name of a member": values,
            "args": st.one_of(
                st.dictionaries(st.one_of(st.sampled_from(ARGS), st.text(max_size=4)), values),
                values,
            ),
        },
    ),
    max_size=8,
)
styles = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 0, 3, "\t", "\r\n  "]),
        "separators": st.sampled_from([None, (",", ":"), (" ,\n", "  :\t")]),
    }
)
documents = st.one_of(
    events, st.builds(lambda a, b, c: {"meta": a, "traceEvents": b, "z": c}, values, events, values)
)


@given(document=documents, style=styles, block_bytes=st.integers(1, 300))
@settings(max_examples=150, deadline=None)
def test_random_events_in_any_style_are_read_as_json_reads_them(
    document: Any, style: dict[str, Any], block_bytes: int
) -> None:
    text = json.dumps(document, **style).encode()
    if not re.search(rb'"[A-Za-z]:\\[bfnrt]', text):  # taken for a Windows path
        assert_same(scanned(text, block_bytes), json.loads(text))


ODD = (
    b'\xef\xbb\xbf {"displayTimeUnit": "ms", "traceEvents": [,\n'
    rb'{"ph": "X", "name": "C:\Users\x\new", "pid": "0", "ts": 1.0005, "dur": .5, "args": {"p": "C:\dir\", "v": NaN}},'
    b'{"name":"a\x01\tb\xff\xc3\xa9", "ph":"X", "pid":0 "tid":12345678901234567890123,},, {} '
    rb'{"ph":"M","\u006eame":"tw\u0069ce","name":"last","args":[1,-inf,],"x":1.#QNAN,"id":0x1F},'
    b'7, "s", {"ph": "X", "args": {"a": {"b": [1, {"c": 2}]}}, "ts": "3", "dur": 1e-1}, {"ph": }'
    b'], "distributedInfo": {"rank": 3, "bad": Infinity,}, "displayTimeUnit": "ns"}'
)


def test_what_json_forbids_is_read_as_it_was_meant() -> None:
    found = scanned(ODD)
    assert [r["name"] for r in found.rows] == [
        r"C:\Users\x\new", "a\x01\tb\ufffdé", "last", None, None,
    ]  # fmt: skip
    assert [r["attributes"] for r in found.rows] == [
        {"p": "C:\\dir\\", "v": None},
        None,
        {"args": [1, None], "event": {"x": None}},
        {"a": {"b": [1, {"c": 2}]}},
        None,
    ]
    assert [r["key"] for r in found.rows[:2]] == [("0", None), ("0", "12345678901234567890123")]
    assert [r["start_ns"] for r in found.rows] == [1001, None, None, 3000, None]
    assert [r["end_ns"] for r in found.rows] == [1501, None, None, 3100, None]
    assert found.header == {"displayTimeUnit": "ns", "distributedInfo": {"rank": 3, "bad": None}}
    assert found.kinds == {
        "stray_commas": 2, "missing_commas": 1, "bare_words": 2, "control_characters": 1, "unescaped_backslashes": 1,
        "unescaped_backslashes_before_quotes": 1, "odd_numbers": 2, "odd_members": 1, "invalid_utf8": 1,
        "commas_between_events": 3, "not_events": 2,
    }  # fmt: skip


@pytest.mark.parametrize("text", [ODD, b"[" + ODD.split(b"[,", 1)[1].rsplit(b"]", 1)[0]])
def test_blocks_of_any_size_give_the_same(text: bytes) -> None:
    whole = scanned(text)
    for block_bytes in range(1, 201):
        part = scanned(text, block_bytes, piece=1 + block_bytes % 7)
        assert (part.rows, part.header, part.kinds) == (whole.rows, whole.header, whole.kinds)


def test_a_file_cut_anywhere_keeps_its_whole_events() -> None:
    kept = [
        {"ph": "X", "name": "a]}", "ts": 1, "dur": 2, "pid": 1, "args": {"k": [1, {"z": "}"}]}},
        {"ph": "i", "name": "b", "ts": 5, "pid": 1},
        {"ph": "X", "name": "c\\", "ts": 7, "pid": 1, "args": {"d": {}}},
    ]
    text = json.dumps({"head": {"x": [1]}, "traceEvents": kept, "tail": "yes"}).encode()
    ends = [text.index(json.dumps(e).encode()) + len(json.dumps(e)) for e in kept]
    for cut in range(1, len(text)):
        found = scanned(text[:cut])
        whole = sum(end <= cut for end in ends)
        assert [r["name"] for r in found.rows] == [e["name"] for e in kept[:whole]]
        assert found.scan.is_truncated == (cut < len(text))
        assert found.kinds
        begins = [text.index(json.dumps(e).encode()) for e in kept]
        inside = any(b < cut < e for b, e in zip(begins, ends, strict=True))
        assert ("truncated" in found.kinds) == inside


def test_lost_bytes_of_a_cut_file_are_told() -> None:
    audit = Audit()
    text = b'[{"ph":"X","name":"a"},\n{"ph":"X","na'
    assert sum(b.rows for b in Scan(Bytes(text), Fields(("name",)), audit, "f.json")) == 1
    (finding,) = audit.findings
    assert finding.kind == "truncated"
    assert "last 13 bytes" in finding.message
    assert finding.example.startswith("byte 24")


@pytest.mark.parametrize(
    "broken",
    [b'{"ph":"X","name":"x" oops},', b'{"ph":"X","args":{"a":[1,2},', b'{"ph":"X","name":"no end},', b"{[],",
     b'{"ph":"X","name":"x","args":{"a":1},'],
)  # fmt: skip
@pytest.mark.parametrize("block_bytes", [1, 16, 1 << 20])
def test_events_around_an_unreadable_one_are_kept(broken: bytes, block_bytes: int) -> None:
    around = b'{"ph":"X","name":"a"},%s{"ph":"X","name":"b"},{"ph":"X","name":"c"}' % broken
    found = scanned(b'{"traceEvents":[' + around + b'],"displayTimeUnit":"ms"}', block_bytes)
    assert [r["name"] for r in found.rows] == ["a", "b", "c"]
    assert found.kinds == {"unreadable_events": 1}
    assert found.header == {"displayTimeUnit": "ms"}


def test_members_behind_a_last_event_that_cannot_be_read_are_kept() -> None:
    text = (
        b'{"traceEvents":[{"ph":"X","name":"a"},{"ph":"X" oops],"baseTimeNanoseconds":17,"x":[1]}'
    )
    for block_bytes in (1, 7, 1000):
        found = scanned(text, block_bytes)
        assert [r["name"] for r in found.rows] == ["a"]
        assert found.header == {"baseTimeNanoseconds": 17, "x": [1]}
        assert not found.scan.is_truncated


def test_the_array_may_lack_its_bracket() -> None:
    assert scanned(b'[{"ph":"X"},{"ph":"X"}').kinds == {}
    assert scanned(b'[{"ph":"X"},\n').kinds == {}
    found = scanned(b'{"traceEvents":[{"ph":"X"},{"ph":"X"}, "displayTimeUnit":"ms"}')
    assert (len(found.rows), found.header) == (2, {"displayTimeUnit": "ms"})
    assert found.kinds == {"unclosed": 1}
    assert scanned(b'{"traceEvents":[{"ph":"X"}}').kinds == {"unclosed": 1}


def test_other_members_may_be_of_any_size_and_events_may_come_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_scan, "MAX_MEMBER_BYTES", 1 << 16)
    long = b"[" + b"[1,2],\n" * 100_000 + b"0]"
    text = (
        b'{"a":1,"long":%s,"traceEvents":[{"ph":"X"}],"text":"%s","traceEvents":[{"ph":"i"}],"a":2}'
    )
    stream = Bytes(text % (long, b'}]\\"' * 200_000))
    audit = Audit()
    scan = Scan(stream, Fields(()), audit, "f", 10_000)
    assert [p for block in scan for p in block.texts("ph").to_pylist()] == ["X", "i"]
    assert scan.header == {"a": 2}
    assert {f.kind: f.count for f in audit.findings} == {
        "large_header": 2,
        "several_event_arrays": 1,
    }
    assert stream.largest_read < 50_000


def test_events_that_are_too_long_are_left_out_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_scan, "MAX_EVENT_BYTES", 1 << 16)
    giant = b'{"ph":"X","name":"giant","args":{"s":"' + b"{x,[" * 200_000 + b'"}}'
    for size in (1000, 10_000):
        stream = Bytes(b'[{"ph":"X","name":"a"},' + giant + b',{"ph":"X","name":"b"}]')
        audit = Audit()
        blocks = Scan(stream, Fields(("name",)), audit, "f", size)
        assert [n for b in blocks for n in b.texts("name").to_pylist()] == ["a", "b"]
        (finding,) = (f for f in audit.findings if f.kind == "oversized_events")
        assert (finding.count, finding.example) == (1, "byte 23")
        assert stream.largest_read <= 2 << 16


def test_nesting_of_any_depth_needs_no_stack() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    text = b'[{"ph":"X","args":{"deep":%s,"b":1}},{"ph":"X","name":"b"}]'
    found = scanned(text % deep)
    assert len(found.rows) == 2
    assert found.rows[0]["attributes"]["b"] == 1
    assert found.kinds == {"deep_nesting": 1}
    assert scanned(b'{"deep":%s,"traceEvents":[{"ph":"X"}]}' % deep).scan.events == 1
    assert scanned(text % (b"[" * 300_000)).scan.events == 1


@pytest.mark.parametrize("text", [b"", b"  \n", b"\xef\xbb\xbf", b"\0\0"])
def test_an_empty_file_is_refused(text: bytes) -> None:
    with pytest.raises(ProfileError, match=r"file: .*empty"):
        scanned(text)


@pytest.mark.parametrize("text", [b"hello", b"\x89PNG", b'"text"', b"<xml>"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ProfileError, match="no JSON"):
        scanned(text)


def test_a_damaged_header_does_not_hide_the_events() -> None:
    found = scanned(rb'{"dir": "C:\logs\", "n": 1, "traceEvents": [{"ph": "X", "name": "a"}]}')
    assert [r["name"] for r in found.rows] == ["a"]
    assert found.kinds == {"damaged_header": 1}


@given(text=st.binary(max_size=60), cut=st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_survived(text: bytes, cut: int) -> None:
    mutated = ODD[: 100 + cut * 5] + text + ODD[100 + cut * 5 + len(text) // 2 :]
    found = scanned(mutated)
    assert scanned(mutated, 37).rows == found.rows


pieces = st.sampled_from(
    ['{', '}', '[', ']', ',', ':', '"', '"a"', "1", "-", "NaN", "null", " ", "\\", "\x01", "tru", "1.", "\\u12", "é"]
)  # fmt: skip


@given(st.lists(pieces, max_size=25))
@settings(max_examples=400, deadline=None)
def test_a_repaired_value_is_json(parts: list[str]) -> None:
    repaired = repair_text("".join(parts).encode())
    json.loads(repaired)
    assert repair_text(repaired) == repaired


@given(values)
@settings(max_examples=100, deadline=None)
def test_a_valid_value_stays_what_it_is(value: Any) -> None:
    text = json.dumps(value).encode()
    assert json.loads(repair_text(text)) == json.loads(text)


def test_rows_can_be_chosen_and_repeats_have_one_fingerprint() -> None:
    text = b'[{"ph":"X","name":"a"},{"ph":"X","name":"b"},{"ph":"X","name":"a"}]'
    (block,) = Scan(Bytes(text), Fields(("name",)), Audit(), "f")
    prints = block.fingerprints()
    assert prints[0] == prints[2] != prints[1]
    chosen = block.take(block.fingerprints() == prints[0])
    assert chosen.texts("name").to_pylist() == ["a", "a"]
    assert block.take(np.array([1])).texts("name").to_pylist() == ["b"]
    assert block.raw("name").to_pylist() == ['"a"', '"b"', '"a"']
    assert block.attributes(("x",)).to_pylist() == [None] * 3


def test_excluded_arguments_are_left_out() -> None:
    text = b'[{"ph":"X","args":{"a":1, "b":[{"a":2}] ,"c":"x"}},{"ph":"X","args":{"a":NaN}}]'
    (block,) = Scan(Bytes(text), Fields(()), Audit(), "f")
    assert block.attributes(("a", "c")).to_pylist() == ['{"b":[{"a":2}]}', None]
    assert block.attributes().to_pylist() == ['{"a":1, "b":[{"a":2}] ,"c":"x"}', '{"a":null}']
