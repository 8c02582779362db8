"""Lines on a narrow terminal are folded between words; elsewhere a line stays a line."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from pathlib import Path

import pytest

from trnprof.cli.diagnostics import folded

from tests.cli.runner import COMMAND  # isort: skip

WORDS = "trnprof: warning: rank0: kernels have no launch in the profile; they were kept (12 of 40)"


class Terminal(io.StringIO):
    """Says that it is a terminal; the width is that of COLUMNS."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 40, 60, 88, 89, 200])
def test_no_word_is_broken_or_lost_and_no_line_is_too_long(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = folded(WORDS, Terminal())
    lines = text.split("\n")
    assert text.split() == WORDS.split()
    assert all(len(line) <= columns for line in lines)
    assert (len(lines) == 1) == (len(WORDS) <= columns)
    assert all(line.startswith("  ") for line in lines[1:])


def test_a_path_longer_than_the_terminal_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "/data/" + "x" * 60 + "/rank-0.json"
    assert path in folded(f"trnprof: {path}: is empty", Terminal()).replace(":", "").split()


def test_what_goes_to_no_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert folded(WORDS, io.StringIO()) == WORDS
    assert folded(WORDS, None) == WORDS


def test_a_refusal_on_a_real_terminal_of_forty_columns(tmp_path: Path) -> None:
    name = tmp_path / "x.json"
    name.write_text("no profile at all")
    command = [*COMMAND, "import", "x.json", "-o", "y.trnprof"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert len(plain.stderr.splitlines()) == 1
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "40", "TERM": "xterm"}
    subprocess.run(command, cwd=tmp_path, stderr=theirs, env=environment, check=False)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode().splitlines()
    os.close(ours)
    assert " ".join(said).split() == plain.stderr.split()
    assert len(said) > 1
    assert max(len(line) for line in said) <= 40
