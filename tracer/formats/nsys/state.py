"""What do the parts of the Nsight Systems importer share while one profile is read?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from trnprof.tracer.formats.gpu_peaks import Gpu
from trnprof.tracer.formats.nsys.names import People, Strings, process_of
from trnprof.tracer.formats.tables import Tables
from trnprof.tracer.ingest.stage import Stage, Timeline

_STREAMS: Final = range(0xFFFFFFFF)
"""Numbers of streams; what is beyond stands for all streams of a context."""


@dataclass
class State:
    """One profile being read.

    Attributes:
        tables: what is read.
        stage: what is filled.
        strings, people: names.
        gpu_of: (process id, CUDA ordinal) → number of the GPU on its host; what is not in it is its own number.
        gpus: number of the GPU → what is printed of its model.
        gpu_bytes_per_s: number of the GPU → memory bandwidth as the driver states it.
        unit_rows: (process, GPU) → device events, which ranks are told by.
        owners: timeline → the process whose rank it has.
    """

    tables: Tables
    stage: Stage
    strings: Strings
    people: People
    gpu_of: dict[tuple[int, int], int] = field(default_factory=dict)
    gpus: dict[int, Gpu] = field(default_factory=dict)
    gpu_bytes_per_s: dict[int, float] = field(default_factory=dict)
    unit_rows: dict[tuple[int, int], int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)

    def ranks(self) -> dict[int, int]:
        """Process → rank, of those whose timelines have one."""
        found = {owner: self.stage.timelines[n].rank for n, owner in self.owners.items()}
        return {process: rank for process, rank in found.items() if rank is not None}

    def where(self, table: str) -> str:
        """A table, for findings."""
        return f"{self.tables.label}: {table}"

    def thread(self, global_tid: int) -> int:
        """The timeline of a thread, where its CUDA calls lie."""
        process = int(process_of(np.array([global_tid]))[0])
        name = self.people.thread(global_tid)
        number = self.stage.timeline(
            ("thread", global_tid), Timeline("thread", name, sort_order=1000)
        )
        self.owners[number] = process
        return number

    def beside_thread(self, global_tid: int, what: str, sort_order: int = 0) -> int:
        """A timeline under a thread, for one kind of range."""
        number = self.stage.timeline(
            ("thread", global_tid, what),
            Timeline("thread", what, parent=self.thread(global_tid), sort_order=sort_order),
        )
        self.owners[number] = int(process_of(np.array([global_tid]))[0])
        return number

    def gpu(self, process: int, device: int) -> int:
        """Number of a GPU on its host, from its CUDA ordinal in a process."""
        return self.gpu_of.get((process & 0xFFFFFF, device), device)

    def chip(self, number: int) -> int:
        """The timeline of a GPU; its bandwidth is the driver's, else what is printed."""
        gpu = self.gpus.get(number, Gpu())
        return self.stage.timeline(
            ("chip", number),
            Timeline(
                "chip",
                f"GPU {number}",
                chip=number,
                sort_order=number,
                peak_flops=gpu.matmul_flops_per_s,
                peak_bytes_per_s=self.gpu_bytes_per_s.get(number, gpu.bytes_per_s),
            ),
        )

    def under_chip(
        self, process: int, device: int, context: int, stream: int, kind: str, suffix: str = ""
    ) -> int:
        """The timeline of a stream (kind ``stream``), or of what stands beside it (kind ``thread`` or ``module``)."""
        gpu = self.gpu(process, device)
        number = self.stage.timeline(
            (kind, suffix, process, device, context, stream),
            Timeline(
                kind,
                f"stream {stream}{suffix}" if stream in _STREAMS else f"context{suffix}",
                parent=self.chip(gpu),
                sort_order=stream,
                exclusive=kind == "stream",
                chip=gpu,
            ),
        )
        self.owners[number] = process
        return number

    def name_streams(self, contexts: dict[int, tuple[int, int, int]]) -> None:
        """Tell streams of one GPU apart by process and context where their numbers alone do not.

        Args:
            contexts: timeline of a stream → its GPU, process and context.
        """
        by_gpu: dict[int, set[tuple[int, int]]] = {}
        for gpu, process, context in contexts.values():
            by_gpu.setdefault(gpu, set()).add((process, context))
        for number, (gpu, process, context) in contexts.items():
            if len(by_gpu[gpu]) > 1:
                timeline = self.stage.timelines[number]
                name = f"{timeline.name} ({self.people.process(process)}, context {context})"
                self.stage.timelines[number] = replace(timeline, name=name)
