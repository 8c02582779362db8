"""What does AWS's KangaRing send between chips, and what does it spare their HBM?

KangaRing pairs the ranks of a chip: only one of a pair, the primary, is in the ring, so that there are half as many hops as ranks, and it serves
both (Neuron documents, intra-node collectives, KangaRing). Of a gather it sends what came on and to its secondary in one go (one read, two
writes); of a scatter it adds what came, its own and its secondary's (three reads, one write). For each chunk that passes two ranks HBM is
touched 3 times instead of Ring's 4, and 4 times instead of 6. Cycles over disjoint wires run at once.

Here a rank is a chip. So the secondary is never at another end of a link: between chips go the messages of ``multi_ring``, and of two steps one needs
no read of its own (gather) or no write and sum (scatter).
"""

from __future__ import annotations

from dataclasses import replace

from trnprof.emulator.collectives.algorithms.multi_ring import multi_ring
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import Messages


def kangaring(collective: str, group: Group, bytes: int) -> Messages:
    """all_reduce, all_gather or reduce_scatter.

    Raises:
        CollectiveError: too many messages.
    """
    messages = multi_ring(collective, group, bytes)
    is_charged = messages.step % 2 == 0
    return replace(
        messages,
        reads_hbm=messages.is_reduced | is_charged,
        writes_hbm=~messages.is_reduced | is_charged,
    )
