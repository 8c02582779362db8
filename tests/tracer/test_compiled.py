"""Whoever waits for a compiler is told once; what was kept on disk is loaded without a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
from trnprof.tracer.compile_notice import tell_of_compiling

tell_of_compiling(lambda: print("told"))
from trnprof.tracer.compiled import compiled

@compiled
def twice(x):
    return 2 * x

print(twice(3), twice(1.5))
"""


def test_compiling_is_told_once_and_loading_is_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    said = [
        subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert said == ["told\n6 3.0\n", "6 3.0\n"]
