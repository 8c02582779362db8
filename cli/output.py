"""How does text leave a command: to stdout, or to a file that is there whole or not at all?"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from trnprof.cli.diagnostics import ExitCode
from trnprof.tracer.errors import WriteError
from trnprof.tracer.files import check_output_file, written_beside


def show(text: str) -> None:
    """Print data to stdout, now, so that a failure is told like any other.

    Raises:
        SystemExit: whoever read stdout went away (``| head``): nothing is wrong.
        WriteError: stdout goes to a disk that is full, or the like.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal or locale without these characters shows ? instead
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, flush=True)
    except OSError as error:
        # what is still in the buffer must not fail again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(int(ExitCode.FINE)) from None
        raise WriteError(f"cannot write to standard output: {error.strerror or error}") from error


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write beside the target and rename into place.

    Raises:
        OutputExistsError: it is there and ``force`` was not given, or it is a directory.
        WriteError: it cannot be written.
    """
    check_output_file(path, force=force)
    with written_beside(path, force=force) as beside:
        beside.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
