"""Operators that choose, and products by group: what work their plans name."""

from __future__ import annotations

import pytest
from tests.emulator.programs import CORE, op, ref

from trnprof.emulator.lowering.registry import plan_operation
from trnprof.emulator.workload import TensorRef


def vector_passes(name: str, inputs: list[TensorRef], outputs: list[TensorRef]) -> int:
    plan = plan_operation(CORE, op(name, inputs, outputs))
    assert plan.exact
    return sum(stage.chain for stage in plan.stages if stage.engine == "Vector")


@pytest.mark.parametrize(("chosen", "rounds"), [(1, 1), (8, 1), (9, 2), (50, 7)])
def test_topk_finds_eight_at_a_time_by_three_instructions(chosen: int, rounds: int) -> None:
    out = [ref(1, 4, chosen), ref(2, 4, chosen, dtype="int64")]
    assert vector_passes("topk", [ref(0, 4, 1000)], out) == 3 * rounds


@pytest.mark.parametrize(("values", "passes"), [(1, 1), (2, 3), (5, 9)])
def test_isin_compares_with_each_value_and_joins(values: int, passes: int) -> None:
    inputs = [ref(0, 4, 8, dtype="int64"), ref(1, values, dtype="int64")]
    assert vector_passes("isin", inputs, [ref(2, 4, 8, dtype="bool")]) == passes


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((64, 32), (4, 32, 16), (64, 16)),
        ((32, 64), (64, 16), (4, 32, 16)),
    ],
    ids=["forward", "weights"],
)
def test_a_grouped_product_has_the_flops_of_all_its_rows(
    a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...]
) -> None:
    inputs = [ref(0, *a), ref(1, *b), ref(2, 4, dtype="int64")]
    plan = plan_operation(CORE, op("_grouped_mm", inputs, [ref(3, *out)]))
    assert plan.exact
    assert sum(stage.flops for stage in plan.stages) == 2 * 64 * 32 * 16
