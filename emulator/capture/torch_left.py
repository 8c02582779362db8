"""Does a process that is not captured, because another one is, run models of its own? Then the recording must say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.utils.data

from trnprof.emulator.capture.launch_settings import leave_mark
from trnprof.emulator.capture.worker_spans import watch_forks, watch_loaders, watch_spawned


def watch_left_process(trace_dir: Path, *, host_spans: bool) -> None:
    """Leave a mark at the first call of a model in this process; until then each module call costs a look.

    Args:
        trace_dir: trace directory.
        host_spans: keep the spans of this process too.
    """
    if host_spans:
        watch_forks(trace_dir)
        watch_loaders(trace_dir)
        watch_spawned(trace_dir)
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
