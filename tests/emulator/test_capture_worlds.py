"""Collectives of played worlds by closed form: how many, of which group, how many bytes (fabric.md, section 5, has the table)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from tests.emulator.distributed import calls, kinds, played
from tests.emulator.ranks.worlds import run

from trnprof.emulator.lowering.registry import plan_operation
from trnprof.emulator.system import load_system

pytest.importorskip("torch")

ULTRA = load_system("trn2-ultra")
LAYERS, WIDTH, TOKENS, BATCH, RANKS = 3, 64, 16, 2, 64
"""Of scripts/parallel.py."""
BLOCK = 2 * WIDTH + (WIDTH + 1) * 4 * WIDTH + (4 * WIDTH + 1) * WIDTH
"""Parameters of a block: a norm, and two linear layers with bias."""
MIB = 1 << 20


def padded(*shapes: tuple[int, ...]) -> int:
    """Elements of parameters that are sharded along their first dimension: each rank has as many rows."""
    total = 0
    for rows, *rest in shapes:
        columns = rest[0] if rest else 1
        total += -(-rows // RANKS) * RANKS * columns
    return total


HEAD = padded((WIDTH, WIDTH), (WIDTH,))


@pytest.mark.parametrize(
    ("way", "gather_itemsize", "keeps"),
    [("fsdp2", 4, False), ("fsdp2_keep", 4, True), ("fsdp2_mixed", 2, False)],
)
def test_fsdp2_gathers_each_layer_and_scatters_its_gradient(
    way: str, gather_itemsize: int, keeps: bool
) -> None:
    workload = played(RANKS, "parallel.py", way)
    for step in range(3):
        blocks = [("all_gather", "world", BLOCK * gather_itemsize)] * LAYERS
        head = ("all_gather", "world", HEAD * gather_itemsize)
        assert kinds(workload, step, "forward") == [head, *blocks]
        backward = kinds(workload, step, "backward")
        assert backward.count(blocks[0]) == (0 if keeps else LAYERS)
        assert head not in backward  # the root keeps its parameters after the forward
        assert backward.count(("reduce_scatter", "world", BLOCK * 4)) == LAYERS
        assert backward.count(("reduce_scatter", "world", HEAD * 4)) == 1
        assert len(backward) == LAYERS * (1 if keeps else 2) + 1
        assert not kinds(workload, step, "optimizer")


def test_fsdp2_that_reshards_to_pairs_gathers_within_them_in_the_backward() -> None:
    """``reshard_after_forward=2``: ranks 0 and 1 keep half of each block between them."""
    workload = played(RANKS, "parallel.py", "fsdp2_pairs")
    gathered = [
        (workload.groups[call.group].ranks, call.nbytes)
        for call in calls(workload, 1, "backward")
        if call.kind == "all_gather"
    ]
    assert gathered.count(((0, 1), BLOCK * 4)) == LAYERS
    assert kinds(workload, 1, "forward").count(("all_gather", "world", BLOCK * 4)) == LAYERS


def test_a_mesh_of_some_of_the_ranks_is_told() -> None:
    code = "from torch.distributed import init_device_mesh as m; import torch; m('cuda', (4,)); torch.nn.Linear(2, 2)(torch.ones(2))"
    noted = [note for note in played(8, "-c", code).notes if "mesh" in note]
    assert noted == ["the mesh 4 has 4 of 8 ranks: the others are emulated as if they did the same"]


def test_fsdp2_packs_its_own_shards_only() -> None:
    """A block is laid into its rank's part of the buffer, 1/64 of it, and taken apart whole: both read and write as many bytes."""
    workload = played(RANKS, "parallel.py", "fsdp2")
    operations = [op for op in workload.operations if op.step == 1]
    nbytes = {
        "fsdp::all_gather_copy_in": BLOCK * 4 // RANKS,
        "fsdp::split_with_sizes_copy": BLOCK * 4,
    }
    for name, expected in nbytes.items():
        found = [plan_operation(ULTRA.core, op) for op in operations if op.name == name]
        both = [tuple(sum(a.nbytes for a in way) for way in (p.reads, p.writes)) for p in found]
        assert both.count((expected, expected)) == 2 * LAYERS
        assert len(found) == 2 * LAYERS + 1  # and the head, once
    chunked = [op for op in operations if op.name == "fsdp::chunk_cat"]
    assert [sum(ref.nbytes for ref in op.inputs) for op in chunked].count(BLOCK * 4) == LAYERS
    assert all(plan_operation(ULTRA.core, op).exact for op in operations)


