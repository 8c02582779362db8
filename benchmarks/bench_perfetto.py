"""How fast are slices written for Perfetto, and how large are they, against perfetto's own TraceProtoBuilder?

    python benchmarks/bench_perfetto.py [SLICES]

Both write the same slices on 64 tracks under 200 names, in one process. The exporter reads them from a sealed trace on disk, checks
and interns as always; the builder gets plain numbers and is timed on a tenth of them (its cost grows in proportion).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from trnprof.tracer.formats.perfetto_export.export import export
from trnprof.tracer.reader import open_trace
from trnprof.tracer.writer import Clock, TraceWriter

TRACKS, NAMES, REPEATS = 64, 200, 3
ARGUMENTS = ("step", "bytes", "flops", "dtype")


def write_trace(path: Path, count: int, *, with_arguments: bool) -> None:
    tracks = np.arange(TRACKS + 1)
    with TraceWriter(path, writer="bench", clocks=[Clock(0, "device")]) as writer:
        writer.add_tracks(
            {
                "track_id": tracks,
                "parent_id": [None] + [0] * TRACKS,
                "kind": ["core"] + ["engine"] * TRACKS,
                "name": ["core"] + [f"engine {i}" for i in range(TRACKS)],
                "sort_order": tracks,
                "lane": tracks * 0,
                "exclusive": [True] * (TRACKS + 1),
                "clock_id": tracks * 0,
                "host": ["host0"] * (TRACKS + 1),
                "replica_count": tracks * 0 + 1,
            }
        )
        for first in range(0, count, 100_000):
            i = np.arange(first, min(first + 100_000, count))
            columns: dict[str, Any] = {
                "track_id": (1 + i % TRACKS).astype(np.uint32),
                "start_ns": i * 1000,
                "duration_ns": 900 + i % 100,
                "name": [f"operation_{n}" for n in (i * 7 % NAMES).tolist()],
                "category": ["compute"] * len(i),
            }
            if with_arguments:
                columns |= {"step": (i // 1000).astype(np.int32), "bytes": i % 65536}
                columns |= {"flops": i * 1.5, "dtype": ["bf16"] * len(i)}
            writer.append_events(columns)


def ours(trace_path: Path, out: Path) -> tuple[float, int]:
    """Seconds (best) and bytes of an export."""
    trace, best = open_trace(trace_path), float("inf")
    for _ in range(REPEATS):
        begin = time.perf_counter()
        summary = export(trace, out, flows="none", force=True)
        best = min(best, time.perf_counter() - begin)
    return best, summary.size_bytes


def builder(count: int, out: Path, *, with_arguments: bool) -> tuple[float, int]:
    """Seconds and bytes of the same slices through TraceProtoBuilder, names not interned."""
    begin = time.perf_counter()
    trace = TraceProtoBuilder()
    for i in range(count):
        for is_end in (False, True):
            packet = trace.add_packet()
            packet.timestamp = i * 1000 + (900 + i % 100) * is_end
            packet.trusted_packet_sequence_id = 1
            event = packet.track_event
            event.track_uuid = 1 + i % TRACKS
            event.type = pb.TrackEvent.TYPE_SLICE_END if is_end else pb.TrackEvent.TYPE_SLICE_BEGIN
            if is_end:
                continue
            event.name = f"operation_{i * 7 % NAMES}"
            event.categories.append("compute")
            if with_arguments:
                fields = ("int_value", "int_value", "double_value", "string_value")
                values = (i // 1000, i % 65536, i * 1.5, "bf16")
                for name, field, value in zip(ARGUMENTS, fields, values, strict=True):
                    annotation = event.debug_annotations.add()
                    annotation.name = name
                    setattr(annotation, field, value)
    out.write_bytes(trace.serialize())
    return time.perf_counter() - begin, out.stat().st_size


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write_trace(root / "warm.trnprof", 100, with_arguments=True)
        ours(root / "warm.trnprof", root / "warm.pftrace")
        print(f"{count:,} slices      trnprof              TraceProtoBuilder      ratio")
        for label, with_arguments in (("no arguments", False), ("4 arguments", True)):
            source = root / f"{label}.trnprof"
            write_trace(source, count, with_arguments=with_arguments)
            seconds, size = ours(source, root / "ours.pftrace")
            few = max(1, count // 10)
            their_seconds, their_size = builder(few, root / "b", with_arguments=with_arguments)
            rate, their_rate = count / seconds, few / their_seconds
            print(
                f"{label:14} {rate:12,.0f}/s {size / count:5.1f} B {their_rate:12,.0f}/s"
                f" {their_size / few:5.1f} B {rate / their_rate:8.1f}x"
            )


if __name__ == "__main__":
    main()
