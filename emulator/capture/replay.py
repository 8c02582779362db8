"""What Workload do the rows of its log make? Late knowledge is applied here: roles, steps, the window of steps.

A program is captured as it runs, and some things are known only later: that a tensor made inside an optimizer became its
state, that nothing ever marked a step so that each forward is one, that a step lies outside the window asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from trnprof.emulator.workload import Operation, TensorRef, Workload, WorkloadStep

if TYPE_CHECKING:
    from trnprof.emulator.capture.store import Row

_Ref = tuple[int, tuple[int, ...], str, int, int, str, bool]


def replay(rows: Sequence[Row], is_torn: bool) -> Workload:
    """The Workload of a log.

    Args:
        rows: in the order they were written.
        is_torn: batches were lost, so it cannot be complete.
    """
    roles = {row.tensor[0]: row.role[0] for row in rows if row.kind == "role"}
    operations = [_operation(row, roles) for row in rows if row.kind == "op"]
    resident = _resident(rows, roles)
    steps = [WorkloadStep(r.step, r.name, r.phase) for r in rows if r.kind == "step"]
    if not steps:
        operations, steps = _cut(rows, operations)
    operations, resident = _window(rows, operations, resident)
    return Workload(
        operations=tuple(operations),
        steps=tuple(_named_steps(operations, steps)),
        resident=tuple(resident.values()),
        notes=tuple(row.arguments for row in rows if row.kind == "note"),
        complete=not is_torn and any(row.kind == "end" for row in rows),
    )


def workload_rows(workload: Workload) -> Iterator[Row]:
    """The log that replays to this workload."""
    from trnprof.emulator.capture.store import Row

    for ref in workload.resident:
        yield _with_refs(Row("resident"), [ref], 1)
    steps = {step.step: step for step in workload.steps}
    for number, operations in groupby(workload.operations, key=lambda op: op.step):
        yield from map(_operation_row, operations)
        if number in steps:
            yield Row("step", steps[number].label, steps[number].source, number)
    for note in workload.notes:
        yield Row("note", arguments=note)
    if workload.complete:
        yield Row("end")


def _operation_row(op: Operation) -> Row:
    from trnprof.emulator.capture.store import Row

    row = Row(
        "op",
        op.name,
        op.phase,
        op.step,
        op.module_path,
        op.module_class,
        op.source_file,
        op.source_line,
        op.model_flops,
        op.is_view,
        freed=op.freed,
        arguments=json.dumps(dict(op.arguments)) if op.arguments else "",
    )
    return _with_refs(row, [*op.inputs, *op.outputs], len(op.inputs))


def _with_refs(row: Row, refs: Sequence[TensorRef], inputs: int) -> Row:
    return row._replace(
        inputs=inputs,
        tensor=[r.tensor for r in refs],
        rank=[len(r.shape) for r in refs],
        shape=[size for r in refs for size in r.shape],
        dtype=[r.dtype for r in refs],
        nbytes=[r.nbytes for r in refs],
        storage_nbytes=[r.storage_nbytes for r in refs],
        role=[r.role for r in refs],
        contiguous=[r.contiguous for r in refs],
    )


@lru_cache(maxsize=1 << 16)
def _ref(values: _Ref) -> TensorRef:
    return TensorRef(*values)


def _refs(row: Row, roles: dict[int, str]) -> list[TensorRef]:
    refs, first = [], 0
    fields = (
        row.tensor,
        row.rank,
        row.dtype,
        row.nbytes,
        row.storage_nbytes,
        row.role,
        row.contiguous,
    )
    for tensor, rank, dtype, nbytes, storage, role, contiguous in zip(*fields, strict=True):
        shape = tuple(row.shape[first : first + rank])
        first += rank
        known = roles.get(tensor, role)
        refs.append(_ref((tensor, shape, dtype, nbytes, storage, known, contiguous)))
    return refs


def _operation(row: Row, roles: dict[int, str]) -> Operation:
    refs = _refs(row, roles)
    return Operation(
        name=row.name,
        phase=row.phase,
        step=row.step,
        inputs=tuple(refs[: row.inputs]),
        outputs=tuple(refs[row.inputs :]),
        module_path=row.module_path,
        module_class=row.module_class,
        source_file=row.source_file,
        source_line=row.source_line,
        model_flops=row.model_flops,
        is_view=row.is_view,
        freed=tuple(row.freed),
        arguments=json.loads(row.arguments) if row.arguments else {},
    )


def _resident(rows: Sequence[Row], roles: dict[int, str]) -> dict[int, TensorRef]:
    found = [row for row in rows if row.kind == "resident"]
    found = [row for row in found if row.name == "window"] or found
    return {ref.tensor: ref for row in found for ref in _refs(row, roles)}


def _cut(
    rows: Sequence[Row], operations: list[Operation]
) -> tuple[list[Operation], list[WorkloadStep]]:
    """Steps of a program that marked none: training turns at each forward after a backward, inference at each forward's end."""
    wanted = "backward" if any(op.phase == "backward" for op in operations) else "forward"
    numbered: list[Operation] = []
    step, has_operations = 0, False
    for row in rows:
        if row.kind == "op":
            op = operations[len(numbered)]
            numbered.append(replace(op, step=step) if op.step != step else op)
            has_operations = True
        elif row.kind == "cut" and row.phase == wanted and has_operations:
            step, has_operations = step + 1, False
    last = numbered[-1].step if numbered else -1
    return numbered, [WorkloadStep(i, f"step {i}", "forward") for i in range(last + 1)]


def _window(
    rows: Sequence[Row], operations: list[Operation], resident: dict[int, TensorRef]
) -> tuple[list[Operation], dict[int, TensorRef]]:
    """Only the operations of the steps asked for; what they find in memory becomes resident."""
    bounds = next(((row.step, row.source_line) for row in rows if row.kind == "window"), None)
    if bounds is None:
        return operations, resident
    first, last = bounds
    alive = dict(resident)
    knows_window = any(row.kind == "resident" and row.name == "window" for row in rows)
    for op in () if knows_window else operations:
        if op.step >= first:
            break
        for number in op.freed:
            alive.pop(number, None)
        alive.update((ref.tensor, ref) for ref in op.outputs)
    return [op for op in operations if first <= op.step <= last], alive


def _named_steps(operations: list[Operation], steps: list[WorkloadStep]) -> Iterator[WorkloadStep]:
    known = {step.step: step for step in steps}
    source = steps[-1].source if steps else "forward"
    for number in dict.fromkeys(op.step for op in operations):
        yield known.get(number, WorkloadStep(number, f"step {number}", source))
