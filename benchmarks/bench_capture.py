"""What does capturing cost an operation, and how long do large models take? A training step under capture against the same step without it.

``--large`` records a Llama-class model of 8 B on 64 ranks and one of 70 B on 144 chips besides, from the command to the sealed trace: about
two minutes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

import trnprof
from trnprof.emulator.capture.launch_settings import Settings, prepare_state
from trnprof.emulator.capture.launcher import capture_environment
from trnprof.emulator.capture.store import load_workload, seal_workload

EXAMPLES = Path(__file__).parents[1] / "examples"
RUNS = 3
TARGET_US = 250.0
STEPS = 4
RANKS = 64
ENCODER = f"""
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
SHARDED = f"""
import sys, time, torch
from dataclasses import replace
torch.set_num_threads(1)
# fake
sys.path.insert(0, {str(EXAMPLES)!r})
import llama
shape = replace(llama.SHAPES["tiny"], layers=8)
llama.dist.init_process_group("gloo", rank=0, world_size={RANKS})
mesh = llama.init_device_mesh("cpu", ({RANKS} // 8, 8), mesh_dim_names=("dp", "tp"))
model = llama.parallelized(llama.Llama(shape), mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range({STEPS} + 2):
    if step == 2:
        start = time.thread_time()
    tokens = torch.randint(0, shape.vocabulary, (1, 129))
    with llama.loss_parallel():
        logits = model(tokens[:, :-1])
        llama.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
print((time.thread_time() - start) / {STEPS})
"""
FAKE = """
from torch._subclasses.fake_tensor import FakeTensorMode
FakeTensorMode().__enter__()
"""
FAKE_WORLD = f"""
import sys
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from trnprof.emulator.capture.torch_objects import Objects
from trnprof.emulator.capture.torch_world import FakeWorld
FakeWorld({RANKS}, 0, Objects(None, print, sys.exit), sys.exit).install()
FakeTensor.item = lambda tensor: 1.0  # AdamW asks for its step
FakeTensorMode().__enter__()
"""


@dataclass(frozen=True)
class Way:
    """How the step runs.

    Attributes:
        program: what trains.
        prelude: what makes its tensors fake where nothing captures.
        floor: the way that is the same without capture; "" for one of those.
        fake: captured on fake tensors.
        world_size: captured in a world of so many ranks.
    """

    program: str
    prelude: str = ""
    floor: str = ""
    fake: bool = False
    world_size: int | None = None


WAYS = {
    "plain": Way(ENCODER),
    "captured": Way(ENCODER, floor="plain"),
    "fake": Way(ENCODER, FAKE),
    "captured, fake": Way(ENCODER, floor="fake", fake=True),
    "FSDP2 x TP, AdamW": Way(SHARDED, FAKE_WORLD),
    "captured, FSDP2 x TP": Way(SHARDED, floor="FSDP2 x TP, AdamW", fake=True, world_size=RANKS),
}


@dataclass(frozen=True)
class Large:
    """A model recorded from end to end, and what that may take.

    Attributes:
        shape: of examples/llama.py.
        system: the machine.
        ranks: two physical cores each.
        seconds: of wall clock, on two cores.
        nbytes: of memory, in one process.
    """

    shape: str
    system: str
    ranks: int
    seconds: float
    nbytes: float


LARGE = (
    Large("8b", "trn2-ultra", 64, 40.0, 8e9),
    Large("70b", "trn3-gen2", 576, 180.0, 8e9),
)


def seconds_a_step(way: Way) -> tuple[float, float]:
    """Of one run: seconds of CPU a step, and, where it was captured, operations a step."""
    with TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if way.floor:
            prepare_state(Path(folder))
            size = way.world_size
            settings = Settings(Path(folder), way.fake, world_size=size, local_size=size or 1)
            environment = capture_environment(os.environ, settings)
        done = subprocess.run(
            [sys.executable, "-c", way.program.replace("# fake", way.prelude)],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        operations = 0.0
        if way.floor:
            seal_workload(Path(folder))
            operations = len(load_workload(Path(folder)).operations) / (STEPS + 2)
        return float(done.stdout), operations


def overhead() -> bool:
    """Print what capture adds to an operation; whether that is below the target everywhere."""
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    operations: dict[str, float] = {}
    for _ in range(RUNS):  # in turns, so that a busy moment of the machine hits all
        for name, way in WAYS.items():
            seconds, count = seconds_a_step(way)
            times[name].append(seconds)
            if way.floor:
                operations[name] = operations[way.floor] = count
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"a training step, median of {RUNS} runs; CPU in all, and added by the capture")
    print(f"{'':24}{'operations':>12}{'ms a step':>12}{'µs an op':>12}{'added':>10}")
    worst = 0.0
    for name, seconds in medians.items():
        floor = medians[WAYS[name].floor or name]
        added = (seconds - floor) / operations[name] * 1e6
        worst = max(worst, added)
        each = seconds / operations[name] * 1e6
        count = operations[name]
        print(f"{name:24}{count:12,.0f}{seconds * 1e3:12.2f}{each:12.1f}{added:10.1f}")
    met = worst < TARGET_US
    print(f"target: under {TARGET_US:.0f} µs added an operation: {_verdict(met)}")
    return met


def large(case: Large, folder: Path) -> bool:
    """Record one large model; print what it took, and whether that is within the target."""
    trace = folder / f"{case.shape}.trnprof"
    script = [sys.executable, str(EXAMPLES / "llama.py"), case.shape]
    options = ["--system", case.system, "--world-size", str(case.ranks), "-o", str(trace)]
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "trnprof", "record", *options, "--", *script],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begun
    if process.returncode:
        print(f"{case.shape}: the recording ended with code {process.returncode}")
        return False
    cpu, nbytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    operations = len(load_workload(trace).operations)
    events = trnprof.open(trace).events.select(pl.len()).collect().item()
    met = seconds < case.seconds and nbytes < case.nbytes
    print(
        f"{case.shape} on {case.ranks} ranks of {case.system}: {seconds:.1f} s ({cpu:.1f} s of CPU), {nbytes / 1e9:.2f} GB, "
        f"{operations:,} operations, {events:,} events; under {case.seconds:.0f} s and {case.nbytes / 1e9:.0f} GB: {_verdict(met)}"
    )
    shutil.rmtree(trace)
    return met


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main() -> int:
    results = [overhead()]
    if "--large" in sys.argv[1:]:
        with TemporaryDirectory() as folder:
            results += [large(case, Path(folder)) for case in LARGE]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
