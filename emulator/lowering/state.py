"""What does lowering carry from kernel to kernel within a step?"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnprof.emulator.core import Core
from trnprof.emulator.lowering.plan import OpPlan
from trnprof.emulator.lowering.residency import Lifetimes, Residency
from trnprof.emulator.lowering.tasks import Dependency, TaskList
from trnprof.emulator.system import System
from trnprof.emulator.workload import Operation


@dataclass(frozen=True, slots=True)
class Member:
    """One operation of a kernel: its position in the workload, itself, its plan."""

    position: int
    op: Operation
    plan: OpPlan


@dataclass
class CoreState:
    """The core as the next kernel finds it.

    Attributes:
        system: the described machine.
        lifetimes: uses of every storage.
        eager: one kernel an operation, everything through HBM, kernels one after the other.
        residency: SBUF between kernels.
        tasks: the task list under construction.
        recent: last consumers of the two latest tiles (their buffers are in use until then).
        barrier: what the next kernel waits for (eager only).
        tables: activation functions loaded by the kernel before.
        tensor_warm: the kernel before used the tensor engine.
        hbm_storages: storages that lie in HBM, with their sizes.
        first_task, last_task: first and last task that move a storage to or from HBM.
    """

    system: System
    lifetimes: Lifetimes
    eager: bool
    residency: Residency
    tasks: TaskList = field(default_factory=TaskList)
    recent: list[list[Dependency]] = field(default_factory=list)
    barrier: list[Dependency] = field(default_factory=list)
    tables: frozenset[str] = frozenset()
    tensor_warm: bool = False
    hbm_storages: dict[int, int] = field(default_factory=dict)
    first_task: dict[int, int] = field(default_factory=dict)
    last_task: dict[int, int] = field(default_factory=dict)

    @property
    def core(self) -> Core:
        """The described core."""
        return self.system.core
