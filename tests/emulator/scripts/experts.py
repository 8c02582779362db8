"""Two steps of a model whose tokens go to experts on other ranks: experts.py WAY,WAY… [TOKENS]; a layer a way, each counts as another program does."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
)

WIDTH, HIDDEN, EXPERTS, CHOICES = 64, 128, 16, 2
TOKENS = int(sys.argv[2]) if len(sys.argv) > 2 else 512


class Experts(nn.Module):
    def __init__(self, count, way):
        super().__init__()
        self.way = way
        self.up = nn.Parameter(torch.randn(count, WIDTH, HIDDEN))
        self.down = nn.Parameter(torch.randn(count, HIDDEN, WIDTH))

    def forward(self, x, counts):
        if self.way == "grouped":
            offsets = torch.cumsum(counts, 0, dtype=torch.int32)
            h = F.silu(torch._grouped_mm(x.bfloat16(), self.up.bfloat16(), offs=offsets))
            return torch._grouped_mm(h, self.down.bfloat16(), offs=offsets).type_as(x)
        parts = torch.split(x, counts.tolist())
        done = [F.silu(p @ u) @ d for p, u, d in zip(parts, self.up, self.down, strict=True)]
        return torch.cat(done)


def counted(way, chosen):
    flat = chosen.view(-1)
    match way:
        case "grouped":
            return torch.histc(flat, bins=EXPERTS, min=0, max=EXPERTS)
        case "one_hot":
            return F.one_hot(flat, EXPERTS).sum(0)
        case "scatter":
            return torch.zeros(EXPERTS, dtype=torch.int64).scatter_add_(
                0, flat, torch.ones_like(flat)
            )
        case "mask":
            routed = torch.zeros(len(chosen), EXPERTS).int().scatter(1, chosen, 1).bool()
            return routed.sum(0)
        case "unique":
            present, counts = torch.unique(flat, return_counts=True)
            return torch.zeros(EXPERTS, dtype=torch.int64).index_put_((present,), counts)
    return torch.bincount(flat, minlength=EXPERTS)


class Layer(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way
        self.ranks = dist.get_world_size()
        self.own = EXPERTS // self.ranks
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts(self.own, way)

    def routed(self, x):
        scores = self.gate(x).softmax(-1)
        if self.way == "argmax":
            chosen = scores.argmax(-1, keepdim=True)
            return scores.gather(1, chosen), chosen
        return scores.topk(CHOICES, dim=-1)

    def forward(self, x):
        scores, chosen = self.routed(x)
        counts = counted(self.way, chosen)
        order = torch.argsort(chosen.view(-1), stable=True)
        token = order // chosen.shape[1]
        sent = x[token]
        if self.way == "grouped":
            theirs = torch.ops._c10d_functional.wait_tensor(
                all_to_all_single(counts, None, None, dist.group.WORLD)
            )
        elif self.way == "gathered":
            everyone = [torch.empty_like(counts) for _ in range(self.ranks)]
            dist.all_gather(everyone, counts)
            theirs = torch.stack(everyone)[:, : self.own].reshape(-1)
        else:
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
        to = counts.view(self.ranks, -1).sum(1).tolist()
        of = theirs.view(self.ranks, -1).sum(1).tolist()
        received = all_to_all_single_autograd(sent, of, to, dist.group.WORLD)
        # by rank and expert, to by expert and rank
        owner = torch.arange(self.own).repeat(self.ranks).repeat_interleave(theirs)
        shuffled = torch.argsort(owner, stable=True)
        done = self.experts(received[shuffled], theirs.view(self.ranks, -1).sum(0))
        done = torch.empty_like(done).index_copy(0, shuffled, done)
        back = all_to_all_single_autograd(done, to, of, dist.group.WORLD)
        weighted = back * scores.view(-1)[order].unsqueeze(1)
        return x + torch.zeros_like(x).index_add(0, token, weighted)


if __name__ == "__main__":
    dist.init_process_group()
    model = nn.Sequential(*map(Layer, sys.argv[1].split(",")))
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.randn(TOKENS, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
