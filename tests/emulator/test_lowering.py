"""Each operator class against a closed form written out here, on Trainium2's published cycle counts."""

from __future__ import annotations

import math
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.programs import CORE, op, ref

from trnprof.emulator.lowering.matmul import choose_blocking
from trnprof.emulator.lowering.plan import OpPlan
from trnprof.emulator.lowering.registry import plan_operation
from trnprof.emulator.workload import Operation, TensorRef, Workload

TENSOR_GHZ, VECTOR_GHZ, SCALAR_GHZ, GPSIMD_GHZ = 2.4, 0.96, 1.2, 1.2
FP32_PASSES = 4
QUARTER, HALF = 0.25, 0.5


def plan(operation: Operation) -> OpPlan:
    return plan_operation(CORE, operation)


def work_ns(lowered: OpPlan) -> dict[str, float]:
    total: dict[str, float] = {}
    for stage in lowered.stages:
        total[stage.engine] = total.get(stage.engine, 0.0) + stage.work_ps / 1000
    return total


def flops(lowered: OpPlan) -> float:
    return sum(s.flops for s in lowered.stages if s.engine == "Tensor" and not s.is_transpose)


def near(**engines: float) -> dict[str, object]:
    """Rounding is to a picosecond an instruction."""
    return {name: pytest.approx(ns, rel=1e-5, abs=0.01) for name, ns in engines.items()}


def moving_columns(n: int, floor: int = 64) -> int:
    """Cycles of [128, n] in tiles of 512 columns."""
    return sum(max(floor, min(512, n - at)) for at in range(0, n, 512))


def matmul_cycles(m: int, k: int, n: int) -> int:
    def order(stationary: int, moving: int) -> int:
        return sum(
            moving_columns(moving, min(64, stationary - at, 128))
            for at in range(0, stationary, 128)
        )

    return math.ceil(k / 128) * min(order(m, n), order(n, m))


# ---- products

SIZES = st.sampled_from([1, 2, 10, 64, 100, 128, 200, 512, 520, 1024])


@settings(max_examples=60, deadline=None)
@given(batch=st.integers(1, 3), m=SIZES, k=SIZES, n=SIZES)
def test_products(batch: int, m: int, k: int, n: int) -> None:
    tensor = matmul_cycles(m, k, n) * FP32_PASSES / TENSOR_GHZ
    copy = math.ceil(m / 128) * moving_columns(n) / VECTOR_GHZ
    a, b, c = ref(0, m, k), ref(1, k, n), ref(2, m, n)
    mm = plan(op("mm", [a, b], [c]))
    assert work_ns(mm) == near(Tensor=tensor, Vector=copy)
    assert flops(mm) == 2 * m * n * k
    assert all(s.evacuates == (s.engine == "Vector") for s in mm.stages)
    biased = plan(op("addmm", [ref(3, n), a, b], [c]))
    assert work_ns(biased) == near(
        Tensor=tensor, Vector=copy
    )  # the sum is made on the way out of PSUM
    assert not any(s.evacuates for s in biased.stages)
    assert flops(biased) == 2 * m * n * k
    stack = [ref(0, batch, m, k), ref(1, batch, k, n)]
    bmm = plan(op("bmm", stack, [ref(2, batch, m, n)]))
    assert work_ns(bmm) == near(Tensor=batch * tensor, Vector=batch * copy)
    assert flops(bmm) == 2 * batch * m * n * k


def test_vectors_and_layers() -> None:
    matrix, vector = ref(0, 256, 384), ref(1, 384)
    assert flops(plan(op("mv", [matrix, vector], [ref(2, 256)]))) == 2 * 256 * 384
    assert flops(plan(op("dot", [vector, vector], [ref(2)]))) == 2 * 384
    layer = op("linear", [ref(0, 4, 8, 384), ref(1, 100, 384), ref(3, 100)], [ref(2, 4, 8, 100)])
    assert flops(plan(layer)) == 2 * 32 * 384 * 100


