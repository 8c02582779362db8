"""Plain training steps of an MLP, a convolutional net and a transformer: training.py NET OPTIMIZER."""

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + nn.functional.dropout(y, 0.1)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, 32), nn.Embedding(16, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(32, 100, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(x))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 100))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.ConvTranspose2d(16, 8, 2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 100),
    )


NETS = {"mlp": mlp, "conv": conv, "transformer": Transformer}
INPUTS = {
    "mlp": lambda: torch.randn(4, 16),
    "conv": lambda: torch.randn(4, 3, 16, 16),
    "transformer": lambda: torch.randint(0, 100, (4, 16)),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "fused_sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, foreach=False),
    "foreach_adamw": lambda p: torch.optim.AdamW(p, foreach=True),
    "fused_adamw": lambda p: torch.optim.AdamW(p, fused=True),
}

net = NETS[sys.argv[1]]()
optimizer = OPTIMIZERS[sys.argv[2]](net.parameters())
for _ in range(2):
    scores = net(INPUTS[sys.argv[1]]()).view(-1, 100)
    loss = nn.functional.cross_entropy(scores, torch.randint(0, 100, (len(scores),)))
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
