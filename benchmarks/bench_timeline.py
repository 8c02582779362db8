"""How fast is the timeline? Index, data pass, whole frames and the real application, on 5 M events and 300 tracks.

    python benchmarks/bench_timeline.py [--events 5000000] [--tracks 300] [--quick] [--app]

Peer, in the same run: the same columns by an exact polars group-by. ``--app`` also drives the application under a pty and reads its
CPU time from /proc. Budgets are those of the timeline's specification: index 0.15 µs an event, data pass 4 ms (50 rows, 120 columns).
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pexpect  # type: ignore[import-untyped]
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import EVENTS, TRACKS
from trnprof.tui.columns import busy_before, column_edges, column_pass
from trnprof.tui.frame import Options, Painter
from trnprof.tui.index import build_store
from trnprof.tui.scene import Scene, open_scene
from trnprof.tui.state import act, first_view, layout_of
from trnprof.tui.store import Store

Ids = NDArray[np.int64]
DURATION_NS = 20_000_000_000
ZOOMS = (1.0, 0.1, 0.01, 1e-4)


def make_trace(event_count: int, track_count: int) -> Trace:
    """Zipf-like tracks of heavy-tailed spans with idle gaps, over 20 s, 400 names."""
    rng = np.random.default_rng(0)
    weight = 1 / np.arange(1, track_count + 1) ** 0.7
    counts = np.maximum((event_count * weight / weight.sum()).astype(np.int64), 1)
    counts[0] += event_count - counts.sum()
    track = np.repeat(np.arange(track_count), counts)
    length = rng.pareto(1.6, event_count) * 300 + 50
    begin = np.cumsum(length + rng.pareto(1.6, event_count) * 300) - length
    first = np.concatenate([[0], np.cumsum(counts)])
    origin, last = begin[first[:-1]], (begin + length)[first[1:] - 1]
    scale = np.repeat(DURATION_NS / (last - origin), counts)
    start = ((begin - np.repeat(origin, counts)) * scale).astype(np.int64)
    end = ((begin + length - np.repeat(origin, counts)) * scale).astype(np.int64)
    inner = track[1:] == track[:-1]
    end[:-1][inner] = np.minimum(end[:-1], start[1:])[inner]
    names = pl.Series([f"op{chr(97 + i % 26)}_{i}" for i in range(400)], dtype=pl.Categorical)
    kinds = pl.Series(["compute", "dma", "sync"], dtype=pl.Categorical)
    events = pl.DataFrame(
        {
            "event_id": np.arange(event_count, dtype=np.uint64), "track_id": track.astype(np.uint32),
            "start_ns": start, "duration_ns": end - start,
            "name": names.gather(rng.integers(0, 400, event_count)),
            "category": kinds.gather(rng.integers(0, 3, event_count)),
        }
    )  # fmt: skip
    missing = [pl.lit(None).alias(c) for c in EVENTS.names if c not in events.columns]
    tracks = pl.DataFrame(
        {
            "track_id": np.arange(track_count, dtype=np.uint32), "kind": "engine", "lane": 0, "exclusive": True,
            "name": [f"track {i}" for i in range(track_count)], "sort_order": np.arange(track_count),
            "clock_id": 0, "host": "h", "replica_count": 1,
        }
    )  # fmt: skip
    tracks = tracks.with_columns(
        pl.lit(None).alias(c) for c in TRACKS.names if c not in tracks.columns
    )
    tracks = tracks.with_columns(
        pl.col("parent_id").cast(pl.UInt32), pl.col("unit").cast(pl.String)
    )
    counters = pl.LazyFrame(
        schema={"track_id": pl.UInt32, "timestamp_ns": pl.Int64, "value": pl.Float64}
    )
    small = pl.DataFrame(schema={"op_id": pl.UInt32})
    return Trace(
        path=Path("synthetic.trnprof"), manifest={}, fragments=(), events=events.lazy().with_columns(missing),
        tracks=tracks, ops=small.lazy(), groups=small, steps=small, peaks=small, flows=counters, counters=counters,
    )  # fmt: skip


def milliseconds(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """p50 and p95 of the CPU time of a call."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        times.append((time.process_time() - begin) * 1e3)
    return float(np.percentile(times, 50)), float(np.percentile(times, 95))


def polars_pass(events: pl.DataFrame, tracks: Ids, t0: int, t1: int, columns: int) -> pl.DataFrame:
    """The peer: busy ns by track and column of the spans that touch the window, split at the column edges."""
    width = (t1 - t0) / columns
    near = events.lazy().filter(
        pl.col("track_id").is_in(tracks), pl.col("start_ns") < t1, pl.col("start_ns") + pl.col("duration_ns") > t0
    )  # fmt: skip
    spans = near.select(
        "track_id",
        a=pl.max_horizontal(pl.col("start_ns") - t0, 0),
        b=pl.min_horizontal(pl.col("start_ns") + pl.col("duration_ns") - t0, t1 - t0),
    ).with_columns(
        first=(pl.col("a") / width).cast(pl.Int64), last=(pl.col("b") / width).ceil().cast(pl.Int64)
    )
    parts = spans.with_columns(
        column=pl.int_ranges("first", pl.max_horizontal("last", pl.col("first") + 1))
    )
    parts = parts.explode("column")
    share = pl.min_horizontal("b", (pl.col("column") + 1) * width) - pl.max_horizontal(
        "a", pl.col("column") * width
    )
    return parts.group_by("track_id", "column").agg(share.sum()).collect()


