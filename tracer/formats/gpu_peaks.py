"""What can a GPU of this name do at most: FLOP/s by datatype, memory bandwidth, memory?

The figures, with where each was printed, are in ``gpu_peaks.toml``. A GPU that is not there has no peak: nothing is guessed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

_SUFFIX: Final = "_tflops"
_UNKNOWN: Final = "no figures of a GPU of this name are known"


@dataclass(frozen=True)
class Gpu:
    """What is printed of a GPU.

    Attributes:
        name: what it was taken for; empty if it is unknown.
        flops_per_s: dense peak by datatype (``bfloat16``, ``float16``, ``tfloat32``, ``float32``, ``float64``, ``float8``, ``int8``, …).
        bytes_per_s: bandwidth of its memory; None if unknown.
        memory_bytes: its memory, as it is printed; None if unknown.
        source: where the figures were printed.
        absent: what is not known → why.
    """

    name: str = ""
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    memory_bytes: int | None = None
    source: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def matmul_flops_per_s(self) -> float | None:
        """Dense BF16 peak, FP16 where a GPU has no BF16; None if unknown."""
        return self.flops_per_s.get("bfloat16", self.flops_per_s.get("float16"))


def find_gpu(name: str, *, memory_bytes: int | None = None, units: int | None = None) -> Gpu:
    """What is known of a GPU.

    Args:
        name: as its driver gives it.
        memory_bytes: that it has, if known: some names do not say which of several GPUs it is.
        units: multiprocessors or compute units that it has, if known: fewer than the whole GPU's make it a partition, of
            which no peak is given.

    >>> gpu = find_gpu("NVIDIA H100 80GB HBM3")
    >>> gpu.matmul_flops_per_s, gpu.bytes_per_s
    (989500000000000.0, 3350000000000.0)
    >>> find_gpu("Voodoo 2").absent
    {'flops': 'no figures of a GPU of this name are known'}
    """
    for entry in _entries():
        if not any(re.search(pattern, name.strip()) for pattern in entry["match"]):
            continue
        low, high = entry.get("memory_gb", (0, float("inf")))
        if memory_bytes and not low * 1e9 <= memory_bytes <= high * 1e9:
            continue
        whole = entry.get("units")
        if units and whole and units < whole:
            why = f"{units} of {whole} units: a partition, of which no peak is printed"
            return Gpu(str(entry["name"]), source=entry.get("source", ""), absent={"flops": why})
        return _gpu(entry)
    return Gpu(absent={"flops": _UNKNOWN})


def peak_rows(gpus: Mapping[str, Gpu]) -> dict[str, list[Any]]:
    """Rows of the table ``peaks``, for chips.

    Args:
        gpus: by the name of their track; if all are the same, the rows hold for every chip.
    """
    rows: dict[str, list[Any]] = {
        key: [] for key in ("track_kind", "track_name", "dtype", "sparsity", "flops_per_s")
    }
    distinct = {gpu.name for gpu in gpus.values()}
    named = gpus if len(distinct) > 1 else dict.fromkeys([""], next(iter(gpus.values()), Gpu()))
    for track, gpu in named.items():
        for dtype, flops in gpu.flops_per_s.items():
            row = ("chip", track, dtype, "dense", flops)
            for key, value in zip(rows, row, strict=True):
                rows[key].append(value)
    return rows if rows["dtype"] else {}


@cache
def _entries() -> list[dict[str, Any]]:
    text = files("trnprof.tracer.formats").joinpath("gpu_peaks.toml").read_text("utf-8")
    entries: list[dict[str, Any]] = tomllib.loads(text)["gpu"]
    return entries


def _gpu(entry: Mapping[str, Any]) -> Gpu:
    flops = {
        key.removesuffix(_SUFFIX): value * 1e12
        for key, value in entry.items()
        if key.endswith(_SUFFIX)
    }
    bandwidth, memory = entry.get("hbm_gb_per_s"), entry.get("hbm_gb")
    return Gpu(
        str(entry["name"]),
        flops,
        None if bandwidth is None else bandwidth * 1e9,
        None if memory is None else int(memory * 1e9),
        entry.get("source", ""),
        entry.get("absent", {}),
    )
