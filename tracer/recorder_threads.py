"""Where does each thread put what it records, and when is that thread over?"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

Append = Callable[[tuple[Any, ...]], object]
"""``list.extend`` of a log: one operation of the interpreter, so that a record is never torn."""

VALUES_PER_RECORD = 4


def nothing(*_: object) -> None:
    """What appends go to, and what asyncio answers, while nothing records."""


class ThreadLog:
    """What one thread has recorded and nobody drained yet.

    Attributes:
        number: of the thread within the recording, from 0.
        name: of the thread when it first recorded.
        records: flat, four values a record: serial (negative: an instant), name (None: an exit), time, asyncio task (0: none).
    """

    __slots__ = ("_owner", "name", "number", "records")

    def __init__(self, number: int, owner: object) -> None:
        self.number = number
        self.name = threading.current_thread().name
        self.records: list[Any] = []
        self._owner = weakref.ref(owner)

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return self._owner() is None


class _Owner:
    """Lives as long as the thread that recorded."""

    __slots__ = ("__weakref__",)


class Sink:
    """Where records go while nothing records."""

    spans: Append = staticmethod(nothing)
    counts: Append = staticmethod(nothing)


class Threads(threading.local):
    """The log of the calling thread, made when a thread first records."""

    def __init__(
        self, logs: dict[int, ThreadLog], numbers: Iterator[int], counts: list[Any]
    ) -> None:
        self.owner = _Owner()
        log = ThreadLog(next(numbers), self.owner)
        logs[log.number] = log
        self.spans: Append = log.records.extend
        self.counts: Append = counts.extend


class Brake:
    """What stands for ``Threads`` while too much waits for the drain: a thread waits before it reads the clock for a record."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.gate = threading.Event()

    @property
    def spans(self) -> Append:
        """The log of the calling thread, once there is room."""
        self.gate.wait()
        return self.threads.spans

    @property
    def counts(self) -> Append:
        """The list of counter samples, once there is room."""
        self.gate.wait()
        return self.threads.counts
