"""What does the process that runs the program need to know to capture it? Passed in one environment variable."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "TRNPROF_CAPTURE"
CLAIM_NAME: Final = "capture.claim"
"""File in the trace directory; the process that made it captures. It holds the process id."""
LEFT_PREFIX: Final = "capture.left-"
"""Start of the name of an empty file for each process that ran models and was not captured."""
STATE_NAME: Final = "capture.state"
"""File made by the launcher: its first byte is STARTED once a bootstrap ran, the rest says why a capture failed."""
STARTED: Final = b"s"
_STATE_BYTES: Final = 4096
BOOTSTRAP: Final = Path(__file__).parent / "startup"
"""The folder with sitecustomize.py."""


@dataclass(frozen=True)
class Settings:
    """How to capture.

    Attributes:
        trace_dir: where the workload goes.
        fake: run on fake tensors.
        steps: first and last step to record, None for all.
        host_spans: keep spans of the host's wall clock too.
        world_size: ranks of the world of which this process plays one, None if it plays none.
        local_size: ranks of it on each node: the devices that a program sees.
        rank: the one that it plays.
        peers: folder in which ranks that differ find each other, None where there are none.
        launcher: process that started it.
        moe_load: load of experts on fake tensors: uniform, zipf:EXPONENT, or the path of a file.
    """

    trace_dir: Path
    fake: bool = False
    steps: tuple[int, int] | None = None
    host_spans: bool = True
    world_size: int | None = None
    local_size: int = 1
    rank: int = 0
    peers: Path | None = None
    launcher: int = 0
    moe_load: str = "uniform"

    def to_json(self) -> str:
        """The value of the environment variable."""
        return json.dumps(
            {
                "dir": str(self.trace_dir),
                "fake": self.fake,
                "steps": self.steps,
                "host_spans": self.host_spans,
                "world_size": self.world_size,
                "local_size": self.local_size,
                "rank": self.rank,
                "peers": None if self.peers is None else str(self.peers),
                "launcher": self.launcher,
                "moe_load": self.moe_load,
            }
        )

    @staticmethod
    def from_json(text: str) -> Settings:
        """Read it back."""
        values = json.loads(text)
        steps = values["steps"]
        return Settings(
            Path(values["dir"]),
            values["fake"],
            (steps[0], steps[1]) if steps else None,
            values["host_spans"],
            values["world_size"],
            values["local_size"],
            values["rank"],
            Path(values["peers"]) if values["peers"] else None,
            values["launcher"],
            values["moe_load"],
        )


def prepare_state(trace_dir: Path) -> None:
    """Make the state file, at its full size: a process may then write in it even when the disk is full.

    Raises:
        OSError: it cannot be written.
    """
    for path in (trace_dir / CLAIM_NAME, *trace_dir.glob(LEFT_PREFIX + "*")):
        path.unlink(missing_ok=True)
    (trace_dir / STATE_NAME).write_bytes(b" " * _STATE_BYTES)


def write_state(trace_dir: Path, text: str) -> None:
    """Tell the launcher why the capture ended; without a state file nobody asks."""
    with suppress(OSError):
        handle = os.open(trace_dir / STATE_NAME, os.O_WRONLY)
        try:
            os.pwrite(handle, text.encode("utf-8", "replace")[: _STATE_BYTES - 1], 1)
        finally:
            os.close(handle)


def take_state(trace_dir: Path) -> tuple[bool, str, int]:
    """Whether any Python ran the bootstrap, why a capture failed ("" if none did), and how many processes were left out.

    All of these files are removed.
    """
    path = trace_dir / STATE_NAME
    left = list(trace_dir.glob(LEFT_PREFIX + "*"))
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        text = STARTED.decode()
    for file in (path, *left):
        with suppress(OSError):
            file.unlink(missing_ok=True)
    return text.startswith(STARTED.decode()), text[1:].strip(), len(left)


def leave_mark(trace_dir: Path) -> None:
    """This process runs models, and another one is captured: leave a mark for the launcher to count."""
    with suppress(OSError):
        os.close(
            os.open(trace_dir / f"{LEFT_PREFIX}{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o644)
        )
