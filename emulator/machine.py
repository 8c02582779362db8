"""What is a machine but for the engines of its cores, and how is it loaded? Comparators are machines and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.core import Core, read_core
from trnprof.emulator.cost import to_ps
from trnprof.emulator.fabric.scale_out import ScaleOut, scale_out
from trnprof.emulator.fabric.topology import RING, Topology
from trnprof.emulator.figures import Description, Figure
from trnprof.emulator.machine_parts import (
    AstraSimWays,
    Chip,
    Collectives,
    Economics,
    Peaks,
    Published,
)
from trnprof.emulator.machine_tables import (
    peaks_of,
    read_chip,
    read_collectives,
    read_economics,
    read_published,
    read_scale_out,
    read_topology,
    require_positive,
)
from trnprof.emulator.system_files import open_system


@dataclass(frozen=True)
class Machine:
    """One described machine, with where each figure comes from.

    Attributes:
        name: by which it is asked for.
        description: one line.
        chip: all chips are alike.
        peaks: of one chip.
        topology: how the chips are joined.
        collectives: None for comparators: of their collectives the fabric alone is counted.
        network: generation of the network cards between instances.
        scale_out: that network.
        economics: power and price.
        published: totals that the vendor prints.
        figures: every figure by its dotted key.
        sources: documents by their tags.
        ways: of ASTRA-sim, where it is described by that simulator's inputs.
    """

    name: str
    description: str
    chip: Chip
    peaks: Peaks
    topology: Topology
    collectives: Collectives | None
    network: str
    scale_out: ScaleOut
    economics: Economics
    published: Published
    figures: Mapping[str, Figure]
    sources: Mapping[str, str]
    ways: AstraSimWays | None = None

    @property
    def estimates(self) -> list[str]:
        """Dotted keys of the figures that nobody published."""
        return [key for key, figure in self.figures.items() if figure.estimate]

    def endpoint(self) -> Endpoint:
        """What a message costs at its chips; nothing for a comparator."""
        costs = self.collectives
        if costs is None:
            return NO_COST
        return Endpoint(
            start_ps=to_ps(costs.start_ns),
            post_ps=to_ps(costs.post_ns),
            dma_start_ps=to_ps(costs.dma_start_ns),
            dma_done_ps=to_ps(costs.dma_done_ns),
            dma_bytes_per_s=costs.dma_bytes_per_s,
            hbm_bytes_per_s=self.chip.hbm_bytes_per_s,
            reduce_touches=costs.reduce_touches,
        )

    def scaled(self, instances: int) -> Topology:
        """The topology of several of these machines, joined by their network.

        Raises:
            FabricError: fewer than 1, or too many chips.
        """
        return scale_out(self.topology, self.scale_out, instances)

    def folded(self, instances: int) -> Topology:
        """The same with one instance that stands for all (see ``folding``).

        Raises:
            FabricError: one chip an instance, or too many.
        """
        from trnprof.emulator.fabric.folding import folded_topology

        return folded_topology(self.topology, self.scale_out, instances)

    def describe(self) -> dict[str, Any]:
        """The whole description as plain data, for the manifest."""
        bfloat16 = self.chip.printed_dense_flops.get("bfloat16")
        labels = {
            "marketing_flops_bfloat16": bfloat16,
            "power_w": self.economics.chip_power_w,
        }
        return {
            "name": self.name,
            "description": self.description,
            "chip": asdict(self.chip) | labels,
            "peaks": asdict(self.peaks),
            "topology": self._describe_topology(),
            "collectives": asdict(self.collectives) if self.collectives else None,
            "scale_out": asdict(self.scale_out) | {"network": self.network},
            "economics": asdict(self.economics),
            "published": asdict(self.published),
            "estimates": self.estimates,
            "sources": dict(self.sources),
            "figures": {key: asdict(figure) for key, figure in self.figures.items()},
        }

    def _describe_topology(self) -> dict[str, Any]:
        topology = self.topology
        tiers = topology.tiers
        return asdict(topology) | {
            "kind": "torus" if all(tier.kind == RING for tier in tiers) else "switched",
            "chips": topology.chips,
            "link_bytes_per_s": [tier.link_bytes_per_s for tier in tiers],
            "hop_ns": max(tier.link_ns + tier.switch_ns for tier in tiers),
            "scale_out_bytes_per_s": topology.chips * self.scale_out.link_bytes_per_s,
        }


def load_machine(name_or_path: str) -> Machine:
    """A machine by name, or from a user's own TOML file.

    Raises:
        SystemDescriptionError: unknown name (the nearest are suggested), unreadable file, missing or wrong key.
    """
    return read_machine(open_system(name_or_path))[0]


def read_machine(description: Description) -> tuple[Machine, Core | None]:
    """The machine of a description and its core; None where the description has no table ``[core]``.

    Raises:
        SystemDescriptionError: a key is missing, unknown, or its value is of another type or impossible.
    """
    figures = description.figures()
    core = read_core(description) if description.has("core") else None
    require_positive(description, figures)
    chip = read_chip(description)
    network, between_instances = read_scale_out(description)
    machine = Machine(
        name=description.table["name"],
        description=description.table["description"],
        chip=chip,
        peaks=peaks_of(chip, core),
        topology=read_topology(description),
        collectives=read_collectives(description),
        network=network,
        scale_out=between_instances,
        economics=read_economics(description),
        published=read_published(description),
        figures=figures,
        sources=description.texts("sources"),
    )
    return machine, core
