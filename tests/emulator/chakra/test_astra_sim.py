"""Do execution traces take as long here as in ASTRA-sim, on the machines that its own files describe? Its answers are in data/astra_sim.json.

They were computed once with the version named there, on these very nodes; exports are compared by their digests, so that a changed export is
run there anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.emulator.chakra.exported import WORKLOADS, digest
from tests.emulator.chakra.programs import PROGRAMS, ranks_of
from tests.emulator.chakra.written import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, COLL, node, write

from trnprof.emulator.capture.chakra.export import export_chakra
from trnprof.emulator.capture.chakra.workload import read_workload
from trnprof.emulator.emulate import emulate
from trnprof.emulator.system import System, load_system

ANSWERS = json.loads((Path(__file__).parent / "data" / "astra_sim.json").read_text())
KINDS = {"all_gather": ALL_GATHER, "all_reduce": ALL_REDUCE, "all_to_all": ALL_TO_ALL}
ALLOWED = 0.005
"""Issue 5 asks for 5 %."""


def machine(folder: Path, network: str, system: dict[str, Any]) -> System:
    (folder / "network.yml").write_text(network)
    (folder / "system.json").write_text(json.dumps(system))
    return load_system(f"{folder / 'network.yml'},{folder / 'system.json'}")


def time_ns(folder: Path, files: list[Path], system: System) -> int:
    trace = folder / "run.trnprof"
    trace.mkdir()
    return emulate(read_workload(files), system, trace, reproducible=True).device_ns


def of_row(folder: Path, row: dict[str, Any]) -> System:
    return machine(folder, ANSWERS["networks"][row["network"]], ANSWERS["systems"][row["system"]])


def named(row: dict[str, Any]) -> str:
    return "-".join(str(v) for k, v in row.items() if k not in ("sha256", "time_ns", "comm_size"))


@pytest.mark.parametrize("row", ANSWERS["rows"], ids=named)
def test_programs(tmp_path: Path, row: dict[str, Any]) -> None:
    files = [
        write(tmp_path / f"w.{rank}.et", nodes)
        for rank, nodes in enumerate(ranks_of(row["program"]))
    ]
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps(ANSWERS["groups"]))
    time = time_ns(tmp_path, [*files, groups], of_row(tmp_path, row))
    assert time == pytest.approx(row["time_ns"], rel=ALLOWED)


@pytest.mark.parametrize("row", ANSWERS["exports"], ids=named)
def test_exports(tmp_path: Path, row: dict[str, Any]) -> None:
    folder = tmp_path / "traces"
    export_chakra(WORKLOADS[row["workload"]](), folder, force=False)
    assert digest(folder) == row["sha256"], "the export has changed: run it in ASTRA-sim again"
    time = time_ns(tmp_path, sorted(folder.iterdir()), of_row(tmp_path, row))
    assert time == pytest.approx(row["time_ns"], rel=ALLOWED)


@pytest.mark.parametrize("row", ANSWERS["microbenchmarks"], ids=named)
def test_its_own_examples(tmp_path: Path, row: dict[str, Any]) -> None:
    """Its examples/workload/microbenchmarks: one node a rank, numbered by rank; to the nanosecond but for a direct exchange's rounding."""
    ranks = row["ranks"]
    size = {"comm_type": KINDS[row["collective"]], "comm_size": row["comm_size"]}
    files = [
        write(tmp_path / f"w.{rank}.et", [node(rank, COLL, is_cpu_op=False, **size)])
        for rank in range(ranks)
    ]
    network = ANSWERS["microbenchmark_network"].replace("RANKS", str(ranks))
    system = machine(tmp_path, network, ANSWERS["microbenchmark_system"])
    assert time_ns(tmp_path, files, system) == pytest.approx(row["time_ns"], rel=1e-3)


def test_every_program_has_an_answer() -> None:
    assert {row["program"] for row in ANSWERS["rows"]} == set(PROGRAMS)
    assert {row["workload"] for row in ANSWERS["exports"]} == set(WORKLOADS)
    assert all(type(row["time_ns"]) is int for row in ANSWERS["exports"] + ANSWERS["rows"])
