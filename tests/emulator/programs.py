"""Small programs to lower: tensors, operations, random graphs of them, and what a lowered step moves and does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from trnprof.emulator.lowering.residency import lifetimes
from trnprof.emulator.lowering.step import LoweredStep, lower_step
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Operation, TensorRef, Workload, WorkloadStep

TRN2 = load_system("trn2")
CORE = TRN2.core
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1, "float64": 8}


def ref(
    number: int,
    *shape: int,
    dtype: str = "float32",
    role: str = "activation",
    storage: int | None = None,
    contiguous: bool = True,
) -> TensorRef:
    """A tensor; ``storage`` are the bytes of its storage where it is a view of a part."""
    nbytes = math.prod(shape) * ITEMSIZE[dtype]
    return TensorRef(
        number, shape, dtype, nbytes, nbytes if storage is None else storage, role, contiguous
    )


def op(
    name: str,
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    phase: str = "forward",
    step: int = 0,
    freed: Sequence[int] = (),
    **arguments: Any,
) -> Operation:
    return Operation(
        name, phase, step, tuple(inputs), tuple(outputs), freed=tuple(freed), arguments=arguments
    )


def lower(operations: Sequence[Operation], execution: str = "fused") -> LoweredStep:
    """One step, with every storage that is not persistent freed at its end."""
    return lower_step(TRN2, operations, 0, lifetimes(operations), execution)


def freed_after_use(operations: Sequence[Operation], keep: Sequence[int] = ()) -> list[Operation]:
    """The same, with an operation at the end before which all but the kept storages died."""
    born = {r.tensor for o in operations for r in o.outputs} - set(keep)
    return [*operations, op("record_stream", [], [], freed=sorted(born))]


def moved(lowered: LoweredStep) -> dict[str, Counter[int]]:
    """Bytes loaded and stored, by position of the operation."""
    total: dict[str, Counter[int]] = {"load": Counter(), "store": Counter()}
    labels = list(lowered.tasks.labels)
    for label_id, nbytes in zip(lowered.tasks.label_ids, lowered.tasks.nbytes, strict=True):
        label = labels[label_id]
        if label.category == "dma":
            total[label.name.split()[0]][label.op] += nbytes
    return total


def names_of(lowered: LoweredStep) -> list[str]:
    """The label of each task."""
    labels = list(lowered.tasks.labels)
    return [labels[i].name for i in lowered.tasks.label_ids]


def program(operations: Sequence[Operation], resident: Sequence[TensorRef] = ()) -> Workload:
    """A workload with a step for each step number its operations name."""
    numbers = sorted({o.step for o in operations})
    steps = tuple(WorkloadStep(n, f"step {n}", "optimizer") for n in numbers)
    return Workload(tuple(operations), steps, tuple(resident))


SIDES = st.sampled_from([1, 2, 3, 64, 128, 130, 512, 700])


@st.composite
def random_programs(draw: st.DrawFn) -> list[Operation]:
    """A few matrix products, chains, norms, reductions, in-place updates and joins over [rows, columns] tensors."""
    rows, columns = draw(SIDES), draw(SIDES)
    live = [ref(0, rows, columns), ref(1, rows, columns)]
    weight = ref(2, columns, columns, role="parameter")
    operations = []
    for number in range(3, 3 + draw(st.integers(1, 8))):
        one, other = draw(st.sampled_from(live)), draw(st.sampled_from(live))
        out = ref(number, rows, columns, role=draw(st.sampled_from(["activation", "buffer"])))
        kind = draw(
            st.sampled_from(["mm", "add", "gelu", "_softmax", "sum", "add_", "cat", "copy_"])
        )
        match kind:
            case "mm":
                operations.append(op("mm", [one, weight], [out]))
            case "add":
                operations.append(op("add", [one, other], [out]))
            case "sum":
                operations.append(op("sum", [one], [ref(number, rows)], dim=[1]))
                continue
            case "add_":
                operations.append(op("add_", [one, other], [one]))
                continue
            case "copy_":
                operations.append(op("copy_", [other], [one]))
                continue
            case "cat":
                operations.append(op("cat", [one, other], [ref(number, 2 * rows, columns)]))
                continue
            case _:
                operations.append(op(kind, [one], [out]))
        live.append(out)
    if draw(st.booleans()):
        return freed_after_use(operations)
    return operations
