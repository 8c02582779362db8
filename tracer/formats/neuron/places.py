"""Which timelines does one profile of a NeuronCore have, and under which names do engines stand?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.neuron.machine import Machine
from trnprof.tracer.ingest.stage import Stage, Timeline

TENSOR: Final = "Tensor"
ENGINES: Final = {
    "tensor": TENSOR,
    "tensormatrix": TENSOR,
    "pe": TENSOR,
    "vector": "Vector",
    "dve": "Vector",
    "scalar": "Scalar",
    "act": "Scalar",
    "activation": "Scalar",
    "gpsimd": "GpSimd",
    "pool": "GpSimd",
    "sync": "Sync",
    "sp": "Sync",
}
"""Names that the tools use, in lower case, and the engine they mean. The array of the tensor engine has a lane of its own in the tools
(TensorMatrix); here it is a second track of Tensor, so that its work is the tensor engine's in every figure."""
MATRIX: Final = "tensormatrix"
_ORDER: Final = (TENSOR, "Vector", "Scalar", "GpSimd", "Sync")
_FIRST_OTHER, _FIRST_QUEUE, _FIRST_STREAM, _FIRST_BESIDE, _FIRST_COUNTER = (
    10,
    100,
    2_000,
    3_000,
    5_000,
)
MOST_INDICES: Final = 1 << 16
"""Cores, devices and workers are numbered below it; other numbers are taken for damage."""
MOST_TIMELINES: Final = 20_000
"""Beyond it, rows of new names share one timeline a core."""
_NUMBER: Final = re.compile(r"\d+")


