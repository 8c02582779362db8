"""Can one instance stand for all of them in a collective, and should it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trnprof.cli.collective_options import Options, read_algorithms, read_ranks
from trnprof.emulator.collectives.algorithms.names import ALIASES, UNFOLDED
from trnprof.emulator.collectives.messages import UNLIKE_RANKS
from trnprof.emulator.machine import Machine
from trnprof.tracer.errors import TrnprofError

FOLD_ABOVE_CHIPS: Final = 1024
"""Up to so many all are emulated unless told otherwise: a second of work for most collectives."""
_UNEQUAL: Final = ("degrade", "fail", "slow", "skew", "jitter", "send_bytes", "astra_sim")
"""Options after which instances are not alike, or not known to be."""


@dataclass(frozen=True)
class Folding:
    """Whether one instance is emulated for all.

    Attributes:
        ranks: that take part of the first instance, where it is folded.
        obstacle: why it is not, in words; empty where nothing speaks against it.
    """

    ranks: tuple[int, ...] | None = None
    obstacle: str = ""


def choose_folding(options: Options, collective: str, machine: Machine) -> Folding:
    """Fold what is large and what is told to be, where that is possible.

    Raises:
        TrnprofError: ``--fold`` of what cannot be folded, or ranks that make no sense.
    """
    instances, chips = options.instances or 1, machine.topology.chips
    is_asked = options.fold
    if is_asked is None:
        is_asked = instances > 1 and instances * chips > FOLD_ABOVE_CHIPS
    if not is_asked:
        return Folding(obstacle="--no-fold says so" if options.fold is False else "")
    obstacle = _obstacle(options, collective, instances, chips)
    ranks = None if obstacle else _ranks_of_each(options, instances, chips)
    if ranks is None and not obstacle:
        obstacle = "--ranks does not have the same ranks of every instance"
    if obstacle and options.fold:
        raise TrnprofError(f"--fold: {obstacle}")
    return Folding(ranks, obstacle)


def _obstacle(options: Options, collective: str, instances: int, chips: int) -> str:
    """Why all instances do not do the same; empty if they do."""
    if instances < 2:
        return "there is one instance: give --instances"
    if chips < 2:
        return "an instance has one chip, so there is nothing to fold"
    for name in _UNEQUAL:
        if getattr(options, name):
            return f"--{name.replace('_', '-')} can make instances differ"
    if options.others:
        return "--with has several collectives in flight"
    if collective in UNLIKE_RANKS:
        return f"in a {collective} instances do different things"
    for name in read_algorithms(options.algorithm):
        if ALIASES.get(name, name) in UNFOLDED:
            return f"by {name} instances do different things"
    return ""


def _ranks_of_each(options: Options, instances: int, chips: int) -> tuple[int, ...] | None:
    """The ranks of the first instance, if those of all others are the same."""
    if options.ranks is None:
        return tuple(range(chips))
    ranks = np.array(read_ranks(options.ranks, instances * chips), np.int64)
    if len(ranks) % instances:
        return None
    rows = ranks.reshape(instances, -1)
    expected = rows[0] + np.arange(instances)[:, None] * chips
    if rows[0].max() >= chips or (rows != expected).any():
        return None
    return tuple(rows[0].tolist())
