"""How is the work on many sources spread over processes, and how far is it?

The processes are started fresh (``spawn``): a fork of a process whose libraries have threads may hang. Each tells how many bytes
it has read of its source in a shared array; this process looks at it now and then and tells whoever listens.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection
from types import TracebackType
from typing import Any, Final, Self

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.stopping import STOPS, stops_held_back

POLL_SECONDS: Final = 0.2

SMALL_BYTES: Final = 32_000_000
"""Sources that are smaller together are read in this process: starting others takes longer."""

_standing: Any = None
"""Bytes read and events found, two numbers a source; in a worker a shared array, in this process a list."""
_listen: Callable[[], None] | None = None


@dataclass(frozen=True)
class Progress:
    """How far an import is.

    Attributes:
        phase: ``reading`` or ``writing``.
        read_bytes: decompressed bytes read of all sources.
        expected_bytes: about how many there are.
        events: events found in them.
        done: sources done in this phase.
        sources: how many there are.
    """

    phase: str
    read_bytes: int
    expected_bytes: int
    events: int
    done: int
    sources: int


Listener = Callable[[Progress], None]


def told(index: int, read_bytes: int, events: int) -> None:
    """Say how many bytes of a source have been read and events found, from wherever it is read."""
    if _standing is not None:
        _standing[2 * index : 2 * index + 2] = [read_bytes, events]
    if _listen is not None:
        _listen()


class Pool:
    """Some processes, or this one.

    While there are others, signals are held back: a process that is started by half ends in a traceback, and this one ends the others
    before it ends.
    """

    def __init__(self, jobs: int, expected_bytes: Sequence[int], listener: Listener | None) -> None:
        """Start nothing yet.

        Args:
            jobs: processes; 1 works in this one.
            expected_bytes: about how many decompressed bytes each source has.
            listener: is told how far the work is.
        """
        self._expected_bytes = sum(expected_bytes)
        self._sources = len(expected_bytes)
        self._listener = listener
        self._phase, self._done = "reading", 0
        self._processes = min(jobs, self._sources) if self._expected_bytes > SMALL_BYTES else 1
        self._executor: ProcessPoolExecutor | None = None
        self._held = ExitStack()
        self._check: Callable[[], None] | None = None
        self._standing: Any = [0] * (2 * self._sources)

    def map(
        self, phase: str, work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """The results of some work on each source, in order.

        Args:
            phase: what to call it.
            work: a function of a module.
            arguments: of each call.

        Raises:
            ProfileError: a process was killed.
            Exception: what the work raised.
        """
        self._phase, self._done = phase, 0
        self._tell()
        if self._executor is None:
            return [self._here(work, each) for each in arguments]
        futures = [self._executor.submit(work, *each) for each in arguments]
        try:
            self._watch(futures)
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise ProfileError(
                "a process that read a source was killed (out of memory?); import with --jobs 1, or fewer sources"
            ) from error

    def __enter__(self) -> Self:
        if self._processes > 1:
            self._check = self._held.enter_context(stops_held_back())
            context = multiprocessing.get_context("spawn")
            self._standing = context.Array("q", 2 * self._sources, lock=False)
            start = _start_worker, (self._standing,)
            self._executor = ProcessPoolExecutor(self._processes, context, *start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes; at once if something went wrong."""
        if self._executor is None:
            return
        with self._held:
            workers = list(self._executor._processes.values())
            self._executor.shutdown(wait=error is None, cancel_futures=True)
            for worker in workers if error is not None else ():
                worker.kill()
                worker.join()

    def _here(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        global _standing, _listen
        _standing, _listen = self._standing, self._tell
        try:
            result = work(*arguments)
        finally:
            _standing, _listen = None, None
        self._done += 1
        self._tell()
        return result

    def _watch(self, futures: Sequence[Future[Any]]) -> None:
        pending = set(futures)
        while pending:
            done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            self._done += len(done)
            self._tell()
            for future in done:
                if future.exception() is not None:
                    return

    def _tell(self) -> None:
        if self._check is not None:
            self._check()
        if self._listener is not None:
            standing = list(self._standing)
            self._listener(
                Progress(
                    self._phase,
                    sum(standing[::2]),
                    self._expected_bytes,
                    sum(standing[1::2]),
                    self._done,
                    self._sources,
                )
            )


def _start_worker(standing: Any) -> None:
    global _standing
    _standing = standing
    for number in STOPS:
        if number != signal.SIGTERM:  # a terminal sends them to all: the parent ends the workers
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker once the process that started it is gone: killed, it could not end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
