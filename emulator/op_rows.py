"""How do captured operations and their modules become rows of ``ops``?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnprof.emulator.given import given_cost
from trnprof.emulator.lowering.plan import OpPlan
from trnprof.emulator.workload import Operation

_COLUMNS = (
    "op_id",
    "parent_id",
    "kind",
    "name",
    "module_path",
    "phase",
    "source_file",
    "source_line",
    "input_shapes",
    "dtypes",
    "model_flops",
    "logical_bytes",
    "lowering",
)
_OF_COLLECTIVES = ("group_id", "group_seq", "algorithm", "in_bytes", "out_bytes")


def module_rows(operations: Sequence[Operation]) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """Rows of the module tree, and the op_id of each module path; ids count from 0.

    A module that ran no operation itself but holds one that did is in the tree, named by the last part of its path.
    """
    classes: dict[str, str] = {}
    for op in operations:
        if op.module_path or op.module_class:
            classes.setdefault(op.module_path, op.module_class)
    for path in list(classes):
        parts = path.split(".")
        for length in range(1, len(parts)):
            classes.setdefault(".".join(parts[:length]), parts[length - 1])
    ids = {path: i for i, path in enumerate(sorted(classes))}
    rows = []
    for path, op_id in ids.items():
        parent = path.rpartition(".")[0]
        known = ids.get(parent) if path else None
        name = classes[path] or path
        rows.append((op_id, known, "module", name, path, *(None,) * 8))
    return _columns(rows), ids


def operation_rows(
    operations: Sequence[Operation],
    plans: Sequence[OpPlan],
    first_op_id: int,
    modules: dict[str, int],
    collectives: Mapping[int, Mapping[str, Any]] = {},
) -> dict[str, list[Any]]:
    """Rows of the operations of one step, with consecutive ids from ``first_op_id``.

    Args:
        operations: of the step.
        plans: one an operation.
        first_op_id: of the first of them.
        modules: op_id by path.
        collectives: the columns that only they have, by place in the step.
    """
    rows = []
    for offset, (op, plan) in enumerate(zip(operations, plans, strict=True)):
        tensors = {r.tensor: r for r in (*op.inputs, *op.outputs)}
        moved = 0 if op.is_view else sum(r.nbytes for r in tensors.values())
        lowering = None if plan.form == "none" else "exact" if plan.exact else "fallback"
        rows.append(
            (
                first_op_id + offset,
                modules.get(op.module_path),
                _kind(op),
                op.name,
                op.module_path,
                op.phase or None,
                op.source_file or None,
                op.source_line or None,
                _shapes(op),
                ", ".join(dict.fromkeys(r.dtype for r in op.inputs)),
                op.model_flops,
                moved,
                lowering,
            )
        )
    extra = {
        name: [collectives[i][name] if i in collectives else None for i in range(len(operations))]
        for name in _OF_COLLECTIVES
    }
    return _columns(rows) | (extra if collectives else {})


def _kind(op: Operation) -> str:
    if op.collective is not None:
        return "collective"
    return "aten" if given_cost(op) is None else "kernel"


def _shapes(op: Operation) -> str:
    """Shapes of the inputs; long lists (foreach) are cut."""
    shown = [str(list(r.shape)) for r in op.inputs[:6]]
    if len(op.inputs) > 6:
        shown.append(f"… {len(op.inputs)} tensors")
    return ", ".join(shown)


def _columns(rows: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    transposed = list(zip(*rows, strict=True)) if rows else [()] * len(_COLUMNS)
    return {name: list(values) for name, values in zip(_COLUMNS, transposed, strict=True)}
