"""Loops that mark their own steps, a cache that grows, and what torch itself counts of a step."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.emulator.programs import op as operation
from tests.emulator.programs import ref
from tests.emulator.test_capture import SCRIPTS, compute, run

from trnprof.emulator.capture.serving import serving_labels
from trnprof.emulator.workload import Operation, Workload

HEADS, DEPTH, PROMPT, TOKENS = 4, 16, 8, 4


def attention(workload: Workload) -> list[Operation]:
    return [o for o in workload.operations if "scaled_dot_product" in o.name]


@pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])
@pytest.mark.parametrize("kind", ["cat", "index"])
def test_each_token_is_a_step_and_reads_the_cache_so_far(kind: str, fake: bool) -> None:
    _, workload = run("decode.py", "generate", kind, "2,3", fake=fake)
    labels = ["prefill", *(f"decode {i}" for i in range(1, TOKENS))]
    assert [(s.label, s.source) for s in workload.steps] == [(s, "generate") for s in 2 * labels]
    calls = attention(workload)
    assert [o.step for o in calls] == list(range(2 * TOKENS))
    for step, call in enumerate(calls):
        batch, tokens = (2, 3)[step // TOKENS], step % TOKENS
        held = PROMPT + tokens
        both = 2 * batch * HEADS * held * DEPTH * 4
        assert sum(r.nbytes for r in call.inputs[1:3]) == both
        queries = PROMPT if tokens == 0 else 1
        assert call.model_flops == 2 * 2 * batch * HEADS * queries * held * DEPTH
    # the encoder, which comes before the first token, belongs to the prefill
    linear = Counter(o.step for o in workload.operations if o.name == "addmm")
    assert [linear[i] for i in range(2 * TOKENS)] == 2 * [3, *[2] * (TOKENS - 1)]


def test_fake_tensors_give_the_same_operations() -> None:
    both = [run("decode.py", "loop", "index", "2,3", fake=fake)[1] for fake in (False, True)]
    shapes = [
        [(o.name, o.step, [r.shape for r in (*o.inputs, *o.outputs)]) for o in w.operations]
        for w in both
    ]
    assert shapes[0] == shapes[1]
    labels = ["prefill", *(f"decode {i}" for i in range(1, TOKENS))]
    assert [(s.label, s.source) for s in both[1].steps] == [(s, "forward") for s in 2 * labels]


def test_queries_tell_prefill_from_decoding_only_where_there_is_decoding() -> None:
    def attending(step: int, *queries: int) -> list[Operation]:
        name = "_scaled_dot_product_flash_attention_for_cpu"
        return [operation(name, [ref(0, 2, 4, count, 16)], [], step=step) for count in queries]

    chunked = [*attending(0, 8), *attending(1, 5), *attending(2, 1, 1), *attending(4, 1)]
    assert serving_labels(chunked, 5) == ["prefill", "prefill", "decode 1", "", "decode 2"]
    pooled = [*attending(0, 8, 1), *attending(1, 8, 1)]  # an attention of one query in each
    assert serving_labels(pooled, 2) == ["", ""]
    assert serving_labels(attending(0, 1), 1) == [""]


def test_a_window_of_decoding_steps() -> None:
    _, part = run("decode.py", "generate", "cat", "2,3", steps=(5, 6))
    assert [(s.step, s.label) for s in part.steps] == [(5, "decode 1"), (6, "decode 2")]
    assert [o.inputs[1].shape[2] for o in attention(part)] == [PROMPT + 1, PROMPT + 2]
    assert (3, HEADS, PROMPT, DEPTH) in [r.shape for r in part.resident]


def test_each_batch_of_a_loader_is_a_step() -> None:
    _, workload = run("decode.py", "batches", "cat", "0")
    assert [(s.label, s.source) for s in workload.steps] == [
        (f"step {i}", "loader") for i in range(3)
    ]
    assert [compute(workload, "forward", i) for i in range(3)] == [["addmm", "addmm"]] * 3


def test_values_asked_of_fake_tensors() -> None:
    output, workload = run("asks.py", fake=True)
    lines = output.splitlines()
    assert lines[0] == "0 0.00 0.0 0.00 0.0 [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]"
    assert lines[-1] == str(4 * (3 + 4))  # the mask follows from constants, so its sum is known
    assert lines[1] == " (7, 4)"
    assert lines[7] == "0.0 (7, 4)"  # a mean over nothing known
    reads = [n for n in workload.notes if "were read that are not known" in n]
    assert len(reads) == 1
    (decided,) = [n for n in workload.notes if n.startswith("decided by values")]
    script = (SCRIPTS / "asks.py").read_text().splitlines()
    for number, line in enumerate(script, 1):
        assert (f"asks.py:{number} (" in decided) == (
            "# decides" in line or "right == 0" in line
        ), line
    _, real = run("asks.py")
    for step in range(4):
        ours, theirs = (
            [
                (o.phase, o.name, [r.shape for r in o.outputs])
                for o in w.operations
                if o.step == step and not o.is_view and o.outputs
            ]
            for w in (workload, real)
        )
        assert ours == theirs


@pytest.mark.parametrize("kind", ["mlp", "conv", "attention"])
def test_memory_and_flops_are_those_that_torch_counts(kind: str) -> None:
    output, workload = run("accounts.py", kind)
    counted = json.loads(output)
    assert sum(o.model_flops for o in workload.operations if o.step == 1) == counted["flops"]
    live = {r.tensor: r for r in workload.resident}
    highest: Counter[str] = Counter()
    gradients = 0
    for op in workload.operations:
        for number in op.freed:
            live.pop(number, None)
        if op.step == 1 and op.phase == "backward" and not highest:
            for ref in live.values():
                highest[ref.role] += ref.storage_nbytes
        live.update((r.tensor, r) for r in (*op.inputs, *op.outputs))
        if op.step == 1 and op.phase == "optimizer":
            held = sum(r.storage_nbytes for r in live.values() if r.role == "gradient")
            gradients = max(gradients, held)
    saved = highest["activation"] + highest["input"]
    assert saved == pytest.approx(counted["activations"], rel=0.1)
    assert highest["parameter"] == counted["parameter"]
    assert highest["optimizer_state"] == counted["optimizer_state"]
    assert gradients == pytest.approx(counted["gradient"], rel=0.1)
