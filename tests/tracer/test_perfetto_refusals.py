"""Traces and outputs that the exporter refuses, and what is left of the output then: nothing new."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.tracer.perfetto_traces import CORE, Row, event, step, trace_of, track

from trnprof.tracer.errors import OutputExistsError, TraceError, TrnprofError, WriteError
from trnprof.tracer.formats.perfetto_export import export as perfetto
from trnprof.tracer.formats.perfetto_export.export import export

SAMPLE = {"timestamp_ns": 0, "value": 1.0}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "overlap": ({"events": [event(0, 3, 0, 10), event(1, 3, 5, 10)]}, "overlaps.*Tensor"),
    "nested": ({"events": [event(0, 3, 0, 10), event(1, 3, 2, 2)]}, "overlaps"),
    "open inside": ({"events": [event(0, 3, 0, 10), event(1, 3, 5, None)]}, "overlaps"),
    "dangling track": ({"events": [event(0, 77, 0, 1)]}, "track 77"),
    "negative duration": ({"events": [event(0, 3, 5, -1)]}, "negative durations on track 3"),
    "end beyond 2^63": ({"events": [event(0, 3, 2**63 - 5, 10)]}, "beyond 2\\^63"),
    "span beyond 2^63": (
        {"events": [event(0, 3, -(2**62), 1), event(1, 3, 2**62, 1)]},
        "beyond 2\\^63",
    ),
    "events on a counter": ({"events": [event(0, 6, 0, 1)]}, "counter track 6"),
    "samples on an engine": ({"counters": [{"track_id": 3, **SAMPLE}]}, "track of events: 3"),
    "samples nowhere": ({"counters": [{"track_id": 55, **SAMPLE}]}, "track 55"),
    "step without a clock": ({"steps": [{**step(0, 5, 10), "clock_id": None}]}, "no clock"),
    "step backwards": ({"steps": [step(0, 10, 5)]}, "a step ends before"),
    "parent missing": ({"tracks": [*CORE, track(9, "engine", "x", 40)]}, "track 40"),
    "circle": (
        {"tracks": [*CORE, track(8, "core", "x", 9), track(9, "core", "y", 8)]},
        "under itself",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_trace_that_would_be_shown_wrongly_is_refused(tmp_path: Path, case: str) -> None:
    parts, message = CASES[case]
    out = tmp_path / "x.pftrace"
    out.write_text("old")
    with pytest.raises(TraceError, match=message) as caught:
        export(trace_of(**parts), out, force=True)
    assert "trnprof validate" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_overlap_across_batches_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnprof.tracer.formats.perfetto_export.order.BATCH_ROWS", 2)
    rows: list[Row] = [event(i, 3, i * 10, 10) for i in range(9)] + [event(9, 3, 5, 1)]
    with pytest.raises(TraceError, match="overlaps"):
        export(trace_of(events=rows), tmp_path / "x.pftrace")


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "x.pftrace"
    out.write_text("mine")
    with pytest.raises(OutputExistsError, match="--force"):
        export(trace_of(), out)
    assert out.read_text() == "mine"
    export(trace_of(events=[event(0, 3, 0, 1)]), out, force=True)
    assert out.read_bytes().startswith(b"\n")
    with pytest.raises(OutputExistsError, match="is a directory"):
        export(trace_of(), tmp_path, force=True)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(perfetto, "_event_packets", full)
    with pytest.raises(WriteError, match="disk is full"):
        export(trace_of(events=[event(0, 3, 0, 1)]), tmp_path / "x.pftrace")
    assert not list(tmp_path.iterdir())


def test_bad_outputs_and_choices_are_told(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="there is no directory"):
        export(trace_of(), tmp_path / "none" / "x.pftrace")
    with pytest.raises(TrnprofError, match="critical, none, collective, all"):
        export(trace_of(), tmp_path / "x.pftrace", flows="some")  # type: ignore[arg-type]


def test_an_empty_trace_is_an_empty_file_of_tracks(tmp_path: Path) -> None:
    summary = export(trace_of(), tmp_path / "x.pftrace")
    assert (summary.slices, summary.samples, summary.tracks) == (0, 0, len(CORE))
    assert export(trace_of(tracks=[]), tmp_path / "y.pftrace").tracks == 0
