"""How long does one instruction hold its engine, and one DMA its queue? Pure functions of a described core.

Formulas are those of hardware.md sections 3 to 5; each docstring names the document behind it. Times are picoseconds,
``elements`` are per partition. Costs are issue intervals: what the *next* instruction waits for. The result appears
an engine's ``latency_ns`` later; that part travels on dependency edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trnprof.emulator.core import Core

PS_PER_NS = 1000

SIXTEEN_BIT = ("bfloat16", "float16")
EIGHT_BIT = ("float8_e4m3fn", "float8_e5m2", "float8", "int8", "uint8", "bool")


def to_ps(ns: float) -> int:
    """Nanoseconds to whole picoseconds."""
    return round(ns * PS_PER_NS)


def cycles_per_column(core: Core, dtype: str) -> float:
    """Tensor-engine cycles a moving column, by datatype; unknown ones run as float32."""
    table = core.tensor.cycles_per_column
    name = "float8" if dtype.startswith("float8") else dtype
    if name not in table and dtype in EIGHT_BIT:
        name = "bfloat16"
    return table.get(name, table.get("float32", max(table.values())))


def matmul_ps(core: Core, k: int, stationary: int, moving: int, dtype: str) -> int:
    """[k, stationary] x [k, moving]: back-to-back nc_matmul, max(min(64, stationary), moving) cycles a tile.

    Source: SDK 2.26 nc_matmul docstring; float32 takes 4 passes, double-row float8 takes twice the k a pass.
    """
    tensor = core.tensor
    cycles = 0
    for width, count in _cuts(stationary, tensor.columns):
        floor = min(tensor.minimum_interval_cycles, width)
        cycles += count * sum(n * max(floor, m) for m, n in _cuts(moving, tensor.moving_columns))
    passes = math.ceil(k / tensor.rows) * cycles_per_column(core, dtype)
    return round(cycles * passes / tensor.clock_ghz * PS_PER_NS)


def pe_transpose_ps(core: Core, rows: int, columns: int, dtype: str) -> int:
    """Transpose [rows, columns] through the tensor engine: max(P, min(64, F)) cycles a 128 x 128 block.

    Source: SDK 2.26 nc_transpose docstring.
    """
    tensor = core.tensor
    cycles = sum(
        p_count * f_count * max(p, min(tensor.minimum_interval_cycles, f))
        for p, p_count in _cuts(rows, tensor.rows)
        for f, f_count in _cuts(columns, tensor.columns)
    )
    return round(cycles * cycles_per_column(core, dtype) / tensor.clock_ghz * PS_PER_NS)


def _cuts(size: int, piece: int) -> list[tuple[int, int]]:
    """A dimension in pieces: (length, how many of it), the last one shorter."""
    full, rest = divmod(size, piece)
    return [(length, count) for length, count in ((piece, full), (rest, 1)) if length and count]


def scalar_ps(core: Core, elements: float) -> int:
    """One ACTIVATE: max(64, N) cycles. Source: SDK 2.26 activation docstring."""
    cycles = max(core.scalar.minimum_interval_cycles, elements * core.scalar.cycles)
    return round(cycles / core.scalar.clock_ghz * PS_PER_NS)


def gpsimd_ps(core: Core, elements: float) -> int:
    """One GpSimd instruction: 150 + N cycles. Source: SDK 2.26 iota and affine_select docstrings."""
    cycles = core.gpsimd.fixed_cycles + elements * core.gpsimd.cycles
    return round(cycles / core.gpsimd.clock_ghz * PS_PER_NS)


def vector_ps(core: Core, elements: float, cycles_per_element: float) -> int:
    """One vector instruction: max(64, c N) cycles. Source: SDK 2.26 docstrings, minimum interval about 64."""
    cycles = max(core.vector.minimum_interval_cycles, elements * cycles_per_element)
    return round(cycles / core.vector.clock_ghz * PS_PER_NS)


def vector_cycles(core: Core, form: str, dtype: str) -> float:
    """Cycles an element for a vector instruction of a form: copy, psum_copy, tensor_tensor or reduce.

    Source: engine widths and fast modes of the NKI architecture guides, SDK 2.26 docstrings.
    """
    narrow = dtype in SIXTEEN_BIT
    vector = core.vector
    match form:
        case "copy":
            return vector.copy_cycles_16bit if narrow else vector.copy_cycles_32bit
        case "psum_copy":
            return vector.copy_cycles_psum_16bit if narrow else vector.copy_cycles_32bit
        case "tensor_tensor":
            return (
                vector.tensor_tensor_cycles_16bit if narrow else vector.tensor_tensor_cycles_32bit
            )
        case "reduce":
            return vector.reduce_cycles_16bit if narrow else vector.reduce_cycles_32bit
    raise ValueError(f"unknown vector form {form!r}")


@dataclass(frozen=True)
class DmaCost:
    """What moving some bytes takes.

    Attributes:
        instructions: DMA instructions (each spreads over the engines).
        issue_ps: one instruction on the engine that triggers it.
        start_ps: trigger to first byte.
        transfer_ps: first byte to last byte: the event.
        slot_ps: how long the queue is held (at least the transfer).
        engines_ps: how long the DMA engines are busy if they did nothing else.
        done_ps: last byte to the start of a waiting consumer.
    """

    instructions: int
    issue_ps: int
    start_ps: int
    transfer_ps: int
    slot_ps: int
    engines_ps: int
    done_ps: int


def dma_cost(
    core: Core,
    nbytes: int,
    bytes_per_partition: int,
    *,
    write: bool,
    partitions: int = 128,
    software: bool = False,
    efficiency: float = 1.0,
) -> DmaCost:
    """Cost of moving ``nbytes`` between HBM and SBUF.

    Each DMA instruction moves ``partitions`` rows of ``bytes_per_partition``; its rows are dealt to the engines eight a
    piece (128 / 16). The engines run at their measured rate; one queue takes at least ``queue_slot_ns`` an
    instruction, which is what makes small transfers slow (hardware.md 5.2). Issue, start and completion are the
    timestamps of hardware.md 5.4.

    Args:
        core: the described core.
        nbytes: payload in bytes, at least 1.
        bytes_per_partition: contiguous bytes of one row.
        write: SBUF to HBM rather than HBM to SBUF.
        partitions: rows an instruction moves, 1 to 128.
        software: descriptors made by GpSimd (gather and scatter).
        efficiency: fraction of the copy rate (DMA transpose, accumulate).
    """
    dma = core.dma
    row = max(1, min(bytes_per_partition, dma.maximum_packet_bytes, nbytes))
    instructions = max(1, math.ceil(nbytes / (row * partitions)))
    rate = dma.write_bytes_per_s_per_engine if write else dma.read_bytes_per_s_per_engine
    used = min(dma.engines, max(1, math.ceil(partitions / (core.sbuf_partitions / dma.engines))))
    engines_ns = nbytes / used / rate / efficiency * 1e9
    stagger_ns = dma.engine_stagger_ns * (used - 1) if software else 0.0
    piece_ns = dma.piece_ns if used > 1 else 0.0
    slot_ns = (instructions - 1) * max(dma.queue_slot_ns, engines_ns / instructions)
    transfer_ns = max(engines_ns, slot_ns + engines_ns / instructions) + stagger_ns + piece_ns
    start = (
        dma.start_software_ns if software else dma.start_write_ns if write else dma.start_read_ns
    )
    done = dma.done_software_ns if software else dma.done_write_ns if write else dma.done_read_ns
    return DmaCost(
        instructions=instructions,
        issue_ps=to_ps(dma.issue_ns),
        start_ps=to_ps(start),
        transfer_ps=to_ps(transfer_ns),
        slot_ps=to_ps(max(instructions * dma.queue_slot_ns, transfer_ns)),
        engines_ps=to_ps(engines_ns * used / dma.engines),
        done_ps=to_ps(done),
    )
