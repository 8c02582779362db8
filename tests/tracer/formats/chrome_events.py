"""Events of Chrome traces for tests, and what a stage says of them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.tracer.formats.staged import events, staged, table

from trnprof.tracer.formats.chrome.format import FORMAT
from trnprof.tracer.ingest.stage import UNFINISHED, Stage

Event = dict[str, Any]


def stage_of(tmp_path: Path, document: Any) -> Stage:
    path = tmp_path / "trace.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return staged(FORMAT, path, tmp_path / "stage")


def ns(us: float | str) -> int:
    """Decimal µs as ns, half up."""
    return int((Fraction(str(us)) * 1000 + Fraction(1, 2)).__floor__())


def listed(document: Any) -> list[Event]:
    return [e for e in (document if isinstance(document, list) else document["traceEvents"]) if e]


def x(name: str, ts: float, dur: float, tid: Any = 1, pid: Any = 1, **more: Any) -> Event:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, **more}


def at(ph: str, name: str, ts: float, tid: Any = 1, pid: Any = 1, **more: Any) -> Event:
    return {"ph": ph, "name": name, "ts": ts, "pid": pid, "tid": tid, **more}


def spans(stage: Stage) -> list[tuple[str, int, int | None]]:
    """Name, start and end of all events in order of time."""
    found = events(stage).sort("start_ns", "name").select("name", "start_ns", "end_ns").rows()
    return [(n, s, None if e == UNFINISHED else e) for n, s, e in found]


def arrows(stage: Stage) -> set[tuple[str, str, str]]:
    names = events(stage)["name"]
    flows = table(stage, "flows")
    return {(names[s], names[t], k) for s, t, k, _ in flows.iter_rows()} if flows.height else set()
