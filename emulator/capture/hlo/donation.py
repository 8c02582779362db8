"""Which results take over the memory of an argument? What JAX donates is overwritten, once its old value has been read.

XLA names pairs (``input_output_alias``), or only the arguments (``buffer_donor``): then each result takes the first that has its shape and
datatype, as XLA's own pass does. The operation that writes such a result is put behind the last one that reads what was there; where another
operation needs the result before that, it keeps memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trnprof.emulator.capture.hlo.module import Module
from trnprof.emulator.workload import Operation, TensorRef

Results = tuple[TensorRef | None, ...]


def in_donated_memory(
    operations: Sequence[Operation],
    results: Results,
    parameters: Sequence[TensorRef],
    module: Module,
) -> tuple[list[Operation], Results]:
    """The operations and results, with donated arguments overwritten.

    Args:
        operations: of the program, in order.
        results: their tensors.
        parameters: tensors of the arguments; numbered from 0.
        module: says which are donated.
    """
    places: dict[int, float] = {}
    taken: dict[int, int] = {}
    for result, parameter in _pairs(results, parameters, module).items():
        place = _place(operations, result, parameter)
        if place is not None:
            taken[result] = parameter
            places.update(place)
    order = sorted(range(len(operations)), key=lambda i: places.get(i, i))

    def moved(refs: Iterable[TensorRef]) -> tuple[TensorRef, ...]:
        return tuple(replace(r, tensor=taken[r.tensor]) if r.tensor in taken else r for r in refs)

    changed = [
        replace(
            operations[i], inputs=moved(operations[i].inputs), outputs=moved(operations[i].outputs)
        )
        for i in order
    ]
    return changed, tuple(None if r is None else moved((r,))[0] for r in results)


def _pairs(results: Results, parameters: Sequence[TensorRef], module: Module) -> Mapping[int, int]:
    """Tensor of a result → parameter."""
    free = [number for number in module.donors if number not in module.aliases.values()]
    pairs: dict[int, int] = {}
    for place, ref in enumerate(results):
        if ref is None or ref.tensor < len(parameters) or ref.tensor in pairs:
            continue
        number = module.aliases.get(place)
        if number is None:
            same = (
                n
                for n in free
                if parameters[n].shape == ref.shape and parameters[n].dtype == ref.dtype
            )
            number = next(same, None)
        if number is None or parameters[number].storage_nbytes != ref.storage_nbytes:
            continue
        if number in free:
            free.remove(number)
        pairs[ref.tensor] = number
    return pairs


def _place(operations: Sequence[Operation], result: int, parameter: int) -> dict[int, float] | None:
    """Where the writer of a result has to go, by its position; None where it cannot be in the parameter's memory."""
    writers = [i for i, op in enumerate(operations) if any(r.tensor == result for r in op.outputs)]
    readers = [
        i for i, op in enumerate(operations) if any(r.tensor == parameter for r in op.inputs)
    ]
    last = max(readers, default=-1)
    if not writers or last <= writers[0]:
        return {}
    used = any(
        r.tensor == result
        for op in operations[writers[0] + 1 : last + 1]
        for r in (*op.inputs, *op.outputs)
    )
    return None if used else {writers[0]: last + 0.5}
