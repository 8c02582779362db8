"""Which event ids exist? A set that needs no memory where ids are dense, eight bytes an id elsewhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint64]


class EventIds:
    """A growing set of event ids."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Ids | None]] = []

    def add(self, ids: Ids) -> Ids:
        """Add ids.

        Returns:
            Those that were in the set already or come more than once in ``ids``, sorted, distinct.
        """
        if not len(ids):
            return ids
        distinct, counts = np.unique(ids, return_counts=True)
        again = distinct[(counts > 1) | self.contains(distinct)]
        first, last = int(distinct[0]), int(distinct[-1])
        dense = last - first + 1 == len(distinct)
        self._ranges.append((first, last, None if dense else distinct))
        return again

    def contains(self, ids: Ids) -> NDArray[np.bool_]:
        """Whether each of some sorted ids is in the set."""
        found = np.zeros(len(ids), bool)
        for first, last, known in self._ranges:
            begin = int(np.searchsorted(ids, np.uint64(first), "left"))
            end = int(np.searchsorted(ids, np.uint64(last), "right"))
            if known is None:
                found[begin:end] = True
            else:
                place = np.searchsorted(known, ids[begin:end])
                found[begin:end] |= known[place] == ids[begin:end]
        return found

    def missing(self, ids: Ids) -> Ids:
        """The distinct ids that are not in the set, sorted."""
        distinct = np.unique(ids)
        return distinct[~self.contains(distinct)]
