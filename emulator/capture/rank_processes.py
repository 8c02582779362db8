"""How do the processes run that play a world? Rank 0 from the start, others beside it once the program says that they do something else."""

from __future__ import annotations

import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trnprof.emulator.capture.peers import MOST_PLAYED, groups_told, has_ended, members
from trnprof.tracer.errors import CaptureError

_PAUSE_S: Final = 0.03
_GRACE_S: Final = 5.0
_Process = subprocess.Popen[Any]


def run_world(
    first: _Process,
    start: Callable[[int], _Process],
    peers: Path | None,
    size: int,
    on_ranks: Callable[[Sequence[int]], object],
) -> dict[int, int]:
    """Wait for rank 0 and for all ranks that must be run for themselves.

    Where torchrun would end all when one fails, the others may go on for as long again: they do not wait for it, and may be behind it.

    Args:
        first: the process of rank 0.
        start: runs another rank.
        peers: the folder in which programs say which ranks differ; None: there is one rank.
        size: ranks of the world.
        on_ranks: told which ranks are started.

    Returns:
        By rank, the exit code as a shell reports it; the first to fail before others.

    Raises:
        CaptureError: too many ranks differ; those that ran are ended.
    """
    running, codes = {0: first}, dict[int, int]()
    failed: list[int] = []
    began, until = time.monotonic(), math.inf
    with _signals_left_to(running), _ended_with_us(running):
        while running:
            _wait(running, None if peers is None else _PAUSE_S)
            for rank, code in _ended(running).items():
                codes[rank] = code if code >= 0 else 128 - code
                if peers is not None:
                    has_ended(peers, rank)
                if codes[rank] and not failed:
                    failed.append(rank)
                    until = 2 * time.monotonic() - began + _GRACE_S
            if time.monotonic() > until:
                _end(running)
            if peers is not None and not failed:
                wanted = _wanted(peers, size, {*running, *codes}, bool(running))
                if len(wanted) + len(running) + len(codes) > MOST_PLAYED:
                    raise CaptureError(
                        f"{len(wanted) + len(running) + len(codes)} ranks do each something else, {MOST_PLAYED} can be run side by side: let those "
                        "that send to each other have a group of their own (a dimension of the mesh), so that its siblings are known to be alike"
                    )
                if wanted:
                    on_ranks(wanted)
                running |= {rank: start(rank) for rank in wanted}
    return {rank: codes[rank] for rank in (*failed, *sorted(codes.keys() - failed))}


def _wanted(peers: Path, size: int, known: set[int], is_running: bool) -> list[int]:
    """Ranks that must be run and are not: those of groups whose ranks differ, and in the end those that are like none that ran."""
    told = groups_told(peers)
    wanted = {rank for ranks, _ in told for rank in ranks} - known
    if not wanted and not is_running and told:
        alike = members(size, known, [siblings for _, siblings in told])
        wanted = {own[0] for own in alike} - known
    return sorted(wanted)


def _wait(running: Mapping[int, _Process], seconds: float | None) -> None:
    """Until one of them has ended, at most so long."""
    process = next(iter(running.values()))
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _ended(running: dict[int, _Process]) -> dict[int, int]:
    """Exit codes of those that have ended, which are taken out."""
    codes = {rank: process.poll() for rank, process in running.items()}
    ended = {rank: code for rank, code in codes.items() if code is not None}
    for rank in ended:
        del running[rank]
    return ended


def _end(running: Mapping[int, _Process]) -> None:
    for process in running.values():
        process.terminate()


@contextmanager
def _ended_with_us(running: Mapping[int, _Process]) -> Iterator[None]:
    """Nobody goes on if we cannot."""
    try:
        yield
    except BaseException:
        _end(running)
        for process in running.values():
            process.wait()
        raise


@contextmanager
def _signals_left_to(running: Mapping[int, _Process]) -> Iterator[None]:
    """SIGINT reaches the children by itself (same terminal); SIGTERM and SIGHUP are passed on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _: Any) -> None:
        for process in list(running.values()):
            process.send_signal(number)

    handlers: dict[signal.Signals, Any] = {signal.SIGINT: lambda *_: None}
    handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), pass_on)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
