"""Section ``memory``: how full each memory is over time, what lies there when it is fullest, and what allocators waste."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from trnprof.analysis.focus import focus, focus_note
from trnprof.analysis.memory import (
    FULL,
    at_instant,
    fragmentation,
    gauges,
    levels,
    peaks,
    timeline,
)
from trnprof.analysis.metrics import ratio
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.analysis.text_layout import bar
from trnprof.tracer.units import format_bytes, format_percent

KEY: Final = "memory"
TITLE: Final = "Memory"
BUCKETS: Final = 16
BAR: Final = 24
TOP: Final = 20


def build(subject: Subject) -> Section:
    """Of the step and rank asked for."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    known = gauges(subject.trace, scope.clock_id, subject.rank)
    if not known.height:
        return silent(KEY, TITLE, "because the trace has no counter of a memory")
    start, end = scope.windows.select(
        pl.col("window_start_ns").min(), pl.col("window_end_ns").max()
    ).row(0)
    held = levels(subject.trace, known, start, end) if start is not None else None
    if held is None or not held.height:
        return silent(KEY, TITLE, "because no memory was counted in this window")
    fullest = peaks(known, held)
    if not fullest.height:
        return silent(KEY, TITLE, "because the trace counts uses of memories, and none as a whole")
    first = fullest.row(0, named=True)
    over_time = timeline(known, held, first["gauge"], start, end, BUCKETS)
    tables = (
        _peaks(fullest),
        _uses(at_instant(known, held, first["gauge"], first["at_ns"]), first),
        _largest(subject),
        _timeline(over_time, first, known, start),
        _fragmentation(fragmentation(known, held)),
    )
    shown = tuple(t for t in tables if t.rows)
    return Section(KEY, TITLE, shown, (*_notes(subject, first, focus_note(scope)), *scope.notes))


def _peaks(fullest: pl.DataFrame) -> Table:
    is_bytes = pl.col("unit") == "B"
    rows = fullest.with_columns(
        peak_bytes=pl.when(is_bytes).then("peak"),
        mean_bytes=pl.when(is_bytes).then("mean"),
        capacity_bytes=pl.when(is_bytes).then("capacity"),
    ).drop("track_id", "peak", "mean", "capacity", "unit", "gauge")
    columns = (
        Column("memory", "memory"),
        *([Column("rank", "rank", "number")] if fullest["rank"].n_unique() > 1 else []),
        Column("peak_bytes", "peak", "bytes"),
        Column("capacity_bytes", "holds", "bytes"),
        Column("share", "full", "percent"),
        Column("full_share", f"> {FULL:.0%}", "percent"),
        Column("near_peak_share", "near peak", "percent"),
        Column("mean_bytes", "mean", "bytes"),
        Column("at_ns", "at", "ns"),
    )
    return table("peaks", "when fullest", columns, rows, TOP)


def _uses(uses: pl.DataFrame, first: dict[str, Any]) -> Table:
    rows = uses.select(
        "use", bytes="value", share=ratio(pl.col("value"), pl.lit(first["peak"], pl.Float64))
    ).with_columns(drawn=pl.col("share").map_elements(_bar, return_dtype=pl.String))
    columns = (
        Column("use", "what for"),
        Column("bytes", "bytes", "bytes"),
        Column("share", "of peak", "percent"),
        Column("drawn", ""),
    )
    return table("peak_by_use", f"{_whose(first)} at its peak", columns, rows)


def _largest(subject: Subject) -> Table:
    """The largest tensors when the fullest rank's HBM is fullest: told by the emulator, of all steps."""
    told = ((subject.trace.manifest.get("emulation") or {}).get("hbm") or {}).get("peak_largest")
    rows = [
        {
            "bytes": each["count"] * each["nbytes"],
            "count": each["count"],
            "use": each["category"],
            "what": f"{each['dtype']} {each['shape']}",
            "operator": each["operator"] or None,
            "module": each["module_path"] or None,
            "source": f"{each['source_file'].replace(chr(92), '/').rsplit('/', 1)[-1]}:{each['source_line']}"
            if each["source_file"]
            else None,
        }
        for each in (told or [])
    ]  # fmt: skip
    schema = {"bytes": pl.Int64, "count": pl.Int64} | dict.fromkeys(
        ("use", "what", "operator", "module", "source"), pl.String
    )
    columns = (
        Column("bytes", "bytes", "bytes"),
        Column("count", "tensors", "count"),
        Column("use", "what for"),
        Column("what", "each"),
        Column("module", "module"),
        Column("source", "source line"),
    )
    return table("largest", "largest tensors then", columns, pl.DataFrame(rows, schema=schema), TOP)


def _timeline(
    over_time: pl.DataFrame, first: dict[str, Any], known: pl.DataFrame, start: int
) -> Table:
    uses = known.filter((pl.col("gauge") == first["gauge"]) & pl.col("use").is_not_null())["use"]
    named = [use for use in uses.unique(maintain_order=True) if use in over_time.columns]
    most = (
        pl.concat_list(named).list.arg_max().replace_strict(dict(enumerate(named)), default=None)
        if named
        else pl.lit(None, pl.String)
    )
    scale = first["peak"] or 1.0
    form: Any = "bytes" if first["unit"] == "B" else "percent"
    rows = over_time.with_columns(
        most=most,
        since_ns=pl.col("at_ns") - start,
        drawn=(pl.col("highest") / scale).map_elements(_bar, return_dtype=pl.String),
    )
    columns = (
        Column("since_ns", "from", "ns"),
        Column("highest", "highest", form),
        Column("mean", "mean", form),
        Column("drawn", "of peak"),
        *([Column("most", "most of it")] if len(named) > 1 else []),
        *([Column(named[0], named[0], form)] if len(named) == 1 else []),
    )
    return table("timeline", f"{_whose(first)} over time", columns, rows)


def _fragmentation(rows: pl.DataFrame) -> Table:
    columns = (
        Column("memory", "memory"),
        Column("reserved", "reserved", "bytes"),
        Column("allocated", "allocated", "bytes"),
        Column("unused_share", "unused", "percent"),
        Column("highest_unused", "unused at most", "bytes"),
    )
    return table(
        "fragmentation",
        "reserved by the allocator, and handed out",
        columns,
        rows.filter(pl.col("reserved") > 0),
        TOP,
    )


def _notes(subject: Subject, first: dict[str, Any], of: str) -> Sequence[str]:
    emulation = subject.trace.manifest.get("emulation")
    notes = [of]
    if emulation:
        highest = (emulation.get("hbm") or {}).get("peak_bytes") or 0
        if subject.step is None and subject.rank is None and highest > first["peak"] > 0:
            notes.append(
                f"for an instant, when one tensor is made and another freed, HBM holds {format_bytes(highest)}"
            )
        notes.append(
            f"HBM counts tensors only, not the program or DMA rings; SBUF what is kept between kernels, not the tiles of the one that runs; "
            f"nothing counts PSUM; > {format_percent(FULL, 0)} is the time above that share of what it holds, near peak of its peak"
        )
        if subject.step is not None or subject.rank is not None:
            notes.append("the largest tensors are those of all steps, of the fullest rank")
    elif first["capacity"] is None:
        notes.append("what these memories hold at most is not in the trace")
    return notes


def _whose(first: dict[str, Any]) -> str:
    rank = "" if first["rank"] is None or first["unit"] != "B" else f" of rank {first['rank']}"
    return f"{first['memory']}{rank}"


def _bar(share: float) -> str:
    return bar(share, BAR)
