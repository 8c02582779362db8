"""Fusion, residency and the double-buffered pipeline: what may run together, what moves, and what bounds it all."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.programs import (
    CORE,
    TRN2,
    freed_after_use,
    lower,
    moved,
    names_of,
    op,
    random_programs,
    ref,
)

from trnprof.emulator.lowering.fusion import MAXIMUM_MEMBERS, group_operations
from trnprof.emulator.lowering.kernels import MACRO_TILES, ramp_ps, tile_shares
from trnprof.emulator.lowering.matmul import WORKING_FRACTION
from trnprof.emulator.lowering.plan import ENGINES
from trnprof.emulator.lowering.registry import plan_operation
from trnprof.emulator.lowering.residency import PERSISTENT, Location, Ready, Residency, lifetimes
from trnprof.emulator.lowering.step import LoweredStep
from trnprof.emulator.lowering.tasks import SERVER_ID, SERVERS
from trnprof.emulator.lowering.transfers import SMALLEST_PIECE_BYTES
from trnprof.emulator.scheduler import schedule
from trnprof.emulator.trace_rows import first_servers
from trnprof.emulator.workload import Operation

EXECUTIONS = pytest.mark.parametrize("execution", ["fused", "eager"])


def groups(operations: Sequence[Operation], *, fuse: bool = True) -> list[tuple[int, ...]]:
    plans = [plan_operation(CORE, o) for o in operations]
    return group_operations(CORE, operations, plans, fuse=fuse)


def makespan(lowered: LoweredStep) -> int:
    return int(schedule(lowered.tasks.graph()).end_ps.max(initial=0))


def chain(length: int, rows: int = 512, columns: int = 256) -> list[Operation]:
    return freed_after_use(
        [op("relu", [ref(i, rows, columns)], [ref(i + 1, rows, columns)]) for i in range(length)],
        keep=[length],
    )


# ---- fusion


def test_a_chain_is_one_kernel_and_views_break_nothing() -> None:
    x = [ref(i, 256, 64) for i in range(4)]
    view = Operation("view", "forward", 0, (x[1],), (x[1],), is_view=True)
    operations = [op("mm", [x[0], x[0]], [x[1]]), view, op("gelu", [x[1]], [x[2]]),
                  op("_softmax", [x[2]], [x[3]], dim=-1)]  # fmt: skip
    assert groups(operations) == [(0, 2, 3)]
    assert groups(operations, fuse=False) == [(0,), (2,), (3,)]


@pytest.mark.parametrize("producer", ["mm", "convolution", "embedding", "cat", "sum_leading"])
def test_a_producer_starts_a_kernel(producer: str) -> None:
    x, y = ref(0, 128, 128), ref(1, 128, 128)
    second = {
        "mm": op("mm", [y, y], [ref(2, 128, 128)]),
        "convolution": op("convolution", [ref(1, 1, 128, 128, 1), ref(5, 128, 128, 1, 1)], [ref(2, 1, 128, 128, 1)]),
        "embedding": op("embedding", [y, ref(6, 128, dtype="int64")], [ref(2, 128, 128)]),
        "cat": op("cat", [y, y], [ref(2, 256, 128)]),
        "sum_leading": op("gelu", [ref(1, 128, 128, contiguous=False)], [ref(2, 128, 128)]),
    }[producer]  # fmt: skip
    assert groups([op("relu", [x], [y]), second]) == [(0,), (1,)]


def test_nothing_joins_what_it_does_not_read() -> None:
    assert groups([op("relu", [ref(0, 64, 64)], [ref(1, 64, 64)]), op("relu", [ref(2, 64, 64)], [ref(3, 64, 64)])]) == [(0,), (1,)]  # fmt: skip


def test_a_chain_is_cut_where_it_gets_long() -> None:
    found = groups(chain(60))
    assert all(len(g) <= MAXIMUM_MEMBERS for g in found)
    assert [i for g in found for i in g] == list(range(60))


def test_a_result_that_is_whole_only_at_the_end_is_not_read_tile_by_tile() -> None:
    # the sum over everything, and the weight gradient of a norm, come out of the last tile
    x, total = ref(0, 128, 128), ref(1)
    assert groups([op("sum", [x], [total]), op("div", [total], [ref(2)])]) == [(0,), (1,)]
    grads = (ref(3, 512, 512), ref(4, 512), ref(5, 512))
    back = op("native_layer_norm_backward", [ref(6, 512, 512), ref(7, 512, 512)], grads)
    assert groups([back, op("mul", [grads[1]], [ref(8, 512)])]) == [(0,), (1,)]
    assert groups([back, op("mul", [grads[0]], [ref(8, 512, 512)])]) == [(0, 1)]


def test_an_operand_that_later_tiles_need_is_not_overwritten_by_the_same_kernel() -> None:
    a, w, y = ref(0, 256, 256), ref(1, 256, 256, role="parameter"), ref(2, 256, 256)
    product = op("mm", [a, w], [y])
    assert groups([product, op("add_", [w, y], [w])]) == [(0,), (1,)]
    assert groups([product, op("add_", [a, y], [a])]) == [(0, 1)]  # tile t needs its own rows of a


def test_a_slice_that_was_written_is_no_whole_tensor() -> None:
    half = ref(0, 64, 64, storage=2 * 64 * 64 * 4)
    assert groups([op("relu_", [half], [half]), op("relu_", [half], [half])]) == [(0,), (1,)]


def test_rows_longer_than_the_working_half_of_sbuf_are_not_fused() -> None:
    per_partition = CORE.sbuf_usable_bytes_per_partition * WORKING_FRACTION
    for columns in (256, 4096, 65_536):
        x, y, z = (ref(i, 128, columns) for i in range(3))
        fits = 2 * 3 * columns * 4 <= per_partition
        found = groups([op("relu", [x], [y]), op("_softmax", [y], [z], dim=-1)])
        assert found == ([(0, 1)] if fits else [(0,), (1,)])
        # a reshaped, longer row counts as what it is
        y2, z2 = (ref(i, 1, 128 * columns) for i in (1, 2))
        found = groups([op("relu", [x], [y]), op("_softmax", [y2], [z2], dim=-1)])
        assert found == ([(0, 1)] if 2 * 3 * 128 * columns * 4 <= per_partition else [(0,), (1,)])


@settings(max_examples=60, deadline=None)
@given(operations=random_programs())
def test_groups_partition_the_operations_and_only_chains_join(operations: list[Operation]) -> None:
    plans = [plan_operation(CORE, o) for o in operations]
    found = group_operations(CORE, operations, plans, fuse=True)
    assert [i for g in found for i in g] == [i for i, p in enumerate(plans) if p.form != "none"]
    for group in found:
        made: set[int] = set()
        for i in group:
            if i != group[0]:
                assert plans[i].form in ("elementwise", "rowwise")
                assert made & {r.tensor for r in operations[i].inputs}
            made |= {r.tensor for r in operations[i].outputs}


# ---- what moves


def test_an_intermediate_that_dies_in_its_kernel_never_reaches_hbm() -> None:
    lowered = lower(chain(5))
    size = 512 * 256 * 4
    assert moved(lowered) == {"load": {0: size}, "store": {4: size}}
    assert set(lowered.hbm_storages) == {0, 5}
    eager = moved(lower(chain(5), "eager"))
    assert eager["load"] == dict.fromkeys(range(5), size)
    assert eager["store"] == dict.fromkeys(range(5), size)


def test_a_product_that_is_read_later_is_brought_out_of_psum() -> None:
    x, w, y, z = (ref(i, 256, 256) for i in range(4))
    pair = [op("mm", [x, w], [y]), op("gelu", [y], [z])]
    later = op("mul", [y, z], [ref(4, 256, 256)])
    # a view between: the last reader keeps y alive, but does not join (its columns differ)
    apart = op("mm", [z, y], [ref(5, 256, 256)])
    assert copies_out_of_psum([*pair, later], keep=4) == 0
    assert copies_out_of_psum([*pair, apart], keep=5) > 0


def copies_out_of_psum(operations: Sequence[Operation], keep: int) -> int:
    """Of the first operation's result."""
    tasks = lower(freed_after_use(operations, keep=[keep])).tasks
    labels = list(tasks.labels)
    return sum(labels[i].name == "tensor_copy" and labels[i].op == 0 for i in tasks.label_ids)


