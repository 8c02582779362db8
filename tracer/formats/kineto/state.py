"""What is held of a PyTorch profile while it is read, beside the events that are staged?

Events refer to one another by ids and by time, in any order, so links can only be made when all are read. Until then a few numbers are
kept of those events that can be linked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.gathered import Gathered
from trnprof.tracer.ingest.stage import Stage

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass
class State:
    """One profile while it is read.

    Attributes:
        stage: takes the events.
        label: name of the source.
        kinds: ``Kind`` of each staged event.
        ops: CPU operators, numbered by their place: row, External id, flags.
        op_messages: operators that say what a collective is about: op, message (a code, see ``kineto_messages``).
        calls: of the runtime and driver: row, correlation.
        annotations: row, flags, message.
        python: Python functions: row, code of the name.
        python_names: name → code.
        work: kernels, copies and memsets: row, kind, correlation, External id, message of its own, whether its name is one of a
            collective, bytes (-1: not said).
        steps: ranges of ProfilerStep: row, number of its label in ``step_labels``.
        flows: id, place (of ``places``), time, category (of ``flow_categories``), whether it starts there.
        halves: beginnings (row) and ends (row -1) of ranges that come in two halves, in file order: place, time.
        first_ns: a time at the beginning of the profile.
        left_out: phase → events of it that are not imported.
    """

    stage: Stage
    label: str
    kinds: list[NDArray[np.int8]] = field(default_factory=list)
    ops: Gathered = field(
        default_factory=lambda: Gathered(row=np.int32, external=np.int64, flags=np.int8)
    )
    op_messages: Gathered = field(default_factory=lambda: Gathered(op=np.int32, message=np.int32))
    calls: Gathered = field(default_factory=lambda: Gathered(row=np.int32, correlation=np.int64))
    annotations: Gathered = field(
        default_factory=lambda: Gathered(row=np.int32, flags=np.int8, message=np.int32)
    )
    python: Gathered = field(default_factory=lambda: Gathered(row=np.int32, code=np.int32))
    python_names: dict[str, int] = field(default_factory=dict)
    work: Gathered = field(
        default_factory=lambda: Gathered(
            row=np.int32,
            kind=np.int8,
            correlation=np.int64,
            external=np.int64,
            message=np.int32,
            is_named=np.bool_,
            name=np.int32,
            bytes=np.int64,
        )
    )
    kernel_names: dict[str, int] = field(default_factory=dict)
    steps: Gathered = field(default_factory=lambda: Gathered(row=np.int32, label=np.int32))
    step_labels: dict[str, int] = field(default_factory=dict)
    flows: Gathered = field(
        default_factory=lambda: Gathered(
            id=np.int64, place=np.int32, ts=np.int64, category=np.int8, starts=np.bool_
        )
    )
    flow_categories: dict[str, int] = field(default_factory=dict)
    halves: Gathered = field(
        default_factory=lambda: Gathered(row=np.int64, place=np.int32, ts=np.int64)
    )
    first_ns: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def kind(self) -> NDArray[np.int8]:
        """``Kind`` of every staged event."""
        if len(self.kinds) != 1:
            self.kinds[:] = [np.concatenate([np.empty(0, np.int8), *self.kinds])]
        return self.kinds[0]


def codes_of(words: list[str | None], known: dict[str, int]) -> NDArray[np.int32]:
    """The codes of words in a growing table; -1 for None."""
    return np.array(
        [-1 if word is None else known.setdefault(word, len(known)) for word in words] or [0],
        np.int32,
    )


def counted(places: Mapping[str, int]) -> str:
    """What was counted, for a message: ``b (3), n (1)``."""
    return ", ".join(f"{name} ({count})" for name, count in list(places.items())[:5])
