"""What happens in the captured process? Capture starts when torch has been imported and ends with the interpreter."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnprof.emulator.capture.settings import Settings
from trnprof.emulator.capture.torch_context import Context
from trnprof.emulator.capture.torch_fake import Placeholders, enter_fake_mode
from trnprof.emulator.capture.torch_mode import CaptureMode, Sink
from trnprof.emulator.capture.torch_storages import Storages
from trnprof.emulator.capture.workload_file import WorkloadStream
from trnprof.emulator.workload import Operation, TensorRef, WorkloadStep
from trnprof.tracer import recorder

CLAIM = "capture.claim"
"""Created exclusively by the process whose operations are recorded."""

FLUSH_ROWS = 1000


class _Recording(Sink):
    """Writes what the mode notes; the first process with a device operation owns the file."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stream: WorkloadStream | None = None
        self._pid = os.getpid()
        self.refused = False
        self._notes: list[str] = []
        self._wanted = True

    def operation(self, op: Operation) -> None:
        if self._wanted and (stream := self._open()) is not None:
            stream.operation(op)
            if stream.pending >= FLUSH_ROWS:
                stream.flush()

    def resident(self, ref: TensorRef) -> None:
        if (stream := self._open()) is not None:
            stream.resident(ref)

    def step(self, step: WorkloadStep) -> None:
        first, last = self._settings.steps or (0, sys.maxsize)
        self._wanted = first <= step.step <= last
        if (stream := self._open()) is not None:
            stream.step(step)
            stream.flush()

    def note(self, text: str) -> None:
        """A remark for people, kept until there is a file."""
        self._notes.append(text)

    def finish(self) -> None:
        """Write the notes and the end mark; in a forked child do nothing."""
        if self._stream is None or os.getpid() != self._pid:
            return
        for text in self._notes:
            self._stream.note(text)
        self._stream.end()
        self._stream.close()
        self._stream = None

    def _open(self) -> WorkloadStream | None:
        if self._stream is None and not self.refused:
            try:
                handle = os.open(self._settings.directory / CLAIM, os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                self.refused = True
                return None
            os.close(handle)
            self._stream = WorkloadStream(self._settings.directory)
        return self._stream


@dataclass
class _HostSpans:
    """Wall-clock spans of forward and optimizer on the host's own clock."""

    directory: Path
    recorder: Any = None
    open_spans: dict[str, Any] | None = None

    def mark(self, name: str, begin: bool) -> None:
        """A span begins or ends."""
        if self.open_spans is None:
            self._start()
        spans = self.open_spans if self.open_spans is not None else {}
        if begin:
            spans[name] = recorder.span(name)
            spans[name].__enter__()
        elif name in spans:
            spans.pop(name).__exit__(None, None, None)

    def _start(self) -> None:
        self.open_spans = {}
        if not recorder.is_recording():
            self.recorder = recorder.HostRecorder(self.directory, writer="host")
            self.recorder.start()

    def stop(self) -> None:
        """Seal the host's part of the trace."""
        if self.recorder is not None:
            self.recorder.stop()


def start_capture(settings: Settings) -> None:
    """Begin to capture this process; called once torch has been imported."""
    import torch

    recording = _Recording(settings)
    storages = Storages()
    context = Context(storages)
    spans = _HostSpans(settings.directory)
    placeholders = None
    fake_mode = None
    if settings.fake:
        placeholders = Placeholders(recording.note)
        fake_mode = enter_fake_mode(placeholders)
    mode = CaptureMode(storages, context, placeholders, recording)
    if settings.host_spans:
        context.on_span = spans.mark
    recorder.on_step(context.end_marked_step)
    context.install()
    # compiled graphs would hide their operations: run them eagerly, as the compiler's own semantics are
    torch.compiler.set_stance("force_eager")
    mode.__enter__()

    def finish() -> None:
        if mode.recording:
            mode.recording = False
            if mode.host_operations:
                recording.note(f"{mode.host_operations} host operations (data loading, set-up) are not timed")
            recording.finish()
            spans.stop()

    def leave_in_child() -> None:
        # a forked child (a DataLoader worker) computes for the host: it records nothing and makes real tensors
        mode.recording = False
        mode.__exit__(None, None, None)
        if fake_mode is not None:
            fake_mode.__exit__(None, None, None)

    atexit.register(finish)
    os.register_at_fork(after_in_child=leave_in_child)
