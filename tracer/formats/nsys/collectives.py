"""Which kernels of an Nsight Systems profile are collectives, of which group, and how large?

NCCL annotates its calls in an NVTX domain of its own, with a payload: communicator, message size, ranks. A kernel is tied to its call by
the CUDA call that launched it, which lies inside the annotation. Calls between ncclGroupStart and ncclGroupEnd launch at the end of the group,
often one kernel for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.collective_names import (
    POINT_TO_POINT,
    is_collective_kernel,
    kernel_algorithm,
    kernel_dtype,
    kernel_function,
    kernel_operation,
)
from trnprof.tracer.formats.nsys.state import State
from trnprof.tracer.formats.tables import Bools, Ints, Rows

_GROUP_CALLS: Final = ("ncclGroupStart", "ncclGroupEnd")
_COLLECTIVE_CALL: Final = r"^nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AllToAll|Alltoall|Gather|Scatter|Send|Recv)"


@dataclass(frozen=True)
class Calls:
    """Calls of NCCL, sorted by thread and start. One entry a call in each array.

    Attributes:
        thread, start_ns, end_ns: globalTid and times.
        name: names as annotated, such as ``ncclAllReduce``.
        communicator: as an unsigned number's bits; where there is none, ``has_communicator`` is false.
        bytes: message size; -1 where nobody knows.
        ranks, rank: size of the communicator and rank in it, -1 where nobody knows.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    name: NDArray[np.str_]
    communicator: Ints
    has_communicator: Bools
    bytes: Ints
    ranks: Ints
    rank: Ints


@dataclass
class Matches:
    """Which call launched what: ``call`` of each CUDA call that launched a kernel of NCCL (by row of the stage), ``bytes`` of the kernel."""

    rows: Ints
    call: Ints
    bytes: Ints


