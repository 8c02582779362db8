"""``python -m trnprof`` is ``trnprof``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.cli.runner import COMMAND


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["report", "nowhere.trnprof"]])
def test_python_m_trnprof_says_what_trnprof_says(arguments: list[str]) -> None:
    outcomes = [
        subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        for command in ([sys.executable, "-m", "trnprof"], COMMAND)
    ]
    ours, wanted = ((o.returncode, o.stdout, o.stderr) for o in outcomes)
    assert ours == wanted
    assert ours[1] or ours[2].startswith("trnprof: ")
