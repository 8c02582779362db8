"""A stack of feed-forward blocks, trained in every parallel way: python parallel.py WAY [BACKEND]."""

# ruff: noqa: T201

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, TOKENS, STEPS = 64, 3, 16, 3


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(
        self, width: int = WIDTH, layers: int = LAYERS, head: bool = False, unused: bool = False
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, width) if head else nn.Identity()
        if unused:
            self.unused = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(model: Model, mesh: object = None, **options: object) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def tensor_parallel(model: Model, mesh: object, sequence: bool = False) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    if sequence:
        layouts = {"input_layouts": (Replicate(),), "desired_input_layouts": (Shard(1),)}
        parallelize_module(model, mesh, {"": PrepareModuleInput(**layouts, use_local_output=True)})
    return model


def made(way: str, device: str) -> nn.Module:
    world = dist.get_world_size()
    match way:
        case "ddp" | "accumulate" | "static":
            return DistributedDataParallel(Model().to(device), static_graph=way == "static")
        case "unused":
            return DistributedDataParallel(
                Model(unused=True).to(device), find_unused_parameters=True
            )
        case "big_ddp":
            return DistributedDataParallel(Model(512, 5).to(device))
        case "fsdp2":
            return shard(Model(head=True).to(device))
        case "fsdp2_keep":
            return shard(Model(head=True).to(device), reshard_after_forward=False)
        case "fsdp2_pairs":
            return shard(Model(head=True).to(device), reshard_after_forward=2)
        case "fsdp2_mixed":
            precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            return shard(Model(head=True).to(device), mp_policy=precision)
        case "fsdp1":
            policy = ModuleWrapPolicy({Block})
            return FullyShardedDataParallel(
                Model(head=True).to(device), auto_wrap_policy=policy, use_orig_params=True
            )
        case "tp" | "sp":
            return tensor_parallel(
                Model().to(device), init_device_mesh(device, (world,)), way == "sp"
            )
        case "2d":
            mesh = init_device_mesh(device, (world // 2, 2), mesh_dim_names=("dp", "tp"))
            return shard(tensor_parallel(Model().to(device), mesh["tp"]), mesh["dp"])
        case "hsdp":
            mesh = init_device_mesh(device, (2, world // 2), mesh_dim_names=("replicate", "shard"))
            return shard(Model(head=True).to(device), mesh)
    raise SystemExit(f"no such way: {way}")


def train(way: str, backend: str) -> None:
    device = "cpu" if backend == "gloo" else "cuda"
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = made(way, device)
    width = 512 if way == "big_ddp" else WIDTH
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x = torch.randn(2, TOKENS, width, device=device)
        if way == "accumulate":
            with model.no_sync():
                model(x).sum().backward()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "nccl")
