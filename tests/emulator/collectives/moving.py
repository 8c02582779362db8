"""Moves what messages carry, and looks at who has what in the end: the meaning of a collective, apart from how it was planned."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.collectives.algorithms.register import plan
from trnprof.emulator.collectives.group import Group, make_group
from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.scale_out import ScaleOut, scale_out
from trnprof.emulator.fabric.topology import Topology

Counts = NDArray[np.int64]


def made_up(spec: str, bandwidths: Sequence[float] = (1e11,)) -> Topology:
    return made_up_topology(spec, bandwidths, [500_000.0])


def whole(spec: str, bandwidths: Sequence[float] = (1e11,)) -> Group:
    topology = made_up(spec, bandwidths)
    return make_group(topology, range(topology.chips))


def instances(spec: str, count: int) -> Topology:
    return scale_out(made_up(spec), ScaleOut(25e9, 6500.0), count)


def planned(
    collective: str, algorithm: str | Sequence[str], group: Group, bytes: int, root: int = 0
) -> Messages:
    names = [algorithm] if isinstance(algorithm, str) else algorithm
    return plan(collective, names, group, bytes, root)


def leaving_and_arriving(messages: Messages, seed: int) -> Iterator[tuple[int, bool]]:
    """Messages as they leave (False) and arrive (True): each at once when its dependencies have arrived, and under way for a random time."""
    waiting = np.diff(messages.dependency_offsets)
    dependents: list[list[int]] = [[] for _ in range(len(messages))]
    for message in range(len(messages)):
        start, end = messages.dependency_offsets[message : message + 2]
        for dependency in messages.dependencies[start:end]:
            dependents[dependency].append(message)
    durations = np.random.default_rng(seed).exponential(1.0, len(messages))
    under_way: list[tuple[float, int]] = []
    for message in np.flatnonzero(waiting == 0).tolist():
        yield message, False
        heapq.heappush(under_way, (durations[message], message))
    while under_way:
        now, arrived = heapq.heappop(under_way)
        yield arrived, True
        for message in dependents[arrived]:
            waiting[message] -= 1
            if waiting[message] == 0:
                yield message, False
                heapq.heappush(under_way, (now + durations[message], message))


def carried(messages: Messages, message: int) -> NDArray[np.int64]:
    """Segments of a message."""
    blocks = messages.blocks
    assert blocks is not None
    segments: NDArray[np.int64] = blocks.first[message] + blocks.stride[message] * np.arange(
        blocks.count[message], dtype=np.int64
    )
    return segments % max(len(blocks.owners[blocks.part[message]]), 1)


class Sums:
    """What each rank has of each segment: how often each rank's own contribution is in it."""

    def __init__(self, messages: Messages, ranks: int) -> None:
        assert messages.blocks is not None
        self.messages, self.part = messages, messages.blocks.part
        self.owners = [owners.tolist() or [None] for owners in messages.blocks.owners]
        self.has: list[Counts] = [
            np.zeros((ranks, len(owners), ranks), np.int64) for owners in self.owners
        ]
        self.ranks = ranks

    def everybody_has_all(self) -> None:
        for part in self.has:
            part[np.arange(self.ranks), :, np.arange(self.ranks)] = 1

    def owners_have_their_own(self) -> None:
        for part, owners in zip(self.has, self.owners, strict=True):
            for segment, owner in enumerate(owners):
                part[owner, segment, owner] = 1

    def root_has(self, root: int) -> None:
        for part in self.has:
            part[root, :, root] = 1

    def run(self, seed: int) -> None:
        messages, moving = self.messages, dict[int, Counts]()
        for message, has_arrived in leaving_and_arriving(messages, seed):
            part, segments = self.has[self.part[message]], carried(messages, message)
            assert len(np.unique(segments)) == len(segments)
            if not has_arrived:
                moving[message] = part[messages.source[message], segments].copy()
            elif messages.is_reduced[message]:
                part[messages.target[message], segments] += moving.pop(message)
            else:
                part[messages.target[message], segments] = moving.pop(message)
        assert not moving


def all_to_all_leaves(messages: Messages, ranks: int, segment_bytes: int) -> NDArray[np.bool_]:
    """Run step by step. bool[rank, origin, destination], who has what is from whom for whom in the end."""
    assert messages.blocks is not None
    (owners,) = messages.blocks.owners
    has = np.eye(ranks, dtype=bool)[:, :, None] & np.ones(ranks, bool)
    for step in range(messages.steps):
        moved: list[tuple[int, Counts, NDArray[np.bool_]]] = []
        for message in np.flatnonzero(messages.step == step).tolist():
            destinations = owners[carried(messages, message)].astype(np.int64)
            what = has[messages.source[message]][:, destinations]
            assert what.sum() * segment_bytes == messages.bytes[message]
            has[messages.source[message]][:, destinations] = False
            moved.append((int(messages.target[message]), destinations, what))
        for target, destinations, what in moved:
            has[target][:, destinations] |= what
    return has
