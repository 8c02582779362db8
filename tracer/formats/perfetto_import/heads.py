"""What places a TrackEvent: its kind, its track, its duration?

A compiled decoder of the few fields that the first pass over a file needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.protobuf_wire import (
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    hash_bytes,
    read_field,
    read_varint,
    signed,
)


def number(message: Any, field: str) -> int:
    """Number of a field of one of perfetto's messages."""
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_TYPE: Final = number(pb.TrackEvent, "type")
_UUID: Final = number(pb.TrackEvent, "track_uuid")
_LEGACY: Final = number(pb.TrackEvent, "legacy_event")
_LABELS: Final = tuple(
    number(pb.TrackEvent, name) for name in ("name", "name_iid", "categories", "category_iids")
)
_PLACING: Final = (
    _TYPE,
    _UUID,
    _LEGACY,
    *_LABELS,
    *(number(pb.TrackEvent, name) for name in ("flow_ids", "flow_ids_old")),
    *(number(pb.TrackEvent, f"terminating_{name}") for name in ("flow_ids", "flow_ids_old")),
)
_PHASE: Final = number(pb.TrackEvent.LegacyEvent, "phase")
_DURATION: Final = number(pb.TrackEvent.LegacyEvent, "duration_us")
_UNSCOPED: Final = number(pb.TrackEvent.LegacyEvent, "unscoped_id")
_LOCAL: Final = number(pb.TrackEvent.LegacyEvent, "local_id")
_GLOBAL: Final = number(pb.TrackEvent.LegacyEvent, "global_id")
_ID_SCOPE: Final = number(pb.TrackEvent.LegacyEvent, "id_scope")
_LEGACY_NAME: Final = number(pb.TrackEvent.LegacyEvent, "name_iid")

NONE, BEGIN, END, INSTANT, SAMPLE, COMPLETE = range(6)
"""What an event is; NONE is a legacy phase that has no counterpart here."""
BY_UUID, BY_SEQUENCE, BY_ID, BY_ID_AND_NAME = range(4)
"""What its track is known by: a uuid, its sequence, or the id of a legacy asynchronous event, with its categories or with its name."""


@dataclass(frozen=True)
class Heads:
    """What places n events.

    Attributes:
        kind: BEGIN, END, INSTANT, SAMPLE, COMPLETE or NONE.
        track_kind: BY_UUID, BY_SEQUENCE, BY_ID or BY_ID_AND_NAME.
        track: uuid or id; 0 by sequence.
        duration_us: of a COMPLETE one.
        phase: legacy phase; its type, negative, if it has none.
        says_more: whether it says more than what places and names it.
        is_damaged: its bytes are no TrackEvent.
        has_label: whether it has a name or categories.
        is_bare: it says nothing but its type and its track.
    """

    kind: NDArray[np.int8]
    track_kind: NDArray[np.int8]
    track: NDArray[np.uint64]
    duration_us: Ints
    phase: Ints
    says_more: NDArray[np.bool_]
    is_damaged: NDArray[np.bool_]
    has_label: NDArray[np.bool_]
    is_bare: NDArray[np.bool_]


def read_heads(
    data: Bytes,
    low: Ints,
    high: Ints,
    defaults: Ints,
    default_track: NDArray[np.uint64],
    has_default: NDArray[np.bool_],
) -> Heads:
    """What places the events ``data[low[i]:high[i]]``.

    Args:
        data: bytes of a block.
        low: where each event begins.
        high: where each ends.
        defaults: row of its defaults, -1 for none.
        default_track: by row: the uuid.
        has_default: by row: whether there is one.
    """
    rows = len(low)
    kind, track_kind = np.zeros(rows, np.int8), np.zeros(rows, np.int8)
    track, duration = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    phase, marks = np.zeros(rows, np.int64), np.zeros((4, rows), np.bool_)
    _heads(
        data, low, high, defaults, default_track, has_default,
        kind, track_kind, track, duration, phase, marks,
    )  # fmt: skip
    return Heads(kind, track_kind, track, duration, phase, *marks)