def test_fsdp1_gathers_flat_parameters() -> None:
    workload = played(RANKS, "parallel.py", "fsdp1")
    forward, backward = kinds(workload, 1, "forward"), kinds(workload, 1, "backward")
    block, head = ("all_gather", "world", BLOCK * 4), ("all_gather", "world", HEAD * 4)
    assert forward.count(block) == backward.count(block) == LAYERS
    assert forward.count(head) == 1
    assert backward.count(("reduce_scatter", "world", BLOCK * 4)) == LAYERS


def test_tensor_parallel_sums_activations_twice_a_layer() -> None:
    workload = played(RANKS, "parallel.py", "tp")
    activation = ("all_reduce", "world", BATCH * TOKENS * WIDTH * 4)
    for step in range(3):  # behind the second product; its mirror image in front of the first
        assert kinds(workload, step, "forward") == [activation] * LAYERS
        assert kinds(workload, step, "backward") == [activation] * LAYERS


def test_sequence_parallel_gathers_and_scatters_in_its_place() -> None:
    workload = played(RANKS, "parallel.py", "sp")
    # 16 tokens over 64 ranks: torch pads what it gathers and scatters to one token a rank
    nbytes = BATCH * RANKS * WIDTH * 4
    both = [("all_gather", "world", nbytes), ("reduce_scatter", "world", nbytes)] * LAYERS
    assert kinds(workload, 1, "forward") == both
    backward = kinds(workload, 1, "backward")
    assert sorted(backward) == sorted(both)


def test_two_dimensions_have_their_groups_and_siblings() -> None:
    workload = played(RANKS, "parallel.py", "2d")
    groups = {group.name: group for group in workload.groups}
    assert groups["tp"].ranks == (0, 1)
    assert groups["dp"].ranks == tuple(range(0, RANKS, 2))
    assert groups["tp"].siblings == tuple((r, r + 1) for r in range(0, RANKS, 2))
    assert groups["dp"].siblings == tuple(tuple(range(c, RANKS, 2)) for c in (0, 1))
    activation = ("all_reduce", "tp", BATCH * TOKENS * WIDTH * 4)
    forward = kinds(workload, 1, "forward")
    assert forward.count(activation) == LAYERS
    # each rank of dp has half of the two matrices and of the first bias; rows of a half over 32 ranks
    half = 2 * WIDTH + (WIDTH + 1) * 2 * WIDTH + 2 * WIDTH * WIDTH + WIDTH
    assert forward.count(("all_gather", "dp", half * 4)) == LAYERS


