"""Real processes that talk by gloo ask each other for the same, in the same order, as rank 0 of the played world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.emulator.distributed import played, run_real

pytest.importorskip("torch")
WAYS = "ddp accumulate unused big_ddp fsdp2 fsdp2_keep fsdp2_mixed tp sp 2d hsdp".split()


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_ask_what_rank_0_of_the_played_world_asks(way: str, tmp_path: Path) -> None:
    out = tmp_path / "real.json"
    run_real(2, "logged.py", str(out), way, timeout_s=120)
    workload = played(2, "parallel.py", way)
    ours = [
        [op.name, op.collective.nbytes, list(workload.groups[op.collective.group].ranks)]
        for op in workload.operations
        if op.collective is not None
    ]
    assert ours == json.loads(out.read_text())
    assert ours