def test_half_precision_is_four_times_as_fast() -> None:
    def tensor_ns(dtype: str) -> float:
        tensors = [ref(i, 512, 512, dtype=dtype) for i in range(3)]
        return work_ns(plan(op("mm", tensors[:2], tensors[2:])))["Tensor"]

    assert tensor_ns("float32") == pytest.approx(4 * tensor_ns("bfloat16"))


def test_empty_products_do_nothing_and_sums_over_nothing_are_zero() -> None:
    assert plan(op("mm", [ref(0, 0, 8), ref(1, 8, 8)], [ref(2, 0, 8)])).form == "none"
    nothing = plan(op("mm", [ref(0, 8, 0), ref(1, 0, 8)], [ref(2, 8, 8)]))
    assert nothing.form == "producer"
    assert flops(nothing) == 0
    assert work_ns(nothing)["Tensor"] == 0


@settings(max_examples=100, deadline=None)
@given(
    m=st.integers(1, 60_000),
    k=st.integers(1, 60_000),
    n=st.integers(1, 60_000),
    itemsize=st.sampled_from([2, 4]),
)
def test_blocking_moves_no_more_than_blocks_of_psum_would(
    m: int, k: int, n: int, itemsize: int
) -> None:
    blocking = choose_blocking(CORE, m, k, n, itemsize)
    assert min(blocking.a_passes, blocking.b_passes) >= 1
    psum_blocks = m * math.ceil(n / 512) + n * math.ceil(m / 512)
    assert m * blocking.a_passes + n * blocking.b_passes <= psum_blocks
    half = 212_984 * 128 / 2
    if (m * k + 2 * 512 * k) * itemsize <= half or (n * k + 256 * k) * itemsize <= half:
        assert (blocking.a_passes, blocking.b_passes) == (1, 1)


# ---- attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(512, 512), (128, 128), (100, 300), (1, 2048)])
def test_attention(causal: bool, backward: bool, queries: int, keys: int) -> None:
    heads, depth, value_depth = 2 * 4, 64, 96
    q, k, v = (
        ref(i, 2, 4, length, d, dtype="bfloat16")
        for i, (length, d) in enumerate([(queries, depth), (keys, depth), (keys, value_depth)])
    )
    out = ref(3, 2, 4, queries, value_depth, dtype="bfloat16")
    name = "_scaled_dot_product_flash_attention_for_cpu"
    if backward:
        grads = [ref(10 + r.tensor, *r.shape, dtype="bfloat16") for r in (q, k, v)]
        lowered = plan(
            op(
                f"{name}_backward",
                [ref(9, *out.shape, dtype="bfloat16"), q, k, v, out],
                grads,
                is_causal=causal,
            )
        )
    else:
        lowered = plan(op(name, [q, k, v], [out], is_causal=causal))
    blocks, tile = math.ceil(queries / 128), min(128, queries)
    share = (blocks + 1) / (2 * blocks) if causal and queries == keys else 1.0
    scores, weighted = (2, 3) if backward else (1, 1)
    assert flops(lowered) == pytest.approx(
        2 * heads * queries * keys * (scores * depth + weighted * value_depth) * share
    )
    transposes = 2 if backward else 1
    block_cycles = sum(max(tile_p, min(64, f)) for tile_p in [tile] for f in _cuts(keys, 128))
    tensor = heads * blocks * share * (
        scores * matmul_cycles(tile, depth, keys)
        + weighted * matmul_cycles(tile, keys, value_depth)
        + transposes * block_cycles
    )  # fmt: skip
    out_of_psum = max(64, value_depth) / VECTOR_GHZ
    # forward: row maximum (2x), copy of the transpose out of PSUM (2x); backward: a product instead of the maximum,
    # two copies
    along = (max(64, keys * HALF) * (3 if backward else 2)) / VECTOR_GHZ
    assert work_ns(lowered) == near(
        Tensor=tensor / TENSOR_GHZ,
        Vector=heads * blocks * (along * share + out_of_psum),
        Scalar=heads * blocks * share * max(64, keys) / SCALAR_GHZ,
    )


