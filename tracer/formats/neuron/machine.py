"""On which NeuronCore was a profile taken, and what are its peaks? By the profile's own constants.

Peak of the tensor engine = rows x columns x 2 x clock; the peaks of other datatypes follow Neuron Explorer's documented
BF16-equivalents (float32 a quarter; FP8 once on NeuronCore-v2, twice from v3 on). Memory utilization is told of the bandwidth of the
HBM stack (``hbm_ddr_bandwidth``), as its published counters do; ``dma_ddr_bandwidth`` is what the core's DMA engines reach of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_BY_INSTANCE: Final = (
    ("inf1", "v1"),
    ("trn1", "v2"),
    ("inf2", "v2"),
    ("trn2", "v3"),
    ("trn3", "v4"),
)
_BY_BASE_CLOCK_GHZ: Final = {1.0: "v1", 1.4: "v2", 1.2: "v3"}
_CHIPS: Final = {
    "v1": "Inferentia",
    "v2": "Trainium1 or Inferentia2",
    "v3": "Trainium2",
    "v4": "Trainium3",
}
_MULTIPLIERS: Final = {
    "bfloat16": 1.0,
    "float16": 1.0,
    "tfloat32": 1.0,
    "float32": 4.0,
    "uint8": 0.5,
}
_FP8: Final = {"v2": 1.0, "v3": 0.5, "v4": 0.5}


@dataclass(frozen=True)
class Machine:
    """What a profile says of the core that it was taken on.

    Attributes:
        generation: ``v2``, ``v3``, …; empty if nobody knows.
        instance_type: such as ``trn2.48xlarge``; empty if unknown.
        device: index of its Neuron device; None if unknown.
        core: index of the logical core on the device; None if unknown.
        physical_cores: of the logical core: 2 with LNC 2.
        peak_flops: of the tensor engine, BF16, FLOP/s.
        hbm_bytes_per_s: bandwidth of the core's HBM stack.
        dma_bytes_per_s: what the core's DMA engines reach.
        base_clock_ghz: of the core.
        metadata: the profile's own row.
    """

    generation: str = ""
    instance_type: str = ""
    device: int | None = None
    core: int | None = None
    physical_cores: int = 1
    peak_flops: float | None = None
    hbm_bytes_per_s: float | None = None
    dma_bytes_per_s: float | None = None
    base_clock_ghz: float | None = None
    metadata: Mapping[str, Any] = ()  # type: ignore[assignment]

    def system(self) -> dict[str, Any] | None:
        """For the manifest; None if nothing is known."""
        if not self.generation and self.peak_flops is None:
            return None
        said = dict(self.metadata)
        core: dict[str, Any] = {
            "name": f"NeuronCore-{self.generation}" if self.generation else "NeuronCore",
            "base_clock_ghz": self.base_clock_ghz,
            "hbm_bytes_per_s": self.hbm_bytes_per_s,
            "tensor": {
                "rows": said.get("tensor_engine_num_rows"),
                "columns": said.get("tensor_engine_num_cols"),
                "clock_ghz": _positive(said.get("tensor_engine_clock_freq")),
            },
            "dma": {
                "bytes_per_s": self.dma_bytes_per_s,
                "engines": said.get("num_dma_engines_per_neuroncore"),
            },
        }
        for engine in ("vector", "scalar", "gpsimd"):
            core[engine] = {
                "clock_ghz": _positive(said.get(f"{engine}_engine_clock_freq")),
                "channels": said.get(f"{engine}_engine_num_channels"),
            }
        return {
            "name": self.instance_type or self.generation,
            "description": f"as the profile describes it: {self.instance_type or 'instance type unknown'}",
            "core": core,
            "chip": {"name": _CHIPS.get(self.generation)},
        }

    def peaks(self) -> dict[str, list[Any]]:
        """Rows of ``peaks``: dense peaks of the tensor engine by datatype; {} without a peak."""
        if self.peak_flops is None:
            return {}
        factors = dict(_MULTIPLIERS)
        if self.generation in _FP8:
            factors["float8"] = _FP8[self.generation]
        if self.generation == "v4":
            factors |= {"mxfp8": 0.25, "mxfp4": 0.25}
        return {
            "track_kind": ["engine"] * len(factors),
            "track_name": ["Tensor"] * len(factors),
            "dtype": list(factors),
            "sparsity": ["dense"] * len(factors),
            "flops_per_s": [self.peak_flops / factor for factor in factors.values()],
        }


def machine_of(metadata: Mapping[str, Any]) -> Machine:
    """The machine that a profile's metadata describes.

    Args:
        metadata: the row of the table ``Metadata`` (or what is known under its names); {} if there is none.
    """
    rows = _positive(metadata.get("tensor_engine_num_rows"))
    columns = _positive(metadata.get("tensor_engine_num_cols"))
    clock_ghz = _positive(metadata.get("tensor_engine_clock_freq"))
    base_ghz = _positive(metadata.get("neuroncore_clock_freq"))
    dma = _positive(metadata.get("dma_ddr_bandwidth"))
    peak = rows * columns * 2 * clock_ghz * 1e9 if rows and columns and clock_ghz else None
    instance = str(metadata.get("instance_type") or "")
    return Machine(
        generation_of(instance, base_ghz),
        instance,
        _index(metadata.get("neuron_device_idx")),
        _index(metadata.get("neuroncore_idx")),
        int(_positive(metadata.get("num_physical_cores")) or 1),
        peak,
        _positive(metadata.get("hbm_ddr_bandwidth")) or dma,
        dma,
        base_ghz,
        {k: v for k, v in metadata.items() if v is not None},
    )


def generation_of(instance_type: str, base_clock_ghz: float | None) -> str:
    """The generation of the core: by the instance's name, else by the base clock; empty if neither says it."""
    for start, generation in _BY_INSTANCE:
        if instance_type.lower().startswith(start):
            return generation
    for clock, generation in _BY_BASE_CLOCK_GHZ.items():
        if base_clock_ghz is not None and abs(base_clock_ghz - clock) < 0.01:
            return generation
    return ""


def _positive(value: Any) -> float | None:
    """The value as it reads in decimal: 2.4 stored in 32 bits is 2.4, not 2.4000000953674316."""
    try:
        number = float(f"{float(value):.7g}")
    except (TypeError, ValueError):
        return None
    return number if 0 < number < float("inf") else None


def _index(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and 0 <= value < 1 << 20 else None
