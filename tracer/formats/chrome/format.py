"""How is a trace in the Chrome trace event format read, whoever wrote it?

All phases of the format become events, counters, flows or names; what has no column stays in the attributes. GPUs get their meaning
where the name of a process leaves no doubt (rocprof). See docs/formats/chrome.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.chrome.blocks import UNNAMED, Reader
from trnprof.tracer.formats.chrome.counters import Counters
from trnprof.tracer.formats.chrome.facts import Metadata, tell_facts
from trnprof.tracer.formats.chrome.flows import Flows
from trnprof.tracer.formats.chrome.gpu import device_timelines, give_meaning
from trnprof.tracer.formats.chrome.open import Open, Paired
from trnprof.tracer.formats.chrome.phases import GENERIC, Dialect, Phase
from trnprof.tracer.formats.chrome.places import Places
from trnprof.tracer.formats.trace_json.scan import Scan
from trnprof.tracer.formats.trace_json.texts import random_seed
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

_PHASE: Final = re.compile(rb'"ph"\s*:\s*"')
_US_NS: Final = 1_000


def recognise(head: Head) -> int:
    """Whether a source is JSON with trace events; other formats are surer of theirs."""
    start = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] not in (b"{", b"["):
        return 0
    if _PHASE.search(head.data):
        return 20
    return 15 if b'"traceEvents"' in head.data or start.rstrip() in (b"[]", b"[{}]") else 0


def read(source: Source, stage: Stage) -> None:
    """Read a trace into a stage.

    Raises:
        ProfileError: it is no JSON, or has no trace events.
    """
    reader, header = read_events(source, stage, GENERIC)
    paired = finish_events(reader, header)
    own, chips = device_timelines(stage, reader.places)
    reader.places.finish(own)
    reader.counters.finish(chips, reader.places.prefixes())
    is_marker = markers(reader, paired)
    if own:
        names = [name or UNNAMED for (name,) in reader.names]
        give_meaning(stage, own, is_marker, np.concatenate(reader.name_codes), names)
    unit_ns = _US_NS if reader.fine_times else 1
    reader.flows.finish(stage, reader.places, paired.row, ~is_marker, unit_ns)


def read_events(source: Source, stage: Stage, dialect: Dialect) -> tuple[Reader, Mapping[str, Any]]:
    """Read all blocks of a trace.

    Returns:
        (what they were read into, members of the file beside its events).

    Raises:
        ProfileError: it is no JSON, or has no trace events.
    """
    reader = Reader(
        stage,
        dialect,
        Places(stage),
        Open(stage.directory / "open-events.arrows"),
        Counters(stage, dialect.args_member),
        Flows(),
        Metadata(),
        int(random_seed() >> np.uint64(1)),
    )
    stream = source.open()
    try:
        scan = Scan(stream, dialect.fields, stage.audit, source.label)
        for block in scan:
            reader.add(block)
    finally:
        stream.close()
    if not scan.has_events:
        raise ProfileError(
            f"{source.label}: no traceEvents in its JSON, from byte 0 on; is it a trace in the Chrome format?"
        )
    return reader, scan.header


def finish_events(reader: Reader, header: Mapping[str, Any]) -> Paired:
    """Pair and stage what was open, and tell what is doubtful."""
    stage = reader.stage
    paired = reader.finish()
    _tell_unpaired(reader, paired)
    tell_facts(stage, header, reader.metadata)
    if reader.fine_times:
        stage.audit.add(
            "finer_times",
            "note",
            stage.label,
            "times in ns (BeginNs, EndNs) were taken in place of those in whole µs",
            count=reader.fine_times,
        )
    if not stage.rows and not reader.counters.samples:
        stage.audit.add(
            "no_events",
            "warning",
            stage.label,
            "the trace has no events with times",
            unreliable="everything: there is nothing in it",
        )
    return paired


def markers(reader: Reader, paired: Paired) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows that are instants by their phase."""
    is_marker = np.zeros(reader.stage.rows, np.bool_)
    for first, rows in reader.markers:
        is_marker[first : first + rows] = True
    if len(paired.row):
        instants = paired.row[reader.open.numbers["phase"] == Phase.ASYNC_INSTANT]
        is_marker[instants] = True
    return is_marker


def _tell_unpaired(reader: Reader, paired: Paired) -> None:
    stage, numbers = reader.stage, reader.open.numbers
    if not numbers.count:
        return
    phase = numbers["phase"]
    is_end = (phase == Phase.END) | (phase == Phase.ASYNC_END)
    for kind, severity, rows, message in (
        (
            "unmatched_ends",
            "warning",
            np.flatnonzero(is_end & (paired.partner < 0)),
            "events end (E, e, F, D) what never began in the trace; they were left out",
        ),
        (
            "mismatched_ends",
            "warning",
            paired.others,
            "ends (E) have another name than what is open on their thread; they were taken for the end of the innermost",
        ),
    ):
        if len(rows):
            first = int(rows[0])
            name = reader.names[int(numbers["name"][first])][0]
            stage.audit.add(
                kind,
                severity,
                stage.label,
                message,
                unreliable="durations of events around them",
                count=len(rows),
                example=f"{name or UNNAMED} at {int(numbers['ts'][first])} ns",
            )


FORMAT: Final = Format("chrome", "Chrome trace event format (JSON)", recognise, read)