def _cuts(size: int, piece: int) -> list[int]:
    return [min(piece, size - at) for at in range(0, size, piece)]


# ---- convolution


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution(groups: int, transposed: bool) -> None:
    batch, channels, features, kernel = 2, 16, 32, 3
    small, large = (10, 10), (12, 12)
    image_size, out_size = (small, large) if transposed else (large, small)
    image = ref(0, batch, channels, *image_size)
    out = ref(2, batch, features, *out_size)
    first, second = (channels, features) if transposed else (features, channels)
    weight = ref(1, first, second // groups, kernel, kernel)
    arguments: dict[str, Any] = {"groups": groups, "transposed": transposed}
    # as torch.utils.flop_counter.conv_flop_count: positions of the smaller side x kernel x channels pairs of a group
    expected = 2 * batch * math.prod(small) * kernel**2 * channels * features / groups
    forward = plan(op("convolution", [image, weight], [out], **arguments))
    assert flops(forward) == expected
    assert forward.rows * forward.columns == math.prod(out.shape)
    grads = [ref(4, *image.shape), ref(5, *weight.shape), ref(6, features)]
    both = op(
        "convolution_backward",
        [out, image, weight],
        grads[:2],
        output_mask=[True, True, False],
        **arguments,
    )
    assert flops(plan(both)) == 2 * expected
    one = op(
        "convolution_backward",
        [out, image, weight],
        grads[1:2],
        output_mask=[False, True, False],
        **arguments,
    )
    assert flops(plan(one)) == expected
    bias = op(
        "convolution_backward",
        [out, image, weight],
        grads[2:],
        output_mask=[False, False, True],
        **arguments,
    )
    assert flops(plan(bias)) == 2 * math.prod(out.shape)  # a product with a column of ones


# ---- rows


def rows_op(name: str, rows: int, columns: int, **arguments: object) -> OpPlan:
    x = ref(0, rows, columns)
    return plan(Operation(name, "forward", 0, (x,), (ref(1, rows, columns),), arguments=arguments))


ROWS = [(1, 8), (128, 512), (1000, 768), (130, 50_000)]


@pytest.mark.parametrize(("rows", "columns"), ROWS)
def test_softmax_and_norms(rows: int, columns: int) -> None:
    blocks = math.ceil(rows / 128)
    vector, scalar = blocks * max(64, columns) / VECTOR_GHZ, blocks * max(64, columns) / SCALAR_GHZ
    assert work_ns(rows_op("_softmax", rows, columns, dim=-1)) == near(
        Vector=2 * vector, Scalar=scalar
    )
    assert work_ns(rows_op("_log_softmax", rows, columns, dim=1)) == near(
        Vector=2 * vector, Scalar=scalar
    )
    assert work_ns(rows_op("_softmax_backward_data", rows, columns, dim=1)) == near(
        Vector=3 * vector
    )
    assert work_ns(rows_op("native_layer_norm", rows, columns)) == near(Vector=4 * vector)


def test_softmax_over_another_dimension() -> None:
    x, y = ref(0, 64, 8, 100), ref(1, 64, 8, 100)
    lowered = plan(op("_softmax", [x], [y], dim=1))
    assert (lowered.rows, lowered.columns) == (6400, 8)


def test_norms_work_along_channels_and_groups() -> None:
    image = ref(0, 4, 64, 7, 7)
    blocks = math.ceil(4 * 64 / 128)
    batch = plan(
        op("native_batch_norm", [image, ref(1, 64)], [ref(2, 4, 64, 7, 7), ref(3, 64), ref(4, 64)])
    )
    assert work_ns(batch) == near(Vector=3 * blocks * max(64, 49) / VECTOR_GHZ)
    group = plan(op("native_group_norm", [image], [ref(2, 4, 64, 7, 7)], group=8))
    assert work_ns(group) == near(Vector=3 * 1 * 8 * 49 / VECTOR_GHZ)
    flat = plan(op("native_batch_norm", [ref(0, 512, 64)], [ref(2, 512, 64)]))
    assert (flat.rows, flat.columns) == (64, 512)


def test_the_backward_of_a_norm_also_sums_over_rows() -> None:
    rows, columns = 512, 256
    grads = (ref(3, rows, columns), ref(4, columns), ref(5, columns))
    lowered = plan(
        op("native_layer_norm_backward", [ref(0, rows, columns), ref(1, rows, columns)], grads)
    )
    assert flops(lowered) == 2 * rows * 2 * columns
    assert [w.by_row for w in lowered.writes] == [True, False, False]
    tensor = math.ceil(rows / 128) * 2 * columns * FP32_PASSES / TENSOR_GHZ
    assert work_ns(lowered) == near(Tensor=tensor, Vector=7 * 4 * columns / VECTOR_GHZ)


# ---- reductions


def test_reductions_over_the_last_dimensions() -> None:
    x = ref(0, 256, 4, 1000)
    one = plan(op("sum", [x], [ref(1, 256, 4)], dim=[-1]))
    assert work_ns(one) == near(Vector=8 * 1000 / VECTOR_GHZ)
    two = plan(op("mean", [x], [ref(1, 256)], dim=[1, 2]))
    assert work_ns(two) == near(Vector=2 * 4000 / VECTOR_GHZ)
    norm = plan(op("linalg_vector_norm", [x], [ref(1, 256)], dim=[1, 2]))
    assert work_ns(norm) == near(Vector=2 * 2 * 4000 / VECTOR_GHZ)


def test_reductions_over_leading_dimensions_are_products_with_ones() -> None:
    lowered = plan(op("sum", [ref(0, 4, 300, 256)], [ref(1, 256)], dim=[0, 1]))
    tensor = math.ceil(1200 / 128) * 256 * FP32_PASSES / TENSOR_GHZ
    assert work_ns(lowered) == near(Tensor=tensor)
    assert flops(lowered) == 2 * 1200 * 256
    assert not any(w.by_row for w in lowered.writes)


def test_a_full_sum_uses_all_partitions() -> None:
    choices: list[dict[str, Any]] = [{}, {"dim": [0, 1]}, {"dim": []}]
    for arguments in choices:
        lowered = plan(op("sum", [ref(0, 64, 4096)], [ref(1)], **arguments))
        sums = 64 * 4096 / 128 / VECTOR_GHZ
        assert work_ns(lowered) == near(Vector=sums, Tensor=1 * FP32_PASSES / TENSOR_GHZ)
        assert not any(w.by_row for w in lowered.writes)


# ---- elementwise


def pass_ns(elements: int, cycles: float, ghz: float) -> float:
    """Tiles of 2048 columns on 128 partitions."""
    return sum(max(64, tile * cycles) for tile in _cuts(math.ceil(elements / 128), 2048)) / ghz


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 1000),
    columns=st.integers(1, 1000),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_elementwise(rows: int, columns: int, dtype: str) -> None:
    x, y, z = (ref(i, rows, columns, dtype=dtype) for i in range(3))
    n = rows * columns
    narrow = dtype == "bfloat16"
    single = pass_ns(n, QUARTER if narrow else 1, VECTOR_GHZ)
    double = pass_ns(n, HALF if narrow else 1, VECTOR_GHZ) if n > 1 else single
    scalar = pass_ns(n, 1, SCALAR_GHZ)
    assert work_ns(plan(op("relu", [x], [y]))) == near(Vector=single)
    assert work_ns(plan(op("add", [x, y], [z]))) == near(Vector=double)
    assert work_ns(plan(op("add_", [x, y], [x]))) == near(Vector=double)
    assert work_ns(plan(op("add", [x], [z], other=1))) == near(Vector=single)
    assert work_ns(plan(op("mul", [x, ref(3, dtype=dtype)], [z]))) == near(Vector=single)
    assert work_ns(plan(op("gelu", [x], [y]))) == near(Scalar=scalar)
    if n > 1:
        assert work_ns(plan(op("div", [x, y], [z]))) == near(Scalar=scalar, Vector=double)
        assert work_ns(plan(op("gelu_backward", [x, y], [z]))) == near(Scalar=scalar, Vector=double)


