"""What of torch.distributed.pipelining must the capture know? That stages differ, when a schedule runs, and what is only a rehearsal.

Before its first step a schedule finds out the shapes that stages send each other, by a forward and a backward of one microbatch without
overlap. That is set-up, in torch 2.13 as well as in older versions, which did it without computing; the program's steps come after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from trnprof.emulator.capture.imports import when_imported


def watch_pipelines(
    on_stage: Callable[[Any, int], object],
    on_run: Callable[[], object],
    rehearsal: Callable[[], AbstractContextManager[object]],
) -> None:
    """Report what pipelines do, once the program imports them.

    Args:
        on_stage: told the group and the index of each stage that is made.
        on_run: told when a schedule begins a step.
        rehearsal: entered while shapes are found.
    """

    def stages(module: Any) -> None:
        base = module._PipelineStageBase
        init = base.__init__

        @functools.wraps(init)
        def reported_init(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            on_stage(self.group, self.stage_index)

        base.__init__ = reported_init

    def schedules(module: Any) -> None:
        for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
            schedule = getattr(module, name)
            schedule.step = _before(schedule.step, on_run)
            for finds in ("_initialize_stage", "_initialize_stages"):
                if finds in vars(schedule):
                    setattr(schedule, finds, _within(getattr(schedule, finds), rehearsal))

    when_imported("torch.distributed.pipelining.stage", stages)
    when_imported("torch.distributed.pipelining.schedules", schedules)


def _before(method: Any, action: Callable[[], object]) -> Any:
    @functools.wraps(method)
    def reported(self: Any, *args: Any, **kwargs: Any) -> Any:
        action()
        return method(self, *args, **kwargs)

    return reported


def _within(method: Any, context: Callable[[], AbstractContextManager[object]]) -> Any:
    @functools.wraps(method)
    def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
        with context():
            return method(self, *args, **kwargs)

    return inside
