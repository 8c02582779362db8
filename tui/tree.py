"""Which rows does the timeline have? Tracks in their tree, one tree a clock, and what is visible of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnprof.tracer.units import printable
from trnprof.tui.store import Int, Store

_ALWAYS = frozenset({"engine", "dma_queue", "collective_stream", "thread", "stream"})
"""Kinds that are worth a row without events: idle is an answer. Not of a replica, whose events are its representative's."""
_BUNDLES = {"dma_queue": "DMA queues", "link": "links", "collective_stream": "collectives"}
"""Kinds of which three or more siblings become one group, closed at first."""
_OPEN_ROWS = 60
"""Groups are closed at first, deepest first, while more rows than this would show."""


@dataclass(frozen=True, eq=False)
class Node:
    """A track or a group of tracks.

    Attributes:
        key: its position in ``Tree.nodes``.
        label: fit for a terminal.
        kind: kind of track, or ``bundle``.
        depth: groups around it.
        band: position of its clock in ``Store.clocks``.
        tracks: positions in the store of the tracks with events in it.
        children: keys; empty for a track.
        lane: depth lane; only lane 0 has its label shown.
        parent: key of the group around it, -1 at the top.
    """

    key: int
    label: str
    kind: str
    depth: int
    band: int
    tracks: Int
    children: tuple[int, ...]
    lane: int
    parent: int

    @property
    def is_group(self) -> bool:
        """Whether it can be opened and closed."""
        return bool(self.children)


@dataclass(frozen=True)
class Row:
    """A visible row: ``ruler`` (of another clock), ``header`` (open group), ``group`` (closed), ``lane`` or ``counter``."""

    kind: str
    node: Node


@dataclass(frozen=True, eq=False)
class Tree:
    """All nodes in the order of display, and the groups that are closed at first."""

    nodes: tuple[Node, ...]
    closed: frozenset[int]
    _lanes: dict[int, Node] = field(default_factory=dict, repr=False)
    _last: dict[frozenset[int], list[Row]] = field(default_factory=dict, repr=False)

    def rows(self, closed: frozenset[int]) -> list[Row]:
        """The visible rows when these groups are closed; the last answer is kept, do not change it."""
        if closed not in self._last:
            self._last.clear()
            self._last[closed] = self._rows(closed)
        return self._last[closed]

    def _rows(self, closed: frozenset[int]) -> list[Row]:
        rows: list[Row] = []
        hidden_below = -1
        band = self.nodes[0].band if self.nodes else 0
        for node in self.nodes:
            if hidden_below >= 0 and node.depth > hidden_below:
                continue
            hidden_below = node.depth if node.key in closed else -1
            if node.band != band:
                band = node.band
                rows.append(Row("ruler", node))
            if node.is_group:
                rows.append(Row("group" if node.key in closed else "header", node))
            else:
                rows.append(Row("counter" if node.kind == "counter" else "lane", node))
        return rows

    def groups(self) -> frozenset[int]:
        """Keys of all groups."""
        return frozenset(n.key for n in self.nodes if n.is_group)

    def node_of(self, track: int) -> Node | None:
        """The row that shows a track of the store."""
        if not self._lanes:
            self._lanes.update({int(n.tracks[0]): n for n in self.nodes if not n.is_group})
        return self._lanes.get(track)


@dataclass
class _Draft:
    label: str
    kind: str
    tracks: list[int]
    children: list[_Draft] = field(default_factory=list)
    lane: int = 0


def build_tree(store: Store, counters: Sequence[int] = ()) -> Tree:
    """The tree of a trace, in sort order; groups without anything to show are left out.

    Args:
        store: the indexed events.
        counters: positions of the counter tracks that have samples.
    """
    frame = store.trace.tracks.sort("sort_order", "name", "lane", "track_id")
    position = {int(t): i for i, t in enumerate(store.track_ids.tolist())}
    tracks = {position[r["track_id"]]: r for r in frame.iter_rows(named=True)}
    below: dict[int, list[int]] = {}
    for place, row in tracks.items():
        parent = position.get(row["parent_id"], -1) if row["parent_id"] is not None else -1
        below.setdefault(parent if parent != place else -1, []).append(place)
    _cut_circles(below, len(tracks))
    has_events = np.diff(store.offsets) > 0
    nodes: list[Node] = []
    for band in range(len(store.clocks)):
        shown = {
            p
            for p, row in tracks.items()
            if store.bands[p] == band
            and (
                has_events[p]
                or p in counters
                or (str(row["kind"]) in _ALWAYS and not _repeats(row))
            )
        }
        for root in _drafts(below.get(-1, []), below, tracks, shown):
            _number(root, 0, band, -1, nodes)
    return Tree(tuple(nodes), _closed_at_first(nodes))


