"""How is a command run so that its Python processes capture themselves, with its output and exit code untouched?"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trnprof.emulator.capture.settings import Settings
from trnprof.tracer.errors import CaptureError

BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
_VALUE_OPTIONS = ("-W", "-X", "--check-hash-based-pycs")


def check_command(command: Sequence[str]) -> None:
    """Find out before anything is written whether a command can start.

    Raises:
        CaptureError: the program, or the script that a Python would run, does not exist.
    """
    program = command[0]
    if shutil.which(program) is None:
        what = "is not executable" if os.path.isfile(program) else "was not found"
        raise CaptureError(f"command {program!r} {what}: check its name and PATH")
    if os.path.basename(program).startswith("python"):
        script = _script_of(command[1:])
        if script is not None and not os.path.exists(script):
            raise CaptureError(f"script {script!r} was not found (from {os.getcwd()})")


def run_command(command: Sequence[str], settings: Settings) -> int:
    """Run a command with capture on; it shares our stdin, stdout and stderr.

    Ctrl-C reaches it directly and is ignored here until it ends; SIGTERM is passed on.

    Returns:
        Its exit code; 128 + n if signal n ended it.
    """
    environment = os.environ | settings.to_environment()
    paths = [str(BOOTSTRAP), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            list(command),
            env=environment,
            # what we ignore, a child would ignore too
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        terminations = signal.signal(
            signal.SIGTERM, lambda number, _: child.send_signal(number)
        )
        try:
            code = child.wait()
        finally:
            signal.signal(signal.SIGTERM, terminations)
    except OSError as error:
        raise CaptureError(f"command {command[0]!r} could not be started: {error.strerror}") from error
    finally:
        signal.signal(signal.SIGINT, interrupts)
    return 128 - code if code < 0 else code


def _script_of(arguments: Sequence[str]) -> str | None:
    """The script file in the arguments of a Python, None for -m, -c, - and interactive use."""
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in ("-m", "-c", "-"):
            return None
        elif argument in _VALUE_OPTIONS:
            skip = True
        elif not argument.startswith("-"):
            return argument
    return None
