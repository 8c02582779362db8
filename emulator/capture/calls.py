"""Which calls of compiled functions begin a step? Of a program of JAX, those of the function that does most of the work.

That is the function with most FLOPs over all its calls; with none at all, the one that moves most bytes. What ran before its first call
(initialisation) is set-up: what it left in memory is resident. What runs between two of its calls belongs to the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trnprof.emulator.capture.store import Row

CALL: Final = "call"
"""Phase of the row of kind cut that stands before the operations of a call; its name is the function's."""


def from_first_step(rows: Sequence[Row]) -> list[Row]:
    """The log without its set-up, the calls that begin a step turned into cuts of steps; as it is, where no call is in it."""
    main = main_function(rows)
    if main is None:
        return list(rows)
    first = next(i for i, row in enumerate(rows) if _is_call(row) and row.name == main)
    before, after = rows[:first], rows[first:]
    is_training = any(row.phase == "backward" for row in after if row.kind == "op")
    cut = "backward" if is_training else "forward"
    kept = [row for row in before if row.kind not in ("op", "cut")]
    return [
        *kept,
        *_left_in_memory(before),
        *(
            row._replace(name="", phase=cut) if _is_call(row) and row.name == main else row
            for row in after
        ),
    ]


def main_function(rows: Sequence[Row]) -> str | None:
    """The function that does most of the work; None where no call is recorded."""
    work: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    name = None
    for row in rows:
        if _is_call(row):
            name = row.name
            work[name][1] += 0.0  # it is there, even if it does nothing
        elif row.kind == "op" and name is not None:
            work[name][0] += row.model_flops
            work[name][1] += sum(row.nbytes)
    return max(work, key=lambda n: work[n]) if work else None


def _left_in_memory(rows: Sequence[Row]) -> list[Row]:
    """Rows of kind resident for what these operations made and nothing freed."""
    alive: dict[int, Row] = {}
    for row in rows:
        if row.kind != "op":
            continue
        for number in row.freed:
            alive.pop(number, None)
        first = sum(row.rank[: row.inputs])
        for at in range(row.inputs, len(row.tensor)):
            dims = row.rank[at]
            alive[row.tensor[at]] = row._replace(
                kind="resident",
                name="",
                inputs=1,
                tensor=[row.tensor[at]],
                rank=[dims],
                shape=row.shape[first : first + dims],
                dtype=[row.dtype[at]],
                nbytes=[row.storage_nbytes[at]],
                storage_nbytes=[row.storage_nbytes[at]],
                role=[row.role[at]],
                contiguous=[row.contiguous[at]],
                freed=(),
                arguments="",
            )
            first += dims
    return list(alive.values())


def _is_call(row: Row) -> bool:
    return row.kind == "cut" and row.phase == CALL
