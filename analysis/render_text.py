"""How does a report read in a terminal? The dict of ``report.build_report`` as text, 80 columns, no colour, no boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.phases import NAMED_PHASES, WORKING
from trnprof.analysis.render_ranks import (
    late_section,
    ranks_section,
    stream_figures,
    streams_section,
)
from trnprof.analysis.report import focused_window
from trnprof.analysis.text_layout import WIDTH, bar, fit, time_unit, wrapped
from trnprof.analysis.verdict import bandwidth_reached, is_negligible, what_remains
from trnprof.analysis.verdict_streams import runs_on_streams
from trnprof.tracer.units import format_bytes, format_ns, format_percent, format_rate, printable

BAR: Final = 28
TOP_ROWS: Final = 10
MAX_STEPS: Final = 12
_PARTS: Final = {
    "compute_ns": "compute",
    "exposed_collective_ns": "exposed comm",
    "exposed_dma_ns": "exposed DMA",
    "host_ns": "host",
    "idle_ns": "idle",
}
_REASONS: Final = ("data", "buffer", "queue", "semaphore", "engine")

Section = list[str]


def render_text(report: Mapping[str, Any]) -> str:
    """The report as text.

    Args:
        report: as ``build_report`` returns it.

    Returns:
        Lines of at most WIDTH columns, the last one ended.
    """
    window = focused_window(report)
    is_silent = "nothing_to_say" in window["metrics"]
    device = (_breakdown, _engines)
    sections = [
        _head(report, window),
        *(
            ()
            if is_silent
            else (_verdict(window, report["findings"]), *(section(window) for section in device))
        ),
        late_section(report),
        [] if is_silent else _operators(report, window),
        _steps(report),
        ranks_section(report),
        _host(report),
        _foot(report),
    ]
    return "\n\n".join("\n".join(s) for s in sections if s) + "\n"


def title_parts(report: Mapping[str, Any]) -> list[str]:
    """What a report is of: trace, step, system, cores, where it comes from."""
    system = report["system"] or {}
    cores = report["core_count"]
    parts = [
        report["trace"],
        _which(report, focused_window(report)),
        f"rank {report['rank']}" if report.get("rank") is not None else "",
        system.get("name") or "unknown system",
        f"{cores} {report['unit']}{'s' * (cores != 1)}" if cores else "",
        _origin(report),
    ]
    return [printable(str(p)) for p in parts if p]


def _head(report: Mapping[str, Any], window: Mapping[str, Any]) -> Section:
    lines = [*wrapped("  ·  ".join(title_parts(report)), ""), "─" * WIDTH]
    metrics = window["metrics"]
    if "nothing_to_say" in metrics:
        return [*lines, *_silent("Device", metrics)]
    count = max(1, window["steps"])
    each = "a step" if window["steps"] else "in all"
    took = f"{format_ns(window['breakdown']['total_ns'] / count)} {each}"
    if runs_on_streams(window):
        return [*lines, " " + "    ".join([took, *stream_figures(window)])]
    roofline = metrics["roofline_s"]
    floor = format_ns(roofline * 1e9 / count) if roofline else "–"
    if roofline and is_negligible(roofline, window["breakdown"]["total_ns"]):
        floor = "negligible"
    figures = [
        took,
        f"MFU {format_percent(metrics['mfu_estimated_percent'])}",
        f"HFU {format_percent(metrics['hfu_estimated_percent'])}",
        f"HBM {format_percent(metrics['mbu_estimated_percent'])}",
        f"roofline {floor}",
    ]
    return [*lines, " " + "    ".join(figures)]


def _which(report: Mapping[str, Any], window: Mapping[str, Any]) -> str:
    total = len(report["steps"])
    if window["step"] is not None:
        return f"step {window['step']} (of {total})"
    return f"{total} step{'s' * (total != 1)}" if total else "no steps"


def _origin(report: Mapping[str, Any]) -> str:
    execution = report["execution"] or {}
    if not report["is_simulation"]:
        return "measured" if report["core_count"] else "host only"
    return ", ".join(["emulated", *[str(execution[k]) for k in ("execution",) if k in execution]])


def _verdict(window: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Section:
    """What bounds, how far it is from the roofline, and what holds it back, with what it would save."""
    said = window["verdict"]
    if "nothing_to_say" in said:
        return _silent("What holds it back", said)
    lines = [line for sentence in said["sentences"] for line in wrapped(printable(sentence), " ")]
    if not findings:
        return [" What holds it back", *lines, *wrapped(what_remains(window), " ")]
    shown = findings[: int(limit("first_screen"))]
    lines += ["", _beside(" What holds it back", "would save")[0]]
    for number, row in enumerate(shown, 1):
        lines += _finding(number, row)
    if len(findings) > len(shown):
        lines.append(f" … and {len(findings) - len(shown)} more: --section findings")
    return lines


def _finding(number: int, row: Mapping[str, Any]) -> Section:
    sign = "~" if row["is_upper_bound"] else ""
    gain = f"{sign + format_ns(row['gain_ns'], 3):>10}{format_percent(row['gain_share']):>8}"
    first, *rest = wrapped(printable(row["title"]), f" {number}  ", "    ", WIDTH - len(gain) - 1)
    room = WIDTH - 1 - len(first)
    return [
        f"{first}{gain:>{room}}",
        *rest,
        *wrapped(printable(row["evidence"]), "    "),
        *wrapped(f"→ {row['command']}", "    ", "      "),
    ]


def _breakdown(window: Mapping[str, Any]) -> Section:
    parts = window["breakdown"]
    if "nothing_to_say" in parts:
        return _silent("Where the time goes", parts)
    names = _PARTS | ({"exposed_dma_ns": "exposed copy"} if runs_on_streams(window) else {})
    total, count = parts["total_ns"], max(1, window["steps"])
    if not total:
        return [" Where the time goes", "   nothing to say, because the window has no length"]
    shown = {k: name for k, name in names.items() if parts[k] or k in ("compute_ns", "idle_ns")}
    scale, unit, digits = time_unit(max(parts[k] for k in shown) / count)
    last_digit = count * scale / 10**digits
    times = _closing([parts[k] / last_digit for k in shown], round(total / last_digit))
    shares = _closing([1000 * parts[k] / total for k in shown], 1000)
    title = f" Where the {'step' if window['steps'] else 'time'} goes"
    is_work = [k not in ("host_ns", "idle_ns") for k in shown]
    work = sum(t for t, is_one in zip(times, is_work, strict=True) if is_one)
    split = _phase_split(window["phases"], last_digit, work, digits)
    lines = _beside(title, f"{split} {unit}" if split else "")
    for key, name, time, share in zip(shown, shown.values(), times, shares, strict=True):
        drawn = bar(parts[key] / total, BAR)
        lines.append(
            f" {name:<14}{drawn:<{BAR}}{_decimal(time, digits) + ' ' + unit:>22}{_decimal(share, 1) + ' %':>14}"
        )
    whole = f"{_decimal(sum(times), digits)} {unit}"
    return [*lines, f" {'sum':<14}{'':<{BAR}}{whole:>22}{format_percent(1.0):>14}"]


def _phase_split(phases: Mapping[str, Any], last_digit: float, work: int, digits: int) -> str:
    """``forward 131.00  backward 243.20``: they sum to what the bars above idle do; nothing where no phase is known."""
    if not any(phases[f"{p}_ns"] for p in NAMED_PHASES):
        return ""
    shown = [p for p in WORKING if phases[f"{p}_ns"]]
    cells = _closing([phases[f"{p}_ns"] / last_digit for p in shown], work)
    return "  ".join(f"{p} {_decimal(c, digits)}" for p, c in zip(shown, cells, strict=True))


def _beside(left: str, right: str) -> Section:
    """Both on one line, flush with its two ends; on two where they do not fit."""
    if not right:
        return [left]
    room = WIDTH - 1 - len(left) - len(right)
    return [left + " " * room + right] if room > 1 else [left, f"{right:>{WIDTH - 1}}"]


def _closing(values: Sequence[float], total: int) -> list[int]:
    """Whole numbers near ``values`` that sum to ``total``: the largest remainders are rounded up first."""
    found = [int(v) for v in values]
    order = sorted(range(len(values)), key=lambda i: found[i] - values[i])
    rest = total - sum(found)
    for i in order if rest > 0 else reversed(order):
        if rest > 0 or (rest < 0 and found[i] > 0):
            change = 1 if rest > 0 else -1
            found[i] += change
            rest -= change
    return found


def _decimal(value: int, digits: int) -> str:
    return f"{value / 10**digits:.{digits}f}"


def _engines(window: Mapping[str, Any]) -> Section:
    rows = window["engines"]
    if runs_on_streams(window):
        return streams_section(window)
    if not rows or not window["breakdown"]["total_ns"]:
        return []
    head = f" {'Engines':<12}{'active':>9}  idle, waits for:"
    lines = [
        f"{head:<40}" + "  (% of the time)",
        f" {'':<12}{'':>9}" + _columns([*_REASONS, "other", "end"]),
    ]
    total_s = window["breakdown"]["total_ns"] / 1e9
    for row in rows:
        idle = row["idle_by_reason_s"]
        shown = {k: idle.get(k, 0.0) for k in _REASONS}
        end = idle.get("none_after", 0.0)
        other = sum(idle.values()) - sum(shown.values()) - end
        cells = [f"{v / total_s * 100:.1f}" for v in (*shown.values(), max(0.0, other), end)]
        name = row["name"] if row["tracks"] == 1 else f"{row['name']} x{row['tracks']}"
        lines.append(
            f" {fit(name, 12):<12}{format_percent(row['active_time_percent']):>9}{_columns(cells)}"
        )
    note = "end: idle after its last work of the step, which waits for nothing."
    if any(row["tracks"] > 1 for row in rows):
        note += (
            " xN: of N queues or streams; active is when any of them is, idle times are a mean one's; so only the other rows sum "
            "to 100 %."
        )
    return [*lines, *wrapped(note, " ")]


def _columns(cells: Sequence[str]) -> str:
    return "".join(f"{c:>8}" if c != "semaphore" else f"{'sema':>8}" for c in cells)


def _operators(report: Mapping[str, Any], window: Mapping[str, Any]) -> Section:
    rows = window["operators"]
    if not isinstance(rows, list):
        return _silent("Operators", rows)
    shown = rows[:TOP_ROWS]
    scale, unit, digits = time_unit(max(r["time_ns"] for r in shown) / max(1, window["steps"]))
    lines = [
        f" {'Operators':<33}{'time ' + unit:>10}{'share':>8}{'count':>7}  {'bound by':<14}{'roof':>5}"
    ]
    for row in shown:
        name = " ".join(p for p in (row["module"], row["name"], _phase(row["phase"])) if p)
        time = f"{row['time_ns'] / max(1, window['steps']) / scale:.{digits}f}"
        share = "–" if row["share_of_active"] is None else f"{row['share_of_active'] * 100:.1f} %"
        roofline = "–" if row["roofline_share"] is None else f"{row['roofline_share'] * 100:.0f} %"
        bound = (row["bound_by"] or "–").removesuffix("-bound")
        count = f"{row['count'] / max(1, window['steps']):.1f}".removesuffix(".0")
        lines.append(
            f" {fit(name, 33):<33}{time:>10}{share:>8}{count:>7}  {bound:<14}{roofline:>5}"
        )
    each = "Of a mean step: time" if window["steps"] > 1 else "Time"
    units = report["core_count"]
    mean = (
        f", the mean of {units:,} {report['unit']}s, whose counts are summed" if units > 1 else ""
    )
    note = f"{each} in which any of an operator's events is active{mean}; share of the active time; operators overlap, so shares may sum to more than 100 %."
    return [*lines, *wrapped(note, " ")]


def _phase(phase: str | None) -> str:
    return {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}.get(phase or "", phase or "")


def _steps(report: Mapping[str, Any]) -> Section:
    steps = report["steps"]
    if len(steps) < 2 and report["core_count"]:
        return []
    if not steps:
        return []
    named = ("compute", "exp. comm") if runs_on_streams(report["overall"]) else ("MFU", "HBM")
    lines = [f" {'Steps':<24}{'time':>12}{named[0]:>10}{named[1]:>10}{'idle':>10}  bound by"]
    for step in steps[:MAX_STEPS]:
        label = fit(step["label"] or f"step {step['step']}", 16)
        head = f" {step['step']:>5}  {label:<17}{format_ns(step['end_ns'] - step['start_ns']):>12}"
        lines.append(head + _step_figures(step))
    if len(steps) > MAX_STEPS:
        lines.append(f" … and {len(steps) - MAX_STEPS} more: --json has them all")
    return lines


def _step_figures(step: Mapping[str, Any]) -> str:
    metrics, parts = step["metrics"], step["breakdown"]
    if "nothing_to_say" in metrics or not parts["total_ns"]:
        return ""
    total = parts["total_ns"]
    first, second = metrics["mfu_estimated_percent"], metrics["mbu_estimated_percent"]
    if runs_on_streams(step):
        first, second = parts["compute_ns"] / total, parts["exposed_collective_ns"] / total
    shares = (first, second, parts["idle_ns"] / total)
    bound = step["verdict"].get("bound_by", "–").removesuffix("-bound")
    return "".join(f"{format_percent(s):>10}" for s in shares) + f"  {bound}"


def _host(report: Mapping[str, Any]) -> Section:
    threads = report["host"]
    if not isinstance(threads, list):
        return []
    clock = "  own clock" if len(report["clocks"]) > 1 else ""
    lines = [f" {'Host threads':<40}{'active':>12}{'spans':>10}{clock}"]
    for thread in threads[:TOP_ROWS]:
        active = format_ns(thread["active_time"] * 1e9)
        lines.append(f" {fit(thread['name'], 39):<40}{active:>12}{thread['span_count']:>10}")
        for span in thread["spans"][:3]:
            time = format_ns(span["time_s"] * 1e9)
            lines.append(f"   {fit(span['name'], 37):<38}{time:>12}{span['count']:>10}")
    if len(threads) > TOP_ROWS:
        lines.append(f" … and {len(threads) - TOP_ROWS} more threads")
    return lines


def _foot(report: Mapping[str, Any]) -> Section:
    lines: Section = []
    system, execution = report["system"] or {}, report["execution"] or {}
    if report["is_simulation"] and system:
        estimates = len(execution.get("estimates") or system.get("estimates") or ())
        fallback = execution.get("fallback_time_percent")
        text = f"Emulated on {system['name']} ({system.get('core') or 'core unknown'}), {estimates} estimates used"
        text += (
            ""
            if fallback is None
            else f"; roofline fallback {format_percent(fallback)} of the time"
        )
        lines += wrapped(printable(text) + ".", " ")
    lines += _throughput(focused_window(report)["metrics"])
    for note in (*execution.get("notes", ()), *report["notes"]):
        lines += wrapped(printable(f"Note: {note}"), " ", "   ")
    if report["problems"]:
        count = len(report["problems"])
        lines += wrapped(
            f"{count} problem{'s' * (count != 1)} met while reading: trnprof validate tells.", " "
        )
    return lines


def _throughput(metrics: Mapping[str, Any]) -> Section:
    if not metrics.get("hbm_bytes_per_s"):
        return []
    average = metrics["dma_transfer_average_bytes"]
    size = "" if average is None else f"; {format_bytes(average, 3)} a transfer"
    reached = f" ({bandwidth_reached(metrics)})"
    rate = format_rate(metrics["hbm_bytes_per_s"], "B/s", 3)
    return wrapped(f"HBM traffic {rate}{reached}{size}.", " ")


def _silent(title: str, section: Mapping[str, Any]) -> Section:
    return [f" {title}", *wrapped(f"nothing to say, {section['nothing_to_say']}", "   ")]
