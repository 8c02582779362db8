"""The splitter of large JSON objects, against the standard parser; and what it does with what is not JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trnprof.tracer.formats.neuron.json_text import Block, TopLevel, Value
from trnprof.tracer.ingest.audit import Audit


class Bytes:
    """Hands out a few bytes at a time."""

    def __init__(self, data: bytes, piece: int) -> None:
        self.truncated: str | None = None
        self.position = 0
        self._inner, self._piece = io.BytesIO(data), piece

    def read(self, size: int) -> bytes:
        data = self._inner.read(min(size, self._piece))
        self.position += len(data)
        return data

    def close(self) -> None:
        self._inner.close()


def split(data: bytes, piece: int = 1 << 20) -> tuple[dict[str, Any], set[str]]:
    """Rows by array (members as text), other members as they are, and kinds of findings."""
    audit = Audit()
    found: dict[str, Any] = {}
    for item in TopLevel(Bytes(data, piece), "x", audit):
        if isinstance(item, Value):
            found[item.key] = item.value
        elif isinstance(item, Block):
            rows = [
                {k: v for k, v in row.items() if v is not None}
                for row in item.rows.iter_rows(named=True)
            ]
            found.setdefault(item.key, []).extend(rows)
    return found, {f.kind for f in audit.findings}


names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=5)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=6)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(names, v, max_size=3), max_leaves=5
)
rows = st.lists(st.dictionaries(names, values, min_size=1, max_size=4), min_size=1, max_size=5)


@example({"0": [{"\f": None, "\r": []}]}, None, 1)
@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(names, rows | scalars, max_size=4),
    st.sampled_from([None, 2]),
    st.sampled_from([1, 7, 1 << 20]),
)
def test_the_same_as_the_standard_parser(
    document: dict[str, Any], indent: int | None, piece: int
) -> None:
    data = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    found, told = split(data, piece)
    assert not told
    for key, value in document.items():
        if not isinstance(value, list):
            assert found.get(key) == value
            continue
        assert len(found[key]) == len(value)
        for row, expected in zip(found[key], value, strict=True):
            assert set(row) == {k for k, v in expected.items() if v is not None}
            for name, text in row.items():
                said = expected[name]
                assert text == said if isinstance(said, str) else json.loads(text) == said


@settings(max_examples=80, deadline=None)
@given(rows, st.data())
def test_a_cut_file_keeps_the_whole_elements_before_the_cut(
    elements: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = json.dumps({"e": elements}).encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    ends, at = [], len(b'{"e": [')
    for element in elements:
        at += len(json.dumps(element).encode())
        ends.append(at)
        at += len(b", ")
    found, _ = split(text[:cut], 13)
    rows_found = found.get("e", [])
    assert len(rows_found if isinstance(rows_found, list) else []) == sum(
        end <= cut for end in ends
    )


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=120)
    | st.text(alphabet='{}[]",:\\nNaIif0 -e\n', max_size=120).map(str.encode)
)
def test_any_bytes_end(data: bytes) -> None:
    split(data, 5)
    split(b'{"e":[' + data, 5)


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        (
            b'{"e":[{"a":1},{"a":NaN},{"a":-Infinity,"b":2}]}',
            [{"a": "1"}, {"a": ""}, {"b": "2"}],
            "bare_words",
        ),
        (b'{"e":[{"a":1,},{"b":[1,2,],},]}', [{"a": "1"}, {"b": "[1,2 ]"}], "stray_commas"),
        (b'{"e":[{"a":"x\ty\nz"}]}', [{"a": "x y z"}], "control_characters"),
        (b'{"e":[{"a":"\xff"},{"a":"ok"}]}', [{"a": "\ufffd"}, {"a": "ok"}], "invalid_utf8"),
        (b'{"e":[5,{"a":1},"s",[{"b":1}]]}', None, None),
        (b'{"e":[{"a":1},5,[1],"s",{"a":2}]}', [{"a": "1"}, {"a": "2"}], "not_events"),
        (
            b'{"e":[{"a":' + b"[" * 5_000 + b"]" * 5_000 + b'},{"a":1}]}',
            [{"a": "1"}],
            "deep_nesting",
        ),
        (b'\xef\xbb\xbf{"e":[{"a":18446744073709551615}]}', [{"a": "18446744073709551615"}], None),
        (b'{"e":[{"a":1}{"a":2}]}', [{"a": "1"}, {"a": "2"}], None),
        (b'{"e":[{"a":"1" "b":2},{"a":3}]}', [{"a": "3"}], "unreadable_events"),
    ],
)
def test_what_is_not_json_is_put_right_and_told(
    text: bytes, expected: Any, kind: str | None
) -> None:
    found, told = split(text)
    if expected is not None:
        assert found["e"] == expected
    assert kind is None or kind in told


def test_a_member_that_is_too_large_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnprof.tracer.formats.neuron import json_text as neuron_json

    monkeypatch.setattr(neuron_json, "MAX_VALUE_BYTES", 1 << 20)
    data = b'{"big":{"x":"' + b"y" * (5 << 20) + b'"},"e":[{"a":1}]}'
    found, told = split(data)
    assert found == {"e": [{"a": "1"}]}
    assert "large_header" in told
