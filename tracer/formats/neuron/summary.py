"""What does a Neuron summary say? ``summary-json`` and ``summary-text`` of neuron-profile and Neuron Explorer, as one table of metrics.

There are no events in it: the trace holds the figures, in its manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.machine import generation_of
from trnprof.tracer.formats.neuron.metrics import metric_table
from trnprof.tracer.formats.neuron.schema import packaged_schema
from trnprof.tracer.formats.neuron.summary_text import SummaryText, parse_summary_text
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

MAX_BYTES: Final = 64 << 20
"""A summary has some kilobytes; more is another file."""
_KEY: Final = re.compile(rb'"([a-z][a-z0-9_]{3,60})"\s*:')
_WORD: Final = re.compile(rb"(?:^|[|\s*])([a-z][a-z0-9_]{3,60})(?:[|\s*]|$)", re.MULTILINE)
_MODELLED: Final = (b'"instruction"', b'"trace_event', b'"traceEvents"', b'"neuron_runtime_data"')
_ENOUGH: Final = 4
_CLOCKS: Final = 1e-3


def recognise(head: Head) -> int:
    """By the names of Neuron's summary metrics, in a JSON object or in a table."""
    if any(mark in head.data for mark in _MODELLED) or b"\x00" in head.data:
        return 0
    known = {name.encode() for name in packaged_schema()["Summary"]}
    start = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    pattern = _KEY if start in (b"{", b"[") else _WORD
    met = {m.group(1) for m in pattern.finditer(head.data)} & known
    if len(met) >= _ENOUGH:
        return 85
    is_session = (
        re.match(rb"\s*s_[0-9a-f]{6,64}\s", head.data) is not None and b"message_count" in head.data
    )
    return 80 if is_session else 0


def read(source: Source, stage: Stage) -> None:
    """Read a summary into ``facts``.

    Raises:
        ProfileError: there is no figure in it.
    """
    text = _text(source)
    at = _json_start(text)
    found = _from_json(text[at:], source, stage) if at is not None else None
    origin = "summary-json"
    if found is None:
        found, origin = parse_summary_text(text), "summary-text"
    if not any(found.profiles.values()) and not found.system:
        raise ProfileError(
            f"{source.label}: no summary metric of Neuron in it; make it with neuron-explorer view --output-format summary-json"
        )
    facts = stage.facts
    facts.metrics = metric_table(found.profiles, origin, source.label, stage.audit)
    if found.memory:
        facts.metrics["memory"] = found.memory
    if found.system:
        facts.metadata["system_profiles"] = found.system
    facts.clock_kind = "device"
    facts.system = _system(facts.metrics["profiles"])
    _tell(found, source, stage)


def _text(source: Source) -> str:
    stream = source.open()
    try:
        parts: list[bytes] = []
        size = 0
        while data := stream.read(1 << 20):
            size += len(data)
            if size > MAX_BYTES:
                raise ProfileError(
                    f"{source.label}: more than {MAX_BYTES >> 20} MiB, which is no summary"
                )
            parts.append(data)
        return b"".join(parts).decode("utf-8-sig", "replace")
    finally:
        stream.close()


def _json_start(text: str) -> int | None:
    """Where JSON begins: log lines may stand before it."""
    match = re.search(r"^\s*[\[{]", text, re.MULTILINE)
    return None if match is None else match.end() - 1


def _from_json(text: str, source: Source, stage: Stage) -> SummaryText | None:
    try:
        parsed, end = json.JSONDecoder().raw_decode(text)
    except RecursionError:
        return None
    except ValueError as error:
        if '"' not in text[:200]:
            return None
        at = getattr(error, "pos", 0)
        raise ProfileError(
            f"{source.label}: no JSON at character {at} ({getattr(error, 'msg', error)}); was the file cut?"
        ) from error
    stage.audit.add(
        "trailing_data",
        "note",
        source.label,
        "text behind the summary was left out",
        count=int(bool(text[end:].strip())),
    )
    found = SummaryText()
    _collect(parsed, "", found)
    return found


def _collect(value: Any, name: str, found: SummaryText, depth: int = 0) -> None:
    """Every object with summary metrics is a profile, named by its key."""
    if depth > 3:
        return
    if isinstance(value, Mapping):
        known = packaged_schema()["Summary"]
        if any(key in known for key in value) or name.startswith("n_"):
            flat = {k: v for k, v in value.items() if isinstance(v, (int, float, str, bool))}
            found.profiles[name] = {**found.profiles.get(name, {}), **flat}
            return
        if name.startswith("s_"):
            found.system[name] = _flattened(value)
            return
        for key, inner in list(value.items())[:10_000]:
            _collect(inner, str(key), found, depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value[:10_000]):
            _collect(inner, name if len(value) == 1 else f"{name}[{number}]", found, depth + 1)


def _flattened(value: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= {f"{key}.{k}": v for k, v in inner.items() if isinstance(v, (int, float, str))}
        elif isinstance(inner, (int, float, str)):
            flat[key] = inner
    return flat


def _system(profiles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The machine, as far as the figures tell it: cycles over time are the base clock."""
    for figures in profiles.values():
        instance = str(figures.get("instance_type") or "")
        cycles, seconds = figures.get("neuroncore_cycle_count"), figures.get("total_time")
        clock = None
        if isinstance(cycles, (int, float)) and isinstance(seconds, (int, float)) and seconds > 0:
            clock = round(cycles / seconds / 1e9, 2)
        generation = generation_of(instance, clock)
        if instance or generation:
            core = {
                "name": f"NeuronCore-{generation}" if generation else "NeuronCore",
                "base_clock_ghz": clock,
            }
            return {"name": instance or generation, "core": core, "chip": {}}
    return None


def _tell(found: SummaryText, source: Source, stage: Stage) -> None:
    stage.audit.add(
        "rounded_metrics",
        "note",
        source.label,
        "figures were shown with a unit and some digits: they are no more exact than that; summary-json has all digits",
        unreliable="comparisons finer than 0.1 %",
        count=found.rounded,
    )
    stage.audit.add(
        "unreadable_values",
        "warning",
        source.label,
        "figures in an unknown form were left out",
        count=found.unread,
    )


FORMAT = Format("neuron-summary", "Neuron summary (summary-json, summary-text)", recognise, read)
