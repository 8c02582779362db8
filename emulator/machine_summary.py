"""What is there to say of a machine? Its figures by their keys, what follows of them, and what differs between two machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from trnprof.emulator.core import Core
from trnprof.emulator.fabric.layout import lay_out
from trnprof.emulator.fabric.measures import (
    bisection_bytes_per_s,
    diameter_links,
    hop_table,
    mean_distance_links,
)
from trnprof.emulator.fabric.topology import MESH, RING, SWITCH, Tier, Topology
from trnprof.emulator.machine import Machine

_COMPARED: Final = (
    "chips",
    "chip",
    "core",
    "totals",
    "topology",
    "fabric",
    "collectives",
    "scale_out",
    "economics",
)
_FOLLOWING: Final = (
    "hops",
    "first_group",
    "groups",
    "all_switches",
    "chip_bytes_per_s",
    "absent",
)
"""Keys of which nothing is said in a comparison: they follow of others, or are no figures."""


_TOTALS: Final = (
    "cores",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "sbuf_bytes",
    "link_bytes_per_s",
    "scale_out_bytes_per_s",
)
"""Figures of a chip, of which all chips have the sum."""


@dataclass(frozen=True)
class Difference:
    """One figure that two machines do not share.

    Attributes:
        key: dotted, as in the file of a machine.
        values: of the first and of the second; None where there is none.
        is_estimate: likewise.
    """

    key: str
    values: tuple[Any, Any]
    is_estimate: tuple[bool, bool]


def summarize(machine: Machine, core: Core | None, instances: int = 1) -> dict[str, Any]:
    """Plain data: figures under the keys of the machine's file, totals of the system, and measures of its fabric.

    Args:
        machine: of which.
        core: its core, None for comparators.
        instances: how many of it, joined by its network.

    Raises:
        FabricError: fewer than 1 instance, or too many chips.
    """
    topology = machine.scaled(instances)
    chips = topology.chips
    chip = asdict(machine.chip) | {
        "cores": machine.chip.cores or None,
        "hbm_stacks": machine.chip.hbm_stacks or None,
        "sbuf_bytes": machine.chip.cores * core.sbuf_bytes if core else None,
        "link_bytes_per_s": sum(
            _chip_bytes_per_s(machine.topology, t) for t in machine.topology.tiers
        ),
        "scale_out_bytes_per_s": machine.scale_out.link_bytes_per_s,
        "peaks": asdict(machine.peaks),
    }
    return {
        "name": machine.name,
        "description": machine.description,
        "is_emulated": core is not None,
        "instances": instances,
        "chips": chips,
        "chip": chip,
        "core": None if core is None else asdict(core),
        "totals": {
            **{key: chips * chip[key] if chip[key] else None for key in _TOTALS},
            "dense_flops": _times(machine.peaks.dense_flops, chips),
            "sparse_flops": _times(machine.peaks.sparse_flops, chips),
        },
        "topology": {
            "coordinates": list(topology.coordinates),
            "sizes": list(topology.sizes),
            "tiers": {tier.name: _describe_tier(topology, tier) for tier in topology.tiers},
        },
        "fabric": {
            "bisection_bytes_per_s": bisection_bytes_per_s(topology),
            "diameter_links": diameter_links(topology),
            "mean_distance_links": mean_distance_links(topology),
            "hops": [asdict(hops) for hops in hop_table(topology)],
        },
        "collectives": asdict(machine.collectives) if machine.collectives else None,
        "scale_out": asdict(machine.scale_out) | {"network": machine.network},
        "economics": asdict(machine.economics),
        "published": asdict(machine.published),
        "estimates": {
            key: asdict(figure) for key, figure in machine.figures.items() if figure.estimate
        },
        "derived_estimates": derived_estimates(machine, instances),
        "sources": dict(machine.sources),
    }


def is_guess(summary: Mapping[str, Any], key: str) -> bool:
    """Whether a figure of a summary is an estimate, or follows of some."""
    return key in summary["estimates"] or key in summary["derived_estimates"]


def derived_estimates(machine: Machine, instances: int = 1) -> list[str]:
    """Keys of a summary's figures that follow of estimates; arguments as above."""
    guessed = machine.estimates
    of_links = [
        key for key in guessed if key.startswith("topology.") and key.endswith("bytes_per_s")
    ]
    of_chip = {
        "cores": ["chip.cores"],
        "hbm_bytes": ["chip.hbm_bytes"],
        "hbm_bytes_per_s": ["chip.hbm_bytes_per_s"],
        "sbuf_bytes": ["chip.cores", "core.sbuf_partitions", "core.sbuf_bytes_per_partition"],
        "link_bytes_per_s": of_links,
        "scale_out_bytes_per_s": ["scale_out.link_bytes_per_s"],
    }
    for kind, cycles in (("dense", "cycles_per_column"), ("sparse", "sparse_cycles_per_column")):
        for dtype in getattr(machine.peaks, f"{kind}_flops"):
            of_chip[f"peaks.{kind}_flops.{dtype}"] = [
                "chip.cores",
                "core.tensor.clock_ghz",
                "core.tensor.rows",
                "core.tensor.columns",
                f"core.tensor.{cycles}.{dtype}",
            ]
    found = [f"chip.{key}" for key, causes in of_chip.items() if set(causes) & set(guessed)]
    is_sized = "topology.sizes" in guessed
    found += [
        f"totals.{key.removeprefix('peaks.')}"
        for key in of_chip
        if is_sized or f"chip.{key}" in found
    ]
    of_network = instances > 1 and "scale_out.link_bytes_per_s" in guessed
    if is_sized or of_links or of_network:
        found.append("fabric.bisection_bytes_per_s")
    return [*found, *(["chips"] if is_sized else [])]


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[Difference]:
    """Which figures of two summaries differ, in the order of the first; cores are compared where both have one."""
    left, right = _flat(first), _flat(second)
    if first["core"] is None or second["core"] is None:
        left, right = (
            {key: value for key, value in figures.items() if not key.startswith("core")}
            for figures in (left, right)
        )
    keys = [*left, *(key for key in right if key not in left)]
    heads = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    tables = list(dict.fromkeys(key.rpartition(".")[0] for key in keys))
    keys.sort(key=lambda k: (heads.index(k.partition(".")[0]), tables.index(k.rpartition(".")[0])))
    return [
        Difference(
            key,
            (left.get(key), right.get(key)),
            (is_guess(first, key), is_guess(second, key)),
        )
        for key in keys
        if left.get(key) != right.get(key)
    ]


