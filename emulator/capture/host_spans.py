"""When, on the host's clock, did the program go through its steps and phases? Spans of the tracer's recorder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from trnprof.emulator.capture.worker_spans import give_way
from trnprof.tracer import recorder
from trnprof.tracer.errors import TrnprofError


class HostSpans:
    """Records spans into the trace; does nothing if the program records with trnprof itself."""

    def __init__(self, trace_dir: Path) -> None:
        self._trace_dir = trace_dir
        self._recorder: Any = None
        self._open: list[Any] = []
        self._step: Any = None

    def start(self) -> None:
        """Begin; failing, host spans are left out."""
        give_way()
        try:
            self._recorder = recorder.HostRecorder(self._trace_dir, writer="host").start()
        except TrnprofError:
            return
        self._enter_step("step 0")

    def enter(self, name: str) -> None:
        """A range begins; ranges nest."""
        if self._recorder is not None:
            self._open.append(recorder.Span(name))
            self._open[-1].__enter__()

    def leave(self) -> None:
        """The innermost range ends."""
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def end_step(self, number: int) -> None:
        """A step has ended, and the next begins: spans only, for rows of `steps` belong to the device's clock."""
        if self._recorder is None:
            return
        self._step.__exit__(None, None, None)
        self._enter_step(f"step {number + 1}")

    def stop(self) -> None:
        """End all ranges and seal; failing, the last spans are left out (the capture has said why)."""
        if self._recorder is None:
            return
        while self._open:
            self.leave()
        self._step.__exit__(None, None, None)
        recording, self._recorder = self._recorder, None
        with suppress(TrnprofError):
            recording.stop()

    def _enter_step(self, name: str) -> None:
        self._step = recorder.Span(name)
        self._step.__enter__()
