"""Are rates max-min fair, by brute force and by what defines it?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trnprof.emulator.collectives.fluid.max_min import max_min_rates
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import find_routes
from trnprof.tracer.errors import FabricError

Array = NDArray[Any]
Case = tuple[Array, Array, Array, Array]


def water_filling(offsets: Array, links: Array, capacities: Array, weights: Array) -> Array:
    """By rounds over all links: raise all rates alike until a link is full, freeze its flows, go on."""
    flow = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    rates = np.where(np.diff(offsets) > 0, -1.0, np.inf)
    left = capacities.astype(float)
    while (rates < 0).any():
        is_open = rates[flow] < 0
        load = np.bincount(links[is_open], weights[flow[is_open]], minlength=len(left))
        shares = np.where(load > 0, left / np.where(load > 0, load, 1), np.inf)
        level = shares.min()
        full = np.flatnonzero(shares <= level * (1 + 1e-12))
        frozen = np.unique(flow[is_open & np.isin(links, full)])
        rates[frozen] = level
        now = np.isin(flow, frozen)
        left -= np.bincount(links[now], weights[flow[now]] * level, minlength=len(left))
    return rates


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Flows over any links, each link at most once in a flow."""
    capacities = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
    route = st.lists(st.integers(0, len(capacities) - 1), max_size=5, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=40))
    weights = draw(st.lists(st.integers(1, 4), min_size=len(routes), max_size=len(routes)))
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in routes])])
    links = np.array([link for one in routes for link in one], np.int32)
    return offsets, links, np.array(capacities, float), np.array(weights)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_rates_are_those_of_water_filling(case: Case) -> None:
    np.testing.assert_allclose(max_min_rates(*case), water_filling(*case), rtol=1e-9)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_each_flow_has_a_full_link_where_nobody_is_faster(case: Case) -> None:
    offsets, links, capacities, weights = case
    rates = max_min_rates(*case)
    flow = np.repeat(np.arange(len(weights)), np.diff(offsets))
    carried = np.bincount(links, (weights * rates)[flow], minlength=len(capacities))
    assert (carried <= capacities * (1 + 1e-9)).all()
    is_full = carried >= capacities * (1 - 1e-9)
    fastest = np.zeros(len(capacities))
    np.maximum.at(fastest, links, rates[flow])
    is_held = is_full[links] & (rates[flow] >= fastest[links] * (1 - 1e-9))
    assert np.bincount(flow, is_held, minlength=len(weights))[np.diff(offsets) > 0].all()
    assert np.isinf(rates[np.diff(offsets) == 0]).all()


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_weight_stands_for_equal_flows(case: Case) -> None:
    offsets, links, capacities, weights = case
    routes = [links[offsets[i] : offsets[i + 1]] for i in range(len(weights))]
    apart = [route for route, weight in zip(routes, weights, strict=True) for _ in range(weight)]
    all_offsets = np.concatenate([[0], np.cumsum([len(route) for route in apart])])
    each = max_min_rates(all_offsets, np.concatenate([*apart, links[:0]]), capacities)
    np.testing.assert_allclose(each, np.repeat(max_min_rates(*case), weights), rtol=1e-9)


@pytest.mark.parametrize(
    ("spec", "flows"), [("torus:8x8", 1000), ("torus:8x8x8", 2000), ("switch:32", 500)]
)
def test_random_traffic_on_machines(spec: str, flows: int) -> None:
    fabric = build_fabric(made_up_topology(spec, [50e9], [0]))
    random = np.random.default_rng(flows)
    source = random.integers(0, fabric.chips, flows)
    target = (source + random.integers(1, fabric.chips, flows)) % fabric.chips
    routes = find_routes(fabric, source, target)
    rates = max_min_rates(routes.offsets, routes.links, fabric.bytes_per_s)
    weights = np.ones(flows)
    slow = water_filling(routes.offsets, routes.links, fabric.bytes_per_s, weights)
    np.testing.assert_allclose(rates, slow, rtol=1e-9)


def test_the_parking_lot() -> None:
    """One flow over both links, one over each: the textbook's example (Bertsekas and Gallager 6.5.2)."""
    rates = max_min_rates(np.array([0, 2, 3, 4]), np.array([0, 1, 0, 1]), np.array([1.0, 2.0]))
    assert rates.tolist() == [0.5, 0.5, 1.5]


def test_a_link_twice_on_a_route_counts_twice() -> None:
    assert max_min_rates(np.array([0, 2]), np.array([0, 0]), np.array([1.0])).tolist() == [0.5]


def test_no_flows() -> None:
    assert max_min_rates(np.array([0]), np.empty(0, np.int32), np.ones(3)).tolist() == []


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("nan")])
def test_a_link_without_capacity_is_refused(capacity: float) -> None:
    with pytest.raises(FabricError, match=r"link 1 .*expected more than 0"):
        max_min_rates(np.array([0, 2]), np.array([0, 1]), np.array([1.0, capacity]))