def _repeats(row: Mapping[str, Any]) -> bool:
    """Whether another track, which stands for this one too, has its events."""
    return row["replica_of"] is not None


def _cut_circles(below: dict[int, list[int]], count: int) -> None:
    """Tracks that no root leads to (their parents form a circle) become roots."""
    reached: set[int] = set()
    below.setdefault(-1, [])
    waiting = list(below[-1])
    for place in range(count):
        while waiting:
            at = waiting.pop()
            reached.add(at)
            waiting += below.get(at, [])
        if place not in reached:
            parent = next(p for p, children in below.items() if place in children)
            below[parent].remove(place)
            below[-1].append(place)
            waiting.append(place)


def _drafts(
    places: list[int], below: Mapping[int, list[int]], tracks: Mapping[int, Any], shown: set[int]
) -> list[_Draft]:
    drafts = []
    for place in places:
        row = tracks[place]
        label = printable(row["name"]) + (
            f" ×{row['replica_count']}" if row["replica_count"] > 1 else ""
        )
        children = _bundled(_drafts(below.get(place, []), below, tracks, shown))
        own = _Draft(label, str(row["kind"]), [place], lane=row["lane"])
        if place in shown and not children:
            drafts.append(own)
        elif children:
            only = children[0]
            if (
                len(children) == 1
                and only.children
                and only.kind != "bundle"
                and place not in shown
            ):
                only.label = f"{label} / {only.label}"
                drafts.append(only)
            else:
                inside = ([own] if place in shown else []) + children
                held = [t for c in inside if c.kind != "counter" for t in c.tracks]
                drafts.append(_Draft(label, str(row["kind"]), held, inside))
    return drafts


def _bundled(drafts: list[_Draft]) -> list[_Draft]:
    counts: dict[str, list[_Draft]] = {}
    for draft in drafts:
        if draft.kind in _BUNDLES and not draft.children:
            counts.setdefault(draft.kind, []).append(draft)
    result: list[_Draft] = []
    for draft in drafts:
        members = counts.get(draft.kind, [])
        if draft not in members or len(members) < 3:
            result.append(draft)
        elif draft is members[0]:
            label = f"{_BUNDLES[draft.kind]} ({len(members)})"
            result.append(_Draft(label, "bundle", [t for m in members for t in m.tracks], members))
    return result


def _number(draft: _Draft, depth: int, band: int, parent: int, nodes: list[Node]) -> int:
    key = len(nodes)
    tracks = np.sort(np.array(draft.tracks, np.int64))
    nodes.append(Node(key, draft.label, draft.kind, depth, band, tracks, (), draft.lane, parent))
    children = tuple(_number(c, depth + 1, band, key, nodes) for c in draft.children)
    nodes[key] = Node(
        key, draft.label, draft.kind, depth, band, tracks, children, draft.lane, parent
    )
    return key


def _closed_at_first(nodes: list[Node]) -> frozenset[int]:
    closed = frozenset(n.key for n in nodes if n.kind == "bundle")
    deepest = max((n.depth for n in nodes if n.is_group), default=0)
    for depth in range(deepest, 0, -1):
        if sum(1 for _ in _visible(nodes, closed)) <= _OPEN_ROWS:
            break
        closed |= {n.key for n in nodes if n.is_group and n.depth == depth}
    return closed


def _visible(nodes: list[Node], closed: frozenset[int]) -> Iterator[Node]:
    hidden_below = -1
    for node in nodes:
        if hidden_below >= 0 and node.depth > hidden_below:
            continue
        hidden_below = node.depth if node.key in closed else -1
        yield node
