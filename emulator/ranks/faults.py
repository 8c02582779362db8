"""Which ranks, chips and links are not as they should be? Slow ones, late ones, and links that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import degrade_link, fail_link
from trnprof.emulator.fabric.topology import Topology
from trnprof.tracer.errors import FabricError, SystemDescriptionError


@dataclass(frozen=True)
class Faults:
    """What is wrong with a machine.

    Attributes:
        slow_ranks: by rank, the fraction of their speed that its engines, DMA and HBM have left.
        slow_chips: by chip, the same of all its ranks, and of its links and of what exchanges on it.
        late_ns: by rank, how much later than the others it begins.
        degraded: links (``3-7`` both directions, ``3>7`` one) and the fraction of their bandwidth that they have left.
        failed: links that are not there: routes go round them.
    """

    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    slow_chips: Mapping[int, float] = field(default_factory=dict)
    late_ns: Mapping[int, int] = field(default_factory=dict)
    degraded: tuple[tuple[str, float], ...] = ()
    failed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return any((self.slow_ranks, self.slow_chips, self.late_ns, self.degraded, self.failed))

    def links_of(self, fabric: Fabric) -> Fabric:
        """What is left of a fabric's links; those of slow chips are slowed down with their collectives.

        Raises:
            FabricError: no such link, or a factor that is not in 0 < factor <= 1.
        """
        for link, factor in self.degraded:
            fabric = degrade_link(fabric, link, factor)
        for link in self.failed:
            fabric = fail_link(fabric, link)
        return fabric

    def speeds(self, chip_of: Sequence[int]) -> tuple[float, ...]:
        """By rank, the fraction of its speed that it has left."""
        return tuple(
            self.slow_ranks.get(rank, 1.0) * self.slow_chips.get(chip, 1.0)
            for rank, chip in enumerate(chip_of)
        )

    def check(self, ranks: int, chips: int) -> None:
        """Refuse what is not of this world.

        Raises:
            SystemDescriptionError: no such rank, or a rank that begins before the others.
            FabricError: no such chip, or a factor that is not in 0 < factor <= 1.
        """
        for rank in (*self.slow_ranks, *self.late_ns):
            if not 0 <= rank < ranks:
                raise SystemDescriptionError(
                    f"rank {rank} is out of range; the program has ranks 0..{ranks - 1}"
                )
        for chip in self.slow_chips:
            if not 0 <= chip < chips:
                raise FabricError(f"chip {chip} is out of range; chips are 0..{chips - 1}")
        slow = [("rank", *each) for each in self.slow_ranks.items()]
        slow += [("chip", *each) for each in self.slow_chips.items()]
        for what, number, factor in slow:
            if not 0 < factor <= 1:
                raise FabricError(
                    f"{what} {number}: factor {factor:g}, expected more than 0 and at most 1 (1 leaves it as it is)"
                )
        for rank, delay in self.late_ns.items():
            if delay < 0:
                raise SystemDescriptionError(
                    f"rank {rank} is late by {delay} ns: expected 0 or more"
                )

    def check_before(self, ranks: int | None, topology: Topology) -> None:
        """Refuse what is not of this world before a program runs in it.

        Args:
            ranks: None where only the program knows.
            topology: of the machine.

        Raises:
            SystemDescriptionError, FabricError: see ``check`` and ``links_of``.
        """
        least = 1 + max((*self.slow_ranks, *self.late_ns), default=0)
        self.check(least if ranks is None else ranks, topology.chips)
        if self.degraded or self.failed:
            self.links_of(build_fabric(topology))

    def told(self) -> dict[str, object]:
        """For the manifest: what is wrong, under the names of the options."""
        slow = [f"rank={rank}:{factor:g}" for rank, factor in sorted(self.slow_ranks.items())]
        slow += [f"chip={chip}:{factor:g}" for chip, factor in sorted(self.slow_chips.items())]
        given: dict[str, object] = {
            "slow": slow,
            "late": [f"rank={rank}:{delay}ns" for rank, delay in sorted(self.late_ns.items())],
            "degrade": [f"link={link}:{factor:g}" for link, factor in self.degraded],
            "fail": [f"link={link}" for link in self.failed],
        }
        return {name: texts for name, texts in given.items() if texts}


NO_FAULTS: Final = Faults()
