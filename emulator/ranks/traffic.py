"""What moves within chips and what between them, when all groups of ranks do the same collective at once?

Of a group whose ranks are k to a chip, those on one chip first share the work out among them and put it together in the end, through the
chip's HBM; between chips each of them carries a k-th of the buffer, so that together they carry it once. Groups on the same chips run as
one exchange of all their bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    REDUCE_SCATTER,
    SEND_RECV,
)
from trnprof.emulator.workload import CollectiveCall

COPY: Final = False
REDUCE: Final = True
_LOCAL_PHASES: Final = {
    ALL_REDUCE: (REDUCE, COPY),
    REDUCE_SCATTER: (REDUCE,),
    ALL_GATHER: (COPY,),
    BROADCAST: (COPY,),
    ALL_TO_ALL: (COPY,),
    BARRIER: (COPY, COPY),
    PERMUTE: (COPY,),
    SEND_RECV: (COPY,),
}


@dataclass(frozen=True)
class LocalPhase:
    """One exchange among the ranks of a chip.

    Attributes:
        nbytes: that cross from rank to rank on the chip with the most, all its groups together.
        messages: that a rank posts.
        is_reduced: whether receivers add what arrives to what they have.
    """

    nbytes: int
    messages: int
    is_reduced: bool


@dataclass(frozen=True)
class Exchange:
    """One collective between chips.

    Attributes:
        collective: its kind; send_recv for each pair of a permute.
        chips: in the order of their positions.
        nbytes: the full buffer, of all groups that are on these chips together.
        group_bytes: of one of the groups: its size decides the algorithm.
        root: position that broadcasts.
        sent_bytes: of a ragged all_to_all, [chips][chips].
    """

    collective: str
    chips: tuple[int, ...]
    nbytes: int
    group_bytes: int
    root: int = 0
    sent_bytes: tuple[tuple[int, ...], ...] | None = None


@dataclass
class Traffic:
    """What all groups together move.

    Attributes:
        local_bytes: by chip, what crosses from rank to rank on it in one phase.
        messages: that a rank posts in one such phase.
        exchanges: between chips, by chips and root.
    """

    local_bytes: Counter[int] = field(default_factory=Counter)
    messages: int = 0
    exchanges: dict[tuple[tuple[int, ...], int], Exchange] = field(default_factory=dict)

    def add(self, exchange: Exchange) -> None:
        """Add what one group asks of the links to what others on the same chips do."""
        key = (exchange.chips, exchange.root)
        known = self.exchanges.get(key)
        if known is None:
            self.exchanges[key] = exchange
            return
        sent = exchange.sent_bytes
        if sent is not None and known.sent_bytes is not None:
            sent = tuple(
                tuple(a + b for a, b in zip(one, other, strict=True))
                for one, other in zip(sent, known.sent_bytes, strict=True)
            )
        self.exchanges[key] = Exchange(
            exchange.collective,
            exchange.chips,
            known.nbytes + exchange.nbytes,
            exchange.group_bytes,
            exchange.root,
            sent,
        )


def traffic_of(
    call: CollectiveCall, groups: Sequence[Sequence[int]], chip_of: Sequence[int]
) -> tuple[tuple[LocalPhase, ...], tuple[Exchange, ...]]:
    """What a collective moves that all groups do at once.

    Args:
        call: of one of them.
        groups: ranks of each, by position.
        chip_of: by rank.

    Returns:
        Exchanges within chips, one after the other; exchanges between chips, all at once.
    """
    traffic = Traffic()
    for ranks in groups:
        chips = [chip_of[rank] for rank in ranks]
        if call.kind in (PERMUTE, SEND_RECV):
            _add_pairs(traffic, call, chips)
        else:
            _add_group(traffic, call, chips)
    phases: tuple[LocalPhase, ...] = ()
    if traffic.messages:
        most = max(traffic.local_bytes.values(), default=0)
        phases = tuple(
            LocalPhase(most, traffic.messages, reduces) for reduces in _LOCAL_PHASES[call.kind]
        )
    return phases, tuple(traffic.exchanges.values())


def _add_pairs(traffic: Traffic, call: CollectiveCall, chips: list[int]) -> None:
    """Each sends as far along the group as the root to its target (permute), or only the root does; to the next one where none is named."""
    count = len(chips)
    shift = call.target - call.root if call.target >= 0 else 1
    pairs = [(at, (at + shift) % count) for at in range(count)]
    if call.kind == SEND_RECV:
        target = call.target if call.target >= 0 else (call.root + 1) % count
        pairs = [(call.root, target)]
    for source, target in pairs:
        ends = chips[source], chips[target]
        if source == target:
            continue
        if ends[0] == ends[1]:
            traffic.local_bytes[ends[0]] += call.nbytes
            traffic.messages = 1
        else:
            traffic.add(Exchange(SEND_RECV, ends, call.nbytes, call.nbytes))


def _add_group(traffic: Traffic, call: CollectiveCall, chips: list[int]) -> None:
    ranks = Counter(chips)
    fullest = max(ranks.values())
    for chip, count in ranks.items():
        traffic.local_bytes[chip] += _local_bytes(call, chips, chip, count)
    traffic.messages = max(traffic.messages, fullest - 1)
    if len(ranks) == 1:
        return
    # a machine's collectives go along its dimensions, however the program numbers its ranks
    order = tuple(sorted(ranks))
    root = order.index(chips[call.root]) if call.kind == BROADCAST else 0
    nbytes = call.nbytes * fullest if call.kind == ALL_TO_ALL else call.nbytes
    is_ragged = bool(call.sent_bytes or call.received_bytes)
    sent = _sent_by_chip(call, chips, order) if is_ragged else None
    traffic.add(Exchange(call.kind, order, nbytes, nbytes, root, sent))


def _local_bytes(call: CollectiveCall, chips: list[int], chip: int, count: int) -> int:
    """What one group moves among its ``count`` ranks on a chip in one phase."""
    if call.kind == ALL_TO_ALL and call.sent_bytes:
        received = [nbytes for at, nbytes in zip(chips, call.sent_bytes, strict=True) if at == chip]
        return sum(received) * (count - 1)
    if call.kind == ALL_TO_ALL and call.received_bytes:
        sent = [nbytes for at, nbytes in zip(chips, call.received_bytes, strict=True) if at == chip]
        return sum(sent) * (count - 1)
    if call.kind == ALL_TO_ALL:
        return call.nbytes * count * (count - 1) // len(chips)
    return 0 if call.kind == BARRIER else call.nbytes * (count - 1)


def _sent_by_chip(
    call: CollectiveCall, chips: list[int], order: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Bytes from each chip to each other, where every rank sends what the captured one does: some positions get more than others, or send more."""
    ranks = Counter(chips)
    weight: Counter[int] = Counter()
    for chip, nbytes in zip(chips, call.sent_bytes or call.received_bytes, strict=True):
        weight[chip] += nbytes
    favourites_receive = bool(call.sent_bytes)
    return tuple(
        tuple(
            0
            if source == target
            else ranks[source] * weight[target]
            if favourites_receive
            else weight[source] * ranks[target]
            for target in order
        )
        for source in order
    )
