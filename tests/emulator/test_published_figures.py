"""The cost model against figures that others measured on hardware (sources: the system files' [sources])."""

from __future__ import annotations

import math

import pytest

from trnprof.emulator.cost import dma_cost, matmul_ps, scalar_ps, to_ps
from trnprof.emulator.lowering.residency import lifetimes
from trnprof.emulator.lowering.step import lower_step
from trnprof.emulator.lowering.tasks import SERVER_ID, Dependency, TaskLabel, TaskList
from trnprof.emulator.scheduler import schedule
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Operation, TensorRef

TRN2 = load_system("trn2")
LABEL = TaskLabel("task", "compute", 0)


def tensor(number: int, shape: tuple[int, ...], dtype: str) -> TensorRef:
    nbytes = math.prod(shape) * (4 if dtype == "float32" else 2)
    return TensorRef(number, shape, dtype, nbytes, nbytes, "activation")


def matmul_ms(m: int, k: int, n: int, dtype: str) -> float:
    op = Operation(
        "mm",
        "forward",
        0,
        (tensor(0, (m, k), dtype), tensor(1, (k, n), dtype)),
        (tensor(2, (m, n), dtype),),
    )
    lowered = lower_step(TRN2, [op], 0, lifetimes([op]), "fused")
    return float(schedule(lowered.tasks.graph()).end_ps.max()) / 1e9


def test_bf16_matmul_2048() -> None:
    # nki-autotune, hand kernel lhsT_rhs: 90.92 % MFU on one NeuronCore-v3
    assert matmul_ms(2048, 2048, 2048, "bfloat16") == pytest.approx(0.240, rel=0.10)


def test_fp32_matmul_4096_8192_8192() -> None:
    # kernel-optimization tutorial, hoisted loads: 28.20 ms
    assert matmul_ms(4096, 8192, 8192, "float32") == pytest.approx(28.2, rel=0.10)


CURVE = {
    32: 1.2, 64: 2.6, 128: 5.0, 256: 10.3, 512: 20.6, 1024: 42.2, 2048: 81.3, 4096: 96.6, 8192: 98.3,
    16384: 99.0, 32768: 100.0,
}  # fmt: skip


@pytest.mark.parametrize("row_bytes", CURVE)
def test_dma_size_curve(row_bytes: int) -> None:
    # NKI DMA bandwidth guide: per cent of peak by bytes a partition, 128 partitions
    def rate(row: int) -> float:
        total = 128 * row * 64
        return total / dma_cost(TRN2.core, total, row, write=False).slot_ps

    assert 100 * rate(row_bytes) / rate(32768) == pytest.approx(CURVE[row_bytes], abs=5.0)


def timeline() -> dict[str, float]:
    """Load [4, 4096] bf16, exp on it, store it: the NKI DMA overview's first kernel, trigger at 22,280 ns."""
    core = TRN2.core
    load = dma_cost(core, 32_768, 8_192, write=False, partitions=4)
    store = dma_cost(core, 32_768, 8_192, write=True, partitions=4)
    act_ps = scalar_ps(core, 4096)
    tasks = TaskList()
    sync, scalar, queue = (SERVER_ID[n] for n in ("Sync", "Scalar", "DMA q0"))
    trigger = tasks.add(LABEL, load.issue_ps, ((sync, load.issue_ps),), [])
    transfer = tasks.add(
        LABEL,
        load.transfer_ps,
        ((queue, load.slot_ps),),
        [Dependency(trigger, load.start_ps - load.issue_ps)],
    )
    table_ps = to_ps(core.scalar.table_load_ns)
    table = tasks.add(LABEL, table_ps, ((scalar, table_ps),), [Dependency(transfer, load.done_ps)])
    act = tasks.add(LABEL, act_ps, ((scalar, act_ps),), [Dependency(table)])
    latency = to_ps(core.scalar.latency_ns)
    again = tasks.add(
        LABEL,
        store.issue_ps,
        ((sync, store.issue_ps),),
        [Dependency(act, latency + to_ps(core.semaphore_ns))],
    )
    written = tasks.add(
        LABEL,
        store.transfer_ps,
        ((queue, store.slot_ps),),
        [Dependency(again, store.start_ps - store.issue_ps)],
    )
    outcome = schedule(tasks.graph(release_ps=to_ps(22_280)))
    start, end = outcome.start_ps / 1000, outcome.end_ps / 1000
    return {
        "load starts": start[transfer],
        "load ends": end[transfer],
        "ScalarE starts": start[table],
        "exp takes": end[act] - start[act] + latency / 1000,
        "store triggered": start[again],
        "store starts": start[written],
        "store ends": end[written],
        "store seen": end[written] + store.done_ps / 1000,
    }