PARAMETERS = [(64, 64), (1000,), (), (3, 5, 7)]


def listed(first: int, role: str = "parameter") -> list[TensorRef]:
    return [ref(first + i, *shape, role=role) for i, shape in enumerate(PARAMETERS)]


def test_foreach_is_one_pass_over_the_list() -> None:
    n = sum(math.prod(s) for s in PARAMETERS)
    p, g = listed(0), listed(10)
    added = plan(op("_foreach_add_", [*p, *g], p, alpha=-0.1))
    assert work_ns(added) == near(Vector=pass_ns(n, 1, VECTOR_GHZ))
    assert sum(a.nbytes for a in added.reads) == 8 * n
    assert sum(a.nbytes for a in added.writes) == 4 * n
    assert work_ns(plan(op("_foreach_mul_", p, p))) == near(Vector=pass_ns(n, 1, VECTOR_GHZ))
    assert work_ns(plan(op("_foreach_sqrt", p, g))) == near(Scalar=pass_ns(n, 1, SCALAR_GHZ))
    # parts of one flat storage count each
    flat = [ref(0, 100, storage=400 * 4) for _ in range(4)]
    assert work_ns(plan(op("_foreach_neg_", flat, flat))) == near(
        Vector=pass_ns(400, 1, VECTOR_GHZ)
    )


