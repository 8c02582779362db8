"""What bounds this step, and how far is it from the roofline? Two sentences with their numbers, and what its partition suggests.

Which resource bounds: exposed collectives if they take EXPOSED_SHARE of the time and more than exposed DMA and idle each;
else the busiest of Tensor, Vector, Scalar, GpSimd and DMA if it is active for BUSY_SHARE (DMA: bandwidth or issue by the rule
of ``operators``); else nothing does and the step is latency-bound: its work waits for earlier results. Whether DMA could be
faster is judged by the rate that the core's DMA engines reach (``dma_peak_bytes_per_s``), not by what its HBM stack delivers.

Gains are upper bounds, marked ``~``: what the trace says would go away if the named cause vanished and nothing else moved.
A gain under WORTHWHILE of the step is not proposed. What is proposed is, the first that there is,

    the form of the optimizer, if it takes OPTIMIZER_SHARE of the step in MANY_KERNELS or more, tensor by tensor; or by lists
    of tensors whose intermediate results go through HBM
    what relieves the resource that bounds
    the operator that is furthest above its own roofline, if that is worth more than nothing

Operators of the optimizer are named as *the optimizer*: nobody can edit one of its kernels. Waits are told only of engines
that are active for LITTLE_WORK or more: one with little to do waits for work, which explains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.operators import BANDWIDTH, DISPATCH_SHARE, ISSUE, LATENCY, SMALL_DMA_BYTES
from trnprof.tracer.units import format_bytes, format_ns, format_percent, format_rate

BUSY_SHARE: Final = limit("busy_share")
EXPOSED_SHARE: Final = limit("bound_by_communication_share")
TRANSPOSE_SHARE: Final = limit("transpose_share")
WORTHWHILE: Final = limit("worthwhile_share")
LITTLE_WORK: Final = limit("little_work_share")
OPTIMIZER_SHARE: Final = limit("optimizer_share")
MANY_KERNELS: Final = limit("optimizer_kernels")
NEGLIGIBLE_ROOFLINE: Final = limit("negligible_roofline_share")

COLLECTIVE: Final = "collective-bound"
_COMPUTE: Final = ("Tensor", "Vector", "Scalar", "GpSimd")


@dataclass(frozen=True)
class Advice:
    """What to try: of which kind, in words, and what it would save at most (ns)."""

    key: str
    text: str
    gain_ns: float


def verdict(window: Mapping[str, Any]) -> dict[str, Any]:
    """What to say of one window of a report.

    Args:
        window: metrics, engines, breakdown, phases, optimizer, operators, steps, as ``report.build_report`` makes them.

    Returns:
        bound_by, sentences (two strings), roofline_gap (times the roofline, null if unknown), advice (``advised``) and
        gain_upper_bound_ns (both null if the partition suggests nothing); or nothing_to_say.
    """
    silent = window["metrics"].get("nothing_to_say")
    if silent:
        return {"nothing_to_say": silent}
    total_ns = float(window["breakdown"]["total_ns"])
    if total_ns <= 0 or not window["metrics"]["total_active_time"]:
        return {"nothing_to_say": "because no event of the device takes time in this window"}
    bound = bound_by(window)
    proposed = (_optimizer_advice(window), _advice(window, bound), _operator_advice(window))
    least_ns = WORTHWHILE * total_ns
    advice = next((a for a in proposed if a is not None and a.gain_ns >= least_ns), None)
    return {
        "bound_by": bound,
        "sentences": [
            _what_bounds(window, bound),
            how_far(window, total_ns),
        ],
        "roofline_gap": _gap(window, total_ns),
        **advised(advice),
    }


def advised(advice: Advice | None) -> dict[str, Any]:
    """As JSON has it: advice (key, text, gain_ns; null) and gain_upper_bound_ns."""
    if advice is None:
        return {"advice": None, "gain_upper_bound_ns": None}
    told = {"key": advice.key, "text": advice.text, "gain_ns": advice.gain_ns}
    return {"advice": told, "gain_upper_bound_ns": advice.gain_ns}


def bound_by(window: Mapping[str, Any]) -> str:
    """What bounds a window, by the rule of the module's docstring: ``tensor-bound``, ``DMA-issue-bound``, ….

    Args:
        window: metrics, engines and breakdown of a report's window.
    """
    parts = window["breakdown"]
    exposed = parts["exposed_collective_ns"]
    others = max(parts["exposed_dma_ns"], parts["idle_ns"], parts["host_ns"])
    if exposed >= EXPOSED_SHARE * parts["total_ns"] and exposed > others:
        return COLLECTIVE
    busiest = _busiest(window["engines"])
    if busiest is None or (busiest["active_time_percent"] or 0.0) < BUSY_SHARE:
        return LATENCY
    if busiest["name"] != "DMA":
        return f"{busiest['name'].lower()}-bound"
    return ISSUE if _is_dispatch(window["metrics"]) else BANDWIDTH


def _busiest(engines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    ranked = [e for e in engines if e["name"] != "Sync"]
    return max(ranked, key=lambda e: e["active_time_percent"] or 0.0, default=None)


def _is_dispatch(metrics: Mapping[str, Any]) -> bool:
    moved, active = metrics["dma_transfer_total_bytes"], metrics["dma_active_time"]
    bandwidth = metrics["dma_peak_bytes_per_s"]
    if bandwidth and active:
        return bool(moved / active < DISPATCH_SHARE * bandwidth)
    return (metrics["dma_transfer_average_bytes"] or 0) < SMALL_DMA_BYTES


def _what_bounds(window: Mapping[str, Any], bound: str) -> str:
    engines = {e["name"]: e for e in window["engines"]}
    main = _main_engine(window["engines"])
    start = "" if main is None else _state(main, window["breakdown"]["total_ns"] / 1e9) + ": "
    share = format_percent
    parts, metrics = window["breakdown"], window["metrics"]
    total = parts["total_ns"]
    if bound == COLLECTIVE:
        end = f"exposed collectives bound this {noun(window)} ({share(parts['exposed_collective_ns'] / total)} of it)"
    elif bound == BANDWIDTH:
        end = f"DMA bandwidth bounds this {noun(window)} ({bandwidth_reached(metrics)}, DMA active {share(_active(engines, 'DMA'))})"
    elif bound == ISSUE:
        size = format_bytes(metrics["dma_transfer_average_bytes"] or 0, 3)
        end = f"issuing DMAs bounds this {noun(window)} (DMA active {share(_active(engines, 'DMA'))} with {size} a transfer, {bandwidth_reached(metrics)})"
    elif bound == LATENCY:
        busiest = _busiest(window["engines"])
        most = (
            "no engine runs"
            if busiest is None
            else f"{busiest['name']} is the busiest"
            if busiest is main
            else f"{busiest['name']}, the busiest, is active {share(busiest['active_time_percent'])}"
        )
        dma = parts["exposed_dma_ns"] / total
        exposed = f", DMA alone {share(dma)}" if dma >= WORTHWHILE else ""
        end = f"latency and dependencies bound this {noun(window)} ({most}{exposed}, nothing runs {share(parts['idle_ns'] / total)})"
    else:
        name = next((n for n in engines if bound == f"{n.lower()}-bound"), bound)
        end = f"{name} bounds this {noun(window)}"
        if main is None or name != main["name"]:
            end += f" (active {share(_active(engines, name))})"
    text = f"{start}{end}."
    return text[0].upper() + text[1:]


def _main_engine(engines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Tensor, if there is work for it; else the busiest that computes."""
    tensor = next((e for e in engines if e["name"] == "Tensor" and _has_work(e)), None)
    return tensor or _busiest([e for e in engines if e["name"] not in ("DMA", "Collective")])


