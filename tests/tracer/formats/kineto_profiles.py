"""Small profiles as PyTorch writes them, with answers that follow from how they are made; and recounts of real ones, event by event.

A step lasts 1000 µs times ``scale``: on stream 7 a matrix product (100 to 300), an elementwise kernel (300 to 350), a copy to the device
(650 to 690); on stream 20 an all-reduce (250 to 550). Each is launched by a call in an operator.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl

from trnprof.analysis.ranks import rank_breakdown
from trnprof.tracer.ingest.run import ImportSummary, import_profiles
from trnprof.tracer.reader import Trace, open_trace

Event = dict[str, Any]
Profile = dict[str, Any]
Figures = dict[str, int]

SHARED = Path(__file__).parents[3].parent / "shared"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
MEMCPY = "Memcpy HtoD (Pageable -> Device)"
HOST, THREAD, COMPUTE, COMMUNICATION = 100, 1, 7, 20
_WORK = (
    ("gemm", "kernel", "cudaLaunchKernel", COMPUTE, 100, 200),
    ("relu", "kernel", "cudaLaunchKernel", COMPUTE, 300, 50),
    (NCCL, "kernel", "cudaLaunchKernel", COMMUNICATION, 250, 300),
    (MEMCPY, "gpu_memcpy", "cudaMemcpyAsync", COMPUTE, 650, 40),
)
X_EVENTS = 13
"""Ranges a step."""


def good(*, rank: int = 0, steps: int = 2, scale: int = 1, start_us: int = 1_000_000) -> Profile:
    """A clean profile of two ranks' job."""
    host, gpu = HOST + rank, rank
    events: list[Event] = [_name(host, "python"), _name(gpu, f"GPU {gpu}")]
    for step in range(steps):
        at = start_us + 1000 * scale * step
        events.append(
            _range("user_annotation", f"ProfilerStep#{10 + step}", host, THREAD, at, 1000 * scale)
        )
        for place, (name, category, call, stream, first, length) in enumerate(_WORK):
            number = len(_WORK) * step + place + 1
            issued = at + (15 + 60 * place) * scale
            link = {"External id": number}
            events += [
                _range("cpu_op", f"aten::op{place}", host, THREAD, issued, 30 * scale, link),
                _range("cuda_runtime", call, host, THREAD, issued + 5 * scale, 10 * scale, {"correlation": number, **link}),
                _range(category, name, gpu, stream, at + first * scale, length * scale,
                       {"stream": stream, "device": gpu, "correlation": number, **link}),
                {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, "pid": host, "tid": THREAD, "ts": issued + 5 * scale},
                {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": number, "pid": gpu, "tid": stream, "ts": at + first * scale, "bp": "e"},
            ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": events,
    }


def answer(*, steps: int = 2, scale: int = 1) -> Figures:
    """What ``good`` has on its device, in ns: of two steps 1590, 610, 500, 480, 600, 200 and 80 µs."""
    one = 1000 * scale
    span, busy = (1000 * (steps - 1) + 590) * one, 490 * steps * one
    return {
        "span_ns": span,
        "busy_ns": busy,
        "idle_ns": span - busy,
        "compute_ns": 250 * steps * one,
        "non_compute_ns": 240 * steps * one,
        "communication_ns": 300 * steps * one,
        "overlap_ns": 100 * steps * one,
        "copy_only_ns": 40 * steps * one,
    }


def named(profile: Profile, name: str) -> list[Event]:
    """Its ranges of this name."""
    return [e for e in profile["traceEvents"] if e.get("name") == name and e["ph"] == "X"]


def saved(path: Path, profile: Profile | str | bytes) -> Path:
    text = profile if isinstance(profile, str | bytes) else json.dumps(profile)
    path.write_bytes(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
    return path


def imported(paths: Path | list[Path], output: Path) -> tuple[ImportSummary, Trace]:
    """Import, open, and see that nothing is wrong with the trace itself."""
    summary = import_profiles(paths if isinstance(paths, list) else [paths], output, force=True)
    trace = open_trace(output)
    assert [
        p for p in trace.validate() if p.severity == "error" and p.kind not in found(summary)
    ] == []
    return summary, trace


def found(summary: ImportSummary) -> dict[str, int]:
    """Findings of the import: kind → count."""
    return {finding.kind: finding.count for finding in summary.findings}


def figures(trace: Trace) -> list[Figures]:
    """Of each rank, in order."""
    whole = rank_breakdown(trace).whole.sort("unit")
    return whole.select(list(answer())).to_dicts()


def raw(path: Path) -> Any:
    """A profile as the standard library reads it, fractions exact."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data, parse_float=Fraction)


def recounted(profile: Any) -> tuple[int, Figures]:
    """Events and device times of a profile, one Python object after the other: an independent answer."""
    events = profile if isinstance(profile, list) else profile["traceEvents"]
    count = sum(e.get("ph") in ("X", "i", "I") for e in events)
    work: dict[str, list[tuple[int, int]]] = {"compute": [], "communication": [], "copy": []}
    for event in events:
        kind = _kind(event)
        if kind:
            begin, length = Fraction(event["ts"]), Fraction(event["dur"])
            work[kind].append((_ns(begin), _ns(begin + length)))
    every = [pair for pairs in work.values() for pair in pairs]
    if not every:
        return count, {}
    busy, compute = _union(every), _union(work["compute"])
    communication = _union(work["communication"])
    span = max(b for _, b in every) - min(a for a, _ in every)
    both = _union([*work["compute"], *work["communication"]])
    return count, {
        "span_ns": span,
        "busy_ns": busy,
        "idle_ns": span - busy,
        "compute_ns": compute,
        "non_compute_ns": busy - compute,
        "communication_ns": communication,
        "overlap_ns": compute + communication - both,
    }


def _kind(event: Event) -> str | None:
    category, name = (event.get("cat") or "").lower(), event.get("name", "")
    if event.get("ph") != "X" or not {"ts", "dur"} <= set(event):
        return None
    if category in ("gpu_memcpy", "gpu_memset") or name == "dma_request":
        return "copy"
    if category == "mtia_ccp_events" and name.startswith("event_"):
        return None
    if category in ("kernel", "mtia_ccp_events"):
        return "communication" if name.startswith("nccl") and "Kernel" in name else "compute"
    return None


def _ns(microseconds: Fraction) -> int:
    return int((microseconds * 1000 + Fraction(1, 2)) // 1)


def _union(pairs: Iterable[tuple[int, int]]) -> int:
    total, reached = 0, None
    for begin, end in sorted(pairs):
        if reached is None or begin > reached:
            total, reached = total + end - begin, end
        elif end > reached:
            total, reached = total + end - reached, end
    return total


def launches(trace: Trace) -> list[tuple[str, str]]:
    """Names of calls and of what they launched, in order."""
    events = trace.events.select("event_id", pl.col("name").cast(pl.String)).collect()
    flows = trace.flows.filter(pl.col("kind") == "launch").collect()
    joined = flows.join(events, left_on="source_event", right_on="event_id").join(
        events, left_on="target_event", right_on="event_id", suffix="_target"
    )
    return sorted(joined.select("name", "name_target").rows())


def _name(process: int, name: str) -> Event:
    return {
        "ph": "M",
        "name": "process_name",
        "pid": process,
        "tid": 0,
        "ts": 0,
        "args": {"name": name},
    }


def _range(
    category: str,
    name: str,
    process: int,
    thread: int,
    ts: int,
    dur: int,
    args: Event | None = None,
) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": ts, "dur": dur, "args": args or {},
    }  # fmt: skip
