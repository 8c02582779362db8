"""Where does a tensor live while a step runs: in SBUF, in HBM or in both, and from when can it be read?

Half of usable SBUF keeps tensors between kernels (the other half holds the tiles of the running one). What a kernel
makes stays there if it fits and is needed again; the least recently used goes first, and is written to HBM only if it
is still needed. What outlives the step (parameters, optimizer state, buffers) is always written. SBUF is empty at the
start of a step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from trnprof.emulator.workload import Operation

PERSISTENT = ("parameter", "buffer", "optimizer_state")


@dataclass(frozen=True, slots=True)
class Ready:
    """A share of a tensor's rows can be read: after ``task`` has ended and ``lag_ps`` has passed."""

    share: float
    task: int
    lag_ps: int


@dataclass
class Location:
    """One storage during a step.

    Attributes:
        nbytes: size.
        dtype: of the tensor.
        on_chip: readiness in SBUF, by row share; empty if it is not there.
        in_hbm: readiness in HBM of what this step wrote; empty if HBM holds it from before, or does not hold it.
        dirty: SBUF has what HBM has not.
        op: position of the operation that made it.
    """

    nbytes: int
    dtype: str = ""
    on_chip: tuple[Ready, ...] = ()
    in_hbm: tuple[Ready, ...] = ()
    dirty: bool = False
    op: int = 0


@dataclass(frozen=True)
class Lifetimes:
    """Uses of every storage over the whole workload.

    Attributes:
        uses: positions of the operations that read it, ascending.
        freed: storages that die before the program ends.
        persistent: storages that outlive a step by their role.
    """

    uses: dict[int, list[int]]
    freed: frozenset[int]
    persistent: frozenset[int]

    def needed_after(self, storage: int, position: int) -> bool:
        """Whether it is read after ``position``, or must survive in HBM."""
        return self.read_after(storage, position) or self.outlives(storage)

    def read_after(self, storage: int, position: int) -> bool:
        """Whether an operation after ``position`` reads it."""
        uses = self.uses.get(storage, [])
        return bisect_right(uses, position) < len(uses)

    def outlives(self, storage: int) -> bool:
        """Whether it must be in HBM when the step ends."""
        return storage in self.persistent or storage not in self.freed


def lifetimes(operations: Sequence[Operation]) -> Lifetimes:
    """Scan a workload's operations once."""
    uses: dict[int, list[int]] = defaultdict(list)
    freed: set[int] = set()
    persistent: set[int] = set()
    for position, op in enumerate(operations):
        freed.update(op.freed)
        for ref in op.inputs:
            if not op.is_view:
                uses[ref.tensor].append(position)
            if ref.role in PERSISTENT:
                persistent.add(ref.tensor)
        persistent.update(ref.tensor for ref in op.outputs if ref.role in PERSISTENT)
    return Lifetimes(dict(uses), frozenset(freed), frozenset(persistent))


@dataclass
class Residency:
    """What SBUF keeps between kernels, least recently used first."""

    capacity_bytes: int
    used_bytes: int = 0
    kept: OrderedDict[int, Location] = field(default_factory=OrderedDict)
    spilled: dict[int, Location] = field(default_factory=dict)

    def find(self, storage: int) -> Location | None:
        """Its location in this step, if the step has touched it; marks it as used."""
        if storage in self.kept:
            self.kept.move_to_end(storage)
            return self.kept[storage]
        return self.spilled.get(storage)

    def keep(self, storage: int, location: Location) -> list[tuple[int, Location]]:
        """Hold it in SBUF.

        Returns:
            What had to leave for it, to be written to HBM by the caller where it is dirty and still needed.
        """
        self.drop(storage)
        evicted = []
        while self.kept and self.used_bytes + location.nbytes > self.capacity_bytes:
            victim, where = self.kept.popitem(last=False)
            self.used_bytes -= where.nbytes
            evicted.append((victim, where))
        self.kept[storage] = location
        self.used_bytes += location.nbytes
        return evicted

    def note_in_hbm(self, storage: int, location: Location) -> None:
        """It now lies in HBM only."""
        self.drop(storage)
        self.spilled[storage] = location

    def drop(self, storage: int) -> None:
        """Forget it."""
        where = self.kept.pop(storage, None)
        if where is not None:
            self.used_bytes -= where.nbytes
        self.spilled.pop(storage, None)
