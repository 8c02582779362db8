"""What does the process that runs the program need to know to capture it? Passed in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "TRNPROF_CAPTURE"
CLAIM_NAME: Final = "capture.claim"
"""File in the trace directory; the process that made it captures. It holds the process id."""
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
    """

    trace_dir: Path
    fake: bool = False
    steps: tuple[int, int] | None = None
    host_spans: bool = True

    def to_json(self) -> str:
        """The value of the environment variable."""
        return json.dumps(
            {
                "dir": str(self.trace_dir),
                "fake": self.fake,
                "steps": self.steps,
                "host_spans": self.host_spans,
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
        )


def leave_environment() -> None:
    """Give the processes that this one starts the environment it would have had: they are not captured."""
    os.environ.pop(VARIABLE, None)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if entries and entries[0] == str(BOOTSTRAP):
        del entries[0]
    if entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(entries)
    else:
        os.environ.pop("PYTHONPATH", None)
