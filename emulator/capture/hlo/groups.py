"""Which ranks does a collective of HLO join? Replica groups in each of the forms in which XLA writes them.

* a list of lists: ``{{0,1},{2,3}}``;
* iota: ``[2,4]<=[4,2]T(1,0)``: the numbers 0 … 7, shaped [4, 2], transposed, then cut into 2 groups of 4;
* axes of a mesh: ``mesh['a'=4,'b'=2] {'a'}``: groups along these axes, one for each place on the others;
* none: all at once.

What the numbers are depends on ``channel_id`` and ``use_global_device_ids`` (``CollectiveOpGroupMode`` in ``xla_data.proto``): replicas,
partitions, or flattened ids replica x partitions + partition, which are ranks here.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

Groups = tuple[tuple[int, ...], ...]


def rank_groups(proto: Any, replicas: int, partitions: int) -> Groups:
    """Ranks of all groups of a collective instruction, each in the order of the program.

    Args:
        proto: the instruction.
        replicas: copies of the program.
        partitions: devices of each copy.
    """
    groups = written_groups(proto)
    of_partitions = proto.channel_id > 0
    if of_partitions and proto.use_global_device_ids:
        return groups or (tuple(range(replicas * partitions)),)
    if of_partitions and proto.opcode.startswith(("all-reduce", "reduce-scatter", "all-gather")):
        # replicas, each with all of its partitions
        groups = groups or (tuple(range(replicas)),)
        return tuple(
            tuple(r * partitions + p for r in group for p in range(partitions)) for group in groups
        )
    if of_partitions:
        groups = groups or (tuple(range(partitions)),)
        return tuple(
            tuple(r * partitions + p for p in group) for r in range(replicas) for group in groups
        )
    groups = groups or (tuple(range(replicas)),)
    return tuple(
        tuple(r * partitions + p for r in group) for group in groups for p in range(partitions)
    )


def written_groups(proto: Any) -> Groups:
    """The groups as they stand in an instruction; none where it names none."""
    if proto.HasField("mesh_groups"):
        return _mesh_groups(proto.mesh_groups)
    if proto.HasField("iota_groups"):
        return _iota_groups(proto.iota_groups)
    if proto.device_list.HasField("iota"):
        return _iota_groups(proto.device_list.iota)
    listed = proto.device_list.replica_groups or proto.replica_groups
    return tuple(tuple(group.replica_ids) for group in listed if group.replica_ids)


def permutation_groups(proto: Any, partitions: int) -> Groups:
    """The rings and chains of a collective-permute, each in the order in which it is passed on.

    Args:
        proto: the instruction.
        partitions: devices of each replica; pairs name partitions where there is a channel.
    """
    step = 1 if proto.channel_id > 0 else partitions
    following = {
        p.source * step: p.target * step for p in proto.source_target_pairs if p.source != p.target
    }
    targets = set(following.values())
    starts = [s for s in following if s not in targets] + list(following)  # chains, then rings
    seen: set[int] = set()
    found = []
    for start in starts:
        chain = []
        at = start
        while at not in seen:
            seen.add(at)
            chain.append(at)
            if at not in following:
                break
            at = following[at]
        if len(chain) > 1:
            found.append(tuple(chain))
    return tuple(found)


def _iota_groups(proto: Any) -> Groups:
    numbers = np.arange(proto.groups * proto.group_size).reshape(tuple(proto.reshape_dims))
    if proto.transpose_perm:
        numbers = numbers.transpose(tuple(proto.transpose_perm))
    return _rows(numbers.reshape(proto.groups, proto.group_size))


def _mesh_groups(proto: Any) -> Groups:
    """An axis may be split: a part of size s with p before it is the middle one of [p, s, rest]."""
    sizes = [int(axis.size) for axis in proto.mesh.axes]
    numbers = np.array(proto.mesh.device_ids or range(math.prod(sizes)))
    chosen: list[tuple[int, int]] = []  # axis, part of it
    parts = [[size] for size in sizes]
    for ref in proto.axes:
        if ref.HasField("sub_axis"):
            before, size = int(ref.sub_axis.pre_size), int(ref.sub_axis.size)
            parts[ref.axis] = _split(parts[ref.axis], before, size)
    for ref in proto.axes:
        before = int(ref.sub_axis.pre_size) if ref.HasField("sub_axis") else 1
        until = before * int(ref.sub_axis.size) if ref.HasField("sub_axis") else sizes[ref.axis]
        position = 1
        for index, size in enumerate(parts[ref.axis]):
            if before <= position < until:
                chosen.append((ref.axis, index))
            position *= size
    offsets = np.cumsum([0, *(len(p) for p in parts)])
    axes = [int(offsets[axis]) + index for axis, index in chosen]
    shape = [size for p in parts for size in p]
    others = [i for i in range(len(shape)) if i not in axes]
    size = math.prod(shape[i] for i in axes)
    return _rows(numbers.reshape(shape).transpose(others + axes).reshape(-1, size))


def _split(parts: list[int], before: int, size: int) -> list[int]:
    """Cut an axis at ``before`` and at ``before * size``, where it is not cut yet."""
    cuts = sorted({*np.cumprod([1, *parts]).tolist(), before, before * size})
    return [b // a for a, b in pairwise(cuts)]


def _rows(numbers: np.ndarray[Any, Any]) -> Groups:
    return tuple(tuple(int(n) for n in row) for row in numbers)
