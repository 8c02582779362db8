"""Which forwards of a decode loop that is written out are the prefill, and which decode? Their attention says: by how many queries it has."""

from __future__ import annotations

from collections.abc import Sequence

from trnprof.emulator.workload import Operation

_ATTENTION = "scaled_dot_product"


def serving_labels(operations: Sequence[Operation], steps: int) -> list[str]:
    """Labels of steps that are forwards: ``prefill``, ``decode 1``, …; "" where that is not known.

    A forward whose attention has one query each, after one with more, decodes; without any such forward no step has a label, for
    a program that has no cache does not prefill.

    Args:
        operations: with their steps.
        steps: how many there are, counted from 0.
    """
    queries: dict[int, int] = {}
    for op in operations:
        if _ATTENTION in op.name and op.inputs and len(op.inputs[0].shape) > 2:
            queries[op.step] = max(queries.get(op.step, 0), op.inputs[0].shape[-2])
    labels = [""] * steps
    decoded = -1
    for step in range(steps):
        if queries.get(step, 0) > 1:
            labels[step], decoded = "prefill", 0
        elif queries.get(step) == 1 and decoded >= 0:
            decoded += 1
            labels[step] = f"decode {decoded}"
    return labels if any(label.startswith("decode") for label in labels) else [""] * steps