@pytest.mark.parametrize(
    ("what", "measured_ns"),
    [
        ("load starts", 23_283),
        ("load ends", 24_699),
        ("ScalarE starts", 25_020),
        ("exp takes", 3_710),
        ("store triggered", 30_095),
        ("store starts", 30_990),
        ("store ends", 32_210),
        ("store seen", 32_547),
    ],
)
def test_dma_and_activate_timestamps(what: str, measured_ns: float) -> None:
    assert timeline()[what] == pytest.approx(measured_ns, abs=30)


def test_software_dma_timestamps() -> None:
    # [128, 128] bf16 by software DGE: first engine 34,040, all done 34,507, ScalarE 34,804; ACTIVATE 401 ns
    cost = dma_cost(TRN2.core, 128 * 256, 256, write=False, software=True)
    trigger = 33_303
    first = trigger + cost.start_ps / 1000
    done = first + cost.transfer_ps / 1000
    assert first == pytest.approx(34_040, abs=30)
    assert done == pytest.approx(34_507, abs=30)
    assert done + cost.done_ps / 1000 == pytest.approx(34_804, abs=30)
    core = TRN2.core
    assert scalar_ps(core, 128) / 1000 + core.scalar.latency_ns == pytest.approx(401, abs=30)


def test_dependent_scalar_chain_on_trn1() -> None:
    # NKI performance guide: one-element instructions that depend on each other issue every 189 ns
    core = load_system("trn1").core
    tasks = TaskList()
    issue = scalar_ps(core, 1)
    lag = to_ps(core.scalar.latency_ns)
    after: list[Dependency] = []
    for _ in range(100):
        after = [Dependency(tasks.add(LABEL, issue, ((SERVER_ID["Scalar"], issue),), after), lag)]
    start = schedule(tasks.graph()).start_ps
    assert (start[99] - start[0]) / 99 / 1000 == pytest.approx(189, abs=1)


def tiled_matmul_ms(*, issue: bool) -> float:
    """The tutorial's tiled kernel: both tiles loaded for every product, one result tile stored at the end.

    fp32 4096 x 8192 x 8192 in [128, 128] x [128, 512] tiles: 32,768 products, 65,536 loads, 512 stores. One engine
    triggers all loads; left and right tiles go through a queue each, four of each in flight.
    """
    core = TRN2.core
    left = dma_cost(core, 128 * 512, 512, write=False)
    right = dma_cost(core, 128 * 2048, 2048, write=False)
    store = dma_cost(core, 128 * 2048, 2048, write=True)
    product_ps = matmul_ps(core, 128, 128, 512, "float32")
    sync, gpsimd, tensor_engine, vector = (
        SERVER_ID[n] for n in ("Sync", "GpSimd", "Tensor", "Vector")
    )
    engines, q0, q1, q2 = (SERVER_ID[n] for n in ("DMA engines", "DMA q0", "DMA q1", "DMA q2"))
    issue_ps = left.issue_ps if issue else 0
    latency, buffers = to_ps(core.tensor.latency_ns), 4
    tasks, products = TaskList(), []
    for _tile in range(32 * 16):
        for _ in range(64):
            reuse = [Dependency(products[-buffers])] if len(products) >= buffers else []
            loads = []
            for cost, queue in ((left, q0), (right, q1)):
                slot = cost.slot_ps if issue else cost.engines_ps
                trigger = tasks.add(LABEL, issue_ps, ((sync, issue_ps),), reuse)
                lag = cost.start_ps - issue_ps
                held = ((queue, slot), (engines, cost.engines_ps))
                loads.append(tasks.add(LABEL, cost.transfer_ps, held, [Dependency(trigger, lag)]))
            after = [Dependency(load, left.done_ps) for load in loads]
            products.append(tasks.add(LABEL, product_ps, ((tensor_engine, product_ps),), after))
        copy_ps = round(512 / core.vector.clock_ghz * 1000)
        copied = tasks.add(
            LABEL, copy_ps, ((vector, copy_ps),), [Dependency(products[-1], latency)]
        )
        ready = [Dependency(copied, to_ps(core.vector.latency_ns + core.semaphore_ns))]
        out = tasks.add(LABEL, store.issue_ps, ((gpsimd, store.issue_ps),), ready)
        lag = store.start_ps - store.issue_ps
        tasks.add(
            LABEL,
            store.transfer_ps,
            ((q2, store.slot_ps), (engines, store.engines_ps)),
            [Dependency(out, lag)],
        )
    return float(schedule(tasks.graph()).end_ps.max()) / 1e9


def test_tiled_matmul_is_bound_by_dma_issue() -> None:
    # kernel-optimization tutorial, step v2: 39.89 ms
    assert tiled_matmul_ms(issue=True) == pytest.approx(39.89, rel=0.10)


def test_a_bandwidth_only_model_misses_the_tiled_matmul() -> None:
    assert tiled_matmul_ms(issue=False) < 0.80 * 39.89
