"""How are faults of a Chrome-style JSON file told to a person? One finding a kind, with count, byte and example."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.trace_json import array as json_array
from trnprof.tracer.formats.trace_json import codes as json_codes
from trnprof.tracer.formats.trace_json.event import Rows
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.units import counted

_EXCERPT_BYTES: Final = 120

_KINDS: Final = {
    json_codes.STRAY_COMMA: (
        "stray_commas",
        "note",
        "events have a comma too many (JSON allows none before a closing bracket); it was passed over",
    ),
    json_codes.MISSING_COMMA: (
        "missing_commas",
        "warning",
        "events lack a comma between two members; they were read as if it were there",
    ),
    json_codes.BARE_WORD: (
        "bare_words",
        "warning",
        "events hold a value that JSON does not have (NaN, Infinity, inf, a bare word); it was read as null",
    ),
    json_codes.CONTROL: (
        "control_characters",
        "note",
        "strings of events hold raw control characters; they were kept and escaped",
    ),
    json_codes.BAD_ESCAPE: (
        "unescaped_backslashes",
        "warning",
        "strings of events hold backslashes that were not escaped, as in Windows paths; all backslashes of such a string were "
        "kept as they are",
    ),
    json_codes.QUOTE_ESCAPED: (
        "unescaped_backslashes_before_quotes",
        "warning",
        "strings of events end with a backslash that was not escaped; the string was ended at the quote behind it",
    ),
    json_codes.BAD_NUMBER: (
        "odd_numbers",
        "note",
        "events hold numbers in a form that JSON does not have (+1, .5, 007, 0x1f); they were read as far as they are numbers",
    ),
    json_codes.GRAMMAR: (
        "odd_members",
        "warning",
        "events have a member without a value; it was read as null",
    ),
    json_codes.DEEP: (
        "deep_nesting",
        "note",
        "values are nested in more than 64 levels; what is deeper than 200 is not kept",
    ),
    json_codes.INVALID_UTF8: (
        "invalid_utf8",
        "note",
        "events hold bytes that are not UTF-8; they were replaced by U+FFFD",
    ),
}


def excerpt(text: bytes) -> str:
    """The beginning of a text, for a person."""
    shown = text[:_EXCERPT_BYTES].decode("utf-8", "replace")
    cleaned = "".join(c if c.isprintable() else " " for c in shown)
    return cleaned + ("…" if len(text) > _EXCERPT_BYTES else "")


class Faults:
    """Tells an audit of the faults of one file."""

    def __init__(self, audit: Audit, label: str) -> None:
        self._audit = audit
        self._label = label

    def note(self, data: NDArray[np.uint8], origin: int, rows: Rows) -> None:
        """The faults of a block of events.

        Args:
            data: its bytes.
            origin: position in the file of the first of them.
            rows: its events.
        """
        if not np.bitwise_or.reduce(rows.marks) & json_codes.FAULTS:
            return
        for bit, (kind, severity, message) in _KINDS.items():
            has = (rows.marks & bit) != 0
            if has.any():
                row = int(has.argmax())
                low, high = int(rows.first[row]), int(rows.last[row])
                text = data[low : min(high, low + _EXCERPT_BYTES + 1)].tobytes()
                self.add(kind, severity, message, origin + low, int(has.sum()), excerpt(text))

    def add(
        self,
        kind: str,
        severity: str,
        message: str,
        position: int,
        count: int = 1,
        example: str = "",
        unreliable: str = "",
    ) -> None:
        """One finding about a place in the file."""
        at = f"byte {position:,}" + (f": {example}" if example else "")
        self._audit.add(
            kind, severity, self._label, message, unreliable=unreliable, count=count, example=at
        )

    def cut(self, position: int, lost: int, events: int) -> None:
        """The file ends inside an event."""
        self.add(
            "truncated",
            "error",
            f"the file ends in the middle of an event: {counted(events, 'whole event')} before it kept, the last {counted(lost, 'byte')} lost",
            position,
            unreliable="the end of the profile",
        )

    def between_events(self, counts: NDArray[np.int64]) -> None:
        """What was met between the events of the file."""
        self.add(
            "commas_between_events",
            "note",
            "commas between events are missing or too many; they were read as if they were right",
            int(counts[json_array.COMMAS + 1]),
            int(counts[json_array.COMMAS]),
        )
        self.add(
            "not_events",
            "warning",
            "elements of the array of events are no objects; they were left out",
            int(counts[json_array.NOT_EVENTS + 1]),
            int(counts[json_array.NOT_EVENTS]),
        )
        self.add(
            "unreadable_events",
            "error",
            f"stretches of the file could not be read as events and were left out, {int(counts[json_array.LOST_BYTES]):,} bytes in all",
            int(counts[json_array.LOST + 1]),
            int(counts[json_array.LOST]),
            unreliable="times around them",
        )
