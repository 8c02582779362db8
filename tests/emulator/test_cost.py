"""Instruction and DMA costs against loops over tiles and closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.programs import CORE

from trnprof.emulator.cost import (
    cycles_per_column,
    dma_cost,
    gpsimd_ps,
    matmul_ps,
    pe_transpose_ps,
    scalar_ps,
    to_ps,
    vector_cycles,
    vector_ps,
)
from trnprof.emulator.system import load_system

SIZES = st.one_of(
    st.integers(0, 1100), st.sampled_from([0, 1, 63, 64, 65, 127, 128, 129, 511, 512, 513])
)
DTYPES = {"bfloat16": 1.0, "float16": 1.0, "float32": 4.0, "float8_e4m3fn": 0.5}


def pieces(size: int, piece: int) -> list[int]:
    return [min(piece, size - at) for at in range(0, size, piece)]


@settings(max_examples=200, deadline=None)
@given(k=SIZES, stationary=SIZES, moving=SIZES, dtype=st.sampled_from(sorted(DTYPES)))
def test_matmul_is_the_sum_over_its_tiles(k: int, stationary: int, moving: int, dtype: str) -> None:
    # SDK 2.26: max(min(64, N_stationary), N_moving) cycles at 2.4 GHz; [128, 128] x [128, 512] tiles
    cycles = sum(
        max(min(64, s), m)
        for _ in pieces(k, 128)
        for s in pieces(stationary, 128)
        for m in pieces(moving, 512)
    )
    assert matmul_ps(CORE, k, stationary, moving, dtype) == round(
        cycles * DTYPES[dtype] / 2.4 * 1000
    )


@settings(max_examples=100, deadline=None)
@given(rows=SIZES, columns=SIZES)
def test_transpose_is_the_sum_over_its_blocks(rows: int, columns: int) -> None:
    # SDK 2.26: max(P, min(64, F)) cycles a block
    cycles = sum(max(p, min(64, f)) for p in pieces(rows, 128) for f in pieces(columns, 128))
    assert pe_transpose_ps(CORE, rows, columns, "bfloat16") == round(cycles / 2.4 * 1000)


def test_a_full_tile_runs_at_peak() -> None:
    for name, peak in (("trn1", 91.75e12), ("trn2", 78.64e12)):
        took = matmul_ps(load_system(name).core, 128, 128, 512, "bfloat16") * 1e-12
        assert 2 * 128 * 128 * 512 / took == pytest.approx(peak, rel=1e-3)


def test_datatypes_without_a_rate_of_their_own() -> None:
    trn1 = load_system("trn1").core
    assert cycles_per_column(CORE, "float8_e5m2") == 0.5
    assert cycles_per_column(CORE, "int8") == cycles_per_column(CORE, "bfloat16") == 1.0
    assert cycles_per_column(CORE, "float64") == cycles_per_column(CORE, "complex64") == 4.0
    assert cycles_per_column(trn1, "float8_e4m3fn") in (1.0, 0.5)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(0, 100_000))
def test_instructions_have_their_published_cycles(n: int) -> None:
    assert scalar_ps(CORE, n) == round(max(64, n) / 1.2 * 1000)
    assert gpsimd_ps(CORE, n) == round((150 + n) / 1.2 * 1000)
    assert vector_ps(CORE, n, 0.5) == round(max(64, n / 2) / 0.96 * 1000)


def test_narrow_types_are_never_slower() -> None:
    for form in ("copy", "psum_copy", "tensor_tensor", "reduce"):
        assert vector_cycles(CORE, form, "bfloat16") <= vector_cycles(CORE, form, "float32")
    with pytest.raises(ValueError, match="unknown vector form"):
        vector_cycles(CORE, "sideways", "float32")


BYTES = st.integers(1, 1 << 28)
ROWS = st.sampled_from([1, 2, 64, 511, 512, 2048, 16_384, 65_536])


@settings(max_examples=300, deadline=None)
@given(
    nbytes=BYTES,
    row=ROWS,
    write=st.booleans(),
    software=st.booleans(),
    partitions=st.sampled_from([1, 4, 16, 100, 128]),
    efficiency=st.sampled_from([0.5, 0.9, 1.0]),
)
def test_dma_bounds(
    nbytes: int, row: int, write: bool, software: bool, partitions: int, efficiency: float
) -> None:
    cost = dma_cost(
        CORE,
        nbytes,
        row,
        write=write,
        partitions=partitions,
        software=software,
        efficiency=efficiency,
    )
    dma = CORE.dma
    rate = dma.write_bytes_per_s_per_engine if write else dma.read_bytes_per_s_per_engine
    used = math.ceil(partitions / 8)
    # every byte passes an engine: 16 engines for as long as they are held, the used ones within the transfer
    assert cost.engines_ps == pytest.approx(nbytes / (16 * rate * efficiency) * 1e12, abs=1)
    assert cost.transfer_ps >= nbytes / (used * rate * efficiency) * 1e12 - 1
    assert cost.engines_ps <= cost.transfer_ps + 1
    assert cost.slot_ps >= cost.transfer_ps
    # the instructions cover the bytes, and one fewer would not
    whole = max(1, min(row, dma.maximum_packet_bytes, nbytes)) * partitions
    assert (cost.instructions - 1) * whole < nbytes <= cost.instructions * whole
    assert cost.slot_ps >= cost.instructions * to_ps(dma.queue_slot_ns) - cost.instructions
    assert cost.issue_ps == 600_000
    assert min(cost.start_ps, cost.done_ps) > 0


@settings(max_examples=200, deadline=None)
@given(small=BYTES, more=BYTES, row=ROWS, write=st.booleans())
def test_more_bytes_never_take_less(small: int, more: int, row: int, write: bool) -> None:
    first = dma_cost(CORE, small, row, write=write)
    second = dma_cost(CORE, small + more, row, write=write)
    assert second.slot_ps >= first.slot_ps
    assert second.transfer_ps >= first.transfer_ps
    assert second.engines_ps >= first.engines_ps
    assert second.instructions >= first.instructions


@settings(max_examples=100, deadline=None)
@given(nbytes=BYTES, row=st.integers(1, 30_000), longer=st.integers(1, 30_000))
def test_longer_rows_never_take_more(nbytes: int, row: int, longer: int) -> None:
    assert (
        dma_cost(CORE, nbytes, row + longer, write=False).slot_ps
        <= dma_cost(CORE, nbytes, row, write=False).slot_ps
    )
