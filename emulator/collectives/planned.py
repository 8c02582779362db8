"""What is a collective between its request and its outcome, in the fidelities that have messages?"""

from __future__ import annotations

from dataclasses import dataclass

from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.collectives.outcome import Bound, Events
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.fabric.fabric import I64, Routes


@dataclass(frozen=True)
class Planned:
    """One collective that is ready to run.

    Attributes:
        request: what is asked.
        algorithms: by which it runs.
        chosen_because: in words, where the policy chose.
        messages: positions of ``request.ranks``.
        routes: one a message.
        times: how often all messages are sent, one time after the other: of a closed form, they may be one step that stands for all.
    """

    request: Request
    algorithms: tuple[str, ...]
    chosen_because: str
    messages: Messages
    routes: Routes
    times: int = 1


@dataclass(frozen=True)
class Ran:
    """How it ran.

    Attributes:
        time_ps: to the last arrival.
        rank_end_ps: int64[ranks].
        link_busy_ps: int64[links].
        bound: what bounds it.
        events: of the chunked fidelity.
        formula_chunks: of a closed form: into how many chunks it cuts a message.
    """

    time_ps: int
    rank_end_ps: I64
    link_busy_ps: I64
    bound: Bound
    events: Events | None = None
    formula_chunks: int | None = None