def _has_work(engine: Mapping[str, Any]) -> bool:
    return (engine["active_time_percent"] or 0.0) >= LITTLE_WORK


def _state(engine: Mapping[str, Any], total_s: float) -> str:
    """``Tensor is active 41 % and waits 32 % for data``."""
    idle = engine["idle_by_reason_s"]
    waits = [(v, k) for k, v in idle.items() if k not in ("none_after", "unknown")]
    text = f"{engine['name']} is active {format_percent(engine['active_time_percent'])}"
    if not waits or not _has_work(engine):
        return text
    longest, reason = max(waits)
    return f"{text} and waits {format_percent(longest / total_s)} for {_reason(reason)}"


def _reason(reason: str) -> str:
    phrases = {
        "buffer": "a free buffer",
        "engine": "other work on it",
        "queue": "a DMA queue",
        "semaphore": "semaphores",
        "link": "links",
        "peer": "peers",
        "collective": "collectives",
        "host": "the host",
    }
    return phrases.get(reason, reason)


def how_far(window: Mapping[str, Any], total_ns: float) -> str:
    """The second sentence: how long a window takes, beside its roofline."""
    count = max(1, window["steps"])
    took = format_ns(total_ns / count, 3)
    many = f" on average ({count} steps)" if count > 1 else ""
    metrics = window["metrics"]
    gap = _gap(window, total_ns)
    if gap is None:
        return f"The {noun(window)} takes {took}{many}; its roofline is unknown, because the trace gives no FLOPs, bytes or peaks."
    if is_negligible(metrics["roofline_s"], total_ns):
        return f"The {noun(window)} takes {took}{many}, launch and latency only: the roofline is negligible."
    compute, memory = metrics["roofline_compute_s"] or 0.0, metrics["roofline_memory_s"] or 0.0
    by, other, second = (
        ("HBM bytes", "FLOPs", compute) if memory >= compute else ("FLOPs", "HBM bytes", memory)
    )
    floor = format_ns(metrics["roofline_s"] * 1e9 / count, 3)
    return (
        f"The {noun(window)} takes {took}{many}; its roofline is {floor} ({gap:.1f}x), set by {by}; "
        f"{other} alone need {format_ns(second * 1e9 / count, 3)}."
    )