@compiled
def _heads(
    data: Bytes,
    low: Ints,
    high: Ints,
    defaults: Ints,
    default_track: NDArray[np.uint64],
    has_default: NDArray[np.bool_],
    kinds: NDArray[np.int8],
    track_kinds: NDArray[np.int8],
    tracks: NDArray[np.uint64],
    durations: Ints,
    phases: Ints,
    marks: NDArray[np.bool_],
) -> None:
    legacy = np.zeros(4, np.uint64)
    marks[3, :] = True
    for i in range(low.size):
        at, end = low[i], high[i]
        typed, has_uuid, uuid = 0, False, np.uint64(0)
        legacy[:] = np.uint64(0)
        while at < end:
            field, wire, value, after = read_field(data, at, end)
            if after < 0:
                marks[1, i] = True
                break
            marks[2, i] |= field in _LABELS
            marks[0, i] |= field not in _PLACING
            marks[3, i] &= field in (_TYPE, _UUID)
            if wire == VARINT:
                if field == _TYPE:
                    typed = signed(read_varint(data, value, end)[0])
                elif field == _UUID:
                    uuid, has_uuid = read_varint(data, value, end)[0], True
            elif wire == LENGTH and field == _LEGACY:
                content = read_varint(data, value, end)[1]
                marks[1, i] |= not _legacy(data, content, after, legacy)
                marks[2, i] |= legacy[3] != 0
            at = after
        if marks[1, i]:
            continue
        phases[i], durations[i] = signed(legacy[0]), signed(legacy[1])
        if legacy[0] == 0:
            phases[i] = -typed
        kinds[i], known_by = _kind(typed, signed(legacy[0]))
        if known_by != BY_UUID:
            track_kinds[i], tracks[i] = known_by, legacy[2]
        elif has_uuid:
            tracks[i] = uuid
        elif defaults[i] >= 0 and has_default[defaults[i]]:
            tracks[i] = default_track[defaults[i]]
        else:
            track_kinds[i] = BY_SEQUENCE


@compiled
def _legacy(data: Bytes, at: int, end: int, out: NDArray[np.uint64]) -> bool:
    """Phase, duration, id (mixed with its scope) and interned name of a LegacyEvent; whether it is undamaged."""
    scope = np.uint64(0)
    while at < end:
        field, wire, value, after = read_field(data, at, end)
        if after < 0:
            return False
        if wire == VARINT:
            bits = read_varint(data, value, end)[0]
            if field == _PHASE:
                out[0] = bits
            elif field == _DURATION:
                out[1] = bits
            elif field in (_UNSCOPED, _LOCAL, _GLOBAL):
                out[2] = bits
                scope ^= np.uint64(field == _LOCAL) << np.uint64(63)
            elif field == _LEGACY_NAME:
                out[3] = bits
        elif wire == LENGTH and field == _ID_SCOPE:
            scope ^= hash_bytes(data, read_varint(data, value, end)[1], after)
        at = after
    out[2] ^= scope
    return True


@compiled
def _kind(typed: int, phase: int) -> tuple[int, int]:
    """What an event is, by its legacy phase or else its type, and what its track is known by (BY_UUID: it may be by its sequence)."""
    if typed == SAMPLE or phase == 0:
        return (typed if typed >= BEGIN and typed <= SAMPLE else NONE), BY_UUID
    kind, known_by = NONE, BY_UUID
    if phase in (66, 98, 83):  # B, b, S
        kind = BEGIN
    elif phase in (69, 101, 70):  # E, e, F
        kind = END
    elif phase in (105, 73, 82, 110, 84, 112):  # i, I, R, n, T, p
        kind = INSTANT
    elif phase == 88:  # X
        kind = COMPLETE
    if phase in (98, 101, 110):
        known_by = BY_ID
    elif phase in (83, 70, 84, 112):
        known_by = BY_ID_AND_NAME
    return kind, known_by
