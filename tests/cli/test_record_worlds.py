"""Recording distributed programs: launchers, worlds that do not fit or do not match, placement, exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.runner import PYTHON, SCRIPTS, names_below, trnprof

from trnprof.emulator.capture.store import load_workload
from trnprof.tracer.reader import open_trace

pytest.importorskip("torch")
PARALLEL = SCRIPTS / "parallel.py"
LAUNCHER = (PYTHON, "-m", "torch.distributed.run")


def test_torchrun_is_recognised_and_its_ranks_are_placed(tmp_path: Path) -> None:
    trace, other = tmp_path / "run.trnprof", tmp_path / "other.trnprof"
    command = (*LAUNCHER, "--nproc-per-node", "32", "--nnodes=2", "--rdzv-backend=c10d", PARALLEL)
    done = trnprof("record", "--system", "trn2-ultra", "-o", trace, "--", *command, "2d")
    assert (done.code, done.out) == (0, "step 0\nstep 1\nstep 2\n")
    line = "torchrun recognised (2 x 32 ranks), not run: the program runs once, as rank 0 of 64"
    assert line in done.err.splitlines()[0]
    assert "on trn2-ultra (fused, 64 ranks packed, LNC 2)" in done.err
    assert done.err.count("went to the emulated one") == 1
    emulation = open_trace(trace).manifest["emulation"]
    assert (emulation["world_size"], emulation["lnc"]) == (64, 2)
    timed = trnprof(
        *("emulate", trace, "--system", "trn2", "--instances", "8", "--placement", "spread"),
        *("--lnc", "1", "-o", other),
    )
    assert timed.code == 0
    assert "on 8 x trn2 (fused, 64 ranks spread, LNC 1)" in timed.err
    assert load_workload(other).operations == load_workload(trace).operations
    report = trnprof("report", trace)
    assert report.code == 0
    assert "exposed comm" in report.out
    printed = trnprof("view", "--print", trace)
    assert "CC dp" in printed.out
    assert "CC tp" in printed.out
    assert "links" in printed.out
    assert trnprof("validate", trace).out == f"{trace}: nothing wrong\n"


@pytest.mark.parametrize(
    ("options", "command", "reason"),
    [
        (["--world-size", "64", "--real"], [PYTHON, PARALLEL], "--real runs one rank, not 64"),
        (
            ["--world-size", "8"],
            [*LAUNCHER, "--nproc-per-node=16", PARALLEL],
            "--world-size 8, but the launcher starts 16 x 1 ranks: leave out --world-size",
        ),
        ([], [*LAUNCHER, "--nproc-per-node=gpu", PARALLEL], "--nproc-per-node gpu: give a number"),
        ([], [*LAUNCHER, "--no-python", "ls"], "only a Python program can play rank 0"),
        (
            ["--system", "trn2", "--world-size", "512"],
            [PYTHON, PARALLEL],
            "512 ranks do not fit trn2: 16 chips of 4 logical cores (LNC 2) hold 64",
        ),
        (
            ["--world-size", "4", "--placement", "nowhere"],
            [PYTHON, PARALLEL],
            "placement 'nowhere': expected packed, spread or a .csv file",
        ),
        (
            ["--world-size", "4", "--moe-load", "nowhere.csv"],
            [PYTHON, PARALLEL],
            "--moe-load nowhere.csv: no such file; expected uniform, zipf:EXPONENT (zipf:1.1) or a file",
        ),
        (
            ["--world-size", "4", "--moe-load", "zipf:-1"],
            [PYTHON, PARALLEL],
            "--moe-load zipf:-1: the exponent is a number from 0, such as zipf:1.1",
        ),
        (
            ["--moe-load", "uniform"],
            [PYTHON, PARALLEL],
            "real ones go by their values: add --fake, or leave it out",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_before_it_runs(
    options: list[str], command: list[str], reason: str, tmp_path: Path
) -> None:
    line = ("record", "-o", "out", *options, "--", *command)
    assert reason in trnprof(*line, folder=tmp_path).only_error
    assert names_below(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "dist.init_process_group('nccl', world_size=16, rank=0)",
            "world size 16 asked, --world-size 8 given",
        ),
        (
            "dist.init_process_group(); init_device_mesh('cuda', (4, 4))",
            "the mesh 4 x 4 has 16 ranks, --world-size 8 given",
        ),
        (
            "dist.init_process_group(); from torch.distributed.pipelining import PipelineStage; "
            "PipelineStage(torch.nn.Linear(2, 2), 0, 8, torch.device('cuda'))",
            "pipeline stages are not supported yet",
        ),
    ],
)
def test_a_world_that_the_program_does_not_fit(code: str, reason: str, tmp_path: Path) -> None:
    before = "import torch, torch.distributed as dist; from torch.distributed.device_mesh import init_device_mesh"
    line = ("record", "-o", "out", "--world-size", "8", "--", PYTHON, "-c", f"{before}; {code}")
    done = trnprof(*line, folder=tmp_path)
    assert done.code == 2
    assert reason in done.err.splitlines()[-1]
    assert len(done.err.splitlines()) == 2  # before it, which world is played
    assert names_below(tmp_path) == []


def test_a_load_that_the_program_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "shares.csv").write_text("1,2,3,4\n")
    script = SCRIPTS / "experts.py"
    line = ("record", "-o", "out", "--world-size", "8", "--moe-load", "shares.csv", "--")
    done = trnprof(*line, PYTHON, script, "bincount", folder=tmp_path)
    assert done.code == 2
    reason = "shares for 4 experts, but the program chooses among 16 (0)"
    assert f"--moe-load shares.csv: {reason}" in done.err.splitlines()[1].replace(
        str(tmp_path) + "/", ""
    )


def test_a_load_is_told_where_it_decides_and_where_it_does_not(tmp_path: Path) -> None:
    trace = tmp_path / "run.trnprof"
    line = ("record", "-o", trace, "--force", "--world-size", "8", "--moe-load", "zipf:1.1", "--")
    done = trnprof(*line, PYTHON, SCRIPTS / "experts.py", "bincount")
    told = "sizes follow from a chosen load, not from data: --moe-load zipf:1.1, 1 router(s)"
    assert told in done.err
    assert any(told in note for note in open_trace(trace).manifest["emulation"]["notes"])
    done = trnprof(*line, PYTHON, SCRIPTS / "capacity.py")
    assert done.code == 0
    assert "--moe-load zipf:1.1 changed nothing" in done.err


def test_the_programs_own_exit_code_comes_through(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(
        "import os, sys, torch\n"
        "torch.distributed.init_process_group()\n"
        "torch.nn.Linear(4, 4).cuda()(torch.ones(4, 4, device='cuda')).sum().backward()\n"
        "assert os.environ['LOCAL_WORLD_SIZE'] == '4', os.environ\n"
        "sys.exit(7)\n"
    )
    trace = tmp_path / "run.trnprof"
    done = trnprof("record", "--world-size", "4", "-o", trace, "--", sys.executable, script)
    assert done.code == 7
    assert open_trace(trace).steps.height == 1
