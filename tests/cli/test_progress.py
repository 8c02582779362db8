"""The bar: on a terminal after a second, nowhere else, and gone at the end."""

from __future__ import annotations

import sys

import pexpect
import pytest

from trnprof.cli.progress import bar

PROGRAM = """
import time
from trnprof.cli import progress
progress.AFTER_SECONDS = {after}
with progress.bar("reading the trace") as tell:
    for done in range(3):
        tell(done, 3, "second part" if done else None)
        time.sleep(0.3)
print("done")
"""


def shown(after: float) -> str:
    program = pexpect.spawn(
        sys.executable, ["-c", PROGRAM.format(after=after)], encoding="utf-8", timeout=30,
        env={"TERM": "xterm", "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(p for p in sys.path if p)},
    )  # fmt: skip
    text = program.read()
    program.close()
    assert program.exitstatus == 0, text
    return str(text)


def test_a_terminal_sees_a_bar_that_is_gone_at_the_end() -> None:
    text = shown(0.1)
    assert "reading the trace" in text
    assert "second part" in text
    assert text.rstrip().endswith("done")
    assert "second part" not in text[text.rindex("\x1b[2K") :]


def test_what_is_quick_shows_none() -> None:
    assert "reading" not in shown(20.0)


def test_what_is_no_terminal_sees_none(capfd: pytest.CaptureFixture[str]) -> None:
    with bar("reading the trace") as tell:
        tell(1, 2)
    assert capfd.readouterr() == ("", "")
