"""What is a machine of NeuronCores, engines included? What the emulator runs programs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trnprof.emulator.core import Core
from trnprof.emulator.fabric.topology import Topology
from trnprof.emulator.figures import Figure
from trnprof.emulator.machine import Machine, read_machine
from trnprof.emulator.machine_parts import Chip
from trnprof.emulator.system_files import open_system
from trnprof.tracer.errors import SystemDescriptionError


@dataclass(frozen=True)
class System:
    """One machine whose cores are described too.

    Attributes:
        machine: all but the cores.
        core: all cores are alike.
        instances: so many of that machine, joined by its network; the topology is that of all.
    """

    machine: Machine
    core: Core
    instances: int = 1

    @property
    def name(self) -> str:
        """By which it is asked for; before it how many, if several."""
        name = self.machine.name
        return name if self.instances == 1 else f"{self.instances} x {name}"

    @property
    def description(self) -> str:
        """One line."""
        return self.machine.description

    @property
    def chip(self) -> Chip:
        """All chips are alike."""
        return self.machine.chip

    @property
    def topology(self) -> Topology:
        """How the chips are joined."""
        return self.machine.topology

    @property
    def figures(self) -> Mapping[str, Figure]:
        """Every figure by its dotted key."""
        return self.machine.figures

    @property
    def sources(self) -> Mapping[str, str]:
        """Documents by their tags."""
        return self.machine.sources

    @property
    def hbm_bytes_per_core(self) -> int:
        """Capacity that one core (LNC 1) can count on."""
        return self.chip.hbm_bytes // self.chip.cores

    @property
    def hbm_bytes_per_s_per_core(self) -> float:
        """What one core's HBM stack can deliver: Neuron Explorer's denominator of MBU (410 GB/s on Trainium1, 725 on 2)."""
        return self.chip.hbm_bytes_per_s / self.chip.hbm_stacks

    @property
    def estimates(self) -> list[str]:
        """Dotted keys of the figures that nobody published."""
        return self.machine.estimates

    def describe(self) -> dict[str, Any]:
        """The whole description as plain data, for the manifest."""
        core = asdict(self.core) | {"hbm_bytes_per_s": self.hbm_bytes_per_s_per_core}
        several = {} if self.instances == 1 else {"instances": self.instances}
        return self.machine.describe() | {"core": core} | several

    def scaled(self, instances: int) -> System:
        """Several of these machines, joined by their network.

        Raises:
            FabricError: fewer than 1, or too many chips.
        """
        topology = self.machine.scaled(instances)
        return replace(self, machine=replace(self.machine, topology=topology), instances=instances)


def load_system(name_or_path: str) -> System:
    """A system by name, from a user's own TOML file, or from ASTRA-sim's NETWORK.yml,SYSTEM.json.

    Raises:
        SystemDescriptionError: unknown name (the nearest are suggested), unreadable file, missing or wrong key, or a machine whose cores are
            not described.
    """
    if "," in name_or_path:
        from trnprof.emulator.astra_sim import load_astra_sim, names_astra_sim

        if names_astra_sim(name_or_path):
            return load_astra_sim(name_or_path)
    description = open_system(name_or_path)
    machine, core = read_machine(description)
    if core is None:
        raise SystemDescriptionError(
            f"{name_or_path}: only the roofline and the fabric of {machine.chip.name} are described, no core ([core]), so it "
            f"cannot be emulated; trnprof systems show and trnprof collective take it"
        )
    for key in ("cores", "hbm_stacks"):
        if not getattr(machine.chip, key):
            raise description.fail(f"chip.{key}", "missing")
    return System(machine, core)
