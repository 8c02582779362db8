"""What did neuron-monitor see? Its JSON lines as counters: utilization, FLOP/s, memory, executions, latency, errors, host.

A line has no time of its own but the length of its period: lines follow each other, each one period after the last (unless somebody put a
``timestamp`` in). Counts are those of the period, not since the start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage, Timeline

MAX_LINE_BYTES: Final = 16 << 20
MAX_COUNTERS: Final = 20_000
FLUSH_SAMPLES: Final = 100_000
_NANO: Final = 1_000_000_000
_MARKS: Final = (
    b'"neuron_runtime_data"',
    b'"neuron_hardware_info"',
    b'"system_data"',
    b'"instance_info"',
)
_STAMP: Final = re.compile(
    r"^(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)


@dataclass
class _Samples:
    """Samples that wait to be written, and the timelines of the counters."""

    stage: Stage
    at: list[int] = field(default_factory=list)
    timeline: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    left_out: int = 0

    def add(
        self, now_ns: int, group: str, name: str, unit: str, value: Any, *, core: int | None = None
    ) -> None:
        """Take a sample, if it is a number."""
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value != value
            or abs(value) == float("inf")
        ):
            return
        if len(self.stage.timelines) >= MAX_COUNTERS:
            self.left_out += 1
            return
        key = ("monitor", group, name)
        timeline = Timeline("counter", f"{group}: {name}", unit=unit, core=core, is_unranked=True)
        self.at.append(now_ns)
        self.timeline.append(self.stage.timeline(key, timeline))
        self.value.append(float(value))
        if len(self.at) >= FLUSH_SAMPLES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self.stage.add_counters(timeline=self.timeline, timestamp_ns=self.at, value=self.value)
        self.at, self.timeline, self.value = [], [], []


@dataclass
class _Seen:
    """What has been met, for facts and findings."""

    lines: int = 0
    malformed: int = 0
    first_malformed: str = ""
    stamped: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    impossible: int = 0
    example: str = ""


def recognise(head: Head) -> int:
    """By the members that every line has."""
    start = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if b'"neuron_runtime_data"' not in head.data:
        return 0
    found = sum(mark in head.data for mark in _MARKS)
    return 92 if found >= 2 and b"{" in start[:200] else 0


def read(source: Source, stage: Stage) -> None:
    """Read the lines.

    Raises:
        ProfileError: no line is a report of neuron-monitor.
    """
    samples, seen = _Samples(stage), _Seen()
    now_ns = 0
    for position, line in _lines(source, stage):
        report = _parsed(line)
        if report is None:
            seen.malformed += 1
            seen.first_malformed = seen.first_malformed or f"byte {position}"
            continue
        stamp = _time_of(report, line)
        period_ns = _period_ns(report)
        if stamp is not None:
            seen.stamped += 1
            now_ns = stamp
            stage.facts.base_unix_ns = 0
        elif seen.lines:
            now_ns += period_ns
        seen.lines += 1
        _take(report, now_ns, samples, seen, stage)
    samples.flush()
    if not seen.lines:
        raise ProfileError(
            f"{source.label}: no line of it is a report of neuron-monitor ({seen.malformed} are no JSON)"
        )
    _tell(seen, samples, source, stage)


def _lines(source: Source, stage: Stage) -> Iterator[tuple[int, bytes]]:
    stream = source.open()
    rest, position = b"", 0
    try:
        while data := stream.read(1 << 20):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                if line.strip():
                    yield position, line
                position += len(line) + 1
            if len(rest) > MAX_LINE_BYTES:
                raise ProfileError(
                    f"{source.label}: a line of more than {MAX_LINE_BYTES >> 20} MiB at byte {position}"
                )
        if rest.strip():
            yield position, rest
    finally:
        stream.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The report of a line; what stands before its brace is a stamp that somebody put there."""
    begin = line.find(b"{")
    if begin < 0:
        return None
    try:
        report = json.loads(line[begin:].decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return (
        report
        if isinstance(report, dict) and ("neuron_runtime_data" in report or "system_data" in report)
        else None
    )


def _time_of(report: Mapping[str, Any], line: bytes) -> int | None:
    """Unix time in ns, if the report or the text before it says one."""
    stamp = report.get("timestamp")
    if isinstance(stamp, (int, float)) and not isinstance(stamp, bool) and 1e8 < stamp < 1e20:
        scale = next(
            s
            for limit, s in ((1e11, _NANO), (1e14, 1_000_000), (1e17, 1_000), (1e21, 1))
            if stamp < limit
        )
        return int(Decimal(repr(stamp)) * scale)
    before = line[: max(line.find(b"{"), 0)][:64].decode("ascii", "replace").strip()
    for text in (stamp if isinstance(stamp, str) else "", before):
        matched = _STAMP.match(text)
        if matched is not None:
            return _unix_ns(matched)
    return None


def _unix_ns(matched: re.Match[str]) -> int | None:
    from datetime import UTC, datetime, timedelta

    year, month, day, hour, minute, second = (int(matched[i]) for i in range(1, 7))
    zone = matched[8] or "Z"
    offset = timedelta()
    if zone != "Z":
        digits = zone[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:])) * (
            -1 if zone[0] == "-" else 1
        )
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - offset
    except (ValueError, OverflowError):
        return None
    return int(moment.timestamp()) * _NANO + int((matched[7] or "0").ljust(9, "0"))


