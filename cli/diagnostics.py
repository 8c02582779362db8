"""What goes to stderr, and which exit code does the process end with? The only module that writes stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from enum import IntEnum
from typing import Final, TextIO

_NARROWEST: Final = 20
"""Columns below which no text is folded further."""


_NEEDS_LESS: Final = {
    "import": "give the process more, or read one source at a time (--jobs 1)",
    "collective": "give the process more, or hold less: fewer chunks (--chunks 1), or none (--fidelity closed-form)",
    "record": "give the process more, or record fewer steps (--steps A..B)",
}
"""What to do where memory runs out, by command."""


class ExitCode(IntEnum):
    """Exit codes of every command but ``record``, which passes the recorded command's own."""

    FINE = 0
    FOUND = 1
    """A check failed, or ``validate`` found something."""
    BAD_INPUT = 2
    """Bad input or our failure."""
    INTERRUPTED = 130


def say(text: str) -> None:
    """One line of narration; stdout stays data."""
    tell(folded(f"trnprof: {text}", sys.stderr))


def columns_of(stream: TextIO | None) -> int | None:
    """How wide the terminal is that a stream goes to; None if it goes to none."""
    if stream is None or not stream.isatty():
        return None
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None


def folded(line: str, stream: TextIO | None) -> str:
    """A line as it is, or on a terminal that is narrower as several, broken between words and indented by two."""
    columns = columns_of(stream)
    if columns is None or len(line) <= columns:
        return line
    own = len(line) - len(line.lstrip(" "))
    return textwrap.fill(
        line,
        max(columns, _NARROWEST),
        subsequent_indent=" " * (own + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def tell(text: str) -> None:
    """Text on stderr as it is; if nobody reads stderr there is nobody to tell."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def live(text: str) -> None:
    """Put a line in place of the one that stands on the terminal; an empty one takes it away."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


def command_name() -> str:
    """Which command this process was started for; "" if it cannot be told."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def fail(text: str, code: ExitCode = ExitCode.BAD_INPUT) -> SystemExit:
    """The exception that ends the process with one line on stderr."""
    say(text)
    return SystemExit(int(code))


def internal_error(error: BaseException) -> SystemExit:
    """Our own fault, told in one line; TRNPROF_DEBUG=1 shows the traceback."""
    if os.environ.get("TRNPROF_DEBUG"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, MemoryError):
        return fail(f"out of memory: {_NEEDS_LESS.get(command_name(), 'give the process more')}")
    kind = type(error).__name__
    return fail(f"internal error: {kind}: {error} (a bug in trnprof; TRNPROF_DEBUG=1 shows where)")
