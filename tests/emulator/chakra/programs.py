"""Execution traces of a few ranks that do the same: whole small programs, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.emulator.chakra.written import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLL,
    COMP,
    RECV,
    REDUCE_SCATTER,
    SEND,
    node,
)

RANKS = 4
PAIRS = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
_ROWS = ("1", "1", "2", "2")
_COLUMNS = ("3", "4", "3", "4")


def random_rank(seed: int, rank: int, count: int = 40) -> list[Any]:
    """Computing and collectives of the world and of two kinds of pairs, each after up to three nodes before it."""
    chance = random.Random(seed)
    nodes = []
    for number in range(count):
        before = range(max(0, number - 8), number)
        data = chance.sample(before, min(len(before), chance.randint(0, 3)))
        if chance.random() < 0.6:
            work = {
                "num_ops": chance.randint(10**8, 10**10),
                "tensor_size": chance.randint(10**5, 10**8),
            }
            nodes.append(node(number, COMP, data=data, is_cpu_op=False, **work))
            continue
        kind = chance.choice((ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL))
        group = chance.choice(("", _ROWS[rank], _COLUMNS[rank]))
        size = chance.randint(2**16, 2**22)
        named = {"pg_name": group} if group else {}
        nodes.append(
            node(number, COLL, data=data, is_cpu_op=False, comm_type=kind, comm_size=size, **named)
        )
    return nodes


def ring_rank(rank: int, rounds: int = 5) -> list[Any]:
    """What a rank has is passed on round the ring while it computes on it."""
    nodes: list[Any] = []
    last: list[int] = []
    for turn in range(rounds):
        first = 3 * turn
        ends = {"comm_size": 2**21, "comm_tag": turn, "is_cpu_op": False}
        work = {"num_ops": 4 * 10**9, "tensor_size": 3 * 10**7, "is_cpu_op": False}
        following, before = (rank + 1) % RANKS, (rank - 1) % RANKS
        nodes += [
            node(first, SEND, data=last, comm_src=rank, comm_dst=following, **ends),
            node(first + 1, RECV, data=last, comm_src=before, comm_dst=rank, **ends),
            node(first + 2, COMP, data=last, **work),
        ]
        last = [first + 1, first + 2]
    return nodes


def replayed_rank(rank: int) -> list[Any]:
    """Nodes whose times were measured, on the device and on the host."""
    return [
        node(0, COMP, duration=30, is_cpu_op=True),
        node(1, COMP, data=[0], duration=100, is_cpu_op=False),
        node(2, COMP, data=[0], duration=50, is_cpu_op=True),
        node(3, COLL, data=[1], is_cpu_op=False, comm_type=ALL_REDUCE, comm_size=2**20),
        node(4, COMP, data=[2], duration=40, is_cpu_op=False),
        node(5, COMP, data=[3, 4], duration=10, is_cpu_op=False),
    ]


PROGRAMS: dict[str, Any] = {
    **{f"random {seed}": lambda rank, seed=seed: random_rank(seed, rank) for seed in range(6)},
    "ring": ring_rank,
    "replayed": replayed_rank,
}


def ranks_of(name: str) -> Sequence[Sequence[Any]]:
    """The nodes of each rank of a program."""
    return [PROGRAMS[name](rank) for rank in range(RANKS)]
