"""How commands are run under capture: exit codes, kills, processes, environments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trnprof.emulator.capture.launcher import CaptureResult, run_captured
from trnprof.emulator.capture.store import load_workload, seal_workload
from trnprof.tracer.errors import CaptureError, TraceError

pytest.importorskip("torch")
SCRIPTS = Path(__file__).parent / "scripts"
PYTHON = sys.executable


def captured(trace: Path, *command: str) -> CaptureResult:
    return run_captured([PYTHON, *command], trace)


@pytest.mark.parametrize(
    ("end", "code", "complete"),
    [
        ("raise", 1, True),
        ("exit", 3, True),
        ("interrupt", 130, True),
        ("segfault", 128 + signal.SIGSEGV, False),
        ("kill", 128 + signal.SIGKILL, False),
    ],
)
def test_however_a_program_ends_what_ran_is_readable(
    tmp_path: Path, end: str, code: int, complete: bool
) -> None:
    result = captured(tmp_path, str(SCRIPTS / "mlp.py"), "SGD", "0", end)
    assert (result.exit_code, result.captured) == (code, True)
    workload = load_workload(tmp_path)
    assert workload.complete == complete
    assert [s.step for s in workload.steps] == [0, 1, 2]
    # the last thing each script does is print loss.item(), read after optimizer.step()
    updates = [o for o in workload.operations if o.step == 2 and o.phase == "optimizer"]
    assert len(updates) == 4


def test_a_torn_stream_reads_up_to_its_last_whole_batch(tmp_path: Path) -> None:
    captured(tmp_path, str(SCRIPTS / "mlp.py"), "SGD", "0", "fine")
    whole = load_workload(tmp_path)
    from trnprof.emulator.capture.replay import workload_rows
    from trnprof.emulator.capture.store import STREAM_NAME, WorkloadStream

    (tmp_path / "workload.arrow").unlink()
    stream = WorkloadStream(tmp_path)
    rows = list(workload_rows(whole))
    for first in range(0, len(rows), 20):
        stream.write(rows[first : first + 20])
    stream.close()
    path = tmp_path / STREAM_NAME
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    torn = load_workload(tmp_path)
    assert not torn.complete
    assert 0 < len(torn.operations) < len(whole.operations)
    assert torn.operations == whole.operations[: len(torn.operations)]
    assert seal_workload(tmp_path)
    assert load_workload(tmp_path) == torn


def test_a_package_and_a_shell_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    assert captured(tmp_path / "package", "-m", "package").captured
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\n{PYTHON} -c 'print(1)'\n{PYTHON} -m package\nexit 7\n")
    script.chmod(0o755)
    result = run_captured([str(script)], tmp_path / "shell")
    assert (result.exit_code, result.captured) == (7, True)
    assert [o.name for o in load_workload(tmp_path / "shell").operations if not o.is_view] == [
        "addmm"
    ]


def test_a_program_without_torch_is_not_captured(tmp_path: Path) -> None:
    assert captured(tmp_path, "-c", "raise SystemExit(5)") == CaptureResult(5, False, None)
    with pytest.raises(TraceError, match="no captured workload"):
        load_workload(tmp_path)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program-here"], "no such file or command"),
        ([PYTHON, "no_such_script.py"], "no_such_script.py: no such file"),
        ([], "no command"),
    ],
)
def test_what_does_not_exist_is_said_before_anything_runs(
    tmp_path: Path, command: list[str], message: str
) -> None:
    with pytest.raises(CaptureError, match=message):
        run_captured(command, tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_the_program_sees_the_path_and_sitecustomize_it_would_have_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    monkeypatch.setenv("PYTHONPATH", str(own))
    look = "import sys, sitecustomize; print(customized, sys.path, sitecustomize.__file__)"
    plain = subprocess.run([PYTHON, "-c", look], capture_output=True, text=True, check=True)
    program = tmp_path / "look.sh"
    program.write_text(f'#!/bin/sh\n"{PYTHON}" -c "{look}" > "{tmp_path}/seen"\n')
    program.chmod(0o755)
    assert run_captured([str(program)], tmp_path / "trace").exit_code == 0
    assert (tmp_path / "seen").read_text() == plain.stdout


def test_a_broken_capture_is_one_line_and_the_program_goes_on(tmp_path: Path) -> None:
    from trnprof.emulator.capture.launch_settings import Settings
    from trnprof.emulator.capture.launcher import capture_environment

    missing = Settings(tmp_path / "is" / "not" / "there")
    done = subprocess.run(
        [PYTHON, str(SCRIPTS / "mlp.py"), "SGD", "0", "exit"],
        env=capture_environment(os.environ, missing),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert [line[:8] for line in done.stderr.splitlines()] == ["trnprof:"]
    assert len(done.stdout.splitlines()) == 3


def test_spawned_loader_workers_leave_the_capture_alone(tmp_path: Path) -> None:
    result = captured(tmp_path, str(SCRIPTS / "loader.py"), "spawn")
    assert (result.exit_code, result.captured) == (0, True)
    assert len(load_workload(tmp_path).steps) == 2


def test_host_spans_are_in_the_trace(tmp_path: Path) -> None:
    from trnprof.tracer.reader import open_trace

    captured(tmp_path, str(SCRIPTS / "mlp.py"), "SGD", "0", "fine")
    events = open_trace(tmp_path).events.collect()
    names = events["name"].cast(str).to_list()
    assert names.count("forward") == 3
    assert names.count("backward") == 3
    assert names.count("optimizer.step") == 3
    assert {"step 0", "step 1", "step 2"} <= set(names)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_and_forks_have_writers_of_their_own(tmp_path: Path, start: str) -> None:
    from trnprof.tracer.reader import open_trace

    result = captured(tmp_path, str(SCRIPTS / "children.py"), start)
    assert (result.exit_code, result.captured) == (0, True)
    assert len(load_workload(tmp_path).steps) == 4
    trace = open_trace(tmp_path)
    assert [problem.kind for problem in trace.problems] == ["no_manifest"]  # nothing was emulated
    # the program, two workers, a process, a fork and its fork; an idle fork, and one that runs something else, have none
    assert [fragment["sealed"] for fragment in trace.fragments] == [True] * 6
    tracks = {row["track_id"]: row for row in trace.tracks.iter_rows(named=True)}
    found: dict[str, list[str]] = {}
    for event in trace.events.collect().iter_rows(named=True):
        host = tracks[tracks[event["track_id"]]["parent_id"]]
        found.setdefault(host["name"].partition(" (")[0], []).append(event["name"])
    loaded = sorted(name for name in found if name.startswith("DataLoader"))
    assert loaded == ["DataLoader worker 0", "DataLoader worker 1"]
    for worker in loaded:
        assert sorted(found[worker]) == ["decode"] * 16 + ["load batch"] * 2
    others = [set(names) for name, names in found.items() if name not in loaded]
    assert {"in a process"} in others
    assert {"in a fork", "in a fork of a fork"} in others
    counters = trace.counters.collect()["value"].to_list()
    assert counters == [1.0] * 3


def test_a_worker_that_is_killed_spoils_nothing(tmp_path: Path) -> None:
    from trnprof.tracer.reader import open_trace

    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, time, torch, trnprof\n"
        "model = torch.nn.Linear(4, 4)\n"
        "model(torch.randn(2, 4)).sum().backward()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    while True:\n"
        "        with trnprof.span('busy'):\n"
        "            time.sleep(0.001)\n"
        "time.sleep(1)\n"
        "os.kill(child, signal.SIGKILL)\n"
        "os.wait()\n"
    )
    trace_dir = tmp_path / "trace"
    assert captured(trace_dir, str(script)).exit_code == 0
    trace = open_trace(trace_dir)
    assert [p for p in trace.problems if p.severity == "error"] == []
    assert sorted(f["sealed"] for f in trace.fragments) == [False, True]
    assert "busy" in trace.events.collect()["name"].to_list()
