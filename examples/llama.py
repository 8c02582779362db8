"""One training step of a Llama-class model, FSDP2 x tensor parallel, as one would write it for a cluster: torchrun … llama.py 8b."""

import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of a model: widths in elements, heads of queries and of keys and values."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int = 128_256
    theta: float = 500_000.0

    @property
    def head_width(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


SHAPES = {
    "8b": Shape(32, 4096, 32, 8, 14_336),
    "70b": Shape(80, 8192, 64, 8, 28_672),
    "tiny": Shape(2, 512, 16, 8, 1024, 1024),
}


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, heads, width of a head] turned by its position."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)


class Attention(nn.Module):
    """Causal attention of grouped queries; the heads are those of this rank."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        self.wq = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.wk = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.wv = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same."""
        batch, tokens, _ = x.shape
        q, k, v = (
            w(x).view(batch, tokens, -1, self.head_width) for w in (self.wq, self.wk, self.wv)
        )
        q, k = rotated(q, angles), rotated(k, angles)
        groups = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.w2 = nn.Linear(shape.hidden, shape.width, bias=False)
        self.w3 = nn.Linear(shape.width, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention, self.feed_forward = Attention(shape), FeedForward(shape)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same."""
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Embedding, blocks, norm and head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tok_embeddings = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        half = torch.arange(0, self.shape.head_width, 2, device=tokens.device)
        frequencies = self.shape.theta ** -(half / self.shape.head_width)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), frequencies)
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return self.output(self.norm(x))


def parallelized(model: Llama, mesh: DeviceMesh) -> nn.Module:
    """Tensor and sequence parallel along ``tp``, sharded along ``dp``; products in bfloat16."""
    top = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    within = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w3": ColwiseParallel(),
    }
    parallelize_module(model, mesh["tp"], top)
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], within)
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=precision)
    return fully_shard(model, mesh=mesh["dp"], mp_policy=precision)


def main() -> None:
    """Train for as many steps as asked, on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--tp", type=int, default=8, help="ranks that share a layer")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1)
    asked = parser.parse_args()
    shape = SHAPES[asked.shape]
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // asked.tp, asked.tp), mesh_dim_names=("dp", "tp"))
    with torch.device("cuda"):
        model = Llama(shape)
    model = parallelized(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(asked.steps):
        tokens = torch.randint(0, shape.vocabulary, (1, asked.tokens + 1), device="cuda")
        with loss_parallel():
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
