"""Are the times those of ASTRA-sim 2.0, row by row? Skipped where the folder of values computed elsewhere is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trnprof.emulator.collectives.request import STORE_AND_FORWARD, AstraSim, Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology

FOLDER = Path(__file__).parents[3].parent / "shared" / "oracles" / "collectives"
KINDS = {"Ring": "ring", "FullyConnected": "mesh", "Switch": "switch"}
ALGORITHMS = {"halvingDoubling": "halving-doubling"}
GIB, MIB = 2**30, 2**20
NAMES = ["ring16_aware", "switch64_aware", "fc16_aware", "torus4x4_aware_multidim"]
HGX = "hgx_h100_8_validated_cfg"

needs_oracles = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no {FOLDER.name} of ASTRA-sim's")


def read(name: str) -> tuple[Fabric, dict[str, Any]]:
    table = json.loads((FOLDER / f"{name}.json").read_text())
    sizes = zip(table["topology"], table["npus_count"], strict=True)
    topology = made_up_topology(
        ",".join(f"{KINDS[kind]}:{size}" for kind, size in sizes),
        [rate * GIB for rate in table["bandwidth_GiBps_per_link"]],
        [wait * 1000 for wait in table["latency_ns_per_link"]],
    )
    return build_fabric(topology), table


def run(fabric: Fabric, row: dict[str, Any], chunks: int, astra_sim: AstraSim | None) -> float:
    """Time in ns."""
    name = row["algorithm"]
    request = Request(
        row["collective"],
        row["total_bytes"],
        tuple(range(fabric.chips)),
        (ALGORITHMS.get(name, name),),
        chunks=chunks,
        forwarding=STORE_AND_FORWARD,
        astra_sim=astra_sim,
    )
    return run_collective(fabric, request).time_ps / 1000


def steps(row: dict[str, Any], sizes: list[int]) -> int:
    """Messages that a rank sends one after the other, and beginnings of dimensions; each of them is charged 1 ns there, and rounded down."""
    passes = 2 if row["collective"] == "all_reduce" else 1
    begins = passes * (len(sizes) - 1) + 1
    if row["collective"] == "all_to_all" and row["algorithm"] == "ring":
        return sum(size * (size - 1) // 2 for size in sizes) + begins
    return passes * sum(size - 1 for size in sizes) + begins


@needs_oracles
@pytest.mark.parametrize("name", NAMES)
def test_rows(name: str) -> None:
    """Within 0.5 % from 1 MiB, and within 1 ns a step below: that simulator's endpoint delay and roundings."""
    fabric, table = read(name)
    assert len(table["rows"]) == 110
    for row in table["rows"]:
        time, expected = run(fabric, row, 1, None), row["time_ns"]
        allowed = steps(row, table["npus_count"])
        if row["total_bytes"] >= MIB:
            allowed = 0.005 * expected
        assert time == pytest.approx(expected, abs=allowed), row


@needs_oracles
@pytest.mark.parametrize("name", NAMES)
def test_rows_in_its_own_ways(name: str) -> None:
    """To the nanosecond, but for the delay that it charges once more for each dimension on the way (and one tie)."""
    fabric, table = read(name)
    dimensions = len(table["npus_count"])
    off = 0
    for row in table["rows"]:
        missing = 2 * (dimensions - 1) if row["collective"] == "all_reduce" else dimensions - 1
        off += run(fabric, row, 1, AstraSim()) != row["time_ns"] - missing
    assert off <= (1 if name == "switch64_aware" else 0)


@needs_oracles
def test_hgx_in_its_own_ways() -> None:
    """Four splits, two of them active at once, 10 ns at endpoints, sums of three passes: equal to the nanosecond."""
    fabric, table = read(HGX)
    settings = table["settings"]
    ways = AstraSim(settings["active"], settings["endpoint"] * 1000, settings["mem"] * 1e9)
    assert len(table["rows"]) == 18
    for row in table["rows"]:
        assert run(fabric, row, settings["splits"], ways) == row["time_ns"], row


@needs_oracles
def test_hgx_as_default_is_faster() -> None:
    """Cut-through, and all chunks in flight: never slower than two splits stored and forwarded, and not below the links' bound."""
    fabric, table = read(HGX)
    for row in table["rows"]:
        request = Request(
            row["collective"], row["total_bytes"], tuple(range(8)), ("ring",), chunks=4
        )
        time = run_collective(fabric, request).time_ps / 1000
        phases = 2 if row["collective"] == "all_reduce" else 1
        bound = phases * 7 / 8 * row["total_bytes"] / (400 * GIB) * 1e9
        assert bound < time < row["time_ns"]
