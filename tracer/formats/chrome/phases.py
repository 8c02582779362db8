"""Which phases has the trace event format, which members of an event matter, and what may a dialect say differently?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.trace_json.scan import EventBlock, Fields


class Phase(IntEnum):
    """What an event is for the importer. The numbers up to ASYNC_END are known to compiled code."""

    BEGIN = 0
    END = 1
    ASYNC_BEGIN = 2
    ASYNC_INSTANT = 3
    ASYNC_END = 4
    STEP_INTO = 5
    """A step of a legacy async event begins: until the next one, or the end."""
    STEP_PAST = 6
    """A step of a legacy async event has ended: it began at the one before, or the beginning."""
    COMPLETE = 7
    INSTANT = 8
    COUNTER = 9
    FLOW_START = 10
    FLOW_STEP = 11
    FLOW_END = 12
    METADATA = 13
    UNKNOWN = 14
    """Kept as an instant, with a finding."""
    NOTHING = 15
    """An event without a phase, such as the ``{}`` at the end of some files."""


LAST_PAIRED: Final = Phase.STEP_PAST
"""Events up to here are kept until their other halves are known."""
PHASES: Final = {
    "X": Phase.COMPLETE,
    "B": Phase.BEGIN,
    "E": Phase.END,
    "b": Phase.ASYNC_BEGIN,
    "n": Phase.ASYNC_INSTANT,
    "e": Phase.ASYNC_END,
    "S": Phase.ASYNC_BEGIN,
    "T": Phase.STEP_INTO,
    "p": Phase.STEP_PAST,
    "F": Phase.ASYNC_END,
    "N": Phase.ASYNC_BEGIN,
    "O": Phase.ASYNC_INSTANT,
    "D": Phase.ASYNC_END,
    "(": Phase.ASYNC_BEGIN,
    ")": Phase.ASYNC_END,
    "i": Phase.INSTANT,
    "I": Phase.INSTANT,
    "R": Phase.INSTANT,
    "P": Phase.INSTANT,
    "c": Phase.INSTANT,
    "v": Phase.INSTANT,
    "V": Phase.INSTANT,
    "C": Phase.COUNTER,
    "s": Phase.FLOW_START,
    "t": Phase.FLOW_STEP,
    "f": Phase.FLOW_END,
    "M": Phase.METADATA,
}
FAMILY: Final = {
    **dict.fromkeys("bne", "async"),
    **dict.fromkeys("STpF", "legacy async"),
    **dict.fromkeys("NOD", "object"),
    **dict.fromkeys("()", "context"),
}
"""Phases that are paired with one another; ids of different families never meet."""


class Row(IntEnum):
    """On which row of its process or thread an event lies."""

    THREAD = 0
    WAIT = 1
    """Beside a GPU's stream: packets that wait and run nothing."""
    PROCESS = 2
    GLOBAL = 3
    ASYNC = 4
    OBJECTS = 5
    NO_TIME = 6
    """Events without a time."""
    FIRST_OF_DIALECT = 8
    """A dialect's own rows are from here to LAST."""
    LAST = 15


ROWS: Final = 16
KEPT: Final = ("cat", "id", "id2", "scope", "bind_id", "flow_in", "flow_out")
"""Members without a column that are read for other reasons: they stay in the attributes."""
_MEMBERS: Final = ("ph", "name", "pid", "tid", "ts", "dur", "s", "bp", *KEPT)
_ARGS: Final = ("name", "sort_index", "labels", "step", "BeginNs", "EndNs")


def no_rows(names: Sequence[str]) -> NDArray[np.int8]:
    """All names lie on the rows of their threads, but for rocprof's packets that run nothing."""
    is_wait = [name == "<barrier packet>" for name in names]
    return np.where(is_wait, Row.WAIT, Row.THREAD).astype(np.int8)


def no_columns(block: EventBlock, is_kept: bool) -> dict[str, Any]:
    """Nothing is known beside names and times."""
    return {}


@dataclass(frozen=True)
class Dialect:
    """What a kind of file says differently.

    Attributes:
        args_member: member of an event that holds its arguments.
        args: names of further arguments that are looked for.
        rows: row (``Row``, or a dialect's own number) of events by name; given the distinct names of a block.
        columns: further columns of the stage for events of a block; and whether these are kept until they are paired, or staged at
            once.
        pairs_by_args: whether a beginning and its end have the same name and arguments: what does not match is left open.
    """

    args_member: str = "args"
    args: tuple[str, ...] = ()
    rows: Callable[[Sequence[str]], NDArray[np.int8]] = no_rows
    columns: Callable[[EventBlock, bool], dict[str, Any]] = no_columns
    pairs_by_args: bool = False

    @property
    def fields(self) -> Fields:
        """What is located in each event."""
        return Fields(_MEMBERS, (*_ARGS, *self.args), self.args_member)


GENERIC: Final = Dialect()
