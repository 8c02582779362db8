"""On which chip and cores is each rank?

A rank is a logical NeuronCore: ``lnc`` physical ones. ``packed``, as the Neuron runtime numbers cores, fills one chip after the other;
``spread`` puts rank r on chip r and begins again with chip 0 behind the last one; a table says it rank by rank.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trnprof.emulator.system import System
from trnprof.tracer.errors import SystemDescriptionError
from trnprof.tracer.whole_files import read_whole_text

PACKED: Final = "packed"
SPREAD: Final = "spread"
_COLUMNS: Final = ("rank", "chip", "core")
_SINGLE_CORES: Final = ("NeuronCore-v1", "NeuronCore-v2")
"""Generations whose cores cannot be joined to a logical one (Neuron documents, Logical NeuronCore configuration: from Trainium2 on)."""


@dataclass(frozen=True)
class Placement:
    """Where each rank of a program is.

    Attributes:
        name: packed, spread, or the file of the table.
        lnc: physical cores a rank.
        chips: by rank.
        cores: by rank, its first physical core on that chip.
        hbm_sharers: physical cores that use the same HBM stack, where most do.
    """

    name: str
    lnc: int
    chips: tuple[int, ...]
    cores: tuple[int, ...]
    hbm_sharers: int = 1


def parse_placement(text: str) -> str | Mapping[int, tuple[int, int]]:
    """What ``--placement`` means: packed, spread, or a table (a .csv file with the columns rank, chip, core).

    Returns:
        The word; or chip and logical core by rank.

    Raises:
        SystemDescriptionError: another word, or a file that cannot be read, with its line.
    """
    if text in (PACKED, SPREAD):
        return text
    if not text.endswith(".csv"):
        raise SystemDescriptionError(
            f"placement {text!r}: expected {PACKED}, {SPREAD} or a .csv file with the columns {', '.join(_COLUMNS)}"
        )
    try:
        rows = list(csv.reader(io.StringIO(read_whole_text(Path(text)))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "no table of text"
        raise SystemDescriptionError(f"placement {text}: {reason}") from None
    return _table(text, rows)


def place_ranks(
    system: System, world_size: int, placement: str = PACKED, lnc: int | None = None
) -> Placement:
    """Give every rank its place.

    Args:
        system: the machine.
        world_size: how many ranks.
        placement: see ``parse_placement``.
        lnc: physical cores a rank, 1 or 2; None: 1 for a single rank, else 2 where the cores can be joined.

    Raises:
        SystemDescriptionError: more ranks than places, a table that is incomplete or puts a rank where no core is, or cores that cannot be
            joined.
    """
    lnc = _checked_lnc(system, world_size, lnc)
    places = system.chip.cores // lnc
    chips = system.topology.chips
    if world_size > chips * places:
        raise SystemDescriptionError(
            f"{world_size} ranks do not fit {system.name}: {chips} chips of {places} logical cores (LNC {lnc}) hold "
            f"{chips * places}{_more_room(system, lnc)}; choose a larger --system, or several of them with --instances"
        )
    given = parse_placement(placement)
    if given == PACKED:
        spots = [divmod(rank, places) for rank in range(world_size)]
    elif given == SPREAD:
        spots = [(rank % chips, rank // chips) for rank in range(world_size)]
    else:
        assert not isinstance(given, str)
        spots = _given_spots(placement, given, world_size, chips, places)
    cores = [core * lnc for _, core in spots]
    stack = max(1, system.chip.cores // system.chip.hbm_stacks)
    used = Counter(
        (chip, (first + other) // stack)
        for (chip, _), first in zip(spots, cores, strict=True)
        for other in range(lnc)
    )
    return Placement(
        placement, lnc, tuple(chip for chip, _ in spots), tuple(cores), max(used.values())
    )


def can_join_cores(system: System) -> bool:
    """Whether two cores of a system make a logical one."""
    return system.core.name not in _SINGLE_CORES and system.chip.cores % 2 == 0


def _checked_lnc(system: System, world_size: int, lnc: int | None) -> int:
    can_join = can_join_cores(system)
    if lnc is None:
        return 2 if world_size > 1 and can_join else 1
    if lnc not in (1, 2):
        raise SystemDescriptionError(f"LNC {lnc}: a logical core is 1 or 2 physical ones")
    if lnc == 2 and not can_join:
        raise SystemDescriptionError(
            f"LNC 2: two cores of {system.chip.name} ({system.core.name}) cannot be joined to one; use --lnc 1"
        )
    return lnc


def _more_room(system: System, lnc: int) -> str:
    if lnc == 1:
        return ""
    return f" (with --lnc 1, {system.topology.chips * system.chip.cores})"


def _table(path: str, rows: list[list[str]]) -> dict[int, tuple[int, int]]:
    expected = f"expected the columns {', '.join(_COLUMNS)}"
    if not rows or tuple(cell.strip() for cell in rows[0]) != _COLUMNS:
        raise SystemDescriptionError(f"placement {path}, line 1: {expected}")
    spots: dict[int, tuple[int, int]] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        try:
            rank, chip, core = (int(cell) for cell in row)
        except ValueError:
            raise SystemDescriptionError(
                f"placement {path}, line {line}: {','.join(row)!r} is not three whole numbers; {expected}"
            ) from None
        if rank in spots:
            raise SystemDescriptionError(f"placement {path}, line {line}: rank {rank} again")
        spots[rank] = (chip, core)
    return spots


def _given_spots(
    path: str, table: Mapping[int, tuple[int, int]], world_size: int, chips: int, places: int
) -> list[tuple[int, int]]:
    """The table's places by rank, if each of the ranks has one of its own."""
    missing = [rank for rank in range(world_size) if rank not in table]
    if missing:
        raise SystemDescriptionError(
            f"placement {path}: no row for rank {missing[0]} ({len(missing)} of {world_size} are missing)"
        )
    taken: dict[tuple[int, int], int] = {}
    for rank in range(world_size):
        chip, core = spot = table[rank]
        if not (0 <= chip < chips and 0 <= core < places):
            raise SystemDescriptionError(
                f"placement {path}: rank {rank} on chip {chip}, core {core}: there are chips 0..{chips - 1} with logical cores "
                f"0..{places - 1}"
            )
        if spot in taken:
            raise SystemDescriptionError(
                f"placement {path}: ranks {taken[spot]} and {rank} are both on chip {chip}, core {core}"
            )
        taken[spot] = rank
    return [table[rank] for rank in range(world_size)]
