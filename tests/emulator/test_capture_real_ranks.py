"""Real processes that talk by gloo ask each other for the same, in the same order, as rank 0 of the played world."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.emulator.distributed import SCRIPTS, played

pytest.importorskip("torch")
WAYS = "ddp accumulate unused big_ddp fsdp2 fsdp2_keep fsdp2_mixed tp sp 2d hsdp".split()


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_ask_what_rank_0_of_the_played_world_asks(way: str, tmp_path: Path) -> None:
    out = tmp_path / "real.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.Popen(
        [*launcher, str(SCRIPTS / "logged.py"), str(out), way],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):  # none is left behind
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    workload = played(2, "parallel.py", way)
    ours = [
        [op.name, op.collective.nbytes, list(workload.groups[op.collective.group].ranks)]
        for op in workload.operations
        if op.collective is not None
    ]
    assert ours == json.loads(out.read_text())
    assert ours
