"""Is there an operation, however odd, that lowering cannot take? Random shapes for every operator that has a rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.programs import CORE, ITEMSIZE, TRN2, lower

from trnprof.emulator.lowering.elementwise import CODES
from trnprof.emulator.lowering.movement import COPIES, GATHERS, JOINS, POOLS, SCATTERS
from trnprof.emulator.lowering.registry import NO_WORK, plan_operation
from trnprof.emulator.lowering.rowwise import REDUCTIONS, ROWWISE
from trnprof.emulator.reference import schedule as readable_schedule
from trnprof.emulator.scheduler import schedule
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Operation, TensorRef

PRODUCTS = (
    "mm bmm mv dot _int_mm matmul linear addmm addmm_ baddbmm baddbmm_ addmv addbmm convolution convolution_backward "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
).split()
FOREACH = [
    f"_foreach_{name}_" for name in ("add", "mul", "sqrt", "addcdiv", "norm", "copy", "zero")
]
UNKNOWN = ["mylib::op", "nonzero", "prim::device", "__and__"]
OPERATORS = sorted(
    {
        *PRODUCTS,
        *CODES,
        *ROWWISE,
        *REDUCTIONS,
        *GATHERS,
        *SCATTERS,
        *JOINS,
        *COPIES,
        *POOLS,
        *NO_WORK,
    }
    | {*FOREACH, *UNKNOWN, "add_", "index_put_", "scatter_add_", "masked_fill_"}
)

SIZES = st.sampled_from([0, 1, 2, 3, 64, 127, 129, 513])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> TensorRef:
    """Views of few storages: they overlap, are smaller than them, or expanded beyond them."""
    shape, dtype = draw(SHAPES), draw(st.sampled_from(sorted(ITEMSIZE)))
    nbytes = int(np.prod(shape, dtype=np.int64)) * ITEMSIZE[dtype]
    storage = draw(st.sampled_from([nbytes, 4 * nbytes, nbytes // 4, 0]))
    role = draw(st.sampled_from(["activation", "parameter", "gradient", "input"]))
    number = draw(st.integers(0, 5))
    return TensorRef(number, shape, dtype, nbytes, storage, role, draw(st.booleans()))


ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "dim": st.one_of(st.integers(-4, 3), st.lists(st.integers(-4, 3), max_size=3)),
        "groups": st.integers(1, 3),
        "group": st.integers(1, 3),
        "transposed": st.booleans(),
        "is_causal": st.booleans(),
        "kernel_size": st.lists(st.integers(1, 3), min_size=1, max_size=2),
        "output_mask": st.lists(st.booleans(), min_size=3, max_size=3),
        "amsgrad": st.booleans(),
        "momentum": st.sampled_from([0.0, 0.9]),
    },
)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    name = draw(st.sampled_from(OPERATORS))
    inputs = tuple(draw(st.lists(tensors(), max_size=6)))
    outputs = tuple(draw(st.lists(tensors(), max_size=4)))
    in_place: bool = draw(st.booleans())
    if inputs and in_place:
        outputs = (inputs[0], *outputs)
    freed = tuple(draw(st.lists(st.integers(0, 5), max_size=2)))
    phase = draw(st.sampled_from(["forward", "backward", "optimizer"]))
    return Operation(name, phase, 0, inputs, outputs, freed=freed, arguments=draw(ARGUMENTS))


@settings(max_examples=300, deadline=None)
@given(op=operations())
def test_a_plan_is_well_formed(op: Operation) -> None:
    plan = plan_operation(CORE, op)
    assert plan.form in ("elementwise", "rowwise", "producer", "move", "none")
    assert plan.form == "none" or plan.tiles >= 1
    for stage in plan.stages:
        assert stage.work_ps >= 0
        assert stage.instructions >= 0
        assert stage.chain >= 1
        assert stage.flops >= 0
    for access in (*plan.reads, *plan.writes):
        assert access.nbytes >= 0
        assert access.row_bytes >= 1


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_operator_takes_odd_tensors(name: str, data: st.DataObject) -> None:
    inputs = tuple(data.draw(st.lists(tensors(), max_size=6)))
    outputs = tuple(data.draw(st.lists(tensors(), max_size=3)))
    arguments = data.draw(ARGUMENTS)
    plan_operation(CORE, Operation(name, "forward", 0, inputs, outputs, arguments=arguments))


@pytest.mark.parametrize("execution", ["fused", "eager"])
@settings(max_examples=50, deadline=None)
@given(ops=st.lists(operations(), max_size=7))
def test_any_operations_become_a_graph_that_both_schedulers_take(
    execution: str, ops: list[Operation]
) -> None:
    graph = lower(ops, execution).tasks.graph()
    for offset, target in enumerate(
        np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
    ):
        assert graph.dependencies[offset] < target
    fast, readable = schedule(graph), readable_schedule(graph)
    assert (fast.start_ps == readable.start_ps).all()


def test_systems_differ_in_time_only() -> None:
    matrix = TensorRef(0, (256, 256), "float8_e4m3fn", 65_536, 65_536, "input")
    product = Operation("mm", "forward", 0, (matrix, matrix), (matrix,))
    for name in ("trn1", "trn2", "trn2-ultra"):
        plan = plan_operation(load_system(name).core, product)
        assert [s.flops for s in plan.stages] == [2.0 * 256**3, 0.0]
    assert TRN2.name == "trn2"
