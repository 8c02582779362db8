"""Every described machine: totals that vendors print, paths and switches of its fabric, what a message costs, power and price."""

from __future__ import annotations

import math
import re
import tomllib
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from trnprof.emulator.collectives.endpoint import NO_COST
from trnprof.emulator.cost import matmul_ps
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.measures import (
    bisection_bytes_per_s,
    diameter_links,
    mean_distance_links,
)
from trnprof.emulator.fabric.routes import find_routes
from trnprof.emulator.fabric.topology import Topology
from trnprof.emulator.machine import load_machine, read_machine
from trnprof.emulator.machine_summary import differences, is_guess, summarize
from trnprof.emulator.system import load_system
from trnprof.emulator.system_files import list_systems, open_system
from trnprof.tracer.errors import SystemDescriptionError

NAMES = list_systems()
COMPARATORS = [name for name in NAMES if name.startswith(("h100", "gb"))]


def summary(name: str, instances: int = 1) -> dict[str, Any]:
    return summarize(*read_machine(open_system(name)), instances)


@pytest.mark.parametrize(
    ("name", "chips", "hbm_tb", "hbm_tb_per_s", "efa_gbit", "dense_pf"),
    [
        # trn2-arch.rst: an instance and an UltraServer
        ("trn2", 16, 1.536, 46.4, 3_200, {"float8": 20.8, "bfloat16": 10.7, "float32": 2.9}),
        ("trn2-ultra", 64, 6.144, 185.6, 12_800, {"float8": 83.2, "bfloat16": 42.8, "float32": 11.6}),
        # trn3-arch.rst: both generations of UltraServers, compute in TFLOP/s to the last digit
        ("trn3-gen1", 64, 9.216, 313.6, 12_800, {"float8": 161.088, "bfloat16": 42.944, "float32": 11.712}),
        ("trn3-gen2", 144, 20.736, 705.6, 28_800, {"float8": 362.448, "bfloat16": 96.624, "float32": 26.352}),
        # trn1-arch.rst
        ("trn1", 16, 0.512, 13.12, 800, {"bfloat16": 3.04}),
        # GPU racks as SemiAnalysis and G. Lockwood print them
        ("gb200-nvl72", 72, 13.4, 576, None, {"bfloat16": 180, "float8": 360, "float4": 720}),
        ("gb200-nvl36x2", 72, 13.4, 576, None, {"bfloat16": 180, "float8": 360, "float4": 720}),
        ("gb300-nvl72", 72, 20, 576, None, {"bfloat16": 180, "float8": 360, "float4": 1080}),
        ("h100-hgx", 8, 0.64, 26.8, 3_200, {"bfloat16": 7.912, "float8": 15.832}),
    ],
)  # fmt: skip
def test_totals_are_those_that_vendors_print(
    name: str,
    chips: int,
    hbm_tb: float,
    hbm_tb_per_s: float,
    efa_gbit: float | None,
    dense_pf: dict[str, float],
) -> None:
    machine = load_machine(name)
    assert machine.topology.chips == chips
    assert chips * machine.chip.hbm_bytes == pytest.approx(hbm_tb * 1e12, rel=0.005)
    assert chips * machine.chip.hbm_bytes_per_s == pytest.approx(hbm_tb_per_s * 1e12, rel=0.005)
    if efa_gbit is not None:
        assert chips * machine.scale_out.link_bytes_per_s == efa_gbit * 1e9 / 8
    for dtype, flops in dense_pf.items():
        printed = chips * machine.chip.printed_dense_flops[dtype]
        assert printed == pytest.approx(flops * 1e15, rel=0.005), dtype


def test_dense_fp8_of_tensor_engines_alone() -> None:
    # SemiAnalysis: 362 PFLOP/s in NL72x2 against 360 in NVL72; MX rates are those of the tensor engines and nothing else
    gen2, nvl72 = summary("trn3-gen2"), summary("gb200-nvl72")
    assert gen2["totals"]["dense_flops"]["float8"] == pytest.approx(362e15, rel=0.002)
    assert nvl72["totals"]["dense_flops"]["float8"] == pytest.approx(360e15, rel=0.002)
    assert gen2["totals"]["hbm_bytes_per_s"] == pytest.approx(706e12, rel=0.001)
    assert gen2["totals"]["hbm_bytes"] == 144 * 144e9