def test_hybrid_sharding_reduces_over_both() -> None:
    workload = played(RANKS, "parallel.py", "hsdp")
    backward = kinds(workload, 1, "backward")
    assert backward.count(("reduce_scatter", "shard", BLOCK * 4)) == LAYERS
    assert backward.count(("all_reduce", "replicate", BLOCK * 4 // (RANKS // 2))) == LAYERS


def test_ddp_buckets_follow_the_order_of_gradients() -> None:
    """Five blocks of width 512: 4 MiB a matrix, so the first bucket (1 MiB) closes with one, the others at 25 MiB."""
    workload = played(RANKS, "parallel.py", "big_ddp")
    width = 512
    up, down, norm = (width + 1) * 4 * width * 4, (4 * width + 1) * width * 4, 2 * width * 4
    ready = [size for _ in range(5) for size in (down, up, norm)]
    sizes = [call.nbytes for call in calls(workload, 2, "backward")]
    assert sum(sizes) == sum(ready)
    assert MIB <= sizes[0] < 2 * MIB + down
    assert all(size >= 25 * MIB for size in sizes[1:-1])
    first = [call.nbytes for call in calls(workload, 0, "backward")]
    assert sum(first) == sum(ready)  # before the buckets are built anew


def test_ddp_reduces_once_for_two_backwards_without_sync() -> None:
    accumulated = played(RANKS, "parallel.py", "accumulate")
    nbytes = LAYERS * BLOCK * 4
    assert kinds(accumulated, 2) == [("all_reduce", "world", nbytes)]
    backward = [op for op in accumulated.operations if op.step == 2 and op.phase == "backward"]
    assert len([op for op in backward if op.name == "mm"]) == 2 * LAYERS * 4


def test_a_static_graph_rebuilds_its_buckets_before_the_third_step() -> None:
    """As two real processes under gloo did (torch 2.13): who uses what and all gradients; gradients; the new order, gradients."""
    workload = played(RANKS, "parallel.py", "static")
    parameters = 6 * LAYERS
    gradients = ("all_reduce", "world", LAYERS * BLOCK * 4)
    order = [("broadcast", "world", (parameters + 1) * 4), ("broadcast", "world", 4)]
    assert kinds(workload, 0) == [("all_reduce", "world", parameters * 4), gradients]
    assert kinds(workload, 1) == [gradients]
    assert kinds(workload, 2) == [*order, gradients]


def test_buckets_are_reduced_while_the_backward_goes_on(tmp_path: Path) -> None:
    """The first bucket is sent under the products of the layers in front of it, and the update waits for the last."""
    emulated = run(tmp_path / "ddp.trnprof", played(RANKS, "parallel.py", "big_ddp"), ULTRA)
    ops = emulated.trace.ops.collect().select("op_id", operator="name")
    tracks = emulated.trace.tracks.select("track_id", track_kind=pl.col("kind").cast(pl.String))
    events = emulated.events.filter(pl.col("step") == 2).join(ops, on="op_id")
    events = events.join(tracks, on="track_id")
    buckets = events.filter(pl.col("track_kind") == "collective_stream").sort("start_ns")
    assert len(buckets) == 3
    starts, ends = buckets["start_ns"], buckets["end_ns"]
    assert (starts[1:] >= ends[:-1]).all()  # one after the other
    products = events.filter(pl.col("operator").is_in(["mm", "addmm"]))
    is_under = (pl.col("start_ns") < ends[0]) & (pl.col("end_ns") > starts[0])
    assert len(products.filter(is_under))
    assert products["end_ns"].max() > ends[0]
    updates = events.filter(pl.col("operator").str.contains("addcdiv"))
    assert updates["end_ns"].max() > ends[-1]


TITAN = {"layers": 2, "width": 64, "tokens": 64, "batch": 2, "vocabulary": 512, "hidden": 128}
"""Of scripts/titan.py; activations are bfloat16, what is over logits float32."""


def test_a_mesh_of_sharded_data_and_tensors_with_checkpointed_blocks() -> None:
    """Sequence parallel: two gathers and two scatters a block, one more of each around; the loss sums maxima, exponentials, and what was picked."""
    workload = played(8, "titan.py", "1", "2", "1", "4")
    assert not [note for note in workload.notes if "decided by values" in note]
    layers, rows = TITAN["layers"], TITAN["batch"] * TITAN["tokens"]
    activation = rows * TITAN["width"] * 2
    forward = Counter(kinds(workload, 1, "forward"))
    assert forward["all_gather", "tp", activation] == 2 * layers + 1
    assert forward["reduce_scatter", "tp", activation] == 2 * layers + 1
    assert forward["all_reduce", "tp", rows * 4] == 3
    backward = Counter(kinds(workload, 1, "backward"))
    # each becomes the other; blocks run again, but for the last operation, whose result nobody keeps
    assert backward["all_gather", "tp", activation] == 2 * layers + 1 + 2 * layers
    assert backward["reduce_scatter", "tp", activation] == 2 * layers + 1 + layers
    # gradients of the norms, whose weights every rank has
    assert backward["all_reduce", "tp", TITAN["width"] * 2] == 2 * layers + 1
    width, hidden = TITAN["width"], TITAN["hidden"]
    block = (4 * width * width + 3 * width * hidden) // 4 + 2 * width
    rest = 2 * TITAN["vocabulary"] * width // 4 + width
    for phase, times in (("forward", 1), ("backward", 1)):
        found = Counter(kinds(workload, 1, phase))
        assert found["all_gather", "dp_shard", 2 * block] == times * layers
    assert forward["all_gather", "dp_shard", 2 * rest] == 1
    assert backward["reduce_scatter", "dp_shard", 4 * block] == layers
    assert backward["reduce_scatter", "dp_shard", 4 * rest] == 1


def test_context_parallel_by_gathering_keys_and_values() -> None:
    workload = played(8, "titan.py", "1", "2", "2", "2")
    # keys and values of all tokens, of the heads of a rank
    nbytes = 2 * TITAN["batch"] * TITAN["tokens"] * TITAN["width"] // 2 * 2
    layers = TITAN["layers"]
    forward, backward = (Counter(kinds(workload, 1, p)) for p in ("forward", "backward"))
    assert forward["all_gather", "cp", nbytes] == layers
    assert backward["all_gather", "cp", nbytes] == 2 * layers  # forward again, and backward
    assert {(kind, name) for kind, name, _ in backward if name == "cp"} == {
        ("all_gather", "cp"),
        ("permute", "cp"),
    }


def test_what_backward_runs_again_is_mapped_to_the_emulated_device_too() -> None:
    workload = played(1, "recomputed.py")
    assert len(workload.steps) == 2
    assert "4 call(s) for a CUDA" in " ".join(workload.notes)
