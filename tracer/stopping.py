"""What must be undone before a process that is told to end may end, and what tells it to?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

STOPS: Final = tuple(
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if name in signal.Signals.__members__
)
"""Signals that ask a process to end."""

_undos: list[Callable[[], None]] = []


class StoppedError(KeyboardInterrupt):
    """A signal asked this process to end while signals were held back."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Call ``undo`` when the block ends, however it ends: also when a signal ends the process within it (``undo_all``).

    Args:
        undo: may be called several times, and at any moment of the block.
    """
    _undos.append(undo)
    try:
        yield
    finally:
        try:
            undo()
        finally:
            _undos.remove(undo)


def undo_all() -> None:
    """Undo what all blocks that have not ended would undo, the innermost first."""
    for undo in reversed(_undos):
        with suppress(Exception):
            undo()


@contextmanager
def stops_held_back() -> Iterator[Callable[[], None]]:
    """Let signals that ask this process to end interrupt nothing within the block.

    Yields:
        What raises StoppedError if one has come; the end of the block does too.
    """
    came: list[int] = []

    def check() -> None:
        if came:
            number = came[0]
            came.clear()
            raise StoppedError(number)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOPS if is_main}
    before = {n: old for n, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield check
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        check()
