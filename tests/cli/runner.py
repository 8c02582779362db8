"""Runs the real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "emulator" / "scripts"
TINY = Path(__file__).parent / "tiny.py"
PYTHON = sys.executable
COMMAND = (PYTHON, "-m", "trnprof.cli.main")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def only_error(self) -> str:
        """The one line that bad input leaves on stderr, with exit code 2 and nothing on stdout; that something is compiled is said once on a machine."""
        assert (self.code, self.out) == (2, ""), self
        lines = [
            line for line in self.err.splitlines() if not line.startswith("trnprof: compiling ")
        ]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("trnprof: "), self.err
        return lines[0]


def trnprof(
    *arguments: str | Path,
    folder: Path | None = None,
    script_raises: bool = False,
    env: dict[str, str] | None = None,
    **popen: Any,
) -> Outcome:
    """Run the command to its end; a traceback of ours is never right."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        text=True,
        check=False,
        **streams | popen,
    )
    outcome = Outcome(done.returncode, done.stdout or "", done.stderr or "")
    if not script_raises:
        assert "Traceback" not in outcome.out + outcome.err, outcome.err
    assert "internal error" not in outcome.err, outcome.err
    return outcome


def names_below(folder: Path) -> list[str]:
    """Everything in a folder and its folders, hidden files too."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
