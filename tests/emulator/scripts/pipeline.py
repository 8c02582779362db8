"""A stack of linear layers in stages: python pipeline.py BACKEND WAYS DP MICROBATCHES ROWS WIDTH SCHEDULE...

A step for each schedule, in which stages are none, ddp or fsdp: the ways in turn, with commas between them.
"""

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

NARROWER = 16
"""So many times fewer features go from stage to stage than are inside."""


class Layer(nn.Module):
    """Three products; a rank has two such layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width // NARROWER, width, bias=False)
        self.inside = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(width, width // NARROWER, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.inside(self.up(x)))


def schedule(
    name: str, way: str, width: int, batches: int, mesh: object, device: torch.device
) -> object:
    group, rank, size = mesh["pp"].get_group(), mesh["pp"].get_local_rank(), mesh["pp"].size()
    turns = 2 if name == "Interleaved1F1B" else 1
    stages = []
    for turn in range(turns):
        module = nn.Sequential(*(Layer(width) for _ in range(2 // turns)))
        module = module.to(device, torch.bfloat16)
        if way == "fsdp":
            for layer in module:
                fully_shard(layer, mesh=mesh["dp"])
            fully_shard(module, mesh=mesh["dp"])
        elif way == "ddp":
            module = DistributedDataParallel(module, process_group=mesh["dp"].get_group())
        index = rank + turn * size
        stages.append(pipelining.PipelineStage(module, index, turns * size, device, group=group))
    made = getattr(pipelining, f"Schedule{name}")
    return made(stages if turns > 1 else stages[0], batches, loss_fn=lambda y, t: (y * t).sum())


def train(
    backend: str, ways: list[str], dp: int, batches: int, rows: int, width: int, names: list[str]
) -> None:
    dist.init_process_group(backend)
    device = torch.device("cpu" if backend == "gloo" else f"cuda:{os.environ['LOCAL_RANK']}")
    world = dist.get_world_size()
    mesh = init_device_mesh(device.type, (world // dp, dp), mesh_dim_names=("pp", "dp"))
    is_last = mesh["pp"].get_local_rank() == mesh["pp"].size() - 1
    for number, name in enumerate(names):
        way = ways[number % len(ways)]
        plan = schedule(name, way, width, batches, mesh, device)
        stages = plan._stages if name.startswith("Inter") else [plan._stage]
        optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=1e-3)
        x = torch.randn(batches * rows, width // NARROWER, device=device, dtype=torch.bfloat16)
        x.requires_grad_()  # so that the first stage has as much to do as others
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
    backend, ways, *numbers = sys.argv[1:7]
    train(backend, ways.split(","), *map(int, numbers), sys.argv[7:])
