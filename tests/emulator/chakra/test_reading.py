"""What do execution traces say once read, and what is said of those that are damaged or do not fit together?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.emulator.chakra.programs import ranks_of
from tests.emulator.chakra.written import (
    ALL_GATHER,
    ALL_REDUCE,
    COLL,
    COMP,
    LOAD,
    METADATA,
    RECV,
    REDUCE,
    SEND,
    attributes,
    content,
    node,
    write,
)

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.trace import read_trace
from trnprof.emulator.capture.chakra.workload import read_workload
from trnprof.emulator.capture.replay import replay, workload_rows
from trnprof.emulator.given import given_cost
from trnprof.tracer.errors import ProfileError

SUM = {"comm_type": ALL_REDUCE, "comm_size": 4096}


def world(folder: Path, *ranks: list[Any], groups: Any = None) -> list[Path]:
    files = [write(folder / f"w.{rank}.et", nodes) for rank, nodes in enumerate(ranks)]
    if groups is not None:
        (folder / "groups.json").write_text(json.dumps(groups))
        files.append(folder / "groups.json")
    return files


def refused(*paths: Path) -> str:
    with pytest.raises(ProfileError) as error:
        read_workload(paths)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("seed", range(4))
def test_columns_are_what_protobuf_reads(tmp_path: Path, seed: int) -> None:
    nodes = ranks_of(f"random {seed}")[1]
    trace = read_trace(write(tmp_path / "a.et", nodes))
    offsets = trace.columns.dependency_offsets
    for place, expected in enumerate(nodes):
        assert (trace.columns.id[place], trace.columns.type[place]) == (expected.id, expected.type)
        assert trace.name(place) == expected.name
        found = trace.dependencies[offsets[place] : offsets[place + 1]]
        assert sorted(found.tolist()) == sorted(expected.data_deps)
        said = attributes(expected)
        for number, name in enumerate(schema.ATTRIBUTES):
            if name != b"pg_name":
                assert trace.value(place, number, -7) == said.get(name.decode(), -7)
        assert trace.group_name(place) == said.get("pg_name", "")


@pytest.mark.parametrize(
    "value",
    [
        {"int32_val": 12},
        {"int64_val": 12},
        {"uint32_val": 12},
        {"uint64_val": 12},
        {"sint64_val": 12},
        {"fixed64_val": 12},
        {"sfixed32_val": 12},
        {"float_val": 12.0},
        {"double_val": 12.0},
    ],
)
def test_numbers_of_any_kind(tmp_path: Path, value: dict[str, Any]) -> None:
    path = write(tmp_path / "a.et", [node(1, COMP, num_ops=value, tensor_size=5)])
    cost = given_cost(read_workload([path]).operations[0])
    assert cost is not None
    assert (cost.flops, cost.nbytes) == (12.0, 5)


def test_nodes_without_work_pass_on_what_they_wait_for(tmp_path: Path) -> None:
    nodes = [
        node(0, COMP, "a", tensor_size=8),
        node(1, METADATA, data=[0]),
        node(2, METADATA, ctrl=[1]),
        node(3, LOAD, "b", data=[2], tensor_size=8),
    ]
    first, second = read_workload([write(tmp_path / "a.et", nodes)]).operations
    assert (first.name, second.name) == ("a", "b")
    assert [ref.tensor for ref in second.inputs] == [ref.tensor for ref in first.outputs]


def test_groups_of_all_ranks_stand_beside_each_other(tmp_path: Path) -> None:
    """All-gather: comm_size is what each rank has."""
    groups = {"1": [0, 2], "2": [1, 3]}
    ranks = [
        [node(9, COLL, comm_type=ALL_GATHER, comm_size=100, pg_name=str(1 + rank % 2))]
        for rank in range(4)
    ]
    files = world(tmp_path, *ranks, groups=groups)
    workload = read_workload(files)
    (group,), (op,) = workload.groups, workload.operations
    assert (group.ranks, set(group.siblings)) == ((0, 2), {(0, 2), (1, 3)})
    assert op.collective is not None
    assert (op.collective.kind, op.collective.nbytes) == ("all_gather", 200)
    alone = read_workload([files[0], files[-1]])
    assert (set(alone.groups[0].siblings), alone.world.size) == ({(0, 2), (1, 3)}, 4)


def test_groups_that_pytorch_recorded(tmp_path: Path) -> None:
    text = json.dumps([json.dumps([{"pg_name": "5", "ranks": [0, 1]}])]).replace('\\"', '"')
    ranks = [[node(0, METADATA, values=text), node(1, COLL, pg_name="5", **SUM)]] * 3
    assert "group '5', in which rank 2 is not" in refused(*world(tmp_path, *ranks))
    assert read_workload(world(tmp_path, *ranks)[:2]).groups[0].ranks == (0, 1)


def test_it_is_saved_and_read_again(tmp_path: Path) -> None:
    files = world(
        tmp_path, *ranks_of("random 1"), groups={"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    )
    workload = read_workload(files)
    assert replay(list(workload_rows(workload)), is_torn=False) == workload


def test_every_cut_is_told(tmp_path: Path) -> None:
    whole = content(ranks_of("ring")[0][:4])
    path = tmp_path / "a.et"
    ends = 0
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        try:
            read_trace(path)
        except ProfileError:
            continue
        ends += 1
    assert ends == 3  # a cut between two nodes cannot be told


def test_damage_is_told(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.et", content(ranks_of("random 0")[0])
    path.write_bytes(b"")
    assert "is empty" in refused(path)
    path.write_bytes(b"\xff" * 64)
    assert "no length of a message" in refused(path)
    path.write_bytes(content([]))
    assert "without a node" in refused(path)
    path.write_bytes(whole[8:])
    assert "does not begin with a GlobalMetadata" in refused(path)
    path.write_bytes(whole[:8] + b"\x03\xff\xff\xff")
    assert "no node" in refused(path)
    assert "cannot read" in refused(tmp_path / "none.et")


def test_an_older_schema_is_told(tmp_path: Path) -> None:
    """Its nodes had their attributes in field 11, each with a type in field 2 (v0.0.3)."""
    message = b"\x08\x01\x12\x01a\x18\x04\x5a\x05\x0a\x01x\x10\x02"
    path = tmp_path / "a.et"
    path.write_bytes(content([]) + bytes([len(message)]) + message)
    assert "schema before 0.0.4" in refused(path)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([node(1, COMP, data=[7], tensor_size=1)], "waits for node 7, which is not there"),
        ([node(1, COMP), node(1, COMP)], "is there twice"),
        (
            [node(1, COMP, data=[3]), node(2, COMP, data=[1]), node(3, COMP, data=[2])],
            "wait for each other and never run: 1 → 3 → 2 → 1",
        ),
        ([node(1, 9)], "has the type 9"),
        ([node(1, COMP)], "nothing in it computes"),
        ([node(1, COMP, num_ops=-5, tensor_size=1)], "negative"),
        ([node(1, COLL, **SUM)], "only one is there; name the files of all ranks"),
    ],
)
def test_a_file_that_makes_no_sense(tmp_path: Path, nodes: list[Any], says: str) -> None:
    assert says in refused(write(tmp_path / "a.et", nodes))


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"comm_type": REDUCE, "comm_size": 4}, "type 1 (REDUCE), which is not emulated"),
        ({"comm_type": 77, "comm_size": 4}, "type 77 (not known)"),
        ({"comm_type": ALL_REDUCE}, "communicates 0 bytes"),
        ({**SUM, "pg_name": "8"}, "group '8', which nothing describes"),
        ({**SUM, "involved_dim": {"bool_list": {"values": [True, False]}}}, "involved_dim"),
    ],
)
def test_a_collective_that_makes_no_sense(
    tmp_path: Path, attributes: dict[str, Any], says: str
) -> None:
    assert says in refused(*world(tmp_path, *[[node(1, COLL, **attributes)]] * 2))


def test_ranks_that_do_not_fit_together(tmp_path: Path) -> None:
    one = [node(1, COLL, **SUM)]
    files = world(tmp_path, one, one, one)
    assert "rank 1 is missing" in refused(files[0], files[2])
    groups = world(tmp_path, one, one, groups={"1": [0, 5]})
    assert "ranks up to 5" in refused(*groups)
    for wrong in ([1], {"1": "x"}, {"1": [0, 0]}):
        assert "groups.json" in refused(*world(tmp_path, one, one, groups=wrong))
    (tmp_path / "groups.json").write_text("{")
    assert "is no JSON" in refused(*files, tmp_path / "groups.json")


def test_messages_that_nobody_sends_first(tmp_path: Path) -> None:
    def rank(own: int) -> list[Any]:
        ends = {"comm_size": 8, "comm_tag": 1}
        return [
            node(0, RECV, comm_src=1 - own, comm_dst=own, **ends),
            node(1, SEND, data=[0], comm_src=own, comm_dst=1 - own, **ends),
        ]

    assert "every rank waits for another" in refused(*world(tmp_path, rank(0), rank(1)))


def test_a_message_of_another_rank(tmp_path: Path) -> None:
    sent = [node(0, SEND, comm_src=1, comm_dst=0, comm_size=8)]
    assert "goes from rank 1 to 0, but this is rank 0" in refused(*world(tmp_path, sent, sent))
