"""How is a command run so that the first PyTorch or JAX program in it is captured? Unchanged, with two environment variables more."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnprof.emulator.capture.launch_settings import (
    BOOTSTRAP,
    CLAIM_NAME,
    VARIABLE,
    Settings,
    prepare_state,
    take_state,
)
from trnprof.emulator.capture.moe_load import UNIFORM
from trnprof.emulator.capture.store import seal_workload
from trnprof.emulator.capture.torchrun import RankCommand
from trnprof.tracer.errors import CaptureError
from trnprof.tracer.files import writing


@dataclass(frozen=True)
class CaptureResult:
    """What running a command gave.

    Attributes:
        exit_code: as a shell reports it: 128 + n for a program that signal n ended.
        captured: whether the trace now holds a workload.
        process: id of the process that was captured, None if none was.
        started: whether any Python of the command could have been captured: it ran the capture's start-up.
        failure: why the capture failed or ended early, "" if it did not.
    """

    exit_code: int
    captured: bool
    process: int | None = None
    started: bool = True
    failure: str = ""


def run_captured(
    command: Sequence[str] | RankCommand,
    trace_dir: Path,
    *,
    fake: bool = False,
    steps: tuple[int, int] | None = None,
    host_spans: bool = True,
    moe_load: str = UNIFORM,
) -> CaptureResult:
    """Run a command with its input and output inherited, and capture the first process that computes with torch or JAX.

    Args:
        command: program and arguments; as a RankCommand, the world whose rank 0 it plays.
        trace_dir: trace directory; the workload is written into it and sealed.
        fake: run on fake tensors.
        steps: first and last step to record, inclusive.
        host_spans: keep spans of the host's wall clock too.
        moe_load: load of experts on fake tensors, as ``read_moe_load`` takes it.

    Raises:
        CaptureError: the program or its script does not exist or cannot be started; nothing was run.
        WriteError: the trace directory cannot be written; nothing was run.
    """
    rank = command if isinstance(command, RankCommand) else RankCommand(tuple(command))
    check_command(rank.command)
    with writing(trace_dir):
        trace_dir.mkdir(parents=True, exist_ok=True)
        prepare_state(trace_dir)
    settings = Settings(
        trace_dir.resolve(),
        fake,
        steps,
        host_spans,
        rank.world_size,
        rank.local_size,
        os.path.abspath(moe_load) if os.path.exists(moe_load) else moe_load,
    )
    environment = capture_environment({**os.environ, **rank.environment()}, settings)
    try:
        child = subprocess.Popen(rank.command, env=environment)
    except OSError as error:
        take_state(trace_dir)
        raise CaptureError(f"cannot start {rank.command[0]}: {error.strerror or error}") from error
    with _signals_left_to(child):
        code = child.wait()
    process = _claimed_by(trace_dir)
    started, failure, left = take_state(trace_dir)
    notes = (
        (f"{left} further process(es) ran PyTorch models and were not recorded",) if left else ()
    )
    exit_code = code if code >= 0 else 128 - code
    return CaptureResult(exit_code, seal_workload(trace_dir, notes), process, started, failure)


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot run, before anything is written.

    Raises:
        CaptureError: no command, no such program, or ``python SCRIPT`` without such a script.
    """
    if not command:
        raise CaptureError("no command to record: give it after --, such as -- python train.py")
    program = shutil.which(command[0])
    if program is None:
        if os.path.exists(command[0]):
            raise CaptureError(
                f"{command[0]} is not executable: write python {command[0]}, or chmod +x it"
            )
        raise CaptureError(f"{command[0]}: no such file or command")
    if Path(command[0]).name.startswith(("python", "pypy")) and len(command) > 1:
        script = command[1]
        if not script.startswith("-") and not os.path.exists(script):
            raise CaptureError(f"{script}: no such file")


def capture_environment(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The environment of a captured program."""
    paths = [str(BOOTSTRAP)]
    if environment.get("PYTHONPATH"):
        paths.append(environment["PYTHONPATH"])
    return {**environment, VARIABLE: settings.to_json(), "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def _signals_left_to(child: subprocess.Popen[Any]) -> Iterator[None]:
    """SIGINT reaches the child by itself (same terminal); SIGTERM and SIGHUP are passed on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[signal.Signals, Any] = {signal.SIGINT: lambda *_: None}
    for passed in (signal.SIGTERM, signal.SIGHUP):
        handlers[passed] = lambda number, _: child.send_signal(number)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _claimed_by(trace_dir: Path) -> int | None:
    claim = trace_dir / CLAIM_NAME
    try:
        process = int(claim.read_text())
    except (OSError, ValueError):
        return None
    claim.unlink(missing_ok=True)
    return process
