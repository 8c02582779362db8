"""How are the captured process's instructions handed over? As JSON in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TRNPROF_CAPTURE"


@dataclass(frozen=True)
class Settings:
    """What to capture.

    Attributes:
        directory: the trace directory.
        fake: run on fake tensors.
        steps: first and last step to record, inclusive; None: all.
        host_spans: keep wall-clock spans of the host too.
    """

    directory: Path
    fake: bool = False
    steps: tuple[int, int] | None = None
    host_spans: bool = True

    def to_environment(self) -> dict[str, str]:
        """The variable that carries them."""
        document = {
            "directory": str(self.directory),
            "fake": self.fake,
            "steps": self.steps,
            "host_spans": self.host_spans,
        }
        return {VARIABLE: json.dumps(document)}


def from_environment() -> Settings | None:
    """What the parent asked for, None if nothing."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    document = json.loads(text)
    steps = document["steps"]
    return Settings(
        Path(document["directory"]),
        document["fake"],
        (steps[0], steps[1]) if steps else None,
        document["host_spans"],
    )
