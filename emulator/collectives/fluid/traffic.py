"""What do fluids flow through? Collectives in flight at once as one set of messages, in classes over links and parts of chips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.perturb import chip_speeds, noise, releases
from trnprof.emulator.collectives.planned import Planned
from trnprof.emulator.collectives.servers import Servers
from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.fabric import F64, I64, Fabric
from trnprof.emulator.scheduler import frozen

PS: Final = 1e12
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Joined:
    """Messages of several collectives, one collective after the other.

    Attributes:
        first: int64[collectives + 1], of each.
        collective: int64[m], of which each is.
        source: int64[m], chips.
        target: int64[m], chips.
        instance: int64[m], of the receiver, where the group is folded; else 0.
        is_reduced: bool[m].
        reads_hbm: bool[m].
        writes_hbm: bool[m].
        route_offsets: int64[m + 1].
        route_links: int32[...].
    """

    first: I64
    collective: I64
    source: I64
    target: I64
    instance: I64
    is_reduced: Flags
    reads_hbm: Flags
    writes_hbm: Flags
    route_offsets: I64
    route_links: NDArray[np.int32]


def join_messages(planned: Sequence[Planned]) -> Joined:
    """Chips for positions, and one numbering for all."""
    counts = np.array([len(part.messages) for part in planned], np.int64)
    chips = [np.array(part.request.ranks, np.int64) for part in planned]
    both = list(zip(planned, chips, strict=True))
    return Joined(
        first=offsets_of(counts),
        collective=np.repeat(np.arange(len(planned)), counts),
        source=_joined([ranks[part.messages.source] for part, ranks in both]),
        target=_joined([ranks[part.messages.target] for part, ranks in both]),
        instance=_joined([_instances(part) for part in planned]),
        is_reduced=_joined([part.messages.is_reduced for part in planned]),
        reads_hbm=_joined([_or_all(part, part.messages.reads_hbm) for part in planned]),
        writes_hbm=_joined([_or_all(part, part.messages.writes_hbm) for part in planned]),
        route_offsets=_joined_offsets([part.routes.offsets for part in planned]),
        route_links=_joined([part.routes.links for part in planned]),
    )


def make_classes(joined: Joined, fabric: Fabric, endpoint: Endpoint) -> tuple[Any, Any]:
    """Which messages queue for the same links, and for which.

    Returns:
        int32[m], the class of each message; ``max_min_kernel.Paths`` of the classes, over ``Servers``.
    """
    from trnprof.emulator.collectives.fluid.max_min_kernel import Paths

    key = (joined.collective * fabric.chips + joined.source) * fabric.chips + joined.target
    key = key * (joined.instance.max(initial=0) + 1) + joined.instance
    if endpoint.hbm_bytes_per_s > 0:
        key = 8 * key + 4 * joined.is_reduced + 2 * joined.reads_hbm + joined.writes_hbm
    _, some, class_of = np.unique(key, return_index=True, return_inverse=True)
    servers, classes = Servers(fabric.links, fabric.chips), np.arange(len(some))
    first, counts = joined.route_offsets[some], np.diff(joined.route_offsets)[some]
    hop = np.arange(counts.sum()) + np.repeat(first - offsets_of(counts)[:-1], counts)
    used = [(np.repeat(classes, counts), joined.route_links[hop], np.ones(len(hop)))]
    if endpoint.dma_bytes_per_s > 0:
        used.append((classes, servers.first_dma + joined.source[some], np.ones(len(some))))
    if endpoint.hbm_bytes_per_s > 0:
        reads, writes = joined.reads_hbm[some], joined.writes_hbm[some]
        touches = np.where(joined.is_reduced[some], endpoint.reduce_touches, 1.0)
        writes &= touches > 0
        read, written = joined.source[some][reads], joined.target[some][writes]
        used.append((classes[reads], servers.first_hbm + read, np.ones(len(read))))
        used.append((classes[writes], servers.first_hbm + written, touches[writes]))
    users, links, uses = (np.concatenate(column) for column in zip(*used, strict=True))
    order = np.argsort(users, kind="stable")
    offsets = offsets_of(np.bincount(users, minlength=len(some)))
    paths = Paths(frozen(offsets), frozen(links[order], np.int32), frozen(uses[order], np.float64))
    return class_of.astype(np.int32), paths


def capacities(planned: Sequence[Planned], fabric: Fabric, endpoint: Endpoint) -> F64:
    """float64[servers], bytes/ps of links, DMA engines and HBM."""
    speeds = np.ones(fabric.chips)
    for part in planned:
        speeds = np.minimum(speeds, chip_speeds(fabric.chips, part.request))
    dma, hbm = endpoint.dma_bytes_per_s * speeds, endpoint.hbm_bytes_per_s * speeds
    return np.concatenate([fabric.bytes_per_s, dma, hbm]) / PS


def make_traffic(
    planned: Sequence[Planned], joined: Joined, fabric: Fabric, endpoint: Endpoint, class_of: Any
) -> Any:
    """The messages as ``fluid_kernel.Traffic``: noise on bytes and latencies, and who waits for whom."""
    from trnprof.emulator.collectives.fluid.kernel import Traffic
    from trnprof.emulator.scheduler_kernel import Edges, link_dependents

    offsets = _joined_offsets([part.messages.dependency_offsets for part in planned])
    dependencies = [
        part.messages.dependencies + first
        for part, first in zip(planned, joined.first.tolist(), strict=False)
    ]
    edges = Edges(frozen(offsets), frozen(_joined(dependencies)), frozen(np.zeros(offsets[-1])))
    dependent_offsets, dependents, _ = link_dependents(edges)
    noises = _joined([_noise(part) for part in planned])
    passed = np.concatenate([[0], np.cumsum(fabric.latency_ps[joined.route_links])])
    latency = passed[joined.route_offsets[1:]] - passed[joined.route_offsets[:-1]]
    posts = np.array(
        [endpoint.post_ps / chip_speeds(fabric.chips, part.request) for part in planned]
    )
    messages = len(joined.source)
    return Traffic(
        bytes=_joined([part.messages.bytes for part in planned]) * noises,
        class_of=class_of,
        poster=(joined.collective * fabric.chips + joined.source).astype(np.int32),
        post_ps=np.rint(posts[joined.collective, joined.source]).astype(np.int64),
        lead_ps=np.full(messages, endpoint.dma_start_ps, np.int64),
        latency_ps=np.rint(latency * noises).astype(np.int64),
        done_ps=np.full(messages, endpoint.dma_done_ps, np.int64),
        pending=np.diff(offsets).astype(np.int32),
        dependent_offsets=dependent_offsets,
        dependents=dependents,
    )


def make_times(planned: Sequence[Planned], endpoint: Endpoint, messages: int) -> Any:
    """``fluid_kernel.Times`` with the releases in."""
    from trnprof.emulator.collectives.fluid.classes import NEVER, NOBODY
    from trnprof.emulator.collectives.fluid.kernel import Times

    ready, blockers = [], []
    for part in planned:
        release_ps, late = releases(part.request)
        ready.append((release_ps + endpoint.start_ps)[part.messages.source])
        blockers.append(np.where(late >= 0, -2 - late, NOBODY)[part.messages.source])
    return Times(
        ready_ps=_joined(ready).astype(np.int64),
        start_ps=np.full(messages, NEVER, np.int64),
        end_ps=np.full(messages, NEVER, np.int64),
        blocker=_joined(blockers).astype(np.int64),
        bottleneck=np.full(messages, NOBODY, np.int32),
        ratings=np.zeros(2, np.int64),
    )


def _or_all(part: Planned, flags: Flags | None) -> Flags:
    return np.ones(len(part.messages), np.bool_) if flags is None else flags


def _instances(part: Planned) -> I64:
    whole = part.messages.whole_target
    if whole is None:
        return np.zeros(len(part.messages), np.int64)
    return whole // len(part.request.ranks)


def _noise(part: Planned) -> F64:
    factors = noise(part.request.jitter, len(part.messages))
    return factors if len(factors) else np.ones(len(part.messages))


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _joined_offsets(offsets: list[I64]) -> I64:
    """CSR offsets of several parts, one after the other."""
    return offsets_of(_joined([np.diff(part) for part in offsets]))
