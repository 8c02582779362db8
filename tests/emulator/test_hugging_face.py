"""Trainer and accelerate, plain, under DDP and sharded by their own configuration: what their ranks exchange, by closed form."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.emulator.distributed import SCRIPTS, kinds, played

from trnprof.emulator.capture.torchrun import rank_command
from trnprof.emulator.workload import Workload
from trnprof.tracer.errors import CaptureError

pytest.importorskip("torch")
RANKS = 8
ACCELERATED = str(SCRIPTS / "accelerated.py")
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: SIZE_BASED_WRAP
  fsdp_min_num_params: 4000
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_machines: 2
num_processes: 8
main_process_ip: 10.0.0.1
main_process_port: 29511
same_network: true
machine_rank: 0
"""
LINEAR = 64 * 64 + 64
"""Parameters of a layer in scripts/accelerated.py, which has three."""
EMBEDDING, LAYER = 128 * 64, 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
LLAMA = 2 * EMBEDDING + 2 * LAYER + 64
"""Elements of parameters in scripts/trainer.py: embedding, head, layers (attention, MLP, two norms), the last norm."""
PARAMETERS = 2 + 2 * 9 + 1


def trained(tmp_path: Path, way: str) -> Workload:
    pytest.importorskip("transformers", reason="needs Hugging Face's transformers (extra dev)")
    pytest.importorskip("accelerate", reason="needs accelerate (extra dev)")
    workload = played(RANKS, "trainer.py", str(tmp_path), way)
    assert [step.label for step in workload.steps] == ["step 0", "step 1", "step 2"]
    assert not [note for note in workload.notes if "decided by values" in note]
    return workload


def test_trainer_on_several_ranks_is_ddp(tmp_path: Path) -> None:
    workload = trained(tmp_path, "plain")
    sums = [nbytes for kind, _, nbytes in kinds(workload, 1, "backward") if kind == "all_reduce"]
    # and which parameters were used, for Trainer asks for find_unused_parameters
    assert sums == [4 * LLAMA, 4 * PARAMETERS]


@pytest.mark.parametrize("way", ["fsdp", "fsdp2"])
def test_trainer_shards_as_its_arguments_say(way: str, tmp_path: Path) -> None:
    """Each layer is gathered for the forward and again for the backward, its gradient is scattered."""
    found = Counter(kinds(trained(tmp_path, way), 1))
    assert found["all_gather", "world", 4 * LAYER] == 2 * 2
    assert found["reduce_scatter", "world", 4 * LAYER] == 2
    scattered = [nbytes * n for (kind, _, nbytes), n in found.items() if kind == "reduce_scatter"]
    assert sum(scattered) == 4 * LLAMA


def test_a_loop_by_accelerate_sums_gradients_once_for_two_batches() -> None:
    pytest.importorskip("accelerate", reason="needs accelerate (extra dev)")
    workload = played(RANKS, "accelerated.py")
    assert len(workload.steps) == 3
    for step in range(2):
        assert kinds(workload, step, "backward") == [("all_reduce", "world", 3 * LINEAR * 4)]


def test_accelerate_launch_is_asked_for_world_and_configuration(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate (extra dev)")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    rank = rank_command([*launch, ACCELERATED, "--x", "1"])
    assert rank.command == (sys.executable, ACCELERATED, "--x", "1")
    assert (rank.world_size, rank.local_size, rank.launcher) == (RANKS, 4, "accelerate")
    environment = rank.environment()
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["WORLD_SIZE"] == str(RANKS)
    with pytest.raises(CaptureError, match="accelerate starts 8 ranks: leave out --world-size"):
        rank_command([*launch, ACCELERATED], 16)
    with pytest.raises(CaptureError, match=r"accelerate launch: .*invalid int value: 'many'"):
        rank_command([*launch, "--num_processes", "many", ACCELERATED])
    workload = played(RANKS, *launch[1:], ACCELERATED)
    found = Counter(kinds(workload, 1))
    assert found["all_gather", "world", 2 * LINEAR] == 2 * 2 * 3  # bfloat16, two batches
    assert found["reduce_scatter", "world", 2 * LINEAR] == 3  # once, for both


def test_a_launcher_whose_python_has_no_accelerate_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launcher = tmp_path / "accelerate"
    launcher.write_text(f"#!{sys.executable}\n")
    launcher.chmod(0o755)
    (tmp_path / "accelerate.py").write_text("raise ImportError('no such thing here')\n")
    with pytest.raises(CaptureError, match=r"^accelerate launch: .*no such thing here"):
        rank_command([str(launcher), "launch", "train.py"])
    with pytest.raises(CaptureError, match="no such file or command"):
        rank_command([str(tmp_path / "no" / "accelerate"), "launch", "train.py"])
