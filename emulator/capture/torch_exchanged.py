"""What do known values become where ranks exchange them? All ranks are taken to have the same.

So a sum over n ranks is n times the value, what is gathered is n copies, and of an all_to_all this rank gets from each other what it
sends to itself. Counts of tokens that ranks tell each other before they exchange the tokens are such values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from trnprof.emulator.capture.torch_collectives import Spec, flat, group_of
from trnprof.emulator.capture.torch_known import Known, KnownValues
from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    REDUCE_SCATTER,
)

_operation: list[str] = []
"""How the reductions add that are being called, the innermost last: operators do not tell."""


def watch_reductions(replace: Callable[[Any, Any], object]) -> None:
    """From now on know how the program's reductions add.

    Args:
        replace: puts a function in the place of another in all modules of torch.
    """
    for function, position in ((dist.all_reduce, 1), (dist.reduce, 2)):
        replace(function, _telling(function, position))


def _telling(function: Any, position: int) -> Any:
    @functools.wraps(function)
    def telling(*args: Any, **kwargs: Any) -> Any:
        given = args[position] if len(args) > position else kwargs.get("op", dist.ReduceOp.SUM)
        _operation.append(str(given).rpartition(".")[2].lower())
        try:
            return function(*args, **kwargs)
        finally:
            _operation.pop()

    return telling


def exchange_known(
    known: KnownValues, name: str, spec: Spec, args: Sequence[Any], out: Any
) -> None:
    """A collective has run on fake tensors: give what it wrote its values, or forget them.

    Args:
        known: values by storage.
        name: of the operator.
        spec: how to read the operator.
        args: all its arguments, by position.
        out: what it returned.
    """
    if spec.kind == BARRIER:
        return
    read = [known.find(t) for position in spec.reads for t in flat(args[position])]
    written = [t for position in spec.writes for t in flat(args[position])] or flat(out)
    results: list[Known | None] = [None] * len(written)
    if read and all(each is not None for each in read):
        with unset_fake_temporarily():
            values = _exchanged(
                name, spec, args, [each.values for each in read if each is not None]
            )
        if values is not None and len(values) == len(written):
            shapes = [tuple(tensor.shape) for tensor in written]
            if [tuple(each.shape) for each in values] == shapes:
                exact = all(each.is_exact for each in read if each is not None)
                routers = frozenset[Any]().union(*(e.routers for e in read if e is not None))
                results = [Known(each, exact, routers) for each in values]
    for tensor, result in zip(written, results, strict=True):
        known.write(tensor, result)


def _exchanged(
    name: str, spec: Spec, args: Sequence[Any], read: list[torch.Tensor]
) -> list[torch.Tensor] | None:
    """What this rank ends with; None where that is not known."""
    group = group_of(args[spec.group])
    size, own = group.size(), group.rank()
    match spec.kind:
        case _ if spec.kind == BROADCAST and spec.each_rank:
            is_gathered = len(spec.writes) and len(flat(args[spec.writes[0]])) > 1
            return read * size if is_gathered else read[own : own + 1]
        case _ if spec.kind == BROADCAST:  # or a reduction to one rank
            is_sum = name == "reduce_" and args[spec.root] == own
            return _reduced(read, _how(args), size) if is_sum else read
        case _ if spec.kind == ALL_REDUCE:
            return _reduced(read, _how(args), size)
        case _ if spec.kind == REDUCE_SCATTER and len(read) == 1:
            return _reduced([read[0].chunk(size)[own]], _how(args), size)
        case _ if spec.kind == ALL_GATHER and len(read) == 1:
            count = len(flat(args[spec.writes[0]])) if spec.writes else 1
            return read * size if count > 1 else [torch.cat(read * size)]
        case _ if spec.kind == ALL_TO_ALL and spec.splits < 0:
            return [read[own]] * size if len(read) == size else None
        case _ if spec.kind == ALL_TO_ALL:
            rows = [int(count) for count in args[spec.splits]]
            parts = read[0].split(rows) if rows else read[0].chunk(size)
            return [torch.cat([parts[own]] * size)] if len(parts) == size else None
    return None


def _how(args: Sequence[Any]) -> str:
    """How a reduction adds: functional operators are told its name."""
    named = next((a for a in args[1:3] if isinstance(a, str)), None)
    if named is not None:
        return named
    return _operation[-1] if _operation else ""


def _reduced(read: list[torch.Tensor], how: str, size: int) -> list[torch.Tensor] | None:
    if how == "sum":
        return [each * size for each in read]
    if how in ("avg", "min", "max", "band", "bor"):
        return [each.clone() for each in read]
    return None
