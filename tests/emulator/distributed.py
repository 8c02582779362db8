"""Distributed programs under capture: a script's workload for a world, and what its collectives ask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from trnprof.emulator.capture.launcher import run_captured
from trnprof.emulator.capture.store import load_workload
from trnprof.emulator.capture.torchrun import rank_command
from trnprof.emulator.workload import CollectiveCall, Workload

SCRIPTS = Path(__file__).parent / "scripts"


@cache
def played(world_size: int, *arguments: str, moe_load: str = "uniform") -> Workload:
    """The workload of a script (or of Python's own options) that plays rank 0; each combination runs once."""
    first = arguments[0] if arguments[0].startswith("-") else str(SCRIPTS / arguments[0])
    command = [sys.executable, first, *arguments[1:]]
    with TemporaryDirectory() as folder:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        rank = rank_command(command, world_size)
        result = run_captured(rank, Path(folder), fake=True, host_spans=False, moe_load=moe_load)
        assert (result.exit_code, result.failure) == (0, ""), (arguments, result)
        return load_workload(Path(folder))


def calls(workload: Workload, step: int, phase: str | None = None) -> list[CollectiveCall]:
    """Collectives of one step in issue order."""
    return [
        op.collective
        for op in workload.operations
        if op.collective is not None and op.step == step and phase in (None, op.phase)
    ]


def kinds(workload: Workload, step: int, phase: str | None = None) -> list[tuple[str, str, int]]:
    """Kind, name of the group and bytes of each."""
    return [
        (call.kind, workload.groups[call.group].name, call.nbytes)
        for call in calls(workload, step, phase)
    ]


def run_real(processes: int, script: str, *arguments: str, timeout_s: float) -> None:
    """Run a script in so many real processes, as torchrun starts them; none is left behind."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    process = subprocess.Popen(
        [*launcher, f"--nproc-per-node={processes}", str(SCRIPTS / script), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
