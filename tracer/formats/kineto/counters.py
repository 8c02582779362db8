"""Which counters does a PyTorch profile have: memory of allocators, and those it names itself?"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.kineto.kinds import is_device
from trnprof.tracer.formats.kineto.places import Places
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.stage import Stage, Timeline

_MEMORY: Final = {"args.Total Allocated": "allocated", "args.Total Reserved": "reserved"}
_DEVICE_TYPES: Final = {
    "0": "CPU",
    "1": "GPU",
    "6": "GPU",
    "12": "XPU",
    "13": "MPS",
    "15": "HPU",
    "19": "MTIA",
    "20": "device",
}
"""PyTorch's numbers of kinds of device (c10::DeviceType)."""
_MOST_SERIES: Final = 64
"""Series of one counter; what lies beyond is left out, with a finding."""


@dataclass
class Counters:
    """Counters met so far."""

    stage: Stage
    places: Places
    _owners: dict[int, tuple[str, str]] = field(default_factory=dict)

    def add_memory(self, block: EventBlock) -> None:
        """The totals that allocations carry, for each device."""
        device, known = block.keys("args.Device Type", "args.Device Id")
        start, _, has_ts, _ = block.times_ns()
        for name, what in _MEMORY.items():
            values, valid = block.integers(name)
            for code in np.flatnonzero(np.bincount(device)).tolist():
                rows = (device == code) & valid & has_ts & (values >= 0)
                if not rows.any():
                    continue
                kind, number = (str(part) if part is not None else "" for part in known[code])
                at = ("memory", kind, number, what)
                title = f"memory {what}"
                timeline = self.stage.timeline(at, Timeline("counter", title, unit="B"))
                self._owners[timeline] = (_DEVICE_TYPES.get(kind, f"device type {kind}"), number)
                self.stage.add_counters(
                    timeline=timeline, timestamp_ns=start[rows], value=values[rows]
                )

    def add(self, block: EventBlock) -> None:
        """Counter events: each number among their arguments is a series."""
        code, known = block.keys("name", "pid")
        start, _, has_ts, _ = block.times_ns()
        arguments = pl.Series(pa.array(block.raw("args")))
        for number in np.flatnonzero(np.bincount(code)).tolist():
            rows = np.flatnonzero((code == number) & has_ts)
            if not len(rows):
                continue
            name, process = (str(part) if part is not None else "" for part in known[number])
            texts = arguments.gather(rows)
            for series, values in _series(texts):
                is_there = np.isfinite(values)
                title = f"{name} {series}".strip()
                timeline = self.stage.timeline(
                    ("counter", name, process, series), Timeline("counter", title, unit="1")
                )
                self._owners[timeline] = ("", process)
                self.stage.add_counters(
                    timeline=timeline, timestamp_ns=start[rows][is_there], value=values[is_there]
                )

    def finish(self) -> None:
        """Put each counter under its device, where it has one."""
        chips = {self.places.device_of(process): n for process, n in self.places.chips.items()}
        for timeline, (kind, number) in self._owners.items():
            known = self.stage.timelines[timeline]
            if kind:
                device = int(number) if number.isdecimal() and len(number) < 9 else None
                chip = chips.get(device) if kind != "CPU" else None
                name = f"{kind}{f' {device}' if device is not None else ''} {known.name}"
            else:
                chip = self.places.chips.get(number)
                process = number if is_device(number) else ""
                device, name = None, f"{process} {known.name}".strip()
            self.stage.timelines[timeline] = Timeline(
                "counter",
                name,
                chip,
                sort_order=1 << 20,
                chip=None if chip is None else self.stage.timelines[chip].chip,
                unit=known.unit,
            )


def _series(texts: pl.Series) -> list[tuple[str, Any]]:
    """Name and values (NaN: none) of each number in arguments like those of the first."""
    for text in (t for t in texts.head(1) if t):
        try:
            first = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(first, dict):
            names = [k for k, v in first.items() if isinstance(v, int | float | str | None)]
            found = [(name, _numbers(texts, name)) for name in names[:_MOST_SERIES]]
            return [(name, values) for name, values in found if np.isfinite(values).any()]
    return []


def _numbers(texts: pl.Series, name: str) -> Any:
    key = "".join(f"\\x{{{ord(c):x}}}" for c in json.dumps(name, ensure_ascii=False))
    pattern = key + r'\s*:\s*"?(-?[0-9][0-9.eE+-]*)'
    return texts.str.extract(pattern).cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
