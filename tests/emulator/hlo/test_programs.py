"""Operations of HLO written by hand, held against XLA's own cost analysis and against what the text says."""

from __future__ import annotations

import pytest

from trnprof.emulator.capture.hlo.module import parse_module
from trnprof.emulator.capture.hlo.program import Program, program_of
from trnprof.tracer.errors import CaptureError

hlo = pytest.importorskip("jaxlib._hlo", reason="needs JAX: pip install 'trnprof[jax]'")

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"


def program(text: str, partitions: int = 1, rank: int = 0) -> Program:
    data = hlo.hlo_module_from_text("HloModule jit_f\n" + text).as_serialized_hlo_module_proto()
    return program_of(parse_module(data, is_hlo=False), 1, partitions, rank)


def names(found: Program) -> list[str]:
    return [op.name for op in found.operations]


def flops(found: Program) -> float:
    return sum(op.model_flops for op in found.operations)


def xla_flops(text: str) -> float:
    import jax
    from jaxlib import _jax

    module = hlo.hlo_module_from_text("HloModule jit_f\n" + text)
    client = jax.devices("cpu")[0].client
    return float(_jax.hlo_module_cost_analysis(client, module)["flops"])


DOTS = {
    "plain": (
        "f32[8,16]",
        "f32[16,4]",
        "f32[8,4]",
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "both contracted first": (
        "bf16[16,8]",
        "bf16[16,4]",
        "bf16[8,4]",
        "lhs_contracting_dims={0}, rhs_contracting_dims={0}",
    ),
    "batched": (
        "f32[3,8,16]",
        "f32[3,4,16]",
        "f32[3,8,4]",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}",
    ),
    "vector": (
        "f32[16]",
        "f32[16,4]",
        "f32[4]",
        "lhs_contracting_dims={0}, rhs_contracting_dims={0}",
    ),
    "outer": ("f32[5]", "f32[7]", "f32[5,7]", "lhs_contracting_dims={}, rhs_contracting_dims={}"),
}


@pytest.mark.parametrize("case", DOTS)
def test_flops_of_a_product_are_xlas(case: str) -> None:
    a, b, out, dims = DOTS[case]
    text = (
        f"ENTRY e {{ a = {a} parameter(0) b = {b} parameter(1) ROOT d = {out} dot(a, b), {dims} }}"
    )
    found = program(text)
    (op,) = found.operations
    assert op.model_flops == xla_flops(text)
    # in aten's order: [batch, m, k] x [batch, k, n]
    left, right, made = op.inputs[0].shape, op.inputs[1].shape, op.outputs[0].shape
    assert (left[:-1], left[-1], right[-1]) == (made[:-1], right[-2], made[-1])


CONVOLUTIONS = {
    "same": (
        "f32[2,8,8,3]",
        "f32[3,3,3,5]",
        "f32[2,8,8,5]",
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
    ),
    "strided": (
        "f32[2,8,9,4]",
        "f32[3,3,4,6]",
        "f32[2,4,4,6]",
        "window={size=3x3 stride=2x2 pad=1_0x0_0}, dim_labels=b01f_01io->b01f",
    ),
    "holes in the window": (
        "f32[1,9,9,2]",
        "f32[3,3,2,2]",
        "f32[1,5,5,2]",
        "window={size=3x3 rhs_dilate=2x2}, dim_labels=b01f_01io->b01f",
    ),
    "holes in the image": (
        "f32[1,4,4,2]",
        "f32[3,3,2,2]",
        "f32[1,7,7,2]",
        "window={size=3x3 pad=1_1x1_1 lhs_dilate=2x2}, dim_labels=b01f_01io->b01f",
    ),
    "depthwise": (
        "f32[1,6,6,4]",
        "f32[3,3,1,4]",
        "f32[1,4,4,4]",
        "window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=4",
    ),
    "gradient of weights": (
        "f32[2,8,8,3]",
        "f32[2,8,8,5]",
        "f32[3,3,3,5]",
        "window={size=8x8 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf",
    ),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_flops_of_a_convolution_are_xlas(case: str) -> None:
    image, weight, out, how = CONVOLUTIONS[case]
    text = f"ENTRY e {{ a = {image} parameter(0) b = {weight} parameter(1) ROOT c = {out} convolution(a, b), {how} }}"
    (op,) = program(text).operations
    assert op.name == "convolution"
    assert op.model_flops == xla_flops(text)


LOOP = """
cond {{ s = (s32[], f32[4,4]) parameter(0) i = s32[] get-tuple-element(s), index=0 n = s32[] constant({limit})
  ROOT lt = pred[] compare(i, n), direction={direction} }}
body {{ s = (s32[], f32[4,4]) parameter(0) i = s32[] get-tuple-element(s), index=0 x = f32[4,4] get-tuple-element(s), index=1
  k = s32[] constant({stride}) j = s32[] add(i, k) y = f32[4,4] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = (s32[], f32[4,4]) tuple(j, y) }}
ENTRY e {{ x = f32[4,4] parameter(0) i = s32[] constant({start}) t = (s32[], f32[4,4]) tuple(i, x)
  w = (s32[], f32[4,4]) while(t), condition=cond, body=body ROOT r = f32[4,4] get-tuple-element(w), index=1 }}
"""


@pytest.mark.parametrize(
    ("start", "stride", "limit", "direction"),
    [(0, 1, 5, "LT"), (0, 2, 5, "LE"), (10, -3, 0, "GT"), (3, 1, 3, "LT"), (1, 1, 4, "NE")],
)
def test_a_loop_with_constant_bounds_runs_as_often_as_python_would(
    start: int, stride: int, limit: int, direction: str
) -> None:
    goes_on = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "NE": int.__ne__}[direction]
    trips, at = 0, start
    while goes_on(at, limit):
        trips, at = trips + 1, at + stride
    text = LOOP.format(start=start, stride=stride, limit=limit, direction=direction)
    found = program(text)
    assert names(found) == ["mm"] * trips
    assert not found.notes
    assert flops(found) == trips * 2 * 4**3


