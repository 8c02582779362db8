"""Which events does a block of packets hold, in the state of their sequences?

Every pass over a file sees the same blocks and numbers the same events from 0, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trnprof.tracer.formats.perfetto_import.bodies import Bodies, read_bodies
from trnprof.tracer.formats.perfetto_import.clocks import Clocks
from trnprof.tracer.formats.perfetto_import.heads import END, NONE, Heads, read_heads
from trnprof.tracer.formats.perfetto_import.packets import Block, Packets
from trnprof.tracer.formats.perfetto_import.state import READ, Placed, Sequences, Strings
from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import ByteStream


@dataclass(frozen=True)
class PlacedBlock:
    """A block of packets in the state of their sequences; ``chosen`` are the packets with an event that can be read."""

    block: Block
    placed: Placed
    messages: list[tuple[int, Any]]
    chosen: Ints
    heads: Heads


@dataclass(frozen=True)
class Events:
    """Events of a block that count.

    Attributes:
        block: where they lie.
        numbers: from 0 in the order of the file.
        packets: index in the block of the packet of each.
        scopes: of their sequences.
    """

    block: PlacedBlock
    numbers: Ints
    packets: Ints
    scopes: Ints

    def without_bare_ends(self) -> Events:
        """Those that say more than that a slice ends."""
        heads = self.block.heads
        is_bare = (heads.is_bare & (heads.kind == END))[counted(heads)]
        return Events(
            self.block, self.numbers[~is_bare], self.packets[~is_bare], self.scopes[~is_bare]
        )

    def bodies(self, wants_tokens: NDArray[np.bool_]) -> Bodies:
        """Everything but what places them."""
        envelopes = self.block.block.envelopes
        low, high = envelopes.event_low[self.packets], envelopes.event_high[self.packets]
        return read_bodies(self.block.block.data, low, high, wants_tokens)


def placed_blocks(
    stream: ByteStream, audit: Audit, label: str, sequences: Sequences, clocks: Clocks | None
) -> Iterator[PlacedBlock]:
    """All blocks of a file, with their events.

    Args:
        stream: the file from its front.
        audit: is told of damage.
        label: of the file.
        sequences: advanced from block to block.
        clocks: takes the snapshots; None when they were taken before.
    """
    for block in Packets(stream, audit, label):
        messages = _controls(block)
        placed = sequences.advance(block.envelopes, messages, clocks)
        envelopes = block.envelopes
        chosen = np.flatnonzero((envelopes.event_low >= 0) & (placed.fate == READ))
        low, high = envelopes.event_low[chosen], envelopes.event_high[chosen]
        heads = read_heads(block.data, low, high, placed.defaults[chosen], *sequences.tracks())
        yield PlacedBlock(block, placed, messages, chosen, heads)


def numbered_events(
    stream: ByteStream, label: str, sequences: Sequences, strings: Strings
) -> Iterator[Events]:
    """The events that count, block by block, in a further pass over a file.

    Args:
        stream: the file from its front.
        label: of the file.
        sequences: advanced from block to block.
        strings: gets the strings of each block before its events are given out.
    """
    first = 0
    for block in placed_blocks(stream, Audit(), label, sequences, None):
        for packet, message in block.messages:
            if message.HasField("interned_data"):
                strings.take(message, int(block.placed.scope[packet]))
        packets = block.chosen[counted(block.heads)]
        numbers = np.arange(first, first + len(packets))
        first += len(packets)
        if len(packets):
            yield Events(block, numbers, packets, block.placed.scope[packets])
        strings.forget(sequences.live_scopes())


def counted(heads: Heads) -> NDArray[np.bool_]:
    """Which events have a number: the same ones in each pass."""
    is_event: NDArray[np.bool_] = heads.kind != NONE
    return is_event & ~heads.is_damaged


def _controls(block: Block) -> list[tuple[int, Any]]:
    """The packets that have a say, parsed; damaged ones are marked as such."""
    found = []
    for packet in np.flatnonzero(block.envelopes.is_control).tolist():
        try:
            found.append((packet, block.message(packet)))
        except DecodeError:
            block.envelopes.is_damaged[packet] = True
    return found
