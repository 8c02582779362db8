"""Which operators ask something of other ranks, and what: the collectives of c10d and of its functional twin.

Bytes are counted as nccl-tests does: the input of all_reduce, reduce_scatter and all_to_all, the output of all_gather. Reduce, gather
and scatter are timed as a broadcast of the same bytes, which sends them over the same links in one direction. An all_to_all in which this
rank sends to one other only, and receives from one only, is a permute: all ranks send as far along the group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    REDUCE_SCATTER,
    SEND_RECV,
)


@dataclass(frozen=True, slots=True)
class Spec:
    """Where an operator of a collective has what; positions among its arguments, -1 for what it has not.

    Attributes:
        kind: the collective.
        group: the process group, or its name.
        reads: tensors that are sent.
        writes: tensors that are received into.
        counted: the tensors whose bytes count.
        each_rank: these bytes are one rank's share.
        root: position in the group of who sends to all.
        to: position of whom it is sent to.
        origin: position of whom it is received from.
        splits: rows sent to each rank; in front of it, rows received from each.
    """

    kind: str
    group: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    counted: int = -1
    each_rank: bool = False
    root: int = -1
    to: int = -1
    origin: int = -1
    splits: int = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks.

    Attributes:
        kind: the collective.
        group: the process group.
        nbytes: as the module says.
        root: position in the group of who sends.
        target: position of who receives what is sent to one, -1 else.
        sent_bytes: sent to each position, empty where all get the same.
        received_bytes: received from each position, empty where those are equal or sent_bytes are not.
    """

    kind: str
    group: Any
    nbytes: int
    root: int
    target: int
    sent_bytes: tuple[int, ...] = ()
    received_bytes: tuple[int, ...] = ()


_IN_PLACE: Final = Spec(ALL_REDUCE, 1, (0,), (0,), 0)
_GATHER: Final = Spec(ALL_GATHER, 2, (1,), (0,), 0)
_SCATTER: Final = Spec(REDUCE_SCATTER, 2, (1,), (0,), 1)
_BARRIER: Final = Spec(BARRIER, 1)
_C10D: Final = {
    "allreduce_": _IN_PLACE,
    "allreduce_coalesced_": _IN_PLACE,
    "broadcast_": Spec(BROADCAST, 1, (0,), (0,), 0, root=2),
    "reduce_": Spec(BROADCAST, 1, (0,), (0,), 0, root=3),
    "allgather_": _GATHER,
    "_allgather_base_": _GATHER,
    "allgather_coalesced_": _GATHER,
    "allgather_into_tensor_coalesced_": _GATHER,
    "reduce_scatter_": _SCATTER,
    "_reduce_scatter_base_": _SCATTER,
    "reduce_scatter_tensor_coalesced_": _SCATTER,
    "alltoall_base_": Spec(ALL_TO_ALL, 2, (1,), (0,), 1, splits=4),
    "alltoall_": Spec(ALL_TO_ALL, 2, (1,), (0,), 1),
    "gather_": Spec(BROADCAST, 2, (1,), (0,), 1, each_rank=True, root=3),
    "scatter_": Spec(BROADCAST, 2, (1,), (0,), 0, each_rank=True, root=3),
    "send": Spec(SEND_RECV, 1, (0,), (), 0, to=2),
    "recv_": Spec(SEND_RECV, 1, (), (0,), 0, origin=2),
    "recv_any_source_": Spec(SEND_RECV, 1, (), (0,), 0),
    "barrier": _BARRIER,
    "monitored_barrier_": _BARRIER,
}
_FUNCTIONAL: Final = {
    "all_reduce": Spec(ALL_REDUCE, 2, (0,), (), 0),
    "all_gather_into_tensor": Spec(ALL_GATHER, 2, (0,), (), 0, each_rank=True),
    "reduce_scatter_tensor": Spec(REDUCE_SCATTER, 3, (0,), (), 0),
    "all_to_all_single": Spec(ALL_TO_ALL, 3, (0,), (), 0, splits=2),
    "broadcast": Spec(BROADCAST, 2, (0,), (), 0, root=1),
    "isend": Spec(SEND_RECV, 3, (0,), (), 0, to=1),
    "irecv": Spec(SEND_RECV, 3, (), (0,), 0, origin=1),
    "batch_p2p_ops": Spec(PERMUTE, 4, (3,), (3,), 3),
}
_SHARD_DIM: Final = Spec(ALL_TO_ALL, 3, (0,), (), 0)
_WAITS: Final = frozenset(("wait_tensor", "_wrap_tensor_autograd"))


