"""How fast and in how much memory does a profile become figures, and a trace that opens at once? Beside Holistic Trace Analysis.

    bench_import.py [--hta-python PATH] [--events N] [--ranks N] [--big-gb GB]

Synthetic Kineto JSON (``import_data.py``), from the file to busy, idle, compute, communication and overlap of each rank, on one core:
``trnprof`` (import, write, open, break down) and HTA 0.5.0 (load, temporal breakdown, communication overlap), each in a process of
its own, with its peak memory as the kernel counts it (VmHWM). PATH is the Python of an environment with HolisticTraceAnalysis;
without one the peer is left out, and that is said. Then 64 ranks on all cores, and a file of ``--big-gb``. Floors are asserted as
ratios: 8 times as fast, a fifth of the memory, reopened 100 times as fast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from import_data import write_profile

FASTER, LEANER, REOPENED = 8.0, 5.0, 100.0
BIG_FILE_RSS = 1e9

OURS = """
import json, sys, time
from pathlib import Path
from trnprof.analysis.ranks import rank_breakdown
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.reader import open_trace

def main():
    source, target, jobs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    start = time.perf_counter()
    summary = import_profiles([source], target, jobs=jobs, force=True)
    imported = time.perf_counter()
    import_peak_bytes = peak_bytes()
    found = rank_breakdown(open_trace(target))
    done = time.perf_counter()
    open_trace(target)
    opened = time.perf_counter()
    rank_breakdown(open_trace(target))
    again = time.perf_counter()
    size = sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
    print(json.dumps({
        "events": summary.events,
        "findings": [f.kind for f in summary.findings],
        "import_s": imported - start,
        "total_s": done - start,
        "reopen_s": opened - done,
        "reopen_breakdown_s": again - opened,
        "trace_bytes": size,
        "ranks": found.whole.to_dicts(),
        "import_peak_bytes": import_peak_bytes,
        "peak_bytes": peak_bytes(),
    }))

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

if __name__ == "__main__":
    main()
"""

HTA = """
import json, logging, sys, time
from pathlib import Path
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

if __name__ == "__main__":
    path = Path(sys.argv[1])
    start = time.perf_counter()
    trace = TraceAnalysis(
        trace_files={0: str(path)}, trace_dir=str(path.parent), include_last_profiler_step=True
    )
    loaded = time.perf_counter()
    breakdown = trace.get_temporal_breakdown(visualize=False).to_dict("records")
    overlap = trace.get_comm_comp_overlap(visualize=False).to_dict("records")
    done = time.perf_counter()
    print(json.dumps({
        "load_s": loaded - start,
        "total_s": done - start,
        "breakdown": breakdown,
        "overlap": overlap,
        "peak_bytes": peak_bytes(),
    }))
