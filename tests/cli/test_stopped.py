"""A command that is told to end does, at any moment, with its exit code and nothing left; what was there stays."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.runner import COMMAND, PYTHON, trnprof

from trnprof.cli.diagnostics import internal_error

PATIENCE_SECONDS = 60.0
FABRIC = ("--bandwidth", "50GB/s", "--latency", "500ns")
LARGE = ("collective", "all_to_all", "--topology", "torus:8x4x4", *FABRIC, "--bytes", "512MiB")
SMALL = ("collective", "all_gather", "--topology", "ring:4", *FABRIC, "--bytes", "1MiB")
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

IN_COMPILED_CODE = """
import os, signal, sys, threading
import numpy as np
from pathlib import Path
from trnprof.cli.stopping import end_when_told
from trnprof.tracer.compiled import compiled
from trnprof.tracer.files import directory_beside

@compiled
def spin(go, rounds):
    # until another thread says so, or some seconds; two arrays are made Python objects afterwards
    while go[0] == 0 and rounds[0] < 5_000_000_000:
        rounds[0] += 1
    return np.zeros(2), np.zeros(3)

go, rounds = np.ones(1, np.int64), np.zeros(1, np.int64)
spin(go, rounds)
go[0] = 0

def tell():
    os.kill(os.getpid(), int(sys.argv[1]))
    go[0] = 1

end_when_told()
with directory_beside(Path("made")) as beside:
    (beside / "some").write_text("rows")
    threading.Timer(0.2, tell).start()
    spin(go, rounds)
    print("not ended")
"""


@needs_signals
def test_a_signal_while_compiled_code_runs(tmp_path: Path) -> None:
    script = tmp_path / "script" / "spins.py"
    script.parent.mkdir()
    script.write_text(IN_COMPILED_CODE)
    folder = tmp_path / "folder"
    folder.mkdir()
    line = [PYTHON, str(script), str(int(signal.SIGINT))]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trnprof: interrupted\n")
    assert os.listdir(folder) == []


def stopped(
    folder: Path, arguments: tuple[str, ...], number: signal.Signals, delay: float
) -> tuple[int, list[str]]:
    """Send a signal so many seconds after the first temporary name is there.

    Returns:
        The exit code, and the lines on stderr.
    """
    before = set(os.listdir(folder))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + PATIENCE_SECONDS
    while set(os.listdir(folder)) == before and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, said.splitlines()


@needs_signals
def test_a_trace_that_is_being_written_goes_and_the_one_before_stays(tmp_path: Path) -> None:
    assert trnprof(*SMALL, "-o", "run.trnprof", folder=tmp_path).code == 0
    before = (tmp_path / "run.trnprof" / "manifest.json").read_bytes()
    delays = random.Random(6)
    line = (*LARGE, "-o", "run.trnprof", "--force")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        code, said = stopped(tmp_path, line, number, delays.uniform(0, 0.2))
        assert code == 128 + number
        is_interrupt = number == signal.SIGINT
        last = "interrupted" if is_interrupt else f"stopped by {number.name}"
        assert said[-1] == f"trnprof: {last}"
        assert not any("Traceback" in line or "internal" in line for line in said)
        assert os.listdir(tmp_path) == ["run.trnprof"]
    assert (tmp_path / "run.trnprof" / "manifest.json").read_bytes() == before


@needs_signals
def test_a_file_that_is_being_written_goes(tmp_path: Path) -> None:
    line = (*LARGE, "--bytes", "64MiB", "--chunks", "4", "-o", "run.trnprof")
    assert trnprof(*line, folder=tmp_path).code == 0
    line = ("export", "run.trnprof", "-o", "run.pftrace")
    assert stopped(tmp_path, line, signal.SIGTERM, 0)[0] == 143
    assert os.listdir(tmp_path) == ["run.trnprof"]


@needs_signals
def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    line = ("nohup", *COMMAND, *SMALL, "-o", "run.trnprof")
    with subprocess.Popen(
        line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while not os.listdir(tmp_path) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert os.listdir(tmp_path) == ["run.trnprof"]


@pytest.mark.parametrize(
    ("command", "option", "other"),
    [
        ("import", "--jobs 1", "--chunks"),
        ("collective", "--chunks 1", "--jobs"),
        ("info", "", "--"),
    ],
)
def test_out_of_memory_is_told_by_command(
    command: str,
    option: str,
    other: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["trnprof", command, "x"])
    assert internal_error(MemoryError()).code == 2
    said = capsys.readouterr().err
    assert said.startswith("trnprof: out of memory: give the process more")
    assert option in said
    assert other not in said


STOPPED_WHILE_LOADING = """
import os, signal, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Stop())
from trnprof.cli.main import main
main()
"""


@needs_signals
@pytest.mark.parametrize("module", ["typer", "trnprof.cli.commands.view", "trnprof.cli.app"])
def test_a_signal_while_modules_are_loaded(module: str) -> None:
    line = [PYTHON, "-c", STOPPED_WHILE_LOADING, module]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trnprof: interrupted\n")
