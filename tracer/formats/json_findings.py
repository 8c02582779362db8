"""How are faults of a Chrome-style JSON file told to a person? One finding a kind, with count, byte and example."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats import json_parse as parse
from trnprof.tracer.formats import json_tokens as tokens
from trnprof.tracer.ingest.audit import Audit

_EXCERPT_BYTES: Final = 120

_KINDS: Final = {
    tokens.STRAY_COMMA: (
        "stray_commas",
        "note",
        "events have a comma too many (JSON allows none before a closing bracket); it was passed over",
    ),
    tokens.MISSING_COMMA: (
        "missing_commas",
        "warning",
        "events lack a comma between two members; they were read as if it were there",
    ),
    tokens.BARE_WORD: (
        "bare_words",
        "warning",
        "events hold a value that JSON does not have (NaN, Infinity, inf, a bare word); it was read as null",
    ),
    tokens.CONTROL: (
        "control_characters",
        "note",
        "strings of events hold raw control characters; they were kept and escaped",
    ),
    tokens.BAD_ESCAPE: (
        "unescaped_backslashes",
        "warning",
        "strings of events hold backslashes that were not escaped, as in Windows paths; all backslashes of such a string were "
        "kept as they are",
    ),
    tokens.QUOTE_ESCAPED: (
        "unescaped_backslashes_before_quotes",
        "warning",
        "strings of events end with a backslash that was not escaped; the string was ended at the quote behind it",
    ),
    tokens.BAD_NUMBER: (
        "odd_numbers",
        "note",
        "events hold numbers in a form that JSON does not have (+1, .5, 007, 0x1f); they were read as far as they are numbers",
    ),
    tokens.GRAMMAR: (
        "odd_members",
        "warning",
        "events have a member without a value; it was read as null",
    ),
    tokens.DEEP: (
        "deep_nesting",
        "note",
        "values are nested in more than 64 levels; what is deeper than 200 is not kept",
    ),
    tokens.INVALID_UTF8: (
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

    def note(
        self, data: NDArray[np.uint8], origin: int, rows: parse.Rows
    ) -> None:
        """The faults of a block of events.

        Args:
            data: its bytes.
            origin: position in the file of the first of them.
            rows: its events.
        """
        if not np.bitwise_or.reduce(rows.marks) & tokens.FAULTS:
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
            f"the file ends in the middle of an event: the {events:,} whole events before are kept, the last {lost:,} bytes are lost",
            position,
            unreliable="the end of the profile",
        )

    def between_events(self, counts: parse.Counts) -> None:
        """What was met between the events of the file."""
        self.add(
            "commas_between_events",
            "note",
            "commas between events are missing or too many; they were read as if they were right",
            int(counts.first_comma[0]),
            int(counts.commas[0]),
        )
        self.add(
            "not_events",
            "warning",
            "elements of the array of events are no objects; they were left out",
            int(counts.first_not_event[0]),
            int(counts.not_events[0]),
        )
        self.add(
            "unreadable_events",
            "error",
            f"stretches of the file could not be read as events and were left out, {int(counts.lost_bytes[0]):,} bytes in all",
            int(counts.first_lost[0]),
            int(counts.lost[0]),
            unreliable="times around them",
        )
