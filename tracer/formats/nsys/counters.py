"""Which counters does an Nsight Systems profile have: sampled GPU metrics, and memory that was allocated?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from trnprof.tracer.formats.nsys.names import process_of
from trnprof.tracer.formats.nsys.state import State
from trnprof.tracer.formats.table_columns import per_group
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, read_small
from trnprof.tracer.ingest.stage import Timeline

_UNIT: Final = re.compile(r"\s*\[([^\]]*)\]\s*$")
_HERTZ_FROM: Final = 1e6
"""A clock of so much is in Hz whatever its name says; no GPU's clock is a million MHz."""


@dataclass(frozen=True)
class _Metric:
    """``name`` without its unit, our ``unit``, and the ``scale`` that brings values to it."""

    name: str
    unit: str
    scale: float


def read_counters(state: State, pw_gpu: dict[int, int]) -> None:
    """Stage all counters.

    Args:
        state: the profile.
        pw_gpu: number of a GPU in the metrics' library → on its host.
    """
    _read_gpu_metrics(state, pw_gpu)
    _read_memory(state)


def metric(name: str) -> _Metric:
    """Unit and scale of a metric, from its name: percentages become fractions, MHz become Hz.

    >>> metric("SMs Active [Throughput %]")
    _Metric(name='SMs Active', unit='fraction', scale=0.01)
    >>> metric("GPC Clock Frequency [MHz]").unit
    'Hz'
    """
    found = _UNIT.search(name)
    unit = found[1] if found else ""
    plain = _UNIT.sub("", name)
    if "%" in unit:
        return _Metric(plain, "fraction", 0.01)
    if "MHz" in unit or "Clock Frequency" in plain:
        return _Metric(plain, "Hz", 1e6)
    if unit in ("B", "Bytes"):
        return _Metric(plain, "B", 1.0)
    return _Metric(name.strip(), "1", 1.0)


def _read_gpu_metrics(state: State, pw_gpu: dict[int, int]) -> None:
    rows = read_small(
        state.tables, "TARGET_INFO_GPU_METRICS", ints=["typeId", "metricId"], texts=["metricName"]
    )
    has_type = rows.has("typeId").any()
    types = rows.list("typeId") if has_type else [None] * rows.count
    keys = zip(types, rows.list("metricId"), strict=True)
    names = dict(zip(keys, rows.list("metricName"), strict=True))
    has_any_names = bool(names)
    ints = ["timestamp", "start", "typeId", "metricId"]
    unnamed = 0
    for block in state.tables.scan("GPU_METRICS", ints=ints, reals=["value"]):
        values = block.reals("value")
        time = np.where(block.has("timestamp"), block.ints("timestamp"), block.ints("start"))
        known = np.isfinite(values) & (block.has("timestamp") | block.has("start"))
        kinds, ids = block.ints("typeId"), block.ints("metricId")
        groups, at = distinct([kinds, ids])
        timelines, scales = [], np.ones(len(at))
        tops = np.zeros(len(at))
        np.maximum.at(tops, groups[known], np.abs(values[known]))
        for i, row in enumerate(at.tolist()):
            kind, number = int(kinds[row]), int(ids[row])
            name = names.get((kind if has_type else None, number))
            if name is None:
                unnamed += 1
            told = metric(name or f"metric {number}")
            scales[i] = 1.0 if told.unit == "Hz" and tops[i] >= _HERTZ_FROM else told.scale
            timelines.append(_counter(state, pw_gpu.get(kind & 0xFF, kind & 0xFF), told))
        _put(state, per_group(groups, timelines), time, values * scales[groups], known)
    state.stage.audit.add(
        "unnamed_metrics",
        "warning",
        state.where("TARGET_INFO_GPU_METRICS"),
        "metrics have no name here"
        + ("" if has_any_names else " because the table is missing")
        + "; they are called by number, in units nobody knows",
        unreliable="GPU metrics",
        count=unnamed,
    )


def _counter(state: State, gpu: int, told: _Metric) -> int:
    return state.stage.timeline(
        ("metric", gpu, told.name),
        Timeline(
            "counter",
            told.name,
            parent=state.chip(gpu),
            chip=gpu,
            unit=told.unit,
            sort_order=1 << 20,
        ),
    )


def _put(
    state: State,
    timelines: Ints,
    time: Ints,
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
    known: Bools,
) -> None:
    state.stage.add_counters(
        timeline=timelines[known], timestamp_ns=time[known], value=values[known]
    )


def _read_memory(state: State) -> None:
    """Bytes that programs have allocated on each GPU, as CUDA's allocation events add up."""
    table = "CUDA_GPU_MEMORY_USAGE_EVENTS"
    ints = ["start", "globalPid", "deviceId", "bytes", "memoryOperationType", "memKind"]
    parts: list[tuple[Ints, Ints, Ints, Ints]] = []
    for block in state.tables.scan(table, ints=ints):
        sign = np.where(block.ints("memoryOperationType") == 0, 1, -1)
        on_device = np.isin(block.ints("memKind", 2), (2, 3, 4, 5, 6))
        columns = (process_of(block.ints("globalPid")), block.ints("deviceId"), block.ints("start"))
        process, device, start = (c[on_device] for c in columns)
        parts.append((process, device, start, (sign * block.ints("bytes"))[on_device]))
    if not parts:
        return
    process, device, start, change = (np.concatenate(p) for p in zip(*parts, strict=True))
    groups, at = distinct([process, device])
    gpus = per_group(groups, [state.gpu(int(process[i]), int(device[i])) for i in at])
    for gpu in np.unique(gpus).tolist():
        rows = np.flatnonzero(gpus == gpu)
        rows = rows[np.argsort(start[rows], kind="stable")]
        number = _counter(state, gpu, _Metric("allocated memory", "B", 1.0))
        state.stage.add_counters(
            timeline=number, timestamp_ns=start[rows], value=np.cumsum(change[rows]).astype(float)
        )
