"""Three steps as a trainer of large models is written today: titan.py DP_REPLICATE DP_SHARD CP TP; parallelism from a mesh of all four.

Sequence parallel blocks, a loss over sharded logits, checkpointed blocks, sharded parameters in bfloat16, gradients clipped over the mesh.
"""

# ruff: noqa: T201

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper as ptd_checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, TOKENS, BATCH = 2, 64, 8, 128, 512, 64, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        return self.wo(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        )


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h)
        return self.output(self.norm(h))


def apply_tp(model, mesh):
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    for block in model.layers.values():
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
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
            },
        )


def main():
    replicate, shard, cp, tp = map(int, sys.argv[1:5])
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(torch.device("cuda:0"))
    sizes = {"dp_replicate": replicate, "dp_shard": shard, "cp": cp, "tp": tp}
    sizes = {name: size for name, size in sizes.items() if size > 1}
    mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    with torch.device("meta"):
        model = Model()
    if tp > 1:
        apply_tp(model, mesh["tp"])
    for name, block in model.layers.named_children():
        model.layers.register_module(name, ptd_checkpoint_wrapper(block, preserve_rng_state=False))
    sharded = [name for name in ("dp_shard", "cp") if name in sizes]
    if sharded:
        flat = mesh[tuple(sharded)]
        flat = flat._flatten("dp_shard_cp") if len(sharded) > 1 else flat
        if replicate > 1:
            flat = mesh["dp_replicate", flat.mesh_dim_names[0]]
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in model.layers.values():
            fully_shard(block, mesh=flat, mp_policy=precision)
        fully_shard(model, mesh=flat, mp_policy=precision)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    set_rotate_method("allgather")
    for _ in range(3):
        tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1)).cuda()
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        optimizer.zero_grad()
        with (
            context_parallel(
                mesh["cp"],
                buffers=[inputs, labels],
                buffer_seq_dims=[1, 1],
                no_restore_buffers={inputs, labels},
            )
            if cp > 1
            else torch.enable_grad(),
            loss_parallel() if tp > 1 else torch.enable_grad(),
        ):
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        print(loss.item(), norm.item())


if __name__ == "__main__":
    main()
