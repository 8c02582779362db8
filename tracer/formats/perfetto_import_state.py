"""What do a packet's numbers mean: which strings, defaults and clock has its sequence at that point?

A packet sequence builds up state: interned strings, defaults and clocks of its own. The state begins anew when the sequence says so, and is not to be
trusted after lost packets until it does. Each stretch between two beginnings is a *scope* here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.perfetto_import_clocks import (
    FIRST_SEQUENCE_CLOCK,
    LAST_SEQUENCE_CLOCK,
    Clocks,
    clock_key,
)
from trnprof.tracer.formats.perfetto_import_packets import Envelopes
from trnprof.tracer.formats.protobuf_wire import Ints, compiled

_NEEDS: Final = int(pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
_CLEARS: Final = int(pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
_DENSE_IIDS: Final = 1024

READ, STATELESS, DAMAGED = range(3)
"""What becomes of a packet: it is read; its sequence has no valid state, which it needs; its bytes are damaged."""


@dataclass(frozen=True)
class Defaults:
    """What packets of a scope have unless they say otherwise: clock id, track (None for none), tracks of extra counters."""

    clock: int = 0
    track: int | None = None
    counters: tuple[int, ...] = ()
    double_counters: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placed:
    """What n packets are in the state of their sequences.

    Attributes:
        fate: READ, STATELESS or DAMAGED.
        scope: number of the scope.
        sequence: dense number of the sequence.
        clock: ``clock_key`` of the timestamp, 0 for the trace's own.
        value_ns: what that clock showed.
        defaults: index into ``Sequences.defaults``, -1 for none.
    """

    fate: NDArray[np.int8]
    scope: Ints
    sequence: Ints
    clock: Ints
    value_ns: Ints
    defaults: Ints


@dataclass
class _Set:
    """A clock of a sequence is set: ``packet`` in the block, and what it shows from then on."""

    packet: list[int] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)
    value: list[int] = field(default_factory=list)
    multiplier: list[int] = field(default_factory=list)
    is_incremental: list[bool] = field(default_factory=list)


class Sequences:
    """State of all sequences, advanced block by block.

    Attributes:
        defaults: all distinct ones that were met; the state refers to them by index.
        lost: packets that say that packets before them were lost.
    """

    def __init__(self) -> None:
        self.defaults: list[Defaults] = []
        self.lost = 0
        self._defaults_numbers: dict[Defaults, int] = {}
        self._numbers: dict[int, int] = {}
        self._scope = np.zeros(0, np.int64)
        self._valid = np.zeros(0, np.bool_)
        self._current = np.zeros(0, np.int64)
        self._multiplier = np.ones((0, 64), np.int64)
        self._incremental = np.zeros((0, 64), np.bool_)
        self._shown = np.zeros((0, 64), np.int64)
        self._next_scope = np.zeros(1, np.int64)

    def number(self, sequence: int) -> int:
        """Dense number of a sequence."""
        return self._numbers.setdefault(sequence, len(self._numbers))

    def ids(self) -> list[int]:
        """Ids of the sequences, by dense number."""
        return list(self._numbers)

    def live_scopes(self) -> set[int]:
        """Scopes that later packets may still refer to."""
        return set(self._scope.tolist())

    def advance(
        self, envelopes: Envelopes, messages: list[tuple[int, Any]], clocks: Clocks | None
    ) -> Placed:
        """Go through the packets of a block.

        Args:
            envelopes: of its packets.
            messages: packets that have a say, by index, parsed.
            clocks: takes the snapshots; None when they were taken before.
        """
        distinct, index = np.unique(envelopes.sequence, return_inverse=True)
        dense = np.array([self.number(s) for s in distinct.tolist()], np.int64)
        sequence = dense[index] if len(index) else np.zeros(0, np.int64)
        self._grow()
        row, settings = self._messages(messages, sequence, clocks)
        count = len(sequence)
        fate = np.where(envelopes.is_damaged, DAMAGED, READ).astype(np.int8)
        scope, clock, value, current = (np.zeros(count, np.int64) for _ in range(4))
        new_defaults = np.full(count, -1, np.int64)
        for packet, defaults in row.items():
            new_defaults[packet] = defaults
        default_clock = np.array([d.clock for d in self.defaults] or [0], np.int64)
        self.lost += int(envelopes.is_dropped.sum())
        _advance(
            sequence, envelopes.flags, envelopes.is_cleared, envelopes.is_dropped,
            envelopes.timestamp, envelopes.has_timestamp, envelopes.clock, new_defaults, default_clock,
            np.array(settings.packet, np.int64), np.array(settings.slot, np.int64),
            np.array(settings.value, np.int64), np.array(settings.multiplier, np.int64),
            np.array(settings.is_incremental, np.bool_),
            self._scope, self._valid, self._current, self._multiplier, self._incremental, self._shown,
            self._next_scope, fate, scope, clock, value, current,
        )  # fmt: skip
        return Placed(fate, scope, sequence, clock, value, current)

    def tracks(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """By index into ``defaults``: the track's uuid, and whether there is one."""
        tracks = [d.track for d in self.defaults]
        has = [t is not None for t in tracks]
        return np.array([t or 0 for t in tracks], np.uint64), np.array(has, np.bool_)

    def _defaults_number(self, defaults: Defaults) -> int:
        number = self._defaults_numbers.setdefault(defaults, len(self.defaults))
        if number == len(self.defaults):
            self.defaults.append(defaults)
        return number

    def _grow(self) -> None:
        more = len(self._numbers) - len(self._scope)
        if more <= 0:
            return
        size = more + len(self._scope)
        first = int(self._next_scope[0])
        self._next_scope[0] += more
        self._scope = np.concatenate([self._scope, np.arange(first, first + more)])
        self._valid = np.concatenate([self._valid, np.zeros(more, np.bool_)])
        self._current = np.concatenate([self._current, np.full(more, -1, np.int64)])
        for name, value in (("_multiplier", 1), ("_incremental", False), ("_shown", 0)):
            old = getattr(self, name)
            new = np.full((size, 64), value, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def _messages(
        self, messages: list[tuple[int, Any]], sequence: Ints, clocks: Clocks | None
    ) -> tuple[dict[int, int], _Set]:
        rows: dict[int, int] = {}
        settings = _Set()
        for packet, message in messages:
            if message.HasField("trace_packet_defaults"):
                rows[packet] = self._defaults_number(_defaults(message.trace_packet_defaults))
            if message.HasField("clock_snapshot"):
                shown = _snapshot(message.clock_snapshot, packet, int(sequence[packet]), settings)
                if clocks is not None:
                    clocks.snapshots.append(shown)
                    if message.clock_snapshot.primary_trace_clock:
                        clocks.primary = int(message.clock_snapshot.primary_trace_clock)
        return rows, settings


def _defaults(message: Any) -> Defaults:
    events = message.track_event_defaults
    return Defaults(
        clock=int(message.timestamp_clock_id),
        track=int(events.track_uuid) if events.HasField("track_uuid") else None,
        counters=tuple(events.extra_counter_track_uuids),
        double_counters=tuple(events.extra_double_counter_track_uuids),
    )


def _snapshot(message: Any, packet: int, sequence: int, settings: _Set) -> dict[int, int]:
    """What a snapshot shows by clock; those of the sequence are set, too."""
    shown: dict[int, int] = {}
    for clock in message.clocks:
        value = int(clock.timestamp)
        if FIRST_SEQUENCE_CLOCK <= clock.clock_id <= LAST_SEQUENCE_CLOCK:
            multiplier = min(int(clock.unit_multiplier_ns) or 1, 2**40)
            value = _wrapped(value * multiplier)
            settings.packet.append(packet)
            settings.slot.append(sequence * 64 + clock.clock_id - FIRST_SEQUENCE_CLOCK)
            settings.value.append(value)
            settings.multiplier.append(multiplier)
            settings.is_incremental.append(bool(clock.is_incremental))
        shown[clock_key(int(clock.clock_id), sequence)] = _wrapped(value)
    return shown


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@compiled
def _advance(
    sequence: Ints,
    flags: Ints,
    is_cleared: NDArray[np.bool_],
    is_dropped: NDArray[np.bool_],
    timestamp: Ints,
    has_timestamp: NDArray[np.bool_],
    clock_id: Ints,
    new_defaults: Ints,
    default_clock: Ints,
    set_packet: Ints,
    set_slot: Ints,
    set_value: Ints,
    set_multiplier: Ints,
    set_incremental: NDArray[np.bool_],
    scopes: Ints,
    valid: NDArray[np.bool_],
    current: Ints,
    multiplier: NDArray[np.int64],
    incremental: NDArray[np.bool_],
    shown: NDArray[np.int64],
    next_scope: Ints,
    fate: NDArray[np.int8],
    scope: Ints,
    clock: Ints,
    value: Ints,
    defaults: Ints,
) -> None:
    setting = 0
    for i in range(sequence.size):
        s = sequence[i]
        if fate[i] != READ:
            continue
        if is_cleared[i] or flags[i] & _CLEARS:
            scopes[s] = next_scope[0]
            next_scope[0] += 1
            valid[s] = True
            current[s] = -1
        elif is_dropped[i]:
            valid[s] = False
        if new_defaults[i] >= 0:
            current[s] = new_defaults[i]
        while setting < set_packet.size and set_packet[setting] <= i:
            if set_packet[setting] == i:
                at = set_slot[setting] % 64
                multiplier[s, at] = set_multiplier[setting]
                incremental[s, at] = set_incremental[setting]
                shown[s, at] = set_value[setting]
            setting += 1
        scope[i] = scopes[s]
        defaults[i] = current[s]
        if flags[i] & _NEEDS and not valid[s]:
            fate[i] = STATELESS
            continue
        if not has_timestamp[i]:
            continue
        used = clock_id[i]
        if used == 0 and current[s] >= 0:
            used = default_clock[current[s]]
        if used >= 64 and used <= 127:
            at = used - 64
            time = timestamp[i] * multiplier[s, at]
            if incremental[s, at]:
                time += shown[s, at]
                shown[s, at] = time
            clock[i], value[i] = -(s * 64 + at) - 1, time
        else:
            clock[i], value[i] = used, timestamp[i]


@dataclass
class _Scope:
    """Words by iid: small numbers in an array, others in a dictionary."""

    dense: NDArray[np.int32] = field(default_factory=lambda: np.full(8, -1, np.int32))
    others: dict[int, int] = field(default_factory=dict)
    entries: int = 0


class Interned:
    """One table of interned strings: by scope and iid, the number of a word."""

    def __init__(self) -> None:
        self._scopes: dict[int, _Scope] = {}

    def add(self, scope: int, iid: int, word: int) -> None:
        """A string of a scope."""
        table = self._scopes.setdefault(scope, _Scope())
        table.entries += 1
        if iid >= max(_DENSE_IIDS, 4 * table.entries):
            table.others[iid] = word
            return
        if iid >= len(table.dense):
            wider = np.full(max(2 * len(table.dense), iid + 1), -1, np.int32)
            wider[: len(table.dense)] = table.dense
            table.dense = wider
        table.dense[iid] = word

    def words(self, scopes: Ints, iids: NDArray[np.uint64]) -> Ints:
        """The number of the word of each of n references, -1 where nothing describes it."""
        found = np.full(len(iids), -1, np.int64)
        if not len(iids):
            return found
        distinct, index = np.unique(scopes, return_inverse=True)
        tables = [self._scopes.get(s, _Scope()) for s in distinct.tolist()]
        sizes = np.array([len(t.dense) for t in tables], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        joined = np.concatenate([t.dense for t in tables])
        fits = iids < sizes[index].astype(np.uint64)
        found[fits] = joined[starts[index[fits]] + iids[fits].astype(np.int64)]
        if any(t.others for t in tables):
            for at in np.flatnonzero(found < 0).tolist():
                found[at] = tables[index[at]].others.get(int(iids[at]), -1)
        return found

    def forget(self, live: set[int]) -> None:
        """Drop the scopes that are over."""
        self._scopes = {s: table for s, table in self._scopes.items() if s in live}


TABLES: Final = (
    "event_categories",
    "event_names",
    "debug_annotation_names",
    "debug_annotation_string_values",
)
CATEGORIES, NAMES, ARGUMENT_NAMES, ARGUMENT_STRINGS = range(4)


class Strings:
    """All strings of the file, once each, and the tables that refer to them."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}
        self.tables = tuple(Interned() for _ in TABLES)

    def number(self, word: str) -> int:
        """The number of a string."""
        if word not in self._numbers:
            self._numbers[word] = len(self.words)
            self.words.append(word)
        return self._numbers[word]

    def take(self, message: Any, scope: int) -> None:
        """The interned strings of a packet."""
        for table, name in zip(self.tables, TABLES, strict=True):
            for entry in getattr(message.interned_data, name):
                text = entry.str.decode("utf-8", "replace") if name == TABLES[-1] else entry.name
                table.add(scope, int(entry.iid), self.number(text))

    def forget(self, live: set[int]) -> None:
        """Drop the tables of scopes that are over."""
        for table in self.tables:
            table.forget(live)
