"""How is a command run so that the first PyTorch or JAX program in it is captured? Unchanged, with two environment variables more."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
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
from trnprof.emulator.capture.peers import FOLDER, folder_of
from trnprof.emulator.capture.rank_processes import run_world
from trnprof.emulator.capture.rank_programs import seal_programs
from trnprof.emulator.capture.store import STREAM_NAME
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
    on_ranks: Callable[[Sequence[int]], object] = lambda _: None,
    moe_load: str = UNIFORM,
) -> CaptureResult:
    """Run a command with its input and output inherited, and capture the first process that computes with torch or JAX.

    Of a world rank 0 is run, and beside it each rank that turns out to do something else.

    Args:
        command: program and arguments; as a RankCommand, the world in which it plays rank 0.
        trace_dir: trace directory; the workload is written into it and sealed.
        fake: run on fake tensors.
        steps: first and last step to record, inclusive.
        host_spans: keep spans of the host's wall clock too.
        on_ranks: told which further ranks are run, when they are.
        moe_load: load of experts on fake tensors, as ``read_moe_load`` takes it.

    Raises:
        CaptureError: the program or its script does not exist or cannot be started; nothing was run.
        WriteError: the trace directory cannot be written; nothing was run.
    """
    rank = command if isinstance(command, RankCommand) else RankCommand(tuple(command))
    check_command(rank.command)
    peers = trace_dir.resolve() / FOLDER if fake and (rank.world_size or 1) > 1 else None
    with writing(trace_dir):
        trace_dir.mkdir(parents=True, exist_ok=True)
        if peers is not None:
            shutil.rmtree(peers, ignore_errors=True)
            peers.mkdir()

    def start(number: int) -> subprocess.Popen[Any]:
        folder = folder_of(trace_dir.resolve(), number)
        with writing(folder):
            folder.mkdir(exist_ok=True)
            prepare_state(folder)
        own = rank.of_rank(number)
        settings = Settings(
            folder,
            fake,
            steps,
            host_spans and not number,
            rank.world_size,
            rank.local_size,
            number,
            peers,
            os.getpid(),
            os.path.abspath(moe_load) if os.path.exists(moe_load) else moe_load,
        )
        environment = capture_environment({**os.environ, **own.environment()}, settings)
        return subprocess.Popen(own.command, env=environment, stdin=DEVNULL if number else None)

    try:
        first = start(0)
    except OSError as error:
        take_state(trace_dir)
        raise CaptureError(f"cannot start {rank.command[0]}: {error.strerror or error}") from error
    size = rank.world_size or 1
    try:
        codes = run_world(first, start, peers, size, on_ranks)
    except CaptureError:
        (trace_dir / STREAM_NAME).unlink(missing_ok=True)
        raise
    return _result(trace_dir, peers, size, codes)


def _result(
    trace_dir: Path, peers: Path | None, size: int, codes: Mapping[int, int]
) -> CaptureResult:
    """What all processes left, sealed into the trace."""
    process = _claimed_by(trace_dir)
    folders = {number: folder_of(trace_dir, number) for number in codes}
    states = {number: take_state(folder) for number, folder in folders.items()}
    left = sum(count for _, _, count in states.values())
    notes = [f"{left} further process(es) ran PyTorch models and were not recorded"] if left else []
    blamed = next(iter(codes))  # the one that failed first, else rank 0
    started, failure, _ = states[blamed]
    is_captured = seal_programs(folders, codes, size, peers, notes)
    if peers is not None:
        shutil.rmtree(peers, ignore_errors=True)
    return CaptureResult(codes[blamed], is_captured, process, started, failure)


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


def _claimed_by(trace_dir: Path) -> int | None:
    claim = trace_dir / CLAIM_NAME
    try:
        process = int(claim.read_text())
    except (OSError, ValueError):
        return None
    claim.unlink(missing_ok=True)
    return process