def spec_of(namespace: str, name: str) -> Spec | None:
    """How to read an operator; None if it asks nothing of other ranks."""
    if namespace == "c10d":
        return _C10D.get(name)
    if namespace == "_dtensor":
        return _SHARD_DIM if name == "shard_dim_alltoall" else None
    if not namespace.startswith("_c10d_functional"):
        return None
    stem = name.removesuffix("_out").removesuffix("_")
    return _FUNCTIONAL.get(stem.removesuffix("_coalesced"))


def only_waits(namespace: str, name: str) -> bool:
    """Whether an operator waits for a collective and does nothing else."""
    return namespace.startswith("_c10d_functional") and name in _WAITS


def asked(spec: Spec, args: Sequence[Any]) -> Asked:
    """What a call asks of which group.

    Args:
        spec: how to read the operator.
        args: all its arguments, by position.
    """
    group = group_of(args[spec.group])
    own = group.rank()
    counted = [] if spec.counted < 0 else flat(args[spec.counted])
    nbytes = sum(_nbytes(tensor) for tensor in counted)
    if spec.each_rank:
        nbytes *= group.size()
    root, target = own, -1
    if spec.root >= 0:
        root = args[spec.root]
    elif spec.to >= 0:
        target = args[spec.to]
    elif spec.origin >= 0:
        root, target = args[spec.origin], own
    elif spec.kind == SEND_RECV:  # from whoever sends: taken to be the one before
        root, target = (own - 1) % group.size(), own
    elif spec.kind == PERMUTE:
        nbytes, target = _exchanged(args)
    elif spec.kind != BARRIER:
        root = 0
    if spec.kind != ALL_TO_ALL:
        return Asked(spec.kind, group, nbytes, root, target)
    sent, received = _exchanged_parts(spec, args, counted)
    receivers = [position for position, count in enumerate(sent) if count]
    if len(receivers) == 1 and sum(map(bool, received)) == 1:
        return Asked(PERMUTE, group, nbytes, own, receivers[0])
    if len(set(sent)) > 1:
        return Asked(spec.kind, group, nbytes, root, target, sent)
    received = received if len(set(received)) > 1 else ()
    return Asked(spec.kind, group, nbytes, root, target, (), received)


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in an argument, lists of lists among them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in flat(item)]
    return []


def group_of(value: Any) -> Any:
    """The process group of an argument: its name, or the object that crosses the dispatcher."""
    if isinstance(value, str):
        return torch._C._distributed_c10d._resolve_process_group(value)
    if isinstance(value, dist.ProcessGroup):
        return value
    return dist.ProcessGroup.unbox(value)


def _nbytes(tensor: torch.Tensor) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size


def _exchanged_parts(
    spec: Spec, args: Sequence[Any], counted: list[torch.Tensor]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes sent to each rank and received from each by an all_to_all; empty where it does not cut its tensors."""
    if spec.splits < 0:
        received = flat(args[spec.writes[0]]) if spec.writes else []
        both = tuple(map(_nbytes, counted)), tuple(map(_nbytes, received))
        return both if len(counted) > 1 else ((), ())
    sent_rows, received_rows = (
        [int(count) for count in args[position] or ()]
        for position in (spec.splits, spec.splits - 1)
    )
    row = math.prod(counted[0].shape[1:]) * counted[0].element_size()
    return tuple(n * row for n in sent_rows), tuple(n * row for n in received_rows)


def _exchanged(args: Sequence[Any]) -> tuple[int, int]:
    """Bytes sent by a batch of sends and receives, and the position of whom the first goes to."""
    kinds, peers, _, tensors = args[:4]
    sends = [i for i, kind in enumerate(kinds) if "send" in kind]
    nbytes = sum(_nbytes(tensors[i]) for i in sends)
    return nbytes, peers[sends[0]] if sends else -1
