"""How does the report grow with the trace? The first screen, a step's critical path and a what-if of 1 M, 10 M and 100 M events.

    python benchmarks/bench_report.py [--events 1000000 10000000 100000000] [--keep DIR]

Traces are those of large_trace.py (12 GB for 100 M events, 16 with their edges, removed afterwards). Each command runs in a process of its own, its peak of anonymous
memory read from /proc while it runs (mapped files are not counted: the kernel takes their pages back). The floor, in the same run: a plain
polars scan and group-by by track of the columns that the report reads. Asserted: every first screen under 4 GB, and that it grows as the trace does: a
further event takes at most GROWTH times as much CPU between the largest traces as between the smallest (processes start in the same time
whatever they read, so that a ratio of totals would flatter the large ones).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from large_trace import write_large_trace

GROWTH = 1.5
MOST_BYTES = 4e9
FLOOR = """
import sys
import polars as pl
from trnprof.tracer.reader import open_trace
columns = ("start_ns", "duration_ns", "op_id", "step", "flops", "bytes", "category", "wait_reason")
sums = [pl.col(c).sum() for c in columns[:6]] + [pl.col(c).n_unique() for c in columns[6:]]
open_trace(sys.argv[1]).events.group_by("track_id").agg(sums).collect(engine="streaming")
"""


def measured(*command: str) -> tuple[float, float, float]:
    """Seconds, seconds of CPU and the peak of anonymous memory in bytes of a process."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    peak = 0
    while True:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, *(int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith("RssAnon")), 0)  # fmt: skip
        except OSError:
            pass
        ended, status_code, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            if status_code:
                raise SystemExit(f"{' '.join(command[:4])} failed")
            return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, float(peak)
        time.sleep(0.02)


def main() -> None:
    """Measure and print the table of docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, nargs="+", default=[10**6, 10**7, 10**8])
    parser.add_argument("--keep", type=Path, help="write the traces here, and leave them")
    asked = parser.parse_args()
    print("| events | first screen | CPU a further event | floor | in floors | memory | critical path | what-if |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    before: tuple[int, float] | None = None
    further = []
    for count in asked.events:
        with tempfile.TemporaryDirectory() as folder:
            path = (asked.keep or Path(folder)) / f"{count}.trnprof"
            if not path.exists():
                write_large_trace(path, count)
            floor = measured("-c", FLOOR, str(path))
            report = measured("-m", "trnprof", "report", str(path))
            route = measured("-m", "trnprof", "report", str(path), "--section", "critical-path")
            change = measured("-m", "trnprof", "whatif", str(path), "--scale", "engine=Vector:0.5")
        if before is not None:
            further.append((report[1] - before[1]) / (count - before[0]))
        before = (count, report[1])
        figures = [f"{s:.1f} s, {b / 1e9:.2f} GB" for s, _, b in (route, change)]
        each = f"{further[-1] * 1e6:.2f} µs" if further else ""
        print(
            f"| {count / 1e6:g} M | {report[0]:.1f} s ({report[1]:.1f} s of CPU) | {each} | {floor[0]:.2f} s | "
            f"{report[0] / floor[0]:.1f}x | {report[2] / 1e9:.2f} GB | {figures[0]} | {figures[1]} |",
            flush=True,
        )
        assert report[2] < MOST_BYTES, f"{count} events: {report[2] / 1e9:.1f} GB"
    assert not further or further[-1] < GROWTH * further[0], f"not linear: {further}"


if __name__ == "__main__":
    main()