def is_negligible(roofline_s: float | None, total_ns: float) -> bool:
    """Whether a ratio to this roofline would say nothing: the time is launch and latency."""
    return roofline_s is not None and roofline_s * 1e9 < NEGLIGIBLE_ROOFLINE * total_ns


def _gap(window: Mapping[str, Any], total_ns: float) -> float | None:
    roofline_s = window["metrics"]["roofline_s"]
    return total_ns / 1e9 / roofline_s if roofline_s else None


def what_remains(window: Mapping[str, Any]) -> str:
    """Said where there is no finding: the roofline gap that remains."""
    gap = _gap(window, float(window["breakdown"]["total_ns"]))
    is_told = gap and not is_negligible(window["metrics"]["roofline_s"], window["breakdown"]["total_ns"])  # fmt: skip
    rest = f"; it runs at {format_percent(1 / gap)} of its roofline" if gap and is_told else ""
    return f"Nothing that this report looks for would save {format_percent(WORTHWHILE, 0)} of the {noun(window)}{rest}."


def _optimizer_advice(window: Mapping[str, Any]) -> Advice | None:
    """Fused, the update passes over the parameters once: it needs no less than the heaviest of its operators does.

    Where the emulator merged the kernels already, the form makes next to no difference: nothing is proposed.
    """
    how, phases = window.get("optimizer"), window.get("phases")
    if not how or how["is_merged"] or not phases:
        return None
    if phases["optimizer_ns"] < OPTIMIZER_SHARE * phases["total_ns"]:
        return None
    kernels = round(how["kernel_count"] / max(1, window["steps"]))
    if how["form"] == "single" and kernels >= MANY_KERNELS:
        remedy = "foreach=True or fused=True in the optimizer"
    elif how["form"] == "foreach":
        remedy = "fused=True in the optimizer"
    else:
        return None
    rows = window["operators"] if isinstance(window["operators"], list) else []
    floors = [o["roofline_ns"] or 0.0 for o in rows if o["phase"] == "optimizer"]
    floor_ns = max(floors, default=0.0)
    share = format_percent(phases["optimizer_ns"] / phases["total_ns"])
    text = f"{remedy} (it takes {share} of the {noun(window)} in {kernels} kernels)"
    return Advice("optimizer", text, phases["optimizer_ns"] - floor_ns)