def test_views_of_one_storage_are_read_once_each_and_no_byte_twice() -> None:
    size = 256 * 256 * 4
    half, whole = ref(0, 256, 256, storage=2 * size), ref(0, 256, 256)
    out = ref(1, 256, 256)
    assert moved(lower([op("mul", [half, half], [out])]))["load"] == {0: 2 * size}
    assert moved(lower([op("mul", [whole, whole], [out])]))["load"] == {0: size}
    expanded = ref(2, 256, 256, storage=4)
    assert moved(lower([op("mul", [whole, expanded], [out])]))["load"] == {0: size + 4}
    packed = [ref(3, 2, 4, 128, 64, storage=3 * 2 * 4 * 128 * 64 * 4) for _ in range(3)]
    flash = op("_scaled_dot_product_flash_attention_for_cpu", packed, [ref(4, 2, 4, 128, 64)])
    assert moved(lower([flash]))["load"] == {0: 3 * packed[0].nbytes}


def test_small_tensors_cross_whole_and_large_ones_exactly() -> None:
    for rows, columns in [(1, 1), (64, 128), (64, 129), (1000, 999), (4096, 1024)]:
        x, y = ref(0, rows, columns), ref(1, rows, columns)
        lowered = lower([op("relu", [x], [y])])
        assert moved(lowered) == {"load": {0: x.nbytes}, "store": {0: y.nbytes}}
        if x.nbytes <= SMALLEST_PIECE_BYTES:
            assert [n for n in names_of(lowered) if n.startswith(("load", "store"))] == [
                "load relu",
                "store relu",
            ]


