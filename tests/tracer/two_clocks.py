"""One trace of two writers that both have steps of rank 0: a real host recording and what an emulator would write."""

from __future__ import annotations

from pathlib import Path

from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.recorder import HostRecorder, span, step
from trnprof.tracer.writer import Clock, TraceWriter

DEVICE_STEPS = ((0, 100), (100, 300))
"""Start and end of the device's steps; Tensor is busy for 40 ns from the start of each."""

HOST_LABELS = ("host a", "host b", "host c")


def record_two_clocks(path: Path, host_first: bool = True) -> Path:
    """Write the trace; the writer that comes first keeps clock id 0."""
    path.mkdir()
    for write in (_host, _device) if host_first else (_device, _host):
        write(path)
    write_manifest(path, is_simulation=True)
    return path


def _host(path: Path) -> None:
    with HostRecorder(path):
        for label in HOST_LABELS:
            with step(label), span("work"):
                pass


def _device(path: Path) -> None:
    kinds = ("host", "chip", "core", "engine")
    count = len(DEVICE_STEPS)
    with TraceWriter(path, writer="emulator", clocks=[Clock(0, "device")]) as writer:
        writer.add_tracks(
            {
                "track_id": range(4),
                "parent_id": [None, 0, 1, 2],
                "kind": kinds,
                "name": ["host0", "chip 0", "core 0", "Tensor"],
                "sort_order": [0] * 4,
                "lane": [0] * 4,
                "exclusive": [kind == "engine" for kind in kinds],
                "clock_id": [0] * 4,
                "host": ["host0"] * 4,
                "rank": [None, None, 0, 0],
                "replica_count": [1] * 4,
            }
        )
        writer.append_events(
            {
                "track_id": [3] * count,
                "start_ns": [start for start, _ in DEVICE_STEPS],
                "duration_ns": [40] * count,
                "name": ["matmul"] * count,
                "category": ["compute"] * count,
                "step": range(count),
            }
        )
        writer.add_steps(
            {
                "step": range(count),
                "rank": [0] * count,
                "clock_id": [0] * count,
                "start_ns": [start for start, _ in DEVICE_STEPS],
                "end_ns": [end for _, end in DEVICE_STEPS],
                "label": [f"device {n}" for n in range(count)],
                "source": ["optimizer"] * count,
            }
        )
