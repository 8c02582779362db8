"""What Workload do the rows of its log make? Late knowledge is applied here: roles, steps, the window of steps.

A program is captured as it runs, and some things are known only later: that a tensor made inside an optimizer became its
state, that nothing ever marked a step so that each forward is one, that a step lies outside the window asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from trnprof.emulator.capture.calls import from_first_step
from trnprof.emulator.capture.messages import MESSAGE_KEYS, incomplete, is_receive
from trnprof.emulator.capture.serving import serving_labels
from trnprof.emulator.workload import (
    CollectiveCall,
    Operation,
    ProcessGroup,
    TensorRef,
    Workload,
    WorkloadStep,
    World,
)

if TYPE_CHECKING:
    from trnprof.emulator.capture.store import Row

_INCOMPLETE: Final = "step {} is incomplete: the program ended in it, so its time does not compare with that of other steps"
FAILED: Final = "failed"
"""The end of one of several programs that did not do all that it was to do: others may have done more."""
_Ref = tuple[int, tuple[int, ...], str, int, int, str, bool]


def replay(rows: Sequence[Row], is_torn: bool) -> Workload:
    """The Workload of a log, sends and receives not yet joined.

    Args:
        rows: in the order they were written.
        is_torn: batches were lost, so it cannot be complete.
    """
    rows = from_first_step(rows)
    roles = {row.tensor[0]: row.role[0] for row in rows if row.kind == "role"}
    operations = [_operation(row, roles) for row in rows if row.kind == "op"]
    resident = _resident(rows, roles)
    steps = [WorkloadStep(r.step, r.name, r.phase) for r in rows if r.kind == "step"]
    if not steps:
        operations, steps = _cut(rows, operations)
    ends = [row.name for row in rows if row.kind == "end"]
    if operations and (is_torn or not ends or any(ends)) and not _last_step_is_whole(rows):
        last = operations[-1].step
        known = {step.step: step for step in steps}
        source = steps[-1].source if steps else "forward"
        known[last] = WorkloadStep(last, incomplete(last), source)
        steps = list(known.values())
    operations, resident = _window(rows, _without_tail(operations), resident)
    named = tuple(_named_steps(operations, steps))
    notes = dict.fromkeys(row.arguments for row in rows if row.kind == "note")
    notes |= dict.fromkeys(
        _INCOMPLETE.format(s.step) for s in named if s.label == incomplete(s.step)
    )
    return Workload(
        operations=tuple(operations),
        steps=named,
        resident=tuple(resident.values()),
        notes=tuple(notes),
        complete=not is_torn and bool(ends) and FAILED not in ends,
        groups=_groups(rows),
        world=_world(rows),
    )


def _world(rows: Sequence[Row]) -> World:
    """Size and rank from the first row that tells of the world, what it is and for whom it stands from those that say so."""
    told = [row for row in rows if row.kind == "world"]
    if not told:
        return World()
    label = next((row.name for row in reversed(told) if row.name), "")
    members = next((row.arguments for row in reversed(told) if row.arguments), "[]")
    return World(told[0].step, told[0].source_line, tuple(json.loads(members)), label)


def _last_step_is_whole(rows: Sequence[Row]) -> bool:
    """Whether the log ends with a step's end, or with what may follow one: a loss that is read, a metric."""
    sources = {row.phase for row in rows if row.kind == "step"}
    ends = {"optimizer"} if sources <= {"optimizer"} else set()
    if not sources and all(row.phase == "forward" for row in rows if row.kind == "op"):
        ends.add("forward_end")
    has_failed = any(row.kind == "end" and row.name == FAILED for row in rows)
    for row in reversed(rows):
        if row.kind == "step" and has_failed and row.phase == "optimizer":
            continue  # sys.exit closes the step that it cuts short: the optimizer tells
        if row.kind == "step" or (row.kind == "cut" and row.phase in ends):
            return True
        if row.kind == "op" and _is_work(row):  # an update written by hand has no end that is seen
            return not sources and row.phase == "optimizer" and not _has_optimizer(rows)
    return False


def _has_optimizer(rows: Sequence[Row]) -> bool:
    return any(row.kind == "cut" and row.phase == "optimizer" for row in rows)


def _is_work(row: Row | Operation) -> bool:
    """Whether an operation is of a forward of a module, a backward or an optimizer."""
    return bool(row.module_class) or row.phase != "forward"


def _without_tail(operations: list[Operation]) -> list[Operation]:
    """What follows the last step that did work (reading results, metrics) belongs to it."""
    if not operations:
        return operations
    last = operations[-1].step
    first = next((i for i, op in enumerate(operations) if op.step == last), 0)
    if not first or any(map(_is_work, operations[first:])):
        return operations
    before = operations[first - 1].step
    if not any(_is_work(op) for op in operations[:first] if op.step == before):
        return operations
    return operations[:first] + [replace(op, step=before) for op in operations[first:]]


