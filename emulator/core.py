"""What is a NeuronCore? Its engines, memories and DMA engines: frozen dataclasses, read from a system description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trnprof.emulator.figures import Description


@dataclass(frozen=True)
class TensorEngine:
    """The systolic array: [K <= rows, M <= columns] stationary, [K, N <= moving_columns] moving."""

    clock_ghz: float
    rows: int
    columns: int
    moving_columns: int
    minimum_interval_cycles: int
    latency_ns: float
    ramp_ns: float
    ramp_start: float
    cycles_per_column: Mapping[str, float]
    sparse_cycles_per_column: Mapping[str, float]

    def peak_flops(self, dtype: str = "bfloat16") -> float:
        """FLOP/s of dense matmuls: rows x columns x 2 x clock / cycles a column (NKI guides, engine table)."""
        return self._flops(self.cycles_per_column[dtype])

    def sparse_peak_flops(self, dtype: str) -> float:
        """FLOP/s of matmuls whose weights are sparse as the hardware wants it, zeros counted, as vendors do."""
        return self._flops(self.sparse_cycles_per_column[dtype])

    def _flops(self, cycles: float) -> float:
        return self.rows * self.columns * 2 * self.clock_ghz * 1e9 / cycles


@dataclass(frozen=True)
class VectorEngine:
    """128 lanes; cycles are per element and partition, by operand width and place."""

    clock_ghz: float
    minimum_interval_cycles: int
    latency_ns: float
    copy_cycles_32bit: float
    copy_cycles_16bit: float
    copy_cycles_psum_16bit: float
    tensor_tensor_cycles_32bit: float
    tensor_tensor_cycles_16bit: float
    reduce_cycles_32bit: float
    reduce_cycles_16bit: float


@dataclass(frozen=True)
class ScalarEngine:
    """The activation engine: one element a cycle and partition, functions from tables."""

    clock_ghz: float
    minimum_interval_cycles: int
    latency_ns: float
    cycles: float
    table_load_ns: float


@dataclass(frozen=True)
class GpSimdEngine:
    """The general-purpose engine."""

    clock_ghz: float
    fixed_cycles: int
    cycles: float
    latency_ns: float


@dataclass(frozen=True)
class DmaEngines:
    """The DMA engines of one core and the way they are set going."""

    engines: int
    queues: int
    read_bytes_per_s_per_engine: float
    write_bytes_per_s_per_engine: float
    piece_ns: float
    issue_ns: float
    queue_slot_ns: float
    start_read_ns: float
    start_write_ns: float
    start_software_ns: float
    engine_stagger_ns: float
    done_read_ns: float
    done_write_ns: float
    done_software_ns: float
    transpose_fraction: float
    maximum_packet_bytes: int

    @property
    def read_bytes_per_s(self) -> float:
        """All engines together, HBM to SBUF."""
        return self.engines * self.read_bytes_per_s_per_engine

    @property
    def write_bytes_per_s(self) -> float:
        """All engines together, SBUF to HBM."""
        return self.engines * self.write_bytes_per_s_per_engine


@dataclass(frozen=True)
class Core:
    """One NeuronCore."""

    name: str
    base_clock_ghz: float
    sbuf_partitions: int
    sbuf_bytes_per_partition: int
    sbuf_usable_bytes_per_partition: int
    psum_bytes_per_partition: int
    psum_banks: int
    semaphore_ns: float
    tensor: TensorEngine
    vector: VectorEngine
    scalar: ScalarEngine
    gpsimd: GpSimdEngine
    dma: DmaEngines

    @property
    def sbuf_bytes(self) -> int:
        """Capacity of its SBUF."""
        return self.sbuf_partitions * self.sbuf_bytes_per_partition


def read_core(description: Description) -> Core:
    """The table ``[core]`` and those below it.

    Raises:
        SystemDescriptionError: a key is missing, unknown or of the wrong type.
    """
    cycles = description.numbers("core.tensor.cycles_per_column")
    if "bfloat16" not in cycles:
        raise description.fail("core.tensor.cycles_per_column.bfloat16", "missing")
    sparse = description.numbers("core.tensor.sparse_cycles_per_column")
    tensor = description.read(
        TensorEngine, "core.tensor", cycles_per_column=cycles, sparse_cycles_per_column=sparse
    )
    return description.read(
        Core,
        "core",
        tensor=tensor,
        vector=description.read(VectorEngine, "core.vector"),
        scalar=description.read(ScalarEngine, "core.scalar"),
        gpsimd=description.read(GpSimdEngine, "core.gpsimd"),
        dma=description.read(DmaEngines, "core.dma"),
    )
