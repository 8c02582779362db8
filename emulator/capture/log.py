"""Where do the rows of a running capture go, and when are they safe? Written by time, count and step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trnprof.emulator.capture.launch_settings import CLAIM_NAME, leave_mark, write_state
from trnprof.emulator.capture.replay import group_row
from trnprof.emulator.capture.store import Row, WorkloadStream
from trnprof.emulator.workload import ProcessGroup
from trnprof.tracer.errors import TrnprofError, WriteError
from trnprof.tracer.files import writing

if TYPE_CHECKING:
    from trnprof.emulator.capture.torch_tensors import Ref

_FLUSH_ROWS: Final = 1000
_FLUSH_SECONDS: Final = 0.5


class CaptureLog:
    """Buffers rows and writes them; after an error it says so once on stderr and takes nothing more."""

    def __init__(self, trace_dir: Path) -> None:
        self._trace_dir = trace_dir
        self._stream: WorkloadStream | None = None
        self._rows: list[Row] = []
        self._notes: dict[str, None] = {}
        self._world: list[Row] = []
        self._flushed_seconds = 0.0
        self.failed = False

    def claim(self) -> bool:
        """Whether the capture is this process's; the first that asks has it, the others leave a mark."""
        path = self._trace_dir / CLAIM_NAME
        try:
            with writing(path), path.open("x") as file:
                file.write(str(os.getpid()))
        except WriteError as failure:
            if isinstance(failure.__cause__, FileExistsError):
                leave_mark(self._trace_dir)
            else:
                self.fail(failure)
            return False
        return True

    def open(self) -> None:
        """The capture is this process's: from now on rows are written."""
        self._stream = WorkloadStream(self._trace_dir)
        self._flushed_seconds = time.monotonic()
        self._rows.extend(Row("note", arguments=text) for text in self._notes)
        self._rows.extend(self._world)

    def add(self, row: Row) -> None:
        """One row."""
        self._rows.append(row)
        if (
            len(self._rows) >= _FLUSH_ROWS
            or time.monotonic() - self._flushed_seconds > _FLUSH_SECONDS
        ):
            self.flush()

    def note(self, text: str) -> None:
        """A remark for people, kept once."""
        if text not in self._notes:
            self._notes[text] = None
            if self._stream is not None:
                self._rows.append(Row("note", arguments=text))

    def world(self, size: int, rank: int) -> None:
        """The ranks of the program, and which of them this is; said once."""
        if not self._world or self._world[0].kind != "world":
            self._keep(Row("world", step=size, source_line=rank), 0)

    def label(self, text: str) -> None:
        """What this rank is among ranks that differ; the last word counts."""
        self._keep(Row("world", text), len(self._world))

    def group(self, index: int, group: ProcessGroup) -> None:
        """Ranks that communicate."""
        self._keep(group_row(index, group), len(self._world))

    def _keep(self, row: Row, position: int) -> None:
        self._world.insert(position, row)
        if self._stream is not None:
            self._rows.append(row)

    def step(self, number: int, label: str, source: str) -> None:
        """A step has ended: what it did is written now."""
        self._rows.append(Row("step", label, source, number))
        self.flush()

    def cut(self, phase: str, label: str = "") -> None:
        """A place where steps may be cut, if nothing better marks them: what ran is written now."""
        self._rows.append(Row("cut", label, phase))
        self.flush()

    def window(self, first: int, last: int) -> None:
        """Only these steps are wanted."""
        self._rows.append(Row("window", step=first, source_line=last))

    def role(self, number: int, role: str) -> None:
        """A tensor turned out to have this role."""
        self._rows.append(Row("role", tensor=[number], role=[role]))

    def residents(self, refs: Iterable[Ref], name: str = "") -> None:
        """Tensors that were there before; named ``window``: all that is there when the window opens."""
        for tensor, shape, dtype, nbytes, storage_nbytes, role, contiguous in refs:
            self._rows.append(
                Row(
                    "resident",
                    name,
                    inputs=1,
                    tensor=[tensor],
                    rank=[len(shape)],
                    shape=shape,
                    dtype=[dtype],
                    nbytes=[nbytes],
                    storage_nbytes=[storage_nbytes],
                    role=[role],
                    contiguous=[contiguous],
                )
            )

    def flush(self) -> None:
        """Hand all rows to the operating system."""
        if self._stream is None or self.failed:
            self._rows.clear()
            return
        rows, self._rows = self._rows, []
        self._flushed_seconds = time.monotonic()
        try:
            self._stream.write(rows)
        except TrnprofError as failure:
            self.fail(failure)

    def fail(self, failure: Exception) -> None:
        """Say once that the capture ends here; the program goes on."""
        if not self.failed:
            self.flush()
            self.failed = True
            kind = "" if isinstance(failure, TrnprofError) else f"{type(failure).__name__}: "
            reason = " ".join(f"{kind}{failure}".split())
            write_state(self._trace_dir, reason)
            with suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or None
                sys.stderr.write(f"trnprof: the capture ended early: {reason}\n")

    def close(self, is_interrupted: bool = False) -> None:
        """The program has ended, by an exception if it was interrupted, and all of it was captured."""
        if self._stream is not None and not self.failed:
            self._rows.append(Row("end", "interrupted" if is_interrupted else ""))
            self.flush()
            try:
                self._stream.close()
            except TrnprofError as failure:
                self.fail(failure)
