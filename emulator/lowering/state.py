"""What does lowering carry from kernel to kernel within a step?"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnprof.emulator.core import Core
from trnprof.emulator.lowering.plan import OpPlan
from trnprof.emulator.lowering.residency import Lifetimes, Residency
from trnprof.emulator.lowering.tasks import Dependency, TaskList
from trnprof.emulator.ranks.costs import CollectiveCost
from trnprof.emulator.ranks.ranks import Ranks
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
        ranks: those that the core's rank exchanges with.
        sent: storages that collectives of the step read.
        mixed: storages of which a logical core's operations need different parts.
        tasks: the task list under construction.
        recent: last consumers of the two latest tiles (their buffers are in use until then).
        barrier: what the next kernel waits for (eager, or behind a barrier of ranks).
        tables: activation functions loaded by the kernel before.
        tensor_warm: the kernel before used the tensor engine.
        hbm_storages: storages that lie in HBM, with their sizes.
        first_task, last_task: first and last task that move a storage to or from HBM.
        issued: task with whose start the program is past the kernel before; -1 at the start.
        fence: the last barrier of ranks, which later collectives wait for.
        collectives: cost of each task that is a collective.
        exchanged: last collective that reads or writes a storage.
        tokens: the end of the operation that makes each token (see ``emulator.given``).
    """

    system: System
    lifetimes: Lifetimes
    eager: bool
    residency: Residency
    ranks: Ranks
    tasks: TaskList
    sent: frozenset[int] = frozenset()
    mixed: frozenset[int] = frozenset()
    recent: list[list[Dependency]] = field(default_factory=list)
    barrier: list[Dependency] = field(default_factory=list)
    tables: frozenset[str] = frozenset()
    tensor_warm: bool = False
    hbm_storages: dict[int, int] = field(default_factory=dict)
    first_task: dict[int, int] = field(default_factory=dict)
    last_task: dict[int, int] = field(default_factory=dict)
    issued: int = -1
    fence: list[Dependency] = field(default_factory=list)
    collectives: dict[int, CollectiveCost] = field(default_factory=dict)
    exchanged: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, Dependency] = field(default_factory=dict)

    @property
    def core(self) -> Core:
        """The described core."""
        return self.system.core
