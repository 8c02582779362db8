"""Where does one step end and the next begin?

Steps are marked by ``trnprof.step`` before the profiler's ``step()`` before ``optimizer.step``; what is known to be marked by a
better source is not cut by a lesser one. A program that marks none gets its steps when its log is replayed, from cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trnprof.emulator.capture.messages import incomplete

RANKS: Final = {"": 0, "optimizer": 1, "profiler": 2, "marker": 3}


class Steps:
    """Counts steps.

    Attributes:
        number: ordinal of the step that runs.
        source: best source of boundaries so far.
        operations: device operations in it so far.
        is_broken: an exception has left a forward of it.
    """

    def __init__(self, on_end: Callable[[int, str, str], object]) -> None:
        self.number = 0
        self.source = ""
        self.operations = 0
        self.is_broken = False
        self.on_end = on_end
        self._pending = ""

    def mark(self, source: str, label: str = "") -> None:
        """A step ends here, by this source."""
        if RANKS[source] < RANKS[self.source]:
            return
        self.source, self._pending = source, ""
        if source == "optimizer":
            self._pending = source  # optimizers in a row are one boundary
        else:
            self._end(label)

    def before_forward(self) -> None:
        """The device goes on after optimizers: now the step that they ended is over."""
        if self._pending:
            self._pending = ""
            self._end("")

    def finish(self, is_interrupted: bool) -> None:
        """The program is over, by an exception if it was interrupted."""
        is_whole = bool(self._pending) or not (is_interrupted or self.is_broken)
        self._end("" if is_whole else incomplete(self.number))

    def _end(self, label: str) -> None:
        if self.operations and self.source:
            self.on_end(self.number, label or f"step {self.number}", self.source)
            self.number += 1
            self.operations = 0
            self.is_broken = False
