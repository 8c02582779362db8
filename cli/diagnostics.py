"""What goes to stderr, and which exit code does the process end with? The only module that writes stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from enum import IntEnum


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
    tell(f"trnprof: {text}")


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
        return fail(
            "out of memory: give the process more, or read less at a time (import: --jobs 1)"
        )
    kind = type(error).__name__
    return fail(f"internal error: {kind}: {error} (a bug in trnprof; TRNPROF_DEBUG=1 shows where)")
