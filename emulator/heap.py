"""Which of many waits least? Binary heaps in two arrays, keys and the items that they belong to, for compiled loops.

The least (key, item) is first, so that equal keys come out in the order of their items, whatever order they went in.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

Array = NDArray[Any]
"""Keys and items may be of any integer or float type; each combination is compiled by itself."""


@compiled
def push(keys: Array, items: Array, size: int, key: float, item: int) -> None:
    """Add to a heap of ``size`` entries."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and items[parent] < item):
            break
        keys[child] = keys[parent]
        items[child] = items[parent]
        child = parent
    keys[child] = key
    items[child] = item


@compiled
def sink(keys: Array, items: Array, size: int, hole: int, key: float, item: int) -> None:
    """Put an entry where ``hole`` is, or below it, in a heap of ``size`` entries, that one counted."""
    child = 2 * hole + 1
    while child < size:
        other = child + 1
        if other < size and (
            keys[other] < keys[child]
            or (keys[other] == keys[child] and items[other] < items[child])
        ):
            child = other
        if key < keys[child] or (key == keys[child] and item < items[child]):
            break
        keys[hole] = keys[child]
        items[hole] = items[child]
        hole = child
        child = 2 * hole + 1
    keys[hole] = key
    items[hole] = item


@compiled
def drop_least(keys: Array, items: Array, size: int) -> None:
    """Remove the first of ``size`` entries: the last takes its place and sinks."""
    last = size - 1
    sink(keys, items, last, 0, keys[last], items[last])
