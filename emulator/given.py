"""What does an operation cost whose front end knows its work, not its tensors? So it is with nodes of Chakra execution traces.

The cost lies in the operation's arguments, so that it is saved with the workload. Such operations run when what they wait for has ended
(their inputs are tokens of no bytes, which those others make), whichever is ready first, not in program order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trnprof.emulator.workload import Operation, TensorRef

_KEY: Final = "given"
_WORK: Final = ("flops", "nbytes", "duration_ps")
COMPUTE: Final = "compute"
LOAD: Final = "load"
STORE: Final = "store"
ON_HOST: Final = "host"


@dataclass(frozen=True, slots=True)
class GivenCost:
    """The work of one operation.

    Attributes:
        what: compute, load or store (memory beyond the core's HBM), or host.
        flops: floating-point operations of all cores of the rank.
        nbytes: read and written.
        duration_ps: how long it takes whatever the machine, where that was measured; 0: what the machine makes of the work.
    """

    what: str
    flops: float = 0.0
    nbytes: int = 0
    duration_ps: int = 0


def given_arguments(cost: GivenCost) -> Mapping[str, Any]:
    """The arguments of an operation of this cost."""
    said = {name: value for name in _WORK if (value := getattr(cost, name))}
    return {_KEY: {"what": cost.what, **said}}


def given_cost(op: Operation) -> GivenCost | None:
    """The cost that an operation's front end gave; None where it is to be lowered from its tensors."""
    given = op.arguments.get(_KEY)
    return None if given is None else GivenCost(**given)


def token(number: int) -> TensorRef:
    """What an operation makes that others wait for: nothing but that it has ended."""
    return TensorRef(number, (0,), "uint8", 0, 0, "activation")
