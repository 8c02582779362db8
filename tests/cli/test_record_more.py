"""Recordings that hold less than the whole program say so, and a recording of nothing says why."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.runner import COMMAND, PYTHON, SCRIPTS, names_below, trnprof

from trnprof.emulator.capture.store import load_workload
from trnprof.tracer.reader import open_trace

pytest.importorskip("torch")
ODD = SCRIPTS / "odd.py"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-I", "-c", "0"], "-I ignores PYTHONPATH, by which it enters; leave out -I"),
        (["-qE", "-c", "0"], "-qE ignores PYTHONPATH, by which it enters; leave out -E"),
        (["-S", "-c", "0"], "-S skips sitecustomize, by which it enters; leave out -S"),
    ],
)
def test_a_python_that_keeps_the_capture_out(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    said = trnprof("record", "-o", "out", "--", PYTHON, *options, folder=tmp_path).only_error
    assert "the capture could not be started, the command ended with code 0" in said
    assert said.endswith(reason)
    assert names_below(tmp_path) == []


def test_an_interrupt_before_torch_has_the_commands_own_code(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = trnprof("record", "--", PYTHON, "-c", code, folder=tmp_path, script_raises=True)
    assert done.code == 128 + signal.SIGINT
    assert "was ended by signal 2" in done.err.splitlines()[-1]
    assert names_below(tmp_path) == []


def test_a_thread_is_recorded_and_later_processes_are_counted(tmp_path: Path) -> None:
    script = f"'{PYTHON}' '{ODD}' thread; '{PYTHON}' '{ODD}' plain"
    trace = tmp_path / "run.trnprof"
    done = trnprof("record", "-o", trace, "--", "sh", "-c", script)
    assert (done.code, done.out) == (0, "done\ndone\n")
    note = "1 further process(es) ran PyTorch models and were not recorded"
    assert done.err.count(note) == 1
    assert note in load_workload(trace).notes
    assert open_trace(trace).steps["label"].to_list() == ["step 0", "step 1", "step 2"]
    assert not list(trace.glob("capture.*"))


def test_a_forked_process_with_a_model_is_counted(tmp_path: Path) -> None:
    done = trnprof("record", "-o", "run.trnprof", "--", PYTHON, ODD, "forked", folder=tmp_path)
    assert (done.code, done.out) == (0, "done\n")
    assert "1 further process(es) ran PyTorch models" in done.err


def test_closed_files_end_the_capture_in_one_line(tmp_path: Path) -> None:
    done = trnprof("record", "-o", "run.trnprof", "--", PYTHON, ODD, "closed", folder=tmp_path)
    assert (done.code, done.out) == (0, "done\n")
    early = [line for line in done.err.splitlines() if "the capture ended early" in line]
    assert len(early) == 1
    assert open_trace(tmp_path / "run.trnprof").steps.height >= 3
    assert all(line.startswith("trnprof: ") for line in done.err.splitlines()), done.err


def test_a_step_that_was_interrupted_is_called_incomplete(tmp_path: Path) -> None:
    line = ("record", "-o", "run.trnprof", "--", PYTHON, ODD, "broken")
    done = trnprof(*line, folder=tmp_path, script_raises=True)
    assert done.code == 128 + signal.SIGINT
    assert "step 3 is incomplete" in done.err
    labels = open_trace(tmp_path / "run.trnprof").steps["label"].to_list()
    assert labels == ["step 0", "step 1", "step 2", "step 3 (incomplete)"]


def test_a_disk_that_is_full_from_the_start_is_the_reason_told(small_disk: Path) -> None:
    filling = f"cat /dev/zero > '{small_disk}/full' 2>/dev/null; exec '{PYTHON}' '{ODD}' plain"
    done = subprocess.run(
        [*COMMAND, "record", "-o", str(small_disk / "out"), "--", "sh", "-c", filling],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "done\n")
    early, nothing = done.stderr.splitlines()
    assert "the capture ended early" in early
    assert nothing.startswith("trnprof: nothing was captured: ")
    assert "the disk is full" in nothing
