"""What is known about one event? Everything its row, its operation and its neighbours tell, with units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from trnprof.tracer.reader import locate_events
from trnprof.tracer.units import format_bytes, format_ns, format_percent, format_rate, printable
from trnprof.tui.store import Store
from trnprof.tui.ticks import format_moment


@dataclass(frozen=True)
class Details:
    """An event in words, fit for a terminal: its name, and pairs of label and text."""

    title: str
    fields: tuple[tuple[str, str], ...]


def describe(store: Store, event: int) -> Details:
    """The details of an event, by its index in the store."""
    row = store.trace.events.slice(store.row(event), 1).collect().row(0, named=True)
    tracks = {r["track_id"]: r for r in store.trace.tracks.iter_rows(named=True)}
    path = _ancestry(tracks, row["track_id"])
    fields = [
        ("track", " ▸ ".join(r["name"] for r in reversed(path))),
        ("category", str(row["category"])),
        *_timing(store, event, row),
        *_waiting(store, row, tracks),
        *_work(store, row, path),
        *_operation(store.trace.ops, row["op_id"]),
    ]
    if row["step"] is not None:
        fields.append(("step", str(row["step"])))
    if row["attributes"]:
        fields.append(("attributes", row["attributes"]))
    return Details(printable(store.name(event)), tuple((k, printable(v)) for k, v in fields))


def _ancestry(tracks: Mapping[int, Mapping[str, Any]], track_id: int) -> list[Mapping[str, Any]]:
    """The track, its parent, its parent's parent, …; a circle of parents ends where it closes."""
    path: list[Mapping[str, Any]] = []
    at: int | None = track_id
    while at is not None and at in tracks and tracks[at] not in path:
        path.append(tracks[at])
        at = tracks[at]["parent_id"]
    return path


def _timing(store: Store, event: int, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    clock = store.clock_of(event)
    start, duration = store.start_ns(event), store.duration_ns(event)
    length = (
        format_ns(duration)
        if row["duration_ns"] is not None
        else f"open, {format_ns(duration)} so far"
    )
    same = store.same_name(event)
    if len(same) > 1:
        rank = float((store.durations_of(same) <= duration).mean())
        length += f" (p{rank * 100:.0f} of {len(same):,} of this name)"
    fields = [("start", format_moment(start - clock.zero, 1)), ("duration", length)]
    before, after = store.next_event(event, -1), store.next_event(event)
    gaps = [
        f"{format_ns(max(start - store.end_ns(before), 0))} before" if before >= 0 else "first of its track",
        f"{format_ns(max(store.start_ns(after) - store.end_ns(event), 0))} after" if after >= 0 else "last of its track",
    ]  # fmt: skip
    return [*fields, ("gaps", ", ".join(gaps))]


def _waiting(
    store: Store, row: Mapping[str, Any], tracks: Mapping[int, Mapping[str, Any]]
) -> list[tuple[str, str]]:
    fields = []
    if row["ready_ns"] is not None:
        held = row["start_ns"] - row["ready_ns"]
        fields.append(
            ("ready", f"{format_ns(held)} before it started" if held > 0 else "when it started")
        )
    if row["wait_reason"] is not None:
        fields.append(("idle before", f"waited for {row['wait_reason']}"))
    if row["blocked_by"] is not None:
        found = locate_events(store.trace, [row["blocked_by"]])
        if found.height:
            other = found.row(0, named=True)
            where = " ▸ ".join(
                r["name"] for r in reversed(_ancestry(tracks, other["track_id"])[:2])
            )
            length = other["duration_ns"]
            fields.append(
                ("released by", f"{other['name']} on {where}" + (f" ({format_ns(length)})" if length is not None else ""))
            )  # fmt: skip
        else:
            fields.append(("released by", f"event {row['blocked_by']}, which is not in the trace"))
    return fields


def _work(
    store: Store, row: Mapping[str, Any], path: list[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    seconds = (row["duration_ns"] or 0) / 1e9
    fields = []
    if row["flops"]:
        fields.append(
            (
                "work",
                format_rate(row["flops"], "FLOP") + (" (transpose)" if row["is_transpose"] else ""),
            )
        )
        if seconds:
            peak = _peak_flops(store.trace.peaks, row, path)
            fields.append(("achieved", _achieved(row["flops"] / seconds, peak, "FLOP/s")))
    if row["bytes"] is not None:
        fields.append(("bytes", format_bytes(row["bytes"])))
        if seconds:
            fields.append(
                ("bandwidth", _achieved(row["bytes"] / seconds, _peak_bytes(path), "B/s"))
            )
    if row["source_memory"] is not None or row["target_memory"] is not None:
        fields.append(("route", f"{row['source_memory'] or '?'} → {row['target_memory'] or '?'}"))
    if row["descriptor_bytes"] is not None:
        fields.append(("descriptors", format_bytes(row["descriptor_bytes"])))
    if row["dtype"] is not None:
        fields.append(("dtype", str(row["dtype"])))
    return fields


def _achieved(rate: float, peak: float | None, unit: str) -> str:
    of_peak = f", {format_percent(rate / peak)} of {format_rate(peak, unit)}" if peak else ""
    return format_rate(rate, unit) + of_peak


def _peak_flops(
    peaks: pl.DataFrame, row: Mapping[str, Any], path: list[Mapping[str, Any]]
) -> float | None:
    """The dense peak of the event's datatype on its track, or else the track's one number."""
    own: float | None = path[0]["peak_flops"] if path else None
    if peaks.height and path and row["dtype"] is not None:
        for peak in peaks.iter_rows(named=True):
            fits = peak["track_kind"] == path[0]["kind"] and peak["track_name"] in (
                "",
                path[0]["name"],
            )
            if fits and peak["dtype"] == row["dtype"] and peak["sparsity"] == "dense":
                return float(peak["flops_per_s"])
    return own


def _peak_bytes(path: list[Mapping[str, Any]]) -> float | None:
    """Bandwidth of the track or of the nearest thing around it that has one."""
    return next((r["peak_bytes_per_s"] for r in path if r["peak_bytes_per_s"]), None)


def _operation(ops: pl.LazyFrame, op_id: int | None) -> list[tuple[str, str]]:
    if op_id is None:
        return []
    found = ops.filter(pl.col("op_id") == op_id).head(1).collect()
    if not found.height:
        return []
    op = found.row(0, named=True)
    phase = f" ({op['phase']})" if op["phase"] else ""
    fields = [("operation", f"{op['name']}{phase}")]
    for label, key in (("module", "module_path"), ("shapes", "input_shapes"), ("dtypes", "dtypes")):
        if op[key]:
            fields.append((label, str(op[key])))
    if op["source_file"]:
        line = f":{op['source_line']}" if op["source_line"] is not None else ""
        fields.append(("source", f"{op['source_file']}{line}"))
    if op["lowering"] == "fallback":
        fields.append(("lowering", "fallback: timed by its roofline only"))
    return fields
