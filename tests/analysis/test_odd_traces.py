"""Every section of a report on traces that are odd: it answers or says why not, in 80 columns, and never crashes."""

from __future__ import annotations

import json

import pytest
from tests.analysis.test_ranks import gpu_tracks
from tests.analysis.traces import DMA0, SYNC, TENSOR, VECTOR, Row, build, core_tracks, event, step

from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.registry import QUESTIONS, build_section
from trnprof.analysis.sections.section import Subject, as_json
from trnprof.analysis.sections.text import section_lines
from trnprof.tracer.reader import Trace

LONG = "x" * 10_000
REDUCE = {"name": "ncclKernel_AllReduce_RING_LL", "category": "collective"}


def many_ranks(count: int) -> Trace:
    """Ranks of one event each."""
    rows = [event(100 * r + 10, r % 50, 10, **REDUCE) for r in range(count)]
    return build(rows, tracks=gpu_tracks(count, streams=1))


def on_two_clocks() -> Trace:
    """The second rank's clock is a day ahead, and its steps with it."""
    day = 86_400 * 10**9
    rows = [event(10, 0, 50, **REDUCE), event(110, day, 50, **REDUCE)]
    steps = [step(0, 0, 60), step(0, day, day + 60, rank=1)]
    return build(rows, tracks=gpu_tracks(2), steps=steps)


def blocked(start: int, by: int | None, reason: str | None, **columns: object) -> Row:
    return event(TENSOR, start, 10, blocked_by=by, wait_reason=reason, **columns)


TRACES = {
    "no tracks": build(tracks=[]),
    "no events": build(),
    "a host alone": build(tracks=core_tracks()[:1]),
    "one event": build([event(TENSOR, 5, 10)]),
    "one instant": build([event(TENSOR, 5, 0)]),
    "instants": build([event(t, 5, 0, bytes=1) for t in (TENSOR, DMA0)], steps=[step(0, 0, 10)]),
    "open events": build([event(TENSOR, 5, None), event(DMA0, 6, None, bytes=4)]),
    "a step of no length": build([event(TENSOR, 5, 10)], steps=[step(0, 5, 5)]),
    "a step elsewhere": build([event(TENSOR, 5, 10)], steps=[step(0, 500, 600)]),
    "steps of another clock": build([event(TENSOR, 5, 10)], steps=[step(0, 0, 9, clock_id=7)]),
    "negative durations": build([event(TENSOR, 5, -10), event(VECTOR, 3, 4)]),
    "long names": build(
        [
            event(TENSOR, 0, 10, name=LONG),
            event(DMA0, 20, 10, name="é\x1b[31m\n🙂" + LONG, bytes=64),
            event(SYNC, 40, 10, name="", category="sync"),
            event(VECTOR, 60, 5, name="all_reduce" + LONG, category="collective", op_id=0),
        ],
        ops=[{"op_id": 0, "kind": "collective", "name": LONG, "module_path": LONG, "group_id": 3}],
        groups=[{"group_id": 3, "ranks": [0], "name": LONG}],
    ),
    "duplicate ids": build(
        [{**blocked(20 * i, 7, "data"), "event_id": 7} for i in range(3)], steps=[step(0, 0, 100)]
    ),
    "blockers that do not exist": build(
        [blocked(20, 999, "data"), blocked(40, 1, "peer"), blocked(60, None, "host")],
        steps=[step(0, 0, 100), step(0, 0, 100)],
    ),
    "two clocks": on_two_clocks(),
}


def check(trace: Trace) -> None:
    subject = Subject(trace, device_scope(trace))
    for name in QUESTIONS:
        section = build_section(name, subject)
        lines = section_lines(section)
        assert lines
        assert all(len(line) <= 80 for line in lines), name
        json.dumps(as_json(section), allow_nan=False)
        if section.nothing_to_say is not None:
            assert section.nothing_to_say.startswith("because ")
        else:
            assert section.tables, name


@pytest.mark.parametrize("name", TRACES)
def test_odd_traces(name: str) -> None:
    check(TRACES[name])


def test_ten_thousand_ranks_of_one_event() -> None:
    check(many_ranks(10_000))