@pytest.mark.parametrize("name", NAMES)
def test_what_a_file_says_was_published_is_what_its_figures_give(name: str) -> None:
    machine = load_machine(name)
    chips, published = machine.topology.chips, machine.published
    # vendors round: 1.5 TB for 16 x 96 GB
    for printed, derived in (
        (published.hbm_bytes, machine.chip.hbm_bytes),
        (published.hbm_bytes_per_s, machine.chip.hbm_bytes_per_s),
        (published.efa_bytes_per_s, machine.scale_out.link_bytes_per_s),
    ):
        assert printed is None or chips * derived == pytest.approx(printed, rel=0.025)
    for flops, of_chip in (
        (published.dense_flops, machine.chip.printed_dense_flops),
        (published.sparse_flops, machine.chip.printed_sparse_flops),
    ):
        for dtype, printed in flops.items():
            assert chips * of_chip[dtype] == pytest.approx(printed, rel=0.005)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPARATORS])
def test_vendors_print_what_tensor_engines_do_and_a_little_more(name: str) -> None:
    """AWS adds the other engines: 35 to 40 TFLOP/s a Trainium2 chip; sparse rates are the tensor engine's."""
    machine = load_machine(name)
    for dtype, printed in machine.chip.printed_dense_flops.items():
        assert 0.85 * printed <= machine.peaks.dense_flops[dtype] <= 1.001 * printed, dtype
    for dtype, printed in machine.chip.printed_sparse_flops.items():
        assert machine.peaks.sparse_flops[dtype] == pytest.approx(printed, rel=0.02), dtype


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "tfloat32"])
def test_published_sparse_peaks_of_a_core(dtype: str) -> None:
    # neuron-core-v3.rst: 316 TFLOP/s, neuron-core-v4.rst: 315; v2 has none
    assert load_system("trn2").core.tensor.sparse_peak_flops(dtype) == pytest.approx(
        316e12, rel=0.01
    )
    assert load_system("trn3-gen2").core.tensor.sparse_peak_flops(dtype) == pytest.approx(315e12, rel=0.01)  # fmt: skip
    assert not load_system("trn1").core.tensor.sparse_cycles_per_column


def test_a_trainium3_matmul_of_fp8_takes_a_quarter_of_bf16() -> None:
    # trainium3_arch.rst: 4x the throughput of BF16, the same time at four times the contraction
    core = load_system("trn3-gen1").core
    fp8, bf16 = (matmul_ps(core, 512, 128, 512, d) for d in ("float8_e4m3fn", "bfloat16"))
    assert bf16 == pytest.approx(4 * fp8, rel=1e-5)
    assert bf16 == pytest.approx(4 * 512 / 2.4 * 1000, rel=1e-5)


