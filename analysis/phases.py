"""Which phase of training does the step's time go to? A partition by phase that sums to the step exactly.

Phases run side by side (the optimizer loads its state while backward computes), so each instant of a unit's window is
charged to one of them, the first that holds:

    the first of forward, backward, optimizer, other that an engine (or stream) computes for
    the first of them that a collective, a DMA or the issue of one runs for
    idle, if nothing runs

so that DMA hidden behind the compute of another phase costs its own phase nothing. A phase is that of the event's operation
in ``ops``; events without operation or phase, and phases of other names, are *other*. The phases sum to what the engines
and DMAs do in ``breakdown``, and idle here is its host and idle together.
"""

from __future__ import annotations

from typing import Final

NAMED_PHASES: Final = ("forward", "backward", "optimizer")
WORKING: Final = (*NAMED_PHASES, "other")
PHASES: Final = (*WORKING, "idle")
