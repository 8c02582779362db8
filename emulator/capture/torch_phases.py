"""Which phase is it, and where does one step end and the next begin?

Steps are marked by ``trnprof.step`` before the profiler's ``step()`` before ``optimizer.step``; what is known to be marked by a
better source is not cut by a lesser one. A program that marks none gets its steps when its log is replayed, from cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from trnprof.emulator.capture.replay import incomplete

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


class Phases:
    """What the hooks of optimizers and the autograd engine say.

    Attributes:
        optimizers: identities of the optimizers whose step runs, innermost last.
        after_backward: gradients are there and no forward has begun since: clipping and scaling belong to the optimizer.
    """

    def __init__(self) -> None:
        self.optimizers: list[int] = []
        self.after_backward = False

    def enter_optimizer(self, identity: int) -> None:
        """Its step begins; if it was running, that step ended in an exception."""
        if identity in self.optimizers:
            del self.optimizers[self.optimizers.index(identity) :]
        self.optimizers.append(identity)

    def leave_optimizer(self, identity: int) -> bool:
        """Its step has ended; False if it was not running."""
        if identity not in self.optimizers:
            return False
        del self.optimizers[self.optimizers.index(identity) :]
        return True

    def current(self, in_module: bool, on_state: bool) -> str:
        """The phase of an operation.

        Args:
            in_module: it runs in the forward of a module.
            on_state: it reads parameters, gradients or optimizer state, with gradient mode off.
        """
        if torch._C._current_graph_task_id() != -1:
            self.after_backward = True
            return "backward"
        if in_module:
            return "forward"
        if self.optimizers or (self.after_backward and on_state):
            return "optimizer"
        return "forward"