def test_trainium4_is_as_announced() -> None:
    # 3x FP8, 6x FP4, 4x HBM bandwidth, 2x HBM of Trainium3; what else there is is marked
    new, old = load_machine("trn4"), load_machine("trn3-gen2")
    for dtype, times in (("float8", 3), ("float4", 6)):
        for ours, theirs in (
            (new.peaks.dense_flops, old.peaks.dense_flops),
            (new.chip.printed_dense_flops, old.chip.printed_dense_flops),
        ):
            assert ours[dtype] == pytest.approx(times * theirs[dtype], rel=1e-6)
    assert new.chip.hbm_bytes_per_s == 4 * old.chip.hbm_bytes_per_s
    assert new.chip.hbm_bytes == 2 * old.chip.hbm_bytes
    assert set(new.figures) - set(new.estimates) == {
        "chip.hbm_bytes",
        "chip.hbm_bytes_per_s",
        "chip.hbm_stacks",
        "chip.printed_dense_flops.float8",
        "chip.printed_dense_flops.float4",
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_every_file_has_a_source(name: str) -> None:
    machine = load_machine(name)
    tags = [*machine.sources, "hardware.md", "trn1", "trn2", "trn3"]
    for key, figure in machine.figures.items():
        assert figure.source.strip(), key
        assert not figure.estimate or figure.reason.strip(), key
        # a tag of the file with two capitals, such as SA3, is among its sources
        tag = re.split(r"[:;, ]", figure.source)[0]
        assert not tag.isupper() or tag in tags, (key, tag)
    text = (files("trnprof.emulator.systems") / f"{name}.toml").read_text(encoding="utf-8")
    assert numbers_of(tomllib.loads(text)) == {"schema"}
    assert "http" not in text


def numbers_of(table: dict[str, Any], prefix: str = "") -> set[str]:
    """Keys of plain numbers, alone or in lists, which have no source."""
    found = set()
    for key, value in table.items():
        if isinstance(value, dict):
            found |= numbers_of(value, f"{prefix}{key}.") if "value" not in value else set()
        elif any(
            isinstance(v, int | float) for v in (value if isinstance(value, list) else [value])
        ):
            found.add(f"{prefix}{key}")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_power_and_price_are_figures_or_say_why_not(name: str) -> None:
    economics = load_machine(name).economics
    for key in ("racks", "chip_power_w", "rack_power_w", "usd_per_hour", "usd_per_chip_hour", "chip_capex_usd"):  # fmt: skip
        value = getattr(economics, key)
        assert (value is None) == (key in economics.absent), key
        assert value is None or value > 0
        assert key not in economics.absent or len(economics.absent[key]) > 10
    if economics.rack_power_w and economics.chip_power_w and economics.racks:
        # a rack takes more than its chips
        share = load_machine(name).topology.chips / economics.racks
        assert economics.rack_power_w >= share * economics.chip_power_w


@pytest.mark.parametrize(
    ("name", "chip_gb_per_s", "bisection_gb_per_s", "links", "mean"),
    [
        # hardware.md 7.2: 4 hops and 6, means 2.0 and 3.0 over all pairs, 8 links of 128 and 32 of 64 GB/s
        ("trn1", 4 * 48, 8 * 48, 4, 2.0),
        ("trn2", 4 * 128, 8 * 128, 4, 2.0),
        ("trn2-ultra", 640, 32 * 64, 6, 3.0),
        # 7.3: 64 + 64 + 16 of 160 lanes of 8 GB/s; racks joined chip to chip
        ("trn3-gen1", 1152, 32 * 128, 4, None),
        ("trn3-gen2", 1152, 72 * 128, 5, None),
        ("trn3-gen2-pcie320", 1152, 72 * 128, 5, None),
        ("trn3-gen2-ualink", 1152, 72 * 128, 3, None),
        ("trn3-gen2-awsdocs", 256 + 320 + 128, 72 * 128, 5, None),
        # NVIDIA: 1.8 TB/s both ways a GPU; 900 GB/s
        ("gb200-nvl72", 900, 36 * 900, 2, 2 * 71 / 72),
        ("gb200-nvl36x2", 900, 36 * 900, 3, (2 * 35 + 3 * 36) / 72),
        ("h100-hgx", 450, 4 * 450, 2, 2 * 7 / 8),
    ],
)  # fmt: skip
def test_links_bisection_and_distances(
    name: str, chip_gb_per_s: float, bisection_gb_per_s: float, links: int, mean: float | None
) -> None:
    topology = load_machine(name).topology
    assert summary(name)["chip"]["link_bytes_per_s"] == chip_gb_per_s * 1e9
    assert bisection_bytes_per_s(topology) == pytest.approx(bisection_gb_per_s * 1e9)
    assert diameter_links(topology) == links
    if mean is not None:
        assert mean_distance_links(topology) == pytest.approx(mean)


def chip_at(topology: Topology, **at: int) -> int:
    """The number of a chip, the first coordinate fastest."""
    number, stride = 0, 1
    for name, size in zip(topology.coordinates, topology.sizes, strict=True):
        number += stride * at.get(name, 0)
        stride *= size
    return number


@pytest.mark.parametrize(
    ("name", "target", "hops"),
    [
        # SemiAnalysis, in chips and switches passed on the way from the first chip of the first tray
        ("trn3-gen1", {"tray": 15}, 1),
        ("trn3-gen1", {"position": 1, "tray": 1}, 2),
        ("trn3-gen1", {"position": 1, "tray": 1, "rack": 1}, 3),
        ("trn3-gen1", {"position": 1}, 0),
        ("trn3-gen1-pcie320", {"position": 1, "tray": 1}, 1),
        ("trn3-gen1-pcie320", {"tray": 9}, 1),
        ("trn3-gen2", {"tray": 17}, 1),
        ("trn3-gen2", {"position": 3, "tray": 1}, 3),
        ("trn3-gen2", {"position": 3, "tray": 1, "rack": 1}, 4),
        ("trn3-gen2", {"position": 3}, 1),
        ("trn3-gen2", {"rack": 1}, 0),
        ("trn3-gen2-pcie320", {"position": 1, "tray": 1}, 1),
        ("trn3-gen2-pcie320", {"plane": 1, "tray": 1}, 3),
        ("trn3-gen2-ualink", {"position": 3, "tray": 1}, 1),
        ("gb200-nvl72", {"gpu": 3, "tray": 17}, 1),
        ("gb200-nvl36x2", {"tray": 8}, 1),
        ("gb200-nvl36x2", {"tray": 8, "rack": 1}, 2),
    ],
)
def test_paths_pass_as_many_nodes_as_published(
    name: str, target: dict[str, int], hops: int
) -> None:
    topology = load_machine(name).topology
    ends = np.array([0]), np.array([chip_at(topology, **target)])
    assert len(find_routes(build_fabric(topology), *ends).links) - 1 == hops


@pytest.mark.parametrize(
    ("name", "switches"),
    [
        ("trn3-gen1", {"plane": 2 * 2 * 8}),  # 2 planes of 8 a rack
        ("trn3-gen1-pcie320", {"backplane": 2 * 8}),
        ("trn3-gen2", {"tray": 2 * 144, "plane": 2 * 40}),  # 184 a rack, 368 in all
        ("gb200-nvl72", {"nvlink": 18}),
        ("gb200-nvl36x2", {"nvlink": 36}),
    ],
)
def test_switches_are_as_many_as_published(name: str, switches: dict[str, int]) -> None:
    tiers = summary(name)["topology"]["tiers"]
    assert {key: tier["all_switches"] for key, tier in tiers.items() if tier["all_switches"]} == switches  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_switch_has_more_chips_than_ports(name: str) -> None:
    topology = load_machine(name).topology
    for tier in topology.tiers:
        if tier.ports is not None:
            chips = topology.size_of(tier.leaf or tier.spans)
            # NVSwitches have a port a link, and trunks take what GPUs leave
            assert chips <= tier.ports
            trunks = tier.trunk_bytes_per_s / tier.switches / 50e9
            assert chips + trunks <= tier.ports


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPARATORS])
def test_a_message_costs_what_was_published(name: str) -> None:
    machine = load_machine(name)
    costs, endpoint = machine.collectives, machine.endpoint()
    assert costs is not None
    # intranode-collective-comm.rst: a step takes 1 to 2 us, its link included
    step_ns = costs.post_ns + costs.dma_start_ns + costs.dma_done_ns
    fastest = min(tier.link_ns for tier in machine.topology.tiers)
    assert step_ns == 1500
    assert 1000 <= step_ns + fastest <= 2000
    # internode-collective-comm.rst: 15 us from HBM to HBM
    assert step_ns + 2 * machine.scale_out.link_ns + machine.scale_out.switch_ns == 15_000
    # the sizes at which the algorithm changes, by the same document
    assert (costs.direct_below_bytes, costs.halving_doubling_below_bytes) == (10**6, 56 * 10**6)
    # a pair of messages of a ring's reduce-scatter touches HBM six times: each is read, and then read and written
    assert 2 * (1 + costs.reduce_touches) == 6
    assert (endpoint.post_ps, endpoint.start_ps) == (costs.post_ns * 1000, costs.start_ns * 1000)
    assert endpoint.hbm_bytes_per_s == machine.chip.hbm_bytes_per_s