def _period_ns(report: Mapping[str, Any]) -> int:
    """Length of a report's period: of any of its sections, the shortest (some are asked for less often)."""
    found: list[float] = []
    for runtime in _list(report.get("neuron_runtime_data")):
        found += [_map(s).get("period", 0) for s in _map(_map(runtime).get("report")).values()]
    found += [_map(s).get("period", 0) for s in _map(report.get("system_data")).values()]
    periods = [p for p in found if isinstance(p, (int, float)) and 0 < p < 86_400]
    return round(min(periods, default=5.0) * _NANO)


def _take(
    report: Mapping[str, Any], now_ns: int, samples: _Samples, seen: _Seen, stage: Stage
) -> None:
    for runtime in _list(report.get("neuron_runtime_data")):
        own = _map(runtime)
        tag = str(own.get("neuron_runtime_tag") or own.get("pid") or "?")[:80]
        _error(own, f"runtime {tag}", seen)
        sections = _map(own.get("report"))
        for name, take in _RUNTIME.items():
            section = sections.get(name)
            if name in sections and not isinstance(section, Mapping):
                seen.missing[name] = seen.missing.get(name, 0) + 1
            elif isinstance(section, Mapping):
                _error(section, name, seen)
                take(section, f"runtime {tag}", now_ns, samples, seen)
    system = _map(report.get("system_data"))
    for name, section in system.items():
        _error(_map(section), name, seen)
    _system(system, now_ns, samples)
    for key in ("instance_info", "neuron_hardware_info"):
        _error(_map(report.get(key)), key, seen)
    if "neuron_monitor" not in stage.facts.metadata:
        _describe(report, stage)


def _cores(
    section: Mapping[str, Any], group: str, now_ns: int, samples: _Samples, seen: _Seen
) -> None:
    for core, counters in _map(section.get("neuroncores_in_use")).items():
        own = _map(counters)
        number = int(core) if str(core).isdigit() and len(str(core)) < 6 else None
        name = f"core {str(core)[:20]}"
        busy = own.get("neuroncore_utilization")
        if isinstance(busy, (int, float)):
            if busy > 100.01:
                seen.impossible += 1
                seen.example = seen.example or f"{group}, {name}: {busy:g} %"
            samples.add(now_ns, group, f"{name} utilization", "fraction", busy / 100, core=number)
        for key in ("effective_flops", "flops"):
            samples.add(
                now_ns,
                group,
                f"{name} {key.replace('_', ' ')}",
                "FLOP/s",
                own.get(key),
                core=number,
            )
        for version, parts in _map(own.get("v3d")).items():
            for part, inner in _map(parts).items():
                busy = _map(inner).get("neuroncore_utilization")
                if isinstance(busy, (int, float)):
                    samples.add(
                        now_ns,
                        group,
                        f"{name} {version}.{part} utilization",
                        "fraction",
                        busy / 100,
                        core=number,
                    )


def _memory(
    section: Mapping[str, Any], group: str, now_ns: int, samples: _Samples, seen: _Seen
) -> None:
    used = _map(section.get("neuron_runtime_used_bytes"))
    for key in ("host", "neuron_device", "device"):
        samples.add(now_ns, group, f"memory, {key.replace('_', ' ')}", "B", used.get(key))
    breakdown = _map(used.get("usage_breakdown"))
    for key, value in _map(breakdown.get("host")).items():
        samples.add(now_ns, group, f"host memory, {str(key)[:60]}", "B", value)
    for core, uses in _map(breakdown.get("neuroncore_memory_usage")).items():
        for key, value in _map(uses).items():
            samples.add(now_ns, group, f"core {str(core)[:20]} memory, {str(key)[:60]}", "B", value)


def _executions(
    section: Mapping[str, Any], group: str, now_ns: int, samples: _Samples, seen: _Seen
) -> None:
    for kind in ("execution_summary", "error_summary"):
        for key, value in _map(section.get(kind)).items():
            what = "errors" if kind == "error_summary" else "executions"
            samples.add(now_ns, group, f"{what} a period, {str(key)[:60]}", "1", value)
    for kind, percentiles in _map(section.get("latency_stats")).items():
        for key, value in _map(percentiles).items():
            samples.add(
                now_ns, group, f"{str(kind)[:40].replace('_', ' ')} {str(key)[:20]}", "s", value
            )


