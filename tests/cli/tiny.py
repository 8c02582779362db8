"""Two linear layers, three steps, no optimizer (importing those takes a second); argument: how it ends."""

import os
import signal
import sys
import time

import torch

end = sys.argv[1] if len(sys.argv) > 1 else "fine"
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
for step in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    sys.stdout.write(f"step {step}\n")
    sys.stdout.flush()
if end == "raise":
    raise ValueError("on purpose")
if end == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
if end == "wait":
    time.sleep(600)
