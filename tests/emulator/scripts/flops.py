"""Three models under FlopCounterMode; prints its counts as JSON, for the capture to be held against."""

import json
import sys

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


MODELS = {
    "mlp": (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), (16, 32)),
    "conv": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, groups=2),
            nn.ConvTranspose2d(16, 4, 2),
            nn.AdaptiveAvgPool2d(1),
        ),
        (2, 3, 16, 16),
    ),
    "attention": (nn.Sequential(Attention(32, 4), nn.LayerNorm(32), Attention(32, 4)), (2, 12, 32)),
    "encoder": (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
        (2, 12, 32),
    ),
}
counts = []
for model, shape in MODELS.values():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(shape)).sum().backward()
    optimizer.step()
    counts.append(counter.get_total_flops())
with torch.inference_mode(), FlopCounterMode(display=False) as counter:
    MODELS["encoder"][0].eval()(torch.randn(2, 12, 32))
counts.append(counter.get_total_flops())
json.dump(counts, sys.stdout)