def _cpu(
    section: Mapping[str, Any], group: str, now_ns: int, samples: _Samples, seen: _Seen
) -> None:
    for key, value in _map(section.get("vcpu_usage")).items():
        if isinstance(value, (int, float)):
            samples.add(now_ns, group, f"CPU {str(key)[:20]}", "fraction", value / 100)


_RUNTIME: Final = {
    "neuroncore_counters": _cores,
    "memory_used": _memory,
    "execution_stats": _executions,
    "neuron_runtime_vcpu_usage": _cpu,
}


def _system(system: Mapping[str, Any], now_ns: int, samples: _Samples) -> None:
    for device in _list(_map(system.get("neuron_hw_counters")).get("neuron_devices")):
        own = _map(device)
        group = f"Neuron device {own.get('neuron_device_index', '?')}"
        for key, value in own.items():
            if "ecc" in str(key):
                samples.add(now_ns, group, str(key)[:60].replace("_", " "), "1", value)
    for key, value in _map(system.get("memory_info")).items():
        if str(key).endswith("_bytes"):
            samples.add(
                now_ns, "host", str(key)[:60].removesuffix("_bytes").replace("_", " "), "B", value
            )
    for key, value in _map(_map(system.get("vcpu_usage")).get("average_usage")).items():
        if isinstance(value, (int, float)):
            samples.add(now_ns, "host", f"CPU {str(key)[:20]}", "fraction", value / 100)


def _error(section: Mapping[str, Any], where: str, seen: _Seen) -> None:
    text = section.get("error")
    if isinstance(text, str) and text.strip():
        key = f"{where}: {text.strip()[:200]}"
        if key in seen.errors or len(seen.errors) < 50:
            seen.errors[key] = seen.errors.get(key, 0) + 1


def _describe(report: Mapping[str, Any], stage: Stage) -> None:
    """The machine, without what names it (instance, image, subnet, file paths of models)."""
    hardware = {
        k: v
        for k, v in _map(report.get("neuron_hardware_info")).items()
        if isinstance(v, (int, float, str))
    }
    instance = _map(report.get("instance_info"))
    known = {
        k: instance[k]
        for k in ("instance_type", "instance_region")
        if isinstance(instance.get(k), str)
    }
    stage.facts.metadata["neuron_monitor"] = {"hardware": hardware, "instance": known}
    version = hardware.get("neuroncore_version")
    if version:
        count, size = (
            hardware.get("neuroncore_per_device_count"),
            hardware.get("neuron_device_memory_size"),
        )
        stage.facts.system = {
            "name": known.get("instance_type") or str(hardware.get("neuron_device_type", "")),
            "core": {"name": f"NeuronCore-{version}"},
            "chip": {"name": hardware.get("neuron_device_type"), "cores": count, "hbm_bytes": size},
        }


def _tell(seen: _Seen, samples: _Samples, source: Source, stage: Stage) -> None:
    audit, label = stage.audit, source.label
    audit.add(
        "malformed_line",
        "warning",
        label,
        "lines that are no whole report were left out",
        unreliable="times of the lines behind them",
        count=seen.malformed,
        example=seen.first_malformed,
    )
    audit.add(
        "reckoned_times",
        "note",
        label,
        "neuron-monitor writes no time of day: lines were placed one period after the other, the first at 0",
        unreliable="relation to other profiles, and times behind a pause",
        count=seen.lines - seen.stamped,
    )
    audit.add(
        "edge_periods",
        "note",
        label,
        "the first and the last period of a run read low, because they begin before or end after it",
        unreliable="the first and the last sample",
        count=2 if seen.lines > 1 else 0,
    )
    for name, count in seen.missing.items():
        audit.add(
            "null_section",
            "note",
            f"{label}: {name}",
            "the section is null in some lines: the runtime had not reported",
            unreliable="counters of this section",
            count=count,
        )
    for text, count in seen.errors.items():
        audit.add(
            "monitor_error",
            "warning",
            f"{label}: {text[:60]}",
            f"neuron-monitor reports an error: {text}",
            unreliable="this section",
            count=count,
            example=text,
        )
    audit.add(
        "impossible_metric",
        "warning",
        label,
        "utilization above 100 % was kept",
        unreliable="utilization",
        count=seen.impossible,
        example=seen.example,
    )
    audit.add(
        "too_many_counters",
        "warning",
        label,
        f"samples of more than {MAX_COUNTERS} counters were left out",
        count=samples.left_out,
    )


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


FORMAT = Format("neuron-monitor", "neuron-monitor (JSON lines)", recognise, read)
