"""Which messages are an all_to_all whose ranks send different amounts, as a mixture of experts does?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trnprof.emulator.collectives.algorithms.point_to_point import independent
from trnprof.emulator.collectives.messages import Messages
from trnprof.tracer.errors import CollectiveError


def ragged_all_to_all(ranks: int, sent_bytes: Sequence[Sequence[int]]) -> Messages:
    """Each position straight to each other, the next one first; nothing is sent where there is nothing, or to oneself.

    Args:
        ranks: of the group.
        sent_bytes: [ranks][ranks], how much each position (row) sends to each (column).

    Raises:
        CollectiveError: not such a table.
    """
    if len(sent_bytes) != ranks or any(len(row) != ranks for row in sent_bytes):
        raise CollectiveError(
            f"a table of what each rank sends to each: expected {ranks} rows of {ranks} values"
        )
    try:
        table = np.array(sent_bytes, np.int64)
    except OverflowError as error:
        raise CollectiveError(f"a table of what each rank sends: {error}") from None
    if (table < 0).any():
        source, target = np.argwhere(table < 0)[0]
        raise CollectiveError(
            f"rank {source} sends {table[source, target]} bytes to rank {target}: expected 0 or more"
        )
    distance, source = np.divmod(np.arange(ranks, ranks * ranks), ranks)
    target = (source + distance) % ranks
    sent = table[source, target]
    return independent(source[sent > 0], target[sent > 0], sent[sent > 0])
