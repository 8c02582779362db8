"""What is written of several ranks that were captured? One workload, in which each program says for which ranks it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from trnprof.emulator.capture.peers import groups_told, members
from trnprof.emulator.capture.replay import FAILED
from trnprof.emulator.capture.store import Row, holds_workload, seal_workload


def seal_programs(
    folders: Mapping[int, Path],
    codes: Mapping[int, int],
    size: int,
    peers: Path | None,
    notes: Sequence[str],
) -> bool:
    """Seal what rank 0 did, and beside it what others did.

    Args:
        folders: by rank that was run, its trace directory.
        codes: by rank that was run, its exit code.
        size: ranks of the world.
        peers: where programs said which ranks differ, None where there are no others.
        notes: what the launcher adds to the notes.

    Returns:
        False if nothing was captured, or of one of them nothing.

    Raises:
        WriteError: it could not be written.
    """
    own = [Row("note", arguments=text) for text in notes]
    others: list[tuple[Path, Sequence[Row]]] = []
    if peers is not None and len(folders) > 1:
        if not all(map(holds_workload, folders.values())):
            return False
        ends = {rank: [Row("end", FAILED)] if code else [] for rank, code in codes.items()}
        told = [siblings for _, siblings in groups_told(peers)]
        for first, *rest in members(size, folders, told):
            row = Row("world", step=size, source_line=first, arguments=json.dumps([first, *rest]))
            if first == 0:
                own += [row, *ends[0]]
            elif first in folders:
                others.append((folders[first], [row, *ends[first]]))
    return seal_workload(folders[0], own, others)
