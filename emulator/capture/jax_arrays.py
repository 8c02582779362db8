"""Which tensor is an array of JAX? A number for each while it lives, handed on where an argument's memory becomes a result's."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any


class Arrays:
    """The arrays that compiled functions took and returned.

    Attributes:
        dead: numbers whose last array has died since this was last emptied.
        late: numbers of gradients, and of what was made from them alone.
    """

    def __init__(self) -> None:
        self.dead: list[int] = []
        self.late: set[int] = set()
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._uses: Counter[int] = Counter()
        self._next = 0

    def new_numbers(self, count: int) -> int:
        """The first of so many numbers that nothing has yet."""
        first, self._next = self._next, self._next + count
        return first

    def number(self, array: Any) -> int | None:
        """Number of an array; None for one that is new, or that lies with the host."""
        known = self._numbers.get(id(array))
        return known[0] if known is not None else None

    def adopt(self, array: Any, number: int) -> None:
        """From now on this array is that tensor; what it was before, it no longer is."""
        identity = id(array)
        self._release(identity)
        reference = weakref.ref(array, lambda _: self._release(identity))
        self._numbers[identity] = number, reference
        self._uses[number] += 1

    def give_up(self, array: Any) -> None:
        """Its memory was donated."""
        self._release(id(array))

    def take_dead(self) -> list[int]:
        """What has died since the last time."""
        dead, self.dead = self.dead, []
        self.late.difference_update(dead)
        return dead

    def _release(self, identity: int) -> None:
        known = self._numbers.pop(identity, None)
        if known is None:
            return
        self._uses[known[0]] -= 1
        if not self._uses[known[0]]:
            del self._uses[known[0]]
            self.dead.append(known[0])


def array_of(value: Any) -> Any:
    """The array in an argument or result: of a typed random key, the one that holds it."""
    return getattr(value, "_base_array", value)
