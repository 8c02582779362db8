"""What do a packet's numbers mean: which strings, defaults and clock has its sequence at that point?

A packet sequence builds up state: interned strings, defaults and clocks of its own. The state begins anew when the sequence says so, and is not to be
trusted after lost packets until it does. Each stretch between two beginnings is a *scope* here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.compiled import compiled
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.perfetto_import.clocks import (
    FIRST_SEQUENCE_CLOCK,
    LAST_SEQUENCE_CLOCK,
    Clocks,
    clock_key,
)
from trnprof.tracer.formats.perfetto_import.packets import Envelopes, text
from trnprof.tracer.formats.protobuf_wire import Ints

_NEEDS: Final = int(pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
_CLEARS: Final = int(pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
_DENSE_IIDS: Final = 1024
_MAX_SEQUENCES: Final = 1 << 17
_MAX_MULTIPLIER: Final = 2**40

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


class _Said(NamedTuple):
    """What n packets of a block say: see ``Envelopes``; ``new_defaults`` is an index, -1 for none, ``default_clock`` the clock of each of these."""

    sequence: Ints
    flags: Ints
    is_cleared: NDArray[np.bool_]
    is_dropped: NDArray[np.bool_]
    timestamp: Ints
    has_timestamp: NDArray[np.bool_]
    clock: Ints
    new_defaults: Ints
    default_clock: Ints


class _Settings(NamedTuple):
    """Clocks of sequences are set: by which packet of the block, which of the 64, and what it shows from then on."""

    packet: Ints
    clock: Ints
    value_ns: Ints
    multiplier: Ints
    is_incremental: NDArray[np.bool_]


class _State(NamedTuple):
    """State of m sequences: defaults as an index (-1 for none), and (m, 64) clocks of their own."""

    scope: Ints
    is_valid: NDArray[np.bool_]
    defaults: Ints
    multiplier: NDArray[np.int64]
    is_incremental: NDArray[np.bool_]
    shown_ns: NDArray[np.int64]
    next_scope: Ints

    def grown(self, count: int) -> _State:
        """With sequences added until there are ``count``, each in a scope of its own."""
        old = len(self.scope)
        first = int(self.next_scope[0])
        self.next_scope[0] += count - old
        scope = np.concatenate([self.scope, np.arange(first, first + count - old)])
        rest = (("is_valid", False), ("defaults", -1), ("multiplier", 1), ("is_incremental", False), ("shown_ns", 0))  # fmt: skip
        wider = {}
        for name, value in rest:
            array = getattr(self, name)
            wider[name] = np.full((count, *array.shape[1:]), value, array.dtype)
            wider[name][:old] = array
        return self._replace(scope=scope, **wider)


class _Found(NamedTuple):
    """What ``Placed`` holds, filled packet by packet."""

    fate: NDArray[np.int8]
    scope: Ints
    clock: Ints
    value_ns: Ints
    defaults: Ints


class Sequences:
    """State of all sequences, advanced block by block.

    Attributes:
        defaults: all distinct ones that were met; the state refers to them by index.
        lost: packets that say that packets before them were lost.
    """

    def __init__(self, label: str) -> None:
        """No packet was met yet.

        Args:
            label: of the file, for errors.
        """
        self._label = label
        self.defaults: list[Defaults] = []
        self.lost = 0
        self._defaults_numbers: dict[Defaults, int] = {}
        self._numbers: dict[int, int] = {}
        nothing = np.zeros((0, 64), np.int64)
        self._state = _State(
            np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0, np.int64),
            nothing, nothing > 0, nothing, np.zeros(1, np.int64),
        )  # fmt: skip

    def number(self, sequence: int) -> int:
        """Dense number of a sequence."""
        return self._numbers.setdefault(sequence, len(self._numbers))

    def ids(self) -> list[int]:
        """Ids of the sequences, by dense number."""
        return list(self._numbers)

    def live_scopes(self) -> set[int]:
        """Scopes that later packets may still refer to."""
        return set(self._state.scope.tolist())

    def advance(
        self, envelopes: Envelopes, messages: list[tuple[int, Any]], clocks: Clocks | None
    ) -> Placed:
        """Go through the packets of a block.

        Args:
            envelopes: of its packets.
            messages: packets that have a say, by index, parsed.
            clocks: takes the snapshots; None when they were taken before.

        Raises:
            ProfileError: more sequences than any recording has, each of which needs memory.
        """
        distinct, index = np.unique(envelopes.sequence, return_inverse=True)
        dense = np.array([self.number(s) for s in distinct.tolist()], np.int64)
        sequence = dense[index] if len(index) else np.zeros(0, np.int64)
        if len(self._numbers) > _MAX_SEQUENCES:
            raise ProfileError(
                f"{self._label}: more than {_MAX_SEQUENCES:,} packet sequences: no recording has so many, the file is damaged"
            )
        if len(self._numbers) > len(self._state.scope):
            self._state = self._state.grown(len(self._numbers))
        new_defaults, settings = self._messages(messages, sequence, clocks)
        self.lost += int(envelopes.is_dropped.sum())
        said = _Said(
            sequence, envelopes.flags, envelopes.is_cleared, envelopes.is_dropped, envelopes.timestamp,
            envelopes.has_timestamp, envelopes.clock, new_defaults,
            np.array([d.clock for d in self.defaults] or [0], np.int64),
        )  # fmt: skip
        fate = np.where(envelopes.is_damaged, DAMAGED, READ).astype(np.int8)
        found = _Found(fate, *(np.zeros(len(sequence), np.int64) for _ in range(4)))
        _advance(said, settings, self._state, found)
        return Placed(fate, found.scope, sequence, found.clock, found.value_ns, found.defaults)

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

    def _messages(
        self, messages: list[tuple[int, Any]], sequence: Ints, clocks: Clocks | None
    ) -> tuple[Ints, _Settings]:
        """New defaults of each packet, -1 for none, and the clocks that are set."""
        new_defaults = np.full(len(sequence), -1, np.int64)
        settings: list[tuple[int, int, int, int, bool]] = []
        for packet, message in messages:
            if message.HasField("trace_packet_defaults"):
                defaults = _defaults(message.trace_packet_defaults)
                new_defaults[packet] = self._defaults_number(defaults)
            if message.HasField("clock_snapshot"):
                shown = _snapshot(message.clock_snapshot, packet, int(sequence[packet]), settings)
                if clocks is not None:
                    clocks.snapshots.append(shown)
                    if message.clock_snapshot.primary_trace_clock:
                        clocks.primary = int(message.clock_snapshot.primary_trace_clock)
        columns = zip(*settings, strict=True) if settings else [()] * 5
        types = (np.int64, np.int64, np.int64, np.int64, np.bool_)
        arrays: list[Any] = [np.array(c, t) for c, t in zip(columns, types, strict=True)]
        return new_defaults, _Settings(*arrays)


def _defaults(message: Any) -> Defaults:
    events = message.track_event_defaults
    return Defaults(
        clock=int(message.timestamp_clock_id),
        track=int(events.track_uuid) if events.HasField("track_uuid") else None,
        counters=tuple(events.extra_counter_track_uuids),
        double_counters=tuple(events.extra_double_counter_track_uuids),
    )


def _snapshot(
    message: Any, packet: int, sequence: int, settings: list[tuple[int, int, int, int, bool]]
) -> dict[int, int]:
    """What a snapshot shows by clock; those of the sequence are set, too."""
    shown: dict[int, int] = {}
    for clock in message.clocks:
        number, value = int(clock.clock_id), int(clock.timestamp)
        if FIRST_SEQUENCE_CLOCK <= number <= LAST_SEQUENCE_CLOCK:
            multiplier = min(int(clock.unit_multiplier_ns) or 1, _MAX_MULTIPLIER)
            value *= multiplier
            at, is_incremental = number - FIRST_SEQUENCE_CLOCK, bool(clock.is_incremental)
            settings.append((packet, at, _wrapped(value), multiplier, is_incremental))
        shown[clock_key(number, sequence)] = _wrapped(value)
    return shown


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@compiled
def _advance(packets: _Said, settings: _Settings, state: _State, out: _Found) -> None:
    setting = 0
    for i in range(packets.sequence.size):
        s = packets.sequence[i]
        if out.fate[i] != READ:
            continue
        if packets.is_cleared[i] or packets.flags[i] & _CLEARS:
            state.scope[s] = state.next_scope[0]
            state.next_scope[0] += 1
            state.is_valid[s] = True
            state.defaults[s] = -1
        elif packets.is_dropped[i]:
            state.is_valid[s] = False
        if packets.new_defaults[i] >= 0:
            state.defaults[s] = packets.new_defaults[i]
        setting = _set_clocks(settings, state, s, i, setting)
        out.scope[i], out.defaults[i] = state.scope[s], state.defaults[s]
        if packets.flags[i] & _NEEDS and not state.is_valid[s]:
            out.fate[i] = STATELESS
        elif packets.has_timestamp[i]:
            used = packets.clock[i]
            if used == 0 and state.defaults[s] >= 0:
                used = packets.default_clock[state.defaults[s]]
            out.clock[i], out.value_ns[i] = _shown(state, s, used, packets.timestamp[i])


@compiled
def _set_clocks(settings: _Settings, state: _State, s: int, packet: int, setting: int) -> int:
    """Set the clocks that a packet of sequence ``s`` sets; the place of the next setting."""
    while setting < settings.packet.size and settings.packet[setting] <= packet:
        if settings.packet[setting] == packet:
            at = settings.clock[setting]
            state.multiplier[s, at] = settings.multiplier[setting]
            state.is_incremental[s, at] = settings.is_incremental[setting]
            state.shown_ns[s, at] = settings.value_ns[setting]
        setting += 1
    return setting


@compiled
def _shown(state: _State, s: int, clock: int, timestamp: int) -> tuple[Any, Any]:
    """``clock_key`` of a timestamp on a clock as a packet of sequence ``s`` names it, and what it showed in ns."""
    if clock < FIRST_SEQUENCE_CLOCK or clock > LAST_SEQUENCE_CLOCK:
        return np.int64(clock), np.int64(timestamp)
    at = clock - FIRST_SEQUENCE_CLOCK
    time = timestamp * state.multiplier[s, at]
    if state.is_incremental[s, at]:
        time += state.shown_ns[s, at]
        state.shown_ns[s, at] = time
    return np.int64(-(s * 64 + at) - 1), time


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
                word = text(entry.str if name == TABLES[-1] else entry.name)
                table.add(scope, int(entry.iid), self.number(word))

    def forget(self, live: set[int]) -> None:
        """Drop the tables of scopes that are over."""
        for table in self.tables:
            table.forget(live)
