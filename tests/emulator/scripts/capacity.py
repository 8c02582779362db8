"""Two steps of a layer whose experts take a fixed number of tokens, what is over is dropped: dispatched by products with masks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

WIDTH, EXPERTS, CHOICES, TOKENS = 64, 16, 2, 512
CAPACITY = TOKENS * CHOICES // EXPERTS * 2


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = EXPERTS // dist.get_world_size()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.weight = nn.Parameter(torch.randn(self.own, WIDTH, WIDTH))

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        scores, chosen = gates.topk(CHOICES, -1)
        mask = F.one_hot(chosen, EXPERTS)  # [tokens, choices, experts]
        place = mask.flatten(0, 1).cumsum(0).view_as(mask) * mask - 1
        kept = mask * (place < CAPACITY)
        slot = F.one_hot((place * kept).sum(-1), CAPACITY).to(x.dtype)
        combine = torch.einsum("tk,tke,tkc->tec", scores, kept.to(x.dtype), slot)
        sent = torch.einsum("tec,td->ecd", (combine > 0).to(x.dtype), x)
        got = all_to_all_single(torch.empty_like(sent), sent)
        parts = got.view(-1, self.own, CAPACITY, WIDTH).transpose(0, 1).reshape(self.own, -1, WIDTH)
        done = torch.bmm(parts, self.weight).view(self.own, -1, CAPACITY, WIDTH).transpose(0, 1)
        back = done.reshape(sent.shape)
        back = all_to_all_single(torch.empty_like(back), back)
        return torch.einsum("tec,ecd->td", combine, back)


if __name__ == "__main__":
    dist.init_process_group()
    model = Layer()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.randn(TOKENS, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