@pytest.mark.parametrize("amsgrad", [False, True])
def test_fused_adam(amsgrad: bool) -> None:
    # torch: _fused_adam_(self(a!), grads(b!), exp_avgs(c!), exp_avg_sqs(d!), max_exp_avg_sqs(e!), state_steps)
    n = sum(math.prod(s) for s in PARAMETERS)
    lists = [listed(10 * i) for i in range(5 if amsgrad else 4)]
    flat = [r for tensors in lists for r in tensors]
    steps = [ref(90 + i) for i in range(len(PARAMETERS))]
    lowered = plan(op("_fused_adamw_", [*flat, *steps], flat, "optimizer", amsgrad=amsgrad))
    vector, scalar = pass_ns(n, 1, VECTOR_GHZ), pass_ns(n, 1, SCALAR_GHZ)
    assert work_ns(lowered) == near(Vector=10 * vector, Scalar=2 * scalar)
    assert sum(a.nbytes for a in lowered.reads) == 4 * n * len(lists) + 4 * len(steps)
    assert sum(a.nbytes for a in lowered.writes) == 4 * n * (
        len(lists) - 1
    )  # gradients are not written


def test_fused_sgd() -> None:
    n = sum(math.prod(s) for s in PARAMETERS)
    p, g, m = listed(0), listed(10), listed(20)
    plain = plan(op("_fused_sgd_", [*p, *g], [*p, *g], "optimizer", momentum=0.0))
    heavy = plan(op("_fused_sgd_", [*p, *g, *m], [*p, *g, *m], "optimizer", momentum=0.9))
    assert work_ns(plain) == work_ns(heavy) == near(Vector=3 * pass_ns(n, 1, VECTOR_GHZ))
    assert sum(a.nbytes for a in plain.writes) == 4 * n
    assert sum(a.nbytes for a in heavy.writes) == 8 * n


# ---- movement


