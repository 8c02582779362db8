"""How is a PyTorch program captured from inside its own process? The hooks, and what each of them sets off.

From the import of torch a dispatch mode sees every operation of the importing thread, or of the thread that calls the first
model. Everything before the first forward of
a module is set-up; then what runs inside forwards, backwards and optimizer steps, or touches their results, is the device's.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.profiler
import torch.utils.data
from torch.optim import optimizer as torch_optimizer

from trnprof.emulator.capture.host_spans import HostSpans
from trnprof.emulator.capture.launch_settings import (
    Settings,
    leave_mark,
    write_state,
)
from trnprof.emulator.capture.log import CaptureLog
from trnprof.emulator.capture.moe_load import read_moe_load
from trnprof.emulator.capture.peers import Peers
from trnprof.emulator.capture.steps import Steps
from trnprof.emulator.capture.store import Row
from trnprof.emulator.capture.torch_dispatch import CaptureMode
from trnprof.emulator.capture.torch_left import runs_a_model
from trnprof.emulator.capture.torch_loops import Loops
from trnprof.emulator.capture.torch_modules import Modules
from trnprof.emulator.capture.torch_patches import (
    patch_compile,
    patch_engine,
    patch_module_calls,
    patch_profiler,
    patch_resizing,
)
from trnprof.emulator.capture.torch_phases import Phases
from trnprof.emulator.capture.torch_pipelines import watch_pipelines
from trnprof.emulator.capture.torch_tensors import Storages, parts
from trnprof.emulator.capture.worker_spans import (
    watch_forks,
    watch_loaders,
    watch_spawned,
)
from trnprof.emulator.workload import ProcessGroup
from trnprof.tracer import recorder
from trnprof.tracer.errors import CaptureError


def start_capture(settings: Settings) -> TorchCapture:
    """Watch this process from now on, until it ends."""
    capture = TorchCapture(settings)
    capture.install()
    return capture


class TorchCapture:
    """The capture of this process.

    Attributes:
        mode: the dispatch mode.
        log: where rows go.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log = CaptureLog(settings.trace_dir)
        self.storages = Storages()
        self.modules = Modules(self.storages)
        self.phases = Phases()
        self.steps = Steps(self._end_step)
        self.spans = HostSpans(settings.trace_dir)
        self.loops = Loops(self._cut, self._is_watched)
        self._adopting = threading.Lock()
        self._earlier_exception = getattr(sys, "last_value", None)  # in an interactive session
        self._is_left = False
        self._state_counts: dict[int, int] = {}
        self._window_open = False
        self._fake: Any = None
        self._devices: Any = None
        self._messages: Any = None
        if settings.fake:
            from trnprof.emulator.capture.torch_fake_run import FakeRun

            load = read_moe_load(settings.moe_load)
            self._fake = FakeRun(self.log.note, load, self._place, self._refuse)
        self.mode = CaptureMode(
            self.storages,
            self.modules,
            self.phases,
            self.steps,
            self.begin,
            self._record,
            None if self._fake is None else self._fake.run,
        )
        self._first_thread = self.mode.thread
        self.mode.cut = self._cut
        self.mode.fail = self.log.fail

    def install(self) -> None:
        """Begin to watch."""
        guarded = self._guarded
        patch_module_calls(guarded(self._before_forward), guarded(self._after_forward))
        torch_optimizer.register_optimizer_step_pre_hook(guarded(self._before_optimizer))
        torch_optimizer.register_optimizer_step_post_hook(guarded(self._after_optimizer))
        torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole encoder layer
        patch_engine(guarded(self._backward))
        patch_compile(self.log.note)
        patch_profiler(guarded(lambda: self.steps.mark("profiler")))
        patch_resizing(guarded(self.storages.release))
        self.loops.install()
        recorder.on_step(guarded(self._marker))
        if torch.distributed.is_available():
            self._watch_groups()
        if self._fake is not None:
            self._map_devices()
            self._fake.install()
        self.mode.__enter__()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._after_fork)
        if self.settings.host_spans:
            watch_forks(self.settings.trace_dir)
            watch_loaders(self.settings.trace_dir)
            watch_spawned(self.settings.trace_dir)

    def _watch_groups(self) -> None:
        """Make the world of which this process plays a rank, and number its groups."""
        from trnprof.emulator.capture.torch_groups import Groups

        if self.settings.world_size is not None:
            self._play(self.settings.world_size, self.settings.rank)
        self.mode.groups = Groups(self._group)
        self.mode.groups.watch()

    def _play(self, size: int, rank: int) -> None:
        from trnprof.emulator.capture.torch_objects import Objects
        from trnprof.emulator.capture.torch_world import FakeWorld

        self.log.world(size, rank)
        if self.settings.peers is not None:
            self._find_peers(Peers(self.settings.peers, rank, self.settings.launcher))
        objects = Objects(self._messages, self.log.note, self._refuse)
        FakeWorld(size, rank, objects, self.log.note, self._refuse).install()
        if self._fake is not None:
            from trnprof.emulator.capture.torch_reducer import install_reducer

            install_reducer()

    def _find_peers(self, peers: Peers) -> None:
        """Ranks may differ: find out which, and tell each other."""
        from trnprof.emulator.capture.torch_messages import Messages

        messages = Messages(peers, lambda: self.mode.groups, self._refuse)
        self._messages = self._fake.messages = messages
        self.mode.message_number = lambda: messages.number
        stages: set[int] = set()

        def on_stage(group: Any, index: int) -> None:
            messages.differ(group)
            stages.add(index)
            numbers = ", ".join(map(str, sorted(stages)))
            self.log.label(f"stages {numbers}" if len(stages) > 1 else f"stage {numbers}")

        watch_pipelines(
            self._guarded(on_stage), self._guarded(lambda: self._cut("pipeline")), self._rehearsal
        )

    @contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """What runs inside is not recorded; what comes after it is."""
        self.mode.is_paused = True
        try:
            yield
        finally:
            self.mode.is_paused = False
        is_first = self.mode.state == "setup"
        self._guarded(self.begin)(False)
        if is_first:
            self._guarded(self._cut)("pipeline")

    def _group(self, index: int, group: ProcessGroup) -> None:
        self.log.world(torch.distributed.get_world_size(), torch.distributed.get_rank())
        self.log.group(index, group)

    def _refuse(self, reason: str) -> NoReturn:
        """The program asks for what cannot be played: it ends here."""
        if self.mode.state == "recording":
            self.log.fail(CaptureError(reason))
        else:
            write_state(self.settings.trace_dir, reason)
        self.mode.state = "off"
        sys.exit(2)

    def _place(self) -> str | None:
        """Path of the module whose forward runs; None outside of all."""
        return self.modules.current().path if self.modules.depth else None

    def _map_devices(self) -> None:
        from trnprof.emulator.capture.torch_devices import DeviceMap

        self._devices = DeviceMap(self.settings.local_size)
        self._devices.install()

    def _guarded(self, action: Callable[..., Any]) -> Callable[..., Any]:
        """The action, its failure kept from the program."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return action(*args, **kwargs)
            except Exception as failure:
                self.mode.give_up(failure)
                return None

        return guarded

    def begin(self, with_setup: bool) -> None:
        """The first device operation: claim the capture of the run, or leave it to whoever has it.

        Args:
            with_setup: what was kept of the set-up belongs to the program (it has no modules).
        """
        if self.mode.state != "setup":
            return
        if torch.utils.data.get_worker_info() is not None or not self.log.claim():
            self.mode.state = "off"
            return
        self.mode.state = "recording"
        self.log.open()
        if self.settings.steps is not None:
            self.log.window(*self.settings.steps)
        if with_setup:
            for row in self.mode.setup_rows:
                self.log.add(row)
        else:
            self.storages.forget()
            self.steps.operations = 0
            for row in self.mode.take_setup_messages():
                self._record(row)
        self.mode.setup_rows.clear()
        if self.settings.host_spans:
            self.spans.start()
            # the recorder seals itself at exit: our last spans must end before, so register after it (last in, first out)
            atexit.unregister(self.finish)
            atexit.register(self.finish)

    def finish(self) -> None:
        """The program is over: write what is left."""
        if self.mode.state == "setup" and any(r.model_flops > 0 for r in self.mode.setup_rows):
            self.begin(True)
        if self.mode.state != "recording":
            return
        is_interrupted = getattr(sys, "last_value", None) is not self._earlier_exception
        self.steps.finish(is_interrupted)
        self.mode.state = "off"
        if self._messages is not None:
            self._messages.decide()
        is_main = not self.settings.rank
        if self.mode.host_operations and is_main:
            count = self.mode.host_operations
            self.log.note(f"{count} operations on host data (data loading) are not recorded")
        if self._devices is not None and self._devices.uses and is_main:
            self.log.note(self._devices.note())
        if self._fake is not None:
            for text in self._fake.notes():
                self.log.note(text)
        self.spans.stop()
        self.log.close(is_interrupted)

    def _record(self, row: Row) -> None:
        window = self.settings.steps
        if window is not None and self.steps.source:
            if not window[0] <= row.step <= window[1]:
                return
            if window[0] and not self._window_open:
                self._window_open = True
                refs = (s.current_ref() for s in self.storages.live.values())
                self.log.residents((ref for ref in refs if ref is not None), "window")
        self.log.add(row)

    def _end_step(self, number: int, label: str, source: str) -> None:
        self.log.step(number, label, source)
        if self._messages is not None:
            self._messages.decide()
        self.spans.end_step(number)
        self.mode.forget_old_locations()

    def _marker(self, label: str) -> None:
        if self._is_watched():
            self.steps.mark("marker", label)

    def _cut(self, phase: str, label: str = "") -> None:
        if not self.steps.source and self.mode.state == "recording":
            self.log.cut(phase, label)

    def _is_watched(self) -> bool:
        return threading.get_ident() == self.mode.thread and self.mode.state != "off"

    def _adopt_thread(self) -> bool:
        """A model is called outside the watched thread: before anything was recorded, that is the one to watch."""
        if self.mode.state == "off":
            return False
        with self._adopting:
            if self.mode.state == "setup" and self.mode.thread == self._first_thread:
                self.mode.thread = threading.get_ident()
                if self._fake is not None:
                    self._fake.mode.__enter__()
                self.mode.__enter__()
                return True
        if self.mode.state == "recording":
            self.log.note("models ran in further threads, which are not recorded")
        return False

    def _before_forward(self, module: torch.nn.Module, args: Any) -> bool:
        if self.mode.is_paused or (not self._is_watched() and not self._takes_over(module)):
            return False
        is_device = self.modules.depth > 0
        if not is_device and self.modules.is_device_root(
            module, args, self.mode.state == "recording"
        ):
            is_device = True
            self.begin(False)
            if not self._is_watched():
                return False
            if torch._C._current_graph_task_id() == -1:
                self._begin_forward(module)
            self.spans.enter("forward")
        self.modules.enter(module, is_device)
        self._write_residents()
        return True

    def _takes_over(self, module: torch.nn.Module) -> bool:
        """Whether a call outside the watched thread is watched from now on; one in a forked child leaves a mark."""
        if self._is_left and runs_a_model(module):
            self._is_left = False
            leave_mark(self.settings.trace_dir)
        return self.mode.state != "off" and runs_a_model(module) and self._adopt_thread()

    def _begin_forward(self, module: torch.nn.Module) -> None:
        if torch.is_grad_enabled() and self.phases.after_backward:
            self.phases.after_backward = False
            self._cut("backward")
        if any(True for _ in module.parameters()):
            self.loops.before_forward(module)
            self._cut("forward")

    def _after_forward(self, module: torch.nn.Module, has_returned: bool) -> None:
        was_device = self.modules.depth > 0
        self.modules.leave()
        if was_device and not self.modules.depth:
            self.spans.leave()
            self.steps.is_broken |= not has_returned
            if has_returned and torch._C._current_graph_task_id() == -1:
                self._cut("forward_end")

    def _backward(self, begins: bool) -> None:
        if self._is_watched() and self.mode.state == "recording" and not self.mode.is_paused:
            if begins:
                self.spans.enter("backward")
            else:
                self.spans.leave()

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._is_watched() and not self._adopt_thread():
            return
        self.begin(True)
        if self.mode.state == "off":
            return
        self.phases.enter_optimizer(id(optimizer))
        self.spans.enter("optimizer.step")
        self._learn_state(optimizer, is_resident=True)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._is_watched() or not self.phases.leave_optimizer(id(optimizer)):
            return
        self.spans.leave()
        self._learn_state(optimizer, is_resident=False)
        if not self.phases.optimizers:
            self.phases.after_backward = False
            self.steps.mark("optimizer")
            self.log.cut("optimizer")

    def _learn_state(self, optimizer: torch.optim.Optimizer, is_resident: bool) -> None:
        """Roles of the optimizer's state, when there is more of it than before."""
        states = list(optimizer.state.values())
        count = sum(len(state) for state in states)
        if count == self._state_counts.get(id(optimizer)):
            return
        self._state_counts[id(optimizer)] = count
        for state in states:
            for value in state.values():
                for part in parts(value) if isinstance(value, torch.Tensor) else ():
                    self.modules.mark(part, "optimizer_state", is_resident)
        self._write_residents()

    def _write_residents(self) -> None:
        found, self.modules.found = self.modules.found, []
        if not found or self.mode.state != "recording":
            return
        for storage, is_resident in found:
            ref = storage.current_ref()
            if is_resident and ref is not None:
                self.log.residents([ref])
            else:
                self.log.role(storage.number, storage.role)

    def _after_fork(self) -> None:
        """A forked child records nothing, unless nobody had begun: then it may be the program."""
        if self.mode.state == "recording":
            self.mode.state = "off"
            self._is_left = True