def _operator_advice(window: Mapping[str, Any]) -> Advice | None:
    """The operator that would win most at its own roofline, no more than the window would at its own."""
    rows = window["operators"] if isinstance(window["operators"], list) else []
    roofline_s = window["metrics"]["roofline_s"]
    known = [(o["time_ns"] - o["roofline_ns"], i) for i, o in enumerate(rows) if o["roofline_ns"]]
    if not known or roofline_s is None:
        return None
    above_ns, place = max(known, key=lambda k: (k[0], -k[1]))
    row = rows[place]
    share = format_percent(row["roofline_share"])
    text = (
        f"bringing {_operator(row)} closer to its roofline ({share} of it now, {row['bound_by']})"
    )
    return Advice(
        "roofline", text, min(above_ns, window["breakdown"]["total_ns"] - roofline_s * 1e9)
    )


def _advice(window: Mapping[str, Any], bound: str) -> Advice | None:
    parts, metrics = window["breakdown"], window["metrics"]
    where = _where(window, bound)
    if bound == COLLECTIVE:
        return overlap_advice(parts)
    if bound == BANDWIDTH:
        return Advice("dma-bytes", _dma_text(window, bound), parts["exposed_dma_ns"])
    if bound == ISSUE:
        return Advice("small-dmas", _dma_text(window, bound), _issue_gain_ns(parts, metrics))
    if bound == LATENCY:
        rows = window["operators"]
        cause = rows[0]["bound_by"] if isinstance(rows, list) and rows else None
        others_ns = parts["idle_ns"] + parts["host_ns"]
        if cause in (ISSUE, BANDWIDTH) and parts["exposed_dma_ns"] > others_ns:
            return Advice(
                "dma-bytes" if cause == BANDWIDTH else "small-dmas",
                _dma_text(window, cause),
                parts["exposed_dma_ns"],
            )
        waits = _longest_wait(window["engines"], max(1, window["steps"]))
        text = f"more independent work in flight{where}{waits}"
        return Advice(
            "latency", text, parts["idle_ns"] + parts["host_ns"] + parts["exposed_dma_ns"]
        )
    found = [_engine_advice(window, bound), _hiding_advice(window)]
    return max((a for a in found if a is not None), key=lambda a: a.gain_ns, default=None)


def overlap_advice(parts: Mapping[str, Any]) -> Advice | None:
    """None where there is no compute that could hide a collective: of a trace of collectives alone."""
    if not parts["compute_ns"]:
        return None
    return Advice(
        "hide-collectives", "overlapping collectives with compute", parts["exposed_collective_ns"]
    )


def _engine_advice(window: Mapping[str, Any], bound: str) -> Advice | None:
    if bound == "tensor-bound":
        return _tensor_advice(window)
    name = next((n for n in _COMPUTE if bound == f"{n.lower()}-bound"), bound)
    return Advice(
        "engine", f"moving work off {name}{_where(window, bound)}", _lead_ns(window["engines"])
    )


def _hiding_advice(window: Mapping[str, Any]) -> Advice:
    """While an engine bounds, DMA that nothing hides costs time too."""
    where = _where(window, BANDWIDTH, ISSUE)
    return Advice(
        "hide-dma", f"hiding DMA behind compute{where}", window["breakdown"]["exposed_dma_ns"]
    )


def _dma_text(window: Mapping[str, Any], bound: str) -> str:
    where = _where(window, bound)
    if bound == BANDWIDTH:
        return f"moving fewer HBM bytes (fusion, reuse in SBUF, a narrower datatype){where}, or hiding them behind compute"
    average = window["metrics"]["dma_transfer_average_bytes"] or 0
    size, target = format_bytes(average, 3), format_bytes(SMALL_DMA_BYTES, 3)
    goal = f", {target} or more is the target" if average < SMALL_DMA_BYTES else ""
    return f"fewer, larger DMAs ({size} a transfer now{goal}){where}"


def _issue_gain_ns(parts: Mapping[str, Any], metrics: Mapping[str, Any]) -> float:
    """Exposed DMA, and no more than DMA is active beyond what its bytes need at the engines' full rate."""
    exposed = float(parts["exposed_dma_ns"])
    if not metrics["dma_peak_bytes_per_s"]:
        return exposed
    needed_s = metrics["dma_transfer_total_bytes"] / metrics["dma_peak_bytes_per_s"]
    return max(0.0, min(exposed, float(metrics["dma_active_time"] - needed_s) * 1e9))


