"""What places a TrackEvent: its kind, its track, its duration?

A compiled decoder of the few fields that the first pass over a file needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.protobuf_wire import (
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    compiled,
    read_key,
    read_varint,
    signed,
    skip_value,
)


def number(message: Any, field: str) -> int:
    """Number of a field of one of perfetto's messages."""
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_TYPE: Final = number(pb.TrackEvent, "type")
_UUID: Final = number(pb.TrackEvent, "track_uuid")
_LEGACY: Final = number(pb.TrackEvent, "legacy_event")
_ANNOTATION: Final = number(pb.TrackEvent, "debug_annotations")
_PHASE: Final = number(pb.TrackEvent.LegacyEvent, "phase")
_DURATION: Final = number(pb.TrackEvent.LegacyEvent, "duration_us")
_UNSCOPED: Final = number(pb.TrackEvent.LegacyEvent, "unscoped_id")
_LOCAL: Final = number(pb.TrackEvent.LegacyEvent, "local_id")
_GLOBAL: Final = number(pb.TrackEvent.LegacyEvent, "global_id")

NONE, BEGIN, END, INSTANT, SAMPLE, COMPLETE = range(6)
"""What an event is; NONE is a legacy phase that has no counterpart here."""
BY_UUID, BY_SEQUENCE, BY_ID = range(3)
"""What its track is known by: a uuid, its sequence, or the id of a legacy asynchronous event."""


@dataclass(frozen=True)
class Heads:
    """What places n events.

    Attributes:
        kind: BEGIN, END, INSTANT, SAMPLE, COMPLETE or NONE.
        track_kind: BY_UUID, BY_SEQUENCE or BY_ID.
        track: uuid or id; 0 by sequence.
        duration_us: of a COMPLETE one.
        phase: legacy phase, 0 for none.
        has_annotations: whether it has debug annotations.
        is_damaged: its bytes are no TrackEvent.
    """

    kind: NDArray[np.int8]
    track_kind: NDArray[np.int8]
    track: NDArray[np.uint64]
    duration_us: Ints
    phase: Ints
    has_annotations: NDArray[np.bool_]
    is_damaged: NDArray[np.bool_]


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
    phase, marks = np.zeros(rows, np.int64), np.zeros((2, rows), np.bool_)
    _heads(
        data, low, high, defaults, default_track, has_default,
        kind, track_kind, track, duration, phase, marks,
    )  # fmt: skip
    return Heads(kind, track_kind, track, duration, phase, marks[0], marks[1])


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
    legacy = np.zeros(3, np.uint64)
    for i in range(low.size):
        at, end = low[i], high[i]
        typed, has_uuid, uuid = 0, False, np.uint64(0)
        legacy[:] = np.uint64(0)
        while at < end:
            field, wire, value = read_key(data, at, end)
            after = skip_value(data, value, end, wire) if value >= 0 else value
            if after < 0:
                marks[1, i] = True
                break
            if wire == VARINT:
                if field == _TYPE:
                    typed = signed(read_varint(data, value, end)[0])
                elif field == _UUID:
                    uuid, has_uuid = read_varint(data, value, end)[0], True
            elif wire == LENGTH:
                if field == _ANNOTATION:
                    marks[0, i] = True
                elif field == _LEGACY:
                    content = read_varint(data, value, end)[1]
                    if not _legacy(data, content, after, legacy):
                        marks[1, i] = True
            at = after
        if marks[1, i]:
            continue
        phases[i], durations[i] = signed(legacy[0]), signed(legacy[1])
        kind, by_id = _kind(typed, phases[i])
        kinds[i] = kind
        if has_uuid:
            tracks[i] = uuid
        elif by_id:
            track_kinds[i], tracks[i] = BY_ID, legacy[2]
        elif defaults[i] >= 0 and has_default[defaults[i]]:
            tracks[i] = default_track[defaults[i]]
        else:
            track_kinds[i] = BY_SEQUENCE


@compiled
def _legacy(data: Bytes, at: int, end: int, out: NDArray[np.uint64]) -> bool:
    """Phase, duration and id of a LegacyEvent."""
    while at < end:
        field, wire, value = read_key(data, at, end)
        after = skip_value(data, value, end, wire) if value >= 0 else value
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
        at = after
    return True


@compiled
def _kind(typed: int, phase: int) -> tuple[int, bool]:
    """What an event is, by its type or else its legacy phase, and whether its track is known by its id."""
    if typed >= 1 and typed <= 4:
        return typed, False
    if phase == 66:  # B
        return BEGIN, False
    if phase == 69:  # E
        return END, False
    if phase == 88:  # X
        return COMPLETE, False
    if phase in (105, 73, 82):  # i, I, R
        return INSTANT, False
    if phase == 98:  # b
        return BEGIN, True
    if phase == 101:  # e
        return END, True
    if phase == 110:  # n
        return INSTANT, True
    return NONE, False