def windows(span: int, fraction: float, columns: int, rng: np.random.Generator) -> tuple[int, int]:
    """A random window of that part of the trace."""
    width = max(int(span * fraction), columns)
    t0 = int(rng.integers(0, max(span - width, 1)))
    return t0, t0 + width


def bench_pass(store: Store, events: pl.DataFrame, repeats: int, peer_repeats: int) -> None:
    """The data pass at several zooms, with its peer."""
    mixed = np.sort(np.random.default_rng(1).permutation(len(store.track_ids))[:50])
    print(
        f"{'rows':<12}{'columns':>8}{'zoom':>8}{'pass p50':>10}{'p95':>7}{'busy p50':>10}{'polars p50':>12}   ms of CPU"
    )
    for columns in (120, 200):
        for name, tracks in (("50 mixed", mixed), ("50 largest", np.arange(50))):
            for zoom in ZOOMS:
                ours, busy, peer = _pass_times(
                    store, events, tracks, columns, zoom, repeats, peer_repeats
                )
                print(
                    f"{name:<12}{columns:>8}{zoom:>8g}{ours[0]:>10.2f}{ours[1]:>7.2f}{busy[0]:>10.2f}{peer[0]:>12.1f}"
                )


def _pass_times(
    store: Store,
    events: pl.DataFrame,
    tracks: Ids,
    columns: int,
    zoom: float,
    repeats: int,
    peer_repeats: int,
) -> tuple[tuple[float, float], ...]:
    rng = np.random.default_rng(2)
    span = store.clocks[0].hi - store.clocks[0].lo

    def window() -> tuple[int, int]:
        return windows(span, zoom, columns, rng)

    return (
        milliseconds(lambda: column_pass(store, tracks, column_edges(*window(), columns)), repeats),
        milliseconds(lambda: busy_before(store, tracks, column_edges(*window(), columns)), repeats),
        milliseconds(lambda: polars_pass(events, tracks, *window(), columns), peer_repeats),
    )


def bench_frames(trace: Trace, repeats: int) -> None:
    """Whole frames, from action to runs; and the details of events."""
    scene = open_scene(trace)
    for width, height in ((120, 40), (200, 60)):
        for zooms in (0, 2, 4, 8):
            _frame_times(scene, width, height, zooms, repeats)
    layout = layout_of(scene, first_view(scene), 120, 40)
    painter, chosen = Painter(scene, Options()), act(scene, first_view(scene), "choose", layout)

    def step() -> None:
        nonlocal chosen
        chosen = act(scene, chosen, "next", layout)
        painter.frame(chosen, 120, 40)

    p50, p95 = milliseconds(step, repeats)
    print(f"next event with details, 120x40: {p50:.1f} / {p95:.1f} ms")


def _frame_times(scene: Scene, width: int, height: int, zooms: int, repeats: int) -> None:
    painter, view = Painter(scene, Options()), first_view(scene)
    layout = layout_of(scene, view, width, height)
    for _ in range(zooms):
        view = act(scene, view, "zoom_in_far", layout)
    turns = itertools.cycle(("zoom_in", "pan_right", "pan_left", "zoom_out"))

    def move() -> None:
        nonlocal view
        view = act(scene, view, next(turns), layout)
        painter.frame(view, width, height)

    p50, p95 = milliseconds(move, repeats)
    runs = sum(len(row) for row in painter.frame(view, width, height).rows)
    print(f"frame {width}x{height}, zoom 5^{zooms}: {p50:.1f} / {p95:.1f} ms, {runs} runs")


def bench_app(events: int, tracks: int) -> None:
    """The application under a pty: CPU time and bytes for each key."""
    env = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    env.pop("NO_COLOR", None)
    for columns, lines in ((120, 40), (200, 60)):
        command = [__file__, "--child", "--events", str(events), "--tracks", str(tracks)]
        child = pexpect.spawn(
            sys.executable, command, env=env, dimensions=(lines, columns), timeout=120
        )
        child.expect("quit")
        _settle(child)
        for label, keys in (
            ("pan whole", "wdada"),
            ("zoom sweep", "wwwwwwwwww"),
            ("pan zoomed in", "WWWdadad"),
            ("cursor", "jkjkjkjk"),
        ):
            before, sent = _cpu_ms(child.pid), 0
            for key in keys:
                child.send(key)
                sent += _settle(child)
            used = (_cpu_ms(child.pid) - before) / len(keys)
            print(
                f"app {columns}x{lines} {label:<14} {used:6.1f} ms CPU, {sent / len(keys) / 1e3:6.1f} kB a key"
            )
        child.send("q")
        child.expect(pexpect.EOF)
        child.close()


def _settle(child: Any) -> int:
    size = 0
    while True:
        try:
            size += len(child.read_nonblocking(1 << 16, 0.3))
        except pexpect.TIMEOUT:
            return size


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--tracks", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--app", action="store_true", help="also drive the application under a pty")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from trnprof.tui.app import run_app

        run_app(make_trace(options.events, options.tracks))
        return
    repeats = 10 if options.quick else 40
    trace = make_trace(options.events, options.tracks)
    events = trace.events.select("track_id", "start_ns", "duration_ns").collect()
    build_store(trace)
    p50, p95 = milliseconds(lambda: build_store(trace), 3)
    store = build_store(trace)
    per_event = 1e3 / store.event_count
    print(
        f"index: {p50 * per_event:.3f} / {p95 * per_event:.3f} µs of CPU an event, {store.nbytes / store.event_count:.1f} B an event"
    )
    bench_pass(store, events, repeats, 3)
    del store
    bench_frames(trace, repeats)
    if options.app:
        bench_app(options.events, options.tracks)


if __name__ == "__main__":
    main()
