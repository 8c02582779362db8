"""How is the viewer opened, or one frame of it written?"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from trnprof.cli.output import show, write_text
from trnprof.cli.reading import open_and_tell
from trnprof.cli.stopping import leave_to_viewer
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.units import parse_duration_ns


def print_frame(
    path: Path, *, size: str, at: str | None, ascii_only: bool, svg: Path | None, force: bool
) -> None:
    """Write one frame to stdout as text, or to a file as SVG."""
    from trnprof.tui import print as frame

    width, height = _size(size)
    window = _window(at)
    trace = open_and_tell(path)
    if svg is not None:
        write_text(svg, frame.svg(trace, width, height, at=window), force=force)
    else:
        show(frame.render(trace, width, height, at=window, ascii=ascii_only))


def open_viewer(path: Path, *, ascii_only: bool) -> None:
    """Run the Textual app until it is left.

    Raises:
        TrnprofError: stdout or stdin is no terminal.
    """
    # a stream that was closed is None
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        raise TrnprofError(
            "this is not a terminal; `trnprof view TRACE --print` writes a frame as text"
        )
    # Textual reads it when imported: a 26 ms repaint otherwise waits for the next tick of 60 a second
    os.environ.setdefault("TEXTUAL_FPS", "120")
    from trnprof.tui.app import run_app

    trace = open_and_tell(path)
    leave_to_viewer()
    run_app(trace, ascii=ascii_only)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)[xX](\d+)", text.strip())
    if match is None:
        raise TrnprofError(f"--size {text!r}: expected WxH, such as 100x30")
    width, height = int(match[1]), int(match[2])
    if not (40 <= width <= 1000 and 10 <= height <= 1000):
        raise TrnprofError(f"--size {text!r}: at least 40x10, at most 1000x1000")
    return width, height


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, dots, last = text.partition("..")
    if not dots:
        raise TrnprofError(f"--at {text!r}: expected A..B, such as 1.2ms..1.5ms")
    window = parse_duration_ns(first), parse_duration_ns(last)
    if window[1] <= window[0]:
        raise TrnprofError(f"--at {text!r}: its end lies before its start")
    return window
