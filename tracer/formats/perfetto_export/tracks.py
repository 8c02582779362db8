"""Where does each track stand in the Perfetto file: under which group, in which place, merged with which lanes?

The tree is that of the tracks table, in explicit order. Perfetto merges siblings of one name unless told otherwise; here only
the lanes of one group are merged, into one group of rows. Hosts, chips and cores that several writers describe are one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.errors import TraceError
from trnprof.tracer.formats.perfetto_export.clocks import Axes
from trnprof.tracer.formats.perfetto_export.encode import SEQUENCE_ID, packet
from trnprof.tracer.formats.perfetto_export.intern import clean
from trnprof.tracer.reader import Trace
from trnprof.tracer.units import format_rate

_SHARED_KINDS: Final = ("host", "chip", "core", "fabric")
_UNITS: Final = {"B": pb.CounterDescriptor.UNIT_SIZE_BYTES, "ns": pb.CounterDescriptor.UNIT_TIME_NS}

EMULATED: Final = "emulated by trnprof: no such hardware ran"
"""Part of the description of a host in an emulated trace."""

_FIRST: Final = -(2**32)
"""Before every sort_order."""

Row = Mapping[str, Any]


@dataclass
class Node:
    """A track of the Perfetto file.

    Attributes:
        name: what people read.
        row: its row in the tracks table; None for groups and step tracks.
        description: help text.
        merge_key: equal for siblings to be merged; empty for none.
        order: sorts it among its siblings.
        rank: its place among them.
        uuid: its number in the file.
        children: in order once the tree is complete.
    """

    name: str
    row: Row | None = None
    description: str = ""
    merge_key: str = ""
    order: tuple[int, int] = (0, 0)
    rank: int = 0
    uuid: int = 0
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Tree:
    """All tracks of the file.

    Attributes:
        root: stands for the file; uuid 0.
        count: how many tracks there are, the root not counted.
        uuid_of_track: by track_id, on the axis of the track's own clock.
        steps: uuid by clock, rank and lane of the steps.
    """

    root: Node
    count: int
    uuid_of_track: Mapping[int, int]
    steps: Mapping[tuple[int, int, int], int]


def build_tree(
    trace: Trace, axes: Axes, used: Collection[int], step_lanes: Sequence[tuple[int, int, int]]
) -> Tree:
    """Place every track of a trace.

    Args:
        trace: its tracks are placed; those that only repeat a representative are left out.
        axes: time axes; with several, each is a group at the top.
        used: track ids with events or counter samples.
        step_lanes: (clock, rank, lane) of the tracks for steps, sorted.

    Raises:
        TraceError: a parent is missing, or tracks stand under each other in a circle.
    """
    rows = {
        row["track_id"]: row
        for row in trace.tracks.with_columns(pl.col("kind").cast(pl.String)).to_dicts()
        if row["replica_of"] is None or row["track_id"] in used
    }
    _check_parents(trace, rows)
    tops = [Node(axis.name, description=axis.description) for axis in axes.axes]
    placed = _place_all(trace, rows, axes, tops, used)
    steps = _place_steps(step_lanes, rows, axes, tops, placed)
    root = Node("", children=tops[0].children if len(tops) == 1 else tops)
    count = _finish(root)
    own = axes.axis_of_clock
    uuids = {i: n.uuid for (axis, i), n in placed.items() if own.get(rows[i]["clock_id"]) == axis}
    return Tree(root, count, uuids, {key: node.uuid for key, node in steps.items()})


def descriptors(tree: Tree) -> Iterator[bytes]:
    """The packets that describe all tracks, parents first."""
    root = _packet()
    root.track_descriptor.uuid = 0
    root.track_descriptor.child_ordering = pb.TrackDescriptor.EXPLICIT
    yield packet(root)
    stack = [(child, tree.root) for child in reversed(tree.root.children)]
    while stack:
        node, parent = stack.pop()
        yield packet(_descriptor(node, parent))
        stack += [(child, node) for child in reversed(node.children)]


def _packet() -> Any:
    return pb.TracePacket(trusted_packet_sequence_id=SEQUENCE_ID)


def _descriptor(node: Node, parent: Node) -> Any:
    result = _packet()
    track = result.track_descriptor
    track.uuid, track.name, track.sibling_order_rank = node.uuid, node.name, node.rank
    if parent.uuid:
        track.parent_uuid = parent.uuid
    if node.description:
        track.description = node.description
    if node.children:
        track.child_ordering = pb.TrackDescriptor.EXPLICIT
    merging = pb.TrackDescriptor.SiblingMergeBehavior
    if node.merge_key:
        track.sibling_merge_behavior = merging.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
        track.sibling_merge_key = node.merge_key
    else:
        track.sibling_merge_behavior = merging.SIBLING_MERGE_BEHAVIOR_NONE
    if node.row is not None and node.row["kind"] == "counter":
        track.counter.SetInParent()
        unit = node.row["unit"]
        if unit in _UNITS:
            track.counter.unit = _UNITS[unit]
        elif unit:
            track.counter.unit_name = clean(unit)
    return result


def _check_parents(trace: Trace, rows: Mapping[int, Row]) -> None:
    state: dict[int | None, bool] = {None: True}
    for track_id in rows:
        chain: list[int] = []
        at: int | None = track_id
        while at not in state:
            if at not in rows:
                raise TraceError(
                    f"{trace.path}: tracks: track {chain[-1]} stands under track {at}, which is not there; run trnprof validate"
                )
            assert at is not None
            state[at] = False
            chain.append(at)
            at = rows[at]["parent_id"]
        if not state[at]:
            raise TraceError(
                f"{trace.path}: tracks: track {at} stands under itself; run trnprof validate"
            )
        state.update(dict.fromkeys(chain, True))


def _place_all(
    trace: Trace, rows: Mapping[int, Row], axes: Axes, tops: Sequence[Node], used: Collection[int]
) -> dict[tuple[int, int], Node]:
    """The node of each track on the axis of its clock, and of what it stands under, on that same axis."""
    placed: dict[tuple[int, int], Node] = {}
    shared: dict[tuple[int, str, str], Node] = {}
    for track_id, row in rows.items():
        axis = axes.axis_of_clock.get(row["clock_id"])
        if axis is None:
            continue
        chain = [track_id]
        while (axis, chain[-1]) not in placed and rows[chain[-1]]["parent_id"] is not None:
            chain.append(rows[chain[-1]]["parent_id"])
        for each in reversed(chain):
            if (axis, each) not in placed:
                above = rows[each]["parent_id"]
                parent = tops[axis] if above is None else placed[axis, above]
                placed[axis, each] = _place(trace, rows[each], parent, shared, used)
    return placed


def _place(
    trace: Trace,
    row: Row,
    parent: Node,
    shared: dict[tuple[int, str, str], Node],
    used: Collection[int],
) -> Node:
    key = (id(parent), row["kind"], row["name"])
    is_shared = row["kind"] in _SHARED_KINDS and row["track_id"] not in used
    if is_shared and key in shared:
        return shared[key]
    order = (row["sort_order"], row["track_id"])
    node = Node(_label(row, parent), row, _description(trace, row), order=order)
    parent.children.append(node)
    if is_shared:
        shared[key] = node
    return node


def _label(row: Row, parent: Node) -> str:
    replicas = row["replica_count"]
    above = parent.row["replica_count"] if parent.row is not None else 1
    return clean(row["name"]) + (f" ×{replicas}" if replicas > 1 and replicas != above else "")


def _description(trace: Trace, row: Row) -> str:
    parts = []
    if row["parent_id"] is None and trace.is_simulation and row["kind"] == "host":
        system = trace.system.get("name", "an unnamed system")
        parts.append(f"{system}, {EMULATED}")
    if row["peak_flops"] is not None:
        parts.append(f"peak {format_rate(row['peak_flops'], 'FLOP/s')}")
    if row["peak_bytes_per_s"] is not None:
        parts.append(f"peak {format_rate(row['peak_bytes_per_s'], 'B/s')}")
    return "; ".join(parts)


def _place_steps(
    step_lanes: Sequence[tuple[int, int, int]],
    rows: Mapping[int, Row],
    axes: Axes,
    tops: Sequence[Node],
    placed: Mapping[tuple[int, int], Node],
) -> dict[tuple[int, int, int], Node]:
    """The node of each lane of steps, before all else on the axis of its clock."""
    here: dict[int, list[Row]] = {axis: [] for axis in range(len(tops))}
    for axis, track_id in placed:
        here[axis].append(rows[track_id])
    owners: dict[tuple[int, int], Node] = {}
    steps: dict[tuple[int, int, int], Node] = {}
    for place, (clock, rank, lane) in enumerate(step_lanes):
        axis = axes.axis_of_clock[clock]
        if (clock, rank) not in owners:
            above = _step_owner(clock, rank, here[axis])
            owners[clock, rank] = tops[axis] if above is None else placed[axis, above]
        steps[clock, rank, lane] = _step_track(clock, rank, place, owners[clock, rank])
    return steps


def _step_owner(clock: int, rank: int, here: Sequence[Row]) -> int | None:
    """Track of an axis that the steps of a rank stand under: of those on their clock its first core, else the first at the top.

    Where their clock has neither, the same of all on the axis; None if there is no track.
    """
    for rows in ([r for r in here if r["clock_id"] == clock], here):
        cores = [r for r in rows if r["kind"] == "core" and r["rank"] == rank]
        found = cores or [r for r in rows if r["parent_id"] is None]
        if found:
            return int(min(r["track_id"] for r in found))
    return None


def _step_track(clock: int, rank: int, place: int, owner: Node) -> Node:
    is_core = owner.row is not None and owner.row["kind"] == "core"
    name = "steps" if is_core else f"steps of rank {rank}"
    merge_key = f"steps of rank {rank}, clock {clock}"
    node = Node(name, merge_key=merge_key, order=(_FIRST, place))
    owner.children.append(node)
    return node


def _finish(root: Node) -> int:
    """Put siblings in their order, number the tracks and give lanes of one group one merge key; the last number."""
    stack, uuid = [root], 0
    while stack:
        node = stack.pop()
        node.uuid, uuid = uuid, uuid + 1
        node.children.sort(key=lambda child: child.order)
        for rank, child in enumerate(node.children):
            child.rank = rank
        _merge_lanes(node.children)
        stack += reversed(node.children)
    return uuid - 1


def _merge_lanes(siblings: Sequence[Node]) -> None:
    """A lane joins the lanes below it that the last sibling of its kind and name with lane 0 began."""
    groups: dict[tuple[str, str], tuple[Node, int]] = {}
    for node in siblings:
        if node.row is None or node.row["kind"] == "counter":
            continue
        key, lane = (node.row["kind"], node.name), node.row["lane"]
        first, highest = groups.get(key, (node, lane))
        if lane > highest:
            first.merge_key = node.merge_key = f"lanes {first.rank}"
            node.rank = first.rank
            groups[key] = (first, lane)
        elif key not in groups or lane == 0:
            groups[key] = (node, lane)
