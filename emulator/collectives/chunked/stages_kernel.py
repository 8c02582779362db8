"""Through which stages does a message go, and how long does each take? Compiled; imported when first needed, as numba is.

A message is a chain of stages: its post (CC-core), its reading (DMA engines, HBM of the sender), its links, its writing (HBM of the receiver),
each of which there is only where it costs anything.

Where stages stream, one begins no sooner than the head of the chunk is there, and ends no sooner than the tail: it is held for as long as the chunk
takes at its own rate, as late as the tail allows. A stage before a slower one that is faster than some before it is held early instead, from
the head on: its tail matters to nobody, and the next one waits for the tail of the slowest before.

Loops use arrays by names of their own: numba counts references whenever one is taken out of a tuple.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import F64, I32, I64
from trnprof.tracer.compiled import compiled, inlined

Bools = NDArray[np.bool_]
PS: Final = 1e12
ASTRA_PASSES: Final = 3
"""Read, read and write, each rounded down (PacketBundle.cc)."""


class Work(NamedTuple):
    """Messages of one collective, with chips for positions.

    Attributes:
        source: int32[m], chips.
        target: int32[m], chips.
        bytes: int64[m].
        is_reduced: bool[m].
        reads_hbm: bool[m].
        writes_hbm: bool[m].
        route_offsets: int64[m + 1].
        route_links: int32[hops].
    """

    source: I32
    target: I32
    bytes: I64
    is_reduced: Bools
    reads_hbm: Bools
    writes_hbm: Bools
    route_offsets: I64
    route_links: I32


class Rates(NamedTuple):
    """What stages cost.

    Attributes:
        link_bytes_per_s: float64[links].
        link_latency_ps: int64[links].
        post_ps: int64[chips], of a message, whatever its chunks; empty: no such stage. So are the next two.
        dma_bytes_per_s: float64[chips].
        hbm_bytes_per_s: float64[chips].
        reduce_touches: HBM bytes a reduced byte.
        dma_start_ps: from the post to the reading.
        done_ps: from the last byte to its being seen.
        sum_bytes_per_s: AstraSim: of one pass over what arrives to be summed; 0: no time.
        tick_ps: AstraSim: to which the times of a chunk are rounded down; 0: those of a message are rounded to the nearest ps.
        cuts_through: whether a link passes on a chunk before it has all of it.
        first_dma: server of chip 0; so are the next two.
        first_hbm: …
        first_post: …
    """

    link_bytes_per_s: F64
    link_latency_ps: I64
    post_ps: I64
    dma_bytes_per_s: F64
    hbm_bytes_per_s: F64
    reduce_touches: float
    dma_start_ps: int
    done_ps: int
    sum_bytes_per_s: float
    tick_ps: int
    cuts_through: bool
    first_dma: int
    first_hbm: int
    first_post: int


class Stages(NamedTuple):
    """The chains of all messages.

    Attributes:
        offsets: int64[m + 1], CSR offsets into the others but the next.
        first_link: int64[m], the first stage of each message that is a link.
        posts: how many stages of each message come before what moves its bytes: 1 if there are posts.
        server: int32[stages].
        is_each: whether times are those of each chunk; else of all chunks of a message together.
        time_ps: int64[stages], how long it is held.
        latency_ps: int64[stages], from then until the chunk is at the next one, or has arrived.
        streams: bool[stages], whether the next may begin as soon as the head is there.
        is_early: bool[stages], whether it is held from the head on, however late the tail.
    """

    offsets: I64
    first_link: I64
    posts: int
    is_each: bool
    server: I32
    time_ps: I64
    latency_ps: I64
    streams: Bools
    is_early: Bools


@inlined
def share(whole: int, chunk: int, chunks: int) -> int:
    """Of chunk of a whole; those of all add up to it."""
    if chunks == 1:
        return whole
    return whole * (chunk + 1) // chunks - whole * chunk // chunks


@inlined
def whole_ps(size: float, bytes_per_s: float) -> int:
    """How long a message takes over something, to the nearest ps."""
    return int(np.rint(size / bytes_per_s * PS))


@inlined
def _ticks(time_ps: float, tick_ps: int) -> int:
    return int(time_ps / tick_ps) * tick_ps


@compiled
def count_stages(work: Work, rates: Rates) -> I64:
    """CSR offsets of the stages of each message, int64[m + 1]."""
    always = (len(rates.post_ps) > 0) + (len(rates.dma_bytes_per_s) > 0)
    has_hbm = len(rates.hbm_bytes_per_s) > 0
    routes, reads, writes = work.route_offsets, work.reads_hbm, work.writes_hbm
    offsets = np.zeros(len(routes), np.int64)
    for message in range(len(routes) - 1):
        stages = always + routes[message + 1] - routes[message]
        if has_hbm:
            stages += reads[message] + writes[message]
        offsets[message + 1] = offsets[message] + stages
    return offsets


@compiled
def list_links(work: Work, rates: Rates, chunks: int, stages: Stages) -> None:
    """Fill in the stages that are links, and make those before and after them ready to be filled in."""
    routes, route_links, sizes = work.route_offsets, work.route_links, work.bytes
    bytes_per_s, latencies, tick_ps = rates.link_bytes_per_s, rates.link_latency_ps, rates.tick_ps
    cuts_through = rates.cuts_through
    offsets, server, time_ps = stages.offsets, stages.server, stages.time_ps
    latency_ps, streams = stages.latency_ps, stages.streams
    before = (len(rates.post_ps) > 0) + (len(rates.dma_bytes_per_s) > 0)
    has_hbm, reads, first_link = len(rates.hbm_bytes_per_s) > 0, work.reads_hbm, stages.first_link
    for message in range(len(sizes)):
        stage = offsets[message] + before + (has_hbm and reads[message])
        first_link[message] = stage
        for hop in range(routes[message], routes[message + 1]):
            link = route_links[hop]
            server[stage] = link
            if tick_ps:
                exact = sizes[message] / bytes_per_s[link] * PS / chunks
                time_ps[stage] = _ticks(exact, tick_ps)
                latency_ps[stage] = _ticks(exact + latencies[link], tick_ps) - time_ps[stage]
            else:
                time_ps[stage] = whole_ps(sizes[message], bytes_per_s[link])
                latency_ps[stage] = latencies[link]
            streams[stage] = cuts_through
            stage += 1


@compiled
def list_ends(work: Work, rates: Rates, chunks: int, stages: Stages) -> None:
    """Fill in the stages that are not links, and what comes after the last of each message; to be called after ``list_links``."""
    offsets, latency_ps, sizes = stages.offsets, stages.latency_ps, work.bytes
    is_reduced, done_ps = work.is_reduced, rates.done_ps
    if len(rates.post_ps) or len(rates.dma_bytes_per_s) or len(rates.hbm_bytes_per_s):
        for message in range(len(sizes)):
            _list_ends(work, rates, stages, message)
    for message in range(len(sizes)):
        latency_ps[offsets[message + 1] - 1] += done_ps
    if rates.sum_bytes_per_s > 0:
        for message in range(len(sizes)):
            if is_reduced[message]:
                a_pass = sizes[message] / rates.sum_bytes_per_s * PS / chunks
                latency_ps[offsets[message + 1] - 1] += ASTRA_PASSES * _ticks(a_pass, rates.tick_ps)


@compiled
def _list_ends(work: Work, rates: Rates, stages: Stages, message: int) -> None:
    source, target, size = work.source[message], work.target[message], work.bytes[message]
    stage = stages.offsets[message]
    if len(rates.post_ps):
        _fill(stages, stage, rates.first_post + source, rates.post_ps[source])
        stages.latency_ps[stage], stages.streams[stage] = rates.dma_start_ps, False
        stage += 1
    if len(rates.dma_bytes_per_s):
        time_ps = whole_ps(size, rates.dma_bytes_per_s[source])
        _fill(stages, stage, rates.first_dma + source, time_ps)
        stage += 1
    if not len(rates.hbm_bytes_per_s):
        return
    if work.reads_hbm[message]:
        time_ps = whole_ps(size, rates.hbm_bytes_per_s[source])
        _fill(stages, stage, rates.first_hbm + source, time_ps)
    if work.writes_hbm[message]:
        stage = stages.offsets[message + 1] - 1
        touched = size * (rates.reduce_touches if work.is_reduced[message] else 1.0)
        time_ps = whole_ps(touched, rates.hbm_bytes_per_s[target])
        _fill(stages, stage, rates.first_hbm + target, time_ps)
        stages.streams[stage - 1] = True


@compiled
def _fill(stages: Stages, stage: int, server: int, time_ps: int) -> None:
    stages.server[stage], stages.time_ps[stage] = server, time_ps
    stages.latency_ps[stage], stages.streams[stage] = 0, True


@compiled
def mark_early(stages: Stages) -> int:
    """Find the stages that are held early; to be called after all others are filled in.

    Returns:
        How many stages wait for two.
    """
    offsets, time_ps, streams, is_early = (
        stages.offsets,
        stages.time_ps,
        stages.streams,
        stages.is_early,
    )
    doubled = 0
    for message in range(len(offsets) - 1):
        slowest = np.int64(0)
        for stage in range(offsets[message], offsets[message + 1]):
            time = time_ps[stage]
            is_last = stage + 1 == offsets[message + 1] or not streams[stage]
            is_early[stage] = time < slowest and not is_last and time_ps[stage + 1] > time
            doubled += is_early[stage] and not (stage and is_early[stage - 1])
            slowest = max(slowest, time) if streams[stage] else np.int64(0)
    return doubled
