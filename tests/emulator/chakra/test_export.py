"""Are exports whole execution traces, of the schema, and do they say what the workload says?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.emulator.chakra.exported import RANKS, WORKLOADS
from tests.emulator.chakra.written import COLL, COMP, RECV, SEND, attributes, read

from trnprof.emulator.capture.chakra.export import export_chakra
from trnprof.emulator.capture.chakra.workload import read_workload
from trnprof.emulator.workload import Workload
from trnprof.tracer.errors import CaptureError, OutputExistsError


@pytest.mark.parametrize("name", WORKLOADS)
def test_files_are_of_the_schema(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "traces"
    summary = export_chakra(WORKLOADS[name](), folder, force=False)
    assert summary.ranks == RANKS
    for rank in range(RANKS):
        version, nodes = read(folder / f"workload.{rank}.et")
        assert version == "0.0.4"
        ids = [node.id for node in nodes]
        assert len(set(ids)) == len(ids)
        for place, node in enumerate(nodes):
            assert {*node.data_deps, *node.ctrl_deps} <= set(ids[:place])
            assert node.type in (COMP, COLL, SEND, RECV)


def test_work_is_that_of_the_operations(tmp_path: Path) -> None:
    """mm of [2048, 2048] and [2048, 1024] in bfloat16; sums over pairs of ranks."""
    folder = tmp_path / "traces"
    export_chakra(WORKLOADS["tensor and data parallel"](), folder, force=False)
    groups = json.loads((folder / "groups.json").read_text())
    for rank in range(RANKS):
        nodes = read(folder / f"workload.{rank}.et")[1]
        first, summed, *_ = nodes
        assert attributes(first) == {
            "is_cpu_op": False,
            "num_ops": 2 * 2048 * 2048 * 1024,
            "tensor_size": 2 * (2048 * 2048 + 2 * 2048 * 1024),
        }
        said = attributes(summed)
        assert groups[said["pg_name"]] == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert (said["comm_type"], said["comm_size"]) == (0, 2 * 2048 * 2048)
        assert list(summed.data_deps) == [first.id]


def test_a_gather_names_its_shard_and_waits_for_what_it_is_issued_behind(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    export_chakra(WORKLOADS["fully sharded"](), folder, force=False)
    nodes = read(folder / "workload.0.et")[1]
    gathers = [node for node in nodes if node.type == COLL]
    products = [node for node in nodes if node.type == COMP]
    assert all(attributes(g)["comm_size"] == 2 * 2048 * 2048 // RANKS for g in gathers)
    # gather 3 is issued behind product 1, which has begun when product 0 has ended
    assert list(gathers[3].ctrl_deps) == [products[0].id]
    # the second step waits for the end of the first
    assert products[3].id in gathers[4].ctrl_deps


def test_what_is_passed_round_is_sent_and_received(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    export_chakra(WORKLOADS["ring of attention"](), folder, force=False)
    for rank in range(RANKS):
        nodes = read(folder / f"workload.{rank}.et")[1]
        sent = [attributes(node) for node in nodes if node.type == SEND]
        received = [attributes(node) for node in nodes if node.type == RECV]
        assert {(s["comm_src"], s["comm_dst"]) for s in sent} == {(rank, (rank + 1) % RANKS)}
        assert {(r["comm_src"], r["comm_dst"]) for r in received} == {((rank - 1) % RANKS, rank)}
        assert [s["comm_tag"] for s in sent] == [r["comm_tag"] for r in received]


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_export_of_an_import_says_the_same(tmp_path: Path, name: str) -> None:
    export_chakra(WORKLOADS[name](), tmp_path / "one", force=False)
    read_once = read_workload(sorted((tmp_path / "one").iterdir()))
    export_chakra(read_once, tmp_path / "two", force=False)
    again = read_workload(sorted((tmp_path / "two").iterdir()))
    assert [(op.name, op.arguments, op.collective) for op in again.operations] == [
        (op.name, op.arguments, op.collective) for op in read_once.operations
    ]
    members = [[(g.ranks, set(g.siblings)) for g in w.groups] for w in (again, read_once)]
    assert members[0] == members[1]


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    workload = WORKLOADS["fully sharded"]()
    export_chakra(workload, tmp_path / "traces", force=False)
    with pytest.raises(OutputExistsError, match="--force"):
        export_chakra(workload, tmp_path / "traces", force=False)
    export_chakra(workload, tmp_path / "traces", force=True)
    (tmp_path / "traces" / "thesis.tex").write_text("x")
    with pytest.raises(OutputExistsError, match="no export"):
        export_chakra(workload, tmp_path / "traces", force=True)


def test_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="nothing to export"):
        export_chakra(Workload((), ()), tmp_path / "traces", force=False)
    assert not (tmp_path / "traces").exists()