def test_gathers_and_scatters() -> None:
    table, index = ref(0, 50_000, 64, role="parameter"), ref(1, 1000, dtype="int64")
    instructions = math.ceil(1000 / 128)
    gathered = plan(op("embedding", [table, index], [ref(2, 1000, 64)]))
    assert work_ns(gathered) == near(GpSimd=instructions * (150 + 128) / GPSIMD_GHZ)
    assert [a.nbytes for a in gathered.reads] == [
        1000 * 256,
        8000,
    ]  # rows of the result, not of the table
    back = plan(op("embedding_dense_backward", [ref(2, 1000, 64), index], [ref(3, 50_000, 64)]))
    assert work_ns(back) == near(GpSimd=instructions * (150 + 128) / GPSIMD_GHZ)
    assert [a.nbytes for a in back.writes] == [50_000 * 256 + 1000 * 256]  # zeros, then the sums
    assert back.writes[0].efficiency == 0.5
    put = plan(op("index_put_", [table, index, ref(2, 1000, 64)], [table]))
    assert [a.nbytes for a in put.writes] == [1000 * 256]
    assert sum(a.nbytes for a in put.reads) == 8000 + 1000 * 256


def test_a_transposing_copy() -> None:
    x, y = ref(0, 300, 700, contiguous=False), ref(1, 300, 700)
    lowered = plan(op("clone", [x], [y]))
    cycles = sum(max(p, min(64, f)) for p in _cuts(300, 128) for f in _cuts(700, 128))
    copies = math.ceil(300 / 128) * math.ceil(700 / 512) * 512 / VECTOR_GHZ
    assert work_ns(lowered) == near(Tensor=cycles * FP32_PASSES / TENSOR_GHZ, Vector=copies)
    assert flops(lowered) == 0  # a transpose is no arithmetic
    assert work_ns(plan(op("clone", [ref(0, 300, 700)], [y]))) == near(
        Vector=pass_ns(210_000, 1, VECTOR_GHZ)
    )


def test_joins_move_bytes_and_work_nothing() -> None:
    parts, out = [ref(i, 100, 64) for i in range(3)], ref(9, 300, 64)
    lowered = plan(op("cat", parts, [out]))
    assert not lowered.stages
    assert (
        sum(a.nbytes for a in lowered.reads) == sum(a.nbytes for a in lowered.writes) == out.nbytes
    )
    assert sum(a.nbytes for a in plan(op("stack", [parts[0]] * 3, [out])).reads) == parts[0].nbytes


def moved(lowered: OpPlan) -> tuple[int, int]:
    """Bytes read and written."""
    return sum(a.nbytes for a in lowered.reads), sum(a.nbytes for a in lowered.writes)


def test_shards_of_fsdp_are_moved_once() -> None:
    """Two parameters, 6 x 5 and 7, over 4 ranks: shards of 2 x 5 and 2 elements (padded), 12 a rank, 48 gathered."""
    shards = [ref(0, 10, role="parameter"), ref(1, 2, role="parameter")]
    buffer, own = ref(2, 48), ref(2, 12, storage=192)
    packed = plan(op("fsdp::all_gather_copy_in", shards, [buffer, own]))
    assert moved(packed) == (48, 48)  # its own part of the buffer, not the whole
    alone = plan(op("fsdp::all_gather_copy_in", shards, [ref(2, 12)]))  # a world of one rank
    assert moved(alone) == (48, 48)

    gathered, whole = ref(2, 4, 12), [ref(3, 4, 10), ref(4, 4, 2)]
    taken_apart = plan(op("fsdp::split_with_sizes_copy", [gathered], whole, dim=1))
    assert moved(taken_apart) == (192, 192)

    gradients = [ref(5, 6, 5, role="gradient"), ref(6, 7, role="gradient")]
    chunks = plan(op("fsdp::chunk_cat", gradients, [ref(7, 4, 12)], dim=0, num_chunks=4))
    assert moved(chunks) == (37 * 4, 192)  # what it pads is written, but comes from nowhere
    assert not any(p.stages for p in (packed, alone, taken_apart, chunks))
    assert all(p.exact for p in (packed, alone, taken_apart, chunks))


