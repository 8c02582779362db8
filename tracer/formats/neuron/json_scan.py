"""Where do the elements of a JSON array begin and end? The compiled loops of ``neuron_json``, tolerant and without recursion."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trnprof.tracer.compiled import compiled

MAX_DEPTH: Final = 48
"""Nesting of an element beyond which it is left out: readers of JSON recurse."""
INCOMPLETE: Final = 0
"""The bytes end within an element."""
FULL: Final = 1
END: Final = 2
ERROR: Final = 3


@compiled
def elements(data: Any, starts: Any, ends: Any, seen: Any) -> Any:
    """Find objects from the front of an array's rest; put right what is not JSON.

    Returns:
        Their number, the bytes done with, and why it ended. ``seen`` counts what was put right.
    """
    count, at, size = 0, 0, len(data)
    done = 0
    while True:
        while at < size and (data[at] <= 32 or data[at] == 44):
            at += 1
        if at >= size:
            return count, at, INCOMPLETE
        if data[at] == 93:  # ]
            return count, at + 1, END
        if count == len(starts):
            return count, at, FULL
        done = at
        if data[at] != 123:  # {
            if data[at] == 125 or data[at] == 58:
                return count, done, ERROR
            while at < size and data[at] != 44 and data[at] != 93:
                if data[at] == 34 or data[at] == 91 or data[at] == 123:
                    end = nested_end(data, at)
                    if end < 0:
                        return count, done, INCOMPLETE
                    at = end
                else:
                    at += 1
            if at >= size:
                return count, done, INCOMPLETE
            seen[3] += 1
            continue
        end, deepest = object_end(data, at, seen)
        if end < 0:
            return count, done, INCOMPLETE
        if deepest > MAX_DEPTH:
            seen[4] += 1
        else:
            starts[count], ends[count] = at, end
            count += 1
        at = end


@compiled
def nested_end(data: Any, at: Any) -> Any:
    """Behind the string, array or object that begins at ``at``; -1 if it is not whole."""
    depth = 0
    while at < len(data):
        c = data[at]
        if c == 34:
            at += 1
            while at < len(data) and data[at] != 34:
                at += 2 if data[at] == 92 else 1
            if at >= len(data):
                return -1
        elif c == 91 or c == 123:
            depth += 1
        elif c == 93 or c == 125:
            depth -= 1
        at += 1
        if depth == 0:
            return at
    return -1


@compiled
def object_end(data: Any, begin: Any, seen: Any) -> Any:
    """Behind the object at ``begin`` (-1 if it is not whole) and how deep it nests; blanks out what is not JSON."""
    depth, deepest, comma, at = 0, 0, -1, begin
    bare, control, stray = 0, 0, 0
    while at < len(data):
        c = data[at]
        if c == 34:
            comma = -1
            at += 1
            while at < len(data) and data[at] != 34:
                if data[at] < 32:
                    data[at] = 32
                    control += 1
                if data[at] == 92:
                    at += 1
                at += 1
            if at >= len(data):
                return -1, 0
        elif c == 123 or c == 91:
            comma = -1
            depth += 1
            deepest = max(deepest, depth)
        elif c == 125 or c == 93:
            if comma >= 0:
                data[comma] = 32
                stray += 1
                comma = -1
            depth -= 1
            if depth == 0:
                seen[0] += bare
                seen[1] += control
                seen[2] += stray
                return at + 1, deepest
        elif c == 44:
            if comma >= 0:
                data[comma] = 32
                stray += 1
            comma = at
        elif c == 10 or c == 13 or c == 9:
            data[at] = 32
        elif c > 32 and c != 58:
            comma = -1
            end = at
            while (
                end < len(data)
                and data[end] > 32
                and data[end] != 44
                and data[end] != 125
                and data[end] != 93
            ):
                end += 1
            if end >= len(data):
                return -1, 0
            if not is_plain(data, at, end):
                bare += 1
                for place in range(at, end):
                    data[place] = 32
                if end - at >= 4:
                    data[at], data[at + 1], data[at + 2], data[at + 3] = 110, 117, 108, 108
                elif end - at >= 2:
                    data[at], data[at + 1] = 34, 34
                else:
                    data[at] = 48
            at = end - 1
        at += 1
    return -1, 0


@compiled
def is_plain(data: Any, at: Any, end: Any) -> Any:
    """Whether a bare word is a number, true, false or null."""
    c = data[at]
    if c == 45 or (48 <= c <= 57):
        for place in range(at + 1, end):
            c = data[place]
            if not (48 <= c <= 57 or c == 46 or c == 43 or c == 45 or c == 69 or c == 101):
                return False
        return data[end - 1] >= 48 and data[end - 1] <= 57
    if end - at == 4:
        return (
            data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101
        ) or (
            data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108
        )
    if end - at == 5:
        return (
            data[at] == 102 and data[at + 1] == 97 and data[at + 2] == 108 and data[at + 4] == 101
        )
    return False


@compiled
def lines(data: Any, starts: Any, ends: Any) -> Any:
    """The elements with a newline behind each; nested values, and numbers with a fraction or exponent, as strings of their text.

    So no reader rounds or rewrites them.
    """
    total = 0
    for i in range(len(starts)):
        total += (ends[i] - starts[i]) * 2 + 1
    out = np.empty(total, np.uint8)
    at = 0
    for i in range(len(starts)):
        depth, place = 0, starts[i]
        while place < ends[i]:
            c = data[place]
            end = place + 1
            is_real = False
            if depth == 1 and (c == 123 or c == 91):
                end = nested_end(data, place)
                at = _quoted(data, place, end, out, at)
                place = end
                continue
            if c == 34:
                while data[end] != 34:
                    end += 2 if data[end] == 92 else 1
                end += 1
            elif c == 123 or c == 91:
                depth += 1
            elif c == 125 or c == 93:
                depth -= 1
            elif depth == 1 and (c == 45 or 48 <= c <= 57):
                while data[end] > 32 and data[end] != 44 and data[end] != 125:
                    is_real |= data[end] == 46 or data[end] == 69 or data[end] == 101
                    end += 1
            if is_real:
                out[at] = 34
                at += 1
            for j in range(place, end):
                out[at] = data[j]
                at += 1
            if is_real:
                out[at] = 34
                at += 1
            place = end
        out[at] = 10
        at += 1
    return out[:at]


@compiled
def _quoted(data: Any, begin: Any, end: Any, out: Any, at: Any) -> Any:
    """Write a text as a JSON string; returns the place behind it."""
    out[at] = 34
    at += 1
    for j in range(begin, end):
        if data[j] == 34 or data[j] == 92:
            out[at] = 92
            at += 1
        out[at] = data[j]
        at += 1
    out[at] = 34
    return at + 1


@compiled
def key_places(data: Any, hashes: Any, places: Any) -> Any:
    """Places of the distinct keys of the objects of JSON lines: an open hash table of the keys of depth 1."""
    count, depth, at, size = 0, 0, 0, len(data)
    mask = len(hashes) - 1
    while at < size:
        c = data[at]
        if c == 34:
            begin = at + 1
            at = begin
            h = np.uint64(14695981039346656037)
            while at < size and data[at] != 34:
                h = (h ^ np.uint64(data[at])) * np.uint64(1099511628211)
                if data[at] == 92 and at + 1 < size:
                    at += 1
                    h = (h ^ np.uint64(data[at])) * np.uint64(1099511628211)
                at += 1
            end = at
            at += 1
            if depth == 1:
                while at < size and data[at] == 32:
                    at += 1
                if at < size and data[at] == 58:
                    h |= np.uint64(1)
                    slot = np.int64(h & np.uint64(mask))
                    while hashes[slot] != 0 and hashes[slot] != h:
                        slot = (slot + 1) & mask
                    if hashes[slot] == 0 and count < len(places):
                        hashes[slot] = h
                        places[count, 0], places[count, 1] = begin, end
                        count += 1
            continue
        if c == 123 or c == 91:
            depth += 1
        elif c == 125 or c == 93:
            depth -= 1
        at += 1
    return count


@compiled
def value_end(data: Any, depth: Any) -> Any:
    """Behind the value at the front (``depth`` brackets are open already); -1 if it is not whole."""
    at = 0
    if depth == 0 and len(data) and (data[0] == 34 or data[0] == 123 or data[0] == 91):
        return nested_end(data, 0)
    while at < len(data):
        c = data[at]
        if c == 34:
            end = nested_end(data, at)
            if end < 0:
                return -1
            at = end
            continue
        if c == 123 or c == 91:
            depth += 1
        elif c == 125 or c == 93:
            if depth == 0:
                return at
            depth -= 1
            if depth == 0:
                return at + 1
        elif c == 44 and depth == 0:
            return at
        at += 1
    return -1


@compiled
def skip(data: Any, state: Any) -> Any:
    """Behind a value that is skipped piece by piece; -1 if it goes on. State: depth, in a string, behind a backslash."""
    depth, inside, escaped = state[0], state[1], state[2]
    for at in range(len(data)):
        c = data[at]
        if inside:
            if escaped:
                escaped = 0
            elif c == 92:
                escaped = 1
            elif c == 34:
                inside = 0
        elif c == 34:
            inside = 1
        elif c == 123 or c == 91:
            depth += 1
        elif c == 125 or c == 93:
            depth -= 1
            if depth <= 0:
                return at + 1 if depth == 0 else at
        elif c == 44 and depth == 0:
            return at
    state[0], state[1], state[2] = depth, inside, escaped
    return -1
