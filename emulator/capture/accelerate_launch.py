"""Which world does ``accelerate launch`` start? Accelerate itself is asked, with its configuration, and the processes are left out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from trnprof.emulator.capture.launch_settings import BOOTSTRAP
from trnprof.tracer.errors import CaptureError

_SCRIPT: Final = BOOTSTRAP / "accelerate_answer.py"
_SECONDS: Final = 120
_MODULES: Final = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")


class Launched(NamedTuple):
    """What the launcher would start: the command of each rank, ranks on a node, nodes (0: one process, no world), variables."""

    command: tuple[str, ...]
    local: int
    nodes: int
    variables: tuple[tuple[str, str], ...]


def accelerate_arguments(name: str, command: Sequence[str]) -> list[str] | None:
    """The arguments of ``accelerate launch``; None for another command.

    Args:
        name: file name of the program, or the module that a Python is told to run.
        command: its arguments.
    """
    if name in ("accelerate-launch", _MODULES[0]):
        return list(command)
    if name in ("accelerate", _MODULES[1]) and command and command[0] == "launch":
        return list(command[1:])
    return None


def ask_accelerate(
    python: Sequence[str], arguments: Sequence[str], world_size: int | None
) -> Launched:
    """What accelerate would start.

    Args:
        python: the interpreter that has it, with its options.
        arguments: of ``accelerate launch``.
        world_size: as asked with --world-size: devices that it finds.

    Raises:
        CaptureError: it is not installed, or refuses its arguments or its configuration.
    """
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        line = [*python, str(_SCRIPT), str(answer), str(world_size or 1), *arguments]
        try:
            done = subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CaptureError(f"accelerate launch: {error}") from error
        if done.returncode or not answer.exists():
            lines = [text for text in done.stderr.splitlines() if text.strip()]
            reason = lines[-1].strip() if lines else f"it ended with code {done.returncode}"
            raise CaptureError(f"accelerate launch: {reason}")
        told: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    return Launched(
        tuple(told["command"]),
        told["local"],
        told["nodes"],
        tuple(sorted(told["environment"].items())),
    )