def test_a_join_waits_for_all_that_it_joins() -> None:
    # x is made here and still in SBUF, y is loaded
    x, y, z, out = ref(0, 256, 512), ref(1, 256, 512), ref(2, 256, 512), ref(3, 512, 512)
    last = ref(4, 512, 512)
    operations = [op("exp", [x], [z]), op("cat", [z, y], [out]), op("relu", [out], [last])]
    lowered = lower(operations)
    outcome = schedule(lowered.tasks.graph())
    names = names_of(lowered)
    first = names.index("relu")
    needed = [i for i, n in enumerate(names) if n == "exp" or n == "load cat"]
    assert needed
    assert outcome.start_ps[first] >= outcome.end_ps[needed[:-1]].max(initial=0) - 1
    store = names.index("store cat")
    assert outcome.start_ps[store] > outcome.end_ps[needed].max()


def test_a_scatter_into_a_tensor_waits_for_its_making() -> None:
    x, y, rows, values = ref(0, 256, 64), ref(1, 256, 64), ref(2, 16, dtype="int64"), ref(3, 16, 64)
    operations = [
        op("exp", [x], [y]),
        op("index_put_", [y, rows, values], [y]),
        op("mm", [y, ref(5, 64, 64)], [ref(4, 256, 64)]),
    ]
    lowered = lower(freed_after_use(operations, keep=[4]))
    outcome, names = schedule(lowered.tasks.graph()), names_of(lowered)
    made = max(outcome.end_ps[i] for i, n in enumerate(names) if n == "exp")
    assert outcome.start_ps[names.index("store index_put_")] > made
    # the rest of y was in SBUF only: it goes to HBM before the scatter changes it there
    assert moved(lowered)["store"][0] == y.nbytes
    assert moved(lowered)["load"][2] == y.nbytes + 64 * 64 * 4


