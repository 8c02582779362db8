"""A stack of linear layers in stages: python pipeline.py BACKEND DP MICROBATCHES ROWS WIDTH SCHEDULE... (a step each)."""

# ruff: noqa: T201

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

LAYERS = 4
"""Linear layers of each rank."""


def layers(count: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def schedule(name: str, width: int, batches: int, mesh: object, device: torch.device) -> object:
    group, rank, size = mesh["pp"].get_group(), mesh["pp"].get_local_rank(), mesh["pp"].size()
    turns = 2 if name == "Interleaved1F1B" else 1
    dp = os.environ.get("DP_WAY")
    stages = []
    for turn in range(turns):
        module = layers(LAYERS // turns, width).to(device, torch.bfloat16)
        if dp == "fsdp":
            for layer in module:
                fully_shard(layer, mesh=mesh["dp"])
            fully_shard(module, mesh=mesh["dp"])
        elif dp == "ddp":
            module = DistributedDataParallel(module, process_group=mesh["dp"].get_group())
        index = rank + turn * size
        stages.append(pipelining.PipelineStage(module, index, turns * size, device, group=group))
    made = getattr(pipelining, f"Schedule{name}")
    return made(stages if turns > 1 else stages[0], batches, loss_fn=lambda y, t: (y * t).sum())


def train(backend: str, dp: int, batches: int, rows: int, width: int, names: list[str]) -> None:
    dist.init_process_group(backend)
    device = torch.device("cpu" if backend == "gloo" else f"cuda:{os.environ['LOCAL_RANK']}")
    world = dist.get_world_size()
    mesh = init_device_mesh(device.type, (world // dp, dp), mesh_dim_names=("pp", "dp"))
    is_last = mesh["pp"].get_local_rank() == mesh["pp"].size() - 1
    for name in names:
        plan = schedule(name, width, batches, mesh, device)
        stages = plan._stages if name.startswith("Inter") else [plan._stage]
        optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=1e-3)
        x = torch.randn(batches * rows, width, device=device, dtype=torch.bfloat16)
        losses: list[torch.Tensor] = []
        if dist.get_rank() < dp:
            plan.step(x)
        else:
            plan.step(target=x, losses=losses) if is_last else plan.step()
        optimizer.step()
        optimizer.zero_grad()
        if is_last:
            print(f"{name}: {len(losses)} losses, {sum(loss.item() for loss in losses):g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    backend, *numbers = sys.argv[1:6]
    train(backend, *map(int, numbers), sys.argv[6:])
