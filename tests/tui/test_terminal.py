"""The real application in a real terminal (a pty that pyte draws), on a real trace on disk."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pyte
import pytest

from trnprof.tracer.writer import TraceWriter

RUNNER = "import sys; from trnprof.tracer.reader import open_trace; from trnprof.tui.app import run_app; sys.exit(run_app(open_trace(sys.argv[1]), ascii='--ascii' in sys.argv))"


class Terminal:
    """A program under a pty, with the screen it draws and all the bytes it wrote."""

    def __init__(self, arguments: list[str], columns: int, lines: int, **environment: str) -> None:
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLORTERM", "CI")}
        env |= {
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
            **environment,
        }
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.child = pexpect.spawn(
            sys.executable, ["-c", RUNNER, *arguments], env=env, dimensions=(lines, columns), timeout=30
        )  # fmt: skip

    def _read(self, seconds: float) -> None:
        try:
            data = self.child.read_nonblocking(1 << 16, seconds)
        except pexpect.TIMEOUT:
            return
        self.raw += data
        # pyte takes the private parameters of newer sequences (kitty keys, mode reports) for colours: leave them out
        self.stream.feed(re.sub(rb"\x1b\[[<>=?][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;$]*p", b"", data))

    def wait_for(self, text: str, seconds: float = 30.0) -> str:
        """The screen once it shows a text."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read(0.2)
            if text in (shown := "\n".join(self.screen.display)):
                return shown
        raise AssertionError(f"{text!r} is not on the screen:\n" + "\n".join(self.screen.display))

    def quit(self, key: str) -> int:
        """Send a key, read to the end; the exit code."""
        self.child.send(key)
        end = time.monotonic() + 30
        while self.child.isalive() and time.monotonic() < end:
            try:
                self._read(0.1)
            except pexpect.EOF:
                break
        self.child.close()
        return int(self.child.exitstatus)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.trnprof"
    with TraceWriter(path, writer="emulator") as writer:
        writer.add_tracks(
            {
                "track_id": [0, 1, 2], "parent_id": [None, 0, 0], "kind": ["core", "engine", "engine"],
                "name": ["core 0", "Tensor", "evil\x1b[31mname"], "sort_order": [0, 0, 1], "lane": [0, 0, 0],
                "exclusive": [True, True, True], "clock_id": [0, 0, 0], "host": ["h", "h", "h"],
                "replica_count": [1, 1, 1],
            }
        )  # fmt: skip
        writer.append_events(
            {
                "track_id": [1, 1, 2], "start_ns": [0, 60_000, 10_000], "duration_ns": [40_000, 40_000, 30_000],
                "name": ["matmul", "softmax", "\x1b]0;title\x07gelu"], "category": ["compute"] * 3,
            }
        )  # fmt: skip
    return path


@pytest.fixture
def open_terminal(trace: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*options: str, size: tuple[int, int] = (90, 26), **environment: str) -> Terminal:
        opened.append(Terminal([str(trace), *options], size[0], size[1], **environment))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.child.close(force=True)


def test_browse_select_and_quit(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal()
    shown = terminal.wait_for("q quit")
    assert "run.trnprof" in shown
    assert "80.0 %" in shown
    assert "matmul" in shown
    terminal.child.send("\r")
    assert "40 µs" in terminal.wait_for("duration")
    terminal.child.send(".")
    terminal.wait_for("20 µs before")
    terminal.child.send("j")
    terminal.wait_for("evil␛[31mname  idle")  # only the lines that changed were sent
    terminal.child.send("?")
    terminal.wait_for("fit the whole trace")
    terminal.child.send("?")
    assert terminal.quit("q") == 0
    assert b"\x1b[?1049l" in terminal.raw  # the screen of before is back
    assert b"\x1b[?25h" in terminal.raw  # and the cursor
    assert b"\x1b[31m" not in terminal.raw  # names cannot speak to the terminal
    assert b"\x1b]0;title" not in terminal.raw


def test_no_color_sends_none(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal(NO_COLOR="1")
    terminal.wait_for("q quit")
    terminal.child.send("\r")
    terminal.wait_for("duration")
    assert terminal.quit("\x11") == 0
    styles = re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw)
    numbers = {int(n) for s in styles for n in s.split(b";") if n}
    assert not numbers & ({38, 48} | set(range(30, 38)) | set(range(40, 48)) | set(range(90, 108)))


def test_ascii_and_a_small_screen(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal("--ascii", size=(40, 10))
    shown = terminal.wait_for("quit")
    assert "Tensor" in shown
    assert terminal.quit("q") == 0
    assert terminal.raw.isascii()
