"""Do texts mean the topologies they say, and is each mistake told in one clear line?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.tracer.errors import FabricError


def test_a_torus_is_rings() -> None:
    torus = made_up_topology("torus:4x4x4", [50e9], [500_000])
    assert torus == made_up_topology("ring:4,ring:4,ring:4", [50e9] * 3, [500_000] * 3)
    assert torus.coordinates == ("x", "y", "z")
    assert torus.chips == 64


def test_each_dimension_may_have_figures_of_its_own() -> None:
    topology = made_up_topology(" switch:16 , ring:4 ", [100e9, 50e9], [250_000, 1_500])
    assert [
        (t.kind, t.spans, t.link_bytes_per_s, t.link_ns, t.switch_ns) for t in topology.tiers
    ] == [
        ("switch", ("x",), 100e9, 250.0, 0.0),
        ("ring", ("y",), 50e9, 1.5, 0.0),
    ]
    assert topology.sizes == (16, 4)
    fabric = build_fabric(topology)
    assert set(fabric.latency_ps[fabric.tier == 0].tolist()) == {250_000}
    assert set(fabric.latency_ps[fabric.tier == 1].tolist()) == {1_500}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "'' is none; expected ring:16"),
        ("ring", "'ring' is none"),
        ("16", "'16' is none"),
        ("torus:4x", "'torus:4x' is none"),
        ("torus:x4", "'torus:x4' is none"),
        ("torus:4x-4", "is none"),
        ("ring:4.5", "is none"),
        ("ring:٤", "is none"),
        ("ring:1e3", "is none"),
        ("switch:16,ring:4,foo", "'foo' is none"),
        ("switch:16,,ring:4", "'' is none"),
        ("foo:4", "unknown kind 'foo'"),
        ("ring:0", "size 0, expected 2 or more chips"),
        ("ring:1", "size 1, expected 2 or more chips"),
        ("torus:4x1", "size 1, expected 2 or more chips"),
        ("ring:4x4", "a ring has one size; for more write ring:4,ring:4"),
        ("mesh:2x3", "a mesh has one size; for more write mesh:2,mesh:3"),
        ("torus:2x2x2x2x2x2x2x2x2", "9 dimensions, at most 8"),
        ("ring:100000", "100,000 chips is too large; at most 65,536"),
        ("torus:4096x4096", "16,777,216 chips is too large"),
        ("ring:99999999999999999999", "is none"),
        ("mesh:60000", "3,599,940,000 links is too large"),
    ],
)
def test_other_texts_are_refused(spec: str, message: str) -> None:
    with pytest.raises(FabricError, match=message) as caught:
        made_up_topology(spec, [1e9], [0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("bandwidths", "latencies", "message"),
    [
        ([], [0], "bandwidth has 0 values"),
        ([1e9, 1e9], [0], "has 3 dimensions, but bandwidth has 2 values: give one for all, or one each"),
        ([1e9], [0, 0, 0, 0], "latency has 4 values"),
        ([0.0], [0], "bandwidth of 0 B/s: expected more than 0"),
        ([1e9, 0.0, 1e9], [0], "bandwidth of 0 B/s"),
        ([-1.0], [0], "bandwidth of -1 B/s"),
        ([float("nan")], [0], "bandwidth of nan B/s"),
        ([float("inf")], [0], "bandwidth of inf B/s"),
        ([1e9], [-1], "latency of -0.001 ns: expected 0 or more"),
        ([1e9], [float("nan")], "latency of nan ns"),
        ([1e9], [float("inf")], "latency of inf ns"),
    ],
)  # fmt: skip
def test_wrong_figures_are_refused(
    bandwidths: list[float], latencies: list[float], message: str
) -> None:
    with pytest.raises(FabricError, match=message):
        made_up_topology("torus:4x4x4", bandwidths, latencies)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=20),
        st.text("ringtosuwcmeh:x,0123 ", max_size=20),
        st.from_regex(r"(ring|torus|mesh|switch):\d{1,3}(x\d)?(,ring:\d)?", fullmatch=True),
    )
)
def test_any_text_is_a_topology_or_one_line(spec: str) -> None:
    chips, refusal = 0, ""
    try:
        chips = made_up_topology(spec, [1e9], [1]).chips
    except FabricError as error:
        refusal = str(error)
    assert (chips >= 2) != (len(refusal.splitlines()) == 1)
