"""How two cores share an operation (LNC 2): parts of work and traffic by hand, and what stays the same whatever the program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from tests.emulator.programs import CORE, TRN2, lower, moved, op, random_programs, ref

from trnprof.emulator.lowering.fusion import group_operations
from trnprof.emulator.lowering.logical import divide
from trnprof.emulator.lowering.registry import plan_operation
from trnprof.emulator.lowering.residency import lifetimes
from trnprof.emulator.lowering.step import LoweredStep, lower_step
from trnprof.emulator.ranks.placement import place_ranks
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.scheduler import schedule
from trnprof.emulator.workload import Operation

TWO = Ranks(TRN2, place_ranks(TRN2, 1, lnc=2))


def lower_two(operations: Sequence[Operation], execution: str = "fused") -> LoweredStep:
    return lower_step(TRN2, operations, 0, lifetimes(operations), execution, TWO)


def flops(lowered: LoweredStep) -> float:
    return sum(f for f in lowered.tasks.flops if f > 0)


def makespan(lowered: LoweredStep) -> int:
    return int(schedule(lowered.tasks.graph()).end_ps.max())


def product(m: int, k: int, n: int) -> Operation:
    return op("mm", [ref(1, m, k), ref(2, k, n, role="parameter")], [ref(3, m, n)])


@pytest.mark.parametrize(
    ("m", "n", "left", "right"),
    [(4096, 512, 0.5, 1.0), (512, 4096, 1.0, 0.5), (1024, 1024, 0.5, 1.0)],
    ids=["more rows", "more columns", "square"],
)
def test_a_product_is_cut_along_its_larger_side(m: int, n: int, left: float, right: float) -> None:
    """Never along K: one operand is read in halves, the other whole by both, and the result written in halves."""
    operation = product(m, 1024, n)
    one, two = lower([operation]), lower_two([operation])
    assert flops(two) * 2 == flops(one) == 2.0 * m * 1024 * n
    bytes_left, bytes_right, result = (4 * a * b for a, b in ((m, 1024), (1024, n), (m, n)))
    assert moved(one)["load"][0] == bytes_left + bytes_right
    assert moved(two)["load"][0] == left * bytes_left + right * bytes_right
    assert moved(two)["store"][0] * 2 == moved(one)["store"][0] == result


def test_a_large_product_takes_half_as_long() -> None:
    operation = product(8192, 4096, 4096)
    ratio = makespan(lower_two([operation])) / makespan(lower([operation]))
    assert 0.5 <= ratio < 0.53


@pytest.mark.parametrize("shape", [(4096, 512), (1 << 20,), (3, 5, 700)])
def test_elementwise_work_and_traffic_are_halved(shape: tuple[int, ...]) -> None:
    operation = op("add", [ref(1, *shape), ref(2, *shape)], [ref(3, *shape)])
    one, two = moved(lower([operation])), moved(lower_two([operation]))
    for way in ("load", "store"):
        assert two[way][0] == pytest.approx(one[way][0] / 2, abs=4)


def test_attention_goes_by_heads() -> None:
    """Keys and values too: no head is on two cores."""
    q, k, v = (ref(n, 2, 8, 1024, 64, dtype="bfloat16") for n in (1, 2, 3))
    out = ref(4, 2, 8, 1024, 64, dtype="bfloat16")
    operation = op("_scaled_dot_product_flash_attention", [q, k, v], [out])
    one, two = lower([operation]), lower_two([operation])
    assert moved(two)["load"][0] * 2 == moved(one)["load"][0]
    assert flops(two) * 2 == flops(one)


def test_what_is_normalised_over_is_not_cut() -> None:
    """A softmax of few long rows is dealt out by rows all the same; one row is done by both."""
    for rows, share in ((4, 0.5), (1, 1.0)):
        x, y = ref(1, rows, 8192), ref(2, rows, 8192)
        operation = op("_softmax", [x], [y], dim=[1])
        assert (
            moved(lower_two([operation]))["load"][0] == share * moved(lower([operation]))["load"][0]
        )


def test_what_each_needs_whole_goes_through_hbm() -> None:
    """Made in halves, then the right operand of a product of many rows: SBUF of neither core has all of it."""
    w, x, out = ref(2, 256, 512), ref(4, 4096, 256), ref(5, 4096, 512)
    operations = [op("gelu", [ref(1, 256, 512)], [w]), op("mm", [x, w], [out])]
    last = op("detach", [], [], freed=[1, 2, 4, 5])
    one, two = lower([*operations, last]), lower_two([*operations, last])
    assert not moved(one)["store"][0]
    assert moved(two)["store"][0] == w.nbytes / 2
    assert moved(two)["load"][1] == x.nbytes / 2 + w.nbytes


def test_what_both_take_by_the_same_rows_stays_in_sbuf() -> None:
    a, b, c = (ref(n, 2048, 128) for n in (1, 2, 3))
    operations = [op("gelu", [a], [b]), op("sort", [b], [c])]
    last = op("detach", [], [], freed=[1, 2, 3])
    assert not moved(lower_two([*operations, last]))["store"][0]


def test_memory_is_that_of_both_cores() -> None:
    operation = product(2048, 512, 1024)
    assert lower_two([operation]).hbm_storages == lower([operation]).hbm_storages


@settings(max_examples=60, deadline=None)
@given(operations=random_programs())
def test_two_cores_do_all_the_work_and_neither_more_than_one_did(
    operations: list[Operation],
) -> None:
    plans = tuple(plan_operation(CORE, each) for each in operations)
    divided, _ = divide(plans, group_operations(CORE, operations, plans, fuse=True), 2)
    for whole, part in zip(plans, divided, strict=True):
        for before, after in zip(whole.stages, part.stages, strict=True):
            assert before.work_ps / 2 <= after.work_ps <= before.work_ps
            assert before.flops / 2 <= after.flops <= before.flops
        for before, after in zip(
            (*whole.reads, *whole.writes), (*part.reads, *part.writes), strict=True
        ):
            assert before.nbytes / 2 <= after.nbytes <= before.nbytes
    for execution in ("fused", "eager"):
        makespan(lower_two(operations, execution))