def test_a_loop_until_convergence_counts_once_or_as_xla_says() -> None:
    text = """
cond { s = (f32[], f32[4]) parameter(0) e = f32[] get-tuple-element(s), index=0 z = f32[] constant(1)
  ROOT lt = pred[] compare(e, z), direction=GT }
body { s = (f32[], f32[4]) parameter(0) e = f32[] get-tuple-element(s), index=0 x = f32[4] get-tuple-element(s), index=1
  y = f32[4] exponential(x) h = f32[] exponential(e) ROOT t = (f32[], f32[4]) tuple(h, y) }
ENTRY e { s = (f32[], f32[4]) parameter(0) ROOT w = (f32[], f32[4]) while(s), condition=cond, body=body%s }
"""
    found = program(text % "")
    assert sorted(names(found)) == ["exp", "exp"]
    assert "depends on data" in found.notes[0]
    known = program(text % ', backend_config={"known_trip_count":{"n":"7"}}')
    assert sorted(names(known)) == ["exp"] * 14
    assert not known.notes


def test_fusions_and_calls_are_taken_apart() -> None:
    text = """
inner { x = f32[8] parameter(0) ROOT y = f32[8] tanh(x) }
fused { a = f32[8] parameter(0) b = f32[8] parameter(1) m = f32[8] multiply(a, b) ROOT s = f32[8] subtract(m, b) }
ENTRY e { a = f32[8] parameter(0) b = f32[8] parameter(1) c = f32[8] call(a), to_apply=inner
  ROOT f = f32[8] fusion(c, b), kind=kLoop, calls=fused }
"""
    found = program(text)
    assert names(found) == ["tanh", "mul", "sub"]
    assert found.operations[1].inputs[0].tensor == found.operations[0].outputs[0].tensor


def test_what_nobody_reads_does_not_run() -> None:
    found = program(
        "ENTRY e { a = f32[8] parameter(0) u = f32[8] tanh(a) ROOT r = f32[8] negate(a) }"
    )
    assert names(found) == ["neg"]


COLLECTIVES = {
    "all-reduce": ("f32[8,4]", "f32[8,4]", ", to_apply=add", "all_reduce", 128),
    "reduce-scatter": (
        "f32[8,4]",
        "f32[4,4]",
        ", to_apply=add, dimensions={0}",
        "reduce_scatter",
        128,
    ),
    "all-gather": ("f32[8,4]", "f32[16,4]", ", dimensions={0}", "all_gather", 256),
    "all-to-all": ("f32[8,4]", "f32[8,4]", ", dimensions={0}", "all_to_all", 128),
}


@pytest.mark.parametrize("opcode", COLLECTIVES)
@pytest.mark.parametrize("groups", ["{{0,2},{1,3}}", "[2,2]<=[2,2]T(1,0)"])
def test_bytes_and_ranks_of_collectives(opcode: str, groups: str) -> None:
    argument, result, more, kind, nbytes = COLLECTIVES[opcode]
    use = "" if opcode == "all-to-all" else ", use_global_device_ids=true"
    text = f"""{ADD}
ENTRY e {{ p = {argument} parameter(0) ROOT r = {result} {opcode}(p), channel_id=1, replica_groups={groups}{use}{more} }}"""
    found = program(text, 4, rank=3)
    (op,) = found.operations
    assert op.collective is not None
    assert (op.collective.kind, op.collective.nbytes) == (kind, nbytes)
    assert found.groups == (((1, 3), ((0, 2), (1, 3))),)


