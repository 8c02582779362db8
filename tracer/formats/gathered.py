"""Which numbers of events are kept, block by block, until all of a profile is read?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Gathered:
    """Numbers of some events, gathered block by block."""

    def __init__(self, **types: Any) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in types}
        self._types = types
        self.count = 0

    def add(self, count: int, **columns: Any) -> None:
        """Append ``count`` rows; a scalar holds for all of them."""
        if not count:
            return
        for name, type_ in self._types.items():
            values = np.asarray(columns[name], type_)
            self._parts[name].append(values if values.ndim else np.full(count, values))
        self.count += count

    def __getitem__(self, name: str) -> NDArray[Any]:
        """All values of a column so far."""
        parts = self._parts[name]
        if len(parts) != 1:
            parts[:] = [np.concatenate([np.empty(0, self._types[name]), *parts])]
            parts[0] = parts[0].astype(self._types[name], copy=False)
        return parts[0]
