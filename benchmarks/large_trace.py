"""A trace of any size that looks like training: for bench_report.py, and to try what a large trace does.

    python benchmarks/large_trace.py EVENTS PATH [--ranks 8] [--events-per-step 20000]

Every rank runs five engines, eight DMA queues and a collective stream; a step is forward, backward and optimizer of a 24-layer
transformer, its events heavy-tailed, each with an operation, bytes or FLOPs, and the event that it waited for. Steps differ by a
few percent, every 50th by more. Nothing of it is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.writer import Clock, TraceWriter

LAYERS: Final = 24
PARTS: Final = (
    "attn.qkv",
    "attn.scores",
    "attn.out",
    "norm",
    "mlp.up",
    "mlp.act",
    "mlp.down",
    "residual",
)
REASONS: Final = ("data", "buffer", "queue", "semaphore", "peer")
# name, kind, category, share of the events, mean duration in ns, the reasons of its gaps
LANES: Final = (
    ("Tensor", "engine", "compute", 0.20, 620, (0, 3)),
    ("Vector", "engine", "compute", 0.22, 700, (0, 3)),
    ("Scalar", "engine", "compute", 0.06, 740, (0, 1)),
    ("GpSimd", "engine", "sync", 0.10, 620, (0, 1)),
    ("Sync", "engine", "sync", 0.12, 600, (1, 1)),
    *((f"DMA q{i}", "dma_queue", "dma", 0.036, 560, (2, 2)) for i in range(8)),
    ("Collectives", "collective_stream", "collective", 0.004, 60_000, (4, 4)),
)  # fmt: skip
SHARD_ROWS: Final = 4_000_000
Columns = dict[str, NDArray[Any]]


def write_large_trace(
    path: Path, events: int, ranks: int = 8, events_per_step: int = 20_000, flows: bool = True
) -> int:
    """Write it; the number of events, at least those asked for, whole steps."""
    parts = [_rank_step(rank, events_per_step) for rank in range(ranks)]
    step = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    offset = np.repeat(np.cumsum([0, *(len(p["start_ns"]) for p in parts[:-1])]), [len(p["start_ns"]) for p in parts])  # fmt: skip
    step["blocker"] = np.where(step["blocker"] < 0, -1, step["blocker"] + offset)
    order = np.lexsort((step["start_ns"], step["track_id"]))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    step = {name: values[order] for name, values in step.items()}
    step["blocker"] = np.where(step["blocker"] < 0, -1, place[step["blocker"]])
    step["before"] = np.where(np.diff(step["track_id"], prepend=-1) == 0, np.arange(len(order)) - 1, -1)  # fmt: skip
    size = len(order)
    steps = max(2, -(-events // size))
    with TraceWriter(path, writer="emulator", number=0, clocks=[Clock(0, "device")]) as writer:
        writer.add_tracks(_tracks(ranks))
        writer.add_ops(_ops(ranks))
        writer.add_groups({"group_id": [0], "ranks": [list(range(ranks))], "name": ["data parallel"]})  # fmt: skip
        bounds = [0]
        for parts_of_shard, shard_flows in _shards(step, steps, bounds):
            ids = writer.write_shard(parts_of_shard)
            if flows:
                source, target = shard_flows
                writer.append_flows(
                    {
                        "source_event": ids[source],
                        "target_event": ids[target],
                        "kind": pa.DictionaryArray.from_arrays(np.zeros(len(source), np.int8), ["data"]),
                        "lag_ns": np.zeros(len(source), np.int64),
                    }
                )  # fmt: skip
        rows = steps * ranks
        writer.add_steps(
            {
                "step": np.repeat(np.arange(steps, dtype=np.int32), ranks),
                "rank": np.tile(np.arange(ranks, dtype=np.int32), steps),
                "clock_id": np.zeros(rows, np.int32),
                "start_ns": np.repeat(bounds[:-1], ranks),
                "end_ns": np.repeat(bounds[1:], ranks),
                "label": np.repeat([f"step {i}" for i in range(steps)], ranks).tolist(),
                "source": ["optimizer"] * rows,
            }
        )
        dtypes = {"bfloat16": 78.64e12, "float32": 19.66e12}
        writer.set_peaks(
            {
                "track_kind": ["engine"] * 2,
                "track_name": ["Tensor"] * 2,
                "dtype": list(dtypes),
                "sparsity": ["dense"] * 2,
                "flops_per_s": list(dtypes.values()),
            }
        )
    write_manifest(path, is_simulation=True)
    return steps * size


def _rank_step(rank: int, events: int) -> Columns:
    """One step of a rank, from 0: columns of events, ``blocker`` the row that each waited for (-1: none)."""
    rng = np.random.default_rng(rank)
    lanes = []
    tensor = LANES[0]
    length = int(events * tensor[3] * tensor[4] / 0.55)  # the Tensor engine is busy for 55 %
    for index, (_, _, category, share, mean, reasons) in enumerate(LANES):
        count = max(1, round(events * share))
        duration = (rng.pareto(2.2, count) + 0.3) * mean * 0.8
        duration *= min(1.0, 0.9 * length / duration.sum())
        gap = rng.pareto(1.5, count) * (rng.random(count) < 0.5)
        gap *= (length * 0.98 - duration.sum()) / max(gap.sum(), 1e-9)
        start = np.cumsum(duration + gap) - duration
        has_gap = gap >= 1
        reason = np.where(rng.random(count) < 0.7, *reasons)
        moves, matmul = category in ("dma", "collective"), index == 0
        lanes.append(
            {
                "track_id": np.full(count, _first_track(rank) + 1 + index, np.uint32),
                "start_ns": start,
                "duration_ns": np.maximum(duration, 20),
                "name": index * 4 + rng.integers(0, 4 if index < 5 else 1, count),
                "category": np.full(count, ("compute", "dma", "collective", "sync").index(category)),
                "is_transpose": matmul & (rng.random(count) < 0.1),
                "flops": np.where(matmul, duration * 40_000, np.nan),
                "bytes": np.where(moves, duration * 150, -1).astype(np.int64),
                "is_load": rng.random(count) < 0.6,
                "wait": np.where(has_gap, reason, -1),
            }
        )  # fmt: skip
    found = {name: np.concatenate([lane[name] for lane in lanes]) for name in lanes[0]}
    own = rank * (LAYERS * len(PARTS) * 2 + 1)
    at = np.minimum(found["start_ns"] / length, 0.9999)
    found["op_id"] = (own + at * (LAYERS * len(PARTS) * 2 + 1)).astype(np.uint32)
    ends = found["start_ns"] + found["duration_ns"]
    by_end = np.argsort(ends, kind="stable")
    before = np.searchsorted(ends[by_end], found["start_ns"], side="right") - 1
    found["blocker"] = np.where(before < 0, -1, by_end[before])
    found["length"] = np.full(len(ends), length)
    return found


def _shards(
    step: Columns, steps: int, bounds: list[int]
) -> Iterator[tuple[list[dict[str, Any]], tuple[NDArray[np.int64], NDArray[np.int64]]]]:
    """The rows of each shard, step by step, with its flows as rows of it; the bounds of steps are appended to ``bounds``."""
    rng = np.random.default_rng(99)
    size = len(step["start_ns"])
    each = max(1, SHARD_ROWS // size)
    fixed = _fixed_columns(step)
    kinds = [np.flatnonzero(step[name] >= 0) for name in ("blocker", "before")]
    kinds[1] = kinds[1][::8]  # of what only had to come first, some
    target = np.concatenate(kinds)
    source = np.concatenate([step["blocker"][kinds[0]], step["before"][kinds[1]]])
    first_shard = 0
    for shard, first in enumerate(range(0, steps, each)):
        numbers = range(first, min(first + each, steps))
        parts = []
        for number in numbers:
            scale = rng.normal(1, 0.02) * (1.3 if number % 50 == 17 else 1.0)
            start = (step["start_ns"] * scale).astype(np.int64)
            end = np.maximum(((step["start_ns"] + step["duration_ns"]) * scale).astype(np.int64), start + 1)  # fmt: skip
            row = ((shard << 40) + (number - first) * size) + step["blocker"]
            parts.append(
                {
                    **fixed,
                    "start_ns": start + bounds[-1],
                    "duration_ns": _without_overlap(step["track_id"], start, end) - start,
                    "step": np.full(size, number, np.int32),
                    "ready_ns": start + bounds[-1],
                    "blocked_by": pa.array(row.astype(np.uint64), mask=step["blocker"] < 0),
                }
            )
            bounds.append(bounds[-1] + int(step["length"].max() * scale) + 1)
        shift = np.repeat(np.arange(len(numbers)) * size, len(target))
        yield parts, (np.tile(source, len(numbers)) + shift, np.tile(target, len(numbers)) + shift)
        first_shard += len(numbers)


def _without_overlap(track: NDArray[Any], start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Ends, none beyond the next start of its lane: what rounding made of them."""
    inner = track[1:] == track[:-1]
    end[:-1][inner] = np.minimum(end[:-1], start[1:])[inner]
    return end


