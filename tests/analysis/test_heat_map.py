"""The heat map's bins beside every nanosecond counted, and what the section says of odd traces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.test_brute_force import (
    ENGINE_NAMES,
    WINDOWS,
    core_of,
    counted,
    inside,
    opened,
    resource_of,
    traces,
)
from tests.analysis.traces import TENSOR, Row, build, core_tracks, event, step

from trnprof.analysis.focus import focus
from trnprof.analysis.heat_map import LEVELS, heat_map
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.section import Subject, as_json
from trnprof.analysis.sections.text import section_lines
from trnprof.analysis.sections.utilization import blocks
from trnprof.analysis.sections.utilization import build as build_section
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace


def belongs(row: Row, found: dict[str, object], level: str) -> bool:
    core = core_of(row)
    match level:
        case "engine":
            return (found["unit_id"], found["resource"]) == (core + 2, resource_of(row))
        case "core":
            return found["unit_id"] == core + 2
        case "rank":
            return found["rank"] == core
    return (found["host"], found["chip"]) == ("host0", 0)


@settings(max_examples=15, deadline=None)
@given(traces(), st.sampled_from((None, 0, 1)), st.sampled_from(LEVELS), st.integers(1, 60))
def test_bins_hold_what_lies_in_them(
    given_trace: tuple[Trace, list[Row]], chosen: int | None, level: str, bins: int
) -> None:
    trace, rows = given_trace
    window = WINDOWS[2 if chosen is None else chosen]
    found = heat_map(focus(opened(trace), chosen), level, bins).to_dicts()
    count = min(bins, window[1] - window[0])
    assert len(found) == count * {"engine": 2 * (len(ENGINE_NAMES) + 1), "chip": 1}.get(level, 2)
    edges = sorted({(r["start_ns"], r["end_ns"]) for r in found})
    assert [e[0] for e in edges] == [window[0], *(e[1] for e in edges[:-1])]
    assert edges[-1][1] == window[1]
    for row in found:
        own = [r for r in counted(rows) if belongs(r, row, level)]
        pieces = [inside(r, (row["start_ns"], row["end_ns"])) for r in own]
        assert row["active_ns"] == len(set().union(*pieces))
        assert row["summed_ns"] == sum(map(len, pieces))
        length = row["end_ns"] - row["start_ns"]
        assert row["active_share"] == pytest.approx(row["active_ns"] / length)


def section_of(trace: Trace, **chosen: int) -> dict[str, object]:
    section = build_section(Subject(trace, device_scope(trace), **chosen))
    assert all(len(line) <= 80 for line in section_lines(section))
    return as_json(section)


def test_section_weighs_replicas() -> None:
    tracks = core_tracks(2)
    tracks = [{**t, "replica_count": 3} if t["track_id"] == 2 else t for t in tracks]
    rows = [event(TENSOR, 0, 100), event(TENSOR + 10, 0, 20)]
    found = section_of(build(rows, tracks=tracks, steps=[step(0, 0, 100, rank=r) for r in (0, 1)]))
    tensor = found["engines"][0]  # type: ignore[index]
    assert tensor["active_share"] == pytest.approx((3 * 1.0 + 0.2) / 4)
    assert [r["active_share"] for r in found["by_core"]] == [0.2, 1.0]  # type: ignore[attr-defined]
    alone = section_of(build(rows, tracks=tracks), rank=1)
    assert [r["rank"] for r in alone["by_core"]] == [1]  # type: ignore[attr-defined]


def test_odd_traces_say_so() -> None:
    nothing = build_section(Subject(build(), None))
    assert nothing.nothing_to_say == "because the trace has no device tracks"
    for rows in ([], [event(TENSOR, 5, 0)], [event(TENSOR, 5, None)]):
        assert "no event of the device takes time" in str(section_of(build(rows)))
    trace = build([event(TENSOR, 0, 10)], steps=[step(0, 0, 10)])
    for chosen in ({"step": 4}, {"rank": 9}):
        with pytest.raises(TrnprofError, match=r"no (step 4|rank 9)"):
            section_of(trace, **chosen)


def test_blocks_show_a_little() -> None:
    assert blocks([0.0, 1e-9, 0.5, 1.0, 1.2]) == " ▁▄██"
