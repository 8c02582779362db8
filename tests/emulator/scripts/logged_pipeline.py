"""What do real stages do and ask of each other? Under torchrun with gloo: logged_pipeline.py OUT ARGUMENTS-OF-PIPELINE...

Each rank writes OUT.RANK: the products and messages of its steps, without the pass that finds shapes. Nothing of trnprof is used here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pipeline
import torch
from logged import ranks_of
from torch.distributed.pipelining import schedules
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Log(TorchDispatchMode):
    """Rows of products (shape of the result) and of what is asked of other ranks (bytes, ranks, and whom it is sent to or received from)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = f"{func.namespace}::{func._opname}"
        if name == "aten::mm":
            self.rows.append(["mm", list(out.shape)])
        elif "c10d" in func.namespace:
            size = max(
                sum(t.nbytes for t in tree_leaves(a) if isinstance(t, torch.Tensor)) for a in args
            )
            peer = args[2] if name in ("c10d::send", "c10d::recv_") else -1
            self.rows.append([name, size, ranks_of(args), peer])
        return out


def logged(arguments: list[str]) -> list[list[Any]]:
    """The rows of all steps."""
    log = Log()
    rows: list[list[Any]] = []
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        for finds in ("_initialize_stage", "_initialize_stages"):
            if finds in vars(kind):
                setattr(kind, finds, without_rows(getattr(kind, finds), log))
        kind.step = with_rows(kind.step, log, rows)
    ways, *numbers = arguments[:5]
    pipeline.train("gloo", ways.split(","), *map(int, numbers), arguments[5:])
    return rows


def without_rows(method: Any, log: Log) -> Any:
    def silent(*args: Any, **kwargs: Any) -> Any:
        method(*args, **kwargs)
        log.rows.clear()

    return silent


def with_rows(method: Any, log: Log, rows: list[list[Any]]) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        log.rows.clear()
        with log:
            result = method(*args, **kwargs)
        rows.extend(log.rows)
        return result

    return noted


if __name__ == "__main__":
    found = logged(sys.argv[2:])
    Path(f"{sys.argv[1]}.{os.environ['RANK']}").write_text(json.dumps(found))
