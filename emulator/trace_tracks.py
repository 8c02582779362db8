"""Which tracks does an emulated core have in the trace, and what peaks belong to them?"""

from __future__ import annotations

from typing import Any

from trnprof.emulator.lowering.plan import ENGINES, TENSOR
from trnprof.emulator.lowering.tasks import QUEUES
from trnprof.emulator.system import System

DEVICE_CLOCK = 0

_HOST, _CHIP, _HBM, _CORE, _FIRST_LANE = 0, 1, 2, 3, 4
TRACK_OF_SERVER = {name: _FIRST_LANE + i for i, name in enumerate((*ENGINES, *QUEUES))}
"""Track of each engine and queue of the core."""

HBM_COUNTER = _FIRST_LANE + len(TRACK_OF_SERVER)
"""Track of the HBM occupancy counter."""


def track_rows(system: System) -> dict[str, list[Any]]:
    """Rows of ``tracks``: host, chip, HBM, core, its engines, queues and counters."""
    rows: list[dict[str, Any]] = [
        _row(_HOST, None, "host", "host0", 0),
        _row(_CHIP, _HOST, "chip", "chip 0", 0, chip=0),
        _row(_HBM, _CHIP, "hbm", "HBM", 0, chip=0, bandwidth=system.chip.hbm_bytes_per_s),
        _row(
            _CORE,
            _CHIP,
            "core",
            "core 0",
            1,
            chip=0,
            core=0,
            flops=system.core.tensor.peak_flops(),
            bandwidth=system.hbm_bytes_per_s_per_core,
        ),
    ]
    for order, name in enumerate(ENGINES):
        flops = system.core.tensor.peak_flops() if name == TENSOR else None
        rows.append(
            _row(TRACK_OF_SERVER[name], _CORE, "engine", name, order, chip=0, core=0, flops=flops)
        )
    for order, name in enumerate(QUEUES, start=len(ENGINES)):
        rate = max(system.core.dma.read_bytes_per_s, system.core.dma.write_bytes_per_s)
        rows.append(
            _row(
                TRACK_OF_SERVER[name],
                _CORE,
                "dma_queue",
                name,
                order,
                chip=0,
                core=0,
                bandwidth=rate,
            )
        )
    rows.append(_row(HBM_COUNTER, _CORE, "counter", "HBM bytes", 99, chip=0, core=0, unit="B"))
    return {key: [row[key] for row in rows] for key in rows[0]}


def peak_rows(system: System) -> dict[str, list[Any]]:
    """Rows of ``peaks``: dense peak of the tensor engine by datatype."""
    dtypes = list(system.core.tensor.cycles_per_column)
    return {
        "track_kind": ["engine"] * len(dtypes),
        "track_name": [TENSOR] * len(dtypes),
        "dtype": dtypes,
        "sparsity": ["dense"] * len(dtypes),
        "flops_per_s": [system.core.tensor.peak_flops(d) for d in dtypes],
    }


def _row(
    track_id: int,
    parent_id: int | None,
    kind: str,
    name: str,
    sort_order: int,
    *,
    chip: int | None = None,
    core: int | None = None,
    flops: float | None = None,
    bandwidth: float | None = None,
    unit: str | None = None,
) -> dict[str, Any]:
    return {
        "track_id": track_id,
        "parent_id": parent_id,
        "kind": kind,
        "name": name,
        "sort_order": sort_order,
        "lane": 0,
        "exclusive": kind in ("engine", "dma_queue"),
        "clock_id": DEVICE_CLOCK,
        "host": "host0",
        "rank": 0 if core is not None else None,
        "chip": chip,
        "core": core,
        "replica_count": 1,
        "peak_flops": flops,
        "peak_bytes_per_s": bandwidth,
        "unit": unit,
    }
