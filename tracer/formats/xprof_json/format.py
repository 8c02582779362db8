"""How is the trace.json.gz of jax.profiler and of the TensorBoard profile plugin read?

Chrome JSON made from an XSpace: its processes are planes, its threads are lines, its arguments are statistics as strings. What they
mean is as in xplane.py; at most 1,000,000 events are in it. See docs/formats/xprof.md.
"""

from __future__ import annotations

import re
from typing import Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.trace_json.scan import Fields, Scan
from trnprof.tracer.formats.xprof_json.lines import ARGUMENTS, Lines
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

_FIELDS: Final = Fields(("ph", "pid", "tid", "ts", "dur", "name"), ARGUMENTS)
_MOST_EVENTS: Final = 1_000_000
_MARKS: Final = re.compile(
    rb'"(?:/device:(?:TPU|GPU|CUSTOM|[A-Z]+):|/host:(?:CPU|metadata|TPU-runtime|python-tracer|CUPTI|ROCTRACER))'
)


def recognise(head: Head) -> int:
    """Whether a source is trace-event JSON whose processes are the planes of an XSpace."""
    start = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] not in (b"{", b"[") or b'"process_name"' not in head.data:
        return 0
    return 88 if _MARKS.search(head.data) else 0


def read(source: Source, stage: Stage) -> None:
    """Read a trace of XProf into a stage.

    Raises:
        ProfileError: it is no JSON, or has no events.
    """
    stream = source.open()
    try:
        scan = Scan(stream, _FIELDS, stage.audit, source.label)
        lines = Lines(stage)
        for block in scan:
            lines.add(block)
    finally:
        stream.close()
    if not scan.has_events:
        raise ProfileError(
            f"{source.label}: no traceEvents in its JSON, from byte 0 on; is it the trace.json.gz of a profile?"
        )
    lines.finish()
    _findings(stage.audit, source.label, lines)


FORMAT: Final = Format(
    "xprof-json", "trace.json of jax.profiler, XProf and TensorBoard", recognise, read
)


def _findings(audit: Audit, label: str, lines: Lines) -> None:
    if lines.events == _MOST_EVENTS:
        audit.add(
            "event_limit",
            "warning",
            label,
            f"has exactly {_MOST_EVENTS:,} events, where the exporter stops and keeps only the earliest; import the .xplane.pb beside it, which has all",
            unreliable="totals, and everything towards the end",
            example=f"the last event kept begins at {lines.last_ns} ns",
        )
    audit.add(
        "missing_time",
        "error",
        label,
        "events have no ts; they were taken for events at 0",
        unreliable="these events",
        count=lines.untimed,
        example=lines.untimed_name,
    )
    for phase, count in sorted(lines.others.items()):
        audit.add(
            "unknown_phase",
            "warning",
            f"{label}, phase {phase[:8]!r}",
            "events of a phase that XProf does not write; --format chrome imports them",
            count=count,
        )
