"""What do real processes ask of each other? Under torchrun with gloo: logged.py OUT WAY writes what rank 0 asks, after its set-up.

Nothing of trnprof is used here: a dispatch mode of its own writes down each collective.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import parallel
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Log(TorchDispatchMode):
    """Rows of operator, bytes of its largest argument (of a functional gather: times the ranks), ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        out = func(*args, **kwargs)
        name = f"{func.namespace}::{func._opname}"
        if "c10d" in func.namespace and "wait" not in name and "wrap" not in name:
            values = [*args, *kwargs.values()]
            sizes = [
                sum(t.nbytes for t in tree_leaves(value) if isinstance(t, torch.Tensor))
                for value in values
            ]
            ranks = ranks_of(values)
            times = len(ranks) if name == "_c10d_functional::all_gather_into_tensor" else 1
            self.rows.append([name, max(sizes) * times, ranks])
        return out


def ranks_of(values: list[Any]) -> list[int]:
    """Ranks of the group among the arguments: an object of torch, or a name."""
    for value in reversed(values):
        if isinstance(value, dist.ProcessGroup):
            return dist.get_process_group_ranks(value)
        if isinstance(value, str) and value not in ("sum", "avg", "max"):
            group = torch._C._distributed_c10d._resolve_process_group(value)
            return dist.get_process_group_ranks(group)
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.get_process_group_ranks(dist.ProcessGroup.unbox(value))
    raise ValueError(values)


def logged(way: str) -> list[list[Any]]:
    """The rows of one way of training."""
    log = Log()
    make = torch.optim.AdamW.__init__

    def starts(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        log.rows.clear()

    torch.optim.AdamW.__init__ = starts
    try:
        with log:
            parallel.train(way, "gloo")
    finally:
        torch.optim.AdamW.__init__ = make
    return log.rows


if __name__ == "__main__":
    found = logged(sys.argv[2])
    if os.environ["RANK"] == "0":
        Path(sys.argv[1]).write_text(json.dumps(found))