def test_a_start_and_its_done_are_one_collective() -> None:
    text = f"""{ADD}
ENTRY e {{ p = f32[8] parameter(0)
  s = f32[8] all-reduce-start(p), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=add
  n = f32[8] negate(p)
  d = f32[8] all-reduce-done(s)
  g = (f32[8], f32[16]) all-gather-start(d), channel_id=2, replica_groups={{{{0,1}}}}, use_global_device_ids=true, dimensions={{0}}
  h = f32[16] all-gather-done(g)
  ROOT t = (f32[16], f32[8]) tuple(h, n) }}"""
    found = program(text, 2)
    calls = [op for op in found.operations if op.collective]
    assert [(op.collective.kind, op.collective.nbytes) for op in calls if op.collective] == [
        ("all_reduce", 32),
        ("all_gather", 64),
    ]
    assert calls[1].inputs[0].tensor == calls[0].outputs[0].tensor
    assert names(found).count("neg") == 1


def test_a_reduction_that_xla_promoted_counts_its_own_bytes() -> None:
    text = """{} {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }}
ENTRY e {{ p = f32[8] parameter(0) ROOT r = f32[8] all-reduce(p), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply={} }}"""
    for name, nbytes in (("add.clone_promoted", 16), ("add", 32)):
        (op,) = program(text.format(name, name), 2).operations
        assert op.collective is not None
        assert op.collective.nbytes == nbytes


def test_a_ring_is_a_permutation_and_a_rank_outside_does_nothing() -> None:
    text = "ENTRY e { p = f32[8] parameter(0) ROOT r = f32[8] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}} }"
    found = program(text, 4)
    (op,) = found.operations
    assert op.collective is not None
    assert (op.collective.kind, op.collective.nbytes) == ("permute", 32)
    assert found.groups[0][0] == (0, 1, 2)
    outside = program(text, 4, rank=3)
    assert not outside.operations
    assert "takes no part" in outside.notes[0]


def test_an_update_of_a_slice_writes_the_slice_alone_into_donated_memory() -> None:
    text = """, input_output_alias={ {}: (0, {}, may-alias) }
ENTRY e { c = f32[64,8] parameter(0) u = f32[1,8] parameter(1) i = s32[] parameter(2) z = s32[] constant(0)
  ROOT r = f32[64,8] dynamic-update-slice(c, u, i, z) }"""
    data = hlo.hlo_module_from_text("HloModule jit_f" + text).as_serialized_hlo_module_proto()
    (op,) = program_of(parse_module(data, is_hlo=False)).operations
    (written,) = op.outputs
    assert (written.tensor, written.nbytes, written.storage_nbytes) == (0, 32, 2048)
    kept = program(text.partition("\n")[2])  # not donated: copied first
    assert names(kept) == ["clone", "copy_"]
    assert kept.operations[1].outputs[0].tensor == kept.operations[0].outputs[0].tensor


def test_a_donated_weight_is_overwritten_after_its_last_reader() -> None:
    donor = ", buffer_donor={ (0, {}) }"
    text = """
ENTRY e { w = f32[8] parameter(0) g = f32[8] parameter(1) n = f32[8] subtract(w, g) d = f32[8] multiply(w, w) t = f32[8] tanh(d)
  ROOT r = (f32[8], f32[8]) tuple(n, t) }"""
    data = hlo.hlo_module_from_text(
        "HloModule jit_f" + donor + text
    ).as_serialized_hlo_module_proto()
    found = program_of(parse_module(data, is_hlo=False))
    assert sorted(names(found)) == ["mul", "sub", "tanh"]
    assert names(found).index("sub") > names(found).index("mul")
    update = found.operations[names(found).index("sub")]
    assert update.outputs[0].tensor == 0
    assert found.results[0] is not None
    assert found.results[0].tensor == 0
    kept = program(text)
    assert all(op.outputs[0].tensor > 1 for op in kept.operations)


def test_tensors_die_after_their_last_reader() -> None:
    text = "ENTRY e { a = f32[8] parameter(0) b = f32[8] tanh(a) c = f32[8] negate(b) d = f32[8] add(b, c) ROOT e = f32[8] sqrt(d) }"
    found = program(text)
    b, c, d = (op.outputs[0].tensor for op in found.operations[:3])
    assert [set(op.freed) for op in found.operations] == [set(), set(), set(), {b, c}]
    assert found.left == (d,)


def test_a_reduction_knows_its_dimensions_and_what_it_applies() -> None:
    text = """m { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] maximum(a, b) }
ENTRY e { a = f32[8,4,2] parameter(0) z = f32[] constant(0) ROOT r = f32[4] reduce(a, z), dimensions={0,2}, to_apply=m }"""
    (op,) = program(text).operations
    assert (op.name, op.arguments) == ("amax", {"dim": [0, 2]})


def test_bytes_that_are_no_module_are_refused() -> None:
    with pytest.raises(CaptureError, match="cannot be read"):
        parse_module(b"\xff\xff\xff")
    with pytest.raises(CaptureError, match="no entry computation"):
        parse_module(b"")
