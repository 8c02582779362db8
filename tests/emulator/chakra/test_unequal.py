"""Execution traces on machines with slow, late and broken parts: the same answers whether equal ranks are emulated once or each."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests.emulator.chakra.programs import PAIRS, RANKS, ranks_of
from tests.emulator.chakra.written import write
from tests.emulator.ranks.worlds import Run, run

from trnprof.emulator.capture.chakra.workload import read_workload
from trnprof.emulator.ranks.faults import NO_FAULTS, Faults
from trnprof.emulator.ranks.pairs import with_rings
from trnprof.emulator.system import System, load_system
from trnprof.emulator.workload import ProcessGroup, Workload, World

ANSWERS = json.loads((Path(__file__).parent / "data" / "astra_sim.json").read_text())
LATE_NS = 50_000
FAULTS = {
    "none": NO_FAULTS,
    "slow": Faults(slow_ranks={2: 0.5}),
    "late": Faults(late_ns={1: LATE_NS}),
    "degraded": Faults(degraded=(("0-1", 0.5),)),
    "slow chip": Faults(slow_chips={0: 0.5}),
}


def workload(folder: Path, name: str) -> Workload:
    folder.mkdir(exist_ok=True)
    files = [write(folder / f"w.{rank}.et", nodes) for rank, nodes in enumerate(ranks_of(name))]
    groups = folder / "groups.json"
    groups.write_text(json.dumps(PAIRS))
    return read_workload([*files, groups])


def machine(folder: Path, name: str) -> System:
    if name != "astra-sim":
        return load_system(name)
    network, system = (next(iter(ANSWERS[kind].values())) for kind in ("networks", "systems"))
    (folder / "network.yml").write_text(network)
    (folder / "system.json").write_text(json.dumps(system))
    return load_system(f"{folder / 'network.yml'},{folder / 'system.json'}")


def timed(folder: Path, name: str, system: str, faults: Faults, *, fold: bool = True) -> Run:
    program, described = workload(folder, name), machine(folder, system)
    path = folder / f"fold {fold}"
    return run(path, program, described, faults=faults, fold=fold, placement="spread", lnc=1)


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("system", ["trn2-ultra", "astra-sim"])
@pytest.mark.parametrize("name", ["random 0", "random 1", "ring", "replayed"])
def test_folded_is_as_each(tmp_path: Path, name: str, system: str, faults: Faults) -> None:
    folded = timed(tmp_path, name, system, faults)
    each = timed(tmp_path, name, system, faults, fold=False)
    assert folded.trace.validate() == each.trace.validate() == []
    assert folded.outcome.device_ns == each.outcome.device_ns
    assert set(each.trace.tracks["rank"].drop_nulls()) == set(range(RANKS))


def test_what_all_wait_for_delays_all(tmp_path: Path) -> None:
    """All ranks meet at once in the replayed program, so a late one delays the end by as much; a rank of half the speed has nothing else."""
    sound = timed(tmp_path / "a", "replayed", "trn2-ultra", NO_FAULTS).outcome.device_ns
    late = timed(tmp_path / "b", "replayed", "trn2-ultra", FAULTS["late"]).outcome.device_ns
    assert late == sound + LATE_NS
    # measured: 30 + 100 us before the sum, 50 + 40 us beside it, 10 us at the end; the sum itself hides behind those
    assert sound == 180_000
    slow = timed(tmp_path / "c", "replayed", "trn2-ultra", FAULTS["slow"]).outcome.device_ns
    assert slow == 2 * sound


def test_every_class_has_a_host_thread(tmp_path: Path) -> None:
    done = timed(tmp_path, "replayed", "trn2-ultra", FAULTS["slow"])
    threads = done.trace.tracks.filter(pl.col("kind").cast(pl.String) == "thread")
    own = threads.filter(pl.col("replica_of").is_null())
    assert sorted(zip(own["rank"], own["replica_count"], strict=True)) == [(0, 3), (2, 1)]
    assert len(threads) == RANKS
    durations = {
        rank: done.events.filter(pl.col("track_id") == track)["duration_ns"].sort().to_list()
        for track, rank in zip(own["track_id"], own["rank"], strict=True)
    }
    assert durations == {0: [30_000, 50_000], 2: [60_000, 100_000]}


@pytest.mark.parametrize(
    ("pairs", "rings"),
    [
        ([(0, 1), (1, 2), (2, 3), (3, 0)], [(0, 1, 2, 3)]),
        ([(1, 3), (0, 2), (2, 0), (3, 1)], [(1, 3), (0, 2)]),
        ([(0, 1), (2, 3)], [(0, 1), (2, 3)]),
        ([(0, 1), (1, 2)], [(0, 1), (1, 2)]),
    ],
)
def test_rings(pairs: list[tuple[int, int]], rings: list[tuple[int, ...]]) -> None:
    """By hand; pairs that share no rank, and those that do not come round, stay as they are."""
    group = ProcessGroup("pairs", pairs[0], tuple(pairs))
    program = Workload((), (), groups=(group,), world=World(4))
    assert with_rings(program).groups == (ProcessGroup("pairs", rings[0], tuple(rings)),)
