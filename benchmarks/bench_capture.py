"""What does capturing cost an operation? A training step under ``trnprof record``'s capture, against the same step without it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from trnprof.emulator.capture.launch_settings import Settings, prepare_state
from trnprof.emulator.capture.launcher import capture_environment
from trnprof.emulator.capture.store import load_workload, seal_workload

RUNS = 3
TARGET_US = 250.0
STEPS = 4
PROGRAM = f"""
import time, torch
torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)
# fake
from torch import nn
model = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
x = torch.randn(2, 16, 64)
for step in range({STEPS} + 2):
    if step == 2:
        start = time.thread_time()
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print((time.thread_time() - start) / {STEPS})
"""
FAKE = """
from torch._subclasses.fake_tensor import FakeTensorMode
FakeTensorMode().__enter__()
"""
FLOORS = {"plain": "plain", "captured": "plain", "fake": "fake", "captured, fake": "fake"}
"""Each way to run, and the way that is the same without capture."""


def seconds_a_step(way: str) -> tuple[float, float]:
    """Of one run: seconds of CPU a step, and, where it was captured, operations a step."""
    with TemporaryDirectory() as folder:
        environment = dict(os.environ)
        program = PROGRAM.replace("# fake", FAKE if way == "fake" else "")
        if way.startswith("captured"):
            prepare_state(Path(folder))
            settings = Settings(Path(folder), fake=way.endswith("fake"))
            environment = capture_environment(os.environ, settings)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        operations = 0.0
        if way.startswith("captured"):
            seal_workload(Path(folder))
            operations = len(load_workload(Path(folder)).operations) / (STEPS + 2)
        return float(done.stdout), operations


def main() -> int:
    times: dict[str, list[float]] = {way: [] for way in FLOORS}
    operations = 0.0
    for _ in range(RUNS):  # in turns, so that a busy moment of the machine hits all
        for way in FLOORS:
            seconds, count = seconds_a_step(way)
            times[way].append(seconds)
            operations = count or operations
    medians = {way: statistics.median(values) for way, values in times.items()}
    print(f"capture of a step of {operations:.0f} operations, median of {RUNS} runs")
    worst = 0.0
    for way, seconds in medians.items():
        added = (seconds - medians[FLOORS[way]]) / operations * 1e6
        worst = max(worst, added)
        print(f"{way:16}{seconds * 1e3:9.2f} ms of CPU a step{added:9.1f} µs added an operation")
    met = worst < TARGET_US
    print(f"target: under {TARGET_US:.0f} µs an operation: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
