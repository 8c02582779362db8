"""Which tensors of a program are parameters, optimizer state, gradients? JAX does not say: what reads them does.

An argument that the forward pass reads and the optimizer too is a parameter; one that only the optimizer reads, optimizer state; what backward
made and the optimizer reads, a gradient. Where a program has no optimizer, names decide: ``params['w']``, ``state.opt_state[0].mu``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from trnprof.emulator.capture.hlo.values import BACKWARD, FORWARD, OPTIMIZER
from trnprof.emulator.workload import Operation, TensorRef

_STATE: Final = re.compile(r"opt|\bmu\b|\bnu\b|momentum", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"param|weight|kernel|bias|embed|model|layer", re.IGNORECASE)


def roles_of(
    operations: Sequence[Operation], parameters: Sequence[TensorRef], names: Sequence[str]
) -> dict[int, str]:
    """Role by tensor, where it is not an activation.

    Args:
        operations: of the program.
        parameters: tensors of its arguments.
        names: of these, as JAX tells them; "" unknown.
    """
    readers: dict[int, set[str]] = defaultdict(set)
    makers: dict[int, set[str]] = defaultdict(set)
    for op in operations:
        for ref in op.inputs:
            readers[ref.tensor].add(op.phase)
        for ref in op.outputs:
            makers[ref.tensor].add(op.phase)
    roles = {
        tensor: "gradient"
        for tensor, phases in readers.items()
        if OPTIMIZER in phases and makers[tensor] == {BACKWARD}
    }
    for ref, name in zip(parameters, names, strict=False):
        roles[ref.tensor] = _argument(readers[ref.tensor], name)
    return roles


def _argument(phases: set[str], name: str) -> str:
    if OPTIMIZER in phases:
        return "parameter" if phases & {FORWARD, BACKWARD} else _by_name(name, "optimizer_state")
    return _by_name(name, "input")


def _by_name(name: str, otherwise: str) -> str:
    if _STATE.search(name):
        return "optimizer_state"
    return "parameter" if _PARAMETER.search(name) else otherwise
