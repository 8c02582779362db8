"""Are the faults of real profiles, and any damage, survived with all that can be had?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.formats.scanning import Bytes, assert_same, events_of, nearest_ns, scanned

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.trace_json.scan import Fields, Scan
from trnprof.tracer.ingest.audit import Audit

FAULTS = Path(__file__).parents[3].parent / "shared" / "oracles" / "faults"
needs_faults = pytest.mark.skipif(not FAULTS.is_dir(), reason="no ../shared beside the repository")
FOUND = {
    "06_bare_inf.json": {"bare_words": 1},
    "06b_bare_NaN.json": {"bare_words": 1},
    "08_invalid_utf8_name.json": {"invalid_utf8": 1},
    "09_control_char_in_name.json": {"control_characters": 1},
    "11_trailing_comma.json": {"commas_between_events": 1},
}
"""Findings about the form of a file; the others are flawless JSON, or as good as that."""


def meant(data: bytes, **options: Any) -> Any:
    """What a file says, by Python's json, once its known faults are put right by hand."""
    text = data.decode("utf-8", "replace")
    text = re.sub(r":\s*-?inf\b", ": NaN", text)
    text = re.sub(r",\s*([\]}])", r"\1", text)
    if text.startswith("[") and not text.rstrip().endswith("]"):
        text = text.rstrip().removesuffix(",") + "]"
    return json.loads(text, strict=False, parse_constant=lambda _: None, **options)


def scannable() -> list[Path]:
    return [p for p in sorted(FAULTS.glob("*.json*")) if p.read_bytes()[:1] in (b"{", b"[")]


@needs_faults
@pytest.mark.parametrize("path", scannable(), ids=lambda p: p.name)
def test_fault_files_give_all_events_exactly(path: Path) -> None:
    data = path.read_bytes()
    found = scanned(data, 1000)
    assert_same(found, meant(data))
    assert found.kinds == FOUND.get(path.name, {})
    for row, event in zip(found.rows, events_of(meant(data, parse_float=str)), strict=True):
        is_decimal = re.fullmatch(r"-?\d+(\.\d+)?", str(event.get("ts")))
        assert row["start_ns"] == (nearest_ns(str(event["ts"])) if is_decimal else None)
        if is_decimal and event.get("dur") is not None:
            assert row["end_ns"] == nearest_ns(str(event["ts"]), str(event["dur"]))


@needs_faults
def test_a_file_of_no_bytes_is_refused() -> None:
    with pytest.raises(ProfileError, match="empty"):
        scanned((FAULTS / "35b_zero_bytes.json").read_bytes())


KERNEL = (
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":10.5,"dur":2,"args":{"stream":7}}'
)


def one(event: bytes) -> tuple[dict[str, Any], dict[str, int]]:
    """What is said of an event between two others, and the findings."""
    found = scanned(b'{"traceEvents":[' + KERNEL + b"," + event + b"," + KERNEL + b"]}")
    before, row, after = found.rows
    assert before["name"] == after["name"] == "k"
    return row, found.kinds


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (rb"C:\Users\me\x.py(3): f", r"C:\Users\me\x.py(3): f"),
        (rb"c:\new\torch\nn\fun.py(3): f", r"c:\new\torch\nn\fun.py(3): f"),
        (rb"a\b\xd", r"a\b\xd"),
        (rb"C:\\new\\x", r"C:\new\x"),
        (rb"\u00e9\n\"q\"", 'é\n"q"'),
        (b"a\xe2\x82b\xc3\xa9\xff", "a\ufffd\ufffdbé\ufffd"),
        (rb"\ud83d\ude00 \ud800 \udc00x", "😀 \ufffd \ufffdx"),
        (b"void f<\x01\t>", "void f<\x01\t>"),
    ],
)
def test_names_are_read_as_they_were_meant(written: bytes, name: str) -> None:
    row, _ = one(b'{"ph":"X","name":"' + written + b'","args":{"name":"' + written + b'"}}')
    text = name.replace("a\ufffd\ufffdb", "a\ufffdb")  # a cut character may become one mark or two
    assert row["name"].replace("a\ufffd\ufffdb", "a\ufffdb") == text
    if rb"\ud800" not in written:  # in JSON text, half a pair may stay
        assert row["attributes"]["name"].replace("a\ufffd\ufffdb", "a\ufffdb") == text


