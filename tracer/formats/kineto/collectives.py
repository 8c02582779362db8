"""Which kernels of a PyTorch profile are collectives, of which group, and the how-manieth of it?

What a kernel is about is said by its own arguments, else by what encloses its launch; its name only tells that it is a collective, and
by which algorithm and datatype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.collective_names import (
    collective_kernels,
    is_collective_kernel,
    kernel_algorithm,
    kernel_dtype,
    kernel_function,
    kernel_operation,
)
from trnprof.tracer.formats.kineto.messages import Messages, dtype_name, group_name, read_ranks
from trnprof.tracer.formats.kineto.state import Bools, Ints, State

UNKNOWN_GROUP: Final = "all"
"""Group of kernels that say nothing of theirs."""


class KernelNames:
    """Which kernels are collectives by name."""

    def __init__(self) -> None:
        self._pattern = collective_kernels()
        self._known: dict[str | None, bool] = {}

    def matching(self, names: pa.DictionaryArray) -> Bools:
        """Where a name is of a collective."""
        words = names.dictionary.to_pylist()
        fresh = [word for word in words if word not in self._known]
        if fresh:
            found = is_collective_kernel(pa.array(fresh, pa.string()), self._pattern)
            self._known.update(zip(fresh, found.tolist(), strict=True))
        says = np.array([self._known[word] for word in words] + [False])
        codes = names.indices.fill_null(-1) if names.null_count else names.indices
        found_here: Bools = says[codes.to_numpy(zero_copy_only=False)]
        return found_here


@dataclass
class Groups:
    """Groups of ranks, numbered as they are met."""

    names: list[str] = field(default_factory=list)
    ranks: list[list[int]] = field(default_factory=list)
    _number: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    _stated: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def state(self, configuration: Any) -> None:
        """Learn members of groups from ``distributedInfo.pg_config``."""
        for each in configuration if isinstance(configuration, list) else []:
            if isinstance(each, Mapping) and each.get("pg_name") is not None:
                name = group_name(str(each["pg_name"]), _text(each.get("pg_desc")))
                self._stated[name or ""] = read_ranks(each.get("ranks"), None)

    def number(self, name: str, ranks: tuple[int, ...]) -> int:
        """The number of a group; members that nobody says are looked up."""
        members = ranks or self._stated.get(name, ())
        key = (name, members)
        if key not in self._number:
            self._number[key] = len(self.names)
            self.names.append(name)
            self.ranks.append(list(members))
        return self._number[key]

    def key(self, number: int) -> str:
        """What the group is called on all its members."""
        return f"{self.names[number]} {self.ranks[number]}"


@dataclass(frozen=True)
class Collectives:
    """Kernels that are collectives.

    Attributes:
        work: their places in ``State.work``.
        message: what each is about, -1: nobody says.
        parent: operator that launched each, -1: unknown.
    """

    work: Ints
    message: NDArray[np.int32]
    parent: NDArray[np.int32]


def add_collectives(
    state: State, messages: Messages, groups: Groups, found: Collectives, first_op: int
) -> pl.DataFrame | None:
    """Add their operations and groups to the stage, and the facts for aligning ranks.

    Args:
        state: the profile, all read.
        messages: by code.
        groups: takes the groups.
        found: the kernels.
        first_op: number of the first operation.

    Returns:
        One row a kernel, in order of ``found``: dtype, bytes (null where nobody says). None without kernels.
    """
    if not len(found.work):
        return None
    frame = _frame(state, messages, groups, found)
    state.stage.add_ops(
        {
            "op_id": np.arange(first_op, first_op + frame.height, dtype=np.uint32),
            "parent_id": pa.array(found.parent.astype(np.uint32), mask=found.parent < 0),
            "kind": ["collective"] * frame.height,
            **{
                name: frame[name]
                for name in ("name", "group_id", "group_seq", "algorithm", "in_bytes", "out_bytes")
            },
            "dtypes": frame["dtype"],
        }
    )
    if groups.names:
        numbers = list(range(len(groups.names)))
        state.stage.add_groups({"group_id": numbers, "ranks": groups.ranks, "name": groups.names})
    known = frame.filter(~pl.col("is_point_to_point") & pl.col("is_first"))
    state.stage.facts.collectives = known.select(
        "group", "sequence", "name", "start_ns", "end_ns", "bytes"
    )
    return frame.select("dtype", "bytes")


def _frame(state: State, messages: Messages, groups: Groups, found: Collectives) -> pl.DataFrame:
    rows = state.work["row"][found.work]
    said = _said(messages, groups)
    of_kernel = _of_kernels(list(state.kernel_names))[state.work["name"][found.work]]
    frame = pl.DataFrame(
        {
            "row": rows,
            "message": pl.Series(found.message),
            "start_ns": state.stage.times("start_ns")[rows],
            "end_ns": state.stage.times("end_ns")[rows],
            "fingerprint": state.stage.times("fingerprint")[rows],
            "timeline": state.stage.times("timeline")[rows],
            **of_kernel.to_dict(),
        }
    ).join(said, on="message", how="left", maintain_order="left")
    frame = frame.with_columns(
        name=pl.coalesce("operation", "kernel_operation"),
        dtype=pl.coalesce("dtype", "kernel_dtype"),
        bytes=pl.max_horizontal("in_bytes", "out_bytes"),
        group=pl.coalesce("group", pl.lit(UNKNOWN_GROUP)),
        is_point_to_point=pl.col("is_point_to_point").fill_null(False),
        is_first=pl.struct("timeline", "start_ns", "end_ns", "fingerprint").is_first_distinct(),
        place=pl.int_range(pl.len()),
    )
    keys = ["group", "is_point_to_point"]
    ordinal = pl.col("is_first").cast(pl.Int64).cum_sum().over(keys) - 1
    numbered = frame.sort("start_ns", maintain_order=True).with_columns(sequence=ordinal)
    return numbered.sort("place").with_columns(
        group_seq=pl.when(pl.col("group_id").is_not_null()).then("sequence")
    )


def _of_kernels(names: list[str]) -> pl.DataFrame:
    """What the name of a kernel says of a collective, a row a name."""
    kernel = pl.col("kernel")
    return pl.DataFrame({"kernel": names}, schema={"kernel": pl.String}).select(
        kernel_operation=pl.coalesce(kernel_operation(kernel), kernel_function(kernel)),
        algorithm=kernel_algorithm(kernel),
        kernel_dtype=kernel_dtype(kernel),
    )


def _said(messages: Messages, groups: Groups) -> pl.DataFrame:
    """What each message says, by its code."""
    of_code = messages.of_code
    numbers: Sequence[int | None] = [
        None if m.group is None else groups.number(m.group, m.ranks) for m in of_code
    ]
    return pl.DataFrame(
        {
            "message": np.arange(len(of_code), dtype=np.int32),
            "operation": [m.name or None for m in of_code],
            "group_id": numbers,
            "group": [None if n is None else groups.key(n) for n in numbers],
            "in_bytes": [m.in_bytes for m in of_code],
            "out_bytes": [m.out_bytes for m in of_code],
            "dtype": [None if m.dtype is None else dtype_name(m.dtype) for m in of_code],
            "is_point_to_point": [m.is_point_to_point for m in of_code],
        },
        schema={
            "message": pl.Int32, "operation": pl.String, "group_id": pl.UInt32, "group": pl.String, "in_bytes": pl.Int64,
            "out_bytes": pl.Int64, "dtype": pl.String, "is_point_to_point": pl.Boolean,
        },
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