def _flat(summary: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys and values of what is compared."""
    flat: dict[str, Any] = {}
    for key, value in summary.items():
        if key in _COMPARED:
            _flatten(flat, key, value)
    return flat


def _flatten(flat: dict[str, Any], key: str, value: Any) -> None:
    if not isinstance(value, dict):
        flat[key] = value
        return
    for name, inner in value.items():
        if name not in _FOLLOWING:
            _flatten(flat, f"{key}.{name}", inner)


def _times(flops: Any, chips: int) -> dict[str, float]:
    return {dtype: chips * value for dtype, value in flops.items()}


def _describe_tier(topology: Topology, tier: Tier) -> dict[str, Any]:
    """Its figures, and which chips it joins: of a switch those at it, of the rest those of one group. What it cannot have is None."""
    layout = lay_out(topology, tier)
    is_switched = tier.kind == SWITCH
    chips = np.arange(topology.chips)
    is_first = layout.switch == 0 if is_switched else layout.offset == chips
    joined = chips[is_first]
    told = {key: value for key, value in asdict(tier).items() if key != "name"} | {
        "spans": list(tier.spans),
        "leaf": list(tier.leaf) or None,
        "trunk_bytes_per_s": tier.trunk_bytes_per_s or None,
        "groups": topology.chips // len(joined),
        "first_group": joined.tolist(),
        "chip_bytes_per_s": _chip_bytes_per_s(topology, tier),
        "all_switches": layout.switches * tier.switches if is_switched else None,
    }
    return told if is_switched else told | dict.fromkeys(("switch_ns", "switches"))


def _chip_bytes_per_s(topology: Topology, tier: Tier) -> float:
    """Of all links of a tier that leave a chip."""
    size = topology.size_of(tier.spans)
    links = {RING: min(2, size - 1), MESH: size - 1}.get(tier.kind, 1)
    return links * tier.link_bytes_per_s