@pytest.mark.parametrize("name", COMPARATORS)
def test_a_comparator_has_a_roofline_and_a_fabric_and_says_so(name: str) -> None:
    machine = load_machine(name)
    assert machine.endpoint() == NO_COST
    dense = machine.peaks.dense_flops
    assert dense["float8"] == pytest.approx(2 * dense["bfloat16"], rel=0.001)
    for dtype, sparse in machine.peaks.sparse_flops.items():
        # 2:4 sparsity doubles, but NVIDIA's fourth digit and the FP4 of GB300
        times = 4 / 3 if (name, dtype) == ("gb300-nvl72", "float4") else 2
        assert sparse == pytest.approx(times * dense[dtype], rel=0.002)
    with pytest.raises(SystemDescriptionError) as caught:
        load_system(name)
    message = str(caught.value)
    assert message.startswith(f"{name}: only the roofline and the fabric")
    assert "cannot be emulated" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", NAMES)
def test_instances_are_joined_by_the_network(name: str) -> None:
    one, four = summary(name), summary(name, 4)
    assert four["chips"] == 4 * one["chips"]
    for key in ("hbm_bytes", "hbm_bytes_per_s", "scale_out_bytes_per_s"):
        assert four["totals"][key] == 4 * one["totals"][key]
    machine = load_machine(name)
    scaled = machine.scaled(4)
    assert scaled.tiers[:-1] == machine.topology.tiers
    assert (scaled.tiers[-1].name, scaled.coordinates[-1]) == ("efa", "instance")
    # half of the chips into the network, unless a cut through every instance carries less
    across = 2 * machine.topology.chips * machine.scale_out.link_bytes_per_s
    assert four["fabric"]["bisection_bytes_per_s"] <= across
    assert machine.scaled(1) == machine.topology