@dataclass
class Kernels:
    """Kernels of collectives as they are met, and the calls they belong to.

    Attributes:
        words: which of all strings name a kernel of a collective.
    """

    state: State
    calls: Calls
    matches: Matches
    words: NDArray[np.bool_] = field(init=False)
    count: int = 0
    _parts: list[tuple[Ints, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = is_collective_kernel(self.state.strings.words)

    def add(
        self, block: Rows, chosen: Bools, codes: Ints, process: Ints, launch: Ints, first: int
    ) -> dict[str, Any]:
        """Take note of the collectives among some kernels; further columns of their events."""
        at = np.flatnonzero(chosen)
        if not len(at):
            return {}
        ops = self.count + np.arange(len(at))
        self.count += len(at)
        call, size = self._call_of(launch[at])
        self._parts.append(
            (
                first + at,
                codes[at],
                process[at],
                block.ints("start")[at],
                block.ints("end")[at],
                call,
                size,
            )
        )
        op_id = np.full(block.count, -1, np.int64)
        op_id[at] = ops
        sizes = np.full(block.count, -1, np.int64)
        sizes[at] = size
        return {
            "op_id": pa.array(np.maximum(op_id, 0).astype(np.uint32), mask=op_id < 0),
            "bytes": pa.array(sizes, mask=sizes < 0),
        }

    def _call_of(self, launch: Ints) -> tuple[Ints, Ints]:
        rows = self.matches.rows
        if not len(rows):
            return np.full(len(launch), -1, np.int64), np.full(len(launch), -1, np.int64)
        at = np.minimum(np.searchsorted(rows, launch), len(rows) - 1)
        found = rows[at] == launch
        return np.where(found, self.matches.call[at], -1), np.where(
            found, self.matches.bytes[at], -1
        )

    def finish(self) -> pl.DataFrame | None:
        """Stage ops and groups; the collectives that clocks can be aligned by, None if there are none."""
        if not self.count:
            return None
        frame = self._frame()
        groups = self._groups(frame)
        self.state.stage.add_ops(
            {
                "op_id": np.arange(self.count, dtype=np.uint32),
                "kind": ["collective"] * self.count,
                "name": frame["collective"],
                "group_id": frame.select(
                    pl.col("communicator").replace_strict(
                        groups, default=None, return_dtype=pl.UInt32
                    )
                ).to_series(),
                "group_seq": frame["group_seq"],
                "algorithm": frame["algorithm"],
                "dtypes": frame["dtype"],
                "in_bytes": frame["in_bytes"],
                "out_bytes": frame["out_bytes"],
            }
        )
        self._tell(frame)
        return _alignable(frame)

    def _frame(self) -> pl.DataFrame:
        names = ("row", "code", "process", "start_ns", "end_ns", "call", "bytes")
        columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
        frame = pl.DataFrame(dict(zip(names, columns, strict=True)))
        kernel = pl.Series(
            "kernel", self.state.strings.words.take(pa.array(frame["code"].to_numpy()))
        )
        call = frame["call"].to_numpy()
        known, calls = call >= 0, self.calls
        at = np.where(known, call, 0)
        has = known & (calls.has_communicator[at] if len(calls.name) else False)
        pick = (
            (lambda values: values[at])
            if len(calls.name)
            else (lambda _: np.zeros(len(at), np.int64))
        )
        called = pick(calls.name) if len(calls.name) else np.full(len(at), "")
        frame = frame.with_columns(
            kernel,
            called=pl.Series(np.where(known, called, "")).str.extract(_COLLECTIVE_CALL),
            communicator=pl.Series(pick(calls.communicator)).set(pl.Series(~has), None),
        ).with_columns(
            pl.col("bytes").replace(-1, None),
            ranks=pl.col("communicator").replace_strict(
                self._sizes(), default=None, return_dtype=pl.Int64
            ),
        )
        return _with_kinds(frame)

    def _sizes(self) -> dict[int, int]:
        """Communicator → ranks in it, as any call states them: usually only the one that made it does."""
        calls = self.calls
        stated = np.flatnonzero(calls.has_communicator & (calls.ranks > 0))
        sizes: dict[int, int] = {}
        for communicator, ranks in zip(
            calls.communicator[stated].tolist(), calls.ranks[stated].tolist(), strict=True
        ):
            sizes[communicator] = max(sizes.get(communicator, 0), ranks)
        return sizes

    def _groups(self, frame: pl.DataFrame) -> dict[int, int]:
        """Communicator → number of its group. Members are known of a communicator of the whole job only: others number ranks of their own."""
        sizes, world = self._sizes(), self.state.stage.facts.world_size
        used = frame["communicator"].drop_nulls().unique(maintain_order=True).to_list()
        if used:
            members = [list(range(world)) if world and sizes.get(c) == world else [] for c in used]
            self.state.stage.add_groups(
                {
                    "group_id": list(range(len(used))),
                    "ranks": members,
                    "name": [f"NCCL {c & (1 << 64) - 1:#x}" for c in used],
                }
            )
        return {c: i for i, c in enumerate(used)}

    def _tell(self, frame: pl.DataFrame) -> None:
        self.state.stage.audit.add(
            "collectives_without_size",
            "note",
            self.state.where("NVTX_EVENTS"),
            f"of kernels of collectives ({frame.height:,} in all) the message size is not recorded; export with --include-blobs=true a profile "
            "recorded with --trace=cuda,nvtx",
            unreliable="bytes and bandwidth of collectives",
            count=frame["bytes"].null_count(),
        )


def match_launches(calls: Calls, thread: Ints, start_ns: Ints, rows: Ints) -> Matches:
    """Tie CUDA calls to the calls of NCCL that they lie in, or whose group they end.

    Args:
        calls: sorted by thread and start.
        thread: int64[CUDA calls that launch something]: globalTid of each.
        start_ns: their starts.
        rows: their rows in the stage.
    """
    if not len(calls.name) or not len(rows):
        none = np.zeros(0, np.int64)
        return Matches(none, none, none)
    is_collective = pl.Series(calls.name).str.contains(_COLLECTIVE_CALL).to_numpy()
    of_group = np.flatnonzero(np.isin(calls.name, _GROUP_CALLS[1]))
    order = np.lexsort((start_ns, thread))
    thread, start_ns, rows = thread[order], start_ns[order], rows[order]
    inner = np.flatnonzero(is_collective)
    call = _last_before(calls, inner, thread, start_ns)
    inside = (call >= 0) & (calls.end_ns[np.maximum(call, 0)] >= start_ns)
    group = _last_before(calls, of_group, thread, start_ns)
    grouped = ~inside & (call >= 0) & (group >= 0)
    grouped &= calls.end_ns[np.maximum(group, 0)] >= start_ns
    chosen = np.flatnonzero(inside | grouped)
    size = calls.bytes[call[chosen]]
    size = np.where(inside[chosen], size, _group_bytes(calls, inner, group[chosen]))
    found = rows[chosen]
    by_row = np.argsort(found, kind="stable")
    return Matches(found[by_row], call[chosen][by_row], size[by_row])


def _last_before(calls: Calls, among: Ints, thread: Ints, start_ns: Ints) -> Ints:
    """The last of some calls that began on the same thread at or before each time; -1 if none did."""
    if not len(among):
        return np.full(len(thread), -1, np.int64)
    frame = pl.DataFrame({"thread": thread, "at": start_ns}).with_row_index("order")
    table = pl.DataFrame(
        {"thread": calls.thread[among], "at": calls.start_ns[among], "call": among}
    ).sort("at")
    joined = frame.sort("at").join_asof(table, on="at", by="thread", check_sortedness=False)
    return joined.sort("order")["call"].fill_null(-1).to_numpy()


def _group_bytes(calls: Calls, inner: Ints, group_end: Ints) -> Ints:
    """Bytes of all calls in the group that ends with each call; -1 where a size is not known or the group launched several kernels."""
    result = np.full(len(group_end), -1, np.int64)
    if not len(inner):
        return result
    begins = np.flatnonzero(calls.name == _GROUP_CALLS[0])
    at = np.searchsorted(begins, group_end) - 1
    has_begin = (at >= 0) & (group_end >= 0)
    begin = begins[np.maximum(at, 0)] if len(begins) else np.zeros(len(at), np.int64)
    low, high = np.searchsorted(inner, begin), np.searchsorted(inner, np.maximum(group_end, 0))
    sums = np.concatenate([[0], np.cumsum(calls.bytes[inner])])
    unknown = np.concatenate([[0], np.cumsum(calls.bytes[inner] < 0)])
    same_thread = calls.thread[begin] == calls.thread[np.maximum(group_end, 0)]
    launches = pl.Series(group_end)
    alone = (pl.DataFrame({"g": launches}).select(pl.len().over("g")).to_series() == 1).to_numpy()
    fits = has_begin & same_thread & (unknown[high] == unknown[low]) & (high > low) & alone
    result[fits] = (sums[high] - sums[low])[fits]
    return result


def _with_kinds(frame: pl.DataFrame) -> pl.DataFrame:
    """Collective, algorithm, datatype, ordinal in the communicator, bytes in and out."""
    kernel = pl.col("kernel")
    named = kernel_operation(kernel)
    size, ranks = pl.col("bytes"), pl.col("ranks")
    collective = pl.col("collective")
    is_p2p = collective.is_in(POINT_TO_POINT)
    has_group = pl.col("communicator").is_not_null() & ~is_p2p
    return frame.with_columns(
        # of a group of sends and receives, the kernel says more than its last call
        collective=pl.when(named == "SendRecv")
        .then(named)
        .otherwise(pl.coalesce("called", named, kernel_function(kernel))),
        algorithm=kernel_algorithm(kernel),
        dtype=kernel_dtype(kernel),
    ).with_columns(
        group_seq=pl.when(has_group)
        .then(pl.col("start_ns").rank("ordinal").over("process", "communicator", is_p2p) - 1)
        .cast(pl.Int64),
        in_bytes=pl.when(collective == "ReduceScatter")
        .then(size * ranks)
        .when(collective != "Recv")
        .then(size)
        .cast(pl.Int64),
        out_bytes=pl.when(collective == "AllGather")
        .then(size * ranks)
        .when(collective != "Send")
        .then(size)
        .cast(pl.Int64),
    )


def _alignable(frame: pl.DataFrame) -> pl.DataFrame | None:
    """One row a collective that other ranks have too. Without communicators, all of one process in order, as one group."""
    rows = frame.filter(pl.col("group_seq").is_not_null())
    if rows.height:
        rows = rows.with_columns(
            group=pl.col("communicator").cast(pl.String), sequence=pl.col("group_seq")
        )
    else:
        first = frame["process"][0]
        rows = (
            frame.filter((pl.col("process") == first) & ~pl.col("collective").is_in(POINT_TO_POINT))
            .sort("start_ns")
            .with_row_index("sequence")
            .with_columns(group=pl.lit("NCCL, by order"))
        )
    if not rows.height:
        return None
    return (
        rows.sort("start_ns")
        .unique(["group", "sequence"], keep="first", maintain_order=True)
        .select(
            "group",
            pl.col("sequence").cast(pl.Int64),
            pl.col("collective").alias("name"),
            "start_ns",
            "end_ns",
            "bytes",
        )
    )
