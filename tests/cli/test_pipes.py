"""Readers that go away, streams that are closed, disks behind stdout that are full."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.runner import COMMAND, trnprof

SHOWING = [("report", "--json"), ("view", "--print"), ("info",)]


@pytest.mark.parametrize("line", SHOWING)
def test_a_reader_that_went_away_is_no_error(recording: Path, line: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = trnprof(line[0], recording, *line[1:], stdout=writing)
    finally:
        os.close(writing)
    assert (done.code, done.err) == (0, "")


def in_shell(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command by a shell that arranges its streams; it is "$@" in the script."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_head_takes_the_first_line(recording: Path) -> None:
    done = in_shell('"$@" | head -1', "report", recording)
    assert done.stdout.startswith("mlp.trnprof")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_closed_streams(recording: Path, tmp_path: Path) -> None:
    closed = in_shell('exec "$@" >&-', "info", recording)
    assert (closed.returncode, closed.stderr) == (0, "")
    # what belongs on stderr does not turn up among the data
    silent = in_shell('exec "$@" 2>&-', "info", tmp_path / "none")
    assert (silent.returncode, silent.stdout) == (2, "")


def test_a_full_disk_behind_stdout_is_said(recording: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = trnprof("info", recording, stdout=full)
    assert done.only_error == ("trnprof: cannot write to standard output: No space left on device")
