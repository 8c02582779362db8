"""Inference without an optimizer; argument: grad, no_grad or inference_mode; then what marks steps: forward, profiler, marker."""

import contextlib
import sys

import torch
from torch import nn

context = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}[sys.argv[1]]
marks = sys.argv[2]
model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(dim=-1))
profiler = torch.profiler.profile() if marks == "profiler" else contextlib.nullcontext()
if marks == "marker":
    import trnprof
with context(), profiler:
    for _ in range(4):
        y = model(torch.randn(2, 8))
        if marks == "forward":
            y.sum().item()
        if marks == "profiler":
            model(torch.randn(2, 8))
            profiler.step()
        if marks == "marker":
            model(torch.randn(2, 8))
            trnprof.step("batch")