def _tensor_advice(window: Mapping[str, Any]) -> Advice | None:
    """Transposes and wide datatypes cost Tensor time in proportion to their BF16-equivalent FLOPs."""
    metrics = window["metrics"]
    flops = metrics["adjusted_hardware_flops"]
    tensor_ns = (metrics.get("tensor_engine_active_time") or 0.0) * 1e9
    lead_ns = _lead_ns(window["engines"])
    if not flops:
        return None
    found = []
    transposes = metrics["adjusted_transpose_flops"] / flops
    if transposes > TRANSPOSE_SHARE:
        text = f"layouts without transposes on Tensor ({format_percent(transposes)} of its FLOPs)"
        found.append(Advice("transposes", text, min(lead_ns, transposes * tensor_ns)))
    widening = 1 - metrics["hardware_flops"] / flops
    if widening > WORTHWHILE:
        text = f"BF16 matmuls (wider datatypes are {format_percent(widening)} of Tensor's work){_where(window, 'tensor-bound')}"
        found.append(Advice("datatype", text, min(lead_ns, widening * tensor_ns)))
    below_ns = tensor_ns - (metrics["roofline_compute_s"] or 0.0) * 1e9
    text = f"fuller matmul tiles (Tensor's FLOPs need {format_percent(1 - below_ns / tensor_ns if tensor_ns else None)} of its active time)"
    found.append(Advice("tiles", text + _where(window, "tensor-bound"), min(lead_ns, below_ns)))
    return max(found, key=lambda a: a.gain_ns)


def _lead_ns(engines: Sequence[Mapping[str, Any]]) -> float:
    """How much longer the busiest resource is active than the next: beyond that, the next one bounds."""
    times = sorted((e["active_time"] * 1e9 for e in engines if e["name"] != "Sync"), reverse=True)
    return float(times[0] - times[1]) if len(times) > 1 else float(sum(times))


def _longest_wait(engines: Sequence[Mapping[str, Any]], steps: int) -> str:
    waits = [
        (seconds, e["name"], reason)
        for e in engines
        if e["name"] in _COMPUTE and _has_work(e)
        for reason, seconds in e["idle_by_reason_s"].items()
        if reason not in ("none_after", "unknown")
    ]
    if not waits:
        return ""
    seconds, name, reason = max(waits)
    return f"; the longest wait is {name}'s for {_reason(reason)}, {format_ns(seconds * 1e9 / steps, 3)}"


def _where(window: Mapping[str, Any], *bounds: str) -> str:
    """``, first in layers.*.mlp mm``: the longest operator that the same thing bounds; "" if none does."""
    operators = window["operators"]
    rows = operators if isinstance(operators, list) else []
    first = next((o for o in rows if o["bound_by"] in bounds and o["time_ns"] > 0), None)
    if first is None:
        return ""
    return f", first in {_operator(first)}"


def _operator(row: Mapping[str, Any]) -> str:
    if row["phase"] == "optimizer":
        return "the optimizer"
    return " ".join(p for p in (row["module"], row["name"]) if p)


def _active(engines: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    return engines[name]["active_time_percent"] if name in engines else None


def bandwidth_reached(metrics: Mapping[str, Any]) -> str:
    """``DMA at 92 % of the 430 GB/s its engines reach, HBM at 55 % of 725 GB/s``; DMA only where its limit is another.

    Args:
        metrics: of a report's window.
    """
    stack, engines = metrics["peak_bytes_per_s"], metrics["dma_peak_bytes_per_s"]
    said = []
    if engines and engines != stack:
        share = format_percent(metrics["dma_bandwidth_share"])
        said.append(f"DMA at {share} of the {format_rate(engines, 'B/s', 3)} its engines reach")
    if stack:
        share = format_percent(metrics["mbu_estimated_percent"])
        said.append(f"HBM at {share} of {format_rate(stack, 'B/s', 3)}")
    return ", ".join(said) or "HBM bandwidth unknown"


def noun(window: Mapping[str, Any]) -> str:
    """What a person calls the window."""
    return "step" if window["step"] is not None or window["steps"] else "trace"
