"""What do messages of one collective from one chip to another have in common? They queue: one at a time flows, the first first. Compiled.

So they are a class, and only classes are rated: as a queue of DMA descriptors, a class has one share of each link, however many wait in it. When
classes begin or end to have something to carry, those that share links with them, and with those in turn, are rated anew; all others go on as
they are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from trnprof.emulator.collectives.fluid.max_min_kernel import Paths, Scratch, fill
from trnprof.emulator.fabric.fabric import F64, I32, I64
from trnprof.tracer.compiled import compiled, inlined

NOBODY: Final = -1
NEVER: Final = 2**62
TOGETHER_PS: Final = 1
"""Messages that end so close to each other end at once: times are rounded to ps."""


class Classes(NamedTuple):
    """The state of classes, of the entries of their routes, and of links.

    Attributes:
        left: float64[classes], bytes of the message that flows, not carried up to ``since_ps``.
        since_ps: int64[classes].
        rates: float64[classes], bytes/ps from then on.
        next_ps: int64[classes], when that message ends; NEVER where none flows.
        bottlenecks: int32[classes], the link that keeps each from more.
        queue: int32[m], messages in the order in which they came, class by class.
        head: int64[classes], the place in it of the one that flows; the tail where none does.
        tail: int64[classes], the place of the one that comes next.
        active: int32[classes], classes with a message that flows, in any order, then others.
        place: int32[classes], of each in ``active``.
        entry_class: int32[entries].
        first: int32[links], an entry of an active class on the link, NOBODY if there is none.
        after: int32[entries], the next one on the same link.
        before: int32[entries], the previous one.
        class_round: int64[classes], the round in which it was last touched.
        link_round: int64[links], the round in which it was last seen.
        touched: int32[classes], those touched in this round.
        actives: int64[1], how many are active.
        touches: int64[1], how many are touched.
        rounds: int64[1], how often has been rated.
        ones: float64[classes], the weights of all.
    """

    left: F64
    since_ps: I64
    rates: F64
    next_ps: I64
    bottlenecks: I32
    queue: I32
    head: I64
    tail: I64
    active: I32
    place: I32
    entry_class: I32
    first: I32
    after: I32
    before: I32
    class_round: I64
    link_round: I64
    touched: I32
    actives: I64
    touches: I64
    rounds: I64
    ones: F64


@compiled
def make_classes(class_of: I32, paths: Paths, links: int) -> Classes:
    """Nothing under way.

    Args:
        class_of: int32[m], of each message.
        paths: of each class.
        links: how many there are.
    """
    classes, entries = len(paths.offsets) - 1, len(paths.links)
    begins = np.zeros(classes + 1, np.int64)
    for cls in class_of:
        begins[cls + 1] += 1
    entry_class = np.empty(entries, np.int32)
    for cls in range(classes):
        begins[cls + 1] += begins[cls]
        entry_class[paths.offsets[cls] : paths.offsets[cls + 1]] = cls
    return Classes(
        np.zeros(classes),
        np.zeros(classes, np.int64),
        np.zeros(classes),
        np.full(classes, NEVER, np.int64),
        np.full(classes, NOBODY, np.int32),
        np.empty(len(class_of), np.int32),
        begins[:-1].copy(),
        begins[:-1].copy(),
        np.arange(classes).astype(np.int32),
        np.arange(classes).astype(np.int32),
        entry_class,
        np.full(links, NOBODY, np.int32),
        np.full(entries, NOBODY, np.int32),
        np.full(entries, NOBODY, np.int32),
        np.full(classes, NOBODY, np.int64),
        np.full(links, NOBODY, np.int64),
        np.empty(classes, np.int32),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.ones(classes),
    )


@compiled
def begin(state: Classes, paths: Paths, cls: int, message: int, size: float, now_ps: int) -> None:
    """A message of so many bytes comes to its queue."""
    tail = state.tail[cls]
    state.queue[tail] = message
    state.tail[cls] = tail + 1
    if state.head[cls] < tail:
        return
    state.left[cls] = size
    state.since_ps[cls] = now_ps
    state.rates[cls] = 0.0
    _swap(state, cls, state.actives[0])
    state.actives[0] += 1
    _touch(state, cls)
    for entry in range(paths.offsets[cls], paths.offsets[cls + 1]):
        first = state.first[paths.links[entry]]
        state.after[entry], state.before[entry] = first, NOBODY
        if first != NOBODY:
            state.before[first] = entry
        state.first[paths.links[entry]] = entry


@compiled
def end_one(state: Classes, paths: Paths, cls: int, sizes: F64, now_ps: int) -> int:
    """The message of a class that ends now, removed from it, so that the next one flows; NOBODY if none ends.

    Args:
        state: changed.
        paths: of each class.
        cls: the class.
        sizes: float64[m], bytes of messages.
        now_ps: the time.
    """
    if state.next_ps[cls] > now_ps + TOGETHER_PS:
        return NOBODY
    message: int = state.queue[state.head[cls]]
    state.head[cls] += 1
    if state.head[cls] < state.tail[cls]:
        state.left[cls] = sizes[state.queue[state.head[cls]]]
        state.since_ps[cls] = now_ps
        state.next_ps[cls] = _next_ps(state, cls)
        return message
    state.next_ps[cls] = NEVER
    _touch(state, cls)
    state.actives[0] -= 1
    _swap(state, cls, state.actives[0])
    for entry in range(paths.offsets[cls], paths.offsets[cls + 1]):
        after, before = state.after[entry], state.before[entry]
        if after != NOBODY:
            state.before[after] = before
        if before != NOBODY:
            state.after[before] = after
        else:
            state.first[paths.links[entry]] = after
    return message


@compiled
def rate_touched(
    state: Classes, paths: Paths, capacities: F64, scratch: Scratch, now_ps: int
) -> int:
    """Rate anew what the classes that began and ended in this round touch, and begin the next round.

    Returns:
        The number of classes rated.
    """
    _touch_sharers(state, paths)
    count = 0
    for cls in state.touched[: state.touches[0]]:
        if state.head[cls] < state.tail[cls]:
            state.left[cls] -= state.rates[cls] * (now_ps - state.since_ps[cls])
            state.since_ps[cls] = now_ps
            state.touched[count] = cls
            count += 1
    fill(
        state.touched[:count],
        paths,
        state.ones,
        capacities,
        scratch,
        state.rates,
        state.bottlenecks,
    )
    for cls in state.touched[:count]:
        state.next_ps[cls] = _next_ps(state, cls)
    state.rounds[0] += 1
    state.touches[0] = 0
    return count


@inlined
def _touch_sharers(state: Classes, paths: Paths) -> None:
    """Touch the active classes that share links with touched ones, however far removed."""
    slot = 0
    while slot < state.touches[0]:
        cls = state.touched[slot]
        slot += 1
        for link in paths.links[paths.offsets[cls] : paths.offsets[cls + 1]]:
            if state.link_round[link] == state.rounds[0]:
                continue
            state.link_round[link] = state.rounds[0]
            entry = state.first[link]
            while entry != NOBODY:
                _touch(state, state.entry_class[entry])
                entry = state.after[entry]


@inlined
def _touch(state: Classes, cls: int) -> None:
    if state.class_round[cls] != state.rounds[0]:
        state.class_round[cls] = state.rounds[0]
        state.touched[state.touches[0]] = cls
        state.touches[0] += 1


@inlined
def _swap(state: Classes, cls: int, slot: int) -> None:
    """Bring a class to a place in ``active``, and what is there to where it was."""
    other, was = state.active[slot], state.place[cls]
    state.active[was], state.place[other] = other, was
    state.active[slot], state.place[cls] = cls, slot


@inlined
def _next_ps(state: Classes, cls: int) -> int:
    """When the message of a class that flows ends, if its rate stays."""
    wait = min(max(state.left[cls], 0.0) / state.rates[cls], NEVER / 2)
    when: int = state.since_ps[cls] + int(np.rint(wait))
    return when
