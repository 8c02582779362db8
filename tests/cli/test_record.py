"""Programs that end in every way, killed recordings, odd commands and paths."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.runner import COMMAND, PYTHON, SCRIPTS, TINY, names_below, trnprof

from trnprof.tracer.reader import open_trace

pytest.importorskip("torch")


def interrupted(tmp_path: Path, number: signal.Signals) -> tuple[int, str]:
    """Record a script that waits after three steps, and send a signal to all of it, as a terminal does."""
    process = subprocess.Popen(
        [*COMMAND, "record", "-o", "run.trnprof", "--", PYTHON, str(TINY), "wait"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(3)][2] == "step 2\n"
    finally:
        os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_control_c_ends_the_program_and_seals_the_trace(tmp_path: Path) -> None:
    code, err = interrupted(tmp_path, signal.SIGINT)
    assert code == 130
    assert err.count("Traceback") == 1  # the script's own, as without us
    assert "the command ended with code 130; what ran until then is recorded" in err
    done = trnprof("validate", "run.trnprof", folder=tmp_path)
    assert (done.code, done.out) == (0, "run.trnprof: nothing wrong\n")
    assert open_trace(tmp_path / "run.trnprof").steps.height == 3


def test_a_recording_that_was_killed_opens_and_can_be_timed(tmp_path: Path) -> None:
    code, _ = interrupted(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    trace = tmp_path / "run.trnprof"
    report = trnprof("report", "run.trnprof", folder=tmp_path)
    assert report.code == 0
    assert "not sealed" in report.err
    assert "trnprof emulate run.trnprof --system trn2" in report.err
    out = tmp_path / "timed.trnprof"
    timed = trnprof("emulate", trace, "--system", "trn2", "-o", out)
    assert timed.code == 0
    assert "the program ended before its capture was complete" in timed.err
    assert open_trace(out).steps.height == 3


def test_a_segfault_leaves_a_trace_of_what_ran(tmp_path: Path) -> None:
    trace = tmp_path / "run.trnprof"
    line = ("-o", trace, "--", PYTHON, TINY, "segfault")
    done = trnprof("record", *line)
    assert done.code == 128 + signal.SIGSEGV == 139
    assert len(done.out.splitlines()) == 3
    assert "the command ended with code 139" in done.err
    report = trnprof("report", trace, "--json")
    assert report.code == 0
    assert [s["step"] for s in json.loads(report.out)["steps"]] == [0, 1, 2]


def test_a_module_that_raises_and_a_window_of_steps(tmp_path: Path) -> None:
    trace = tmp_path / "run.trnprof"
    line = ("--steps", "1..1", "--", PYTHON, "-m", "tiny", "raise")
    done = trnprof("record", "-o", trace, *line, script_raises=True, folder=TINY.parent)
    assert done.code == 1
    assert len(done.out.splitlines()) == 3
    assert done.err.count("Traceback") == 1
    assert "ValueError: on purpose" in done.err
    assert open_trace(trace).steps["step"].to_list() == [1]


def test_steps_that_never_come(tmp_path: Path) -> None:
    line = ("record", "--steps", "7..9", "--", PYTHON, TINY)
    done = trnprof(*line, folder=tmp_path)
    assert done.code == 2
    assert len(done.out.splitlines()) == 3
    assert done.err.splitlines() == [
        "trnprof: nothing to capture in steps 7..9; the command ended with code 0"
    ]
    assert names_below(tmp_path) == []


def test_a_shell_script_with_loader_workers_over_an_old_trace_in_an_odd_place(
    recording: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train it.sh"
    script.write_text(f"#!/bin/sh\n'{PYTHON}' -c ''\n'{PYTHON}' {SCRIPTS}/loader.py fork\nexit 3\n")
    script.chmod(0o755)
    trace = tmp_path / "мои данные" / "läuft µ.trnprof"
    shutil.copytree(recording, trace)
    done = trnprof("record", "--force", "-o", trace, "--", script)
    assert (done.code, done.out) == (3, "done\n")
    assert f"next: trnprof report '{trace}'" in done.err
    assert trnprof("validate", trace).out == f"{trace}: nothing wrong\n"
    opened = open_trace(trace)
    assert opened.steps.height == 2
    assert opened.manifest["command"] == [str(script)]
    assert [p.name for p in trace.parent.iterdir()] == [trace.name]
