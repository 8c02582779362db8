"""Are the paths of Trn3's racks as long as published, and do instances meet over their network alone?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.emulator.fabric.searching import all_pairs, check_walks, graph_of

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import fail_link
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import find_routes
from trnprof.emulator.fabric.scale_out import ScaleOut, scale_out
from trnprof.emulator.fabric.topology import MESH, SWITCH, Tier, Topology
from trnprof.tracer.errors import FabricError

RACKS = Tier("pair", MESH, ("rack",), 128e9, 500.0)
PCB = Tier("pcb", MESH, ("chip",), 512e9, 300.0)
TRAY_SWITCH = Tier("tray", SWITCH, ("chip",), 512e9, 300.0, 120.0, switches=8)
PLANES = Tier("plane", SWITCH, ("tray",), 512e9, 300.0, 120.0, switches=8)
RACK_SWITCH = Tier("rack", SWITCH, ("chip", "tray"), 512e9, 300.0, 120.0, switches=8)

NL32X2 = Topology(("chip", "tray", "rack"), (2, 16, 2), (PCB, PLANES, RACKS))
NL32X2_ALL_TO_ALL = replace(NL32X2, tiers=(PCB, RACK_SWITCH, RACKS))
NL72X2 = Topology(
    ("chip", "tray", "rack"), (4, 18, 2), (TRAY_SWITCH, replace(PLANES, switches=10), RACKS)
)
NL72X2_TWO_PLANES = Topology(
    ("chip", "plane", "tray", "rack"),
    (2, 2, 18, 2),
    (
        replace(TRAY_SWITCH, spans=("chip", "plane")),
        replace(PLANES, spans=("chip", "tray")),
        RACKS,
    ),
)
NL72X2_ALL_TO_ALL = replace(NL72X2, tiers=(TRAY_SWITCH, RACK_SWITCH, RACKS))


def passed(topology: Topology, source: dict[str, int], target: dict[str, int]) -> int:
    """Chips and switches on the way, which is what SemiAnalysis counts as hops."""
    strides = np.concatenate([[1], np.cumprod(topology.sizes[:-1])])

    def chip(at: dict[str, int]) -> np.ndarray:
        return np.array([sum(strides[topology.coordinates.index(n)] * v for n, v in at.items())])

    return len(find_routes(build_fabric(topology), chip(source), chip(target)).links) - 1


@pytest.mark.parametrize(
    ("topology", "source", "target", "hops"),
    [
        # first generation of switches: A1 to A16, A1 to B2, A of rack A to B of rack B (another tray), tray peers
        (NL32X2, {"chip": 0, "tray": 0}, {"chip": 0, "tray": 15}, 1),
        (NL32X2, {"chip": 0, "tray": 0}, {"chip": 1, "tray": 1}, 2),
        (NL32X2, {"chip": 0, "rack": 0}, {"chip": 1, "tray": 1, "rack": 1}, 3),
        (NL32X2, {"chip": 0}, {"chip": 1}, 0),
        (NL32X2, {"rack": 0}, {"rack": 1}, 0),
        # every chip to every other in the rack
        (NL32X2_ALL_TO_ALL, {"chip": 0, "tray": 0}, {"chip": 1, "tray": 1}, 1),
        (NL32X2_ALL_TO_ALL, {"chip": 0, "tray": 0}, {"chip": 0, "tray": 9}, 1),
        (NL32X2_ALL_TO_ALL, {"chip": 0}, {"chip": 1}, 0),
        # same plane and other tray, other plane and tray, other plane and rack, same tray
        (NL72X2, {"chip": 2, "tray": 0}, {"chip": 2, "tray": 17}, 1),
        (NL72X2, {"chip": 0, "tray": 0}, {"chip": 3, "tray": 1}, 3),
        (NL72X2, {"chip": 0, "rack": 0}, {"chip": 3, "tray": 1, "rack": 1}, 4),
        (NL72X2, {"chip": 0}, {"chip": 3}, 1),
        # planes fall from four to two: two chips of each tray share one
        (NL72X2_TWO_PLANES, {"chip": 0, "tray": 0}, {"chip": 1, "tray": 1}, 1),
        (NL72X2_TWO_PLANES, {"plane": 0, "tray": 0}, {"plane": 1, "tray": 1}, 3),
        (NL72X2_TWO_PLANES, {"chip": 0, "plane": 0}, {"chip": 1, "plane": 1}, 1),
        (NL72X2_TWO_PLANES, {"chip": 0}, {"chip": 1, "plane": 1, "tray": 1, "rack": 1}, 4),
        # all to all in the rack; tray peers still go through the tray's switches
        (NL72X2_ALL_TO_ALL, {"chip": 0, "tray": 0}, {"chip": 3, "tray": 1}, 1),
        (NL72X2_ALL_TO_ALL, {"chip": 0}, {"chip": 3}, 1),
    ],
)
def test_paths_of_trn3_pass_as_many_nodes_as_published(
    topology: Topology, source: dict[str, int], target: dict[str, int], hops: int
) -> None:
    """hardware.md 7.3 and 7.4."""
    assert passed(topology, source, target) == hops


@pytest.mark.parametrize(("topology", "switches", "chips"), [(NL32X2, 4, 16), (NL72X2, 8, 18)])
def test_a_switch_of_a_plane_sees_one_chip_of_each_tray(
    topology: Topology, switches: int, chips: int
) -> None:
    fabric = build_fabric(topology)
    tier = [t.name for t in topology.tiers].index("plane")
    ups = slice(int(fabric.first_link[tier]), int(fabric.first_link[tier]) + fabric.chips)
    at = graph_of(
        [(str(t), str(s)) for s, t in zip(fabric.source[ups], fabric.target[ups], strict=True)]
    )
    assert len(at) == switches
    per_tray = topology.sizes[0]
    for near in at.values():
        assert len(near) == len({int(chip) // per_tray for chip in near}) == chips


def test_a_chip_cut_off_from_its_plane_is_reached_through_its_tray_peer() -> None:
    fabric = fail_link(build_fabric(NL32X2), "4-plane-switch 0")
    links = find_routes(fabric, np.array([0]), np.array([4])).links
    assert [fabric.topology.tiers[t].name for t in fabric.tier[links]] == [
        "pcb",
        "plane",
        "plane",
        "pcb",
    ]


EFA = ScaleOut(25e9, 7_500.0)


def scaled(spec: str, instances: int) -> Fabric:
    return build_fabric(scale_out(made_up_topology(spec, [128e9], [300_000]), EFA, instances))


def test_instances_meet_over_their_network_and_only_there() -> None:
    fabric = scaled("torus:4x4", 3)
    assert (fabric.chips, fabric.nodes) == (48, 49)
    assert fabric.topology.coordinates == ("x", "y", "instance")
    sources, targets = all_pairs(48)
    routes = find_routes(fabric, sources, targets)
    check_walks(fabric, routes, sources, targets)
    efa = fabric.topology.tiers[-1]
    assert (efa.name, efa.kind, efa.spans) == ("efa", "switch", ("x", "y", "instance"))
    for pair, (source, target) in enumerate(zip(sources, targets, strict=True)):
        tiers = fabric.tier[routes.links[routes.offsets[pair] : routes.offsets[pair + 1]]]
        if source // 16 == target // 16:
            assert (tiers < 2).all()
        else:
            assert tiers.tolist() == [2, 2]
            assert fabric.latency_ps[routes.links[routes.offsets[pair]]] == 7_500_000


def test_a_failed_link_within_an_instance_is_gone_round_within_it() -> None:
    fabric = fail_link(scaled("torus:4x4", 2), "0-1")
    links = find_routes(fabric, np.array([0]), np.array([1])).links
    assert (fabric.tier[links] < 2).all()
    assert len(links) == 3
    for near in ("3", "4", "12"):
        fabric = fail_link(fabric, f"0-{near}")
    links = find_routes(fabric, np.array([0]), np.array([1])).links
    assert fabric.tier[links].tolist() == [2, 2]


def test_one_instance_is_itself_and_none_is_refused() -> None:
    one = made_up_topology("ring:4", [1.0], [0])
    assert scale_out(one, EFA, 1) is one
    with pytest.raises(FabricError, match="0 instances: expected 1 or more"):
        scale_out(one, EFA, 0)
    with pytest.raises(FabricError, match="chips is too large"):
        scale_out(one, EFA, 100_000)
    with pytest.raises(FabricError, match="'efa': bandwidth of 0 B/s"):
        scale_out(one, ScaleOut(0.0, 1.0), 2)
    with pytest.raises(FabricError, match="same name"):
        scale_out(scale_out(one, EFA, 2), EFA, 2)
