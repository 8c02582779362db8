"""Do faults touch the links that were named and no others, and are wrong names told with those near them?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.fabric.searching import topologies

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import degrade_link, fail_link, slow_chip
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.names import find_links, link_name
from trnprof.emulator.fabric.topology import Topology
from trnprof.tracer.errors import FabricError


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [100.0], [0]))


def slower(fabric: Fabric) -> dict[str, float]:
    return {
        link_name(fabric, link): float(fabric.bytes_per_s[link])
        for link in range(fabric.links)
        if fabric.bytes_per_s[link] != 100.0
    }


@settings(max_examples=50, deadline=None)
@given(topologies())
def test_each_link_is_found_by_its_name(topology: Topology) -> None:
    fabric = build_fabric(topology)
    for link in range(fabric.links):
        ends = fabric.source[link], fabric.target[link]
        found = find_links(fabric, link_name(fabric, link))
        assert link in found
        assert {(fabric.source[k], fabric.target[k]) for k in found} == {ends}
        both = find_links(fabric, link_name(fabric, link).replace(">", "-"))
        assert {(fabric.source[k], fabric.target[k]) for k in both} == {ends, ends[::-1]}


def test_names_of_switches() -> None:
    fabric = made_up("switch:3,switch:2")
    assert link_name(fabric, 0) == "0>x-switch 0"
    assert link_name(fabric, 3) == "3>x-switch 1"
    assert link_name(fabric, fabric.links - 1) == "y-switch 2>5"
    assert find_links(fabric, " 0 - x-switch 0 ").tolist() == [0, 6]


def test_both_directions_or_one_are_degraded_and_failed() -> None:
    ring = made_up("ring:4")
    assert slower(degrade_link(ring, "0-1", 0.5)) == {"0>1": 50.0, "1>0": 50.0}
    assert slower(degrade_link(ring, "1>0", 0.25)) == {"1>0": 25.0}
    assert slower(degrade_link(degrade_link(ring, "1>0", 0.5), "1-0", 0.5)) == {
        "0>1": 50.0,
        "1>0": 25.0,
    }
    assert slower(degrade_link(ring, "0-1", 1.0)) == {}
    failed = fail_link(ring, "2-3")
    assert [link_name(failed, int(k)) for k in np.flatnonzero(failed.is_failed)] == ["2>3", "3>2"]
    assert not ring.is_failed.any()
    assert slower(ring) == {}


def test_a_slow_chip_slows_all_links_at_it() -> None:
    fabric = slow_chip(made_up("torus:3x3"), 4, 0.5)
    near = ("1", "3", "5", "7")
    assert slower(fabric) == {name: 50.0 for n in near for name in (f"4>{n}", f"{n}>4")}
    switch = slow_chip(made_up("switch:4"), 2, 0.5)
    assert slower(switch) == {"2>x-switch 0": 50.0, "x-switch 0>2": 50.0}


@pytest.mark.parametrize(
    ("spec", "link", "message"),
    [
        ("torus:4x4", "0-5", "link '0-5': nothing joins the two; 0 has links to 1, 3, 4, 12"),
        ("torus:4x4", "3-3", "nothing joins the two; 3 has links to 0, 2, 7, 15"),
        ("torus:4x4", "3-16", r"link '3-16': chips are 0\.\.15"),
        ("torus:4x4", "3", r"link '3': expected 3-7 \(both directions\) or 3>7 \(one\)"),
        ("torus:4x4", "", "link '': expected"),
        ("torus:4x4", "3--7", "expected 3-7"),
        ("torus:4x4", "3-7-9", "expected 3-7"),
        ("torus:4x4", "a-b", "expected 3-7"),
        ("torus:4x4", "3-x-switch 0", "no 'x-switch 0'; switches are none"),
        ("switch:16,ring:2", "3-4", "nothing joins the two; 3 has links to 19, x-switch 0"),
        ("switch:16,ring:2", "3-x-switch 2", r"no 'x-switch 2'; switches are x-switch 0\.\.1"),
        ("switch:16", "x-switch 0-x-switch 0", "0, 1, 2, 3, 4, 5 and 10 more"),
    ],
)
def test_links_that_are_not_there_are_told_with_what_is(spec: str, link: str, message: str) -> None:
    fabric = made_up(spec)
    with pytest.raises(FabricError, match=message) as caught:
        fail_link(fabric, link)
    assert "\n" not in str(caught.value)
    with pytest.raises(FabricError, match=message):
        degrade_link(fabric, link, 0.5)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=12), st.text("0123->xswitch ", max_size=14)))
def test_any_text_names_links_or_is_refused(text: str) -> None:
    fabric = made_up("switch:4")
    links, refusal = 0, ""
    try:
        links = len(find_links(fabric, text))
    except FabricError as error:
        refusal = str(error)
    assert (links >= 1) != (len(refusal.splitlines()) == 1)


@pytest.mark.parametrize("factor", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_factors_are_fractions(factor: float) -> None:
    fabric = made_up("ring:4")
    with pytest.raises(FabricError, match="expected more than 0 and at most 1"):
        degrade_link(fabric, "0-1", factor)
    with pytest.raises(FabricError, match="chip 2: factor"):
        slow_chip(fabric, 2, factor)


@pytest.mark.parametrize("chip", [-1, 4])
def test_slow_chips_are_in_range(chip: int) -> None:
    with pytest.raises(FabricError, match=r"chips are 0\.\.3"):
        slow_chip(made_up("ring:4"), chip, 0.5)