def _fixed_columns(step: Columns) -> dict[str, Any]:
    """What no step changes."""
    names = [f"{lane[0].split()[0].lower()}_{i}" for lane in LANES for i in range(4)]
    memories = ["hbm", "sbuf"]
    moves = step["bytes"] >= 0
    load = step["is_load"].astype(np.int8)

    def coded(codes: NDArray[Any], known: list[str], mask: NDArray[np.bool_] | None) -> Any:
        width = np.int32 if len(known) > 100 or known is names else np.int8
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(width), mask=mask), known)

    return {
        "track_id": step["track_id"],
        "name": coded(step["name"], names, None),
        "category": coded(step["category"], ["compute", "dma", "collective", "sync"], None),
        "op_id": step["op_id"],
        "dtype": coded(np.zeros(len(moves)), ["bfloat16"], np.isnan(step["flops"])),
        "is_transpose": pa.array(step["is_transpose"]),
        "flops": pa.array(step["flops"], mask=np.isnan(step["flops"])),
        "bytes": pa.array(step["bytes"], mask=~moves),
        "source_memory": coded(1 - load, memories, ~moves),
        "target_memory": coded(load, memories, ~moves),
        "descriptor_bytes": pa.array(np.full(len(moves), 2048, np.int32), mask=~moves),
        "wait_reason": coded(step["wait"], list(REASONS), step["wait"] < 0),
    }


