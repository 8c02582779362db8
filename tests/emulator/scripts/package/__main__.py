"""Run as ``python -m package``."""

# ruff: noqa: T201

import torch

model = torch.nn.Linear(4, 2)
print(sum(model(torch.ones(1, 4)).shape))
