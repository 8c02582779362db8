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
            ["--world-size", "4", "--slow", "rank=4:0.5"],
            [PYTHON, PARALLEL],
            "rank 4 is out of range; the program has ranks 0..3",
        ),
        (["--fail", "link=0-99"], [PYTHON, PARALLEL], "link '0-99': chips are 0..15"),
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
            "dist.init_process_group(); dist.recv_object_list([None])",
            "recv_object_list from any rank: name the rank that sends",
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


def test_a_slow_rank_as_in_emulate(tmp_path: Path) -> None:
    """Recorded with a slow rank and no folding, or emulated so afterwards: one and the same."""
    first, second = tmp_path / "a.trnprof", tmp_path / "b.trnprof"
    script = tmp_path / "ddp.py"
    script.write_text(
        "import torch\n"
        "torch.distributed.init_process_group()\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))\n"
        "for _ in range(2):\n"
        "    model(torch.ones(256, 512)).sum().backward()\n"
    )
    faults = ("--slow", "rank=2:0.5", "--no-fold")
    line = ("record", "--system", "trn2", "--world-size", "4", *faults, "-o", first, "--")
    assert trnprof(*line, PYTHON, script).code == 0
    done = trnprof("emulate", first, "--system", "trn2", *faults, "-o", second)
    assert done.code == 0
    traces = [open_trace(path) for path in (first, second)]
    assert traces[0].manifest["emulation"] == traces[1].manifest["emulation"]
    assert traces[0].manifest["emulation"]["faults"] == {"slow": ["rank=2:0.5"]}
    assert len(traces[0].manifest["emulation"]["rank_classes"]) == 4
    assert "rank 2 came " in trnprof("report", first).out


def test_what_cannot_be_emulated_is_recorded_all_the_same(tmp_path: Path) -> None:
    """How many ranks there are, only the program knows."""
    trace = tmp_path / "run.trnprof"
    done = trnprof("record", "--slow", "rank=9:0.5", "-o", trace, "--", PYTHON, SCRIPTS / "mlp.py")
    assert done.code == 2
    assert "rank 9 is out of range; the program has ranks 0..0" in done.err.splitlines()[-1]
    assert f"trnprof emulate {trace} --system" in done.err.splitlines()[-1]
    again = trnprof("emulate", trace, "--system", "trn2", "-o", tmp_path / "again.trnprof")
    assert again.code == 0


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


STAGES = """
import os, torch, torch.distributed as dist
from torch.distributed import pipelining

dist.init_process_group()
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=lambda y, t: (y - t).sum())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    x = torch.randn(8, 64)
    schedule.step(x) if rank == 0 else schedule.step(target=x)
    if step == 1 and rank == 1:
        os._exit(5)
    optimizer.step()
"""


def test_stages_are_run_beside_rank_0_and_one_that_fails_leaves_whole_steps(tmp_path: Path) -> None:
    script, trace = tmp_path / "stages.py", tmp_path / "run.trnprof"
    script.write_text(STAGES)
    command = (*LAUNCHER, "--nproc-per-node=2", script)
    done = trnprof("record", "--system", "trn2-ultra", "-o", trace, "--", *command)
    assert done.code == 5
    first, second, third = done.err.splitlines()[:3]
    assert first.endswith("the program runs once, as rank 0 of 2")
    assert second == (
        "trnprof: ranks differ (stages of a pipeline): the program runs for rank 1 too"
    )
    assert "the command ended with code 5" in third
    assert "only the 1 step(s) that all of them ended are here" in done.err
    opened = open_trace(trace)
    assert opened.steps["rank"].sort().to_list() == [0, 1]
    assert not [name for name in names_below(trace) if name.startswith("ranks")]
    assert [other.world.rank for other in load_workload(trace).others] == [1]
    printed = trnprof("view", "--print", trace).out
    assert "(stage 0)" in printed
    assert "(stage 1)" in printed
    exported = trnprof("export", trace, "--to", "chakra", "-o", tmp_path / "et")
    assert exported.code == 0
    assert "2 ranks of " in exported.err
    again = trnprof("emulate", trace, "--system", "trn2", "-o", tmp_path / "other.trnprof")
    assert again.code == 0


def test_too_many_ranks_that_differ_are_refused(tmp_path: Path) -> None:
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group(); x = torch.ones(4, 4); "
        "y = torch.nn.Linear(4, 4)(x); dist.send(y, 1); dist.recv(x, 1)"
    )
    line = ("record", "--system", "trn2-ultra", "--world-size", "65", "-o", "out")
    done = trnprof(*line, "--", PYTHON, "-c", code, folder=tmp_path)
    assert done.code == 2
    assert "65 ranks do each something else, 64 can be run side by side" in done.err
    assert names_below(tmp_path) == []


HANDED_ON = """
import os, sys, torch, torch.distributed as dist

dist.init_process_group()
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    if (sys.argv[1], step, rank) == ("before", 2, 1):
        raise RuntimeError("stage 1 gives up")
    for microbatch in range(2):
        x = torch.randn(8, 64)
        if rank:
            dist.recv(x, rank - 1)
        y = model(x)
        if (sys.argv[1], step, microbatch, rank) == ("within", 2, 1, 1):
            sys.exit(1)
        y.sum().backward()
        if rank < 2:
            dist.send(y.detach(), rank + 1)
    optimizer.step()
"""


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_rank_that_fails_between_or_within_steps_leaves_those_that_all_ended(
    when: str, tmp_path: Path
) -> None:
    """Its own end is orderly (an exception, sys.exit): that others went on is no program that does not fit together."""
    script, trace = tmp_path / "stages.py", tmp_path / "run.trnprof"
    script.write_text(HANDED_ON)
    line = ("record", "--system", "trn2", "--world-size", "3", "-o", trace, "--", PYTHON, script)
    done = trnprof(*line, when, script_raises=when == "before")
    assert done.code == 1
    assert "only the 2 step(s) that all of them ended are here" in done.err
    workload = load_workload(trace)
    assert [[step.label for step in w.steps] for w in (workload, *workload.others)] == [
        ["step 0", "step 1"]
    ] * 3