@dataclass
class Places:
    """The timelines of one profile, made as they are met.

    Attributes:
        stage: where they are.
        machine: the core that the profile is of.
    """

    stage: Stage
    machine: Machine
    _core: dict[int, int] = field(default_factory=dict)

    def core(self, pcore: int) -> int:
        """The timeline of a core; ``pcore`` is the row's physical core, 0 where it has none."""
        if pcore not in self._core:
            device = self.machine.device or 0
            chip = self.stage.timeline(
                ("chip", device), Timeline("chip", f"Neuron device {device}", chip=device)
            )
            number = self.core_number(pcore)
            self._core[pcore] = self.stage.timeline(
                ("core", device, number),
                Timeline(
                    "core",
                    f"core {number}",
                    chip,
                    number,
                    chip=device,
                    core=number,
                    peak_flops=self.machine.peak_flops,
                    peak_bytes_per_s=self.machine.hbm_bytes_per_s,
                ),
            )
        return self._core[pcore]

    def core_number(self, pcore: int) -> int:
        """Physical core on the device: rows count within their logical core, or (some tools) on the device."""
        own, count = self.machine.core or 0, self.machine.physical_cores
        return own * count + pcore if pcore < count else pcore

    def engine(self, pcore: int, name: str) -> int:
        """The timeline of an engine, by any of its names."""
        engine = engine_name(name)
        is_matrix = name.strip().lower() == MATRIX
        order = _ORDER.index(engine) * 2 if engine in _ORDER else _FIRST_OTHER
        return self._under_core(
            pcore,
            ("engine", engine, is_matrix),
            "engine",
            engine,
            order + is_matrix,
            peak_flops=self.machine.peak_flops if engine == TENSOR else None,
        )

    def waits(self, pcore: int, name: str) -> int:
        """The timeline beside an engine on which it only waits: that is not busy time."""
        engine = engine_name(name)
        return self._under_core(
            pcore, ("waits", engine), "thread", f"{engine} waits", _FIRST_BESIDE
        )

    def queue(self, pcore: int, name: str) -> int:
        """The timeline of a DMA queue; queues stand in the order of the numbers in their names."""
        return self._under_core(
            pcore,
            ("queue", name),
            "dma_queue",
            name,
            _FIRST_QUEUE + number_in(name) % 1_000,
            peak_bytes_per_s=self.machine.dma_bytes_per_s,
        )

    def stream(self, pcore: int, name: str) -> int:
        """The timeline of a stream of collectives."""
        return self._under_core(
            pcore,
            ("stream", name),
            "collective_stream",
            name,
            _FIRST_STREAM + number_in(name) % 1_000,
        )

    def beside(self, pcore: int, name: str, kind: str = "module", order: int = 0) -> int:
        """A timeline of a core that is drawn but is no busy time."""
        return self._under_core(pcore, ("beside", name), kind, name, _FIRST_BESIDE + order)

    def counter(self, pcore: int, name: str, unit: str, order: int = 0) -> int:
        """The timeline of a counter of a core."""
        return self._under_core(
            pcore, ("counter", name), "counter", name, _FIRST_COUNTER + order, unit=unit
        )

    def by_row(
        self, frame: pl.DataFrame, make: str | Callable[[int, str], int], names: pl.Series
    ) -> NDArray[np.int32]:
        """The timeline of each row, of its ``pcore_idx`` and a name.

        Args:
            frame: rows; ``pcore_idx`` may be null or absent.
            make: gives the timeline of a core and name; or the name of such a method of this class.
            names: one a row.
        """
        keys = pl.DataFrame(
            {"core": pcores(frame), "name": names.cast(pl.String).fill_null("unknown")}
        )
        unique = keys.unique(maintain_order=True)
        maker = getattr(self, make) if isinstance(make, str) else make
        numbers = pl.Series(
            [maker(core, name) for core, name in unique.iter_rows()], dtype=pl.Int32
        )
        placed = keys.join(
            unique.with_columns(timeline=pl.Series(numbers, dtype=pl.Int32)),
            on=["core", "name"],
            how="left",
            maintain_order="left",
        )
        found: NDArray[np.int32] = placed["timeline"].to_numpy()
        return found

    def _with_room(self, name: str) -> str:
        """The name, or that of all others when there are too many timelines."""
        if len(self.stage.timelines) < MOST_TIMELINES:
            return name
        self.stage.audit.add(
            "too_many_timelines",
            "warning",
            self.stage.label,
            f"more than {MOST_TIMELINES:,} engines, queues, streams and counters; further ones share the timeline 'others'",
            unreliable="figures by queue and counter",
        )
        return "others"

    def _under_core(
        self,
        pcore: int,
        key: tuple[object, ...],
        kind: str,
        name: str,
        order: int,
        *,
        peak_flops: float | None = None,
        peak_bytes_per_s: float | None = None,
        unit: str | None = None,
    ) -> int:
        core = self.core(pcore)
        own = self.stage.timelines[core]
        return self.stage.timeline(
            ("core", core, *key),
            Timeline(
                kind,
                name,
                core,
                order,
                chip=own.chip,
                core=own.core,
                peak_flops=peak_flops,
                peak_bytes_per_s=peak_bytes_per_s,
                unit=unit,
            ),
        )


def engine_name(name: str) -> str:
    """The emulator's name of an engine; unknown ones stay as they are."""
    return ENGINES.get(name.strip().lower(), name.strip() or "unknown engine")


def pcores(frame: pl.DataFrame) -> pl.Series:
    """The physical core of each row, 0 where it says none that can be."""
    if "pcore_idx" not in frame.columns:
        return pl.Series("core", [0], pl.Int64).new_from_index(0, frame.height)
    return frame.select(index(pl.col("pcore_idx")).fill_null(0).alias("core")).to_series()


def index(column: pl.Expr) -> pl.Expr:
    """An index of a core, device or worker; null where the number cannot be one."""
    number = column.cast(pl.Int64, strict=False)
    return pl.when((number >= 0) & (number < MOST_INDICES)).then(number)


def number_in(name: str) -> int:
    """The last number in a name, to put names in order; 0 if it has none."""
    found = _NUMBER.findall(name)
    return int(found[-1][:6]) if found else 0
