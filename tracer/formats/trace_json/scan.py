"""Which events does a Chrome-style JSON file hold? Read block by block, in bounded memory, however damaged the file is.

The file is an object with a member ``traceEvents``, or an array of events. No JSON library reads what profilers really write (raw
control characters, invalid UTF-8, bare ``inf``, unescaped backslashes, files cut in the middle), and none keeps times as the
decimal numbers that were written; so the events are located by a compiled loop (``json_array``), and only what is asked for is
decoded (``json_block``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.trace_json import array as json_array
from trnprof.tracer.formats.trace_json.block import EventBlock, share
from trnprof.tracer.formats.trace_json.event import Rows, cells_of
from trnprof.tracer.formats.trace_json.findings import Faults, excerpt
from trnprof.tracer.formats.trace_json.repair import repair_text
from trnprof.tracer.formats.trace_json.texts import mark_invalid_utf8
from trnprof.tracer.formats.trace_json.window import Window
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import ByteStream

__all__ = ["EventBlock", "Fields", "Scan"]

BLOCK_BYTES: Final = 4 << 20
"""Little enough to stay in the caches of a processor while columns are decoded."""
BLOCK_ROWS: Final = 1 << 16
MAX_EVENT_BYTES: Final = 64 << 20
"""No more is held in memory to find the end of an event; a longer one is left out, with a finding."""
MAX_MEMBER_BYTES: Final = 4 << 20
"""A top-level member that is longer is left out of the header, with a finding."""
MAX_HEADER_BYTES: Final = 8 << 20
MAX_MEMBERS: Final = 100_000
"""Top-level members; a file with more is no profile."""

_EVENT_BYTES: Final = 64
"""Room is made for events of this length; of shorter ones a block has several parts."""
_MAX_KEY_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 20
"""Where members of the file are looked for behind a last event that cannot be read."""
_BOM: Final = b"\xef\xbb\xbf"
_EVENTS_MEMBER: Final = re.compile(rb'"traceEvents"\s*:\s*\[')


@dataclass(frozen=True)
class Fields:
    """What is to be located in each event.

    Attributes:
        members: members of the event object: ``ph``, ``name``, ``pid``, ``ts``, …
        args: members of its arguments, named ``args.correlation`` and so on in ``EventBlock``.
        args_member: name of the member that holds the arguments.
    """

    members: tuple[str, ...]
    args: tuple[str, ...] = ()
    args_member: str = "args"


class Scan:
    """One pass over a file. Iterate it once; what is said of the file as a whole is complete afterwards.

    Attributes:
        header: top-level members other than the events, leniently read; members before the events are there with the first
            block.
        events: events handed out so far.
        has_events: whether there is an array of events, empty or not.
        is_truncated: whether the file ends too early.
    """

    def __init__(
        self,
        stream: ByteStream,
        fields: Fields,
        audit: Audit,
        label: str,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Nothing is read yet.

        Args:
            stream: the decompressed bytes; the caller closes it.
            fields: what is to be located; ``ph`` always is.
            audit: takes the findings.
            label: name of the source in findings and errors.
            block_bytes: bytes that are read at a time.
        """
        self.header: dict[str, Any] = {}
        self.events = 0
        self.has_events = False
        self.is_truncated = False
        self._stream = stream
        self._window = Window(stream, block_bytes)
        self._label = label
        self._faults = Faults(audit, label)
        members = ("ph", *(m for m in fields.members if m != "ph"))
        self._shared = share(members, fields.args, fields.args_member, self._faults)
        self._counts = json_array.new_counts()
        self._header_bytes = 0
        self._members = 0

    def __iter__(self) -> Iterator[EventBlock]:
        """The events in file order, some ten thousand at a time.

        Raises:
            ProfileError: the file is empty, or it is no JSON object or array, or it has a JSON value a line.
        """
        window = self._window
        if window.starts_with(_BOM):
            window.begin += len(_BOM)
        c = window.skip_space()
        if c < 0:
            raise ProfileError(f"{self._label}: the file is empty; record the profile again")
        if c not in b"[{":
            text = window.data[window.begin : window.end].tobytes()
            raise ProfileError(
                f"{self._label}: this is no JSON: byte {window.position:,} begins {excerpt(text[:20])!r}; a Chrome trace begins with {{ or ["
            )
        while c >= 0 and c in b"[{" and self._members < MAX_MEMBERS:
            if self._members:
                self._further_value()
            window.begin += 1
            if c == ord("["):
                yield from self._array(is_whole_file=True)
            else:
                yield from self._object()
            self._members += 1
            c = window.skip_space()
        self._finish(c)

    def _further_value(self) -> None:
        """Another object or array follows: right only where the file is several profiles one behind the other."""
        position = self._window.position
        if not self.has_events:
            raise ProfileError(
                f"{self._label}: a second JSON value begins at byte {position:,}, and the one before has no traceEvents: if each line is an "
                "event, put commas between the lines and [ ] around them"
            )
        self._faults.add(
            "several_profiles",
            "warning",
            "another object or array follows the end of the profile; its events were read, too",
            position,
            unreliable="whether they belong together",
        )

    def _object(self) -> Iterator[EventBlock]:
        """The events of an object whose brace is passed."""
        window, has_events = self._window, False
        while True:
            c = window.skip_space()
            if c < 0:
                self._end_of_file_in_object()
                return
            if c in b",]}":
                window.begin += 1
                if c == ord("}"):
                    return
                continue
            position = window.position
            key = self._key() if c == ord('"') else None
            if key is None:
                if not self._find_events(position):
                    return
                key, c = "traceEvents", ord("[")
            else:
                c = window.skip_space()
            self._members += 1
            if self._members > MAX_MEMBERS:
                raise ProfileError(
                    f"{self._label}: more than {MAX_MEMBERS:,} members before byte {position:,}: this is no Chrome trace"
                )
            if key == "traceEvents" and c == ord("["):
                window.begin += 1
                if has_events:
                    self._faults.add(
                        "several_event_arrays",
                        "warning",
                        "traceEvents is there more than once; the events of all were read",
                        position,
                        unreliable="whether they belong together",
                    )
                has_events = True
                if (yield from self._array(is_whole_file=False)):
                    return
            else:
                self._member(key, position)

    def _key(self) -> str | None:
        """The name of a member and the colon behind it are passed; None if there is none, and nothing is passed."""
        window = self._window
        while True:
            stop = min(window.end, window.begin + _MAX_KEY_BYTES)
            text = window.data[window.begin : stop].tobytes()
            found = re.match(rb'"((?:[^"\\]|\\.)*)"\s*:', text, re.DOTALL)
            if found:
                window.begin += found.end()
                return str(_loaded(b'"' + found[1] + b'"'))
            if len(text) == _MAX_KEY_BYTES or not window.more():
                return None

    def _find_events(self, position: int) -> bool:
        """Pass everything up to the bracket of ``traceEvents``, in an object that cannot be read; False if it never comes."""
        window = self._window
        self._faults.add(
            "damaged_header",
            "warning",
            "the members before the events could not be read and were left out",
            position,
            example=window.excerpt(),
        )
        window.begin = max(0, window.begin - 1)
        while True:
            text = window.data[window.begin : window.end].tobytes()
            found = _EVENTS_MEMBER.search(text)
            if found:
                window.begin += found.end() - 1
                return True
            window.begin = max(window.begin, window.end - 256)
            if not window.more():
                window.begin = window.end
                self.is_truncated = True
                return False

    def _member(self, key: str, position: int) -> None:
        """Read a top-level member other than the events; only what is short is kept."""
        window = self._window
        text, size = window.take_value(MAX_MEMBER_BYTES)
        if size <= MAX_MEMBER_BYTES and self._header_bytes + size <= MAX_HEADER_BYTES:
            self._header_bytes += size
            self.header[key] = _loaded(text)
        else:
            self._faults.add(
                "large_header",
                "note",
                f"top-level members are longer than {MAX_MEMBER_BYTES >> 20} MiB, or {MAX_HEADER_BYTES >> 20} MiB together, and were left out",
                position,
                example=f"{key}, {size:,} bytes",
            )

    def _array(self, *, is_whole_file: bool) -> Generator[EventBlock, None, bool]:
        """The events of an array whose bracket is passed.

        Returns:
            Whether the object around it was closed with it.
        """
        window, counts, shared = self._window, self._counts, self._shared
        counts[json_array.EXPECT] = 0
        self.has_events = True
        while True:
            rows = shared.rows(min(BLOCK_ROWS, 16 + (window.end - window.begin) // _EVENT_BYTES))
            count, at, status = json_array.scan_events(
                window.base, window.begin, window.end, window.origin, window.is_final,
                shared.names.names, cells_of(rows), counts,
            )  # fmt: skip
            if count:
                self.events += count
                yield self._block(rows, count)
            window.begin = at
            if status in (json_array.END, json_array.CLOSED, json_array.MEMBER):
                if status != json_array.END and not is_whole_file:
                    self._unclosed(window.position)
                return bool(status == json_array.CLOSED)
            if status == json_array.MORE:
                if window.is_final:
                    return self._end_of_file_in_array(is_whole_file)
                self._keep_on(at)

    def _block(self, rows: Rows, count: int) -> EventBlock:
        located = Rows(
            rows.start[:, :count],
            rows.length[:, :count],
            rows.kind[:, :count],
            rows.first[:count],
            rows.last[:count],
            rows.marks[:count],
        )
        window = self._window
        mark_invalid_utf8(window.base, located.first, located.last, located.marks)
        self._faults.note(window.data, window.origin, located)
        return EventBlock(self._shared, window.data, window.origin, located)

    def _keep_on(self, at: int) -> None:
        """Read on inside the array; an event that is too long is given up."""
        window, counts = self._window, self._counts
        if window.end - at >= MAX_EVENT_BYTES and counts[json_array.LOST_FROM] < 0:
            self._faults.add(
                "oversized_events",
                "error",
                f"an event is longer than {MAX_EVENT_BYTES >> 20} MiB and was left out",
                window.origin + at,
                unreliable="times around it",
            )
            json_array.lose(counts, window.origin + at)
            counts[json_array.IS_CUT] = 0
            window.begin += 1
        lost_from = int(counts[json_array.LOST_FROM])
        window.more(max(lost_from, window.position - _TAIL_BYTES) if lost_from >= 0 else None)

    def _end_of_file_in_array(self, is_whole_file: bool) -> bool:
        window, counts = self._window, self._counts
        lost_from = int(counts[json_array.LOST_FROM])
        counts[json_array.LOST_FROM] = -1
        if lost_from >= 0:
            end = None if counts[json_array.IS_CUT] else self._members_behind(lost_from)
            if end is not None:
                counts[json_array.LOST_BYTES] += end - lost_from
                return True
            counts[json_array.LOST] -= 1
            self.is_truncated = True
            self._faults.cut(lost_from, window.origin + window.end - lost_from, self.events)
        elif not is_whole_file or not self.events:
            self._unclosed(window.origin + window.end)
            self.is_truncated = True
        window.begin = window.end
        return False

    def _end_of_file_in_object(self) -> None:
        if not self.is_truncated:
            self.is_truncated = True
            self._unclosed(self._window.position)

    def _unclosed(self, position: int) -> None:
        self._faults.add(
            "unclosed",
            "warning",
            "the file ends without closing what it began: perhaps it was cut between two events",
            position,
            unreliable="the end of the profile",
        )

    def _members_behind(self, lost_from: int) -> int | None:
        """Where the array ends behind a last event that could not be read, None if no members of the object around follow.

        Such members are taken into the header.
        """
        window = self._window
        low = max(lost_from - window.origin, 0, window.end - _TAIL_BYTES)
        tail = window.data[low : window.end].tobytes()
        for found in list(re.finditer(rb"\]\s*(,|\}\s*$)", tail))[-100:]:
            text = tail[found.end() :] if found[1] == b"," else b"}"
            try:
                members = json.loads(b"{" + text)
            except (ValueError, RecursionError):
                continue
            self.header.update(members)
            window.begin = window.end
            return window.origin + low + found.start()
        return None

    def _finish(self, last: int) -> None:
        window = self._window
        self._faults.between_events(self._counts)
        if last >= 0:
            self._faults.add(
                "trailing_data",
                "note",
                "text follows the end of the profile and was left out",
                window.position,
                example=window.excerpt(),
            )
        if self._stream.truncated and not self.is_truncated:
            self.is_truncated = True
            self._faults.add(
                "truncated", "error", f"the file ends too early: {self._stream.truncated}", window.position,
                unreliable="the end of the profile",
            )  # fmt: skip


def _loaded(text: bytes) -> Any:
    """The value in a JSON text, whatever is wrong with it."""
    try:
        return json.loads(repair_text(text), parse_int=_integer)
    except ValueError:
        return None


def _integer(text: str) -> int | str:
    return int(text) if len(text) < 1000 else text
