"""Two steps of training, and what torch itself counts of the second; argument: mlp, conv or attention. Prints JSON."""

# ruff: noqa: T201

import json
import sys
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class Attention(nn.Module):
    """By bmm, baddbmm and addmm, which torch's counter knows on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            p.unflatten(-1, (4, 16)).transpose(1, 2).flatten(0, 1) for p in self.qkv(x).chunk(3, -1)
        )
        scores = torch.baddbmm(torch.zeros(1, 1, 1), q, k.transpose(1, 2), alpha=0.25)
        y = torch.bmm(scores.softmax(-1), v)
        return self.out(y.unflatten(0, (len(x), 4)).transpose(1, 2).flatten(2))


torch.manual_seed(0)
kind = sys.argv[1]
shape = {"mlp": (512, 256), "conv": (8, 3, 32, 32), "attention": (4, 32, 64)}[kind]
model = {
    "mlp": lambda: nn.Sequential(
        nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)
    ),
    "conv": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 8, 2),
    ),
    "attention": lambda: nn.Sequential(Attention(), nn.LayerNorm(64), Attention()),
}[kind]()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)


def nbytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = {s._cdata: s for s in (t.untyped_storage() for t in tensors)}
    return sum(s.nbytes() for s in storages.values())


saved: list[torch.Tensor] = []
own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}


def keep(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.untyped_storage()._cdata not in own:
        saved.append(tensor.detach())
    return tensor


for _ in range(2):
    saved.clear()
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(torch.randn(shape)).square().mean()
        activations = nbytes(saved)
        saved.clear()
        loss.backward()
    optimizer.step()
    gradients = nbytes(p.grad for p in model.parameters())
    optimizer.zero_grad()
state = [t for s in optimizer.state.values() for t in s.values()]
print(
    json.dumps(
        {
            "flops": counter.get_total_flops(),
            "activations": activations,
            "gradient": gradients,
            "parameter": nbytes(model.parameters()),
            "optimizer_state": nbytes(state),
        }
    )
)
