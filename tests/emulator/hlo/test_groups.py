"""Replica groups of HLO in all their forms, held against each other and against brute force over devices."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from trnprof.emulator.capture.hlo.groups import permutation_groups, rank_groups, written_groups
from trnprof.emulator.capture.hlo.proto import MODULE


def instruction(**fields: Any) -> Any:
    found = MODULE().computations.add().instructions.add()
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def listed(groups: list[list[int]], **fields: Any) -> Any:
    found = instruction(**fields)
    for group in groups:
        found.device_list.replica_groups.add().replica_ids.extend(group)
    return found


def meshed(
    sizes: list[int], axes: list[int | tuple[int, int, int]], ids: list[int] | None = None
) -> Any:
    found = instruction()
    for size in sizes:
        found.mesh_groups.mesh.axes.add(name="x", size=size)
    found.mesh_groups.mesh.device_ids.extend(ids or [])
    for axis in axes:
        if isinstance(axis, int):
            found.mesh_groups.axes.add(axis=axis)
        else:
            ref = found.mesh_groups.axes.add(axis=axis[0])
            ref.sub_axis.pre_size, ref.sub_axis.size = axis[1], axis[2]
    return found


def along(sizes: list[int], axes: list[int]) -> set[frozenset[int]]:
    """Devices that differ only in their coordinates on these axes."""
    others = [i for i in range(len(sizes)) if i not in axes]
    found: dict[tuple[int, ...], set[int]] = {}
    for number, place in enumerate(product(*map(range, sizes))):
        found.setdefault(tuple(place[i] for i in others), set()).add(number)
    return {frozenset(group) for group in found.values()}


def test_an_iota_list_is_what_xla_documents_for_it() -> None:
    # [2,4]<=[4,2]T(1,0) of the documentation of replica_groups
    found = instruction()
    iota = found.iota_groups
    iota.groups, iota.group_size = 2, 4
    iota.reshape_dims.extend([4, 2])
    iota.transpose_perm.extend([1, 0])
    assert written_groups(found) == ((0, 2, 4, 6), (1, 3, 5, 7))
    older = instruction()
    older.device_list.iota.CopyFrom(iota)
    assert written_groups(older) == written_groups(found)


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [1, 2], [0, 1, 2]])
def test_groups_along_axes_of_a_mesh(axes: list[int]) -> None:
    sizes = [4, 2, 3]
    groups = written_groups(meshed(sizes, list(axes)))
    assert {frozenset(g) for g in groups} == along(sizes, axes)


def test_a_part_of_an_axis_is_an_axis_of_the_split_mesh() -> None:
    # axis of 8 as [2, 2, 2]: (2)2 is the middle part
    groups = written_groups(meshed([8, 3], [(0, 2, 2)]))
    assert {frozenset(g) for g in groups} == along([2, 2, 2, 3], [1])
    groups = written_groups(meshed([8, 3], [(0, 1, 4)]))
    assert {frozenset(g) for g in groups} == along([4, 2, 3], [0])
    groups = written_groups(meshed([8], [(0, 1, 2), (0, 4, 2)]))
    assert {frozenset(g) for g in groups} == along([2, 2, 2], [0, 2])


def test_a_mesh_may_order_its_devices() -> None:
    ids = list(np.random.default_rng(5).permutation(6))
    groups = written_groups(meshed([2, 3], [1], [int(i) for i in ids]))
    assert {frozenset(g) for g in groups} == {
        frozenset(map(int, ids[:3])),
        frozenset(map(int, ids[3:])),
    }


def test_what_the_numbers_are_depends_on_channel_and_global_ids() -> None:
    # xla_data.proto, CollectiveOpGroupMode; 2 replicas of 3 partitions
    replicas = rank_groups(listed([[0, 1]], opcode="all-reduce"), 2, 3)
    assert replicas == ((0, 3), (1, 4), (2, 5))
    partitions = rank_groups(listed([[0, 2], [1]], opcode="all-to-all", channel_id=1), 2, 3)
    assert partitions == ((0, 2), (1,), (3, 5), (4,))
    both = rank_groups(listed([[0, 1]], opcode="all-reduce", channel_id=1), 2, 3)
    assert both == ((0, 1, 2, 3, 4, 5),)
    flat = listed([[0, 5], [1, 4]], opcode="all-reduce", channel_id=1, use_global_device_ids=1)
    assert rank_groups(flat, 2, 3) == ((0, 5), (1, 4))
    assert rank_groups(instruction(opcode="all-reduce"), 4, 1) == ((0, 1, 2, 3),)


def test_a_permutation_falls_into_rings_and_chains() -> None:
    pairs = [(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (6, 6)]
    found = instruction(channel_id=1)
    for source, target in pairs:
        found.source_target_pairs.add(source=source, target=target)
    assert set(permutation_groups(found, 8)) == {(1, 3, 5), (0, 2, 4)}
