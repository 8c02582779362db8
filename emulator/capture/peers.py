"""Which ranks of a played world do something of their own, and what do they tell each other? Files in one folder, no connections.

A program finds out while it runs that the ranks of one of its groups differ (stages of a pipeline), and says so; the launcher then runs it
for these ranks too. What a rank sends as an object, or as a small tensor whose values are known, waits here for its reader, which may
have been started later.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER: Final = "ranks"
"""Folder in the trace directory, while it is recorded: a trace directory for each rank but rank 0, and what ranks tell each other."""
MOST_PLAYED: Final = 64
"""So many ranks are run side by side at most; each takes some hundred megabytes."""
_GROUP, _MESSAGE, _ENDED = "group-", "message-", "ended-"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LOOK_S = 0.002, 0.05, 1.0

Siblings = tuple[tuple[int, ...], ...]


class PeerEndedError(Exception):
    """What a rank waits for will never come; its text says what and why."""


def folder_of(trace_dir: Path, rank: int) -> Path:
    """Where a rank's workload is written: rank 0's is that of the trace."""
    return trace_dir / FOLDER / str(rank) if rank else trace_dir


class Peers:
    """What this rank tells others, and hears of them.

    Attributes:
        rank: this one.
    """

    def __init__(self, folder: Path, rank: int, launcher: int) -> None:
        self.rank = rank
        self._folder = folder
        self._launcher = launcher
        self._told: set[tuple[int, ...]] = set()
        self._sent: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def differ(self, ranks: Sequence[int], siblings: Siblings) -> None:
        """Each rank of a group does something else.

        Args:
            ranks: of the group.
            siblings: all groups that do the same at the same time.
        """
        key = tuple(ranks)
        if key not in self._told:
            self._told.add(key)
            _write(self._folder, _GROUP, _named(str(key)), json.dumps([key, siblings]).encode())

    def is_played(self, rank: int) -> bool:
        """Whether a rank runs on its own."""
        return rank == self.rank or rank in played_ranks(self._folder)

    def post(self, channel: str, data: bytes) -> None:
        """Leave what comes next on a channel."""
        number = self._sent[channel]
        self._sent[channel] += 1
        _write(self._folder, _MESSAGE, _named(f"{channel}#{number}"), data)

    def skip(self, channel: str) -> int:
        """Number of what comes next on a channel, for ``read``; it need not be read."""
        number = self._taken[channel]
        self._taken[channel] += 1
        return number

    def read(self, channel: str, number: int, sender: int) -> bytes:
        """What a rank left as so many-th on a channel; waits for it.

        Raises:
            PeerEndedError: that rank has ended without it.
        """
        path = self._folder / f"{_MESSAGE}{_named(f'{channel}#{number}')}"
        pause, looked = _FIRST_PAUSE_S, time.monotonic()
        while True:
            has_ended = (self._folder / f"{_ENDED}{sender}").exists()
            with suppress(FileNotFoundError):
                return path.read_bytes()
            if has_ended:
                raise PeerEndedError(
                    f"rank {self.rank} waits for what rank {sender} sends, which has ended without sending it"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            if time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                self._look_for_launcher()

    def _look_for_launcher(self) -> None:
        try:
            os.kill(self._launcher, 0)
        except ProcessLookupError:
            raise PeerEndedError(
                f"rank {self.rank} waits for another rank, but trnprof has ended"
            ) from None
        except OSError:
            return


def played_ranks(folder: Path) -> set[int]:
    """Ranks that run on their own, as far as the programs have said; none if all do the same."""
    return {rank for ranks, _ in groups_told(folder) for rank in ranks}


def groups_told(folder: Path) -> list[tuple[tuple[int, ...], Siblings]]:
    """Groups whose ranks differ, with their siblings."""
    found = []
    for path in sorted(folder.glob(f"{_GROUP}*")):
        ranks, siblings = json.loads(path.read_bytes())
        found.append((tuple(ranks), tuple(map(tuple, siblings))))
    return found


def has_ended(folder: Path, rank: int) -> None:
    """Tell all ranks that one sends nothing more."""
    (folder / f"{_ENDED}{rank}").touch()


def members(size: int, played: Iterable[int], partitions: Iterable[Siblings]) -> list[list[int]]:
    """Which ranks do the same? Those that have the same position in every group whose ranks differ.

    Args:
        size: ranks in all.
        played: those that run, before others with the same positions.
        partitions: for each kind of group whose ranks differ, all that exist beside each other.

    Returns:
        Ranks that do the same, the one that stands for them first, then ascending; by the rank that stands for them.
    """
    keys: list[list[int]] = [[] for _ in range(size)]
    for siblings in dict.fromkeys(partitions):
        positions = {rank: at for ranks in siblings for at, rank in enumerate(ranks)}
        for rank, key in enumerate(keys):
            key.append(positions.get(rank, -1))
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in (*sorted(played), *range(size)):
        own = found.setdefault(tuple(keys[rank]), [])
        if rank not in own:
            own.append(rank)
    return sorted([own[0], *sorted(own[1:])] for own in found.values())


def _named(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _write(folder: Path, kind: str, name: str, data: bytes) -> None:
    """A file that is there whole or not at all."""
    beside = folder / f"beside-{kind}{name}-{os.getpid()}"
    beside.write_bytes(data)
    os.replace(beside, folder / f"{kind}{name}")
