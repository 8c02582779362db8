"""A step of training, its memory as torch's own allocator counts it (``profile``), or the same to be captured; prints bytes as JSON."""

# ruff: noqa: T201

import json
import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
model = nn.Sequential(*(Block() for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)


def train() -> None:
    loss = model(torch.randn(512, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


train()
if sys.argv[1:] == ["profile"]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    live = highest = 0
    for event in events:
        live += event.nbytes()
        highest = max(highest, live)
    parameters = sum(p.nbytes for p in model.parameters())
    state = sum(t.nbytes for s in optimizer.state.values() for t in s.values())
    print(
        json.dumps(
            {
                "parameters": parameters,
                "optimizer state": state,
                "all": parameters + state + highest,
            }
        )
    )
else:
    train()
