"""What the capture sees of real JAX programs on virtual devices, held against closed forms and against JAX's own counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from trnprof.emulator.capture.launch_settings import Settings, prepare_state, take_state
from trnprof.emulator.capture.launcher import capture_environment
from trnprof.emulator.capture.store import load_workload, seal_workload
from trnprof.emulator.emulate import emulate
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Operation, Workload
from trnprof.tracer.manifest import create_trace_directory
from trnprof.tracer.reader import open_trace

pytest.importorskip("jax", reason="needs JAX: pip install 'trnprof[jax]'")
SCRIPTS = Path(__file__).parent / "scripts"
WIDTH, HIDDEN, BATCH = 64, 256, 32  # of scripts/jax_train.py


def started(folder: Path, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    chosen = Settings(folder, **{"world_size": 8, **settings})  # type: ignore[arg-type]
    prepare_state(folder)
    return subprocess.run(
        [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]],
        env=capture_environment({k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}, chosen),
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def run(*arguments: str, fake: bool = False) -> tuple[str, Workload]:
    """Output and workload of a script on 8 devices; each combination runs once."""
    with TemporaryDirectory() as folder:
        done = started(Path(folder), *arguments, fake=fake)
        assert done.returncode == 0, done.stderr
        assert "trnprof" not in done.stderr
        assert seal_workload(Path(folder))
        return done.stdout, load_workload(Path(folder))


def of_step(workload: Workload, step: int) -> list[Operation]:
    return [op for op in workload.operations if op.step == step]


def exchanged(workload: Workload, step: int = 0) -> Counter[tuple[str, str, str, int]]:
    """Collectives of a step: phase, kind, group, bytes."""
    return Counter(
        (
            op.phase,
            op.collective.kind,
            workload.groups[op.collective.group].name,
            op.collective.nbytes,
        )
        for op in of_step(workload, step)
        if op.collective
    )


def test_collectives_of_shard_map_have_their_closed_forms() -> None:
    _, workload = run("jax_collectives.py")
    assert (workload.world.size, workload.world.rank) == (8, 0)
    found = {kind: (group, nbytes) for (_, kind, group, nbytes) in exchanged(workload)}
    # bfloat16[16, 8]: as the program has it, not as the CPU reduces it (float32)
    assert found["all_reduce"] == ("a", 16 * 8 * 2)
    assert found["all_gather"] == ("b", 4 * 8 * 8 * 4)
    assert found["reduce_scatter"] == ("axb", 4 * 8 * 8 * 4)
    assert found["all_to_all"] == ("b", 16 * 8 * 2)
    assert found["permute"] == ("b", 8 * 8 * 4)
    groups = {group.name: group for group in workload.groups}
    assert groups["a"].ranks == (0, 4)
    assert groups["a"].siblings == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups["b"].siblings == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize("layers", [1, 3])
def test_a_layer_does_what_its_derivation_says(layers: int) -> None:
    _, workload = run("jax_train.py", str(layers))
    ops = of_step(workload, 1)
    # per device: batch over 4, hidden over 2; two products forward, twice as many backward
    product = 2 * (BATCH // 4) * WIDTH * (HIDDEN // 2)
    assert sum(op.model_flops for op in ops) == layers * 6 * product
    assert Counter(op.phase for op in ops if op.model_flops) == {
        "forward": 2 * layers,
        "backward": 4 * layers,
    }
    activations, weights = (BATCH // 4) * WIDTH * 2, WIDTH * (HIDDEN // 2) * 2
    assert exchanged(workload, 1) == {
        ("forward", "all_reduce", "tp", activations): layers,
        ("backward", "all_reduce", "tp", activations): layers,
        ("backward", "all_reduce", "dp", weights): 2 * layers,
        ("forward", "all_reduce", "dp", 4): 1,  # the mean
    }


def test_a_scan_of_more_layers_repeats_one() -> None:
    counts = [
        Counter((op.phase, op.name) for op in of_step(run("jax_train.py", str(n))[1], 0))
        for n in (1, 2, 3)
    ]
    keys = counts[2].keys()
    assert {k: counts[2][k] - counts[1][k] for k in keys} == {
        k: counts[1][k] - counts[0][k] for k in keys
    }


def test_where_operations_come_from() -> None:
    _, workload = run("jax_train.py", "3")
    ops = of_step(workload, 1)
    products = [op for op in ops if op.model_flops]
    text = (SCRIPTS / "jax_train.py").read_text().splitlines()
    assert {op.module_path for op in products} == {"block"}
    assert {Path(op.source_file).name for op in products} == {"jax_train.py"}
    assert all("w[" in text[op.source_line - 1] for op in products)
    updates = [op for op in ops if op.phase == "optimizer"]
    assert {
        text[op.source_line - 1].split("lambda")[1].split(":")[0].strip() for op in updates
    } == {
        "m, g",
        "w, m",
    }


def test_roles_and_memory_of_a_donating_step() -> None:
    _, workload = run("jax_train.py", "3")
    weights = 3 * WIDTH * (HIDDEN // 2) * 2
    resident = Counter(ref.role for ref in workload.resident)
    assert resident["parameter"] == resident["optimizer_state"] == 2
    state = [r for r in workload.resident if r.role in ("parameter", "optimizer_state")]
    assert {r.storage_nbytes for r in state} == {weights}
    # donated: the update writes the weights where they are, so no step adds storages that stay
    written = {
        r.tensor for op in of_step(workload, 2) for r in op.outputs if op.phase == "optimizer"
    }
    assert {r.tensor for r in state} <= written
    live, after = set(), []
    for number in range(2):  # what dies in the end has no operation after it to tell so
        for op in of_step(workload, number):
            live -= set(op.freed)
            live |= {r.tensor for r in op.outputs}
        after.append(len(live))
    assert after[0] == after[1]


def test_steps_are_calls_of_the_function_that_works_most() -> None:
    _, workload = run("jax_train.py", "1")
    assert [(s.step, s.source) for s in workload.steps] == [(i, "forward") for i in range(3)]
    first = workload.operations[0]
    assert first.phase == "forward"  # making the weights is set-up
    _, parts = run("jax_train.py", "1", "parts")
    assert len(parts.steps) == 3
    phases = [op.phase for op in of_step(parts, 1)]
    updates = [i for i, phase in enumerate(phases) if phase == "optimizer"]  # a function of its own
    assert len(updates) == 4  # two products with the rate, two differences
    assert (
        phases[: updates[-1] + 1]
        == ["forward"] * phases.index("backward")
        + ["backward"] * (updates[0] - phases.index("backward"))
        + ["optimizer"] * 4
    )
    _, inference = run("jax_train.py", "2", "infer")
    assert [s.step for s in inference.steps] == [0, 1, 2]
    assert {op.phase for op in inference.operations} == {"forward"}


def test_marked_steps_keep_their_labels() -> None:
    _, workload = run("jax_train.py", "1", "marked")
    assert [(s.label, s.source) for s in workload.steps] == [
        (f"batch {i}", "marker") for i in range(3)
    ]


def test_a_function_compiled_ahead_is_seen_in_every_call() -> None:
    _, ahead = run("jax_train.py", "1", "compiled")
    _, jitted = run("jax_train.py", "1")
    assert Counter(op.name for op in ahead.operations) == Counter(
        op.name for op in jitted.operations
    )


def test_fake_runs_record_the_same() -> None:
    printed, real = run("jax_train.py", "3")
    shown, fake = run("jax_train.py", "3", fake=True)
    assert [(op.name, op.phase, op.step, op.collective) for op in fake.operations] == [
        (op.name, op.phase, op.step, op.collective) for op in real.operations
    ]
    assert float(printed.split()[0]) > 0
    assert len(shown.split()) == 3


def test_a_world_that_is_not_the_programs_is_refused(tmp_path: Path) -> None:
    settings = Settings(tmp_path, world_size=4)
    prepare_state(tmp_path)
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "jax_train.py"), "1"],
        env=capture_environment(environment, settings),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--world-size 4, but the program has 8 JAX devices" in take_state(tmp_path)[1]


def test_a_transformer_on_64_devices_is_what_xla_counts() -> None:
    """8 data x 8 tensor parallel, 4 layers, the shape of the program in which XLA was once counted to leave 16 all-reduces of its own."""
    layers, width, hidden, length, rows = 4, 256, 1024, 64, 16 // 8  # of scripts/jax_transformer.py
    with TemporaryDirectory() as folder:
        done = started(Path(folder), "jax_transformer.py", fake=True, world_size=64)
        assert done.returncode == 0, done.stderr
        assert seal_workload(Path(folder))
        workload = load_workload(Path(folder))
    tokens = rows * length
    qkv, rest = 3 * width**2, width**2 + 3 * width * hidden
    # two products back for each forward, but what enters the first layer has no gradient; scores and values of one head
    products = 2 * tokens * (3 * layers * (qkv + rest) - qkv) // 8
    attention = 3 * layers * 2 * 2 * rows * length**2 * (width // 8)
    flops = sum(op.model_flops for op in of_step(workload, 1))
    assert flops == products + attention
    assert workload.world.size == 64
    assert {(g.name, len(g.ranks), len(g.siblings)) for g in workload.groups} == {
        ("dp", 8, 8),
        ("tp", 8, 8),
    }
    sizes = [qkv, width**2, *3 * [width * hidden]]
    weights = Counter({2 * size // 8: layers * sizes.count(size) for size in sizes})
    activations = 2 * tokens * width
    assert exchanged(workload, 1) == {
        ("forward", "all_reduce", "tp", activations): 2 * layers,
        # of gate and up each, and of what went into the attention of all but the first
        ("backward", "all_reduce", "tp", activations): 2 * layers + layers - 1,
        **{("backward", "all_reduce", "dp", n): count for n, count in weights.items()},
        ("forward", "all_reduce", "dp", 4): 1,
    }
    counted = subprocess.run(
        [sys.executable, str(SCRIPTS / "jax_transformer.py"), "count"],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=64"},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs, sums = map(int, counted.stdout.split())
    assert flops < theirs < 1.06 * flops  # with those of elementwise operations
    # the CPU compiler adds before it sums, gate and up, and joins all of the data parallel ones
    assert sums == 2 * layers + layers + layers - 1 + 1 == 16


def test_it_is_emulated_with_its_ranks(tmp_path: Path) -> None:
    _, workload = run("jax_train.py", "3")
    trace = create_trace_directory(tmp_path / "run.trnprof", force=False)
    outcome = emulate(workload, load_system("trn2"), trace)
    assert outcome.details["fallback_ops"] == 0
    assert outcome.details["world_size"] == 8
    calls = sum(exchanged(workload, step).total() for step in range(3))
    events = open_trace(trace).events.collect()
    assert events.filter(events["category"] == "collective").height >= calls
