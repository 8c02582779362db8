"""How much CPU does ``trnprof --help`` take before it says anything, against what Python itself and polars take?"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

RUNS = 10
TARGET_SECONDS = 0.3
LINES = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import polars'": ["-c", "import polars"],
    "trnprof --help": ["-m", "trnprof.cli.main", "--help"],
    "trnprof report --help": ["-m", "trnprof.cli.main", "report", "--help"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one process of this Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def main() -> int:
    # the lines take turns, so that a busy moment of the machine hits all of them
    times: dict[str, list[float]] = {name: [] for name in LINES}
    for name, arguments in LINES.items():
        cpu_seconds(arguments)  # compiles and reads from disk
        assert not times[name]
    for _ in range(RUNS):
        for name, arguments in LINES.items():
            times[name].append(cpu_seconds(arguments))
    print(f"start-up, CPU seconds (user + system), {RUNS} runs")
    print(f"{'':28}{'median':>8}{'least':>8}{'most':>8}")
    for name, values in times.items():
        print(f"{name:28}{statistics.median(values):8.3f}{min(values):8.3f}{max(values):8.3f}")
    median = statistics.median(times["trnprof --help"])
    met = median < TARGET_SECONDS
    print(f"target: trnprof --help under {TARGET_SECONDS} s: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
