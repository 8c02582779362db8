"""How do ranks and streams read in a terminal? Sections of the text report for multi-rank traces and for devices with streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trnprof.analysis.text_layout import fit, wrapped
from trnprof.tracer.units import counted, format_ns, format_percent, printable

MAX_RANKS: Final = 16
MAX_STREAMS: Final = 12
MAX_LATE: Final = 8
MAX_NAMED: Final = 4
_NOT_TRACED: Final = "no rank's last data waited for it by itself: links had work all the while, which came later for it"


def ranks_section(report: Mapping[str, Any]) -> list[str]:
    """The table of ranks; nothing for a single rank of a trace that was not imported.

    Args:
        report: as ``build_report`` returns it.
    """
    rows = report["ranks"].get("ranks")
    if not rows or (len(rows) < 2 and not report["is_imported"]):
        return []
    lines = [
        f" {'Ranks':<15}{'span':>10}{'busy':>8}{'compute':>9}{'comm':>8}{'overlap':>9}{'copy':>7}{'empty':>8}"
    ]
    lines += [_rank_line(row) for row in rows[:MAX_RANKS]]
    if len(rows) > MAX_RANKS:
        lines.append(f" … and {len(rows) - MAX_RANKS} more: --json has them all")
        lines.append(_extremes(rows))
    note = (
        "Of each rank's own span, first to last device event; overlap: share of communication that compute hides; copy: only "
        "copies run; empty: nothing runs."
    )
    return [*lines, *wrapped(note, " ")]


def _rank_line(row: Mapping[str, Any]) -> str:
    span = row["span_ns"]
    names = ("busy_ns", "compute_ns", "communication_ns", "copy_only_ns", "idle_ns")
    busy, compute, comm, copy, idle = (_share(row[n], span) for n in names)
    repeated = row["replica_count"]
    name = fit(row["name"] + (f" x{repeated}" if repeated > 1 else ""), 14)
    overlap = format_percent(row["overlap_share"])
    return f" {name:<15}{format_ns(span, 3):>10}{busy:>8}{compute:>9}{comm:>8}{overlap:>9}{copy:>7}{idle:>8}"


def _share(part: int, whole: int) -> str:
    return format_percent(part / whole if whole else None)


def _extremes(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["span_ns"]]
    if not known:
        return " every rank's span has no length"
    least = min(known, key=lambda r: r["busy_ns"] / r["span_ns"])
    most = max(known, key=lambda r: r["busy_ns"] / r["span_ns"])
    low, high = (_share(r["busy_ns"], r["span_ns"]) for r in (least, most))
    return f" busy from {low} ({fit(least['name'], 16)}) to {high} ({fit(most['name'], 16)})"


def late_section(report: Mapping[str, Any]) -> list[str]:
    """Who waited for whom: a sentence a rank that came late to a collective.

    Args:
        report: as ``build_report`` returns it.
    """
    rows = report["late_ranks"]
    if not rows:
        return []
    lines = [" Late ranks"]
    for row in rows[:MAX_LATE]:
        waiting = row["waiting_ranks"]
        named = f" ({', '.join(map(str, waiting))})" if len(waiting) <= MAX_NAMED else ""
        waited = f"{counted(len(waiting), 'rank')}{named} waited for it, {format_ns(row['waited_ns'])} in all at most"
        like = (
            f" (and {counted(len(row['equal_ranks']), 'rank')} like it)"
            if row["equal_ranks"]
            else ""
        )
        text = f"rank {row['rank']}{like} came {format_ns(row['late_ns'])} late to {' and '.join(row['collectives'])}; "
        lines += wrapped(printable(text + (waited if waiting else _NOT_TRACED)), " ", "   ")
    if len(rows) > MAX_LATE:
        lines.append(f" … and {len(rows) - MAX_LATE} more: --json has them all")
    return lines


def streams_section(window: Mapping[str, Any]) -> list[str]:
    """Streams by activity: why one idles is not in the profile, so that the table of waits would be empty.

    Args:
        window: of a report.
    """
    rows = sorted(window["engines"], key=lambda e: -e["active_time"])
    if not rows or not window["breakdown"]["total_ns"]:
        return []
    each = max(1, window["steps"])
    lines = [f" {'Streams':<40}{'active':>10}{'time':>14}{'events':>13}"]
    for row in rows[:MAX_STREAMS]:
        name = row["name"] if row["tracks"] == 1 else f"{row['name']} x{row['tracks']}"
        events = f"{row['instruction_count'] / each:.1f}".removesuffix(".0")
        time = format_ns(row["active_time"] * 1e9 / each, 3)
        active = format_percent(row["active_time_percent"])
        lines.append(f" {fit(name, 39):<40}{active:>10}{time:>14}{events:>13}")
    if len(rows) > MAX_STREAMS:
        lines.append(f" … and {len(rows) - MAX_STREAMS} more: --json has them all")
    return lines


def stream_figures(window: Mapping[str, Any]) -> list[str]:
    """Figures of the head for a device with streams; utilization only where the trace has FLOPs and peaks.

    Args:
        window: of a report.
    """
    parts, metrics = window["breakdown"], window["metrics"]
    total = parts["total_ns"]
    busy = total - parts["idle_ns"] - parts["host_ns"]
    known = {
        "MFU": metrics["mfu_estimated_percent"],
        "HFU": metrics["hfu_estimated_percent"],
        "HBM": metrics["mbu_estimated_percent"],
    }
    return [
        f"busy {_share(busy, total)}",
        f"compute {_share(parts['compute_ns'], total)}",
        f"exposed comm {_share(parts['exposed_collective_ns'], total)}",
        *(f"{name} {format_percent(v)}" for name, v in known.items() if v is not None),
    ]