"""


def run(python: str, script: Path, *args: object, cores: set[int] | None = None) -> dict[str, Any]:
    """Run a script in a process of its own and read the JSON in its last line."""
    environment = dict(os.environ)
    if cores is not None:
        one = str(len(cores))
        threads = (
            "POLARS_MAX_THREADS",
            "OMP_NUM_THREADS",
            "NUMBA_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
        )
        environment |= dict.fromkeys(threads, one)
    command = [python, str(script), *map(str, args)]
    if cores is not None:
        command = ["taskset", "-c", ",".join(map(str, sorted(cores))), *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(events: int, hta_python: str | None, work: Path, scripts: dict[str, Path]) -> None:
    path = work / "one" / "rank0.pt.trace.json"
    path.parent.mkdir()
    count = write_profile(path, events=events)
    size = path.stat().st_size
    core = {min(os.sched_getaffinity(0))}
    warm = work / "warm" / "rank0.json"
    warm.parent.mkdir()
    write_profile(warm, events=2000)
    run(sys.executable, scripts["ours"], warm, work / "warm.trnprof", 1)
    ours = run(sys.executable, scripts["ours"], path, work / "one.trnprof", 1, cores=core)
    print(f"one rank, {count:,} events, {size / 1e6:.0f} MB of JSON, one core")
    print(
        f"  trnprof  {ours['total_s']:8.2f} s  {count / ours['total_s'] / 1e3:8.0f} k events/s  peak {ours['peak_bytes'] / 1e6:6.0f} MB"
        f"  ({ours['peak_bytes'] / count:.0f} B an event); import alone {ours['import_s']:.2f} s, {size / ours['import_s'] / 1e6:.0f} MB/s"
    )
    print(
        f"           trace {ours['trace_bytes'] / 1e6:.0f} MB, opens in {ours['reopen_s'] * 1e3:.1f} ms, breakdown again {ours['reopen_breakdown_s']:.2f} s; findings {ours['findings']}"
    )
    if hta_python is None:
        print("  HTA      absent: give --hta-python PATH to compare (nothing is asserted)")
        return
    theirs = run(hta_python, scripts["hta"], path, cores=core)
    print(
        f"  HTA      {theirs['total_s']:8.2f} s  {count / theirs['total_s'] / 1e3:8.0f} k events/s  peak {theirs['peak_bytes'] / 1e6:6.0f} MB"
        f"  ({theirs['peak_bytes'] / count:.0f} B an event); load alone {theirs['load_s']:.2f} s"
    )
    faster = theirs["total_s"] / ours["total_s"]
    leaner = theirs["peak_bytes"] / ours["peak_bytes"]
    reopened = theirs["load_s"] / ours["reopen_s"]
    print(
        f"  ratios: {faster:.1f}x as fast, 1/{leaner:.1f} of the memory, reopened {reopened:.0f}x as fast"
    )
    agree(ours["ranks"][0], theirs)
    for name, found, floor in (
        ("speed", faster, FASTER),
        ("memory", leaner, LEANER),
        ("reopening", reopened, REOPENED),
    ):
        assert found >= floor, f"{name}: {found:.2f}, the floor is {floor}"


def agree(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Same answer, but for the whole microseconds to which HTA rounds every start and end."""
    breakdown = theirs["breakdown"][0]
    for name, key in (("compute_ns", "compute_time(us)"), ("idle_ns", "idle_time(us)")):
        apart = abs(ours[name] / 1e3 - breakdown[key])
        assert apart <= 2 * ours["device_events"], (
            f"{name}: {ours[name] / 1e3} and {breakdown[key]} us"
        )
    overlap = theirs["overlap"][0]["comp_comm_overlap_pctg"]
    print(
        f"  compute and idle agree within HTA's rounding to whole µs; overlap {100 * (ours['overlap_share'] or 0):.2f} % and {overlap:.2f} %"
    )


def many(ranks: int, work: Path, scripts: dict[str, Path]) -> None:
    directory = work / "many"
    directory.mkdir()
    count = sum(
        write_profile(directory / f"rank{r}.pt.trace.json", rank=r, ranks=ranks, events=20_000)
        for r in range(ranks)
    )
    cores = len(os.sched_getaffinity(0))
    one = run(sys.executable, scripts["ours"], directory, work / "many.trnprof", 1)
    all_ = run(sys.executable, scripts["ours"], directory, work / "many.trnprof", cores)
    print(
        f"{ranks} ranks, {count:,} events: {one['import_s']:.2f} s in one process, {all_['import_s']:.2f} s in {cores}"
        f" ({one['import_s'] / all_['import_s']:.2f}x); opens in {all_['reopen_s'] * 1e3:.0f} ms, {len(all_['ranks'])} ranks"
    )


def big(gigabytes: float, work: Path, scripts: dict[str, Path]) -> None:
    path = work / "big" / "rank0.pt.trace.json"
    path.parent.mkdir()
    count = write_profile(path, size_bytes=int(gigabytes * 1e9))
    core = {min(os.sched_getaffinity(0))}
    found = run(sys.executable, scripts["ours"], path, work / "big.trnprof", 1, cores=core)
    print(
        f"{path.stat().st_size / 1e9:.2f} GB of JSON, {count:,} events: import {found['import_s']:.1f} s "
        f"({count / found['import_s'] / 1e3:.0f} k events/s), peak {found['import_peak_bytes'] / 1e6:.0f} MB; with the breakdown {found['peak_bytes'] / 1e6:.0f} MB"
    )
    assert found["import_peak_bytes"] < BIG_FILE_RSS, "the file must not decide the memory"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hta-python", help="Python with HolisticTraceAnalysis 0.5.0")
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--big-gb", type=float, default=0.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        scripts = {"ours": work / "ours.py", "hta": work / "hta_peer.py"}
        scripts["ours"].write_text(OURS)
        scripts["hta"].write_text(HTA)
        compare(given.events, given.hta_python, work, scripts)
        many(given.ranks, work, scripts)
        if given.big_gb:
            big(given.big_gb, work, scripts)


if __name__ == "__main__":
    main()
