"""Which tracks does an emulated core have in the trace, and what peaks belong to them?

Those of other ranks, and of the fabric, are in ``ranks.tracks``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnprof.emulator.lowering.plan import ENGINES, TENSOR
from trnprof.emulator.lowering.tasks import QUEUES
from trnprof.emulator.system import System
from trnprof.tracer.memory_names import HBM_BYTES, HBM_USES, SBUF_BYTES, hbm_counter

DEVICE_CLOCK = 0

HOST, CHIP, HBM, CORE, _FIRST_LANE = 0, 1, 2, 3, 4
TRACK_OF_SERVER = {name: _FIRST_LANE + i for i, name in enumerate((*ENGINES, *QUEUES))}
"""Track of each engine and queue of the core."""

HBM_COUNTER = _FIRST_LANE + len(TRACK_OF_SERVER)
"""Track of the HBM occupancy counter."""

SBUF_COUNTER = HBM_COUNTER + 1
"""Track of the counter of what stays in SBUF between kernels."""

FIRST_USE = SBUF_COUNTER + 1
"""Track of the counter of the first of HBM_USES; there are those that the program has."""

FIRST_STREAM = FIRST_USE + len(HBM_USES)
"""Track of the first stream of collectives."""


def track_rows(system: System, chip: int = 0, core: int = 0) -> list[dict[str, Any]]:
    """Rows of ``tracks``: host, chip, HBM, core, its engines, queues and counters.

    Args:
        system: the machine.
        chip: number of the chip.
        core: number of the core on it.
    """
    rows: list[dict[str, Any]] = [
        _row(HOST, None, "host", "host0", 0),
        _row(CHIP, HOST, "chip", f"chip {chip}", chip),
        _row(HBM, CHIP, "hbm", "HBM", 0, bandwidth=system.chip.hbm_bytes_per_s),
        _row(
            CORE,
            CHIP,
            "core",
            f"core {core}",
            1 + core,
            flops=system.core.tensor.peak_flops(),
            bandwidth=system.hbm_bytes_per_s_per_core,
        ),
    ]
    for order, name in enumerate(ENGINES):
        flops = system.core.tensor.peak_flops() if name == TENSOR else None
        rows.append(_row(TRACK_OF_SERVER[name], CORE, "engine", name, order, flops=flops))
    for order, name in enumerate(QUEUES, start=len(ENGINES)):
        rate = max(system.core.dma.read_bytes_per_s, system.core.dma.write_bytes_per_s)
        rows.append(
            _row(
                TRACK_OF_SERVER[name],
                CORE,
                "dma_queue",
                name,
                order,
                bandwidth=rate,
            )
        )
    rows.append(_row(HBM_COUNTER, CORE, "counter", HBM_BYTES, 99, unit="B"))
    rows.append(_row(SBUF_COUNTER, CORE, "counter", SBUF_BYTES, 98, unit="B"))
    return [row | _place(row["kind"], chip, core) for row in rows]


def use_rows(
    rows: dict[str, list[Any]], counter: int, places: Sequence[int]
) -> dict[str, list[Any]]:
    """Rows of ``tracks`` for some of HBM_USES, like that of the HBM occupancy.

    Args:
        rows: of ``tracks``.
        counter: track of the HBM occupancy.
        places: in HBM_USES.
    """
    like = rows["track_id"].index(counter)
    copied = {name: [values[like]] * len(places) for name, values in rows.items()}
    return copied | {
        "track_id": [counter + FIRST_USE - HBM_COUNTER + place for place in places],
        "name": [hbm_counter(HBM_USES[place]) for place in places],
        "sort_order": [rows["sort_order"][like] + 1 + place for place in places],
    }


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


def _place(kind: str, chip: int, core: int) -> dict[str, int | None]:
    """Of the emulated rank; a host is nowhere, a chip and its HBM belong to no core."""
    if kind == "host":
        return {"rank": None, "chip": None, "core": None}
    of_core = kind not in ("chip", "hbm")
    return {"rank": 0 if of_core else None, "chip": chip, "core": core if of_core else None}


def _row(
    track_id: int,
    parent_id: int | None,
    kind: str,
    name: str,
    sort_order: int,
    *,
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
        "replica_count": 1,
        "peak_flops": flops,
        "peak_bytes_per_s": bandwidth,
        "unit": unit,
    }
