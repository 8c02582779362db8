"""When does each message begin and end, if they share links as fluids do? An event loop, compiled; imported when first needed, as numba is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trnprof.emulator.collectives.fluid.classes import (
    NEVER,
    NOBODY,
    TOGETHER_PS,
    begin,
    end_one,
    make_classes,
    rate_touched,
)
from trnprof.emulator.collectives.fluid.max_min_kernel import Paths, make_scratch
from trnprof.emulator.fabric.fabric import F64, I32, I64
from trnprof.emulator.heap import drop_least, push
from trnprof.tracer.compiled import compiled, inlined


class Traffic(NamedTuple):
    """What is to be carried.

    Attributes:
        bytes: float64[m].
        class_of: int32[m], messages of one class have one route, and flow one after the other.
        poster: int32[m], who posts it, one message after the other.
        post_ps: int64[m], how long that takes.
        lead_ps: int64[m], from then until it leaves its sender.
        latency_ps: int64[m], from then until its bytes may flow over all of its route at once.
        done_ps: int64[m], from its last byte to its being seen.
        pending: int32[m], how many messages it waits for.
        dependent_offsets: int32[m + 1], CSR offsets of the next.
        dependents: int32[e], which messages wait for it.
    """

    bytes: F64
    class_of: I32
    poster: I32
    post_ps: I64
    lead_ps: I64
    latency_ps: I64
    done_ps: I64
    pending: I32
    dependent_offsets: I32
    dependents: I32


class Times(NamedTuple):
    """What comes of it.

    Attributes:
        ready_ps: int64[m], when what each message waits for had come; first its release.
        start_ps: int64[m], when it left its sender.
        end_ps: int64[m], when it was seen; NEVER if it waits forever.
        blocker: int64[m], the message that it waited for last, the first if there are several; below 0 if for its release.
        bottleneck: int32[m], the link that kept its rate down when it ended; NOBODY if it did not have to flow.
        ratings: int64[2], how often has been rated, and how many classes in all.
    """

    ready_ps: I64
    start_ps: I64
    end_ps: I64
    blocker: I64
    bottleneck: I32
    ratings: I64


class Events(NamedTuple):
    """A heap of what is to come.

    Attributes:
        times_ps: int64[m], keys.
        codes: int64[m], message * 2 if it is to be posted, message * 2 + 1 if it begins to flow.
        size: int64[1].
    """

    times_ps: I64
    codes: I64
    size: I64


@compiled
def run_flows(traffic: Traffic, paths: Paths, capacities: F64, times: Times) -> None:
    """The event loop.

    Args:
        traffic: messages; ``pending`` is counted down.
        paths: routes of their classes.
        capacities: float64[links], bytes/ps.
        times: releases and who is to blame for them, in ``ready_ps`` and ``blocker``; all written.
    """
    count, links = len(traffic.bytes), len(capacities)
    state = make_classes(traffic.class_of, paths, links)
    scratch = make_scratch(links, len(paths.links))
    events = Events(np.empty(count, np.int64), np.empty(count, np.int64), np.zeros(1, np.int64))
    free = np.zeros(traffic.poster.max() + 1 if count else 0, np.int64)
    for message in range(count):
        if traffic.pending[message] == 0:
            _add(events, times.ready_ps[message], 2 * message)
    while True:
        now = events.times_ps[0] if events.size[0] else NEVER
        for cls in state.active[: state.actives[0]]:
            now = min(now, state.next_ps[cls])
        if now == NEVER:
            return
        for slot in range(state.actives[0] - 1, -1, -1):
            cls = state.active[slot]
            if state.next_ps[cls] > now + TOGETHER_PS:
                continue
            bottleneck = state.bottlenecks[cls]
            message = end_one(state, paths, cls, traffic.bytes, now)
            while message != NOBODY:
                times.bottleneck[message] = bottleneck
                _arrive(traffic, times, events, message, now)
                message = end_one(state, paths, cls, traffic.bytes, now)
        while events.size[0] and events.times_ps[0] <= now:
            message, flows = events.codes[0] >> 1, events.codes[0] & 1
            drop_least(events.times_ps, events.codes, events.size[0])
            events.size[0] -= 1
            cls = traffic.class_of[message]
            if not flows:
                _post(traffic, times, events, free, message)
            elif traffic.bytes[message] == 0 or paths.offsets[cls] == paths.offsets[cls + 1]:
                _arrive(traffic, times, events, message, now)
            else:
                begin(state, paths, cls, message, traffic.bytes[message], now)
        if state.touches[0]:
            times.ratings[0] += 1
            times.ratings[1] += rate_touched(state, paths, capacities, scratch, now)


@inlined
def _add(events: Events, time_ps: int, code: int) -> None:
    push(events.times_ps, events.codes, events.size[0], time_ps, code)
    events.size[0] += 1


@inlined
def _post(traffic: Traffic, times: Times, events: Events, free: I64, message: int) -> None:
    """Post a message as soon as its poster is free; it begins to flow later."""
    poster = traffic.poster[message]
    posted = max(times.ready_ps[message], free[poster]) + traffic.post_ps[message]
    free[poster] = posted
    times.start_ps[message] = posted + traffic.lead_ps[message]
    _add(events, times.start_ps[message] + traffic.latency_ps[message], 2 * message + 1)


@compiled
def _arrive(traffic: Traffic, times: Times, events: Events, message: int, now_ps: int) -> None:
    """The last byte of a message is there: tell those that wait for it."""
    end = now_ps + traffic.done_ps[message]
    times.end_ps[message] = end
    for slot in range(traffic.dependent_offsets[message], traffic.dependent_offsets[message + 1]):
        waiting = traffic.dependents[slot]
        if end > times.ready_ps[waiting]:
            times.ready_ps[waiting], times.blocker[waiting] = end, message
        elif end == times.ready_ps[waiting] and not 0 <= times.blocker[waiting] < message:
            times.blocker[waiting] = message
        traffic.pending[waiting] -= 1
        if traffic.pending[waiting] == 0:
            _add(events, times.ready_ps[waiting], 2 * waiting)