def workload_rows(workload: Workload) -> Iterator[Row]:
    """The log that replays to this workload."""
    from trnprof.emulator.capture.store import Row

    if workload.world != World():
        world = workload.world
        members = json.dumps(world.members) if world.members else ""
        yield Row("world", world.label, step=world.size, source_line=world.rank, arguments=members)
    for index, group in enumerate(workload.groups):
        yield group_row(index, group)
    for ref in workload.resident:
        yield _with_refs(Row("resident"), [ref], 1)
    steps = {step.step: step for step in workload.steps}
    for number, operations in groupby(workload.operations, key=lambda op: op.step):
        yield from map(operation_row, operations)
        if number in steps:
            yield Row("step", steps[number].label, steps[number].source, number)
    for note in workload.notes:
        yield Row("note", arguments=note)
    if workload.complete:
        yield Row("end")


def group_row(index: int, group: ProcessGroup) -> Row:
    """The row of a process group."""
    from trnprof.emulator.capture.store import Row

    members = {"ranks": group.ranks, "siblings": group.siblings}
    return Row("group", group.name, step=index, arguments=json.dumps(members))


def _groups(rows: Sequence[Row]) -> tuple[ProcessGroup, ...]:
    found = {row.step: (row.name, json.loads(row.arguments)) for row in rows if row.kind == "group"}
    return tuple(
        ProcessGroup(name, tuple(value["ranks"]), tuple(map(tuple, value["siblings"])))
        for _, (name, value) in sorted(found.items())
    )


def operation_row(op: Operation) -> Row:
    """The row of an operation."""
    from trnprof.emulator.capture.store import Row

    arguments = dict(op.arguments)
    if op.collective is not None:
        arguments["collective"] = asdict(op.collective)
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
        arguments=json.dumps(arguments) if arguments else "",
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
    arguments = json.loads(row.arguments) if row.arguments else {}
    call = arguments.pop("collective", None)
    if call is not None:
        arguments |= {name: call.pop(name) for name in MESSAGE_KEYS if name in call}
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
        arguments=arguments,
        collective=None if call is None else _call(call),
    )


def _call(values: dict[str, Any]) -> CollectiveCall:
    told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return CollectiveCall(**told)


def _resident(rows: Sequence[Row], roles: dict[int, str]) -> dict[int, TensorRef]:
    found = [row for row in rows if row.kind == "resident"]
    found = [row for row in found if row.name == "window"] or found
    return {ref.tensor: ref for row in found for ref in _refs(row, roles)}


def _cut(
    rows: Sequence[Row], operations: list[Operation]
) -> tuple[list[Operation], list[WorkloadStep]]:
    """Steps of a program that marked none, from the cuts of one kind."""
    wanted = _kind_of_cuts(rows)
    source = wanted if wanted in ("generate", "loader") else "forward"
    numbered: list[Operation] = []
    labels = [""]
    has_operations = False
    # what comes before the first forward belongs to its step
    is_first = wanted in ("forward", "generate")
    for row in rows:
        if row.kind == "op":
            op, step = operations[len(numbered)], len(labels) - 1
            numbered.append(replace(op, step=step) if op.step != step else op)
            has_operations = True
        elif row.kind == "cut" and row.phase == wanted:
            if is_first or not has_operations:
                labels[-1] = row.name
            else:
                labels.append(row.name)
                has_operations = False
                _take_up_receives(numbered, len(labels) - 1)
            is_first = False
    last = numbered[-1].step if numbered else -1
    if wanted == "forward":
        labels = serving_labels(numbered, len(labels))
    steps = [WorkloadStep(i, labels[i] or f"step {i}", source) for i in range(last + 1)]
    return numbered, steps


def _take_up_receives(numbered: list[Operation], step: int) -> None:
    """What is received right before a step begins is what it works on."""
    first = len(numbered)
    while first and (is_receive(numbered[first - 1]) or numbered[first - 1].is_view):
        first -= 1
    while first < len(numbered) and not is_receive(numbered[first]):
        first += 1
    numbered[first:] = [replace(op, step=step) for op in numbered[first:]]


def _kind_of_cuts(rows: Sequence[Row]) -> str:
    """What a program turns at that marked no step.

    A pipeline: each run of its schedule. Training: each batch of a DataLoader, or each forward after a backward. Inference: each forward in a loop that generates, or
    each batch, or each forward.
    """
    if any(row.kind == "cut" and row.phase == "pipeline" for row in rows):
        return "pipeline"
    trains = any(row.kind == "op" and row.phase == "backward" for row in rows)
    if not trains and any(row.kind == "cut" and row.phase == "generate" for row in rows):
        return "generate"
    batches, has_operations = 0, False
    for row in rows:
        if row.kind == "op":
            batches += not has_operations
            has_operations = True
        elif row.kind == "cut" and row.phase == "loader":
            has_operations = False
    if batches > 1:
        return "loader"
    return "backward" if trains else "forward"


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
