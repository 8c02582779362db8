"""Are there several ranks in one PyTorch profile, put together by some tool?

A profile is of one process. If several processes in it launch work, each on devices of its own, they are ranks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trnprof.tracer.formats.kineto.places import Places
from trnprof.tracer.formats.kineto.state import Ints, State


def assign_ranks(state: State, places: Places, host: Ints, device: Ints) -> dict[int, int]:
    """Give the timelines of several ranks theirs.

    Args:
        state: the profile, all read.
        places: its rows.
        host: for each piece of linked work the process that launched it.
        device: the process that it lies in.

    Returns:
        Process → rank; empty if the profile is of one rank.
    """
    hosts = np.unique(host).tolist()
    devices = [set(np.unique(device[host == number]).tolist()) for number in hosts]
    if len(hosts) < 2 or sum(map(len, devices)) > len(set().union(*devices)):
        return {}
    order = sorted(range(len(hosts)), key=lambda at: (min(devices[at]), at))
    ranks: dict[int, int] = {}
    for rank, at in enumerate(order):
        ranks |= dict.fromkeys((hosts[at], *devices[at]), rank)
    owner = places.process_of()
    for number, timeline in enumerate(state.stage.timelines):
        if (rank_of := ranks.get(int(owner[number]))) is not None:
            state.stage.timelines[number] = replace(timeline, rank=rank_of)
    state.stage.facts.rank = 0
    state.stage.audit.add(
        "merged_ranks",
        "warning",
        state.label,
        f"{len(hosts)} processes launch work on devices of their own, as if profiles of several ranks had been put together; they are "
        f"ranks 0 to {len(hosts) - 1} in the order of their devices",
        unreliable="which rank is which",
        count=len(hosts),
    )
    return ranks