def test_chunks_of_another_datatype_take_a_vector_pass_as_a_cast_does() -> None:
    gradient = ref(0, 1000, 64, dtype="bfloat16", role="gradient")
    chunks = plan(op("fsdp::chunk_cat", [gradient], [ref(1, 8, 8000)], dim=0, num_chunks=8))
    cast = plan(op("_to_copy", [gradient], [ref(1, 1000, 64)]))
    assert work_ns(chunks) == work_ns(cast) == near(Vector=pass_ns(64_000, 1, VECTOR_GHZ))
    assert moved(chunks) == (128_000, 256_000)
    assert chunks.exact


def test_pooling_is_one_pass_a_kernel_position() -> None:
    image, out = ref(0, 2, 8, 32, 32), ref(1, 2, 8, 16, 16)
    n = 2 * 8 * 16 * 16
    one = 9 * math.ceil(n / 128) / VECTOR_GHZ
    assert work_ns(
        plan(op("max_pool2d_with_indices", [image], [out, out], kernel_size=[3, 3]))
    ) == near(Vector=one)
    back = op("max_pool2d_with_indices_backward", [out, image, out], [image], kernel_size=[3, 3])
    assert work_ns(plan(back)) == near(Vector=one)
    adaptive = op("_adaptive_avg_pool2d", [image], [ref(1, 2, 8, 1, 1)])
    assert work_ns(plan(adaptive)) == near(Vector=1024 * 1 / VECTOR_GHZ)


# ---- coverage


def test_an_unknown_operator_is_charged_the_roofline_and_counted() -> None:
    x, y = ref(0, 1000, 1000), ref(1, 1000, 1000)
    lowered = plan(op("mylib::mystery", [x, y], [ref(2, 10)]))
    assert not lowered.exact
    assert work_ns(lowered) == near(Vector=pass_ns(1_000_000, 1, VECTOR_GHZ))
    assert sum(a.nbytes for a in lowered.reads) == 8_000_000
    assert sum(a.nbytes for a in lowered.writes) == 40


def test_views_and_host_operations_cost_nothing() -> None:
    view = Operation("view", "forward", 0, (ref(0, 8),), (ref(0, 8),), is_view=True)
    for nothing in (
        view,
        op("empty", [], [ref(0, 8)]),
        op("item", [ref(0)], []),
        op("relu", [ref(0, 0)], [ref(1, 0)]),
    ):
        assert plan(nothing).form == "none"


@cache
def captured(net: str, optimizer: str) -> Workload:
    pytest.importorskip("torch")
    from trnprof.emulator.capture.launcher import run_captured
    from trnprof.emulator.capture.store import load_workload

    script = Path(__file__).parent / "scripts" / "training.py"
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        assert run_captured([sys.executable, str(script), net, optimizer], trace).exit_code == 0
        return load_workload(trace)


PROGRAMS = pytest.mark.parametrize(
    ("net", "optimizer"),
    [("mlp", "adam"), ("conv", "foreach_adamw"), ("transformer", "fused_adamw")],
)  # fmt: skip


@PROGRAMS
def test_what_training_steps_do_is_lowered_by_rules(net: str, optimizer: str) -> None:
    operations = [o for o in captured(net, optimizer).operations if not o.is_view]
    assert len(operations) > 40
    assert {o.name for o in operations if not plan(o).exact} == set()


@PROGRAMS
def test_flops_are_those_that_torch_counts(net: str, optimizer: str) -> None:
    counted = 0
    for operation in captured(net, optimizer).operations:
        expected = operation.model_flops
        if not expected:
            continue
        counted += 1
        lowered = flops(plan(operation))
        if operation.name == "convolution_backward":
            gradient = operation.inputs[0]
            lowered -= 2 * math.prod(gradient.shape)  # the bias, which torch leaves out
        assert lowered == pytest.approx(expected, rel=1e-9), operation.name
    assert counted >= 6
