"""What the import says while it runs and when it is done, with a clock of our own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trnprof.cli.importing import (  # fmt: skip
    Display,
    finding_lines,
    forecast_line,
    outcome_lines,
    standing_line,
)
from trnprof.tracer.ingest.audit import Finding, is_doubtful
from trnprof.tracer.ingest.pool import Progress
from trnprof.tracer.ingest.run import ImportedSource, ImportSummary


def progress(phase: str = "reading", read: int = 0, events: int = 0, done: int = 0) -> Progress:
    return Progress(phase, read, 4_000_000_000, events, done, 8)


def finding(severity: str, where: str, kind: str = "cut", count: int = 1) -> Finding:
    return Finding(kind, severity, where, "the file is cut", "totals", count)


def test_what_is_needed_is_said_before_it_starts() -> None:
    line = forecast_line(progress(), processes=2, free_bytes=70_000_000_000)
    assert line.startswith("8 sources, about 4 GB decompressed; about ")
    assert "(70 GB free)" in line
    more = forecast_line(progress(), processes=8, free_bytes=0)
    assert more != line


def test_how_far_it_is() -> None:
    line = standing_line(progress(read=1_000_000_000, events=3_000_000, done=2), seconds=4.0)
    assert line == "reading 2 of 8 sources, 1 GB (25 %), 3 M events, 750 k/s"
    assert standing_line(progress("writing", done=7), 9.0) == "writing 7 of 8 sources"
    # an estimate that was too low
    assert "(100 %)" in standing_line(progress(read=9_000_000_000), 1.0)
    assert "0 events, 0/s" in standing_line(progress(), 0.0)


def test_a_log_gets_a_line_now_and_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 1.0, 9.0, 10.0, 15.0, 20.5])
    display = Display(tmp_path / "x", 2, is_live=False, now=lambda: next(seconds))
    for events in range(6):
        display(progress(events=events))
    display.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("trnprof: 8 sources, about")
    assert [line.split(", ")[2] for line in lines[1:]] == ["3 events", "5 events"]


def test_a_terminal_gets_one_line_that_goes_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    seconds = iter([0.0, 0.05, 0.2])
    display = Display(tmp_path / "x", 2, is_live=True, now=lambda: next(seconds))
    for _ in range(3):
        display(progress())
    display.close()
    _, live, cleared = capsys.readouterr().err.split("\r\x1b[K")
    assert live.startswith("trnprof: reading 0 of 8 sources")
    # a longer one would wrap, and be left behind
    assert len(live) <= 39
    assert cleared == ""


def test_findings_that_many_ranks_have_are_one_line_gravest_first() -> None:
    found = [
        finding("note", "rank0", "order"),
        *(finding("warning", f"rank{n}", "repeats", 3) for n in range(64)),
        finding("error", "rank7"),
    ]
    assert finding_lines(found) == [
        "error: rank7: the file is cut; unreliable: totals",
        "warning: rank0 and 63 more: the file is cut (192); unreliable: totals",
        "note: rank0: the file is cut; unreliable: totals",
    ]
    assert is_doubtful(found)
    assert not is_doubtful(found[:1])


def test_how_many_of_how_many_is_said_where_it_is_known() -> None:
    found = [
        Finding("k", "note", f"rank{n}", "kernels without a launch", count=1138, of=2184)
        for n in range(2)
    ]
    assert finding_lines(found[:1]) == ["note: rank0: kernels without a launch (1,138 of 2,184)"]
    assert finding_lines(found) == [
        "note: rank0 and 1 more: kernels without a launch (2,276 of 4,368)"
    ]
    # of one nobody knows how many there are in all: nor of both together
    found[1] = replace(found[1], of=None)
    assert finding_lines(found) == ["note: rank0 and 1 more: kernels without a launch (2.276 k)"]
    # words that look like a count decide nothing
    odd = Finding("k", "note", "a", "files (5 of them are links) are left out", count=5)
    assert finding_lines([odd]) == ["note: a: files (5 of them are links) are left out (5)"]


def test_the_outcome_has_events_ranks_time_and_what_to_do_next() -> None:
    sources = tuple(
        ImportedSource(f"r{n}", "kineto", f"rank{n}", n, 600_000, (), (n,)) for n in range(2)
    )
    findings = tuple(finding("warning", "a\x1b[31m", kind=str(n)) for n in range(9))
    summary = ImportSummary(1_200_000, sources, findings, tuple(f"clock {n}" for n in range(5)))
    lines = outcome_lines(Path("my run.trnprof"), summary, 3.14)
    assert lines[0] == "my run.trnprof: 1.2 M events of 2 ranks from 2 sources (kineto) in 3.1 s"
    assert lines[1:5] == ["clock 0", "clock 1", "clock 2", "… 2 more lines about clocks"]
    assert lines[5].startswith("warning: a␛[31m: ")
    assert lines[10:] == [
        "… 4 more findings",
        "trnprof validate 'my run.trnprof' shows all",
        "next: trnprof report 'my run.trnprof' · trnprof view 'my run.trnprof'",
    ]
    clean = outcome_lines(Path("x"), ImportSummary(1, sources[:1], (), ()), 0.1)
    assert clean[0] == "x: 1 event of 1 rank from 1 source (kineto) in 0.1 s"
    assert len(clean) == 2