def test_an_overwriting_store_does_not_overtake_the_load_before_it() -> None:
    # nothing else orders them: one reads on ScalarE and keeps its result, the other writes from VectorE
    big, kept = ref(0, 2048, 512), ref(1, 2048, 512)
    operations = [
        op("gelu", [big], [kept]),
        op("fill_", [], [big]),
        op("exp", [kept], [ref(2, 2048, 512)]),
    ]
    for execution in ("fused", "eager"):
        lowered = lower(freed_after_use(operations, keep=[0, 2]), execution)
        outcome, names = schedule(lowered.tasks.graph()), names_of(lowered)
        loaded = max(outcome.end_ps[i] for i, n in enumerate(names) if n == "load gelu")
        assert min(outcome.start_ps[i] for i, n in enumerate(names) if n == "store fill_") >= loaded


@EXECUTIONS
@settings(max_examples=60, deadline=None)
@given(operations=random_programs())
def test_what_outlives_the_step_is_written_and_what_it_reads_is_loaded(
    execution: str, operations: list[Operation]
) -> None:
    lowered = lower(operations, execution)
    traffic = moved(lowered)
    plans = lowered.plans
    kernels = group_operations(CORE, operations, plans, fuse=execution == "fused")
    uses = lifetimes(operations)
    wanted: Counter[int] = Counter()
    for group in kernels:
        # the last writer in a kernel of what must survive stores it, once
        last = {a.ref.tensor: (i, a) for i in group for a in plans[i].writes}
        for storage, (i, access) in last.items():
            if uses.outlives(storage):
                wanted[i] += access.nbytes
    for i, nbytes in wanted.items():
        assert traffic["store"][i] >= nbytes
    if not uses.freed:
        assert traffic["store"] == wanted  # nothing is spilled that had been written anyway
    first_read: dict[int, int] = {}
    written: set[int] = set()
    for i, operation in enumerate(operations):
        if plans[i].form == "none":
            continue
        for r in operation.inputs:
            if r.tensor not in written:
                first_read[r.tensor] = max(first_read.get(r.tensor, 0), r.nbytes)
        written |= {r.tensor for r in operation.outputs}
    assert sum(traffic["load"].values()) >= sum(first_read.values())


# ---- residency


def test_residency_never_holds_more_than_it_may() -> None:
    sbuf = Residency(100)
    for storage, nbytes in [(1, 40), (2, 40), (3, 20)]:
        assert sbuf.keep(storage, Location(nbytes)) == []
    sbuf.find(1)
    evicted = sbuf.keep(4, Location(30))
    assert [s for s, _ in evicted] == [2]  # 1 was used since
    assert sbuf.used_bytes == 90 == sum(where.nbytes for where in sbuf.kept.values())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("kfdh"), st.integers(0, 5), st.integers(0, 60)), max_size=40)
)
def test_residency_against_a_list(commands: list[tuple[str, int, int]]) -> None:
    sbuf, order = Residency(100), dict[int, int]()
    for command, storage, nbytes in commands:
        match command:
            case "k":
                order.pop(storage, None)
                gone = []
                while order and sum(order.values()) + nbytes > 100:
                    gone.append(next(iter(order)))
                    order.pop(gone[-1])
                order[storage] = nbytes
                assert [
                    s for s, _ in sbuf.keep(storage, Location(nbytes, on_chip=(Ready(1, 0, 0),)))
                ] == gone
            case "f":
                found = sbuf.find(storage)
                assert (found is not None and bool(found.on_chip)) == (storage in order)
                if storage in order:
                    order[storage] = order.pop(storage)
            case "h":
                order.pop(storage, None)
                sbuf.note_in_hbm(storage, Location(nbytes))
            case _:
                order.pop(storage, None)
                sbuf.drop(storage)
        assert list(sbuf.kept) == list(order)
        assert sbuf.used_bytes == sum(order.values()) <= 100


