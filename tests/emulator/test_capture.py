"""What the capture sees of real PyTorch programs, held against torch's own counters and against arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from trnprof.emulator.capture.launch_settings import Settings
from trnprof.emulator.capture.launcher import capture_environment
from trnprof.emulator.capture.store import load_workload, save_workload, seal_workload
from trnprof.emulator.workload import Operation, Workload

pytest.importorskip("torch")
SCRIPTS = Path(__file__).parent / "scripts"


@cache
def run(
    *arguments: str, fake: bool = False, steps: tuple[int, int] | None = None
) -> tuple[str, Workload]:
    """Output and workload of a script under capture; each combination runs once."""
    import os

    with TemporaryDirectory() as folder:
        settings = Settings(Path(folder), fake, steps)
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]],
            env=capture_environment(os.environ, settings),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "trnprof" not in done.stderr
        assert seal_workload(Path(folder))
        return done.stdout, load_workload(Path(folder))


def compute(workload: Workload, phase: str, step: int) -> list[str]:
    """Names of the operations that move data."""
    return [
        o.name for o in workload.operations if o.phase == phase and o.step == step and not o.is_view
    ]


def test_an_mlp_has_the_operations_of_its_derivation() -> None:
    _, workload = run("mlp.py", "SGD", "0", "fine")
    assert workload.complete
    assert [(s.step, s.source) for s in workload.steps] == [
        (0, "optimizer"),
        (1, "optimizer"),
        (2, "optimizer"),
    ]
    for step in range(3):
        assert compute(workload, "forward", step)[:5] == [
            "addmm", "relu", "addmm", "_log_softmax", "nll_loss_forward",
        ]  # fmt: skip
        # cross entropy, then for each layer the gradients of input, weight and bias; none for the first input
        assert compute(workload, "backward", step) == [
            "nll_loss_backward", "_log_softmax_backward_data", "mm", "mm", "sum",
            "threshold_backward", "mm", "sum",
        ]  # fmt: skip
        assert compute(workload, "optimizer", step) == ["add_"] * 4


def test_capture_does_not_change_results(tmp_path: Path) -> None:
    plain = subprocess.run(
        [sys.executable, str(SCRIPTS / "mlp.py"), "SGD", "0", "fine"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run("mlp.py", "SGD", "0", "fine")[0] == plain.stdout


def test_shapes_roles_and_bytes_of_a_matmul() -> None:
    _, workload = run("mlp.py", "SGD", "0", "fine")
    first = next(o for o in workload.operations if o.name == "addmm")
    assert [(i.shape, i.role, i.nbytes) for i in first.inputs] == [
        ((128,), "parameter", 4 * 128),
        ((32, 64), "input", 4 * 32 * 64),
        ((64, 128), "parameter", 4 * 64 * 128),
    ]
    assert [i.contiguous for i in first.inputs] == [True, True, False]
    assert [(o.shape, o.role, o.dtype) for o in first.outputs] == [
        ((32, 128), "activation", "float32")
    ]
    assert first.model_flops == 2 * 32 * 64 * 128
    assert sorted(r.shape for r in workload.resident) == [(10,), (10, 128), (128,), (128, 64)]
    assert {r.role for r in workload.resident} == {"parameter"}


def test_module_paths_reach_into_the_backward() -> None:
    _, workload = run("mlp.py", "SGD", "0", "fine")
    by_name = {
        (o.phase, o.name): (o.module_path, o.module_class)
        for o in workload.operations
        if o.name in ("relu", "threshold_backward", "mm")
    }
    assert by_name["forward", "relu"] == ("1", "ReLU")
    assert by_name["backward", "threshold_backward"] == ("1", "ReLU")
    paths = [o.module_path for o in workload.operations if o.name == "mm" and o.step == 0]
    assert paths == ["2", "2", "0"]
    lines = {
        o.source_line for o in workload.operations if o.name in ("addmm", "threshold_backward")
    }
    text = (SCRIPTS / "mlp.py").read_text().splitlines()
    assert [text[line - 1].strip() for line in lines] == [
        "loss = nn.functional.cross_entropy(model(x), y)"
    ]
    stepped = {o.source_line for o in workload.operations if o.phase == "optimizer"}
    assert [text[line - 1].strip() for line in stepped] == ["optimizer.step()"]


def test_foreach_and_single_tensor_optimizers() -> None:
    _, foreach = run("mlp.py", "AdamW", "1", "fine")
    _, single = run("mlp.py", "SGD", "0", "fine")
    lerp = [o for o in foreach.operations if o.name == "_foreach_lerp_"]
    assert len(lerp) == 3
    assert len(lerp[0].inputs) == 8  # first moments and gradients of 4 parameters
    assert len(lerp[0].outputs) == 4
    assert {o.role for o in lerp[0].outputs} == {"optimizer_state"}
    singles = [o for o in single.operations if o.phase == "optimizer" and o.step == 0]
    shapes = [o.outputs[0].shape for o in singles if not o.is_view]
    assert shapes == [o.shape for o in lerp[0].outputs]
    kinds = Counter(o.phase for o in single.operations)
    assert kinds["forward"] == Counter(o.phase for o in foreach.operations)["forward"]


def test_flops_equal_torchs_own_counter() -> None:
    output, workload = run("flops.py")
    counted = json.loads(output)
    flops: Counter[int] = Counter()
    for op in workload.operations:
        if "attention" not in op.name:
            flops[op.step] += int(op.model_flops)
    assert [flops[step] for step in range(len(counted))] == counted
    names = Counter(o.name for o in workload.operations)
    # the encoder trains with dropout, for which the CPU has no fused attention
    assert names["_scaled_dot_product_flash_attention_for_cpu"] == 2 + 2
    assert names["_scaled_dot_product_flash_attention_for_cpu_backward"] == 2
    # torch counts attention for every backend but the CPU's: two products forward, five backward, of 2 x 4 heads,
    # 12 x 12 positions and 8 channels
    product = 2 * 2 * 4 * 12 * 12 * 8
    attention = [o for o in workload.operations if "attention" in o.name]
    assert {o.model_flops / product for o in attention if o.phase == "forward"} == {2}
    assert {o.model_flops / product for o in attention if o.phase == "backward"} == {5}
    assert names["convolution"] == 3
    assert names["convolution_backward"] == 3
    causal = [
        o.arguments.get("is_causal", False)
        for o in workload.operations
        if o.name == "_scaled_dot_product_flash_attention_for_cpu" and o.step == 2
    ]
    assert causal == [True, True]
    strided = [o.arguments for o in workload.operations if o.name == "convolution"][1]
    assert (strided["stride"], strided["padding"], strided["groups"]) == ([2, 2], [0, 0], 2)
    assert [o.arguments["transposed"] for o in workload.operations if o.name == "convolution"] == [
        False,
        False,
        True,
    ]


def live_bytes(operations: tuple[Operation, ...], start: dict[int, int]) -> list[int]:
    """Bytes alive after each operation, by brute force over its refs and frees."""
    live, levels = dict(start), []
    for op in operations:
        for number in op.freed:
            live.pop(number, None)
        live.update((r.tensor, r.storage_nbytes) for r in (*op.inputs, *op.outputs))
        levels.append(sum(live.values()))
    return levels


def test_lifetimes_agree_with_arithmetic() -> None:
    _, workload = run("lifetimes.py")
    weight, x = 400, 400
    first = [o for o in workload.operations if o.step == 0]
    assert [o.name for o in first] == ["mul", "view", "add", "exp", "mul_", "sum"]
    start = {r.tensor: r.storage_nbytes for r in workload.resident}
    assert start == {workload.resident[0].tensor: weight}
    a, c, d, total = 400, 400, 400, 4
    assert live_bytes(tuple(first), start) == [
        weight + x + a,
        weight + x + a,
        weight + x + a + c,
        weight + x + c + d,  # a died with its view
        weight + x + c + d,
        weight + x + d + total,
    ]
    second = next(o for o in workload.operations if o.step == 1)
    assert len(second.freed) == 3  # x, d and the sum of the first step
    numbers = [
        o.outputs[0].tensor for o in workload.operations if o.name in ("mul", "add", "exp", "sum")
    ]
    assert len(set(numbers)) == 8  # reused memory is a new storage


def test_functional_code_with_a_custom_function() -> None:
    _, workload = run("custom_function.py")
    assert [s.step for s in workload.steps] == [0, 1, 2]
    assert compute(workload, "forward", 1)[:3] == ["mm", "mul", "mean"]
    assert compute(workload, "optimizer", 1) == ["mul", "sub_"]
    text = (SCRIPTS / "custom_function.py").read_text().splitlines()
    product = [o for o in workload.operations if o.phase == "backward" and o.name == "mm"]
    assert "data @ w" in text[product[0].source_line - 1]


def test_features_of_training_scripts() -> None:
    output, workload = run("features.py")
    assert output == "True\nTrue\n"
    assert any("torch.compile" in note for note in workload.notes)
    assert [s.source for s in workload.steps][:2] == ["optimizer"] * 2
    # two micro-batches of: inner once, again for its backward (recomputed), head once
    names = Counter((o.phase, o.name) for o in workload.operations if o.step == 0)
    assert names["forward", "addmm"] == 4
    assert names["backward", "addmm"] == 2
    recomputed = [o for o in workload.operations if o.phase == "backward" and o.name == "addmm"]
    assert {o.module_path for o in recomputed} == {"inner.0"}
    assert {o.dtype for op in recomputed for o in op.outputs} == {"bfloat16"}
    clipping = [o for o in workload.operations if o.name in ("linalg_vector_norm", "_foreach_norm")]
    assert {o.phase for o in clipping} == {"optimizer"}


def test_data_loading_is_the_hosts() -> None:
    _, workload = run("loader.py", "none")
    assert [s.source for s in workload.steps] == ["optimizer"] * 2
    assert compute(workload, "forward", 0)[:1] == ["addmm"]
    assert not [o for o in workload.operations if o.name in ("sub", "stack", "cat", "randperm")]


@pytest.mark.parametrize("grad", ["grad", "inference_mode"])
def test_each_forward_of_inference_is_a_step_with_the_reading_of_its_result(grad: str) -> None:
    _, workload = run("inference.py", grad, "forward")
    assert [(s.step, s.source) for s in workload.steps] == [(i, "forward") for i in range(4)]
    names = ["addmm", "_softmax", "sum", "_local_scalar_dense"]
    assert [compute(workload, "forward", i) for i in range(4)] == [names] * 4


@pytest.mark.parametrize("source", ["marker", "profiler"])
def test_markers_come_before_forwards(source: str) -> None:
    _, workload = run("inference.py", "no_grad", source)
    assert [s.source for s in workload.steps] == [source] * 4
    assert [len(compute(workload, "forward", i)) for i in range(4)] == [4] * 4
    assert {s.label for s in workload.steps} == (
        {"batch"} if source == "marker" else {f"step {i}" for i in range(4)}
    )


def test_a_window_of_steps_starts_with_what_is_in_memory() -> None:
    _, whole = run("mlp.py", "AdamW", "1", "fine")
    _, part = run("mlp.py", "AdamW", "1", "fine", steps=(1, 1))
    assert [s.step for s in part.steps] == [1]
    assert [o.name for o in part.operations] == [o.name for o in whole.operations if o.step == 1]
    states = [r for r in part.resident if r.role == "optimizer_state" and r.shape]
    assert sum(r.storage_nbytes for r in states) == 2 * 4 * (64 * 128 + 128 + 128 * 10 + 10)


def test_fake_tensors_need_no_memory_and_answer_questions() -> None:
    output, workload = run("fake_transformer.py", fake=True)
    assert output.splitlines()[0] == "0.000 0.0 False 0.0 0.0"
    tokens, width, layers, words = 2 * 512, 2048, 24, 32000
    linear = 2 * tokens * (12 * width * width * layers + width * words)
    # attention has products of 2 sequences, 16 heads, 512 x 512 positions, 128 channels: two forward, five backward
    product = layers * 2 * (2 * 16 * 512 * 512 * 128)
    forward = sum(
        o.model_flops for o in workload.operations if o.step == 0 and o.phase == "forward"
    )
    assert forward == linear + 2 * product
    backward = sum(
        o.model_flops for o in workload.operations if o.step == 0 and o.phase == "backward"
    )
    assert backward == 2 * linear + 5 * product
    parameters = [r for r in workload.resident if r.role == "parameter"]
    embedding, block = words * width, 12 * width**2 + 13 * width
    assert sum(r.storage_nbytes for r in parameters) == 2 * (embedding + layers * block + 2 * width)
    assert {r.dtype for r in parameters} == {"bfloat16"}
    assert any("num" in n or "values" in n for n in workload.notes)


def test_saving_and_loading_gives_the_same_workload(tmp_path: Path) -> None:
    _, workload = run("mlp.py", "AdamW", "1", "fine")
    save_workload(tmp_path, workload)
    assert load_workload(tmp_path) == workload
