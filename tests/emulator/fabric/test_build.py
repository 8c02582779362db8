"""Are the links those that the kinds of tiers define, and are impossible topologies refused?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from tests.emulator.fabric.searching import graph_of, links_by_definition, topologies

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.topology import SWITCH, Tier, Topology
from trnprof.tracer.errors import FabricError


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [50e9], [500_000]))


def links(fabric: Fabric) -> list[tuple[int, int]]:
    return list(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True))


@settings(max_examples=100, deadline=None)
@given(topologies())
def test_links_are_those_of_the_definition(topology: Topology) -> None:
    fabric = build_fabric(topology)
    expected = links_by_definition(topology)
    assert fabric.links == len(expected)
    nodes = {node for link in expected for node in link} | {str(c) for c in range(fabric.chips)}
    assert fabric.nodes == len(nodes)

    def between_chips(names: list[tuple[str, str]]) -> Counter[tuple[str, str]]:
        return Counter(n for n in names if n[0].isdigit() and n[1].isdigit())

    direct = [(str(s), str(t)) for s, t in links(fabric) if max(s, t) < fabric.chips]
    assert Counter(direct) == between_chips(expected)
    # switches have no common names: compare which chips each stands before
    switches = range(fabric.chips, fabric.nodes)
    built = graph_of([(str(s), str(t)) for s, t in links(fabric)])
    defined = graph_of(expected)
    chips = {str(chip) for chip in range(fabric.chips)}
    assert sorted(sorted(built[str(s)] & chips) for s in switches) == sorted(
        sorted(defined[name] & chips) for name in defined.keys() - chips
    )


@settings(max_examples=50, deadline=None)
@given(topologies())
def test_figures_of_links_are_their_tiers(topology: Topology) -> None:
    fabric = build_fabric(topology)
    for link in range(fabric.links):
        tier = topology.tiers[fabric.tier[link]]
        assert (
            fabric.first_link[fabric.tier[link]] <= link < fabric.first_link[fabric.tier[link] + 1]
        )
        ends_at_switch = fabric.target[link] >= fabric.chips
        is_trunk = ends_at_switch and fabric.source[link] >= fabric.chips
        ns = tier.link_ns + (tier.switch_ns if ends_at_switch else 0)
        assert fabric.latency_ps[link] == ns * 1000
        rate = tier.trunk_bytes_per_s if is_trunk else tier.link_bytes_per_s
        assert fabric.bytes_per_s[link] == rate
    assert not fabric.is_failed.any()


def test_a_ring_lists_each_chips_next_and_last() -> None:
    assert links(made_up("ring:4")) == [
        (0, 1), (0, 3), (1, 2), (1, 0), (2, 3), (2, 1), (3, 0), (3, 2)
    ]  # fmt: skip


def test_a_ring_of_two_has_one_link_each_way() -> None:
    assert links(made_up("ring:2")) == [(0, 1), (1, 0)]


def test_trn1s_neighbours_are_as_published() -> None:
    """AWS: device 0 is joined to 12, 3, 4 and 1; in general to those 4 away modulo 16, and in a ring to its row."""
    near = graph_of([(str(s), str(t)) for s, t in links(made_up("torus:4x4"))])
    assert near["0"] == {"12", "3", "4", "1"}
    for device in range(16):
        row = 4 * (device // 4)
        expected = {
            (device + 4) % 16,
            (device - 4) % 16,
            row + (device + 1) % 4,
            row + (device - 1) % 4,
        }
        assert near[str(device)] == {str(other) for other in expected}


def test_switches_of_two_levels_are_joined_by_trunks() -> None:
    """Two racks of two chips each, a switch a rack."""
    tier = Tier("net", SWITCH, ("chip", "rack"), 10.0, 1.0, 0.5, ("chip",), 4.0)
    fabric = build_fabric(Topology(("chip", "rack"), (2, 2), (tier,)))
    assert links(fabric) == [
        (0, 4), (1, 4), (2, 5), (3, 5), (4, 0), (4, 1), (5, 2), (5, 3), (4, 5), (5, 4)
    ]  # fmt: skip
    assert fabric.bytes_per_s.tolist() == [10.0] * 8 + [4.0] * 2
    assert fabric.latency_ps.tolist() == [1500] * 4 + [1000] * 4 + [1500] * 2


def test_one_chip_has_no_links() -> None:
    fabric = build_fabric(Topology(("x",), (1,), (Tier("x", SWITCH, ("x",), 1.0, 1.0),)))
    assert (fabric.links, fabric.nodes) == (0, 1)
    assert np.array_equal(fabric.first_link, [0, 0])


SOUND = Tier("x", "ring", ("x",), 1.0, 1.0)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (Topology((), (), ()), "one size a coordinate"),
        (Topology(("x",), (2, 3), (SOUND,)), "one size a coordinate"),
        (Topology(("x", "x"), (2, 2), (SOUND,)), "same name"),
        (Topology(("x",), (0,), (SOUND,)), "'x': size 0"),
        (Topology(("x",), (4,), (SOUND, SOUND)), "another tier"),
        (Topology(("x",), (70_000,), (SOUND,)), "70,000 chips is too large; at most 65,536"),
        (Topology(("x",), (4_096,), (replace(SOUND, kind="mesh"),)), "16,773,120 links is too large"),
        (Topology(tuple("abcdefghi"), (1,) * 9, ()), "9 coordinates"),
        (Topology(("x",), (4,), (replace(SOUND, kind="hub"),)), "unknown kind 'hub'"),
        (Topology(("x",), (4,), (replace(SOUND, spans=()),)), "expected the names"),
        (Topology(("x",), (4,), (replace(SOUND, spans=("y",)),)), "spans 'y'"),
        (Topology(("x", "y"), (4, 4), (replace(SOUND, spans=("x", "y")),)), "a ring spans one"),
        (Topology(("x",), (4,), (replace(SOUND, kind="switch", leaf=("y",)),)), "leaf 'y'"),
        (Topology(("x",), (4,), (replace(SOUND, leaf=("x",)),)), "leaf is for switches"),
        (Topology(("x",), (4,), (replace(SOUND, link_bytes_per_s=0.0),)), "bandwidth of 0 B/s"),
        (Topology(("x",), (4,), (replace(SOUND, link_bytes_per_s=float("inf")),)), "bandwidth of inf"),
        (Topology(("x",), (4,), (replace(SOUND, link_ns=-1.0),)), "latency of -1 ns"),
        (Topology(("x",), (4,), (replace(SOUND, link_ns=float("nan")),)), "latency of nan ns"),
        (Topology(("x",), (4,), (replace(SOUND, switch_ns=1e13),)), "latency of a switch of 1e\\+13"),
        (
            Topology(("x", "y"), (4, 4), (Tier("n", SWITCH, ("x", "y"), 1.0, 1.0, leaf=("x",)),)),
            "bandwidth of trunks of 0 B/s",
        ),
    ],
)  # fmt: skip
def test_impossible_topologies_are_refused_in_one_line(topology: Topology, message: str) -> None:
    with pytest.raises(FabricError, match=message) as caught:
        build_fabric(topology)
    assert "\n" not in str(caught.value)
