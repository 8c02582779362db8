"""What programs do besides training in one go; argument: thread, forked, closed, broken (an interrupt inside a step)."""

import os
import sys
import threading

import torch
from torch import nn

how = sys.argv[1]
model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=-1))


class Interrupted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


def infer() -> None:
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(2, 8)).sum().item()


if how == "thread":
    worker = threading.Thread(target=infer)
    worker.start()
    worker.join()
else:
    infer()
if how == "forked":
    if not os.fork():
        infer()
        os._exit(0)
    os.wait()
if how == "closed":
    os.closerange(3, 1000)
    for _ in range(200):
        infer()
if how == "broken":
    nn.Sequential(model, Interrupted())(torch.randn(2, 8))
sys.stdout.write("done\n")
