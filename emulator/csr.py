"""Where does the list of each owner begin, if the lists of all stand one behind the other (compressed sparse rows)?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def offsets_of(counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """int64[n + 1]: list i is ``offsets[i]:offsets[i + 1]``.

    Args:
        counts: int[n], entries of each list.

    >>> offsets_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