def test_what_sbuf_cannot_hold_is_spilled_once_and_loaded_again() -> None:
    capacity = CORE.sbuf_usable_bytes_per_partition * CORE.sbuf_partitions * (1 - WORKING_FRACTION)
    rows = int(capacity * 0.4 / 4096) // 128 * 128
    made = [op("exp", [ref(10 + i, rows, 1024)], [ref(i, rows, 1024)]) for i in range(3)]
    used = [
        op("mm", [ref(i, rows, 1024), ref(20, 1024, 64)], [ref(30 + i, rows, 64)]) for i in range(3)
    ]
    lowered = lower(freed_after_use([*made, *used], keep=[30, 31, 32]))
    size = rows * 4096
    assert moved(lowered)["store"] == {0: size, **{3 + i: rows * 256 for i in range(3)}}
    assert moved(lowered)["load"][3] >= size
    few = lower(freed_after_use([*made[:2], *used[:2]], keep=[30, 31]))
    assert moved(few)["store"] == {2 + i: rows * 256 for i in range(2)}


def test_dead_tensors_make_room() -> None:
    capacity = CORE.sbuf_usable_bytes_per_partition * CORE.sbuf_partitions * (1 - WORKING_FRACTION)
    rows = int(capacity * 0.4 / 4096) // 128 * 128
    a, b, c = (ref(i, rows, 1024) for i in range(3))
    head = ref(3, 1024, 64)
    operations = [
        op("exp", [ref(10, rows, 1024)], [a]),
        op("exp", [ref(11, rows, 1024)], [b]),
        op(
            "mm", [a, head], [ref(4, rows, 64)]
        ),  # the last to read a, which its owner frees much later
        op("exp", [ref(12, rows, 1024)], [c]),
        op("mm", [b, head], [ref(5, rows, 64)]),
        op("mm", [c, head], [ref(6, rows, 64)]),
    ]
    lowered = lower(freed_after_use(operations, keep=[4, 5, 6]))
    assert set(moved(lowered)["store"]) == {2, 4, 5}


# ---- pipeline and bounds


def test_tile_shares_are_the_whole() -> None:
    for tiles in [*range(1, 20), 1000]:
        shares = tile_shares(tiles)
        assert len(shares) == min(tiles, MACRO_TILES)
        assert sum(shares) == pytest.approx(1.0, abs=1e-12)
        assert shares == shares[::-1]


@settings(max_examples=100, deadline=None)
@given(
    start=st.one_of(st.floats(0.05, 1.0), st.just(1 - 1e-16)),
    ramp_ns=st.sampled_from([0.0, 1.0, 300.0, 3000.0]),
    work_ns=st.floats(0, 20_000),
)
def test_the_ramp_is_the_integral_of_the_rate(start: float, ramp_ns: float, work_ns: float) -> None:
    assert ramp_ps(ramp_ns, start, round(work_ns * 1000)) >= 0
    lost_ns = ramp_ps(ramp_ns, start, round(work_ns * 1000)) / 1000
    took = work_ns + lost_ns
    times = np.linspace(0, took, 20_001)
    rate = (
        np.minimum(1.0, start + (1 - start) * times / ramp_ns)
        if ramp_ns > 0
        else np.ones_like(times)
    )
    done = float(np.sum((rate[1:] + rate[:-1]) / 2 * np.diff(times)))
    assert done == pytest.approx(work_ns, rel=1e-3, abs=0.5)


def bounds(lowered: LoweredStep) -> list[float]:
    """Work of each engine, and bytes over the rate of all DMA engines."""
    tasks = lowered.tasks
    work = dict.fromkeys(ENGINES, 0)
    for plan in lowered.plans:
        for stage in plan.stages:
            work[stage.engine] += 0 if stage.evacuates else stage.work_ps
    read = sum(moved(lowered)["load"].values()) / CORE.dma.read_bytes_per_s
    write = sum(moved(lowered)["store"].values()) / CORE.dma.write_bytes_per_s
    hbm = sum(n for n in tasks.nbytes if n > 0) / TRN2.hbm_bytes_per_s_per_core
    return [*work.values(), (read + write) * 1e12, hbm * 1e12]