def _first_track(rank: int) -> int:
    return 2 + rank * (1 + len(LANES))


def _tracks(ranks: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"track_id": 0, "kind": "host", "name": "host0", "rank": None},
        {"track_id": 1, "parent_id": 0, "kind": "chip", "name": "chip 0", "chip": 0},
    ]
    for rank in range(ranks):
        core = _first_track(rank)
        place = {"rank": rank, "chip": 0, "core": rank}
        rows.append({"track_id": core, "parent_id": 1, "kind": "core", "name": f"core {rank}", "peak_flops": 78.64e12, "peak_bytes_per_s": 362.5e9, **place})  # fmt: skip
        for index, (name, kind, *_) in enumerate(LANES):
            peaks = {"peak_flops": 78.64e12} if index == 0 else {}
            if kind == "dma_queue":
                peaks = {"peak_bytes_per_s": 217.6e9}
            rows.append({"track_id": core + 1 + index, "parent_id": core, "kind": kind, "name": name, "sort_order": index, **place, **peaks})  # fmt: skip
    defaults = {"sort_order": 0, "lane": 0, "exclusive": True, "clock_id": 0, "host": "host0", "replica_count": 1}  # fmt: skip
    optional = ("parent_id", "rank", "chip", "core", "peak_flops", "peak_bytes_per_s")
    names = ("track_id", "kind", "name", *defaults, *optional)
    return {n: [row.get(n, defaults.get(n)) for row in rows] for n in names}


def _ops(ranks: int) -> dict[str, Any]:
    """Forward, backward and optimizer of every rank, in order of time."""
    names, paths, phases, flops = [], [], [], []
    for _ in range(ranks):
        for phase in ("forward", "backward"):
            for layer in range(LAYERS):
                for part in PARTS:
                    names.append("aten::mm" if part[0] in "am" else "aten::add")
                    paths.append(f"layers.{layer}.{part}")
                    phases.append(phase)
                    flops.append(2e7 if part[0] in "am" else 0.0)
        names.append("_fused_adamw_")
        paths.append("")
        phases.append("optimizer")
        flops.append(0.0)
    count = len(names)
    return {
        "op_id": np.arange(count, dtype=np.uint32),
        "kind": ["aten"] * count,
        "name": names,
        "module_path": paths,
        "phase": phases,
        "model_flops": flops,
        "source_file": ["train.py"] * count,
        "source_line": np.full(count, 42, np.int32),
    }


def main() -> None:
    """Write one and tell its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("events", type=int)
    parser.add_argument("path", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--events-per-step", type=int, default=20_000)
    parser.add_argument("--no-flows", action="store_true")
    asked = parser.parse_args()
    begin = time.perf_counter()
    count = write_large_trace(asked.path, asked.events, asked.ranks, asked.events_per_step, not asked.no_flows)  # fmt: skip
    size = sum(f.stat().st_size for f in asked.path.rglob("*") if f.is_file())
    print(f"{count:,} events, {size / 1e9:.2f} GB, {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
