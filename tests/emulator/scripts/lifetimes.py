"""Allocates and frees storages in a known order: storage bytes alive are checked against arithmetic."""

import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = x * self.weight  # 400 B
        b = a.view(10, 10)  # the storage of a
        del a
        c = b + 1  # 400 B
        del b  # a dies
        d = c.exp()  # 400 B
        c.mul_(2)  # in place
        del c  # c dies
        return d.sum()  # 4 B


model = Scale()
with torch.no_grad():
    for _ in range(2):
        model(torch.ones(100))
