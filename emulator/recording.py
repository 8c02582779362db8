"""``trnprof.record``: how does a program record itself? Host spans alone, or with a system its device work too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from trnprof.tracer.errors import CaptureError, MissingExtraError
from trnprof.tracer.manifest import create_trace_directory, write_manifest
from trnprof.tracer.recorder import HostRecorder


class record:
    """Record the block into a trace.

    Without a system the trace holds the program's spans, steps, counters and instants on the host's clock. With one, the
    PyTorch operations of the block are captured as ``trnprof record`` would, and emulated when the block ends.

    >>> import tempfile, trnprof
    >>> path = tempfile.mkdtemp() + "/run.trnprof"
    >>> with trnprof.record(path):
    ...     with trnprof.span("load"):
    ...         pass
    >>> trnprof.open(path).events.collect()["name"].to_list()
    ['load']

    Args:
        path: trace directory to write.
        system: a system to emulate, by name or as a .toml file; None records the host only.
        execution: ``fused`` or ``eager``, with a system.
        force: replace a trace that is there already.
        reproducible: leave out host times, dates, paths and the command.

    Raises:
        OutputExistsError: the path exists and ``force`` was not given.
        MissingExtraError: a system was given, but PyTorch is not installed.
        SystemDescriptionError: the system is unknown or malformed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        system: str | None = None,
        *,
        execution: str = "fused",
        force: bool = False,
        reproducible: bool = False,
    ) -> None:
        from trnprof.emulator.system import load_system

        self._path = Path(path)
        self._system = load_system(system) if system is not None else None
        self._execution = execution
        self._force = force
        self._reproducible = reproducible
        self._host: HostRecorder | None = None
        self._finish_capture: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        directory = create_trace_directory(self._path, force=self._force)
        if not (self._system is not None and self._reproducible):
            self._host = HostRecorder(
                directory, command=sys.argv, reproducible=self._reproducible
            ).start()
        if self._system is not None:
            self._finish_capture = _start_capture(directory)
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self._finish_capture()
        if self._host is not None:
            self._host.stop()
        if self._system is None:
            write_manifest(
                self._path, is_simulation=False, command=sys.argv, reproducible=self._reproducible
            )
        elif kind is None:
            self._emulate()

    def _emulate(self) -> None:
        from trnprof.emulator.capture.store import load_workload, seal_workload
        from trnprof.emulator.emulate import emulate

        assert self._system is not None
        if not seal_workload(self._path):
            raise CaptureError(
                f"{self._path}: the block ran no PyTorch operation of a model: there is nothing to emulate"
            )
        outcome = emulate(
            load_workload(self._path),
            self._system,
            self._path,
            execution=self._execution,
            reproducible=self._reproducible,
        )
        write_manifest(
            self._path,
            is_simulation=True,
            command=sys.argv,
            system=self._system.describe(),
            emulation=outcome.details,
            reproducible=self._reproducible,
        )


def _start_capture(directory: Path) -> Callable[[], None]:
    """Begin to capture this process; returns what ends it."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("torch", "torch") from None
    from trnprof.emulator.capture.launch_settings import Settings
    from trnprof.emulator.capture.torch import start_capture

    capture = start_capture(Settings(directory.resolve(), host_spans=False))

    def finish() -> None:
        capture.finish()
        capture.mode.__exit__(None, None, None)

    return finish
