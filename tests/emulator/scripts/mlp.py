"""A small MLP; arguments: optimizer, foreach (0 or 1), how it ends (fine, raise, exit, segfault, kill, interrupt)."""

# ruff: noqa: T201

import os
import signal
import sys

import torch
from torch import nn

optimizer_name, foreach, end = (*sys.argv[1:], *("SGD", "0", "fine")[len(sys.argv) - 1 :])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = getattr(torch.optim, optimizer_name)(
    model.parameters(), lr=1e-3, foreach=foreach == "1"
)
for step in range(3):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.6f}", flush=True)
if end == "raise":
    raise ValueError("on purpose")
if end == "exit":
    sys.exit(3)
if end == "interrupt":
    raise KeyboardInterrupt
if end == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
