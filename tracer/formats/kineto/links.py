"""Which call launched each kernel and copy of a PyTorch profile, and which events do its flow arrows join?

A correlation id says it; it is that of one process, so where several calls have the same, the one in the process that uses the device is
taken, and of these the latest before the work. Arrows are looked at for what has no correlation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.gathered import Gathered
from trnprof.tracer.formats.kineto.state import Bools, Ints
from trnprof.tracer.ingest.lanes import Order

LAUNCH_ARROWS: Final = ("ac2g", "async_cpu_to_gpu")
FLOW_KINDS: Final = {"async_gpu": "semaphore"}
"""Category of arrows → kind of flow; others carry data."""
_LOOK_BACK: Final = 64
"""So many ranges before a time are looked at for one that holds it."""


@dataclass(frozen=True)
class Sides:
    """Calls, or device work, that correlation ids join.

    Attributes:
        correlation: id, 0 or less: none.
        start_ns: when each begins.
        process: number of its process.
    """

    correlation: Ints
    start_ns: Ints
    process: Ints


def find_launches(calls: Sides, work: Sides) -> NDArray[np.int64]:
    """The call that launched each piece of work, -1 where none is known."""
    found = np.full(len(work.correlation), -1, np.int64)
    has_id = np.flatnonzero(calls.correlation > 0)
    if not len(has_id):
        return found
    chosen = _sorted(has_id, calls)
    ids = calls.correlation[chosen]
    first = np.searchsorted(ids, work.correlation)
    known = np.flatnonzero((work.correlation > 0) & (first < len(ids)))
    known = known[ids[first[known]] == work.correlation[known]]
    count = np.searchsorted(ids, work.correlation[known], side="right") - first[known]
    found[known] = chosen[first[known]]
    several = known[count > 1]
    if len(several):
        owner = _owners(calls, work, found, known[count == 1])
        found[several] = _among(calls, work, several, owner)
    return found


def _sorted(rows: Ints, calls: Sides) -> Ints:
    ids = calls.correlation[rows]
    if (ids[1:] >= ids[:-1]).all():
        return rows
    ordered: Ints = rows[np.argsort(ids, kind="stable")]
    return ordered


def _owners(calls: Sides, work: Sides, found: Ints, sure: Ints) -> dict[int, int]:
    """Process of a device → process that uses it: by links that are sure, else one by one in order of appearance."""
    owner: dict[int, int] = {}
    devices = list(dict.fromkeys(work.process.tolist()))
    for device in devices:
        hosts = calls.process[found[sure[work.process[sure] == device]]]
        if len(hosts):
            owner[device] = int(np.bincount(hosts).argmax())
    hosts = list(dict.fromkeys(calls.process.tolist()))
    if not owner and len(hosts) == len(devices):
        owner = dict(zip(sorted(devices), sorted(hosts), strict=True))
    return owner


def _among(calls: Sides, work: Sides, several: Ints, owner: dict[int, int]) -> Ints:
    """Of calls with the same id, the latest one before the work, in the process that uses the device if that is known."""
    chosen = np.full(len(several), -1, np.int64)
    for device in np.unique(work.process[several]).tolist():
        own = np.flatnonzero(work.process[several] == device)
        host = owner.get(device)
        of_host = calls.process == host if host is not None else np.zeros(len(calls.process), bool)
        for pool in (np.flatnonzero(of_host), np.arange(len(calls.process))):
            rest = own[chosen[own] < 0]
            if len(rest) and len(pool):
                at = latest(
                    calls.correlation[pool], calls.start_ns[pool],
                    work.correlation[several[rest]], work.start_ns[several[rest]],
                )  # fmt: skip
                chosen[rest] = np.where(at >= 0, pool[at], -1)
    return chosen


def latest(key: Ints, time: Ints, wanted_key: Ints, wanted_time: Ints) -> Ints:
    """Of the entries with a key the latest one that is not after a time, else the earliest one; -1 without any.

    Of several with the same key and time the first counts.

    >>> latest(np.array([1, 1, 2]), np.array([10, 20, 5]), np.array([1, 1, 2, 3]), np.array([15, 5, 9, 9])).tolist()
    [0, 0, 2, -1]
    """
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    found: Ints = _latest(key, time, wanted_key, wanted_time)
    is_other = np.ones(len(key), np.bool_)
    is_other[1:] = (key[1:] != key[:-1]) | (time[1:] != time[:-1])
    first = np.maximum.accumulate(np.where(is_other, np.arange(len(key)), 0))
    return np.where(found >= 0, order[first[found]], -1)


@compiled
def _latest(key: Any, time: Any, wanted_key: Any, wanted_time: Any) -> Any:
    found = np.full(len(wanted_key), -1, np.int64)
    for row in range(len(wanted_key)):
        low, high = 0, len(key)  # the first entry behind (wanted key, wanted time)
        while low < high:
            middle = (low + high) // 2
            if key[middle] < wanted_key[row] or (
                key[middle] == wanted_key[row] and time[middle] <= wanted_time[row]
            ):
                low = middle + 1
            else:
                high = middle
        if low > 0 and key[low - 1] == wanted_key[row]:
            found[row] = low - 1
        elif low < len(key) and key[low] == wanted_key[row]:
            found[row] = low
    return found


@dataclass(frozen=True)
class Arrows:
    """Arrows whose two ends lie on events.

    Attributes:
        source, target: rows.
        category: code.
        lost: arrows without a beginning, or with an end on which nothing lies.
    """

    source: Ints
    target: Ints
    category: NDArray[np.int8]
    lost: int


def bind_arrows(
    flows: Gathered,
    chosen: NDArray[np.bool_],
    order: Order,
    ranges: tuple[Ints, Ints, Bools],
    groups: tuple[Ints, Ints],
) -> Arrows:
    """Join the beginnings and ends of arrows, and find the events on which they lie.

    Args:
        flows: see ``State.flows``.
        chosen: which of them are looked at.
        order: of all rows by group.
        ranges: start and end of every row, and whether arrows may lie on it.
        groups: for each place its group on the host and on a device, -1: none.
    """
    starts, category, at = flows["starts"][chosen], flows["category"][chosen], flows["ts"][chosen]
    place, key = flows["place"][chosen], flows["id"][chosen]
    begin, end = np.flatnonzero(starts), np.flatnonzero(~starts)
    if not len(begin) or not len(end):
        nothing = np.empty(0, np.int64)
        return Arrows(nothing, nothing, nothing.astype(np.int8), len(end))
    # categories are few: an id of one of them is another id than the same of the next
    own = np.unique(key, return_inverse=True)[1] * 128 + category
    joined = latest(own[begin], at[begin], own[end], at[end])
    is_joined = joined >= 0
    begin, end = begin[joined[is_joined]], end[is_joined]
    host, device = groups
    source = _holding(order, ranges, _first_of(host, device, place[begin]), at[begin])
    target_group = _first_of(device, host, place[end])
    target = _holding(order, ranges, target_group, at[end])
    is_there = (source >= 0) & (target >= 0) & (source != target)
    lost = int((~is_joined).sum() + (~is_there).sum())
    return Arrows(source[is_there], target[is_there], category[end][is_there], lost)


def _first_of(wanted: Ints, other: Ints, place: Ints) -> Ints:
    return np.where(wanted[place] >= 0, wanted[place], other[place])


def _holding(order: Order, ranges: tuple[Ints, Ints, Bools], group: Ints, at: Ints) -> Ints:
    found: Ints = _hold(order.rows, order.first, *ranges, group, at, _LOOK_BACK)
    return found


@compiled
def _hold(
    rows: Any, first: Any, start: Any, end: Any, holds: Any, group: Any, at: Any, most: Any
) -> Any:
    """The innermost range of a group that holds a time: one that begins then, if any does."""
    found = np.full(len(at), -1, np.int64)
    for place in range(len(at)):
        if group[place] < 0:
            continue
        begin, low, high = first[group[place]], first[group[place]], first[group[place] + 1]
        while low < high:
            middle = (low + high) // 2
            if start[rows[middle]] <= at[place]:
                low = middle + 1
            else:
                high = middle
        low -= 1
        for candidate in range(low, max(begin - 1, low - most), -1):
            row = rows[candidate]
            if holds[row] and (start[row] == at[place] or end[row] >= at[place]):
                found[place] = row
                break
    return found