def test_project_rainier_is_within_reach() -> None:
    # 65,536 chips are the most of one fabric
    assert load_machine("trn2-ultra").scaled(1024).chips == 65_536


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_does_not_differ_from_itself(name: str) -> None:
    assert differences(summary(name), summary(name)) == []


@pytest.mark.parametrize(
    ("one", "other"), [("trn2", "trn2-ultra"), ("trn1", "h100-hgx"), ("trn3-gen2", "trn4")]
)
def test_differences_are_the_same_from_both_sides(one: str, other: str) -> None:
    left, right = summary(one), summary(other)
    there = {each.key: each for each in differences(left, right)}
    back = {each.key: each for each in differences(right, left)}
    assert set(there) == set(back)
    for key, each in there.items():
        assert each.values == back[key].values[::-1]
        assert each.is_estimate == back[key].is_estimate[::-1]
        assert each.values[0] != each.values[1]


def test_only_links_differ_where_only_links_do() -> None:
    found = differences(summary("trn3-gen2"), summary("trn3-gen2-awsdocs"))
    assert {each.key: each.values for each in found} == {
        "chip.link_bytes_per_s": (1152e9, 704e9),
        "totals.link_bytes_per_s": (144 * 1152e9, 144 * 704e9),
        "topology.tiers.tray.link_bytes_per_s": (512e9, 256e9),
        "topology.tiers.plane.link_bytes_per_s": (512e9, 320e9),
    }


def test_what_follows_of_estimates_is_marked() -> None:
    trn2, nvl, trn4 = summary("trn2"), summary("gb200-nvl36x2"), summary("trn4")
    assert trn2["derived_estimates"] == []
    assert is_guess(nvl, "fabric.bisection_bytes_per_s")  # its trunks are
    assert not is_guess(nvl, "totals.hbm_bytes")
    for key in ("chips", "totals.hbm_bytes", "totals.dense_flops.float8", "chip.link_bytes_per_s"):
        assert is_guess(trn4, key), key
    assert not is_guess(trn4, "chip.hbm_bytes")
    assert is_guess(trn2, "collectives.start_ns")


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_adds_up(name: str) -> None:
    told = summary(name)
    topology, fabric = told["topology"], told["fabric"]
    assert math.prod(topology["sizes"]) == told["chips"] == sum(h["peers"] for h in fabric["hops"]) + 1  # fmt: skip
    weighted = sum(h["peers"] * h["most_links"] for h in fabric["hops"]) / told["chips"]
    assert fabric["mean_distance_links"] <= weighted
    assert max(h["most_links"] for h in fabric["hops"]) == fabric["diameter_links"]
    for tier in topology["tiers"].values():
        assert tier["groups"] * len(tier["first_group"]) == told["chips"]
