"""How are the tables of a machine's description read, and what may not stand in them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from trnprof.emulator.core import Core
from trnprof.emulator.fabric.scale_out import ScaleOut
from trnprof.emulator.fabric.topology import KINDS, SWITCH, Tier, Topology
from trnprof.emulator.fabric.topology_check import check_topology
from trnprof.emulator.figures import Description, Figure
from trnprof.emulator.machine_parts import Chip, Collectives, Economics, Peaks, Published
from trnprof.tracer.errors import FabricError

_MAY_BE_ZERO: Final = ("_ns", "ramp_start", "fixed_cycles")


@dataclass(frozen=True)
class _Network:
    """The table ``[scale_out]``."""

    network: str
    link_bytes_per_s: float
    link_ns: float
    switch_ns: float


@dataclass(frozen=True)
class _Grid:
    """The table ``[topology]``; its tiers are tables of their own."""

    coordinates: tuple[str, ...]
    sizes: tuple[int, ...]
    tiers: None


def read_chip(description: Description) -> Chip:
    """The table ``[chip]`` and those below it.

    Raises:
        SystemDescriptionError: a key is missing, unknown or of the wrong type; so do the functions below.
    """
    return description.read(
        Chip,
        "chip",
        printed_dense_flops=description.numbers("chip.printed_dense_flops"),
        printed_sparse_flops=description.numbers("chip.printed_sparse_flops"),
    )


def peaks_of(chip: Chip, core: Core | None) -> Peaks:
    """Of the tensor engines of all cores; what the vendor prints where no core is described."""
    if core is None:
        return Peaks(chip.printed_dense_flops, chip.printed_sparse_flops)
    tensor = core.tensor
    return Peaks(
        {name: chip.cores * tensor.peak_flops(name) for name in tensor.cycles_per_column},
        {
            name: chip.cores * tensor.sparse_peak_flops(name)
            for name in tensor.sparse_cycles_per_column
        },
    )


def read_collectives(description: Description) -> Collectives | None:
    """The table ``[collectives]``; None where there is none."""
    if not description.has("collectives"):
        return None
    return description.read(Collectives, "collectives")


def read_scale_out(description: Description) -> tuple[str, ScaleOut]:
    """The table ``[scale_out]``: generation of the network, and the network."""
    read = description.read(_Network, "scale_out")
    return read.network, ScaleOut(read.link_bytes_per_s, read.link_ns, read.switch_ns)


def read_topology(description: Description) -> Topology:
    """The table ``[topology]`` and its tiers, in the order of the file, which is the order in which routes take them."""
    grid = description.read(_Grid, "topology", tiers=None)
    tables = description.table_of("topology.tiers")
    if len(grid.sizes) != len(grid.coordinates):
        raise description.fail(
            "topology.sizes",
            f"expected one a coordinate, {len(grid.coordinates)}, found {len(grid.sizes)}",
        )
    topology = Topology(grid.coordinates, grid.sizes, ())
    _check(description, "topology.coordinates", topology)
    for name in tables:
        tier = _read_tier(description, name, grid)
        _check(description, f"topology.tiers.{name}", replace(topology, tiers=(tier,)))
        _check_counts(description, topology, tier)
        topology = replace(topology, tiers=(*topology.tiers, tier))
    _check(description, "topology.tiers", topology)
    joined = {name for tier in topology.tiers for name in tier.spans}
    for name, size in zip(topology.coordinates, topology.sizes, strict=True):
        if size > 1 and name not in joined:
            raise description.fail("topology.tiers", f"no tier spans {name!r}: chips are apart")
    return topology


def _read_tier(description: Description, name: str, grid: _Grid) -> Tier:
    prefix = f"topology.tiers.{name}"
    tier = description.read(Tier, prefix, name=name)
    if tier.kind not in KINDS:
        raise description.fail(
            f"{prefix}.kind", f"expected one of {', '.join(KINDS)}, found {tier.kind!r}"
        )
    for key, known in (("spans", grid.coordinates), ("leaf", tier.spans)):
        for each in getattr(tier, key):
            if each not in known:
                raise description.fail(
                    f"{prefix}.{key}", f"expected some of {', '.join(known)}, found {each!r}"
                )
    return tier


def _check_counts(description: Description, topology: Topology, tier: Tier) -> None:
    """Each chip has a port of each physical switch that it is spread over; one that is joined to others has one more at least."""
    prefix = f"topology.tiers.{tier.name}"
    table = description.table_of(prefix)
    if tier.kind != SWITCH:
        for key in ("switches", "ports"):
            if key in table:
                raise description.fail(f"{prefix}.{key}", f"a {tier.kind} has no switches")
        return
    if tier.ports is None:
        return
    chips, leaves = topology.size_of(tier.leaf or tier.spans), topology.leaves_of(tier)
    needed = chips + (1 if leaves > 1 else 0)
    if needed > tier.ports:
        more = " and a way to the other switches" if leaves > 1 else ""
        raise description.fail(
            f"{prefix}.ports",
            f"{chips:,} chips{more} need {needed:,} ports of each switch, found {tier.ports:,}: "
            "give more ports, or leaf, the coordinates within which one switch stands",
        )


def _check(description: Description, key: str, topology: Topology) -> None:
    try:
        check_topology(topology)
    except FabricError as error:
        raise description.fail(key, str(error)) from None


def read_economics(description: Description) -> Economics:
    """The table ``[economics]``: of each figure the value or the reason why there is none; a description may do without the table."""
    names = [each.name for each in fields(Economics) if each.name != "absent"]
    if not description.has("economics"):
        none: dict[str, Any] = dict.fromkeys(names)
        return Economics(**none, absent=dict.fromkeys(names, "not in the description"))
    absent = description.texts("economics.absent")
    for key in absent:
        if key not in names:
            raise description.fail(
                f"economics.absent.{key}", f"unknown key; known are {', '.join(names)}"
            )
    economics = description.read(Economics, "economics", absent=absent)
    for name in names:
        has_figure = getattr(economics, name) is not None
        if has_figure and name in absent:
            raise description.fail(
                f"economics.absent.{name}", "there is a figure too: give one of them"
            )
        if not has_figure and name not in absent:
            raise description.fail(
                f"economics.{name}",
                f'missing: give a figure, or the reason why there is none: absent.{name} = "…"',
            )
    return economics


def read_published(description: Description) -> Published:
    """The table ``[published]`` and those below it; empty where there is none."""
    if not description.has("published"):
        return Published()
    return description.read(
        Published,
        "published",
        dense_flops=description.numbers("published.dense_flops"),
        sparse_flops=description.numbers("published.sparse_flops"),
    )


def require_positive(description: Description, figures: Mapping[str, Figure]) -> None:
    """Clocks, sizes and bandwidths are divisors: none may be 0."""
    for key, figure in figures.items():
        values = figure.value if isinstance(figure.value, list) else [figure.value]
        for value in values:
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if not value > 0 and not (value == 0 and key.endswith(_MAY_BE_ZERO)):
                raise description.fail(key, f"must be positive, found {value}")
