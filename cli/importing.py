"""How does ``import`` go, from the profiles to the sealed trace, and what is said meanwhile and afterwards?"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from trnprof.cli.diagnostics import ExitCode, live, say
from trnprof.cli.stopping import stopped
from trnprof.cli.validating import times_text
from trnprof.tracer.ingest.audit import Finding, gravest_first, is_doubtful
from trnprof.tracer.ingest.pool import SMALL_BYTES, Progress
from trnprof.tracer.ingest.run import ImportSummary, import_profiles
from trnprof.tracer.stopping import StoppedError, undone
from trnprof.tracer.units import counted, format_bytes, format_count, format_percent, printable

_FINDINGS_SHOWN: Final = 5
_ALIGNMENT_SHOWN: Final = 3
_PLAIN_SECONDS: Final = 10.0
_LIVE_SECONDS: Final = 0.1
_DISK_A_BYTE: Final = 1.6
"""Bytes written while importing, stage and trace, a byte of decompressed JSON; this and what follows were measured on Kineto JSON
of 0.1 to 2 GB (benchmarks/bench_import.py)."""
_MEMORY_A_PROCESS: Final = 230e6
"""Libraries."""
_MEMORY_OF_BLOCKS: Final = 250e6
"""Blocks and shards, once the input is that large."""
_MEMORY_A_BYTE: Final = 0.24
"""What is held of every event, a byte of input."""


def import_and_tell(
    paths: Sequence[Path],
    output: Path,
    *,
    format: str | None,
    align: Literal["auto", "none", "collectives"],
    jobs: int | None,
    max_input_bytes: int,
    strict: bool,
    force: bool,
) -> int:
    """Import profiles; what happens goes to stderr.

    Returns:
        The exit code: 1 if ``strict`` and a finding is more than a note.
    """
    processes = jobs or _cores()
    display = Display(output, processes, is_live=_is_terminal())
    started = time.monotonic()
    try:
        with undone(display.close):
            summary = import_profiles(
                paths,
                output,
                format=format,
                align=align,
                jobs=processes,
                force=force,
                max_input_bytes=max_input_bytes,
                progress=display,
            )
    except StoppedError as stop:
        raise stopped(stop.number) from None
    for line in outcome_lines(output, summary, time.monotonic() - started):
        say(line)
    return int(ExitCode.FOUND if strict and is_doubtful(summary.findings) else ExitCode.FINE)


@dataclass
class Display:
    """What is said while an import runs: one live line on a terminal, a line now and then elsewhere.

    Attributes:
        output: where the trace is written.
        processes: how many read at a time.
        is_live: whether stderr is a terminal that can replace a line.
        now: clock, in seconds.
    """

    output: Path
    processes: int
    is_live: bool
    now: Callable[[], float] = time.monotonic
    _started: float | None = field(init=False, default=None)
    _last: float = field(init=False, default=0.0)
    _is_shown: bool = field(init=False, default=False)

    def __call__(self, standing: Progress) -> None:
        """Say how far it is, if it is time to."""
        now = self.now()
        if self._started is None:
            self._started = self._last = now
            say(forecast_line(standing, self.processes, _free_bytes(self.output)))
        if now - self._last < (_LIVE_SECONDS if self.is_live else _PLAIN_SECONDS):
            return
        self._last = now
        line = standing_line(standing, now - self._started)
        if self.is_live:
            live(_shortened(f"trnprof: {line}", shutil.get_terminal_size().columns - 1))
            self._is_shown = True
        else:
            say(line)

    def close(self) -> None:
        """Take the live line away."""
        if self._is_shown:
            live("")
            self._is_shown = False


def forecast_line(standing: Progress, processes: int, free_bytes: int) -> str:
    """What is going to be read, and about what it takes."""
    expected = standing.expected_bytes
    workers = max(1, min(processes, standing.sources)) if expected > SMALL_BYTES else 1
    each = expected / max(1, standing.sources)
    memory = workers * (_MEMORY_A_PROCESS + min(each, _MEMORY_OF_BLOCKS) + _MEMORY_A_BYTE * each)
    return (
        f"{_sources(standing.sources)}, about {format_bytes(expected, 2)} decompressed; "
        f"about {format_bytes(memory, 2)} of memory and {format_bytes(expected * _DISK_A_BYTE, 2)} of disk "
        f"({format_bytes(free_bytes, 2)} free) are needed"
    )


def standing_line(standing: Progress, seconds: float) -> str:
    """How far it is.

    Args:
        standing: the progress.
        seconds: since it began.
    """
    of_sources = f"{standing.done} of {_sources(standing.sources)}"
    if standing.phase != "reading":
        return f"{standing.phase} {of_sources}"
    fraction = min(1.0, standing.read_bytes / max(1, standing.expected_bytes))
    rate = standing.events / seconds if seconds > 0 else 0
    return (
        f"reading {of_sources}, {format_bytes(standing.read_bytes, 3)} ({format_percent(fraction, 0)}), "
        f"{format_count(standing.events, 3)} events, {format_count(rate, 3)}/s"
    )


def _shortened(line: str, columns: int) -> str:
    """What of a line fits, without its last parts: one that is longer would wrap and be left behind."""
    while len(line) > columns and ", " in line:
        line = line.rpartition(", ")[0]
    return line if len(line) <= columns else line[:columns].rpartition(" ")[0]


def outcome_lines(output: Path, summary: ImportSummary, seconds: float) -> list[str]:
    """What became of it: events, ranks, time, the gravest findings, what to do next."""
    ranks = {rank for source in summary.sources for rank in source.ranks}
    formats = ", ".join(sorted({source.format for source in summary.sources}))
    of_ranks = f"{counted(len(ranks), 'rank')} from " if ranks else ""
    lines = [
        f"{output}: {format_count(summary.events)} event{'s' * (summary.events != 1)} of {of_ranks}{_sources(len(summary.sources))} "
        f"({formats}) in {seconds:.1f} s"
    ]
    lines += summary.alignment[:_ALIGNMENT_SHOWN]
    if len(summary.alignment) > _ALIGNMENT_SHOWN:
        lines.append(
            f"… {counted(len(summary.alignment) - _ALIGNMENT_SHOWN, 'more line')} about clocks"
        )
    name = shlex.quote(str(output))
    told = finding_lines(summary.findings)
    lines += told[:_FINDINGS_SHOWN]
    if len(told) > _FINDINGS_SHOWN:
        lines.append(f"… {counted(len(told) - _FINDINGS_SHOWN, 'more finding')}")
    if told:
        lines.append(f"trnprof validate {name} shows all")
    lines.append(f"next: trnprof report {name} · trnprof view {name}")
    return [printable(line) for line in lines]


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """A line for each kind of finding, gravest first; what many sources have alike is said once."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in gravest_first(findings):
        kinds.setdefault((finding.severity, finding.kind), []).append(finding)
    lines = []
    for alike in kinds.values():
        first = alike[0]
        where = first.where if len(alike) == 1 else f"{first.where} and {len(alike) - 1} more"
        wholes = [finding.of for finding in alike if finding.of is not None]
        whole = sum(wholes) if len(wholes) == len(alike) else None
        times = times_text(sum(finding.count for finding in alike), whole)
        unreliable = f"; unreliable: {first.unreliable}" if first.unreliable else ""
        lines.append(f"{first.severity}: {where}: {first.message}{times}{unreliable}")
    return lines


def _sources(count: int) -> str:
    return counted(count, "source")


def _cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _is_terminal() -> bool:
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    return sys.stderr is not None and sys.stderr.isatty() and not is_dumb


def _free_bytes(output: Path) -> int:
    """Free disk where the output will be."""
    for folder in (output.parent, *output.absolute().parents):
        if folder.is_dir():
            return shutil.disk_usage(folder).free
    return 0
