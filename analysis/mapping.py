"""Where does the map step of a report run? Here, on a few threads; what else runs it has the same shape."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS: Final = 2
"""Polars uses all cores for each piece anyway; a second piece fills them while the first one is in a loop of its own."""


class Mapper(Protocol):
    """Runs a function over pieces, wherever."""

    def __call__(
        self, function: Callable[[T, Any], R], pieces: Iterable[T], common: Any
    ) -> Iterator[R]:
        """``function(piece, common)`` of every piece, in the order of the pieces."""
        ...


def on_threads(function: Callable[[T, Any], R], pieces: Iterable[T], common: Any) -> Iterator[R]:
    """Run on THREADS threads of this process; no more pieces than that are in memory."""
    with ThreadPoolExecutor(THREADS) as pool:
        running: deque[Future[R]] = deque()
        try:
            for piece in pieces:
                running.append(pool.submit(function, piece, common))
                if len(running) >= THREADS:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


def counted(mapper: Mapper, tell: Callable[[int, int], None]) -> Mapper:
    """The same mapper that says how many pieces of how many are done."""

    def mapped(function: Callable[[T, Any], R], pieces: Iterable[T], common: Any) -> Iterator[R]:
        listed = list(pieces)
        for done, result in enumerate(mapper(function, listed, common), 1):
            tell(done, len(listed))
            yield result

    return mapped
