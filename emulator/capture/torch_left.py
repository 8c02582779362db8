"""Does a process that is not captured, because another one is, run models of its own? Then the recording must say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.utils.data

from trnprof.emulator.capture.launch_settings import leave_mark


def watch_left_process(trace_dir: Path) -> None:
    """Leave a mark at the first call of a model in this process; until then each module call costs a look."""
    module = torch.nn.Module
    call = module.__call__

    def looking_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if module.__call__ is looking_call and runs_a_model(self):
            module.__call__ = call
            leave_mark(trace_dir)
        return call(self, *args, **kwargs)

    module.__call__ = looking_call


def runs_a_model(module: torch.nn.Module) -> bool:
    """Whether the call of this module is work that could have been captured: it has parameters, and no data loader runs it."""
    if torch.utils.data.get_worker_info() is not None:
        return False
    return any(True for _ in module.parameters())