@pytest.mark.parametrize(
    ("event", "row", "kinds"),
    [
        (b'{"ph":"X","ts":NaN,"dur":1}', {"start_ns": None}, {"bare_words": 1}),
        (b'{"ph":"X","args":[1,{"a":2}],"ts":1}', {"attributes": {"args": [1, {"a": 2}]}}, {}),
        (b'{"ph":"X","id":36893488147419103232}', {"id": "36893488147419103232"}, {}),
        (b'{"ph":"s","id":9007199254740993}', {"id": "9007199254740993"}, {}),
        (b'{"ph":"X","ts":"1700000000000000.123","dur":"0.0005"}',
         {"start_ns": 1700000000000000123, "end_ns": 1700000000000000124}, {}),
        (b'{"name":"a","name":"b","args":{"x":1},"args":{"y":2},"ph":"X"}',
         {"name": "b", "attributes": {"y": 2}}, {}),
        (b'{"ph":"X","args":{"a":{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b',"b":1},"c":2}}',
         {}, {"deep_nesting": 1}),
    ],
)  # fmt: skip
def test_odd_members_spoil_nothing_else(
    event: bytes, row: dict[str, Any], kinds: dict[str, int]
) -> None:
    found, findings = one(event)
    assert {k: found[k] for k in row} == row
    assert findings == kinds
    if "deep_nesting" in kinds:
        assert found["attributes"]["a"]["b"] == 1
        assert found["attributes"]["c"] == 2


def test_one_event_a_line_is_told_how_to_become_a_trace() -> None:
    with pytest.raises(
        ProfileError, match=r"^file: .*second JSON value begins at byte \d+.*commas"
    ):
        scanned(KERNEL + b"\n" + KERNEL + b"\n")


def test_several_profiles_in_a_file_are_read_and_told() -> None:
    part = b'{"traceEvents":[' + KERNEL + b"]}\n"
    found = scanned(part * 3)
    assert len(found.rows) == 3
    assert found.kinds == {"several_profiles": 2}


def test_an_object_without_events_is_told_by_the_scan() -> None:
    found = scanned(b'{"a":{"traceEvents":[1]},"b":2}')
    assert (found.rows, found.scan.has_events) == ([], False)
    assert found.header == {"a": {"traceEvents": [1]}, "b": 2}
    assert scanned(b'{"traceEvents":[]}').scan.has_events
    assert not scanned(b'{"traceEvents":null}').scan.has_events


def test_a_million_metadata_events_are_read() -> None:
    text = b'[{"ph":"M"}' + b',{"ph":"M"}' * 999_999 + b"]"
    scan = Scan(Bytes(text), Fields(("name",)), Audit(), "f")
    assert sum(block.rows for block in scan) == scan.events == 1_000_000


WHOLE = json.dumps(
    {
        "head": {"rank": 1, "x": ["]", "}"]},
        "traceEvents": [
            {"ph": "X", "name": f"n{i}\\", "pid": i % 3, "tid": "t\u00e9", "ts": i + 0.25, "dur": 1.5,
             "args": {"stream": i, "k": [i, {"z": "},{"}]}}
            for i in range(12)
        ],
        "tail": "yes",
    }
).encode()  # fmt: skip
ORIGINAL = scanned(WHOLE)

damage = st.tuples(
    st.sampled_from(["delete", "insert", "replace", "cut", "repeat"]),
    st.integers(0, len(WHOLE) - 1),
    st.integers(1, 40),
    st.one_of(
        st.binary(min_size=1, max_size=6),
        st.sampled_from(
            [b'"', b"\\", b"{", b"}", b"[", b"]", b"},", b'"},{"ph":"X"', b"nan", b"\0"]
        ),
    ),
)


def damaged(data: bytes, harm: tuple[str, int, int, bytes]) -> bytes:
    kind, at, size, text = harm
    if kind == "cut":
        return data[:at]
    rest = data[at:] if kind in ("insert", "repeat") else data[at + size :]
    between = {"delete": b"", "repeat": data[max(0, at - size) : at]}.get(kind, text)
    return data[:at] + between + rest


@given(harms=st.lists(damage, min_size=1, max_size=4), block_bytes=st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_any_damage_leaves_the_events_before_it(
    harms: list[tuple[str, int, int, bytes]], block_bytes: int
) -> None:
    data = WHOLE
    for harm in harms:
        data = damaged(data, harm)
    same = next((i for i, (a, b) in enumerate(zip(WHOLE, data, strict=False)) if a != b), len(data))
    try:
        found = scanned(data)
    except ProfileError:
        assert same < 300  # before the first event
        return
    nexts = [row["position"] for row in ORIGINAL.rows[1:]]
    kept = [row for row, following in zip(ORIGINAL.rows, nexts, strict=False) if following < same]
    assert found.rows[: len(kept)] == kept
    part = scanned(data, block_bytes, piece=1 + block_bytes % 11)
    assert (part.rows, part.header, part.kinds) == (found.rows, found.header, found.kinds)
