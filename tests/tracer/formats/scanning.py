"""Scans of texts, for tests of what reads Chrome-style JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trnprof.tracer.formats.trace_json.scan import Fields, Scan
from trnprof.tracer.ingest.audit import Audit

MEMBERS = ("ph", "name", "cat", "pid", "tid", "ts", "dur", "id")
ARGS = ("correlation", "stream", "name", "a long name of an argument")


class Bytes:
    """A ByteStream of some bytes that hands out pieces of at most ``piece``."""

    def __init__(self, data: bytes, piece: int = 1 << 30, truncated: str | None = None) -> None:
        self.truncated = truncated
        self.position = 0
        self._data = data
        self._piece = piece
        self.largest_read = 0

    def read(self, size: int) -> bytes:
        self.largest_read = max(self.largest_read, size)
        piece = self._data[self.position : self.position + min(size, self._piece)]
        self.position += len(piece)
        return piece

    def close(self) -> None:
        pass


@dataclass
class Scanned:
    """What a scan says of every event, as Python values."""

    rows: list[dict[str, Any]]
    header: dict[str, Any]
    kinds: dict[str, int]
    scan: Scan


def scanned(
    text: bytes | str,
    block_bytes: int = 1 << 20,
    members: tuple[str, ...] = MEMBERS,
    args: tuple[str, ...] = ARGS,
    piece: int = 1 << 30,
) -> Scanned:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    audit = Audit()
    scan = Scan(Bytes(data, piece), Fields(members, args), audit, "file", block_bytes)
    rows: list[dict[str, Any]] = []
    for block in scan:
        columns: dict[str, list[Any]] = {"position": block.positions().tolist()}
        for name in members:
            columns[name] = block.texts(name).to_pylist()
        for name in args:
            columns["args." + name] = block.texts("args." + name).to_pylist()
        codes, values = block.keys("pid", "tid")
        columns["key"] = [values[c] for c in codes.tolist()]
        attributes = block.attributes()
        attributes.validate(full=True)
        columns["attributes"] = [
            None if a is None else json.loads(a) for a in attributes.to_pylist()
        ]
        start, end, has_ts, has_dur = block.times_ns()
        columns["start_ns"] = [
            s if h else None for s, h in zip(start.tolist(), has_ts, strict=True)
        ]
        columns["end_ns"] = [e if h else None for e, h in zip(end.tolist(), has_dur, strict=True)]
        columns["print"] = block.fingerprints().tolist()
        rows += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    assert len(rows) == scan.events
    kinds = {f.kind: f.count for f in audit.findings}
    return Scanned(rows, scan.header, kinds, scan)


def nearest_ns(*microseconds: str) -> int:
    """The sum of decimal texts in nanoseconds, half up, by exact fractions."""
    return (sum(map(Fraction, microseconds), Fraction()) * 1000 + Fraction(1, 2)).__floor__()


def events_of(document: Any) -> list[dict[str, Any]]:
    events = document if isinstance(document, list) else document["traceEvents"]
    return [e for e in events if isinstance(e, dict) and e]


def text_of(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.dumps(value)


def assert_same(found: Scanned, document: Any) -> None:
    """What was scanned is what Python's json read."""
    events = events_of(document)
    assert len(found.rows) == len(events)
    for row, event in zip(found.rows, events, strict=True):
        for name in MEMBERS:
            if isinstance(event.get(name), dict | list | float):
                assert json.loads(row[name]) == event[name]
            else:
                assert row[name] == text_of(event.get(name))
        args: Any = event.get("args")
        others = {k: v for k, v in event.items() if k not in (*MEMBERS, "args")}
        expected = dict(args) if isinstance(args, dict) else {} if args is None else {"args": args}
        if others:
            expected["event"] = others
        assert (row["attributes"] or {}) == expected
        for name in ARGS if isinstance(args, dict) else ():
            if not isinstance(args.get(name), dict | list | float):
                assert row["args." + name] == text_of(args.get(name))
    if isinstance(document, dict):
        assert found.header == {k: v for k, v in document.items() if k != "traceEvents"}
