"""A training loop that asks its tensors for values in every way."""

# ruff: noqa: T201

import math

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
scaler = torch.amp.GradScaler("cpu")
mask = torch.arange(5)[None] < torch.tensor([3, 4])[:, None]
best, right, seen, total = math.inf, 0, 0, 0.0
for step in range(4):
    x, y = torch.randn(2, 5, 8), torch.randint(0, 4, (2, 5))
    out = model(x)[mask]
    loss = nn.functional.cross_entropy(out, y[mask])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True, foreach=False)
    scaler.step(optimizer)
    scaler.update()
    schedule.step(loss.item())
    right += (out.argmax(-1) == y[mask]).sum().item()
    seen += int(mask.sum())
    total += loss.item()
    print(
        step, f"{loss.item():.2f} {float(norm):.1f} {right / seen:.2f}", loss.tolist(), y.tolist()
    )
    print(total / right if step == 3 and right == 0 else "", out.detach().numpy().shape)
    if total < best:  # decides
        best = total
    if loss > 1e9:  # decides
        break
    if torch.isnan(loss):  # it is taken to be finite, without a note
        break
print(seen)