@EXECUTIONS
@settings(max_examples=60, deadline=None)
@given(operations=random_programs())
def test_no_step_beats_its_roofline(execution: str, operations: list[Operation]) -> None:
    lowered = lower(operations, execution)
    slack = 1 + 1e-6
    rounding = len(lowered.tasks) * 2
    assert all(makespan(lowered) * slack + rounding >= bound for bound in bounds(lowered))


@EXECUTIONS
@settings(max_examples=40, deadline=None)
@given(operations=random_programs())
def test_every_dependency_is_respected(execution: str, operations: list[Operation]) -> None:
    graph = lower(operations, execution).tasks.graph()
    outcome = schedule(graph)
    targets = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
    assert (outcome.start_ps[targets] >= outcome.end_ps[graph.dependencies] + graph.lag_ps).all()


@EXECUTIONS
@settings(max_examples=60, deadline=None)
@given(operations=random_programs())
def test_no_one_reads_what_is_not_made(execution: str, operations: list[Operation]) -> None:
    """The first compute task of an operation starts after the last of every earlier kernel whose result it reads."""
    lowered = lower(operations, execution)
    outcome, labels = schedule(lowered.tasks.graph()), list(lowered.tasks.labels)
    compute: dict[int, list[int]] = {}
    for task, label_id in enumerate(lowered.tasks.label_ids):
        if labels[label_id].category == "compute":
            compute.setdefault(labels[label_id].op, []).append(task)
    writer: dict[int, int] = {}
    for i, operation in enumerate(operations):
        for r in operation.inputs:
            source = writer.get(r.tensor)
            if source in compute and i in compute and operation.name != "cat":
                # tile by tile: the first of it after the first of that, the last after the last
                for pick in (min, max):
                    before = pick(outcome.start_ps[t] for t in compute[source])
                    assert pick(outcome.start_ps[t] for t in compute[i]) > before
        writer.update({r.tensor: i for r in operation.outputs})


@settings(max_examples=60, deadline=None)
@given(operations=random_programs())
def test_eager_kernels_do_not_overlap(operations: list[Operation]) -> None:
    lowered = lower(operations, "eager")
    outcome, labels = schedule(lowered.tasks.graph()), list(lowered.tasks.labels)
    working = [labels[i].category != "sync" for i in lowered.tasks.label_ids]
    owner = np.array([labels[i].op for i in lowered.tasks.label_ids])[working]
    spans = [
        (outcome.start_ps[working][owner == i].min(), outcome.end_ps[working][owner == i].max())
        for i in np.unique(owner)
    ]
    assert all(second[0] >= first[1] for first, second in itertools.pairwise(spans))


@pytest.mark.parametrize("length", [2, 5, 12])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (128, 512), (3000, 700)])
def test_fusing_a_chain_never_costs(length: int, rows: int, columns: int) -> None:
    operations = chain(length, rows, columns)
    assert makespan(lower(operations)) <= makespan(lower(operations, "eager"))


@settings(max_examples=60, deadline=None)
@given(operations=random_programs())
def test_fused_moves_no_more_than_eager(operations: list[Operation]) -> None:
    def total(execution: str) -> int:
        return sum(n for n in lower(operations, execution).tasks.nbytes if n > 0)

    assert total("fused") <= total("eager")


@settings(max_examples=40, deadline=None)
@given(operations=random_programs())
def test_exclusive_servers_serve_one_task_at_a_time(operations: list[Operation]) -> None:
    tasks = lower(operations).tasks
    outcome, first = schedule(tasks.graph()), first_servers(tasks.graph())
    for name in SERVERS[:-2]:
        on = first == SERVER_ID[name]
        start, end = outcome.start_ps[on], outcome.end_ps[on]
        order = np.argsort(start, kind="stable")
        assert (start[order][1:] >= end[order][:-1]).all()


def test_persistent_roles_are_those_that_the_capture_gives() -> None:
    assert set(PERSISTENT) == {"parameter", "buffer", "optimizer_state"}
