"""A real FSDP2 program, recorded as rank 0 of 8, exported and emulated: as long as its nodes take one after another by hand."""

from __future__ import annotations

import heapq
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.emulator.chakra.written import ALL_GATHER, COLL, COMP, REDUCE_SCATTER, attributes, read
from tests.emulator.ranks.worlds import run

from trnprof.emulator.capture.chakra.export import export_chakra
from trnprof.emulator.capture.chakra.workload import read_workload
from trnprof.emulator.ranks.costs import CollectiveCosts
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import CollectiveCall

pytest.importorskip("torch")

RANKS = 8
TRN2 = load_system("trn2-ultra")


def by_hand(nodes: list[Any], costs: CollectiveCosts) -> int:
    """Picoseconds: a node runs when all it waits for has ended, one computing node and one collective at a time, what is ready first first."""
    flops, moved = TRN2.core.tensor.peak_flops("bfloat16"), TRN2.hbm_bytes_per_s_per_core
    world = (tuple(range(RANKS)),)
    pending = {n.id: len({*n.data_deps, *n.ctrl_deps}) for n in nodes}
    followers: dict[int, list[Any]] = {n.id: [] for n in nodes}
    for node in nodes:
        for source in {*node.data_deps, *node.ctrl_deps}:
            followers[source].append(node)
    ready = {n.id: 0 for n in nodes}
    waiting = [(0, n.id, n) for n in nodes if not pending[n.id]]
    heapq.heapify(waiting)
    free, end = {COMP: 0, COLL: 0}, 0
    while waiting:
        at, _, node = heapq.heappop(waiting)
        said = attributes(node)
        if node.type == COLL:
            kind = {ALL_GATHER: "all_gather", REDUCE_SCATTER: "reduce_scatter"}[said["comm_type"]]
            full = said["comm_size"] * (RANKS if kind == "all_gather" else 1)
            takes = costs.cost(CollectiveCall(kind, 0, full), world).duration_ps
        else:
            takes = round(1e12 * max(said["num_ops"] / flops, said["tensor_size"] / moved))
        done = max(at, free[node.type]) + takes
        if takes:
            free[node.type] = done
        end = max(end, done)
        for follower in followers[node.id]:
            ready[follower.id] = max(ready[follower.id], done)
            pending[follower.id] -= 1
            if not pending[follower.id]:
                heapq.heappush(waiting, (ready[follower.id], follower.id, follower))
    return end


def test_a_sharded_world_there_and_back(tmp_path: Path) -> None:
    from tests.emulator.distributed import calls, played

    recorded = played(RANKS, "parallel.py", "fsdp2")
    export_chakra(recorded, tmp_path / "traces", force=False)
    files = sorted((tmp_path / "traces").iterdir())
    assert [path.suffix for path in files] == [".et"] * RANKS
    nodes = read(files[0])[1]
    asked = Counter(call.kind for step in range(3) for call in calls(recorded, step))
    found = Counter(attributes(n)["comm_type"] for n in nodes if n.type == COLL)
    assert found == {
        ALL_GATHER: asked["all_gather"],
        REDUCE_SCATTER: asked["reduce_scatter"],
    }
    flops = sum(attributes(n).get("num_ops", 0) for n in nodes if n.type == COMP)
    assert flops == sum(op.model_flops for op in recorded.operations)
    done = run(tmp_path / "run", read_workload(files), TRN2, placement="spread", lnc=1)
    costs = CollectiveCosts(TRN2.machine, tuple(range(RANKS)))
    assert done.outcome.device_ns * 1000 == pytest.approx(by_hand(nodes, costs), rel=0.05)
